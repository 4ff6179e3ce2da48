"""Crawls use only their own keys, even if a name looks like Redis syntax, a glob, a URL or a log format."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from urllib.parse import quote, unquote

import pytest
import redis

from scrapy_dq.frontier import keys, peek
from scrapy_dq.frontier.model import Order
from support.given import Figures, MakeCrawl
from support.live_frontier import HandWorker, LiveFrontier, ack, put
from support.redis_server import RedisServer
from support.stored import dump

ALPHABET = "}{*:% ?[]\\^!/#&=+.~-_\"'$\0\t\n\r\x7faA0é\u0301ß漢\u200b\u202e😀"
MAX_LENGTH = 300
SUFFIXES = ("meta", "members", "seen", "backlog:0:", "worker:worker")


def names(count: int, rng: random.Random) -> list[str]:
    """Return *count* different names. Many of them differ only slightly from another name."""
    found = dict.fromkeys(
        [*ALPHABET, "{}", "}{", "a}:meta", "%7D", "%257D", "*" * MAX_LENGTH, "漢" * MAX_LENGTH]
    )
    while len(found) < count:
        length = MAX_LENGTH if rng.random() < 0.02 else rng.randint(1, 8)
        name = "".join(rng.choices(ALPHABET, k=length))
        found.update(dict.fromkeys([name, *neighbours(name)[:2]]))
    return list(found)[:count]


def neighbours(name: str) -> list[str]:
    """Return other names. A wrong encoding or pattern would confuse them with *name*."""
    alike = [name + ":", quote(name, safe=""), unquote(name), name + "*", name[:-1], name.swapcase()]
    alike += ["*", "?"]
    return [other[:MAX_LENGTH] for other in dict.fromkeys(alike) if other and other[:MAX_LENGTH] != name]


def canaries(name: str) -> Iterator[str]:
    """Yield keys that do not belong to *name*: keys of other crawls and programs, and badly quoted keys."""
    for other in neighbours(name):
        yield from (keys.prefix(other) + suffix for suffix in SUFFIXES)
    for suffix in SUFFIXES:
        for key in (f"dq:{{{name}}}:{suffix}", f"dq:{name}:{suffix}", f"{name}:{suffix}", suffix):
            if not key.startswith(keys.prefix(name)):
                yield key


def everything(client: redis.Redis) -> dict[bytes, bytes | None]:
    """Return every key of the database, with its value as DUMP returns it."""
    found = client.keys("*")
    pipe = client.pipeline(transaction=False)
    for key in found:
        pipe.dump(key)
    return dict(zip(found, pipe.execute(), strict=True))


def live_through(live: LiveFrontier) -> Iterator[str]:
    """Let workers join, exchange, die, leave and begin again. Yield each step's name when it is over."""
    worker, other = HandWorker(live, "worker"), HandWorker(live, "other")
    yield "join"
    worker.exchange(*(put(n, n) for n in range(4)), want=2)
    other.exchange(want=2)
    yield "exchange"
    other.reclaim("worker")
    yield "reclaim"
    other.exchange(*(ack(int(held)) for held in sorted(other.held)))
    yield "ack"
    other.leave()
    yield "leave"
    assert live.call("flush", [])[0] == ""
    yield "flush"


@pytest.mark.parametrize("count", [60, pytest.param(5_000, marks=pytest.mark.soak)])
def test_a_crawl_touches_no_key_of_another_name(
    count: int, fault_redis: RedisServer, figures: Figures
) -> None:
    """No two names share a key, and no step of a crawl changes the keys of another name."""
    chosen = names(count, random.Random(count))
    prefixes = sorted(keys.prefix(name) for name in chosen)
    # If a prefix began with another prefix, it would also begin with its predecessor in this order.
    assert not [(one, other) for one, other in pairwise(prefixes) if other.startswith(one)]

    most = 0
    with fault_redis.client() as client:
        for name in chosen:
            client.flushdb()
            client.mset(dict.fromkeys(canaries(name), b"canary"))
            before, own = everything(client), keys.prefix(name).encode()
            assert not any(key.startswith(own) for key in before)
            with closing(LiveFrontier(fault_redis.url, name, Order.PRIORITY_LIFO)) as live:
                for step in live_through(live):
                    now = everything(client)
                    assert {k: v for k, v in now.items() if not k.startswith(own)} == before, (name, step)
                    assert (now == before) is (step == "flush"), (name, step)
                    most = max(most, len(now) - len(before))
    figures(names=count, longest=max(map(len, chosen)), canaries=len(before), most_keys=most)


NASTY = (
    "}", "%7D", "*", "{}: *%é\n漢\\", "a", "a:", "a}:meta", " ", "?[a-z]", "'; FLUSHALL", "x" * MAX_LENGTH,
    "\u202e😀" * 150,
)  # fmt: skip


@pytest.mark.parametrize("chosen", [NASTY[:4], pytest.param(NASTY, marks=pytest.mark.soak)], ids=len)
def test_crawls_with_unusual_names_run_side_by_side(chosen: Sequence[str], fault_crawl: MakeCrawl) -> None:
    """Each worker crawls all pages of its crawl once. A flush on start changes no other crawl."""
    crawl = fault_crawl(site={"pages": 40, "latency_s": 0.02})
    every_page = dict.fromkeys(crawl.site.paths, 1)
    for first in range(0, len(chosen), 4):
        batch = chosen[first : first + 4]
        workers = [crawl.start(settings={"DQ_CRAWL": name.replace("%", "%%")})[0] for name in batch]
        crawl.end()
        for name, worker in zip(batch, workers, strict=True):
            assert worker.close_reason == "finished"
            assert crawl.project.count(pids=[worker.pid]) == every_page, name
            assert f"] INFO: Crawl {name!r} at " in worker.text
    crawl.note(names=len(chosen), pages=crawl.done.total())

    with crawl.redis.client() as client:
        seen = {name: peek(client, name) for name in chosen}
        assert all(
            (o.phase, o.run, o.census.done, o.members) == ("finished", 0, 40, []) for o in seen.values()
        )
        assert len({o.epoch for o in seen.values()}) == len(chosen)
        stored = {name: dump(client, name) for name in chosen}
        assert sum(map(len, stored.values())) == client.dbsize(), "some keys belong to none of the crawls"
        others = {name: stored[name] for name in chosen[1:]}
        afresh = {"DQ_CRAWL": chosen[0].replace("%", "%%"), "SCHEDULER_FLUSH_ON_START": "1"}
        last = crawl.project.run_worker(settings=afresh)
        assert crawl.project.count(pids=[last.pid]) == every_page
        assert peek(client, chosen[0]).epoch != seen[chosen[0]].epoch
        assert {name: dump(client, name) for name in chosen[1:]} == others


@pytest.mark.parametrize("setting", ["DQ_CRAWL", "DQ_RUN_NAME"])
def test_a_name_that_is_not_text_is_refused(setting: str, fault_crawl: MakeCrawl) -> None:
    """An argument that is not UTF-8 stops the crawl before it uses Redis. The error names the setting."""
    crawl = fault_crawl(site={"pages": 1})
    worker = crawl.project.run_worker(
        settings={setting: "%(category)s"}, args={"category": b"b\xff".decode(errors="surrogateescape")}
    )
    assert not crawl.done
    assert f"scrapy_dq cannot start: {setting} = " in worker.text
    with crawl.redis.client() as client:
        assert client.dbsize() == 0


def test_an_argument_that_is_not_text_is_accepted(fault_crawl: MakeCrawl) -> None:
    """Scrapy accepts any bytes in `-a`, and so does a crawl whose name does not contain them."""
    crawl = fault_crawl(site={"pages": 1})
    worker = crawl.project.run_worker(args={"category": b"b\xff".decode(errors="surrogateescape")})
    assert worker.close_reason == "finished"
    assert set(crawl.done) == crawl.site.paths
