"""A worker dies, stops or freezes in start(). The other workers know that start requests are missing."""

from __future__ import annotations

import re

import pytest

from scrapy_dq.frontier import keys
from support.fault_spiders import EXHAUSTED, GO
from support.given import MakeCrawl
from support.outages import lines
from support.tree_spider import spider_of
from support.waiting import wait_until
from support.worker import Worker

# With -a part=1, a worker yields the start requests. Without it, a worker yields none.
PARTS = spider_of(
    """
    part = ""

    async def start(self):
        if self.part:
            async for request in super().start():
                yield request
""",
    bases="SlowStartSpider",
    before="from support.fault_spiders import SlowStartSpider\n",
)
# A worker with FREEZE suspends itself in start() until it gets SIGCONT.
FREEZING = spider_of(
    """
    async def start(self):
        if os.environ.get("FREEZE"):
            os.kill(os.getpid(), signal.SIGSTOP)
        async for request in super().start():
            yield request
""",
    bases="GatheredSpider",
)
# With -a part=1, the start request is local, and waits in its worker.
LOCAL = spider_of("""
    part = ""

    async def start(self):
        if self.part:
            yield scrapy.Request(self.start_urls[0], meta={"dq_local": True, "dq_delay": 600})
        self.record("exhausted", self.part or "-")
""")
# One page has forty words. A worker with BACKWARDS begins with the last word.
WORDS = spider_of("""
    async def start(self):
        backwards = os.environ.get("BACKWARDS")
        for word in reversed(range(40)) if backwards else range(40):
            kwargs = {"word": word, "more": {"a", "b", "c", "d"}}
            yield scrapy.Request(self.start_urls[0], self.search, cb_kwargs=kwargs, dont_filter=True)
            while word == 20 and not (backwards or os.path.exists("go")):
                await asyncio.sleep(0.01)
        self.record("exhausted", "-")

    def search(self, response, word, more):
        self.record("done", f"/word/{word}")
""")
PAGES = 200


@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM"])
def test_an_interrupted_start_leaves_the_run_open(how: str, fault_crawl: MakeCrawl) -> None:
    """The other worker logs an error, and closes with start_incomplete. The same command crawls the rest."""
    crawl = fault_crawl(site={"pages": PAGES, "fan_out": 0}, settings={"PAGES": PAGES}, spider=PARTS)
    (crawl.project.folder / GO).touch()
    (seeding,) = crawl.start(args={"part": "1"})
    seeding.wait_for_log("] INFO: Crawl '")
    (other,) = crawl.start()
    crawl.wait_for(30)
    assert not crawl.project.count(EXHAUSTED)
    if how == "SIGKILL":
        crawl.kill(seeding)
    else:
        seeding.terminate()
    verdict = crawl.end()
    done_before = len(crawl.done)

    assert done_before < PAGES
    assert other.close_reason == "start_incomplete"
    assert "finished" not in verdict.reasons
    (said,) = (line for line in lines(other, "ERROR") if "did not complete" in line)
    assert "start() with the same arguments did: -a part (not given here). The run stays open" in said
    if how == "SIGKILL":
        assert "died before its start() was complete" in other.text
        assert "the same arguments has completed" in other.text

    last = crawl.project.run_worker(args={"part": "1"})
    verdict = crawl.end()
    crawl.note(verdict, done_before=done_before, how=how)
    assert last.close_reason == "finished"
    assert not verdict.lost
    assert verdict.repeats <= crawl.leases_at_kills
    assert crawl.overview().run == 0


def test_a_completed_start_counts_while_its_worker_is_busy(fault_crawl: MakeCrawl) -> None:
    """The worker with the complete start() is killed during the crawl. The other worker finishes the run."""
    crawl = fault_crawl(
        site={"pages": 100, "fan_out": 0, "latency_s": 10.0},  # so that the crawl outlasts start()
        settings={"PAGES": 100, "CONCURRENT_REQUESTS": 4},
        spider=PARTS,
    )
    (crawl.project.folder / GO).touch()
    (seeding,) = crawl.start(args={"part": "1"})
    seeding.wait_for_log("] INFO: Crawl '")
    (other,) = crawl.start()

    def levels() -> list[bytes]:
        with crawl.redis.client() as client:
            prefix = keys.prefix(crawl.project.name)
            members = [f"{prefix}worker:{each.worker_id}" for each in crawl.overview().members]
            return [client.hget(name, "seeding") for name in members]

    wait_until(lambda: levels() == [b"0", b"0"], "both workers have completed start()", 30)
    assert crawl.overview().census.waiting > 10
    crawl.site.set_latency(0.0)
    crawl.kill(seeding)
    verdict = crawl.end(120)
    assert other.close_reason == "finished"
    assert "before its start() was complete" not in other.text
    assert not verdict.lost


def test_a_start_request_that_waits_in_its_worker_keeps_the_run_open(fault_crawl: MakeCrawl) -> None:
    """Redis does not have this request. If its worker dies, no other worker closes with `finished`."""
    crawl = fault_crawl(site={"pages": 5}, spider=LOCAL)
    (waiting,) = crawl.start(args={"part": "1"})
    wait_until(lambda: crawl.project.count("exhausted"), "start() is over", 30)
    (other,) = crawl.start()
    wait_until(
        lambda: crawl.project.count("exhausted").total() == 2, "the other worker's start() is over", 30
    )
    waiting.kill()
    other.wait(60)
    assert other.close_reason == "start_incomplete"


def test_a_worker_that_was_frozen_in_start_repeats_no_page(fault_crawl: MakeCrawl) -> None:
    """The other workers finish the run before the frozen worker continues.

    Its start requests are then in `seen`, so no page runs again.
    """
    crawl = fault_crawl(site={"pages": 150}, settings={"DQ_WORKER_TTL": 1.5}, spider=FREEZING)
    (crawl.project.folder / GO).touch()
    (frozen,) = crawl.start(environ={"FREEZE": "1"})
    frozen.wait_for_log("] INFO: Crawl '")
    others = crawl.start(2)
    for worker in others:
        worker.wait(60)
    assert [worker.close_reason for worker in others] == ["finished"] * 2
    assert set(crawl.done) == crawl.site.paths
    assert frozen.running
    before = crawl.done.total()
    frozen.resume()

    verdict = crawl.end()

    crawl.note(verdict)
    assert frozen.close_reason == "finished"
    assert crawl.done.total() == before == crawl.pages
    assert crawl.overview().phase == "finished"


HOST_OF_ENVIRON = "import os, socket\nsocket.gethostname = lambda: os.environ['ON_HOST']\n"


@pytest.mark.parametrize("hosts", [("one", "one"), ("one", "other")], ids=["one host", "two hosts"])
def test_a_rerun_just_after_the_end_begins_a_new_run_unless_hosts_shared_the_last(
    hosts: tuple[str, str], fault_crawl: MakeCrawl
) -> None:
    """On two hosts, a supervisor may have started this worker again.

    So the worker closes, and its log explains how to begin a new run.
    """
    crawl = fault_crawl(site={"pages": 100, "latency_s": 0.01})
    (crawl.project.folder / "sitecustomize.py").write_text(HOST_OF_ENVIRON)
    workers: list[Worker] = [crawl.project.start_worker(environ={"ON_HOST": host}) for host in hosts]
    for worker in workers:
        worker.wait_for_log("] INFO: Crawl '")
    crawl.site.set_latency(0.0)
    crawl.end()
    assert [worker.close_reason for worker in workers] == ["finished"] * 2

    again = crawl.project.run_worker(environ={"ON_HOST": "one"})
    assert again.close_reason == "finished"
    if len(set(hosts)) == 1:
        assert (crawl.overview().run, crawl.verdict().repeats) == (1, crawl.pages)
        return
    assert re.search("WARNING: .* or now with another DQ_RUN_NAME$", again.text, re.MULTILINE)
    verdict = crawl.verdict()
    crawl.note(verdict)
    assert (verdict.repeats, crawl.overview().run) == (0, 0)

    crawl.project.run_worker(settings={"DQ_RUN_NAME": "next"}, environ={"ON_HOST": "one"})
    assert crawl.overview().run == 1
    assert crawl.verdict().repeats == crawl.pages


@pytest.mark.parametrize("killed", [True, False])
def test_start_may_yield_its_requests_in_another_order(killed: bool, fault_crawl: MakeCrawl) -> None:
    """The requests differ only in cb_kwargs. Another worker's start() yields them in reverse order."""
    crawl = fault_crawl(site={"pages": 1}, spider=WORDS)
    (first,) = crawl.start()
    crawl.wait_for(15)
    if killed:
        crawl.kill(first)
    crawl.start(environ={"BACKWARDS": "1"})
    wait_until(lambda: crawl.project.count(EXHAUSTED), "the other worker's start() is over", 30)
    (crawl.project.folder / GO).touch()
    verdict = crawl.end()
    assert set(verdict.reasons) == {"finished"}
    assert set(crawl.done) == {f"/word/{word}" for word in range(40)}
    assert verdict.repeats <= crawl.leases_at_kills
