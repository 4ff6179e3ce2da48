"""The data of a page in a payload, and the record of each visit (one run of a page's callback)."""

from __future__ import annotations

from dataclasses import dataclass

from scrapy_dq.frontier.messages import apart
from simulation.virtual import BEGIN_S

FEED = "feed"
FED_MARK = b"\x00fed"


@dataclass
class Visit:
    """One run of a page's callback, or one error answer of the page."""

    page: int
    attempt: int
    by: str
    """The name of the process."""
    run: tuple[str, int]
    worker_id: str
    taken_at: float
    ended_at: float
    entry_id: bytes
    origin: str
    """The place where the page was found, if its request is not filtered."""
    last: bool
    """Whether this is the last run: the page got no error answer and is not processed again."""
    confirmed_at: float = float("inf")

    @property
    def identity(self) -> tuple[int, str]:
        return self.page, self.origin

    def __str__(self) -> str:
        return (
            f"page {self.page}.{self.attempt}.{self.origin} by {self.worker_id} in run {self.run[1]}, "
            f"{self.taken_at - BEGIN_S:.3f} to {self.ended_at - BEGIN_S:.3f} s, "
            f"stored at {self.confirmed_at - BEGIN_S:.3f} s"
        )

    @property
    def settled(self) -> bool:
        """Whether Redis has stored the end of its lease."""
        return self.confirmed_at < float("inf")


def parts(payload: bytes) -> tuple[int, int, str]:
    """Return an entry's page, its number of earlier tries, and the place where it was found."""
    page, attempt, origin = apart(payload)[1].removeprefix(FED_MARK).decode().split(".")
    return int(page), int(attempt), origin
