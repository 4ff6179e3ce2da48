"""The hooks by which a worker reports to its owner."""

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
    """Sum of the times from these calls to their answers."""
    ERROR = "error"
    """Calls without a usable answer."""
    REJOIN = "rejoin"
    RECLAIM = "reclaim"
    """Leases of dead workers that were moved back, or to quarantine."""


class Listener:
    """Hooks that do nothing by default. They run on the event loop, and must neither block nor raise."""

    def leases_arrived(self) -> None: ...
    def run_finished(self) -> None: ...
    def frontier_lost(self) -> None: ...
    def cut_off(self) -> None:
        """Only this worker does not reach a part of Redis, and the crawl cannot end before the worker leaves.

        The crawl cannot end because this worker has requests without a parent lease that it cannot store, or
        because the other workers have declined entries, and wait until this worker serves them.
        """

    def put_dropped(self, put: Put) -> None: ...
    def put_refused(self, put: Put) -> None:
        """Redis has refused a put, because too many entries wait (`Put.most`)."""

    def outbox_lost(self, parentless: bool) -> None:
        """Puts that were never stored are lost, so their requests must not count as seen any more.

        The pages from which the lost requests came are crawled again, and yield them again. If some lost puts
        have no parent lease (*parentless*), only the next crawl's start() yields their requests again.
        """

    def rolled_back(self, parentless: bool) -> None:
        """Redis was rolled back further than the log of this worker reaches, so confirmed puts are lost.

        The pages from which the lost requests came are crawled again, and yield them again, unless the owner
        drops them as already seen. If *parentless*, only the next crawl's start() can yield some of the lost
        requests again.
        """

    def commanded(self, before: Commands, commands: Commands) -> None:
        """New commands for all workers have arrived. If one is a hold, the worker already obeys it."""

    def confirmed(self, moves: Sequence[Move]) -> None:
        """Redis has applied these moves, in this order."""

    def counted(self, kind: Count | type[Move], amount: float) -> None:
        """Add *amount* to the count of *kind*; for a class of moves, *amount* moves were confirmed."""
