"""The heartbeat: which workers the counters prove dead, and when a worker beats."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import closing
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest
import redis

from scrapy_dq.frontier.admin.control import Command, steer
from scrapy_dq.frontier.keys import HOME, Shard
from scrapy_dq.frontier.model import FrontierRefused, FrontierUnavailable
from scrapy_dq.frontier.worker.heartbeat import Heartbeat, Observer, Pulse
from scrapy_dq.frontier.worker.outage import Outage
from support.proxy import RedisProxy
from support.waiting import wait_until
from worker.engine import IDENTITY, Crawl, Engine, until

# The observer, without I/O


class Watch:
    """An observer with a TTL of 6 s that reads all counters each second (a look), and its clock."""

    def __init__(self) -> None:
        self.observer = Observer(ttl_s=6.0, interval_s=1.0)
        self.now = 1000.0

    def look(self, after_s: float = 1.0, **beats: int) -> tuple[list[str], list[str]]:
        self.now += after_s
        return self.observer.observe(beats, self.now)


def test_a_counter_that_stands_still_for_the_ttl_is_dead() -> None:
    """The worker is silent from the second look on, and dead once the looks span the TTL."""
    watch = Watch()
    answers = [watch.look(a=7, b=number) for number in range(8)]
    assert answers[0] == ([], [])
    assert answers[1:6] == [(["a"], [])] * 5
    assert answers[6:] == [(["a"], ["a"])] * 2


def test_a_slow_worker_is_not_declared_dead() -> None:
    """A counter that moves before the TTL has passed starts the observation again."""
    watch = Watch()
    for beat in (1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2):
        assert watch.look(a=beat)[1] == []
    assert watch.look(a=3) == ([], [])


def test_a_counter_that_went_back_counts_as_a_beat() -> None:
    """After a roll-back of Redis, the observation starts again from the lower count."""
    watch = Watch()
    for _ in range(6):
        watch.look(a=9)
    assert watch.look(a=5) == ([], [])


def test_an_observer_that_was_frozen_declares_no_worker_dead() -> None:
    """A gap of an hour counts as two looks, because Redis or other workers may have been frozen as well."""
    watch = Watch()
    for _ in range(4):
        assert watch.look(a=1)[1] == []
    assert watch.look(after_s=3600, a=1) == (["a"], [])  # 3 s and a gap that counts as 2
    assert watch.look(a=1) == (["a"], ["a"])


def test_a_worker_is_declared_dead_after_three_looks_at_the_earliest() -> None:
    """This holds even if the interval is longer than the TTL."""
    observer = Observer(ttl_s=1.0, interval_s=10.0)
    dead = [observer.observe({"a": 1}, now)[1] for now in (0.0, 10.0, 20.0, 30.0)]
    assert dead == [[], [], [], ["a"]]


def test_a_failed_look_gives_all_workers_a_full_span_of_grace() -> None:
    """While Redis was away, it received no beats of any worker."""
    watch = Watch()
    for _ in range(6):
        watch.look(a=1)
    watch.observer.missed()
    answers = [watch.look(a=1)[1] for _ in range(7)]
    assert answers == [[]] * 6 + [["a"]]


def test_a_worker_that_left_is_forgotten() -> None:
    """A worker without a counter is not silent. If its counter comes back, the observation starts again."""
    watch = Watch()
    for _ in range(5):
        watch.look(a=1, b=1)
    assert watch.look(b=1) == (["b"], [])
    assert watch.look(a=1, b=1) == (["b"], ["b"])


# The thread


class Beats:
    """The heartbeat of a joined worker on the running loop, with its observations."""

    def __init__(self, engine: Engine, *, ttl_s: float = 0.06) -> None:
        self.engine = engine
        self.observed: list[tuple[list[str], list[str]]] = []
        self.threads: set[int] = set()
        self.told: list[int] = []
        self.heartbeat = Heartbeat(ttl_s=ttl_s)
        self.pulse = Pulse(
            self.heartbeat, engine.frontier, self.connect, outage=Outage(), observed=self.note,
            commanded=self.told.append,
        )  # fmt: skip

    def connect(self) -> object:
        self.threads.add(threading.get_ident())
        return self.engine._connection.another()

    def note(self, silent: list[str], dead: list[str]) -> None:
        self.threads.add(-threading.get_ident())
        self.observed.append((silent, dead))

    def __enter__(self) -> Beats:
        return self

    def __exit__(self, *_: object) -> None:
        self.heartbeat.stop()
        thread = self.heartbeat._thread
        assert thread is not None
        thread.join(5)
        assert not thread.is_alive()


@pytest.fixture
def beats_of(client: object, crawl: Crawl) -> Callable[[str], int]:
    """Return a function that reads a worker's counter without the event loop."""

    def read(worker_id: str) -> int:
        value = client.hget(f"dq:{{{crawl.name}}}:beats", worker_id)  # type: ignore[attr-defined]
        return int(value or 0)

    return read


async def test_a_heartbeat_continues_while_the_loop_is_blocked(
    crawl: Crawl, beats_of: Callable[[str], int]
) -> None:
    """A worker with a slow callback does not count as dead, because the thread has its own connection."""
    async with Engine(crawl, join=False) as engine:
        joined = await engine.frontier.join("a", {}, "epoch", IDENTITY)
        with Beats(engine) as beats:
            beats.pulse.start("a", joined.epoch)
            # There is no await from here on, so this thread blocks the loop.
            wait_until(lambda: beats_of("a") >= 3, "three beats", 5)
            assert beats.threads
            assert threading.get_ident() not in beats.threads


async def test_each_beat_reports_the_number_of_commands(crawl: Crawl, client: redis.Redis) -> None:
    """One report is not enough: an exchange that is already under way may be answered without the command."""
    async with Engine(crawl, join=False) as engine:
        joined = await engine.frontier.join("a", {}, "epoch", IDENTITY)
        with Beats(engine) as beats:
            beats.pulse.start("a", joined.epoch)
            steer(client, crawl.name, Command.PAUSE)
            await until(lambda: beats.told.count(1) >= 3, "the number was reported three times")


async def test_a_heartbeat_stops_while_the_loop_is_blocked_for_too_long(
    crawl: Crawl, beats_of: Callable[[str], int], caplog: pytest.LogCaptureFixture
) -> None:
    """A hanging worker must lose its leases. Each stall causes one warning, and then the beats continue."""
    async with Engine(crawl, join=False) as engine:
        joined = await engine.frontier.join("a", {}, "epoch", IDENTITY)
        await engine.frontier.join("silent", {}, "epoch", IDENTITY)
        caplog.clear()
        with Beats(engine) as beats:
            beats.heartbeat.stall_timeout_s = 1.0
            beats.pulse.start("a", joined.epoch)
            for stall in (1, 2):
                await until(lambda: any(dead for _, dead in beats.observed), "the silent worker is dead")
                wait_until(lambda: len(caplog.records) == stall, "the stall is warned about", 5)  # noqa: B023
                stopped_at = beats_of("a")
                began = asyncio.get_running_loop().time()
                wait_until(lambda: asyncio.get_running_loop().time() > began + 0.1, "ten intervals")  # noqa: B023
                assert beats_of("a") == stopped_at
                await asyncio.sleep(0)  # the observation before the stall waits in the loop
                beats.observed.clear()
                # A worker that was silent before the stall is not dead at the first look after it.
                await until(lambda: beats.observed, "a look after the stall")
                assert beats.observed[0] == (["silent"], [])
                await until(lambda: beats_of("a") > stopped_at, "the beats continue")  # noqa: B023
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert "this worker stops its heartbeat" in caplog.records[0].getMessage()


async def test_a_read_that_ends_in_a_blocked_loop_is_not_blamed_on_redis(
    crawl: Crawl, proxy: RedisProxy, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the block, the loop finds both the answer and the timeout, before the thread has looked again."""
    monkeypatch.setattr("scrapy_dq.frontier.worker.heartbeat.LONGEST_INTERVAL_S", 60.0)
    proxy.set_delay(0.3)  # so that no answer comes before the loop is blocked, even on a busy machine
    async with Engine(crawl, url=proxy.url, ttl_s=600.0, timeout_s=2.0) as engine:
        joins = proxy.script_calls
        engine.put(0)
        # If the loop were blocked before it sends the exchange, the exchange would rightly find Redis away.
        await until(lambda: proxy.script_calls > joins, "an exchange is under way")
        time.sleep(2.5)  # noqa: ASYNC251
        proxy.set_delay(0.02)
        engine.worker.seeded()
        await engine.run()
        assert engine.counts["error"] == 1
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_heartbeat_reports_other_workers_but_not_its_own(
    crawl: Crawl, beats_of: Callable[[str], int]
) -> None:
    """The heartbeat calls back on the loop. After a rejoin, the former id counts as another worker."""
    async with Engine(crawl, join=False) as engine:
        joined = await engine.frontier.join("a", {}, "epoch", IDENTITY)
        with Beats(engine) as beats:
            beats.pulse.start("a", joined.epoch)
            await until(lambda: beats_of("a") >= 10, "the worker beats")
            assert not beats.observed
            await engine.frontier.join("b", {}, "epoch", IDENTITY)
            beats.pulse.start("b", joined.epoch)
            await until(lambda: beats.observed and beats.observed[-1][1], "the former id is dead")
            assert all(silent == ["a"] for silent, _ in beats.observed)
            assert -threading.get_ident() in beats.threads
            assert beats_of("b") > 0


async def test_a_heartbeat_ends_when_its_loop_is_closed(crawl: Crawl) -> None:
    """If a process does not stop the heartbeat, its thread must not beat for a dead loop."""
    async with Engine(crawl, join=False) as engine:
        joined = await engine.frontier.join("a", {}, "epoch", IDENTITY)
        beats = Beats(engine)
        with closing(asyncio.new_event_loop()) as loop:

            async def start() -> None:
                beats.pulse.start("a", joined.epoch)

            await asyncio.to_thread(loop.run_until_complete, start())
        thread = beats.heartbeat._thread
        assert thread is not None
        await until(lambda: not thread.is_alive(), "the thread has ended")


class Hangs:
    """A frontier whose Redis does not answer; it counts the beats."""

    def __init__(self) -> None:
        self.client = AsyncMock()
        self.name = Shard("crawl", HOME)
        self.beats = 0

    def using(self, client: object) -> Hangs:
        return self

    async def beat(self, worker_id: str, epoch: str, observe: bool) -> tuple[dict[str, int], int]:
        self.beats += 1
        return await asyncio.Future()


class Answers(Hangs):
    async def beat(self, worker_id: str, epoch: str, observe: bool) -> tuple[dict[str, int], int]:
        self.beats += 1
        return {}, 0


async def test_a_shard_that_hangs_delays_the_beats_of_no_other() -> None:
    """One thread makes all beats; it ends although a beat has no answer."""
    before = threading.active_count()
    heartbeat = Heartbeat(ttl_s=0.06)
    frontiers = [Hangs(), Answers(), Hangs(), Answers()]
    for each in frontiers:
        pulse = Pulse(heartbeat, cast("Any", each), Mock(), outage=Outage(), observed=lambda *_: None)
        pulse.start("own", "epoch")
    await until(lambda: frontiers[1].beats > 5 and frontiers[3].beats > 5, "the answering shards get beats")
    assert [frontiers[0].beats, frontiers[2].beats] == [1, 1]
    assert threading.active_count() == before + 1
    heartbeat.stop()
    await until(lambda: threading.active_count() == before, "the thread has ended")
    assert all(each.client.aclose.await_count == 1 for each in frontiers)


def pulse_of(heartbeat: Heartbeat, shard: int) -> Pulse:
    frontier: Any = SimpleNamespace(name=Shard("crawl", shard))
    return Pulse(heartbeat, frontier, Mock(), outage=Outage(), observed=Mock())


@pytest.mark.parametrize(
    ("unanswered", "passes_since", "cut_off"),
    [
        (None, 0.0, False),
        ((10.0, 40.0), 0.0, False),
        ((10.0, 41.0), 0.0, True),
        # After the last failed try, the event loop was blocked, so it made no further tries.
        ((10.0, 11.0), 0.0, False),
        # The whole Redis was away and has answered heartbeats only for a moment.
        ((10.0, 100.0), 90.0, False),
        ((10.0, 100.0), None, False),
    ],
)
async def test_a_worker_without_exchanges_stops_its_heartbeat(
    unanswered: tuple[float, float] | None, passes_since: float | None, cut_off: bool
) -> None:
    """The heartbeat stops if exchanges failed for longer than the TTL and heartbeats passed for as long."""
    pulse = pulse_of(Heartbeat(ttl_s=30), 0)
    pulse.beat = AsyncMock()  # type: ignore[method-assign]
    pulse._outage.unanswered, pulse._answered_since = unanswered, passes_since
    pulse.begin()
    assert pulse.beat.called is not cut_off
    pulse._outage.ended(0)
    pulse.begin()
    assert pulse.beat.called


def test_a_refusal_counts_as_an_answer() -> None:
    """A full Redis refuses all workers, so no other worker could do the work."""
    outage = Outage()
    outage.began(FrontierUnavailable("no answer"))
    outage.began(FrontierUnavailable("no answer"))
    assert outage.unanswered is not None
    assert outage.unanswered[0] < outage.unanswered[1]
    outage.began(FrontierRefused("full"))
    assert outage.unanswered is None


def test_shards_other_than_home_get_fewer_beats() -> None:
    """Each other shard gets six beats per TTL or one per 5 s, at its own moments.

    Home, which has the commands, gets every beat.
    """
    heartbeat = Heartbeat(ttl_s=30)
    pulses = [pulse_of(heartbeat, shard) for shard in range(12)]
    heartbeat._pulses = pulses
    rounds = []
    for _ in range(20):
        heartbeat._ticks += 1
        rounds.append(heartbeat.due())
    assert [sum(pulse in beats for beats in rounds) for pulse in pulses] == [20] + [4] * 11
    assert max(map(len, rounds)) <= 4
    assert pulses[1].observer.longest_gap_s == 10
    quick = Heartbeat(ttl_s=3)
    assert pulse_of(quick, 1).every == 1


def test_with_many_members_not_every_beat_reads_all_heartbeats() -> None:
    """More members mean fewer looks, but at least six per TTL."""
    heartbeat = Heartbeat(ttl_s=30)
    assert [heartbeat.observe_interval_s(n) for n in (1, 100, 400, 10_000)] == [1.0, 1.0, 4.0, 5.0]
    assert [heartbeat.observe_interval_s(n, 3) for n in (1, 400, 10_000)] == [3.0, 4.0, 5.0]
    assert Heartbeat(ttl_s=3).observe_interval_s(10_000) == 0.5


async def test_a_beat_that_reads_no_heartbeats_still_counts(crawl: Crawl) -> None:
    """Such a beat returns no heartbeats, but increments the worker's own."""
    async with Engine(crawl) as worker:
        epoch, own = worker.worker.epoch, worker.worker.id
        frontier = worker.worker.parts[0].frontier
        before = (await frontier.beats(own, epoch))[own]
        assert (await frontier.beat(own, epoch, observe=False))[0] == {}
        assert (await frontier.beats(own, epoch))[own] >= before + 2
