"""The faults that a plan can contain. Each fault is a function of the schedule and strikes at once."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from random import Random
from typing import TYPE_CHECKING

from simulation.virtual import BEGIN_S

if TYPE_CHECKING:
    from simulation.crawler import Crawler
    from simulation.schedule import Schedule

ROLL_BACK_S = 0.5
"""Maximum age of the writes that Redis loses in a power loss, because they are not on a disk yet."""


def kill(schedule: Schedule, random: Random, victim: Crawler | None) -> None:
    """SIGKILL a worker between two of its events. A new worker starts later."""
    if victim is not None:
        schedule.struck("kill", victim.process.name)
        victim.process.kill()
        schedule.start_later(part=victim.part)


def sigterm(schedule: Schedule, random: Random, victim: Crawler | None) -> None:
    """Send SIGTERM to a worker and let it end."""
    if victim is not None:
        schedule.struck("sigterm", victim.process.name)
        victim.later(lambda: victim.stop("terminated"))
        schedule.start_later(part=victim.part)


def sigterm_kill(schedule: Schedule, random: Random, victim: Crawler | None) -> None:
    """Send SIGTERM to a worker, and SIGKILL before it has ended."""
    if victim is not None:
        schedule.struck("sigterm_kill", victim.process.name)
        victim.later(lambda: victim.stop("terminated"))
        schedule.world.at(schedule.world.now + random.uniform(0.0, 0.05), lambda: _end(victim))
        schedule.start_later(part=victim.part)


def _end(victim: Crawler) -> None:
    if victim.there:
        victim.process.kill()


def freeze(schedule: Schedule, random: Random, victim: Crawler | None) -> None:
    """Send SIGSTOP to a worker, and SIGCONT later."""
    if victim is not None:
        seconds = random.uniform(0.1, 2.5 * schedule.plan.setup.ttl_s)
        schedule.struck("freeze", f"{victim.process.name} {seconds:.2f} s")
        victim.process.freeze(seconds)


def block(schedule: Schedule, random: Random, victim: Crawler | None) -> None:
    """Let a callback block the event loop. The heartbeat stops only if the block takes too long."""
    if victim is not None:
        seconds = random.uniform(0.1, 2 * schedule.plan.setup.stall_s)
        schedule.struck("block", f"{victim.process.name} {seconds:.2f} s")
        victim.process.main.freeze(seconds)


def stall(schedule: Schedule, random: Random, victim: Crawler | None) -> None:
    """Stop a heartbeat's thread while its worker runs."""
    if victim is not None:
        seconds = random.uniform(0.1, 2.5 * schedule.plan.setup.ttl_s)
        schedule.struck("stall", f"{victim.process.name} {seconds:.2f} s")
        victim.process.heartbeat.freeze(seconds)


def worker_clock(schedule: Schedule, random: Random, victim: Crawler | None) -> None:
    """Set a worker's wall clock."""
    if victim is not None:
        seconds = random.uniform(-600, 600)
        schedule.struck("worker_clock", f"{victim.process.name} {seconds:.0f} s")
        victim.process.wall_offset_s += seconds


def redis_clock(schedule: Schedule, random: Random, victim: Crawler | None) -> None:
    """Set Redis's clock."""
    seconds = random.uniform(-600, 600)
    schedule.struck("redis_clock", f"{seconds:.0f} s")
    schedule.store.clock_offset_s += seconds


def cut(schedule: Schedule, random: Random, victim: Crawler | None) -> None:
    """Cut all connections."""
    schedule.struck("cut")
    schedule.network.cut()


def away(schedule: Schedule, random: Random, victim: Crawler | None) -> None:
    """Stop Redis and start it again with all its data."""
    seconds = random.uniform(0.05, 0.6)
    schedule.struck("away", f"{seconds:.2f} s")
    schedule.network.cut(seconds)
    schedule.store.forget_scripts()


def redis_frozen(schedule: Schedule, random: Random, victim: Crawler | None) -> None:
    """Send SIGSTOP to Redis, and SIGCONT later. Then Redis runs the calls that have arrived."""
    seconds = random.uniform(0.1, 2.5 * schedule.plan.setup.ttl_s)
    schedule.struck("redis_frozen", f"{seconds:.2f} s")
    for shard in range(schedule.setup.shards):
        _freeze(schedule, shard, seconds)


def full(schedule: Schedule, random: Random, victim: Crawler | None) -> None:
    """Let Redis refuse writes until its memory limit is raised."""
    seconds = random.uniform(0.05, 0.6)
    schedule.struck("full", f"{seconds:.2f} s")
    schedule.store.full = True
    schedule.world.at(schedule.world.now + seconds, lambda: setattr(schedule.store, "full", False))


def roll_back(schedule: Schedule, random: Random, victim: Crawler | None) -> None:
    """Cut Redis's power. Redis comes back without the writes of up to ROLL_BACK_S seconds."""
    _lose(schedule, random, "roll_back", random.uniform(0.05, 0.5))


def shard_roll_back(schedule: Schedule, random: Random, victim: Crawler | None) -> None:
    """Cut the power of one shard's Redis."""
    shard = random.randrange(schedule.setup.shards)
    _lose(schedule, random, "shard_roll_back", random.uniform(0.05, 0.5), shard)


def shard_fail_over(schedule: Schedule, random: Random, victim: Crawler | None) -> None:
    """Replace one shard's Redis by a replica that lags."""
    _lose(schedule, random, "shard_fail_over", 0.0, random.randrange(schedule.setup.shards))


def shard_away(schedule: Schedule, random: Random, victim: Crawler | None) -> None:
    """End one shard's Redis and start it again."""
    seconds, shard = random.uniform(0.05, 2.0), random.randrange(schedule.setup.shards)
    schedule.struck("shard_away", f"{shard} {seconds:.2f} s")
    schedule.network.cut(seconds, shard)
    schedule.store.forget_scripts()


def shard_redis_frozen(schedule: Schedule, random: Random, victim: Crawler | None) -> None:
    """Send SIGSTOP to one shard's Redis, and SIGCONT later."""
    seconds = random.uniform(0.1, 2.5 * schedule.plan.setup.ttl_s)
    shard = random.randrange(schedule.setup.shards)
    schedule.struck("shard_redis_frozen", f"{shard} {seconds:.2f} s")
    _freeze(schedule, shard, seconds)


def shard_apart(schedule: Schedule, random: Random, victim: Crawler | None) -> None:
    """Cut one worker off from one shard for a while. Other workers may declare it dead in this shard."""
    if victim is not None:
        seconds = random.uniform(0.1, 3 * schedule.plan.setup.ttl_s)
        shard = random.choice((0, random.randrange(schedule.setup.shards)))
        schedule.struck("shard_apart", f"{victim.process.name} {shard} {seconds:.2f} s")
        schedule.network.part(victim.process, shard, seconds)


def exchanges_cut(schedule: Schedule, random: Random, victim: Crawler | None) -> None:
    """Let only heartbeats of one worker reach Redis, and no exchange, until all other workers have ended."""
    if victim is not None:
        schedule.struck("exchanges_cut", victim.process.name)
        schedule.network.without_exchanges.add(victim.process)


def shard_cut(schedule: Schedule, random: Random, victim: Crawler | None) -> None:
    """Cut one worker off from one shard that others reach, until all other workers have ended."""
    if victim is not None:
        shard = random.randrange(schedule.setup.shards)
        schedule.struck("shard_cut", f"{victim.process.name} {shard}")
        schedule.network.part(victim.process, shard, inf)


def two_masters(schedule: Schedule, random: Random, victim: Crawler | None) -> None:
    """Let a former master still answer some workers, although a new master has replaced it.

    One worker's calls reach both masters. Each other worker stays with one of them. In the end, the former
    master's data is lost.
    """
    shard, seconds = random.randrange(schedule.setup.shards), random.uniform(0.05, random.choice((0.25, 0.5)))
    if victim is not None and shard not in schedule.store.former:
        schedule.struck("two_masters", f"{victim.process.name} {shard} {seconds:.2f} s")
        stay = {each for each in schedule.crawlers if each.there and random.random() < 0.3}
        schedule.part_masters(shard, seconds, dict.fromkeys(stay, 1.0) | {victim: 0.5})


def fail_over(schedule: Schedule, random: Random, victim: Crawler | None) -> None:
    """Replace Redis at once by a replica that lags."""
    _lose(schedule, random, "fail_over", 0.0)


def lag(schedule: Schedule, random: Random, victim: Crawler | None) -> None:
    """Replace Redis by a replica that lacks one exchange; later, a late copy of this exchange reaches it.

    The exchange's worker is frozen until then. Other workers continue.
    """
    if victim is None:
        return
    network, world = schedule.network, schedule.world
    snapshot, taken_at = schedule.store.snapshot(), world.now

    def applied(repeat: Callable[[], None]) -> None:
        def happen() -> None:
            schedule.struck("lag", f"{victim.process.name}, to {taken_at - BEGIN_S:.4f} s")
            schedule.set_back(snapshot, taken_at)
            network.cut()
            pause_s = random.choice((0.001, 0.05, 0.2))
            victim.process.freeze(pause_s)
            world.at(world.now + pause_s, repeat)

        world.at(world.now + 0.004, happen)

    network.after[victim.process] = applied


def scripts(schedule: Schedule, random: Random, victim: Crawler | None) -> None:
    """Remove all scripts, as SCRIPT FLUSH does."""
    schedule.struck("scripts")
    schedule.store.forget_scripts()


def flush(schedule: Schedule, random: Random, victim: Crawler | None) -> None:
    """Run FLUSHALL: workers close with `frontier_lost`, and the next worker crawls everything again."""
    schedule.struck("flush")
    schedule.store.run("FLUSHALL")
    schedule.lost(0.0)
    schedule.start_later()


def disk_full(schedule: Schedule, random: Random, victim: Crawler | None) -> None:
    """Refuse to store moves on disk for a while."""
    seconds = random.uniform(0.2, 0.6)
    schedule.struck("disk_full", f"{seconds:.2f} s")
    schedule.disk.full_until = schedule.world.now + seconds


def disk_lost(schedule: Schedule, random: Random, victim: Crawler | None) -> None:
    """Take Redis away; the moves that workers store on disk in this time cannot be read back."""
    seconds = random.uniform(0.1, 0.6)
    schedule.struck("disk_lost", f"{seconds:.2f} s")
    schedule.network.cut(seconds)
    schedule.world.at(schedule.world.now + 0.9 * seconds, schedule.disk.lose)


BY_NAME = {
    each.__name__: each
    for each in (
        kill, sigterm, sigterm_kill, freeze, block, stall, worker_clock, redis_clock, cut, away, redis_frozen,
        full, roll_back, fail_over, lag, scripts, flush, disk_full, disk_lost,
    )
}  # fmt: skip
BY_NAME_OVER_SHARDS = BY_NAME | {
    each.__name__: each
    for each in (
        shard_roll_back,
        shard_fail_over,
        shard_away,
        shard_redis_frozen,
        shard_apart,
        exchanges_cut,
        shard_cut,
        two_masters,
    )
}
OF_A_SHARD = ("away", "redis_frozen", "roll_back", "fail_over")
"""Faults with a variant that strikes one of several shards; its name begins with `shard_`."""
LOSSES = ("roll_back", "fail_over", "lag", "flush", "shard_roll_back", "shard_fail_over", "two_masters")
"""Faults after which Redis lacks confirmed data."""


def _freeze(schedule: Schedule, shard: int, seconds: float) -> None:
    until = schedule.store.frozen
    until[shard] = max(until[shard], schedule.world.now + seconds)


def _lose(schedule: Schedule, random: Random, name: str, away_s: float, shard: int | None = None) -> None:
    lost_s = random.uniform(0.0, ROLL_BACK_S)
    snapshot = schedule.store.snapshot(shard)
    taken_at = schedule.world.now

    def happen() -> None:
        schedule.struck(name, f"{'' if shard is None else shard} to {taken_at - BEGIN_S:.4f} s")
        schedule.set_back(snapshot, taken_at, shard)
        schedule.network.cut(away_s, shard)

    schedule.world.at(schedule.world.now + lost_s, happen)
