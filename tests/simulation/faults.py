"""The faults that a schedule can draw. Each is a function of the schedule, which it strikes at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from simulation.crawler import STALL_S, TTL_S, Crawler
from simulation.virtual import BEGIN_S

if TYPE_CHECKING:
    from simulation.schedule import Schedule

ROLL_BACK_S = 1.0
"""Redis has at most this much on no disk."""


def kill(schedule: Schedule) -> None:
    """SIGKILL of a worker, between two of its events; it is started again."""
    if (victim := _drawn(schedule)) is not None:
        schedule.struck("kill", victim.process.name)
        victim.process.kill()
        schedule.start_later()


def terminate(schedule: Schedule) -> None:
    """SIGTERM of a worker, with enough time to end."""
    if (victim := _drawn(schedule)) is not None:
        # What it downloads at this moment is downloaded again; its callbacks have not run.
        schedule.struck("sigterm", victim.process.name)
        victim.terminate()
        schedule.start_later()


def terminate_then_kill(schedule: Schedule) -> None:
    """SIGTERM of a worker, and SIGKILL before it has ended."""
    if (victim := _drawn(schedule)) is not None:
        schedule.struck("sigterm+kill", victim.process.name)
        victim.terminate()
        after_s = schedule.world.random.uniform(0.0, 0.05)
        schedule.world.at(schedule.world.now + after_s, victim.process.kill)
        schedule.start_later()


def freeze(schedule: Schedule) -> None:
    """SIGSTOP of a worker, SIGCONT later."""
    if (victim := _drawn(schedule)) is not None:
        seconds = schedule.world.random.uniform(0.1, 4 * TTL_S)
        schedule.struck("freeze", f"{victim.process.name} {seconds:.2f} s")
        victim.process.freeze(seconds)


def block(schedule: Schedule) -> None:
    """A callback that blocks the event loop; the heartbeat goes on, until DQ_STALL_TIMEOUT."""
    if (victim := _drawn(schedule)) is not None:
        seconds = schedule.world.random.uniform(0.1, 3 * STALL_S)
        schedule.struck("block", f"{victim.process.name} {seconds:.2f} s")
        victim.process.main.freeze(seconds)


def stall(schedule: Schedule) -> None:
    """The thread of a heartbeat does not run, while the worker does."""
    if (victim := _drawn(schedule)) is not None:
        seconds = schedule.world.random.uniform(0.1, 4 * TTL_S)
        schedule.struck("stall", f"{victim.process.name} {seconds:.2f} s")
        victim.process.heartbeat.freeze(seconds)


def step_worker_clock(schedule: Schedule) -> None:
    """The wall clock of a worker is set."""
    if (victim := _drawn(schedule)) is not None:
        seconds = schedule.world.random.uniform(-600, 600)
        schedule.struck("worker-clock", f"{victim.process.name} {seconds:.0f} s")
        victim.process.wall_offset_s += seconds


def step_redis_clock(schedule: Schedule) -> None:
    """The clock of Redis is set."""
    seconds = schedule.world.random.uniform(-600, 600)
    schedule.struck("redis-clock", f"{seconds:.0f} s")
    schedule.store.clock_offset_s += seconds


def cut(schedule: Schedule) -> None:
    """All connections are cut."""
    schedule.struck("cut")
    schedule.network.cut()


def away(schedule: Schedule) -> None:
    """Redis ends and is started again, with everything it had."""
    seconds = schedule.world.random.uniform(0.1, 5.0)
    schedule.struck("away", f"{seconds:.2f} s")
    schedule.network.cut(seconds)
    schedule.store.redis.script_flush()


def freeze_redis(schedule: Schedule) -> None:
    """SIGSTOP of Redis, SIGCONT later: it runs then what has arrived meanwhile."""
    seconds = schedule.world.random.uniform(0.1, 4 * TTL_S)
    schedule.struck("redis-frozen", f"{seconds:.2f} s")
    schedule.store.frozen_until = schedule.world.now + seconds


def full(schedule: Schedule) -> None:
    """Redis refuses writes, until its limit is raised."""
    seconds = schedule.world.random.uniform(0.1, 5.0)
    schedule.struck("full", f"{seconds:.2f} s")
    schedule.store.full = True
    schedule.world.at(schedule.world.now + seconds, lambda: setattr(schedule.store, "full", False))


def roll_back(schedule: Schedule) -> None:
    """Redis loses its power: it comes back with what it had up to a second before."""
    _lose(schedule, "roll-back", schedule.world.random.uniform(0.1, 3.0))


def fail_over(schedule: Schedule) -> None:
    """A replica that lags takes the place of Redis at once."""
    _lose(schedule, "fail-over", 0.0)


def forget_scripts(schedule: Schedule) -> None:
    """SCRIPT FLUSH."""
    schedule.struck("scripts")
    schedule.store.redis.script_flush()


def flush(schedule: Schedule) -> None:
    """FLUSHALL: workers close `frontier_lost`, and the next command crawls everything."""
    schedule.struck("flush")
    schedule.store.redis.flushall()
    schedule.start_later()


EACH = (
    kill, terminate, terminate_then_kill, freeze, block, stall, step_worker_clock, step_redis_clock, cut,
    away, freeze_redis, full, roll_back, fail_over, forget_scripts, flush,
)  # fmt: skip


def _drawn(schedule: Schedule) -> Crawler | None:
    there = [each for each in schedule.crawlers if each.there]
    return schedule.world.random.choice(there) if there else None


def _lose(schedule: Schedule, name: str, away_s: float) -> None:
    lost_s = schedule.world.random.uniform(0.0, ROLL_BACK_S)
    snapshot = schedule.store.snapshot()
    taken_at_s = schedule.world.now - BEGIN_S

    def happen() -> None:
        schedule.struck(name, f"to {taken_at_s:.4f} s")
        schedule.store.restore(snapshot)
        schedule.network.cut(away_s)

    schedule.world.at(schedule.world.now + lost_s, happen)
