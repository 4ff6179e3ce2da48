"""Items go to Redis in batches and in order, and wait through outages. A bad item does not affect others."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from scrapy_dq.backend.connection import Connection
from scrapy_dq.items import replay_log
from scrapy_dq.items.replay_log import ItemLog
from scrapy_dq.items.writer import MAX_BYTES, MAX_ITEMS, POLL_S, ItemNotStored, ItemWriter
from scrapy_dq.settings import Config
from support.proxy import RedisProxy
from support.redis_server import RedisServer
from support.waiting import Stopwatch
from worker.engine import until


class Writer(ItemWriter):
    """A writer that records its reports."""

    def __init__(self, url: str, kind: str = "list", grace_s: float = 0.5, timeout_s: float = 0.2) -> None:
        self.is_closing = False
        self.gave_up = 0
        self.counts: Counter[str] = Counter()
        super().__init__(
            Connection(Config("", redis_url=url, redis_params={"socket_timeout": timeout_s}), Path()),
            kind,
            closing=lambda: self.is_closing,
            grace_s=grace_s,
            horizon_s=10,
            given_up=self._note_given_up,
            counted=lambda stored, failed: self.counts.update(stored=stored, failed=failed),
        )

    async def until_tried(self, times: int) -> None:
        """Wait until this many tries of this outage have failed."""
        await until(lambda: self._outage._tries >= times, f"{times} tries have failed")

    def _note_given_up(self) -> str:
        assert self.counts["failed"] == 0, "items failed before the writer announced it"
        self.gave_up += 1
        return "That is all."


@asynccontextmanager
async def writing(*args: Any, **options: Any) -> AsyncIterator[Writer]:
    writer = Writer(*args, **options)
    yield writer
    await writer.close()


def write(writer: Writer, key: str, *items: str) -> list[asyncio.Task[None]]:
    """Give *items* to the writer, in this order."""
    return [asyncio.ensure_future(writer.write(key, item.encode())) for item in items]


@pytest.fixture
def key(crawl_name: str, client: redis.Redis) -> Iterator[str]:
    yield f"{crawl_name}:items"
    client.delete(f"{crawl_name}:items", f"{crawl_name}:items:other")


@pytest.fixture
def stored(client: redis.Redis, key: str) -> Callable[..., list[str]]:
    """Return a function that reads the items under a key, list or stream."""

    def read(name: str = key) -> list[str]:
        if client.type(name) == b"stream":
            return [fields[b"item"].decode() for _, fields in client.xrange(name)]
        return [item.decode() for item in client.lrange(name, 0, -1)]

    return read


Stored = Callable[..., list[str]]


def names(count: int) -> list[str]:
    return [f"item {n}" for n in range(count)]


@pytest.mark.parametrize("kind", ["list", "stream"])
async def test_items_are_stored_in_their_order_in_few_trips(
    proxy: RedisProxy, key: str, stored: Stored, kind: str
) -> None:
    """All waiting items go together, up to a bound; `write` returns when Redis has the item."""
    async with writing(proxy.url, kind) as writer:
        await asyncio.gather(*write(writer, key, *names(MAX_ITEMS * 2 + 1)))
        assert stored() == names(MAX_ITEMS * 2 + 1)
        assert writer.counts == {"stored": MAX_ITEMS * 2 + 1, "failed": 0}
    marks = 4  # the script for the mark (ItemLog) runs once per trip, and once at the end
    assert proxy.commands["RPUSH"] + proxy.commands["EVAL"] == 3 + marks


async def test_a_batch_is_bounded_in_bytes(proxy: RedisProxy, key: str, stored: Stored) -> None:
    """A long command blocks Redis, so large items go one by one. An item larger than a batch goes alone."""
    items = ["x" * (MAX_BYTES // 2 + 1)] * 3 + ["y" * (MAX_BYTES + 1)]
    async with writing(proxy.url) as writer:
        await asyncio.gather(*write(writer, key, *items))
    assert [len(item) for item in stored()] == [len(item) for item in items]
    assert proxy.commands["RPUSH"] == 4


@pytest.mark.parametrize("kind", ["list", "stream"])
@pytest.mark.parametrize("away", ["refuse", "black_hole"])
async def test_an_outage_loses_no_item_and_no_order(
    proxy: RedisProxy, key: str, stored: Stored, caplog: pytest.LogCaptureFixture, away: str, kind: str
) -> None:
    """Items from before, during and after the outage keep their order. The outage logs two lines."""
    caplog.set_level(logging.INFO)
    async with writing(proxy.url, kind) as writer:
        await asyncio.gather(*write(writer, key, "a", "b"))
        getattr(proxy, away)()
        waiting = write(writer, key, "c")
        await writer.until_tried(1)
        waiting += write(writer, key, "d", "e")
        await writer.until_tried(2)
        assert not any(one.done() for one in waiting)
        waiting += write(writer, key, "f")
        await asyncio.sleep(0)
        proxy.pass_through()
        await asyncio.gather(*waiting)
    assert stored() == list("abcdef")
    lines = [record.getMessage() for record in caplog.records if record.name.endswith(".outage")]
    assert len(lines) == 2
    assert "Items wait" in lines[0]
    assert lines[1].endswith("4 items were kept")


@pytest.mark.parametrize("kind", ["list", "stream"])
async def test_a_lost_reply_may_double_a_batch_and_loses_nothing(
    proxy: RedisProxy, key: str, stored: Stored, kind: str
) -> None:
    """Delivery is at least once and in order, so the whole batch may be stored twice."""
    async with writing(proxy.url, kind) as writer:
        await asyncio.gather(*write(writer, key, "a"))
        proxy.cut_next_reply("RPUSH" if kind == "list" else "EVAL")
        await asyncio.gather(*write(writer, key, "b", "c"))
        await asyncio.gather(*write(writer, key, "d"))
    assert stored() == ["a", "b", "c", "b", "c", "d"]


async def test_a_full_redis_is_an_outage(start_redis: Callable[..., RedisServer]) -> None:
    """No item is lost or fails; the writer continues when Redis has memory again."""
    server = start_redis()
    with server.client() as client:
        client.config_set("maxmemory", "1")
        for kind in ("list", "stream"):
            async with writing(server.url, kind) as writer:
                waiting = write(writer, kind, "a", "b")
                await writer.until_tried(2)
                assert not any(one.done() for one in waiting)
                client.config_set("maxmemory", "0")
                await asyncio.gather(*waiting)
            client.config_set("maxmemory", "1")
        assert (client.llen("list"), client.xlen("stream")) == (2, 2)


@pytest.mark.parametrize("kind", ["list", "stream"])
async def test_a_key_of_a_wrong_type_fails_only_its_own_items(
    proxy: RedisProxy,
    client: redis.Redis,
    key: str,
    stored: Stored,
    caplog: pytest.LogCaptureFixture,
    kind: str,
) -> None:
    """One ERROR line names key and setting. Items for other keys and later items for this one are stored."""
    other = key + ":other"
    client.set(key, "mine")
    async with writing(proxy.url, kind) as writer:
        wrong = write(writer, key, "a", "b")
        await asyncio.gather(*write(writer, other, "c"))
        for outcome in await asyncio.gather(*wrong, *write(writer, key, "d"), return_exceptions=True):
            assert isinstance(outcome, ItemNotStored)
            assert "WRONGTYPE" in str(outcome)
        client.delete(key)
        await asyncio.gather(*write(writer, key, "e"))
        assert writer.counts == {"stored": 2, "failed": 3}
    assert (stored(other), stored(key)) == (["c"], ["e"])
    [line] = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert f"{key!r}" in line
    assert "REDIS_ITEMS_KEY" in line


async def test_items_fail_if_the_user_may_not_write_to_their_key(
    redis_server: RedisServer,
    client: redis.Redis,
    key: str,
    crawl_name: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """NOPERM is not an outage, because it would not end. With the rights in the docs, items are stored."""
    grants = ("+@connection", "+@read", "+@write", "+@scripting", "+time", "+info")
    client.execute_command("ACL", "SETUSER", crawl_name, "on", ">pw", f"~{key}", *grants)
    try:
        url = redis_server.url.replace("redis://", f"redis://{crawl_name}:pw@")
        for kind in ("list", "stream"):
            async with writing(url, kind) as writer:
                may_not = write(writer, key + ":other", "a")
                may = write(writer, key, "b")
                await until(lambda may_not=may_not, may=may: may[0].done() and may_not[0].done(), "the ends")
                assert may[0].exception() is None
                with pytest.raises(ItemNotStored, match=r"(?i)perm"):
                    may_not[0].result()
            client.delete(key)
    finally:
        client.execute_command("ACL", "DELUSER", crawl_name)


async def test_closing_in_an_outage_waits_for_the_grace_and_fails_loudly(
    proxy: RedisProxy, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The writer first notifies its owner, which releases the requests before the items fail."""
    async with writing(proxy.url, grace_s=0.5) as writer:
        await asyncio.gather(*write(writer, key, "a"))
        proxy.black_hole()
        waiting = write(writer, key, *names(3))
        await writer.until_tried(3)
        assert not any(one.done() for one in waiting)  # the spider is not closing, so there is no time limit
        writer.is_closing, began, clock = True, time.monotonic(), Stopwatch()
        outcomes = await asyncio.gather(*waiting, return_exceptions=True)
        took_s, quick_s = time.monotonic() - began, clock.seconds
        assert [type(outcome) for outcome in outcomes] == [ItemNotStored] * 3
        assert took_s >= 0.5
        assert quick_s < 0.5 + 3 * POLL_S + 0.3
        assert (writer.gave_up, writer.counts["failed"]) == (1, 3)
        proxy.pass_through()
        await asyncio.gather(*write(writer, key, "b"))  # Redis is back, so items of late pages are stored
    [line] = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "3 items are not stored. That is all." in line


async def test_after_the_grace_an_item_gets_the_time_of_one_trip(
    proxy: RedisProxy, key: str, stored: Stored
) -> None:
    """When a page ends late, Redis may be only slow, not away."""
    proxy.set_delay(POLL_S)
    async with writing(proxy.url, grace_s=0, timeout_s=5) as writer:
        writer.is_closing = True
        await asyncio.gather(*write(writer, key, "a"))
        await asyncio.gather(*write(writer, key, "b"))
        assert writer.gave_up == 0
    assert stored() == ["a", "b"]


async def test_a_large_item_that_redis_never_accepts_fails_alone(proxy: RedisProxy, key: str) -> None:
    """Redis answers other commands, so later items do not wait."""
    async with writing(proxy.url) as writer:
        proxy.set_loss(1.0, spare={"PING"})
        with pytest.raises(ItemNotStored, match="sent 5 times without success"):
            await writer.write(key, b"x" * (MAX_BYTES + 1))
        proxy.set_loss(0)
        await writer.write(key, b"b")


async def test_an_unexpected_error_fails_only_its_batch(
    proxy: RedisProxy, key: str, stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the error ended the writer's coroutine, every page with an item would hang."""
    async with writing(proxy.url) as writer:
        with monkeypatch.context() as patch:
            patch.setattr(writer, "_add", lambda *args: 1 / 0)
            [outcome] = await asyncio.gather(*write(writer, key, "a"), return_exceptions=True)
            assert isinstance(outcome, ItemNotStored)
            patch.setattr(writer, "_next_batch", lambda: writer._waiting and [writer._waiting.popleft()])
            patch.setattr(writer, "_store", lambda: 1 / 0)
            [outcome] = await asyncio.gather(*write(writer, key, "b"), return_exceptions=True)
            assert "ZeroDivisionError" in str(outcome)
        await asyncio.gather(*write(writer, key, "c"))
    assert stored() == ["c"]


@pytest.mark.parametrize("ends", ["by the next item", "by itself", "as it closes"])
async def test_items_that_redis_forgot_are_written_again(
    client: redis.Redis,
    proxy: RedisProxy,
    key: str,
    stored: Stored,
    caplog: pytest.LogCaptureFixture,
    ends: str,
) -> None:
    """Redis was rolled back, and the pages of lost items may be done, so each item is stored again, once."""
    async with writing(proxy.url) as writer:
        await asyncio.gather(*write(writer, key, "a", "b"))
        mark = mark_of(client)
        older = (client.dump(key), client.dump(mark))
        await asyncio.gather(*write(writer, key, "c"))
        await asyncio.gather(*write(writer, key, "d"))
        for name, dump in zip((key, mark), older, strict=True):
            client.restore(name, 0, dump, replace=True)
        if ends == "by the next item":
            await asyncio.gather(*write(writer, key, "e"))
        if ends != "as it closes":
            await until(lambda: "d" in stored(), "the items are written again")
    assert sorted(stored()) == [*"abcd", *("e" if ends == "by the next item" else "")]
    assert stored()[-2:] == ["c", "d"]
    assert messages(caplog) == ["Redis was rolled back: 2 items that it had are written again"]
    assert writer.counts["stored"] == len(stored())
    assert not client.exists(mark), "the mark still exists"


async def test_a_lost_reply_does_not_hide_a_roll_back(
    client: redis.Redis, proxy: RedisProxy, key: str, stored: Stored
) -> None:
    """The first trip after a roll-back is applied, but its answer is lost."""
    async with writing(proxy.url, grace_s=20) as writer:
        await asyncio.gather(*write(writer, key, "a"))
        older = client.dump(mark := mark_of(client))
        await asyncio.gather(*write(writer, key, "b"))
        client.lrem(key, 0, "b")
        client.restore(mark, 0, older, replace=True)
        proxy.set_loss(1.0)
        (last,) = write(writer, key, "c")
        await writer.until_tried(2)
        proxy.set_loss(0)
        await last
    assert set(stored()) == set("abc")


async def test_items_are_stored_without_the_right_to_write_the_mark(
    client: redis.Redis, redis_server: RedisServer, key: str, stored: Stored, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning names the missing rights."""
    client.acl_setuser("items", enabled=True, passwords=["+pw"], keys=[key], commands=["+@all"])
    try:
        url = redis_server.url.replace("redis://", "redis://items:pw@")
        async with writing(url) as writer:
            await asyncio.gather(*write(writer, key, "a"))
            await asyncio.gather(*write(writer, key, "b"))
        assert stored() == ["a", "b"]
        (warning,) = messages(caplog)
        assert "needs EVAL, GET and SET for dq:items-mark:*" in warning
    finally:
        client.acl_deluser("items")


def mark_of(client: redis.Redis) -> bytes:
    (mark,) = client.keys("dq:items-mark:*")
    return bytes(mark)


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_the_log_of_items_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """LOG_LIMIT_BYTES and DQ_ROLLBACK_HORIZON bound the log. Older items are not written again."""
    monkeypatch.setattr(replay_log, "LOG_LIMIT_BYTES", 10)
    pipe: Any = SimpleNamespace(eval=lambda *_: None)
    for horizon_s, kept in ((60.0, [("k", b"4444"), ("k", b"5555")]), (0.0, [])):
        log = ItemLog(horizon_s)
        for n in range(6):
            log.begin(pipe)
            log.add("k", b"%d" % n * 4)
        log.begin(pipe)
        log.found(6)
        log.begin(pipe)
        assert log.found(0) == kept
