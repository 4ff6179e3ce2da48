"""What this worker is at: which request is which lease, which are local, and what waits for whom."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import NamedTuple
from weakref import WeakKeyDictionary

from scrapy import Request

from scrapy_dq.scheduling.engine_hooks import Outcome
from scrapy_dq.scheduling.local_queue import LocalQueue


class Ending(NamedTuple):
    """How the work on a lease ended."""

    outcome: Outcome
    reason: str
    url: str


class InProgress:
    """The requests that this worker has taken and not settled.

    The end of a lease waits for the local requests that may be its children: these die with this process, and
    then it has to run again.
    """

    def __init__(self, settle: Callable[[bytes, Ending], None]) -> None:
        """*settle* is called with each lease that has ended, and how, once nothing local is its child."""
        self._settle = settle
        self.local = LocalQueue()
        self._leases: dict[Request, bytes] = {}
        self._waiting: dict[bytes, Ending] = {}
        """Done, but a local request may be their child."""
        self._fed_by: MutableMapping[Request, bytes] = WeakKeyDictionary()

    def __contains__(self, request: Request) -> bool:
        return request in self.local or request in self._leases

    def begin(self, request: Request, entry_id: bytes) -> None:
        """Note that *request* is handed out, under a lease."""
        self._leases[request] = entry_id

    def feed(self, request: Request, entry_id: bytes) -> None:
        """Note that *request* was fed with a lease, which is its parent."""
        self._fed_by[request] = entry_id

    def was_fed(self, request: Request) -> bool:
        """Tell whether *request* was fed."""
        return request in self._fed_by

    def lease_of(self, request: Request) -> bytes | None:
        """Return the lease under which *request* is at work; None: there is none."""
        return self._leases.get(request)

    def parent_of(self, request: Request, parent: Request | None) -> bytes | None:
        """Return the lease whose work yielded *request*; None: unknown, or that was no lease.

        Of what a local request yields, that is the lease which waits for it: it brings both again.

        Args:
            parent: the request whose callback yielded it, as far as is known.
        """
        if parent is None:
            return self._fed_by.get(request)
        if parent in self.local and len(ancestors := self.local.parents(parent)) == 1:
            return next(iter(ancestors))
        return self._leases.get(parent)

    def possible_parents(self, request: Request, parent: Request | None) -> set[bytes]:
        """Return the leases that must not end while *request*, a local one, is not done."""
        certain = self.parent_of(request, parent)
        if certain is not None:
            return {certain}
        if parent is not None and parent in self.local:
            return set(self.local.parents(parent))
        return self.all_leases()

    def all_leases(self) -> set[bytes]:
        """Return every lease at work, and those that wait for local requests."""
        return {*self._leases.values(), *self._waiting}

    def left(self, request: Request, ending: Ending) -> bool:
        """Note that the engine is through with *request*; tell whether it was a local one."""
        if request in self.local:
            # Interrupted: the spider is closing, and its parents are given back, which yield it anew.
            if ending.outcome is not Outcome.INTERRUPTED and self.local.is_taken(request):
                for free in self.local.done(request):
                    if free in self._waiting:
                        self._settle(free, self._waiting.pop(free))
            return True
        entry_id = self._leases.pop(request, None)
        if entry_id is not None:
            self.end(entry_id, ending)
        return False

    def end(self, entry_id: bytes, ending: Ending) -> None:
        """Settle a lease, at once or when the local requests that may be its children are done."""
        if self.local.holds(entry_id) and ending.outcome is not Outcome.INTERRUPTED:
            self._waiting[entry_id] = ending
        else:
            self._settle(entry_id, ending)

    def take_waiting(self) -> list[bytes]:
        """Return the leases that wait for local requests, which nobody will do any more."""
        waiting = list(self._waiting)
        self._waiting.clear()
        return waiting

    def take_unfinished(self) -> list[bytes]:
        """Return every lease that is not through, to be given back."""
        # They stay among the leases: what their callbacks still yield has a parent, and is not doubled.
        return [*self._leases.values(), *self.take_waiting()]
