"""The reports of a worker to its owner."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from scrapy_dq.frontier.model import Commands
from scrapy_dq.frontier.moves import Move, Put


class Count(str, Enum):
    """The counts of a worker, besides confirmed moves."""

    EXCHANGE = "exchange"
    """Answered exchanges and rejoins."""
    SECONDS = "seconds"
    """Time until their answers."""
    ERROR = "error"
    """Calls without a usable answer."""
    REJOIN = "rejoin"
    RECLAIM = "reclaim"
    """Leases of dead workers that were moved to quarantine."""


class Listener:
    """Hooks that do nothing by default; they run on the event loop, and must neither block nor raise."""

    def leases_arrived(self) -> None: ...
    def run_finished(self) -> None: ...
    def frontier_lost(self) -> None: ...
    def cut_off(self) -> None:
        """This worker alone does not reach a part of Redis, and the crawl cannot end before it leaves.

        It cannot store requests without a parent, or other workers wait for entries that only it may serve.
        """

    def put_dropped(self, put: Put) -> None: ...
    def put_refused(self, put: Put) -> None:
        """A put was not stored because too many entries wait (`Put.most`)."""

    def outbox_lost(self, parentless: bool) -> None:
        """Puts that were never stored are lost: their requests must not count as already seen any more.

        Parents with a lease are crawled again and put them again; if some have no parent (*parentless*), only
        the next crawl's start() yields them again.
        """

    def rolled_back(self, parentless: bool) -> None:
        """Redis was rolled back further than the log of this worker reaches: confirmed puts are lost.

        Parents with a lease are crawled again and put them again, unless the owner drops these requests as
        already seen; if some have no parent (*parentless*), only the next crawl's start() yields them again.
        """

    def commanded(self, before: Commands, commands: Commands) -> None:
        """New commands for all workers have arrived; the worker already obeys a hold."""

    def confirmed(self, moves: Sequence[Move]) -> None:
        """These moves were applied, in this order."""

    def counted(self, what: Count | type[Move], amount: float) -> None:
        """Add *amount* to the count of *what*; for a class of moves: so many were confirmed."""
