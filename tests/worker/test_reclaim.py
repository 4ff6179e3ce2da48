"""Reclaim returns the leases of dead workers, and no others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from scrapy_dq.backend.connection import Connection
from scrapy_dq.frontier import Frontier
from scrapy_dq.frontier.calls import Exchange
from scrapy_dq.frontier.model import FrontierUnavailable, Seeding
from scrapy_dq.frontier.wire import pack_moves
from scrapy_dq.frontier.worker import reclaim
from scrapy_dq.frontier.worker.identity import own_identity
from scrapy_dq.frontier.worker.reclaim import Reclaimer
from scrapy_dq.settings import Config
from support.live_frontier import ack, entry_id, put
from support.proxy import RedisProxy
from worker.engine import IDENTITY, ORDER, Crawl, call_of, entries, until

State = Callable[[], dict[str, Any]]
OWN = own_identity()
GONE = OWN | {"pid": 2**22 + 1, "pid_start": "1"}
ELSEWHERE = GONE | {"host": "elsewhere"}


class Scene:
    """A frontier with the worker `own` and its reclaimer."""

    def __init__(self, frontier: Frontier, epoch: str) -> None:
        self.frontier = frontier
        self.epoch = epoch
        self.reclaimed: list[int] = []
        self.reclaimer = Reclaimer(frontier, OWN, 3, self.reclaimed.append)

    async def add(self, worker_id: str, identity: dict[str, Any], *numbers: int) -> None:
        """Register a worker that holds leases on new entries of these *numbers*."""
        await self.frontier.join(worker_id, identity, "", IDENTITY)
        moves = pack_moves([put(number, payload=b"%d" % number) for number in numbers])
        receipt = await self.frontier.exchange(
            Exchange(worker_id, self.epoch, 0, 1, 0, Seeding.ACTIVE, 0, moves)
        )
        assert receipt.applied
        held = 0
        for seq in range(2, 30):  # a worker gets only a share at a time
            receipt = await self.frontier.exchange(
                Exchange(worker_id, self.epoch, 0, seq, 1000, Seeding.ACTIVE, held, pack_moves([]))
            )
            held += len(receipt.leases)
        assert held == len(numbers)

    def observed(self, silent: list[str], dead: list[str]) -> None:
        self.reclaimer.observed("own", self.epoch, 0, silent, dead)


@asynccontextmanager
async def scene_of(crawl: Crawl, url: str = "") -> AsyncIterator[Scene]:
    connection = Connection(Config(crawl.name, redis_url=url or crawl.url), Path())
    frontier = Frontier(await connection.open(), crawl.name, ORDER)
    await frontier.join("own", OWN, "epoch", IDENTITY)
    scene = Scene(frontier, "epoch")
    yield scene
    scene.reclaimer.cancel()
    await asyncio.gather(*filter(None, [scene.reclaimer._task]), return_exceptions=True)
    await connection.close()


async def test_a_worker_that_died_on_this_machine_is_reclaimed_at_once(crawl: Crawl, state: State) -> None:
    """The reclaim needs no heartbeats. Workers on other hosts and live workers keep their leases."""
    async with scene_of(crawl) as scene:
        await scene.add("gone", GONE, 1, 2, 3)
        await scene.add("elsewhere", ELSEWHERE, 4)
        await scene.add("alive", OWN, 5)
        await scene.reclaimer.reclaim_local("epoch", 0)
        assert set(state()["members"]) == {"own", "elsewhere", "alive"}
        assert set(entries(state(), "backlog")) == {1, 2, 3}
        assert all(suspect for _, _, suspect, _ in entries(state(), "backlog").values())
        assert scene.reclaimed == [3]


async def test_a_silent_worker_on_this_machine_is_checked_at_once(crawl: Crawl, state: State) -> None:
    """A silent local worker without a process is dead at once; a silent remote one only after the TTL."""
    async with scene_of(crawl) as scene:
        await scene.add("gone", GONE, 1)
        await scene.add("elsewhere", ELSEWHERE, 2)
        scene.observed(["gone", "elsewhere"], [])
        await until(lambda: scene.reclaimed, "the local worker is reclaimed")
        await until(lambda: not scene.reclaimer._task, "no reclaim is under way")
        assert set(state()["members"]) == {"own", "elsewhere"}
        scene.observed(["elsewhere"], ["elsewhere"])
        await until(lambda: len(scene.reclaimed) == 2, "the other worker is reclaimed")
        assert set(state()["members"]) == {"own"}


async def test_a_worker_never_reclaims_itself(crawl: Crawl, state: State) -> None:
    """This holds even if its heartbeat stands still, because the worker would cut off its own work."""
    async with scene_of(crawl) as scene:
        await scene.add("gone", GONE, 1)
        scene.observed(["own"], ["own"])
        await asyncio.sleep(0)
        assert not scene.reclaimer._task
        scene.observed(["own", "gone"], ["own", "gone"])
        await until(lambda: scene.reclaimed, "the other worker is reclaimed")
        assert state()["members"]["own"][3] is False  # not fenced


async def test_a_fenced_worker_is_drained_in_steps(
    crawl: Crawl, state: State, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each step is bounded; from the first one on, the dead worker can neither ack nor lease."""
    caplog.set_level(logging.INFO, "scrapy_dq")
    monkeypatch.setattr(reclaim, "DRAIN_LIMIT", 2)
    async with scene_of(crawl) as scene:
        await scene.add("gone", GONE, 1, 2, 3, 4, 5)
        caplog.clear()
        await scene.reclaimer.reclaim("gone", "epoch", 0, "said so")
        assert set(entries(state(), "backlog")) == {1, 2, 3, 4, 5}
        assert set(state()["members"]) == {"own"}
    assert scene.reclaimed == [5]
    [line] = [record.getMessage() for record in caplog.records]
    assert "gone is dead (said so): 5 requests reclaimed, 0 buried" in line


async def test_an_interrupted_reclaim_is_resumed(
    crawl: Crawl, proxy: RedisProxy, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a lost reply the worker is fenced and partly drained; any repeat returns the rest."""
    monkeypatch.setattr(reclaim, "DRAIN_LIMIT", 2)
    async with scene_of(crawl, proxy.url) as scene:
        await scene.add("gone", GONE, 1, 2, 3)
        fault = proxy.cut_next_reply(containing=call_of("drain"))
        with pytest.raises(FrontierUnavailable):
            await scene.reclaimer.reclaim("gone", "epoch", 0, "said so")
        assert fault.fired
        assert state()["members"]["gone"][3] is True
        assert len(entries(state(), "gone")) == 1
        late = await scene.frontier.exchange(
            Exchange("gone", "epoch", 0, 30, 5, Seeding.DONE, 3, pack_moves([ack(1)]))
        )
        assert not late.applied
        fault = proxy.cut_next_reply(containing=call_of("fence"))
        scene.observed(["gone"], ["gone"])  # a reclaim in the background raises no error
        await until(lambda: fault.fired and not scene.reclaimer._task, "the reclaim broke off again")
        scene.observed(["gone"], ["gone"])
        await until(lambda: not scene.reclaimer._task, "the reclaim has ended")
        assert set(entries(state(), "backlog")) == {1, 2, 3}
        assert entry_id(1) in state()["entries"]
        assert set(state()["members"]) == {"own"}


async def test_many_deaths_at_once_use_one_connection(
    crawl: Crawl, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers are reclaimed one by one, each once; a failed reclaim delays no other and is repeated."""
    async with scene_of(crawl) as scene:
        many = [f"gone {n}" for n in range(40)]
        for worker_id in many:
            await scene.frontier.join(worker_id, ELSEWHERE, "", IDENTITY)
        broken = set(many[:3])
        fence, under_way, most, fenced = scene.frontier.fence, 0, 0, list[str]()

        async def counted(worker_id: str, *args: Any) -> tuple[str, str]:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            fenced.append(worker_id)
            try:
                if worker_id in broken:
                    raise FrontierUnavailable("it cannot be read")
                return await fence(worker_id, *args)
            finally:
                under_way -= 1

        monkeypatch.setattr(scene.frontier, "fence", counted)
        while len(scene.reclaimed) < 30:  # the remaining workers are reported dead again and again
            gone = [each for each in fenced if each not in broken][: len(scene.reclaimed)]
            left = [each for each in many if each not in gone]
            scene.observed(left, left)
            await asyncio.sleep(0)
        await until(lambda: not scene.reclaimer._task, "the reclaim has ended")
        assert set(state()["members"]) == {"own", *broken}
        assert most == 1
        assert all(fenced.count(worker_id) == 1 for worker_id in many[3:])
        broken.clear()
        scene.observed(many[:3], many[:3])
        await until(lambda: not scene.reclaimer._task, "the reclaim has ended")
        assert set(state()["members"]) == {"own"}


async def test_a_frozen_process_does_not_act_on_old_observations(
    crawl: Crawl, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that looked dead before the freeze may be back; the next observation shows it."""
    async with scene_of(crawl) as scene:
        for worker_id in ("gone", "back"):
            await scene.add(worker_id, ELSEWHERE)
        scene.observed(["gone", "back"], ["gone", "back"])
        monkeypatch.setattr(reclaim, "BELIEVED_S", 0.0)
        await until(lambda: not scene.reclaimer._task, "the reclaim has ended")
        assert set(state()["members"]) == {"own", "gone", "back"}
        monkeypatch.undo()
        scene.observed(["gone"], ["gone"])
        await until(lambda: not scene.reclaimer._task, "the reclaim has ended")
        assert set(state()["members"]) == {"own", "back"}
