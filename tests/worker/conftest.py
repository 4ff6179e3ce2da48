"""Fixtures of the worker's tests. Test functions may be coroutines, which run within a deadline."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
import redis

from scrapy_dq.frontier.scripts import Function, lua_files
from scrapy_dq.frontier.worker import outage, pace
from support import stored
from support.proxy import RedisProxy
from support.redis_server import RedisServer
from worker.engine import ORDER, Crawl, script
from worker.spread import Spread

DEADLINE_S = 180.0


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine test in a new event loop, within a deadline."""
    function = pyfuncitem.obj
    if not inspect.iscoroutinefunction(function):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(function).parameters}
    asyncio.run(asyncio.wait_for(function(**arguments), DEADLINE_S))
    return True


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """Yield a blocking client of the shared server, which bypasses any proxy; the server has all scripts."""
    with redis_server.client() as client:
        # Otherwise a fault at the next EVALSHA would hit the answer NOSCRIPT, not the call itself.
        for transition in lua_files("transitions"):
            client.script_load(script(transition).source)
        with suppress(redis.ResponseError):  # this Redis has no functions, or has this one
            client.function_load(Function("exchange").library)
        yield client


@pytest.fixture
def crawl(redis_server: RedisServer, client: redis.Redis, crawl_name: str) -> Iterator[Crawl]:
    """Yield a tree of entries with a record of each entry's fate; the crawl's keys are deleted at the end."""
    yield Crawl(redis_server.url, crawl_name)
    stored.roll_back(client, crawl_name, {})


@pytest.fixture
def state(client: redis.Redis, crawl_name: str) -> Callable[[], stored.State]:
    """Return a function that reads the stored state and checks it for contradictions."""
    return lambda: stored.stored_state(client, crawl_name, ORDER)


@pytest.fixture
def proxy(redis_server: RedisServer, start_proxy: Callable[[str], RedisProxy]) -> RedisProxy:
    """Return a proxy in front of the shared server."""
    return start_proxy(redis_server.url)


@pytest.fixture
def spread(crawl: Crawl, client: redis.Redis) -> Spread:
    return Spread(crawl, client)


@pytest.fixture
def no_long_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let idle workers exchange more often than in production."""
    monkeypatch.setattr(pace, "IDLE_LONGEST_S", 0.1)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use many small exchanges and repeat them after milliseconds, for tests that lose many replies."""
    monkeypatch.setattr(outage, "FIRST_S", 0.005)
    monkeypatch.setattr(pace, "LINGER_S", 0.001)
