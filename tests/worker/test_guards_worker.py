"""Guards of a worker and its parts that no other test covers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from scrapy_dq.frontier.keys import HOME, Shard
from scrapy_dq.frontier.model import Admission, FrontierUnavailable, Lease
from scrapy_dq.frontier.moves import Ack, Put
from scrapy_dq.frontier.worker import spill
from scrapy_dq.frontier.worker.heartbeat import Heartbeat, Pulse
from scrapy_dq.frontier.worker.identity import own_identity
from scrapy_dq.frontier.worker.leases import Leases
from scrapy_dq.frontier.worker.listener import Count
from scrapy_dq.frontier.worker.outage import Outage
from scrapy_dq.frontier.worker.spill import Spill
from worker.engine import IDENTITY, Crawl, Engine, until


def entry_id(number: int) -> bytes:
    return b"%012d" % number


def put(number: int) -> Put:
    return Put(entry_id(number), Admission.ID, entry_id(number), 0, False, b"", b"p" * 12)


@pytest.mark.parametrize("whose", ["one that is being made", "another user's"])
def test_a_spill_folder_that_may_be_in_use_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    """The owner of a new folder may be about to lock it; folders of other users are left alone."""
    folder = tmp_path / (spill.PREFIX + "other")
    folder.mkdir()
    if whose == "another user's":
        (folder / spill.LOCK).touch()
        uid = os.getuid()
        monkeypatch.setattr(spill.os, "getuid", lambda: uid + 1)
    ours = Spill(str(tmp_path))
    assert ours.push([put(1)])
    assert folder.exists()
    ours.close()
    assert list(tmp_path.iterdir()) == [folder]


def test_a_granted_lease_that_is_already_settled_is_not_started() -> None:
    """The work of the entry is done, and its ack is in the outbox."""
    leases = Leases(lambda partition: 1)
    leases.grant(Lease(entry_id(1), 0, b""))
    assert leases.take(0) is not None
    assert leases.settle(Ack(entry_id(1)))
    leases.grant(Lease(entry_id(1), 0, b""))
    assert leases.take(0) is None


class Beating:
    """A frontier that answers beats. The worker "silent" never beats. Beat number `fails_at` fails."""

    def __init__(self) -> None:
        self.client = AsyncMock()
        self.name = Shard("crawl", HOME)
        self.looks = 0
        self.fails_at = 0

    def using(self, client: Any) -> Beating:
        return self

    async def beat(self, worker_id: str, epoch: str, observe: bool) -> tuple[dict[str, int], int]:
        self.looks += 1
        if self.looks == self.fails_at:
            raise ValueError("an answer that nobody expects")
        return {worker_id: self.looks, "silent": 1}, 0


async def test_a_heartbeat_survives_unexpected_errors(caplog: pytest.LogCaptureFixture) -> None:
    """If the thread ended, the worker would be fenced again and again. A failed look counts as missed."""
    frontier = Beating()
    observed: list[tuple[list[str], list[str]]] = []
    heartbeat = Heartbeat(ttl_s=0.06)
    Pulse(
        heartbeat,
        frontier,  # type: ignore[arg-type]
        Mock(side_effect=[ValueError("a client that cannot be made"), Mock()]),
        outage=Outage(),
        observed=lambda silent, dead: observed.append((silent, dead)),
    ).start("own", "epoch")
    try:
        await until(lambda: observed and observed[-1][1], "the silent worker is dead")
        frontier.fails_at, before = frontier.looks + 3, len(observed)
        await until(lambda: any(not dead for _, dead in observed[before:]), "the worker has grace again")
    finally:
        heartbeat.stop()
    assert ["Unexpected error in the heartbeat" in record.getMessage() for record in caplog.records] == [
        True
    ] * 2


async def test_exchanges_continue_after_an_unexpected_error(
    crawl: Crawl, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """For example, the owner of the worker cannot start a thread. Without exchanges the crawl would hang."""
    crawl.size = 1
    async with Engine(crawl) as engine:
        exchange, told = engine.frontier.exchange, engine.counted
        refuse = Mock(side_effect=RuntimeError("can't start new thread"))
        fails = Mock(side_effect=chain([FrontierUnavailable("no answer")], repeat(None)))

        async def lose_one(*args: Any) -> Any:
            fails()
            return await exchange(*args)

        def counted(what: Count, amount: float) -> None:
            if what is Count.ERROR:
                refuse()
            told(what, amount)

        monkeypatch.setattr(engine.frontier, "exchange", lose_one)
        monkeypatch.setattr(engine.home.dialogue._listener, "counted", counted)
        engine.seed()
        await engine.run()
        assert crawl.done == crawl.once
    told_of = sum("Unexpected error in an exchange" in each.getMessage() for each in caplog.records)
    assert told_of == refuse.call_count >= 1


async def test_a_worker_that_stops_in_the_middle_of_start_leaves_the_run_open(
    crawl: Crawl, state: Callable[[], dict[str, Any]]
) -> None:
    """The worker's last ack is in the outbox and nothing waits, but its start() would have yielded more."""
    crawl.size = 1
    async with Engine(crawl) as engine:
        engine.may_end.clear()
        engine.put(0)
        running = asyncio.ensure_future(engine.run())
        await until(lambda: engine.held, "the entry is in work")
        running.cancel()
        for held in engine.held:
            engine.worker.ack(held)
        await engine.stop()
        assert (state()["done"], state()["phase"]) == (1, "open")


async def test_a_worker_that_died_on_this_machine_is_reclaimed_before_the_crawl_continues(
    crawl: Crawl, state: Callable[[], dict[str, Any]]
) -> None:
    """A supervisor starts the next process at once. Its worker finds the dead one's leases in the backlog."""
    gone = own_identity() | {"pid": 2**22 + 1, "pid_start": "1"}
    async with Engine(crawl, join=False) as engine:
        await engine.frontier.join("gone", gone, "epoch", IDENTITY)
        await engine.join()
        assert set(state()["members"]) == {engine.worker.id}


async def test_a_start_in_place_of_a_dead_worker_begins_later(crawl: Crawl) -> None:
    """With DQ_SEED_ONCE = False, the new start() makes up for the interrupted start() of the dead worker."""
    own = replace(IDENTITY, starts="*args")
    gone = own_identity() | {"pid": 2**22 + 1, "pid_start": "1"}
    async with Engine(crawl, join=False, identity=own) as engine:
        await engine.frontier.join("gone", gone, "epoch", own)
        await engine.join()
        engine.seed()
        await engine.run()
        assert engine.worker.census.incomplete == 0
