"""A page kills each worker that crawls it. This page becomes a dead letter, and no other page is charged."""

from __future__ import annotations

import re
import signal
import time
from collections import Counter

import msgpack
import pytest
import redis

from scrapy_dq.frontier.keys import prefix
from support.fault_crawl import FaultCrawl
from support.given import MakeCrawl
from support.outages import lines
from support.tree_spider import spider_of

MAX_DEATHS = 5
PAGE = re.compile(rb"/p/(\d+)")

POISON = spider_of("""
    def parse(self, response):
        if page_path(response) == self.settings["POISON"]:
            os.kill(os.getpid(), signal.SIGKILL)
        yield from super().parse(response)
""")


def charges(client: redis.Redis, crawl: str) -> dict[str, int]:
    """Return the attempts that are charged to each page in the quarantine or in flight."""
    name = prefix(crawl)
    pipe = client.pipeline(transaction=True)
    pipe.zrange(name + "quarantine", 0, -1)
    for worker_id in client.smembers(name + "members"):
        pipe.hvals(f"{name}in-flight:{worker_id.decode()}")
    quarantine, *in_flight = pipe.execute()
    # A member of the quarantine begins with the partition, a zero byte, a place of 16 bytes and an id of 12
    # bytes. A lease begins with a rank of 8 bytes. In both, the next byte has the attempts, plus 128 for a
    # suspect. Then the payload follows.
    waiting = (member.partition(b"\0")[2] for member in quarantine)
    entries = [member[28:] for member in waiting] + [lease[8:] for held in in_flight for lease in held]
    found = ((PAGE.search(entry), entry[0] % 128) for entry in entries)
    return {page[0].decode(): attempts for page, attempts in found if page and attempts}


class Supervisor:
    """Keeps two workers running until the crawl is finished, and records which pages are charged."""

    def __init__(self, crawl: FaultCrawl) -> None:
        self.deaths = 0
        self.charged: Counter[str] = Counter()
        """The largest number of attempts seen for each page."""
        self._crawl = crawl

    def run(self, timeout_s: float) -> None:
        """Start workers, and replace each dead worker. Raise TimeoutError after *timeout_s*."""
        deadline = time.monotonic() + timeout_s
        watched = self._crawl.start(2)
        with self._crawl.redis.client() as client:
            while watched:
                self.charged |= Counter(charges(client, self._crawl.project.name))
                for worker in [w for w in watched if not w.running]:
                    watched.remove(worker)
                    if worker.wait(0) == -signal.SIGKILL:
                        self.deaths += 1
                        self._crawl.killed.add(worker.pid)
                        assert self.deaths <= MAX_DEATHS, self.charged
                        watched += self._crawl.start()
                if time.monotonic() > deadline:
                    raise TimeoutError(f"not finished after {self.deaths} deaths; {self.charged}")
                time.sleep(0.01)


def dead_letters(crawl: FaultCrawl) -> list[tuple[str, str]]:
    """Return the reason and the page of each dead letter. See lua/moves/endings.lua for the format."""
    with crawl.redis.client() as client:
        records = [msgpack.unpackb(r, raw=True) for r in client.hvals(prefix(crawl.project.name) + "dead")]
    pages = [PAGE.search(payload) for *_, payload, _ in records]
    return [
        (reason.decode(), page[0].decode() if page else "")
        for (reason, *_), page in zip(records, pages, strict=True)
    ]


# Poisoned pages are leaves of the tree. They are never parsed, so links on them would never be found.
@pytest.mark.parametrize(
    ("pages", "poison"),
    [(300, 199), *(pytest.param(1_000, leaf, marks=pytest.mark.soak) for leaf in (250, 640, 999))],
)
def test_only_the_page_that_kills_its_workers_is_buried(
    pages: int, poison: int, fault_crawl: MakeCrawl
) -> None:
    """After four deaths, this page is the only dead letter. The other pages are done and never charged."""
    path = f"/p/{poison}"
    crawl = fault_crawl(
        site={"pages": pages},
        # The supervisor may start a worker when the others have just finished. It must not begin a new run.
        settings={"POISON": path, "DQ_MAX_ATTEMPTS": 3, "DQ_WORKER_TTL": 30, "DQ_RUN_NAME": "once"},
        spider=POISON,
    )
    supervisor = Supervisor(crawl)

    supervisor.run(90)

    verdict, overview = crawl.verdict(), crawl.overview()
    crawl.note(verdict, deaths=supervisor.deaths, charged=dict(supervisor.charged))
    assert verdict.lost == {path}
    assert set(crawl.project.count("item")) == crawl.site.paths - {path}
    assert set(supervisor.charged) <= {path}
    # The first death charges no page. The next three charge this page.
    assert supervisor.deaths == 4
    assert dead_letters(crawl) == [("its worker died 3 times while it was the suspect", path)]
    assert verdict.reasons == ("finished", "finished")
    assert verdict.leases_left == 0
    assert (overview.phase, overview.members) == ("finished", [])
    assert (overview.census.done, overview.census.dead) == (pages - 1, 1)
    for worker in crawl.project.workers:
        assert not lines(worker, "ERROR", "CRITICAL")
