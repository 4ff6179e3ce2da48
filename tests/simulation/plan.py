"""The random plan of a schedule: the crawl, its site, and its faults."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

from scrapy_dq.frontier.model import Order, Seen
from simulation import faults, site
from simulation.network import NONE, Rates
from simulation.site import Page
from simulation.virtual import BEGIN_S

FAULTS_END_S = 1.0
"""Faults end at this time, so that the crawl can end. Only a fault at a certain call may strike later."""
SAME_SCRIPTS = 100
"""Number of consecutive seeds with the same order and kind of seen, and so with the same scripts.

If a process used the scripts of all orders and kinds, Redis would take a third longer.
"""
KINDS = (Seen.EXACT, Seen.EXACT, Seen.COMPACT, Seen.EXPIRING)
SHARDED = 1_000_000_000
"""First seed for crawls of several shards."""
APART = 1_002_000_000
"""First seed for such crawls in which a worker may be cut off from one shard."""
SHARED_PAGES = 1_003_000_000
"""First seed for such crawls with a possible limit of pages (DQ_MAX_PAGES)."""
COMMANDS = ("pause", "drain", "limit", "stop", "feed", "push", "queue", "queue", "forget", "retry")
CALLS = {
    "exchange": 40,
    "join": 4,
    "rejoin": 2,
    "fence": 2,
    "drain": 2,
    "leave": 3,
    "overview": 2,
    "beat": 20,
}
"""Transitions at which faults strike, with an approximate number of calls for each."""
CAUSES = {
    "rejoin": ("stall", "freeze", "roll_back", "fail_over", "block"),
    "fence": ("kill", "stall", "freeze", "sigterm_kill"),
    "drain": ("kill", "stall", "freeze", "sigterm_kill"),
    "leave": ("sigterm",),
}
"""Faults that cause a transition which is rare without them."""
DEADLY = {"kill", "sigterm_kill", "freeze", "block", "stall"}
"""Faults after which a worker may be declared dead."""
MORTAL = {"push", "queue"}
"""Commands with processes that may be killed."""
OFTEN = ("roll_back", "fail_over", "roll_back", "fail_over")
"""Faults drawn three times as often, because they do harm only if Redis stored something just before."""
STAGES = ("sent", "applied", "answered")


@dataclass(frozen=True)
class Setup:
    """The settings of a crawl, the same for all its workers."""

    workers: int = 2
    order: Order = Order.FIFO
    seen: Seen = Seen.EXACT
    hosts: int = 1
    delay_s: float = 0.0
    concurrency: int = 0
    retry_after_s: float = 0.2
    capacity: int = 4
    ttl_s: float = 3.0
    stall_s: float = 4.0
    timeout_s: float = 5.0
    horizon_s: float = 3.0
    """If shorter than faults.ROLL_BACK_S, Redis may be rolled back beyond the log."""
    max_attempts: int = 3
    starts: tuple[int, ...] = (site.START,)
    shards: int = 1
    local_seen: bool = False
    """A worker puts no fingerprint twice, like the scheduler."""
    parts: int = 1
    """Number of parts of the start requests; each worker yields one part."""
    filtered_start: bool = False
    again: bool = False
    """After a worker has finished, the command is repeated, even if other workers are still there."""
    revisits: int = 0
    """How often each page is processed again, later and under the same entry."""
    max_pages: int | None = None
    """The limit of requests until faults end; then the command runs again without a limit."""
    budget: int = 0
    """The limit of requests for each host until faults end."""
    run_name: str = ""
    """The name of the run. A repeated command finds a named run finished, as a restarted container does."""
    fed: int = 0
    """Number of pages that a start key feeds."""
    streams: bool = False
    """The start key is a stream. A message is acknowledged when all its requests are done."""
    extras: bool = False
    """Each worker adds an extra request after a while, like `engine.crawl()`."""
    memory_moves: int = 20_000
    drain_limit: int = 500
    idle_s: float = 0.02
    """The first pause after an exchange without leases."""
    spill_dir: str = ""
    lacking: int = 0
    """With 1 or 2, every second process lacks the code for pages whose number modulo 3 is this value. With 3,
    all processes lack the code for remainder 1, and every second process also for remainder 2."""
    functions: bool = True
    """Redis has functions, as since Redis 7."""

    def budget_at(self, now: float) -> int:
        """Return each host's budget for a worker that joins now."""
        return self.budget if now < BEGIN_S + FAULTS_END_S else 0

    def max_pages_at(self, now: float) -> int | None:
        """Return the limit of requests for a worker that starts now."""
        return self.max_pages if now < BEGIN_S + FAULTS_END_S else None

    def serves(self, process: int, page: int) -> bool:
        """Tell whether the process with this number has the code for a page."""
        rest = page % 3
        if self.lacking == 3 and rest == 1:
            return False
        return not (rest and rest == min(self.lacking, 2) and process % 2)

    @property
    def fed_until_s(self) -> float:
        """The time at which workers stop waiting for start payloads."""
        return BEGIN_S + FAULTS_END_S if self.fed else 0.0


@dataclass(frozen=True)
class Strike:
    """One fault, which strikes at a certain time, or strikes the sender of a call at a stage of this call."""

    fault: str
    seed: float
    at_s: float = 0.0
    transition: str = ""
    call: int = 0
    """The number of the call within its transition."""
    stage: str = ""


@dataclass(frozen=True)
class Plan:
    """One schedule; `run` of schedule.py depends on nothing else."""

    seed: int
    setup: Setup
    pages: list[Page]
    rates: Rates
    strikes: tuple[Strike, ...]
    commands: tuple[tuple[float, str], ...] = ()


def drawn(seed: int) -> Plan:
    """Draw the plan of a seed; from SHARDED on, its crawl has several shards."""
    plan = _over_shards(seed) if seed >= SHARDED else _drawn(seed)
    # The following choices use their own random numbers, so that the rest of each seed's plan stays the same.
    revisits = Random(f"{seed} revisits").choice((0, 0, 0, 0, 0, 0, 1, 3))
    streams = Random(f"{seed} streams").random() < 0.5
    max_pages = Random(f"{seed} budget").choice((None, None, None, None, None, None, None, 2, 5, 12))
    budget = Random(f"{seed} domain budget").choice((0, 0, 0, 0, 0, 0, 0, 1, 3))
    if plan.setup.fed or SHARDED <= seed < SHARED_PAGES:
        max_pages = None  # start payloads also count as in flight
    lacking = Random(f"{seed} code").choice((0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3))
    memory_moves = plan.setup.memory_moves
    if any(strike.fault == "disk_lost" for strike in plan.strikes):
        memory_moves = 1  # otherwise an outage is too short for a spill to disk
    own: dict[str, Any] = {
        "memory_moves": memory_moves,
        "revisits": revisits,
        "max_pages": max_pages,
        "streams": streams,
        "budget": budget,
        "lacking": lacking,
    }
    random = Random(f"{seed} cut for good")
    # Not with `disk_lost`: a worker that loses the moves on its disk, and comes back after the end of the
    # run, makes start() run again.
    if random.random() < 0.05 and all(strike.fault != "disk_lost" for strike in plan.strikes):
        fault = random.choice(("exchanges_cut", "shard_cut")) if seed >= SHARDED else "exchanges_cut"
        plan = replace(plan, strikes=(*plan.strikes, _at_a_time(random, fault)))
        if plan.setup.ttl_s > (ttl_s := random.choice((0.4, 0.8))):
            own |= {"ttl_s": ttl_s, "stall_s": random.choice((1.0, 2.0)) * ttl_s}
    random = Random(f"{seed} two masters")
    if random.random() < 0.05:
        at_s = random.uniform(0.2, FAULTS_END_S)
        plan = replace(plan, strikes=(*plan.strikes, Strike("two_masters", random.random(), at_s)))
        # The horizon is so short that puts retire before the fault, but longer than most of these faults.
        own["horizon_s"] = random.choice((0.2, 0.3, plan.setup.horizon_s))
    functions = Random(f"{seed} functions").random() < 0.75
    random = Random(f"{seed} never sent")
    rate = random.choice((0.0, 0.0, 0.5))
    for page in plan.pages:
        page.never_sent = random.random() < rate
    return replace(plan, setup=replace(plan.setup, functions=functions, **own))


def _over_shards(seed: int) -> Plan:
    plan, random = _drawn(seed), Random(f"{seed} shards")
    setup = replace(
        plan.setup,
        shards=random.choice((2, 2, 2, 3, 5)),
        horizon_s=random.choice((0.6, 3.0, 0.05)),
        local_seen=random.random() < 0.5,
    )
    strikes = tuple(
        replace(each, fault="shard_" + each.fault)
        if each.fault in faults.OF_A_SHARD and random.random() < 0.7
        else each
        for each in plan.strikes
    )
    random = Random(f"{seed} apart")
    apart = random.choice((0, 1, 1, 2)) if seed >= APART else 0
    strikes += tuple(each for _ in range(apart) for each in _strikes(random, "shard_apart"))
    if apart and setup.ttl_s > (ttl_s := random.choice((0.4, 0.8))):
        setup = replace(setup, ttl_s=ttl_s, stall_s=random.choice((1.0, 2.0)) * ttl_s)
    return replace(plan, setup=setup, strikes=strikes)


def _drawn(seed: int) -> Plan:
    random = Random(f"{seed} plan")
    of_script = seed // SAME_SCRIPTS
    hosts = random.choice((1, 1, 2, 3))
    poison = random.random() < 0.06
    pages = site.drawn(random, random.choice((2, 2, 2, 3, 3, 4, 4, 6, 9)), hosts, poison=poison)
    polite = hosts > 1 and random.random() < 0.5
    starts = (site.START, *(random.randrange(len(pages)) for _ in range(random.choice((0, 0, 2, 4)))))
    setup = Setup(
        workers=random.choice((2, 2, 2, 2, 2, 3, 3, 4, 5)),
        parts=random.choice((1, 1, 2)) if len(starts) > 1 else 1,
        order=tuple(Order)[of_script % len(Order)],
        seen=KINDS[of_script // len(Order) % len(KINDS)],
        hosts=hosts,
        delay_s=random.choice((0.0, 0.05)) if polite else 0.0,
        concurrency=random.choice((0, 1, 2)) if polite else 0,
        capacity=random.choice((1, 1, 4, 8)),
        timeout_s=random.choice((0.2, 0.8)),
        max_attempts=random.choice((2, 3)),
        horizon_s=random.choice((3.0, 3.0, 0.05)),
        starts=starts,
        filtered_start=random.random() < 0.3,
        again=(again := random.random() < 0.2),
        run_name=random.choice(("", "name")) if again else "",
        fed=0 if again else random.choice((0, 0, 0, 0, 4)),
        # A page that kills its workers would get another extra request from each new process.
        extras=not poison and random.random() < 0.2,
        memory_moves=random.choice((20_000, 20_000, 3)),
        drain_limit=random.choice((500, 1)),
        # In most schedules, this pause is longer. Otherwise, half of all exchanges would find nothing.
        idle_s=random.choice((0.02, 0.1, 0.1, 0.1)),
    )
    # The rates are random and may all be 0, so that some schedules have only a single fault.
    rates = Rates(*(random.choice((0.0, 0.0, 0.01, 0.1)) for _ in range(4)))
    if random.random() < 0.3:
        rates = NONE
    kinds = random.sample([*sorted(faults.BY_NAME), *OFTEN], random.choice((0, 1, 1, 1, 2, 3)))
    kinds = [kind for kind in kinds for _ in range(random.choice((1, 1, 1, 3)))]
    strikes = [strike for kind in kinds for strike in _strikes(random, kind)]
    if setup.again and random.random() < 0.3:
        # When the second run has begun, set Redis back to a time before the end of the first run.
        kind = random.choice(("roll_back", "fail_over"))
        strikes.append(Strike(kind, random.random(), 0.0, "leave", random.randint(1, 4), "applied"))
    if strikes and random.random() < 0.2:
        # Let two faults strike at the same moment.
        other = random.choice(sorted(faults.BY_NAME))
        strikes.append(replace(strikes[-1], fault=other, seed=random.random()))
    commands = [
        (random.uniform(0.0, FAULTS_END_S / 2), random.choice(COMMANDS))
        for _ in range(random.choice((0, 0, 0, 1, 3)))
    ]
    # Frequent heartbeats are a third of the calls. So the TTL is short only if a worker may be declared dead.
    deadly = (
        poison or DEADLY & {strike.fault for strike in strikes} or MORTAL & {name for _, name in commands}
    )
    ttl_s = random.choice((0.4, 0.8)) if deadly else 4.0
    setup = replace(setup, ttl_s=ttl_s, stall_s=random.choice((1.0, 2.0)) * ttl_s)
    return Plan(seed, setup, pages, rates, tuple(strikes), tuple(sorted(commands)))


def _strikes(random: Random, kind: str) -> list[Strike]:
    if random.random() < 0.4:
        return [_at_a_time(random, kind)]
    transition = random.choice(tuple(CALLS))
    number = random.randint(1, random.choice((2, CALLS[transition])))
    strikes = [Strike(kind, random.random(), 0.0, transition, number, random.choice(STAGES))]
    if transition in CAUSES:
        strikes.insert(0, _at_a_time(random, random.choice(CAUSES[transition])))
    return strikes


def _at_a_time(random: Random, kind: str) -> Strike:
    return Strike(kind, random.random(), random.uniform(0.0, random.choice((0.2, 0.5, FAULTS_END_S / 2))))
