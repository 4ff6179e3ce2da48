"""A crawl that is exported half done and imported with other settings ends complete, whatever the two are."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from hashlib import sha1
from itertools import product

import pytest

from scrapy_dq.exports.lines import header_line, header_of, part_line, part_of
from scrapy_dq.frontier.archive.dump import Skipped, dump
from scrapy_dq.frontier.archive.header import header_of as stored_header
from scrapy_dq.frontier.archive.load import Target, load
from scrapy_dq.frontier.archive.parts import Part
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.model import Admission, Order, Seen
from support.live_frontier import ack, put
from support.redis_server import RedisServer
from support.sharded_crawl import HOSTS, Crawl

PAGES = 60
KINDS = [pair for pair in product(Seen, Seen) if pair[0] is pair[1] or pair[0] is not Seen.COMPACT]
pytestmark = pytest.mark.usefixtures("_quick_disks")


@pytest.fixture
def crawl_of(redis_server: RedisServer, crawl_name: str) -> Callable[[Order, Seen, str], Crawl]:
    return lambda order, seen, name: Crawl(redis_server.url, f"{crawl_name}-{name}", seen, True, order)


def links(page: int) -> Iterator[int]:
    """Yield what a page of a tree links to, and some that are known."""
    yield from (each for each in (2 * page + 1, 2 * page + 2, page // 2, 7) if each < PAGES)


def hand_in(crawl: Crawl, page: int) -> None:
    host = HOSTS[page % 5]
    token = sha1(b"%d" % page).digest()
    new = put(
        page, page % 3, admission=Admission.SEEN, token=token, payload=b"%d" % (page % 3), partition=host
    )
    crawl.exchange(crawl.worker_of(host, token), new)


def process(crawl: Crawl, most: int) -> Counter[int]:
    """Process some pages of each shard, again and again, until there are none, or *most* were done."""
    done = Counter[int]()
    while True:
        before = done.total()
        for worker in crawl.workers:
            for entry_id in crawl.exchange(worker, want=3):
                page = int(entry_id)
                for link in links(page):
                    hand_in(crawl, link)
                crawl.exchange(worker, ack(page))
                done[page] += 1
        if done.total() == before or done.total() >= most:
            return done


def travel(old: Crawl, before: int, new: Crawl, after: int) -> None:
    """Move a crawl by the lines of a file."""

    async def read(frontiers: list[Frontier]) -> list[str]:
        header = await stored_header(frontiers[:before])
        parts = dump(frontiers[:before], header, Skipped())
        return [header_line(header, "1"), *[part_line(part, header.seen) async for part in parts]]

    async def store(frontiers: list[Frontier]) -> None:
        header, _ = header_of(json.loads(lines[0]))

        async def parts() -> AsyncIterator[Part]:
            for line in lines[1:]:
                yield part_of(json.loads(line), header)

        target = Target(new.order, new.seen)
        await load(frontiers[:after], header, parts(), target, priority_of=int)

    lines = old.with_frontiers(read)
    new.with_frontiers(store)


@pytest.mark.soak
@pytest.mark.parametrize("order", list(Order))
@pytest.mark.parametrize("as_order", list(Order))
def test_a_crawl_that_travels_ends_complete(
    crawl_of: Callable[[Order, Seen, str], Crawl], order: Order, as_order: Order
) -> None:
    """Of each kind of seen to each that it can become, from 1 and 4 shards to 1 and 4."""
    for n, ((seen, as_seen), before, after) in enumerate(product(KINDS, (1, 4), (1, 4))):
        with (
            closing(crawl_of(order, seen, f"old{n}")) as old,
            closing(crawl_of(as_order, as_seen, f"new{n}")) as new,
        ):
            old.join(before)
            hand_in(old, 0)
            half = process(old, PAGES // 2)
            old.leave()
            assert PAGES // 2 <= half.total() < PAGES
            travel(old, before, new, after)
            new.join(after)
            done = half + process(new, 2 * PAGES)
            assert done == Counter(range(PAGES)), (seen, as_seen, before, after)
