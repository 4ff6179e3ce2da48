"""`scrapy dq peek`: it tells what would be leased next, in that order, and leases nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import msgpack
import pytest
from msgpack import ExtType
from scrapy import Request, Spider

from scrapy_dq.codec import Codec
from scrapy_dq.codec.formats import ITEM, PAYLOAD, REQUEST, SERIALIZED
from scrapy_dq.codec.shown import shown
from scrapy_dq.frontier.admin.backlog import upcoming
from scrapy_dq.frontier.model import Order
from support.live_frontier import SLOW, HandWorker, LiveFrontier, limited, numbers, put, release
from support.redis_server import RedisServer
from support.stored_requests import stored


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("partitions", [1, 3, 30])
def test_what_is_shown_is_what_is_leased_next(
    server: RedisServer, crawl_name: str, order: Order, partitions: int
) -> None:
    """In the same order: entries of several ranks, those that came back among them."""
    live = LiveFrontier(server.url, crawl_name, order)
    worker = HandWorker(live, "worker")
    worker.exchange(
        *[put(n, n % 3, start=n % 5 == 0, partition=b"p%d" % (n * n % partitions)) for n in range(60)]
    )
    worker.exchange(want=12)
    worker.exchange(*[release(int(entry)) for entry in sorted(worker.held)[::2]])
    other = HandWorker(live, "other")
    before = live.dump()
    for count in (1, 7, 54, 100):
        assert len({entry.entry_id for entry in upcoming(live.redis, live.crawl, count)}) == min(count, 54)
    assert live.dump() == before
    told = [int(entry.entry_id) for entry in upcoming(live.redis, live.crawl, 20)]
    leased = numbers(other.exchange(want=20))
    assert told == leased
    live.close()


def test_what_waits_for_something_comes_after_what_may_be_leased(
    dq: Any, live: LiveFrontier, server: RedisServer
) -> None:
    """With what it waits for."""
    worker = HandWorker(live, "worker", limited(a=(0.0, 1), b=(100.0, 0)))
    at = {name: stored(f"http://{name}.example/") for name in "abcd"}
    worker.exchange(
        put(1, partition=b"a", payload=at["a"]), put(2, partition=b"a", payload=at["a"]),
        put(3, partition=b"b", payload=at["b"]), put(4, partition=b"b", payload=at["b"]),
        put(5, partition=b"d", payload=at["d"], due_in=7259), want=2,
    )  # fmt: skip
    worker.exchange(put(6, 9, partition=b"c", payload=at["c"]))
    found = dq.listed("peek")
    assert [entry["where"] for entry in found] == ["rotation", "saturated", "saturated", "delayed"]
    assert [entry["request"]["url"] for entry in found][::3] == ["http://c.example/", "http://d.example/"]
    assert found[1]["wait_s"] is None
    assert 7000 < found[3]["wait_s"] <= 7259
    text = dq.text("peek")
    for part in ("for a lease or budget", "2 h 0 min", "GET parse_page", "http://c.example/"):
        assert part in text
    (first,) = dq.listed("peek", "-n", "1")
    assert first == found[0]


def test_a_partition_that_rests_is_reported_with_its_time(dq: Any, live: LiveFrontier) -> None:
    """Its delay is not over."""
    worker = HandWorker(live, "worker", SLOW)
    worker.exchange(*[put(n, partition=b"a", payload=stored("http://a/")) for n in range(3)], want=1)
    worker.exchange(release(int(next(iter(worker.held)))))
    worker.exchange()
    (first, *_) = dq.listed("peek")
    assert first["where"] == "resting"
    assert 90 < first["wait_s"] <= 100


def test_days_are_told_as_such(dq: Any, worker: HandWorker) -> None:
    worker.exchange(put(1, payload=stored("http://a/"), due_in=200_030))
    assert "2 d 7 h" in dq.text("peek")


def test_nothing_waits(dq: Any, worker: HandWorker) -> None:
    """Which is not a failure."""
    assert dq.text("peek") == "Nothing waits.\n"
    assert dq.listed("peek") == []
    assert dq.status == 0


def test_large_entries_are_read_up_to_a_bound(live: LiveFrontier, worker: HandWorker) -> None:
    """Of 12 MB no more than 4 MiB and one entry are shown, and not much more is read."""
    for n in range(0, 20, 2):
        worker.exchange(
            put(n, payload=b"x" * 600_000), put(n + 1, payload=b"x" * 600_000, partition=b"p%d" % n)
        )
    live.redis.config_resetstat()
    assert len(upcoming(live.redis, live.crawl, 20)) == 7
    assert live.redis.info("commandstats")["cmdstat_lindex"]["calls"] <= 16


def test_no_more_is_read_of_a_partition_than_is_reported(live: LiveFrontier, worker: HandWorker) -> None:
    """However many are asked for."""
    for n in range(0, 20, 2):
        worker.exchange(*[put(n + i, payload=b"x" * 600_000) for i in range(2)])
    live.redis.config_resetstat()
    assert len(upcoming(live.redis, live.crawl, 1000)) == 7
    assert live.redis.info("commandstats")["cmdstat_lindex"]["calls"] <= 7


def commands_of(live: LiveFrontier, count: int) -> tuple[int, int]:
    """Return how many entries are shown of *count* that are asked for, and how many commands that takes."""
    live.redis.config_resetstat()
    shown_ = len(upcoming(live.redis, live.crawl, count))
    return shown_, sum(of["calls"] for of in live.redis.info("commandstats").values())


def test_each_entry_is_read_once_however_many_are_asked_for(live: LiveFrontier, worker: HandWorker) -> None:
    """One long partition among many short ones takes as many rounds as it has entries."""
    worker.exchange(*[put(n, partition=b"long") for n in range(300)])
    worker.exchange(*[put(300 + n, partition=b"short %d" % n) for n in range(199)])
    shown_, commands = commands_of(live, 1000)
    assert shown_ == 499
    assert commands < 499 * 10
    live.redis.delete(live.key("backlog:0:long"))
    assert commands_of(live, 300)[0] == 199


def test_names_without_entries_cost_little(live: LiveFrontier, worker: HandWorker) -> None:
    """Of partitions and of lists: somebody else wrote them, or the lists were deleted."""
    worker.exchange(put(1, partition=b"a"))
    live.redis.zadd(live.key("rotation"), {b"p%d" % n: -n for n in range(999)})
    shown_, commands = commands_of(live, 1000)
    assert (shown_, commands < 999 * 10) == (1, True)
    for p in range(20):
        live.redis.zadd(live.key("more_bands"), {b"p%d\0%08d" % (p, n): 0 for n in range(1000)})
    shown_, commands = commands_of(live, 1000)
    assert (shown_, commands < 999 * 10) == (1, True)


def test_no_more_is_read_ahead_than_a_few_times_what_is_shown(live: LiveFrontier, worker: HandWorker) -> None:
    """In each partition a large entry waits behind a small one that came back."""
    for n in range(40):
        worker.exchange(put(n, 9, partition=b"p%d" % n), want=1)
    for n in range(40):
        worker.exchange(put(100 + n, partition=b"p%d" % n, payload=b"x" * 1_000_000))
    worker.exchange(*[release(int(entry)) for entry in sorted(worker.held)])
    live.redis.config_resetstat()
    assert upcoming(live.redis, live.crawl, 40)
    assert live.redis.info("commandstats")["cmdstat_lindex"]["calls"] <= 18


def test_what_came_back_or_is_delayed_keeps_to_the_bound(live: LiveFrontier, worker: HandWorker) -> None:
    """Together with what is in lists, and alone."""
    large = b"x" * 600_000
    for n in range(0, 20, 2):
        worker.exchange(put(n, payload=large), put(n + 1, payload=large, due_in=900), want=1)
    worker.exchange(*[release(int(entry)) for entry in list(worker.held)[:5]])
    worker.exchange(*[release(int(entry)) for entry in worker.held])
    worker.exchange(*[put(50 + n, payload=large) for n in range(3)])
    live.redis.config_resetstat()
    assert len(upcoming(live.redis, live.crawl, 1000)) == 7
    assert live.redis.info("commandstats")["cmdstat_zrangebylex"]["calls"] <= 12
    for name in ("rotation", "suspects", "bands"):
        live.redis.rename(live.key(name), live.key(name + "-away")) if live.redis.exists(
            live.key(name)
        ) else None
    live.redis.config_resetstat()
    assert [entry.where for entry in upcoming(live.redis, live.crawl, 1000)] == ["delayed"] * 7
    assert live.redis.info("commandstats")["cmdstat_zrange"]["calls"] <= 11
    for name in ("rotation-away", "suspects-away", "bands-away"):
        live.redis.delete(live.key(name))


def test_untrusted_bytes_are_reported_and_do_nothing(dq: Any, worker: HandWorker) -> None:
    """What cannot be read is one of the entries; control characters do not reach the terminal."""
    odd = bytes((REQUEST,)) + msgpack.packb({1: "http://x/\x1b[31m\nforged", "kind": "other"})
    worker.exchange(*[put(n, payload=payload) for n, payload in enumerate((b"", b"\xffjunk", odd))])
    text = dq.text("peek")
    assert text.count("(unreadable: ") == 2
    assert "http://x/?[31m?forged" in text
    assert {entry["request"]["kind"] for entry in dq.listed("peek")} == {"unreadable", "request"}


def test_what_is_no_request_is_told_by_its_kind(dq: Any, worker: HandWorker) -> None:
    """A start URL that was fed, an item of a Queue, and what a serializer has written."""
    item = msgpack.packb({"a": 1})
    payloads = (bytes((PAYLOAD,)) + b"http://x/", bytes((ITEM,)) + item, bytes((SERIALIZED,)) + b"{}")
    worker.exchange(*[put(n, payload=payload) for n, payload in enumerate(payloads)])
    assert [entry["request"] for entry in reversed(dq.listed("peek"))] == [
        {"kind": "fed", "payload": "http://x/"},
        {"kind": "item", "item": {"a": 1}},
        {"kind": "serialized", "bytes": 2},
    ]
    text = dq.text("peek")
    for part in ("(fed: http://x/)", "(item: {'a': 1})", "(serialized: 2 bytes)"):
        assert part in text


def entry_of(meta: Any) -> bytes:
    return bytes((REQUEST,)) + msgpack.packb({1: "http://x/", 8: meta})


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


SHOWN: dict[str, tuple[Callable[[], Any], Any]] = {
    "instance": (
        lambda: ExtType(5, msgpack.packb(["no.such:Class", {"a": 1}])),
        {"class": "no.such:Class", "state": {"a": 1}},
    ),
    "instances in a set": (
        lambda: ExtType(3, msgpack.packb([ExtType(5, msgpack.packb(["m:C", {"a": [1]}]))])),
        [{"class": "m:C", "state": {"a": [1]}}],
    ),
    "bytes": (lambda: b"\xff", {"base64": "/w=="}),
    "text in bytes": (lambda: b"text", "text"),
    "odd keys": (lambda: {1: 2, b"\xff": 3}, {"1": 2, "{'base64': '/w=='}": 3}),
    "infinite": (lambda: float("inf"), "inf"),
    "tuple": (lambda: ExtType(2, msgpack.packb([1, 2])), [1, 2]),
    "surrogate": (lambda: "a", "a"),
    "wide": (lambda: ExtType(1, b"\x7f" * 1_500), "an integer of 11,999 bits"),
}


@pytest.mark.parametrize("name", SHOWN)
def test_what_json_has_not_is_shown_in_its_place(name: str) -> None:
    """Instances by the names of their classes, which are not looked up."""
    make, expected = SHOWN[name]
    assert shown(entry_of({"x": make()}), 10_000)["meta"] == {"x": expected}


def test_no_login_is_shown() -> None:
    """Scrapy's middlewares write it into headers and meta; a retry of the request is stored with it."""
    logins = {"Authorization": "Basic s3cret", "Proxy-Authorization": "s3cret", "Cookie": "id=s3cret"}
    proxy = "http://me:s3cret@proxy:8080"
    meta = {"http_pass": "s3cret", "ftp_password": "s3cret", "proxy": proxy, "_auth_proxy": proxy, "other": 1}
    headers = {**logins, "X-Other": "seen"}
    found = shown(stored("http://x/", headers=headers, cookies={"id": "s3cret"}, meta=meta), 10_000)
    assert "s3cret" not in str(found)
    assert found["headers"]["X-Other"] == ["seen"]
    assert found["meta"] | {"other": 1, "proxy": "http://...@proxy:8080"} == found["meta"]


PROXIES = {
    "user:s3cret@10.0.0.1:3128": "...@10.0.0.1:3128",
    "http://user:s3cret@s3cret@h": "http://...@h",
    "http://user:s3cret/s3cret@h": "http://...@h",
    "SOCKS5://s3cret\n@h": "SOCKS5://...@h",
    "http://h:3128": "http://h:3128",
}


@pytest.mark.parametrize("proxy", PROXIES)
@pytest.mark.parametrize("name", ["proxy", "_auth_proxy"])
def test_no_login_of_a_proxy_is_shown(name: str, proxy: str) -> None:
    """Whether it has a scheme, and whether its password is escaped."""
    assert shown(entry_of({name: proxy}), 10_000)["meta"] == {name: PROXIES[proxy]}


def test_no_login_is_shown_that_is_further_down() -> None:
    """Of a browser's context, in a header that a page sent, in a URL; a path may have an @."""
    browser = {
        "proxy": {"server": "http://u:s3cret@h", "username": "u", "password": "s3cret"},
        "http_credentials": {"password": "s3cret"},
        "extra_http_headers": {"authorization": "s3cret"},
    }
    meta = {"playwright_context_kwargs": browser, "redirect_urls": ["http://u:s3cret@h/", "http://h/@seen"]}
    url = "https://u:s3cret@h/p?q=@seen"
    request = {
        "headers": {"Cookie2": "s3cret", "Set-Cookie": "s3cret", "Referer": url},
        "meta": meta,
        "cb_kwargs": {"cookies": {"id": "s3cret"}},
    }
    found = shown(stored(url, **request), 10_000)
    assert "s3cret" not in str(found)
    assert found["url"] == "https://...@h/p?q=@seen"
    assert found["meta"]["redirect_urls"] == ["http://...@h/", "http://h/@seen"]
    fed = shown(bytes((PAYLOAD,)) + url.encode(), 10_000)
    assert fed == {"kind": "fed", "payload": found["url"]}
    item = shown(bytes((ITEM,)) + msgpack.packb({"password": "mine"}), 10_000)
    assert item["item"] == {"password": "mine"}


def test_a_json_serializer_shows_no_login_either(dq: Any, worker: HandWorker) -> None:
    written = {
        "url": "http://u:s3cret@x/", "method": "POST", "headers": {"Authorization": ["s3cret"]},
        "meta": {"proxy": "u:s3cret@h"}, "cookies": {"id": "s3cret"}, "callback": "parse_page", "priority": 0,
        "kind": "request",
    }  # fmt: skip
    worker.exchange(put(1, payload=bytes((SERIALIZED,)) + json.dumps(written).encode()))
    (found,) = dq.listed("peek")
    assert "s3cret" not in str(found)
    assert (found["request"]["kind"], found["request"]["method"]) == ("serialized", "POST")
    text = dq.text("peek")
    assert "POST parse_page  http://...@x/" in text
    assert "s3cret" not in text


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x01",
        b"\x01\xc1",
        b"\x01\x90",
        entry_of(nested(500)),
        entry_of(ExtType(5, b"\x01")),
        entry_of("x" * 10_000),
    ],
    ids=["empty", "nothing", "no msgpack", "no map", "deep", "no instance", "large"],
)
def test_what_cannot_be_read_is_shown_with_its_reason(payload: bytes) -> None:
    """And never raised."""
    found = shown(payload, 10_000)
    assert found["kind"] == "unreadable"
    assert found["bytes"] == len(payload)


def test_other_values_are_shown_as_python_writes_them() -> None:
    stored = Codec(Spider("s")).encode(Request("http://x/", meta={"x": Decimal("1.50")}))
    assert shown(stored, 1000)["meta"] == {"x": "1.50"}


def test_what_a_serializer_has_written_is_not_read() -> None:
    """It may be a pickle."""
    assert shown(bytes((SERIALIZED,)) + b"cos\nsystem\n", 1000) == {"kind": "serialized", "bytes": 11}
