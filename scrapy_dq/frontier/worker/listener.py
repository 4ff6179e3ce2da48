"""What a worker reports to its owner."""

from __future__ import annotations

from enum import Enum

from scrapy_dq.frontier.model import Put, Words


class Count(str, Enum):
    """What is counted."""

    EXCHANGE = "exchange"
    """Exchanges, and rejoins, that were answered."""
    SECONDS = "seconds"
    """Time until their answers."""
    ERROR = "error"
    """Calls without a usable answer."""
    REJOIN = "rejoin"
    RECLAIM = "reclaim"
    """Leases of dead workers that were moved back."""
    # Moves that were confirmed.
    PUT = "put"
    ACK = "ack"
    RELEASE = "release"
    BURY = "bury"
    FAIL = "fail"


class Listener:
    """Hooks that do nothing; called on the event loop, they must neither block nor raise."""

    def leases_arrived(self) -> None: ...
    def run_finished(self) -> None: ...
    def frontier_lost(self) -> None: ...
    def put_dropped(self, put: Put) -> None: ...
    def put_refused(self, put: Put) -> None:
        """There are too many already (`Put.most`); it was not stored."""

    def outbox_lost(self, parentless: bool) -> None:
        """Puts are gone that were never stored: what was found may not be taken for known any more.

        Those whose parent has a lease come again; if some have none (*parentless*), only the next
        crawl's start() brings them back.
        """

    def rolled_back(self, parentless: bool) -> None:
        """Redis was rolled back further than the log of this worker reaches: confirmed puts are gone.

        Those whose parent has a lease come again, if nobody takes them for known; if some have none
        (*parentless*), only the next crawl's start() brings them back.
        """

    def told(self, before: Words, words: Words) -> None:
        """All workers were told something, by somebody outside; what holds is obeyed already."""

    def counted(self, what: Count, amount: float) -> None: ...
