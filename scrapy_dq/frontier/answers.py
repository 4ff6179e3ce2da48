"""The answers of Redis to a worker or a command."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from scrapy_dq.frontier.model import Census, Commands, Lease, Limits, Status


@dataclass(frozen=True, slots=True)
class Receipt:
    """The answer to an exchange."""

    status: Status
    applied: bool = False
    dropped: tuple[int, ...] = ()
    """Positions of duplicate puts in the prefix."""
    census: Census = Census()
    leases: tuple[Lease, ...] = ()
    next_due_s: float | None = field(default=None, compare=False)
    """Seconds until the next entry is due or a partition's wait ends; None: nothing waits for a time."""
    blocked: tuple[bytes, ...] = ()
    """The blocked partitions among `Terms.here`."""
    wrong_key: str = field(default="", compare=False)
    """A message about a start key of a wrong type, from which Redis reads nothing; empty: no such key."""
    refused: tuple[int, ...] = ()
    """Positions of puts that were refused because too many entries wait (`Put.most`)."""
    commands: Commands | None = None
    """None: the script has not read the commands."""
    damage: str = ""
    """Which keys contradict the counts, so that an audit is due; empty: none. The cause: keys were deleted or
    evicted, or an error has stopped a script."""


@dataclass(frozen=True, slots=True)
class Joined:
    """The answer to join."""

    status: Status
    epoch: str
    run: int
    resumed: bool
    census: Census
    spider_args: str
    limits_before: Limits | None = None
    """The previous limits of the run, if this worker's limits have replaced them; None: nothing changed."""
    adopted: bool = False
    """Whether fingerprints of another scheduler were adopted, so that Redis looks up `Put.known_as`."""
    commands: Commands = Commands()
    ended_s: float | None = None
    """With FINISHED, if this worker seems to be a restarted worker of the run: seconds since the end of the
    run. Otherwise None: the run has the name DQ_RUN_NAME, or ended while this worker was joining it."""
    crawled: bool = False
    """Whether another worker with a start() has taken part in this run, so that items may exist elsewhere."""
    forgotten: int = field(default=0, compare=False)
    """How many requests of the previous run had failed or were dead letters. The seen set still has them, but
    this join has begun a run and deleted their records."""
    registered: int = field(default=0, compare=False)
    """The time of the registration, which every exchange of this worker repeats."""
    shards_exist: bool = False
    """Whether all shards of the crawl exist, according to home."""
    run_name: str = ""
    """The name of the run that was joined."""

    @property
    def loss(self) -> str:
        """The warning about the `forgotten` requests; empty if no request was forgotten."""
        if not self.forgotten:
            return ""
        return (
            f"{self.forgotten:,} request{'s' * (self.forgotten != 1)} of the last run had failed for good or "
            f"become dead letters. They were seen, so this run does not crawl them (SCHEDULER_PERSIST), and "
            f"their records are deleted. Next time, use `scrapy dq retry` before a run begins "
            f"(docs/incremental.md)"
        )


@dataclass(frozen=True, slots=True)
class Rejoined:
    """The answer to rejoin."""

    status: Status
    run: int = 0
    owned: frozenset[bytes] = frozenset()
    last_seq: int | None = None
    """The number of the last exchange under the old id that Redis has stored. None: Redis has no record of
    any id. A negative number, -2 - n: Redis knows only an id that is older than the old id. If this is the
    oldest id of the call (`Rejoin.former_ids`), n is the number of the last exchange under it; otherwise, n
    is 2^52."""
    commands: Commands | None = field(default=None, compare=False)
    """None: the script has not read the commands."""
    registered: int = field(default=0, compare=False)
    """The time of the registration, which every exchange under the new id repeats."""


class Notices(NamedTuple):
    """The events of a run that no worker has reported yet."""

    run: int
    census: Census
    kinds: list[str]
    """Some of these words: finished; dead: there are dead letters; deaths: three or more workers have died;
    outage: an outage lasted a minute or longer."""


class Flushed(NamedTuple):
    """The result of a flush."""

    joined: str
    """Id of a live worker, if it prevented the flush, so that nothing was deleted; else empty."""
    deleted: Census
    left: bool = False
    """Whether part of the seen set is left. The next run's exchanges or `scrapy dq clear --all` delete it."""
    shards: int = 1
    """How many shards the crawl had, according to home."""


@dataclass(frozen=True, slots=True)
class Audited:
    """The findings of an audit; see lua/transitions/audit.lua."""

    lists: int = 0
    """Number of lists that were in no index, so that no worker would have leased their entries."""
    bandless: int = 0
    """Number of requests in these lists; 0 if the audit has repaired the indexes."""
    partitions: int = 0
    """Number of partitions that had waiting entries, but were in none of the sets `rotation`, `suspects`,
    `resting` and `saturated`, so that no worker would have leased these entries."""
    members: int = 0
    """Number of workers that were missing among the members."""
    gone: int = 0
    """Number of requests that were counted, but not found."""
    seen_gone: bool = False
    """The seen set is gone."""

    def __add__(self, other: Audited) -> Audited:
        return Audited(
            self.lists + other.lists, self.bandless + other.bandless, self.partitions + other.partitions,
            self.members + other.members, self.gone + other.gone, self.seen_gone or other.seen_gone,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Figures:
    """The counts of a worker for the history of its crawl (lua/lib/samples.lua)."""

    exchanges: int = 0
    """Answered exchanges and rejoins."""
    exchange_s: float = 0.0
    """Sum of the times from these calls to their answers."""
    errors: int = 0
    """Calls without a usable answer."""
    outage_s: float = 0.0
    """Time without a usable answer, in outages that have ended."""


@dataclass(frozen=True, slots=True)
class Member:
    """A registered worker, as other processes see it."""

    worker_id: str
    identity: dict[str, Any]
    """Host, boot id, PID namespace, pid and start time: see `worker/identity.py`."""
    fenced: bool
    in_flight: int
    beat: int = 0
    since: float = 0.0
    """When the worker joined, in seconds since 1970 by the clock of Redis; 0: unknown."""
    done: int = 0
    """Number of requests of this run that the worker has completed, including failed ones."""
    waits_since: float = 0.0
    """When the worker's present outage began, in the unit of `since`; 0: the worker has no outage."""
    waits_for: str = ""
    """The reason of this outage."""


class RunState(NamedTuple):
    """The stored state of a run."""

    epoch: str
    """Empty: nothing is stored."""
    run: int
    open: bool
