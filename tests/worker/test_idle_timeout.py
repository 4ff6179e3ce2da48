"""How long a crawl with nothing to do stays open, and when it counts as idle."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from scrapy_dq.frontier.model import Census
from scrapy_dq.start_urls import idle_timeout as module
from scrapy_dq.start_urls.idle_timeout import IdleTimeout

PATIENCE_S = 0.05


class Worker(SimpleNamespace):
    """A worker whose whole state the test sets."""

    def __init__(self) -> None:
        super().__init__(idle=True, census=Census(), listens=False, pause=False, outage="")

    def paused(self) -> bool:
        return bool(self.pause)

    def listen(self, on: bool) -> None:
        self.listens = on


async def after(listening: IdleTimeout, worker: Worker, seconds: float, *, silent: bool = False) -> bool:
    """Let time pass, with exchanges unless *silent*; return whether the worker still listens."""
    for _ in range(round(seconds / 0.01)):
        await asyncio.sleep(0.01)
        if not silent:
            listening.exchanged()
    return bool(worker.listens)


class Jumping(selectors.SelectSelector):
    """A selector that jumps to the end of each wait."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "nothing will ever happen"
        self.now += max(0.0, timeout)
        return super().select(0)


Scenario = Callable[[Any, IdleTimeout], Awaitable[None]]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Yield a function that plays a scenario on a loop whose time only its timers advance."""
    clock = Jumping()
    loop = asyncio.SelectorEventLoop(clock)
    monkeypatch.setattr(loop, "time", lambda: clock.now)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))

    async def begin(scenario: Scenario, patience_s: float) -> None:
        worker: Any = Worker()
        await scenario(worker, IdleTimeout(worker, patience_s, worker.paused))

    yield lambda scenario, patience_s=PATIENCE_S: loop.run_until_complete(begin(scenario, patience_s))
    loop.close()


def test_listening_ends_after_a_long_enough_idle_time(play: Any) -> None:
    """The wait begins at the first idle moment, not earlier."""

    async def scenario(worker: Any, listening: IdleTimeout) -> None:
        assert await after(listening, worker, 2 * PATIENCE_S)
        assert listening.idle()
        assert not await after(listening, worker, 3 * PATIENCE_S)
        assert not listening.on

    play(scenario)


@pytest.mark.parametrize("patience_s", [0.0, float("inf")])
def test_listening_never_begins_with_0_and_never_ends_with_infinity(patience_s: float, play: Any) -> None:
    """With 0, the worker closes as plain Scrapy does. With infinity, it stays open without an end."""

    async def scenario(worker: Any, listening: IdleTimeout) -> None:
        assert listening.on == bool(patience_s)
        listening.idle()
        assert await after(listening, worker, 2 * PATIENCE_S) == bool(patience_s)

    play(scenario, patience_s)


def test_work_of_other_workers_restarts_the_wait(play: Any) -> None:
    """Another worker has crawled a page between two exchanges of this worker, so the wait starts again."""

    async def scenario(worker: Any, listening: IdleTimeout) -> None:
        listening.idle()
        assert await after(listening, worker, 0.6 * PATIENCE_S)
        worker.census = Census(done=1)
        assert await after(listening, worker, 0.8 * PATIENCE_S)
        assert not await after(listening, worker, 0.6 * PATIENCE_S)

    play(scenario)


def test_a_busy_worker_starts_the_wait_again(play: Any) -> None:
    async def scenario(worker: Any, listening: IdleTimeout) -> None:
        listening.idle()
        worker.idle = False
        assert await after(listening, worker, 3 * PATIENCE_S)
        worker.idle = True
        listening.idle()
        assert not await after(listening, worker, 3 * PATIENCE_S)

    play(scenario)


OBSTACLES: dict[str, dict[str, Any]] = {
    "Redis is away": {},
    "one shard is away": {"outage": "no answer"},
    "the engine is paused": {"pause": True},
}


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_an_outage_or_a_pause_does_not_count_as_idle_time(
    monkeypatch: pytest.MonkeyPatch, play: Any, obstacle: str
) -> None:
    """During the obstacle the worker cannot see or take new payloads, so the wait begins afterwards."""
    monkeypatch.setattr(module, "SILENT_S", 0.03)

    async def scenario(worker: Any, listening: IdleTimeout) -> None:
        listening.exchanged()
        listening.idle()
        vars(worker).update(OBSTACLES[obstacle])
        silent = not OBSTACLES[obstacle]
        assert await after(listening, worker, 6 * PATIENCE_S, silent=silent)
        vars(worker).update(outage="", pause=False)
        assert not await after(listening, worker, 4 * PATIENCE_S)

    play(scenario)
