"""The plain values that the frontier and its callers exchange."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum

ENTRY_ID_BYTES = 12
MAX_MOVES = 1_000
"""Maximum number of moves in one exchange, because a script blocks Redis while it runs."""
MAX_LEASES = 1_000
MAX_PARTITION_BYTES = 512
MAX_EXCHANGE_BYTES = 4 * 1024 * 1024
"""Approximate maximum number of payload bytes of one exchange, in each direction."""
PRIORITY_LIMIT = 2**49
"""Priorities are clamped to ± this limit, because Lua computes places with 53-bit integers."""


class FrontierError(Exception):
    """Base class of the errors of a Frontier, Worker or Queue.

    Functions that take a blocking client also raise redis.exceptions.RedisError.
    """


class FrontierUnavailable(FrontierError):
    """Redis gave no usable reply, and may or may not have applied the call. Repeat the call unchanged."""


class FrontierUntrusted(FrontierUnavailable):
    """This process does not accept the certificate of the server, and has sent nothing."""


class FrontierRefused(FrontierError):
    """The settings, the stored data or the rights of the user do not permit the call.

    An immediate repeat does not help. If Redis has stopped a script midway, for example at a denied command,
    some data may have changed.
    """


class CrawlReplaced(FrontierRefused):
    """The crawl was deleted, and another crawl with the same name has begun."""


class RunOver(FrontierRefused):
    """The run ended while a worker was joining it."""


class SpillLost(Exception):
    """An outbox cannot read its moves back from disk; its worker handles this error."""


class FrontierLost(FrontierError):
    """The frontier is gone, or another one has replaced it. The crawl cannot continue."""


class Order(str, Enum):
    """The order in which the backlog is served. `lua/lib/orders.lua` has the same rules."""

    PRIORITY_LIFO = "priority-lifo"
    PRIORITY_FIFO = "priority-fifo"
    FIFO = "fifo"
    LIFO = "lifo"

    @property
    def by_priority(self) -> bool:
        """Whether the order depends on priorities. If it does not, all entries have rank 0."""
        return self.value.startswith("priority")

    def newest_first(self, rank: int = 0) -> bool:
        """Tell whether workers get the newest entry of *rank* first; `rank % 4` is a `StartQueue`."""
        start = rank % 4
        if self.by_priority and start:
            return start == StartQueue.LIFO
        return self in (Order.PRIORITY_LIFO, Order.LIFO)


class Seen(str, Enum):
    """How the fingerprints of admitted requests are stored."""

    EXACT = "exact"
    EXPIRING = "expiring"
    """Each fingerprint is stored with the time when its request was admitted, so that a later run can ignore
    old fingerprints."""
    COMPACT = "compact"
    """About 74 bits of a hash of each fingerprint are stored, in many small sets."""


class Status(str, Enum):
    """How the frontier answers a worker (see docs/design.md)."""

    OK = "OK"
    RESYNC = "RESYNC"
    FINISHED = "FINISHED"
    LOST = "LOST"


class Admission(IntEnum):
    """Which key decides whether a put is new, and by which token."""

    SEEN = 1
    """The key is `seen`, and the token is the fingerprint. While `seen` contains the fingerprint of a
    request, Redis does not store this request again."""
    SEED = 2
    """The key is `seeds`. The token consists of a hash of the payload and the number of times that this
    `start()` has yielded the same payload. Every worker's `start()` yields the same requests, and Redis
    stores each request once per run."""
    ID = 3
    """The key is `admitted`, and the token is the entry id. Equal `dont_filter` requests have different ids,
    so each of them is stored. The repeat of a put has the same id, so it stores nothing."""


class StartQueue(IntEnum):
    """The position of a start request among requests of the same priority. Only orders by priority use it."""

    SHARED = 0
    """Start requests are served like all other requests, which also have this value."""
    FIFO = 1
    """Start requests are served after all other requests, the oldest first."""
    LIFO = 2
    """Start requests are served after all other requests, the newest first."""


class Seeding(IntEnum):
    """A worker's level of seeding, which tells whether its `start()` may still yield requests.

    A run can finish only while all workers report DONE.
    """

    DONE = 0
    """The worker's `start()` is exhausted, or the worker has no `start()`."""
    ACTIVE = 1
    """The worker's `start()` is not exhausted, or puts without a parent lease (of requests that come from no
    page) wait in its outbox. With several shards, the worker also stays at this level until its puts of this
    kind are retired in the other shards."""
    FAILED = 2
    """The worker's `start()` raised an error, and yields nothing more."""
    LISTENING = 3
    """The worker listens for start payloads. The run stays open, but the worker does not count as seeding."""
    AGAIN = 4
    """Requests of this worker are lost that only its `start()` can yield. So `start()` has to run again."""


class Parentless(IntEnum):
    """Which puts without a parent lease a rejoining worker has. If the worker has any, it may join a finished
    run. Its next new put then reopens the run."""

    NONE = 0
    WAITING = 1
    """Redis has not confirmed some of these puts: they wait in this worker's outbox, or its `start()` has yet
    to yield their requests."""
    LOGGED = 2
    """Redis has confirmed all of these puts. But a roll-back of Redis may have lost some of them. Then the
    run, which these puts had reopened, may be finished again."""


def fits_partition(name: str) -> bool:
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
    """Earliest time at which the request may be sent, in seconds of this process's monotonic clock. When it
    is sent, the owner of the worker has to call `Worker.sent`. None: no delay."""
    place: bytes = field(default=b"", compare=False)
    """The place of the entry; empty: unknown. Redis serves the entries of a partition in the order of their
    places."""
    suspect: bool = field(default=False, compare=False)
    """This entry may have killed a worker. A worker holds one such lease at a time."""
    message: bytes = field(default=b"", compare=False)
    """See `Put.message`."""
    was_declined: bool = False
    """A worker has declined this entry, because that worker's code could not serve it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Delay, concurrency and budget of each partition, over all workers."""

    delay_s: float = 0.0
    """Seconds between two requests; 0: no delay."""
    concurrency: int = 0
    """Maximum number of a partition's entries in flight; 0: no limit."""
    own: Mapping[str, tuple[float | None, int | None]] = field(default_factory=dict)
    """By partition: its own delay in seconds, and its own concurrency. None means that the default above
    applies."""
    budget: int = 0
    """Maximum number of requests of a partition per run or day; 0: no limit. Requests that are in
    flight, done or failed count, but not done or failed requests that were never sent to a site."""
    daily: bool = False
    """True: budgets apply to a day (UTC); False: to the run."""
    own_budgets: Mapping[str, int] = field(default_factory=dict)
    """By partition: its own budget; 0: no limit."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A note about a lease that has a time for sending: its request was sent, or will never be sent."""

    partition: bytes
    entry_id: bytes
    at: float | None
    """The time of sending, in seconds of this process's monotonic clock. None: the request will never be
    sent, so the next request of its partition may be sent immediately."""


@dataclass(frozen=True, slots=True)
class Block:
    """A note that no worker may lease from a partition for a time, because its site asked for a pause."""

    partition: bytes
    until: float
    """The end of the pause, in seconds of this process's monotonic clock."""


@dataclass(frozen=True, slots=True)
class Gone:
    """A note for home that a shard has lost requests of this run. A repeat of the note changes nothing."""

    shard: int
    count: int
    """Number of all known losses of this shard. If Redis was rolled back further than the replay log reaches,
    the number is at least 1."""


Note = Sent | Block | Gone


@dataclass(frozen=True, slots=True)
class StartKeys:
    """Redis keys of the user, from which workers take start payloads while the crawl runs."""

    kind: str
    """list (workers take its head), set, zset (highest score first), or stream (oldest first)."""
    keys: tuple[str, ...]
    """In order of priority."""
    mark: bytes
    """The first bytes of the payload of each entry that Redis makes from a start payload."""


@dataclass(frozen=True, slots=True)
class Claim:
    """Asks for start payloads in addition to leases: at most as many as the number of requested leases."""

    kind: str
    mark: bytes
    id_stem: bytes
    """8 random bytes. Redis makes the id of an entry from these bytes, the start payload and the entry's
    sequence number."""


UNFINISHED, ELSEWHERE = -1, -2
"""See `Terms.finish_at`."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The contents of an exchange besides its moves: the worker's capacity, notes, and tokens to forget."""

    ahead_s: float = 0.0
    """A request may be leased this many seconds before its time for sending, so that it is not late."""
    most: int = MAX_LEASES
    """Maximum number of new leases of a partition that is not in `here`."""
    here: Mapping[bytes, tuple[int, int]] = field(default_factory=dict)
    """By partition: how many leases the worker has buffered or is downloading; how many more it can take."""
    notes: Sequence[Note] = ()
    claim: Claim | None = None
    forget: bytes = b""
    """The joined ids of entries whose puts no worker will repeat. Redis deletes the tokens of these puts."""
    no_suspects: bool = False
    """True: Redis grants no suspect, because the worker has a suspect from another shard, or has asked
    another shard for one."""
    max_pages: int | None = None
    """Maximum sum of new leases, leases in flight and `Census.pages` in the run; None: no limit."""
    busy_elsewhere: bool = False
    """True: this worker is seeding, or the last census of another shard has entries that are not declined."""
    finish_at: int | None = None
    """Whether this exchange may finish the run when nothing is left.

    None: it may, because the crawl has one shard. UNFINISHED: it may not. ELSEWHERE: it may not, because this
    shard is not home. Any other number: it may if `Census.version` of home is still this number.
    """


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
    """Number of workers at level ACTIVE. While the backlog has entries, an exchange does not count these
    workers, and returns 0."""
    failed: int = 0
    """Number of requests of this run that failed and were not retried. Redis keeps copies of the newest."""
    delayed: int = 0
    """Number of entries that are not due yet. `waiting` does not include them."""
    gone: int = 0
    """Number of known losses of this run: requests that were deleted or evicted, and 1 more if the seen set
    was deleted or evicted. Home's number includes the losses of the other shards (`Gone`). See
    `worker/audit.py`."""
    incomplete: int = 0
    """Number of interrupted `start()` methods that no other worker has completed. The run cannot finish while
    this number is above 0. An exchange counts these methods only if nothing else keeps the run open."""
    version: int = field(default=0, compare=False)
    """The version of the shard: a number that grows with each new or declined entry, and with each retry.
    With several shards, it also grows when a worker registers or raises its level of seeding."""
    only_over_budget: int = field(default=0, compare=False)
    """1: none of the waiting entries can be leased in this run, and no worker can add entries. For each
    waiting entry, its partition has used up a budget of the run, or all workers have declined the entry.
    Nothing is leased or delayed, no worker is seeding or listening, and the crawl is not on hold. Only an
    exchange can return 1."""
    never_sent: int = field(default=0, compare=False)
    """Number of done and failed requests that were never sent to a site."""
    declined: int = 0
    """Number of waiting entries that some worker has declined. `waiting` includes them."""
    unserved: int = 0
    """Number of dead letters of this run that no worker could serve."""

    @property
    def pages(self) -> int:
        """Number of requests of this run that were sent to a site, and are done or failed."""
        return self.done + self.failed - self.never_sent

    @property
    def empty(self) -> bool:
        """Whether no entry is left and no worker is seeding."""
        return not (self.waiting or self.in_flight or self.seeding or self.delayed)

    def __add__(self, shard: Census) -> Census:
        """Add the counts of *shard* to the counts of home (*self*), where all workers are registered."""
        return Census(
            self.waiting + shard.waiting, self.in_flight + shard.in_flight, self.done + shard.done,
            self.dead + shard.dead, self.seen + shard.seen, self.workers, self.seeding,
            self.failed + shard.failed, self.delayed + shard.delayed,
            max(self.gone, shard.gone),  # home has the sum, because workers report all losses to it (`Gone`)
            self.incomplete,
            never_sent=self.never_sent + shard.never_sent,
            declined=self.declined + shard.declined,
            unserved=self.unserved + shard.unserved,
        )  # fmt: skip

    @property
    def only_delayed(self) -> bool:
        """Whether all entries that are left are delayed, and no worker is seeding."""
        return bool(self.delayed) and not (self.waiting or self.in_flight or self.seeding)


class Hold(str, Enum):
    """Whether and how a crawl is on hold. While it is on hold, no worker gets a lease."""

    NONE = ""
    PAUSED = "paused"
    """Workers release their buffered leases, and finish the running ones."""
    DRAINING = "draining"
    """Workers finish all their leases, including buffered ones."""

    @classmethod
    def _missing_(cls, value: object) -> Hold:
        # The value is invalid, or a later version has written it. While any value is stored, scripts lease
        # nothing.
        return cls.PAUSED


@dataclass(frozen=True, slots=True)
class Commands:
    """How many commands were sent to all workers of a crawl, and the current hold."""

    count: int = 0
    """Number of all commands. A heartbeat also returns this number."""
    stops: int = 0
    """Number of stop commands. Each applies to the workers that were members when it was sent."""
    forgets: int = 0
    """How often fingerprints were removed from the seen set."""
    limit_changes: int = 0
    """How often a user has changed the limits of a partition."""
    hold: Hold = Hold.NONE


@dataclass(frozen=True)
class Identity:
    """A worker's description of its crawl.

    In an open run, all workers must agree on the fingerprinter, the spider, `partition_by` and the number of
    shards. The other fields may differ.
    """

    fingerprinter: str
    spider: str
    spider_args: str
    run_name: str = ""
    keep_seen: bool | None = False
    """Whether the seen set outlives the run. None: use the stored value, or True if no value is stored."""
    partition_by: str = "none"
    seen_ttl_s: float = 0.0
    """A new run ignores fingerprints that are older than this when the run begins; 0: fingerprints never
    expire. Only the expiring kind of seen stores when each fingerprint was admitted."""
    limits: Limits | None = field(default_factory=Limits)
    """None: keep the stored limits."""
    starts: str = ""
    """The name of this worker's start(), made from the spider's arguments; empty: the worker has no start().
    Workers with the same name yield the same requests, unless the name begins with a star
    (lib/starts.lua)."""
    restart_window_s: float = 0.0
    """If this worker joins within this many seconds after the end of a run of several hosts, it counts as a
    restarted worker of that run, and begins no new run. This applies only to runs without a name."""
    shards: int = 1
    order_given: bool = True
    seen_given: bool = True
    """`order_given` and `seen_given` are False if this worker accepts any stored order, or any kind of seen.
    In the same way, an empty `fingerprinter`, `spider` or `partition_by` accepts any stored value. If no
    value is stored, the first worker that gives a value sets it."""
