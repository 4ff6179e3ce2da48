"""The calls of a worker to its frontier. A worker repeats a call byte for byte until Redis answers."""

from __future__ import annotations

from typing import NamedTuple

from scrapy_dq.frontier.model import MAX_LEASES, Parentless, Seeding
from scrapy_dq.frontier.moves import Move
from scrapy_dq.frontier.wire import NO_TERMS


class Demand(NamedTuple):
    """The leases that a worker requests with its next exchange."""

    want: int = 0
    """Number of leases to request."""
    ahead_s: float = 0.0
    """See `Terms`."""
    ahead: int = 0
    """See `Leases.here`."""
    most: int = MAX_LEASES
    """See `Terms`."""
    until: int | None = None
    """See `Outbox.prefix`."""


class Exchange(NamedTuple):
    """Apply *moves* in order and take up to *want* leases. Source: lua/transitions/exchange.lua"""

    worker_id: str
    epoch: str
    run: int
    seq: int
    """One more than in the last answered exchange; 1 after a join or rejoin."""
    want: int
    """Maximum number of new leases, 0 to MAX_LEASES."""
    seeding: Seeding
    held: int
    """Number of leases that the worker believes it owns before *moves* are applied."""
    moves: bytes
    """A prefix of the outbox, from `pack_moves`; at most MAX_MOVES."""
    terms: bytes = NO_TERMS
    """From `pack_terms`."""
    registered: int = 0
    """The time of the registration, from the answer to join or rejoin; 0: Redis does not compare the time. If
    a late copy of a join or rejoin has registered the worker again, the stored time differs, so Redis refuses
    a late copy of this call."""


class Composed(NamedTuple):
    """An exchange, and the data for reading its answer."""

    call: Exchange
    prefix: list[Move]
    """The moves that are packed in `call.moves`."""
    notes: int
    """Number of notes in `call.terms`."""
    forgotten: int
    """Number of ids to forget in `call.terms`."""
    at: float
    """When the exchange was composed, in monotonic seconds; a repeat has the same time."""


class Rejoin(NamedTuple):
    """Register a live worker again; it keeps the leases in *held* that it still owns.

    Source: lua/transitions/rejoin.lua
    """

    new_id: str
    old_id: str
    epoch: str
    run: int
    held: list[bytes]
    parentless: Parentless
    """Whether the worker has puts without a parent lease. If it has, Redis registers it even in a finished
    run, as long as Redis still has the tokens of puts. The first new put then reopens the run."""
    seeding: Seeding
    """ACTIVE or AGAIN."""
    registered: int = 0
    """The time of the registration under *old_id*, from the answer to join or rejoin; 0: see `Exchange`."""
    former_ids: tuple[str, ...] = ()
    """The worker's ids before *old_id*, newest first. Redis may know only one of them. Under all of these ids
    except the oldest, no put has retired from the log."""
