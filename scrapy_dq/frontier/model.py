"""The plain values that the frontier and its callers exchange."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, ClassVar

ENTRY_ID_BYTES = 12
MAX_MOVES = 1_000
"""Moves of one exchange, at most: a script holds Redis while it runs."""
MAX_LEASES = 1_000
MAX_PARTITION_BYTES = 512
MAX_EXCHANGE_BYTES = 4 * 1024 * 1024
"""Payload bytes of one exchange, at most, in each direction."""
PRIORITY_LIMIT = 2**49
"""Priorities beyond ± this are clamped: places are computed in Lua's 53-bit integers."""


class FrontierError(Exception):
    """Base of everything that `scrapy_dq.frontier` raises."""


class FrontierUnavailable(FrontierError):
    """No usable reply: the call may or may not have been applied. Repeat it unchanged."""


class FrontierRefused(FrontierError):
    """The frontier cannot be used as configured; nothing in Redis was changed."""


class SpillLost(Exception):
    """Moves on disk cannot be read back."""


class FrontierLost(FrontierError):
    """The frontier is gone, or another one has taken its place; nothing of it is there any more."""


class Order(str, Enum):
    """How the backlog is served."""

    PRIORITY_LIFO = "priority-lifo"
    PRIORITY_FIFO = "priority-fifo"
    FIFO = "fifo"
    LIFO = "lifo"


class Seen(str, Enum):
    """How the fingerprints of what was admitted are kept."""

    EXACT = "exact"
    EXPIRING = "expiring"
    """With the time of admission: a later run forgets the older ones."""
    COMPACT = "compact"
    """Cut to 74 bits each, and packed."""


class Status(str, Enum):
    """How the frontier answers a worker (see docs/design.md)."""

    OK = "OK"
    RESYNC = "RESYNC"
    FINISHED = "FINISHED"
    LOST = "LOST"


class Admission(IntEnum):
    """Which key decides that a put is new."""

    SEEN = 1
    """By fingerprint, for the whole crawl."""
    SEED = 2
    """By fingerprint and occurrence, once per run: what `start()` yields on every worker."""
    ID = 3
    """By entry id: equal `dont_filter` requests stay separate, a repeated put does not double."""


class StartQueue(IntEnum):
    """Where start requests stand among those of their priority, in an order that looks at priorities."""

    SHARED = 0
    """Like all others; so does whatever no `start()` has yielded."""
    FIFO = 1
    """After them, the oldest first."""
    LIFO = 2
    """After them, the newest first."""


class Seeding(IntEnum):
    """A worker's level of seeding. Only with DONE may its exchange finish the run."""

    DONE = 0
    """Its `start()` is exhausted, or it has none."""
    ACTIVE = 1
    """Its `start()` is not exhausted, or something without a parent waits in its outbox."""
    FAILED = 2
    """Its `start()` raised, and yields nothing more."""
    LISTENING = 3
    """It waits for what is fed: this keeps the run open, and is not counted."""
    AGAIN = 4
    """Its start requests are gone, though they were stored: `start()` has to run again."""


class Parentless(IntEnum):
    """What a worker that rejoins has of puts that no lease stands for; they may open a finished run again."""

    NONE = 0
    WAITING = 1
    """Not confirmed yet: known to it alone."""
    LOGGED = 2
    """Confirmed: a Redis that came back older may have forgotten them, and that they opened the run."""


@dataclass(slots=True)
class Put:
    """A new entry on its way to the backlog."""

    entry_id: bytes
    admission: Admission
    token: bytes
    priority: int
    start: int
    """A StartQueue."""
    payload: bytes
    parent: bytes | None = None
    """Entry id of the lease whose callback yielded it; None when nobody holds one for it; empty when that
    does not matter any more: `once`, and confirmed."""
    source: Any = field(default=None, repr=False, compare=False)
    """What the caller wants back if the put is dropped as a duplicate; never sent, may be gone by then."""
    partition: bytes = b""
    """Where it waits: UTF-8 without control characters, at most MAX_PARTITION_BYTES."""
    due_at: float = 0.0
    """Not to be leased before, in seconds of this process's monotonic clock."""
    not_before_s: float = 0.0
    """Not to be leased before, in seconds since 1970 by the clock of Redis."""
    reason: str = ""
    """Why it cannot be served: it becomes a dead letter at once."""
    known_as: bytes = b""
    """How another scheduler, whose crawl was adopted, would call it: 20 bytes; empty: nobody would."""
    most: int = 0
    """Refused if so many wait already, of all entries; only with Admission.ID. 0: never."""
    once: bool = field(default=False, compare=False)
    """Nobody but this worker's own log can repeat it: its id is a random one, or the lease that it came with
    ends with it. Its token is forgotten once the log has retired it. Only with Admission.ID."""
    fresh: bool = field(default=True, compare=False)
    """Never confirmed before: if it is known, it is a duplicate. A put of the log is known to itself."""

    @property
    def size(self) -> int:
        """About how many bytes it takes in an exchange; so of every move."""
        return len(self.payload) + len(self.token) + len(self.partition) + ENTRY_ID_BYTES + 16


@dataclass(slots=True)
class Ack:
    """The work is done; the entry is gone."""

    entry_id: bytes
    size: ClassVar[int] = ENTRY_ID_BYTES


@dataclass(slots=True)
class Release:
    """A lease goes back to its place in the backlog, unspent."""

    entry_id: bytes
    size: ClassVar[int] = ENTRY_ID_BYTES


@dataclass(slots=True)
class Bury:
    """A lease becomes a dead letter, with the reason."""

    entry_id: bytes
    reason: str

    @property
    def size(self) -> int:
        return ENTRY_ID_BYTES + len(self.reason)


@dataclass(slots=True)
class Fail:
    """A lease ends without success: it counts as settled, and is kept for a later retry."""

    entry_id: bytes
    reason: str
    label: str
    """What to show of it where payloads cannot be read: the URL."""

    @property
    def size(self) -> int:
        return ENTRY_ID_BYTES + len(self.reason) + len(self.label)


Move = Put | Ack | Release | Bury | Fail


def fits_a_partition(name: str) -> bool:
    """Tell whether *name* can be that of a partition."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return False
    return size <= MAX_PARTITION_BYTES and name.isprintable()


def clamped(priority: int) -> int:
    """Return *priority* within ± PRIORITY_LIMIT."""
    return max(-PRIORITY_LIMIT, min(PRIORITY_LIMIT, int(priority)))


@dataclass(slots=True)
class Lease:
    """This worker's ownership of an entry."""

    entry_id: bytes
    attempts: int
    payload: bytes
    partition: bytes = b""
    send_at: float | None = field(default=None, compare=False)
    """Not to be sent before, in seconds of this process's monotonic clock; `Worker.sent` tells of it. None:
    no delay."""
    place: bytes = field(default=b"", compare=False)
    """Sorts as the order of the crawl serves; empty: not known."""
    genuine: bool = field(default=True, compare=False)
    """False: nobody with a signing key has written it, and its payload is left out."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How often, and how much at once, entries of a partition may be leased, all workers together."""

    delay_s: float = 0.0
    concurrency: int = 0
    """In flight; 0: no limit."""
    own: Mapping[str, tuple[float | None, int | None]] = field(default_factory=dict)
    """Of single partitions: delay in seconds, concurrency; None: as above."""


@dataclass(frozen=True, slots=True)
class Sent:
    """Note: a lease that has a time of sending was sent."""

    partition: bytes
    entry_id: bytes
    at: float
    """Seconds of this process's monotonic clock."""


@dataclass(frozen=True, slots=True)
class Block:
    """Note: a site asked to be left alone."""

    partition: bytes
    until: float
    """Seconds of this process's monotonic clock."""


Note = Sent | Block


@dataclass(frozen=True, slots=True)
class StartKeys:
    """Where others put what a crawl starts from, while it runs: plain Redis keys full of payloads."""

    kind: str
    """list (taken from its head), set, or zset (highest score first)."""
    keys: tuple[str, ...]
    """In order of priority."""
    mark: bytes
    """What the payload of an entry begins with that was taken from there."""


@dataclass(frozen=True, slots=True)
class Claim:
    """To take from the start keys as much as leases are wanted."""

    kind: str
    mark: bytes
    id_stem: bytes
    """8 bytes that no entry's id began with before; a number makes it the id."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What a worker tells with an exchange of what it can take."""

    ahead_s: float = 0.0
    """How long before their time leases are taken, so that a trip to Redis costs no time."""
    most: int = MAX_LEASES
    """Of one partition of which it holds nothing."""
    here: Mapping[bytes, tuple[int, int]] = field(default_factory=dict)
    """By partition: how many it holds, and how many more it could take."""
    notes: Sequence[Note] = ()
    claim: Claim | None = None
    forget: bytes = b""
    """Entry ids, joined, of puts that will never be repeated."""


@dataclass(frozen=True, slots=True)
class Census:
    """All counts, read in one atomic step."""

    waiting: int = 0
    in_flight: int = 0
    done: int = 0
    dead: int = 0
    seen: int = 0
    workers: int = 0
    seeding: int = 0
    """Workers whose `start()` is not exhausted; counted only while nothing waits."""
    failed: int = 0
    """Requests of this run that failed for good; the newest of them are kept."""
    delayed: int = 0
    """Not due yet; not among those that wait."""
    gone: int = 0
    """Requests of this run, and keys, that were deleted or evicted in mid-run; see `worker/audit.py`."""
    incomplete: int = 0
    """`start()` methods that were broken off, and that nobody else has done; counted only while nothing
    waits. The run is not finished before somebody has."""

    @property
    def empty(self) -> bool:
        """Nothing of the crawl is left, and nobody's `start()` is at work."""
        return not (self.waiting or self.in_flight or self.seeding or self.delayed)

    @property
    def only_delayed(self) -> bool:
        """Nothing but what is not due yet is left."""
        return bool(self.delayed) and not (self.waiting or self.in_flight or self.seeding)


class Hold(str, Enum):
    """Why no worker of a crawl gets a lease, though something may wait."""

    NONE = ""
    PAUSED = "paused"
    """What is buffered goes back; what downloads is finished."""
    DRAINING = "draining"
    """All that is leased is finished."""

    @classmethod
    def _missing_(cls, value: object) -> Hold:
        return cls.PAUSED  # a stranger's, or a later version's: nothing is leased, whatever it is called


@dataclass(frozen=True, slots=True)
class Words:
    """What all workers of a crawl were told from outside: how often, and what holds now."""

    count: int = 0
    """Of everything that was ever said; a heartbeat knows it, too."""
    stops: int = 0
    """To close; this is for those that were members then."""
    forgets: int = 0
    """That some fingerprints are not seen any more."""
    limitings: int = 0
    """That a partition has other limits."""
    hold: Hold = Hold.NONE


@dataclass(frozen=True, slots=True)
class Receipt:
    """The answer to an exchange."""

    status: Status
    applied: bool = False
    dropped: tuple[int, ...] = ()
    """Positions, in the prefix, of puts that were known already."""
    census: Census = Census()
    leases: tuple[Lease, ...] = ()
    next_due_s: float | None = field(default=None, compare=False)
    """When the next entry falls due or the rest of a partition ends, from now; None: neither is there."""
    blocked: tuple[bytes, ...] = ()
    """Those partitions of `Terms.here` that are blocked."""
    wrong_key: str = field(default="", compare=False)
    """A key that something else has taken the name of, in words; nothing of it is served."""
    refused: tuple[int, ...] = ()
    """Positions of puts for which there were too many already (`Put.most`)."""
    words: Words | None = None
    """None: nothing was read."""
    damage: str = ""
    """Which keys contradict the counts: some were deleted, or evicted, and an audit is due; empty: none."""


@dataclass(frozen=True, slots=True)
class Joined:
    """The answer to join."""

    status: Status
    epoch: str
    run: int
    resumed: bool
    census: Census
    spider_args: str
    limits_changed: bool = False
    """Other limits than this worker's were in force until now."""
    adopted: bool = False
    """What another scheduler had seen was adopted: `Put.known_as` is looked up."""
    words: Words = Words()
    ended_s: float | None = None
    """FINISHED, for a worker that was started again: how long ago the run ended; None: by the run's name."""
    crawled: bool = False
    """Another worker with a start() has taken part in this run: what it scraped may be somewhere."""


@dataclass(frozen=True, slots=True)
class Rejoined:
    """The answer to rejoin."""

    status: Status
    run: int = 0
    owned: frozenset[bytes] = frozenset()
    last_seq: int | None = None
    """The last exchange under the old id that Redis knows; None: it does not know the old id at all."""


@dataclass(frozen=True, slots=True)
class Audited:
    """What an audit has found; see lua/transitions/audit.lua."""

    lists: int = 0
    """Lists that nothing led to any more."""
    unled: int = 0
    """Requests in those lists, unless they were mended."""
    partitions: int = 0
    """Partitions with entries that no worker would have come to."""
    members: int = 0
    """Workers that were not among the members."""
    gone: int = 0
    """Requests that are nowhere."""
    seen_gone: bool = False
    """What was seen is not there any more."""

    def __add__(self, other: Audited) -> Audited:
        return Audited(
            self.lists + other.lists, self.unled + other.unled, self.partitions + other.partitions,
            self.members + other.members, self.gone + other.gone, self.seen_gone or other.seen_gone,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Member:
    """A registered worker, as others see it."""

    worker_id: str
    identity: dict[str, Any]
    """Host, boot id, PID namespace, pid and start time: see `worker/identity.py`."""
    fenced: bool
    in_flight: int
    beat: int = 0
    since: float = 0.0
    """When it joined, in seconds since 1970 by the clock of Redis; 0: its record does not say."""
    done: int = 0
    """Requests that it has done, and that failed; as those of `Census`, of this run."""
