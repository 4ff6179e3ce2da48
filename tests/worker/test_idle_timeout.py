"""How long a crawl with nothing to do stays open: what counts as having had nothing to do."""

from __future__ import annotations

import asyncio
import selectors
from types import SimpleNamespace
from typing import Any

import pytest

from scrapy_dq.frontier.model import Census
from scrapy_dq.start_urls import idle_timeout as module
from scrapy_dq.start_urls.idle_timeout import IdleTimeout

PATIENCE_S = 0.05


class Worker(SimpleNamespace):
    """A worker that a test says everything of."""

    def __init__(self) -> None:
        super().__init__(idle=True, census=Census(), listens=False, pause=False, outage="")

    def paused(self) -> bool:
        return bool(self.pause)

    def listen(self, on: bool) -> None:
        self.listens = on


async def after(listening: IdleTimeout, worker: Worker, seconds: float, *, silent: bool = False) -> bool:
    """Let time pass, with exchanges unless *silent*; tell whether the worker listens still."""
    for _ in range(round(seconds / 0.01)):
        await asyncio.sleep(0.01)
        if not silent:
            listening.exchanged()
    return bool(worker.listens)


class Jumping(selectors.SelectSelector):
    """Lets a loop find that it is the time for which it would wait."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "nothing will ever happen"
        self.now += max(0.0, timeout)
        return super().select(0)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs a scenario on a loop whose time is that of its timers alone."""
    clock = Jumping()
    loop = asyncio.SelectorEventLoop(clock)
    monkeypatch.setattr(loop, "time", lambda: clock.now)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    yield lambda scenario: loop.run_until_complete(scenario())
    loop.close()


def test_it_ends_when_nothing_came_for_long_enough(run: Any) -> None:
    """From the first time that there is nothing to do, and not before."""

    async def scenario() -> None:
        worker: Any = Worker()
        listening = IdleTimeout(worker, PATIENCE_S, worker.paused)
        assert await after(listening, worker, 2 * PATIENCE_S)
        assert listening.idle()
        assert not await after(listening, worker, 3 * PATIENCE_S)
        assert not listening.on

    run(scenario)


@pytest.mark.parametrize("patience_s", [0.0, float("inf")])
def test_without_patience_it_never_begins_and_without_end_it_never_ends(patience_s: float, run: Any) -> None:
    """0: closes at once, as plain Scrapy. inf: stays open forever."""

    async def scenario() -> None:
        worker: Any = Worker()
        listening = IdleTimeout(worker, patience_s, worker.paused)
        assert listening.on == bool(patience_s)
        listening.idle()
        assert await after(listening, worker, 2 * PATIENCE_S) == bool(patience_s)

    run(scenario)


def test_what_others_did_meanwhile_is_counted(run: Any) -> None:
    """Between two looks a page came and went, on another worker: the wait starts again, then."""

    async def scenario() -> None:
        worker: Any = Worker()
        listening = IdleTimeout(worker, PATIENCE_S, worker.paused)
        listening.idle()
        assert await after(listening, worker, 0.6 * PATIENCE_S)
        worker.census = Census(done=1)
        assert await after(listening, worker, 0.8 * PATIENCE_S)
        assert not await after(listening, worker, 0.6 * PATIENCE_S)

    run(scenario)


def test_who_has_something_to_do_at_the_end_of_the_wait_begins_it_again(run: Any) -> None:
    async def scenario() -> None:
        worker: Any = Worker()
        listening = IdleTimeout(worker, PATIENCE_S, worker.paused)
        listening.idle()
        worker.idle = False
        assert await after(listening, worker, 3 * PATIENCE_S)
        worker.idle = True
        listening.idle()
        assert not await after(listening, worker, 3 * PATIENCE_S)

    run(scenario)


def test_an_outage_is_no_idleness(monkeypatch: pytest.MonkeyPatch, run: Any) -> None:
    """While Redis is away nobody knows what is fed there: the wait begins when it is back."""
    monkeypatch.setattr(module, "SILENT_S", 0.03)

    async def scenario() -> None:
        worker: Any = Worker()
        listening = IdleTimeout(worker, PATIENCE_S, worker.paused)
        listening.exchanged()
        listening.idle()
        assert await after(listening, worker, 6 * PATIENCE_S, silent=True)
        assert not await after(listening, worker, 4 * PATIENCE_S)

    run(scenario)


def test_an_outage_of_one_shard_is_no_idleness(run: Any) -> None:
    """The others answer meanwhile; what is fed lies in the one that does not."""

    async def scenario() -> None:
        worker: Any = Worker()
        listening = IdleTimeout(worker, PATIENCE_S, worker.paused)
        listening.exchanged()
        listening.idle()
        worker.outage = "no answer"
        assert await after(listening, worker, 6 * PATIENCE_S)
        worker.outage = ""
        assert not await after(listening, worker, 4 * PATIENCE_S)

    run(scenario)


def test_a_pause_is_no_idleness(run: Any) -> None:
    """While the engine is paused nothing is taken of what is fed: the wait begins when it goes on."""

    async def scenario() -> None:
        worker: Any = Worker()
        listening = IdleTimeout(worker, PATIENCE_S, worker.paused)
        listening.exchanged()
        listening.idle()
        worker.pause = True
        assert await after(listening, worker, 6 * PATIENCE_S)
        worker.pause = False
        assert not await after(listening, worker, 4 * PATIENCE_S)

    run(scenario)
