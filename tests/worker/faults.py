"""Faults for the worker's tests: a wrong exchange number, and a death that other workers declare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from scrapy_dq.frontier import keys
from worker.engine import Engine, until

State = Callable[[], dict[str, Any]]


def messages(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


async def next_exchange(engine: Engine) -> None:
    """Wait until one more exchange is answered."""
    answered = engine.counts["exchange"]
    await until(lambda: engine.counts["exchange"] > answered, "an exchange is answered")


def put_out_of_step(engine: Engine, client: redis.Redis) -> None:
    """Make Redis expect another exchange than the worker's next one, as after a roll-back."""
    client.hset(keys.prefix(engine.crawl.name) + f"worker:{engine.worker.id}", "last_seq", 1_000_000)


async def fence_and_drain(by: Engine, worker_id: str, gone: bool = False) -> None:
    """Fence and drain a worker, as others do if its heartbeat stands still or its process is gone."""
    assert (await by.frontier.fence(worker_id, by.worker.epoch, by.worker.run, gone))[0] == "OK"
    await by.frontier.drain(worker_id, by.worker.epoch, by.worker.run, 100, 3)
