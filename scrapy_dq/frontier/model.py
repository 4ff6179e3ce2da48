"""The plain values that the frontier and its callers exchange."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum

ENTRY_ID_BYTES = 12
MAX_MOVES = 1_000
"""Most moves in one exchange: a script blocks Redis while it runs."""
MAX_LEASES = 1_000
MAX_PARTITION_BYTES = 512
MAX_EXCHANGE_BYTES = 4 * 1024 * 1024
"""Most payload bytes of one exchange, in each direction."""
PRIORITY_LIMIT = 2**49
"""Priorities beyond ± this are clamped: places are computed in Lua's 53-bit integers."""


class FrontierError(Exception):
    """Base of everything that `scrapy_dq.frontier` raises."""


class FrontierUnavailable(FrontierError):
    """No usable reply: the call may or may not have been applied. Repeat it unchanged."""


class FrontierUntrusted(FrontierUnavailable):
    """The certificate of the server is not accepted: nothing was sent."""


class FrontierRefused(FrontierError):
    """The frontier cannot be used as configured; nothing in Redis was changed."""


class BegunAnew(FrontierRefused):
    """The crawl was deleted, and another one has begun."""


class RunOver(FrontierRefused):
    """The run has ended while a worker joined it."""


class SpillLost(Exception):
    """Moves on disk cannot be read."""


class FrontierLost(FrontierError):
    """The frontier is gone, or was replaced by another one; nothing of it is left."""


class Order(str, Enum):
    """The order in which the backlog is served. `lua/lib/orders.lua` has the same rules."""

    PRIORITY_LIFO = "priority-lifo"
    PRIORITY_FIFO = "priority-fifo"
    FIFO = "fifo"
    LIFO = "lifo"

    @property
    def by_priority(self) -> bool:
        """Whether priorities count; otherwise all entries have the rank 0."""
        return self.value.startswith("priority")

    def newest_first(self, rank: int = 0) -> bool:
        """Return whether the newest entry of *rank* comes first; `rank % 4` is its `StartQueue`."""
        start = rank % 4
        if self.by_priority and start:
            return start == StartQueue.LIFO
        return self in (Order.PRIORITY_LIFO, Order.LIFO)


class Seen(str, Enum):
    """How the fingerprints of admitted requests are stored."""

    EXACT = "exact"
    EXPIRING = "expiring"
    """With their times of admission: a later run ignores old fingerprints."""
    COMPACT = "compact"
    """Truncated to 74 bits each, and packed."""


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
    """By fingerprint and occurrence, once per run, because `start()` yields the same on every worker."""
    ID = 3
    """By entry id: equal `dont_filter` requests stay separate, and a repeated put is stored once."""


class StartQueue(IntEnum):
    """How start requests are served among requests of the same priority, in an order with priorities."""

    SHARED = 0
    """Like all others. Requests that no `start()` has yielded also have this value."""
    FIFO = 1
    """After all others, the oldest first."""
    LIFO = 2
    """After all others, the newest first."""


class Seeding(IntEnum):
    """A worker's level of seeding. Its exchange may finish the run only with DONE."""

    DONE = 0
    """Its `start()` is exhausted, or it has none."""
    ACTIVE = 1
    """Its `start()` is not exhausted, or puts without a parent wait in its outbox."""
    FAILED = 2
    """Its `start()` raised, and yields nothing more."""
    LISTENING = 3
    """It listens for start payloads: this keeps the run open, but is not counted as seeding."""
    AGAIN = 4
    """Its start requests were stored and then lost: `start()` has to run again."""


class Parentless(IntEnum):
    """Which puts without a parent lease a rejoining worker has; they may reopen a finished run."""

    NONE = 0
    WAITING = 1
    """Not confirmed yet: only this worker has them, or its `start()` has yet to yield them."""
    LOGGED = 2
    """Confirmed: a roll-back of Redis may have lost them, and the fact that they opened the run."""


def fits_a_partition(name: str) -> bool:
    """Tell whether *name* is a valid partition name."""
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
    """Earliest time for sending, in seconds of this process's monotonic clock; `Worker.sent` reports the
    sending. None: no delay."""
    place: bytes = field(default=b"", compare=False)
    """Places sort in the order of serving; empty: unknown."""
    suspect: bool = field(default=False, compare=False)
    """A worker died while it held this entry; a worker holds one such lease at a time."""
    message: bytes = field(default=b"", compare=False)
    """See `Put.message`."""
    was_declined: bool = False
    """The code of another worker could not serve it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Delay and concurrency of each partition, over all workers."""

    delay_s: float = 0.0
    """Seconds between two requests; 0: no delay."""
    concurrency: int = 0
    """Most entries in flight; 0: no limit."""
    own: Mapping[str, tuple[float | None, int | None]] = field(default_factory=dict)
    """By partition: its own delay in seconds and concurrency; None: the default above."""
    budget: int = 0
    """Most requests of a partition that are done in a run, or on a day; 0: any number."""
    daily: bool = False
    """Budgets are for a day, by UTC; else for the run."""
    own_budgets: Mapping[str, int] = field(default_factory=dict)
    """By partition: its own budget; 0: any number."""


@dataclass(frozen=True, slots=True)
class Sent:
    """Note: a lease with a time for sending was sent, or will never be."""

    partition: bytes
    entry_id: bytes
    at: float | None
    """Seconds of this process's monotonic clock; None: never sent, so the next one may be sent at once."""


@dataclass(frozen=True, slots=True)
class Block:
    """Note: leave a partition alone, because its site asked for it."""

    partition: bytes
    until: float
    """Seconds of this process's monotonic clock."""


@dataclass(frozen=True, slots=True)
class Gone:
    """Note, for home: requests of this run are gone for good from a shard; a repeat changes nothing."""

    shard: int
    count: int
    """All losses of this shard, as far as the worker knows; 1 for a roll-back beyond the log."""


Note = Sent | Block | Gone


@dataclass(frozen=True, slots=True)
class StartKeys:
    """Plain Redis keys from which start payloads are taken while the crawl runs."""

    kind: str
    """list (taken from its head), set, zset (highest score first), or stream (oldest first)."""
    keys: tuple[str, ...]
    """In order of priority."""
    mark: bytes
    """First bytes of the payload of an entry that was claimed from a start key."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Claim as many start payloads as leases are wanted."""

    kind: str
    mark: bytes
    id_stem: bytes
    """8 random bytes. Each new id is made from these and from the payload."""


UNFINISHED, ELSEWHERE = -1, -2
"""See `Terms.finish_at`."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The other contents of an exchange besides moves: the worker's capacity, notes, and tokens to forget."""

    ahead_s: float = 0.0
    """Seconds before its time at which an entry may be leased, so that the round trip costs no time."""
    most: int = MAX_LEASES
    """Most leases of a partition if the worker holds none of it."""
    here: Mapping[bytes, tuple[int, int]] = field(default_factory=dict)
    """By partition: how many leases the worker holds, and how many more it could take."""
    notes: Sequence[Note] = ()
    claim: Claim | None = None
    forget: bytes = b""
    """Joined ids of entries whose puts will never be repeated."""
    no_suspects: bool = False
    """Lease no suspect: the worker holds one from another shard, or has asked there for one."""
    max_pages: int | None = None
    """Most entries of the run: new leases, leases in flight and `Census.pages` together; None: any number."""
    busy_elsewhere: bool = False
    """Other shards have something left, as far as the worker knows."""
    finish_at: int | None = None
    """With several shards, at home: the version with which the run may finish; UNFINISHED: it may not.
    ELSEWHERE: this is not home. None: there is one shard, and the run finishes when nothing is left."""


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
    """Not due yet; not included in `waiting`."""
    gone: int = 0
    """Requests of this run, and keys, that were deleted or evicted while it ran; see `worker/audit.py`."""
    incomplete: int = 0
    """Interrupted `start()` methods that no other worker has completed; counted only while nothing waits. The
    run cannot finish while there are any."""
    version: int = field(default=0, compare=False)
    """The version of the shard. It grows with each new entry and, with several shards, with each raised level
    of seeding."""
    only_over_budget: int = field(default=0, compare=False)
    """1: every waiting entry, if there is one, is over a budget of the run, and nothing could add others: no
    lease, nothing delayed, no worker that seeds or listens. Known only from an exchange."""
    never_sent: int = field(default=0, compare=False)
    """Done and failed requests that were not sent to any site."""
    declined: int = 0
    """Waiting entries that the code of some worker cannot serve."""
    unserved: int = 0
    """Dead letters of this run that no worker could serve."""

    @property
    def pages(self) -> int:
        """How many requests of this run were sent, and are done or failed."""
        return self.done + self.failed - self.never_sent

    @property
    def empty(self) -> bool:
        """No entry is left, and no worker is seeding."""
        return not (self.waiting or self.in_flight or self.seeding or self.delayed)

    def __add__(self, shard: Census) -> Census:
        """Return the counts of the whole crawl: *self* is home, where all workers are registered."""
        return Census(
            self.waiting + shard.waiting, self.in_flight + shard.in_flight, self.done + shard.done,
            self.dead + shard.dead, self.seen + shard.seen, self.workers, self.seeding,
            self.failed + shard.failed, self.delayed + shard.delayed,
            max(self.gone, shard.gone),  # home has the sum: workers report losses to it (`Gone`)
            self.incomplete,
            never_sent=self.never_sent + shard.never_sent,
            declined=self.declined + shard.declined,
            unserved=self.unserved + shard.unserved,
        )  # fmt: skip

    @property
    def only_delayed(self) -> bool:
        """Only entries that are not due yet are left."""
        return bool(self.delayed) and not (self.waiting or self.in_flight or self.seeding)


class Hold(str, Enum):
    """Whether, and how, a crawl is on hold: no worker gets a lease, even if entries wait."""

    NONE = ""
    PAUSED = "paused"
    """Buffered leases are released; running downloads are finished."""
    DRAINING = "draining"
    """All leases are finished, including buffered ones."""

    @classmethod
    def _missing_(cls, value: object) -> Hold:
        return cls.PAUSED  # invalid, or of a later version: the Lua code leases nothing with any value


@dataclass(frozen=True, slots=True)
class Commands:
    """How many commands were sent to all workers of a crawl, and the current hold."""

    count: int = 0
    """All of them; a heartbeat also returns this count."""
    stops: int = 0
    """Orders to close, for the workers that were members at the time."""
    forgets: int = 0
    """Removals of fingerprints from the seen set."""
    limit_changes: int = 0
    """Changes of the limits of a partition."""
    hold: Hold = Hold.NONE


@dataclass(frozen=True)
class Identity:
    """The properties in which all workers of a crawl must agree."""

    fingerprinter: str
    spider: str
    spider_args: str
    run_name: str = ""
    keep_seen: bool | None = False
    """None: keep the value that a worker with a spider has stored."""
    partition_by: str = "none"
    seen_ttl_s: float = 0.0
    """Age at which a new run ignores fingerprints, if the kind of seen has times; 0: they never expire."""
    limits: Limits | None = field(default_factory=Limits)
    """None: unchanged."""
    starts: str = ""
    """The name of this worker's start(), made from its arguments; empty: no start() (lib/starts.lua). Workers
    with the same name yield the same requests, unless the name begins with a star."""
    restart_window_s: float = 0.0
    """For this many seconds after the end of a run of several hosts, this worker counts as a restarted worker
    of that run."""
    shards: int = 1
    order_given: bool = True
    seen_given: bool = True
    """False, like an empty name above: accept the stored value; if none is stored, the first worker that has
    one sets it."""
