"""The types of items, and entries that other programs stored."""

from __future__ import annotations

import datetime
import logging
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import msgpack
import pytest
from scrapy import FormRequest, Request, Spider

from scrapy_dq import Queue
from scrapy_dq.codec import CannotDecode, Codec, Items
from scrapy_dq.frontier.model import FrontierRefused, Order
from scrapy_dq.settings import ConfigError
from support.live_frontier import HandWorker, LiveFrontier, put
from support.project import Event
from support.redis_server import RedisServer

Make = Callable[..., Queue]
LIMIT = 1024


class Thing:
    pass


class ItsSpider(Spider):
    name = "its"

    def parse_page(self, response: Any) -> None:
        pass


@pytest.fixture
def items() -> Items:
    return Items((), LIMIT)


@pytest.mark.parametrize(
    "item",
    [
        None, True, 0, -(2**70), 1.5, "", "ä\ud800", b"\x00", [1, [2]], {"a": {1: 2}}, (1, (2,)), {1, 2},
        frozenset({1}), bytearray(b"x"), datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc),
        datetime.date(2026, 1, 2), datetime.timedelta(1), Decimal("1.10"), UUID(int=7), Path("a/b"),
    ],
    ids=repr,
)  # fmt: skip
def test_plain_values_come_back_as_they_were(items: Items, item: Any) -> None:
    """Values come back as copies that are equal and have the same type."""
    again = items.decode(items.encode(item))
    assert (type(again), again) == (type(item), item)


@pytest.mark.parametrize(
    "item", [Thing(), lambda: 1, Thing, [Thing()], "x" * LIMIT], ids=lambda v: str(v)[:20]
)
def test_an_item_that_cannot_be_stored_is_refused_at_once(make: Make, item: Any) -> None:
    """put raises ValueError with the reason, and nothing is stored."""
    q = make(settings={"DQ_MAX_ENTRY_BYTES": LIMIT})
    with pytest.raises(ValueError, match="cannot be stored"):
        q.put(item)
    with pytest.raises(ValueError, match="cannot be stored"):
        q.put_all([item])
    assert q.qsize() == 0


def test_a_request_stored_in_few_bytes_is_read_completely(items: Items) -> None:
    """The codec of requests shortens `depth` and a Referer. A program gets both in full."""
    spider = Spider("spider")
    headers = {"Referer": "http://a.example/shop/"}
    request = Request("http://a.example/shop/1", spider.parse, meta={"depth": 3}, headers=headers)
    assert items.decode(Codec(spider).encode(request)) == {
        "url": request.url,
        "callback": "parse",
        "meta": {"depth": 3},
        "headers": {b"Referer": [b"http://a.example/shop/"]},
    }


def test_an_item_of_exactly_the_largest_size_is_stored(items: Items) -> None:
    """An item as large as the limit is stored and read. It is not read if the limit is one byte lower."""
    largest = "x" * (LIMIT - 4)
    assert items.decode(items.encode(largest)) == largest
    assert len(items.encode(largest)) == LIMIT
    with pytest.raises(CannotDecode, match="DQ_MAX_ENTRY_BYTES"):
        Items((), LIMIT - 1024 + 1023).decode(items.encode(largest))


def test_a_request_of_a_spider_is_a_dict_of_its_attributes(items: Items) -> None:
    """A program reads URL, method and the other attributes by name, and callbacks as names."""
    spider = ItsSpider()
    codec = Codec(spider)
    request = Request(
        "http://localhost/a", spider.parse_page, method="PUT", headers={"A": "b"}, body=b"c",
        meta={"d": (1,)}, priority=3, dont_filter=True,
    )  # fmt: skip
    assert items.decode(codec.encode(request)) == {
        "url": "http://localhost/a",
        "callback": "parse_page",
        "method": "PUT",
        "headers": {b"A": [b"b"]},
        "body": b"c",
        "meta": {"d": (1,)},
        "priority": 3,
        "dont_filter": True,
    }
    form = items.decode(codec.encode(FormRequest("http://localhost/", formdata={"a": "b"})))
    assert (form["method"], form["body"]) == ("POST", b"a=b")


@pytest.mark.parametrize(
    "payload",
    [
        b"\x03", b"\x03\xc1", b"\x03\x91" * 300, b"\x03\xc7\x01\x7fa", b"\x01\x90", b"\x01\x81\x63\x01",
        b"\x03" + msgpack.packb(msgpack.ExtType(5, msgpack.packb(["os:system", {}]))),
    ],
)  # fmt: skip
def test_untrusted_values_are_refused_with_a_message(items: Items, payload: bytes) -> None:
    """All these bytes raise CannotDecode. None of them creates an object of a class that is not allowed."""
    with pytest.raises(CannotDecode):
        items.decode(payload)


def test_an_unreadable_item_becomes_a_dead_letter(
    make: Make, redis_server: RedisServer, crawl_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """get sets the item aside with its reason and takes the next one; get_nowait does not raise Empty."""
    live = LiveFrontier(redis_server.url, crawl_name, Order.FIFO)
    worker = HandWorker(live, "another")
    worker.exchange(put(1, payload=b"\x09?"), put(2, payload=b""), put(3, payload=b"\x03\x07"))
    q = make()
    with caplog.at_level(logging.ERROR):
        assert q.get_nowait() == 7
    assert sum("its format is" in text for text in caplog.messages) == 2
    q.task_done()
    q.close()
    assert worker.exchange().census.dead == 2
    live.close()


EVENT = {"DQ_TYPES": ["support.project.Event"]}


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"\x04{}", "SCHEDULER_SERIALIZER"),
        (Items(EVENT["DQ_TYPES"], LIMIT).encode(Event("start", 1, "/")), "support.project.Event"),
    ],
    ids=["serialized", "class"],
)
def test_an_entry_that_only_a_spider_can_read_is_given_back(
    make: Make, redis_server: RedisServer, crawl_name: str, payload: bytes, reason: str
) -> None:
    """get() names the missing setting. The entry is not buried, and the spider's worker gets it."""
    live = LiveFrontier(redis_server.url, crawl_name, Order.FIFO)
    worker = HandWorker(live, "another")
    worker.exchange(put(1, payload=payload))
    q = make()
    for _ in range(2):
        with pytest.raises(FrontierRefused, match=reason):
            q.get(timeout=20)
    q.close()
    receipt = worker.exchange(want=1)
    assert [lease.payload for lease in receipt.leases] == [payload]
    assert receipt.census.dead == 0
    live.close()


def test_objects_of_a_listed_class_come_back_as_themselves(make: Make) -> None:
    """An object of a class in DQ_TYPES comes back equal and with its class. Otherwise put() refuses it."""
    event = Event("start", 1, "/")
    with pytest.raises(ValueError, match="DQ_TYPES"):
        make().put(event)
    with pytest.raises(ConfigError, match=r"DQ_TYPES: 'no\.Such' cannot be imported"):
        make(settings={"DQ_TYPES": ["no.Such"]})
    q = make(settings={"DQ_TYPES": ["support.project.Event"]})
    q.put(event)
    got = q.get()
    assert (type(got), got) == (Event, event)


@pytest.mark.parametrize("given", [{"url": "redi://here"}, {"settings": {"REDIS_URL": "redi://here"}}])
def test_a_url_of_another_kind_is_refused_at_once(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"REDIS_URL \(not shown here\): expected redis://"):
        Queue("any", **given)
