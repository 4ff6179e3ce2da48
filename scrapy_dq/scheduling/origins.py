"""Finds where a request comes from, and which leases must not end before the request is safe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scrapy import Request

from scrapy_dq.scheduling.in_progress import Feeding
from scrapy_dq.scheduling.session import Session


class Origin(NamedTuple):
    """The origin of a request that the worker stores now."""

    parent: Request | None
    """The request whose callback yielded this one, or which this one redirects or retries; None: unknown, or
    there is no parent."""
    lease: bytes | None
    """The lease of the parent or of the start payload; None: unknown, or there is no lease."""
    continues: bool
    """The request is a redirect or a retry of its parent."""
    from_start: bool
    """`start()` yielded it."""
    feeding: Feeding | None
    """The start payload from which it was made."""

    @property
    def begins(self) -> bool:
        """No page led to it: `start()` or a start payload did."""
        return self.from_start or self.feeding is not None


class Origins:
    """Finds the origins of the requests that a worker stores."""

    def __init__(self, session: Session) -> None:
        self._hooks = session.hooks
        self._in_progress = session.in_progress
        self._worker = session.worker

    def of(self, request: Request) -> Origin:
        """Return the origin of *request*, which the engine passes to the scheduler now."""
        hooks, in_progress = self._hooks, self._in_progress
        parent = hooks.parent_of(request)
        return Origin(
            parent, in_progress.parent_of(parent), request is hooks.following, hooks.from_start(request),
            in_progress.feeding,
        )  # fmt: skip

    def lease_of(self, request: Request) -> bytes | None:
        """Return only the lease of the origin of *request*."""
        return self._in_progress.parent_of(self._hooks.parent_of(request))

    def possible_parents(self, request: Request) -> set[bytes]:
        """Return the leases that may have led to *request*."""
        return self._in_progress.possible_parents(self._hooks.parent_of(request))

    def await_puts(self, request: Request, references: Sequence[int]) -> None:
        """Let the leases that may have led to *request* end only when some earlier puts are retired.

        A put is retired when no roll-back of Redis can lose it. *references* name the puts: see
        `Put.reference`.
        """
        if any(references):  # with one shard, all references are 0: there the order of moves is enough
            parents = self.possible_parents(request)
            for reference in references:
                self._worker.depends(parents, reference)
