"""The requests in progress in this worker, with their leases, and the leases that wait for local requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from scrapy import Request

from scrapy_dq.frontier.moves import Put
from scrapy_dq.scheduling.local_queue import LocalQueue


class Outcome(Enum):
    """How a request ended."""

    DONE = "done"
    """Its callback or errback, and the pipelines, have finished."""
    FAILED = "failed"
    """Its callback, errback or pipeline raised. Or it was not downloaded, or got a status that counts as a
    failure, and no callback or errback handled this."""
    INTERRUPTED = "interrupted"
    """Its callback raised CloseSpider, so the rest of the output was dropped; or a closing worker gave up its
    download."""


class Ending(NamedTuple):
    """How the work on a lease ended."""

    outcome: Outcome
    reason: str
    url: str


DONE = Ending(Outcome.DONE, "", "")
"""The ending of every request that is done, because only a failure needs a reason and a URL."""


@dataclass
class Feeding:
    """A start payload whose requests are being stored."""

    lease: bytes
    puts: list[Put] = field(default_factory=list)
    """The puts of its requests. After the end of its lease, the tokens of these puts are no longer needed."""
    refused: str = ""
    """Why one of its requests was neither stored nor kept in this worker; empty: there is no such request."""


class InProgress:
    """The requests that this worker has taken and not settled.

    A lease is settled only after the local requests that may be its children are done. If this process dies,
    its local requests are lost, and the lease has to run again.
    """

    def __init__(self) -> None:
        self.local = LocalQueue()
        self._leases: dict[Request, bytes] = {}
        self._waiting: dict[bytes, Ending] = {}
        """The endings of leases whose work is over, but which wait for local requests."""
        self.messages: dict[bytes | None, bytes] = {}
        """By lease: the message of a stream (a start key) from which the leased entry was made."""
        self.feeding: Feeding | None = None

    def __contains__(self, request: Request) -> bool:
        return request in self.local or request in self._leases

    def begin(self, request: Request, entry_id: bytes, message: bytes = b"") -> None:
        """Record that the engine gets *request*, under a lease; *message*: see `Lease.message`."""
        self._leases[request] = entry_id
        if message:
            self.messages[entry_id] = message

    def move(self, request: Request, to: Request) -> None:
        """Record that the engine gets *to*, a copy, instead of *request*."""
        if request in self.local:
            self.local.move(request, to)
        elif request in self._leases:
            self._leases[to] = self._leases.pop(request)

    def lease_of(self, request: Request) -> bytes:
        """Return the lease under which *request* is in progress; b"": it has no lease."""
        return self._leases.get(request, b"")

    def parent_of(self, parent: Request | None) -> bytes | None:
        """Return the lease that led to the request that is stored now; None: unknown, or there is no lease.

        If a local request yielded the new request, and a single lease waits for the local request, return
        that lease, because a repeat of this lease yields both requests again.

        Args:
            parent: the request whose callback yielded the new request; None: unknown.
        """
        if parent is None:
            return self.feeding.lease if self.feeding else None
        lease = self._leases.get(parent)
        if lease is None and parent in self.local and len(ancestors := self.local.parents(parent)) == 1:
            return next(iter(ancestors))
        return lease

    def possible_parents(self, parent: Request | None) -> set[bytes]:
        """Return the leases that must not end before the local request that is added now is done."""
        certain = self.parent_of(parent)
        if certain is not None:
            return {certain}
        if parent is not None and parent in self.local:
            return set(self.local.parents(parent))
        return {*self._leases.values(), *self._waiting}

    def left(self, request: Request, ending: Ending) -> list[tuple[bytes, Ending]]:
        """Record that the engine has finished *request*; return the leases that end now, and how."""
        entry_id = self._leases.pop(request, None)
        if entry_id is not None:
            return self.end(entry_id, ending)
        # If a local request was interrupted, the spider is closing. The leases that wait for this request are
        # released, and yield it again when they run again.
        if not self.local.is_taken(request) or ending.outcome is Outcome.INTERRUPTED:
            return []
        free = self.local.done(request)
        return [(each, self._waiting.pop(each)) for each in free if each in self._waiting]

    def end(self, entry_id: bytes, ending: Ending) -> list[tuple[bytes, Ending]]:
        """Return the lease and how it ends, as the only pair of a list.

        The list is empty if the lease has to wait for local requests.
        """
        if self.local.holds(entry_id) and ending.outcome is not Outcome.INTERRUPTED:
            self._waiting[entry_id] = ending
            return []
        return [(entry_id, ending)]

    def take_unfinished(self) -> list[bytes]:
        """Return every lease that is not settled, to be released."""
        # The leases stay in `_leases`. So a request that one of their callbacks still yields has a parent,
        # and is stored only once, although the next worker's callback also yields it.
        unfinished = [*self._leases.values(), *self._waiting]
        self._waiting.clear()  # their local requests will not run any more
        return unfinished
