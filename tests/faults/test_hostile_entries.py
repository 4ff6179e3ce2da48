"""Some entries cannot be read, and some requests cannot be stored. No stored code runs. Nothing is lost."""

from __future__ import annotations

import pickle
import random
from pathlib import Path

import pytest

from scrapy_dq.frontier import kept
from support import outages, unstorable_spider, watched_spider
from support.fault_crawl import FaultCrawl
from support.given import MakeCrawl
from support.hostile import (
    CALLBACK,
    CLASS,
    ERRBACK,
    HEADERS,
    META,
    URL,
    corrupted,
    dead_letters,
    entry,
    errors,
    good,
    instance,
    store,
)
from support.tree_spider import spider_of, spider_source
from support.worker import Worker

CANARY_SOURCE = "import scrapy\n\n\nclass Mine(scrapy.Request): ...\n\n\nclass Thing(scrapy.Item): ...\n"

PATIENT = "\nfrom scrapy_dq.scheduling import declined\n\ndeclined.MAX_IN_A_ROW = 10**9\n"
"""With this code, a worker does not close after many entries in a row that need code that it lacks."""

RENAMED = spider_of("""
    def parse(self, response):
        for result in super().parse(response):
            yield result if isinstance(result, dict) else result.replace(callback=self.parse_page)

    def parse_page(self, response):
        yield from self.parse(response)
""")


@pytest.fixture
def watched(fault_crawl: MakeCrawl) -> FaultCrawl:
    """Return a crawl whose workers record forbidden actions.

    Its folder and its package have canaries: files that no worker may import or read.
    """
    crawl = fault_crawl(
        site={"pages": 9, "hosts": ["127.0.0.1"]},  # a worker may connect to this host only
        # With SCHEDULER_DEBUG, the log has all dead letters, even of entries that look like start payloads.
        settings={**watched_spider.SETTINGS, "SCHEDULER_DEBUG": True},
        spider=spider_source(watched_spider.WatchedSpider) + PATIENT,
    )
    folder = crawl.project.folder
    (folder / "canary_module.py").write_text(CANARY_SOURCE)
    (folder / "tree_project" / "canary.py").write_text(CANARY_SOURCE)
    (folder / "canary.txt").write_text("secret")
    return crawl


def assert_unharmed(crawl: FaultCrawl, worker: Worker, stored: int) -> None:
    """Assert that *worker* settled all entries, reported each dead letter, and did nothing forbidden."""
    verdict = crawl.verdict()
    assert not verdict.lost
    census = crawl.overview().census
    assert verdict.reasons == ("unserved" if census.unserved else "finished",)
    assert verdict.leases_left == 0
    assert (census.waiting, census.in_flight) == (0, 0)
    assert census.done + census.failed + census.dead == stored + crawl.pages
    assert worker.stats.get("dq/failed", 0) == census.failed
    buried = worker.stats.get("dq/buried", 0)
    assert buried == census.dead - census.unserved == worker.text.count("becomes a dead letter: ")
    reasons = dead_letters(crawl)
    assert reasons.total() == census.dead
    assert all(reason.isprintable() and 0 < len(reason) <= 500 for reason in reasons)
    alive, *deeds = [event.path for event in crawl.project.events() if event.event == "audit"]
    assert watched_spider.ALIVE in alive
    assert not deeds


def _others(worker: Worker) -> list[str]:
    """Return the errors in the log, except the error about requests that other code might serve."""
    return [each for each in errors(worker) if "became dead letters because no worker" not in each]


class Bomb:
    """An object whose pickle opens the canary file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return open, (str(self._path),)


def test_no_entry_makes_a_worker_import_read_or_call_anything(watched: FaultCrawl) -> None:
    """Entries name a module, file, hook or pickle. Workers use none, and log why they bury an entry."""
    page = watched.site.url("/hostile")
    bomb = pickle.dumps(Bomb(watched.project.folder / "canary.txt"))
    hostile = {
        entry({CLASS: "canary_module.Mine", URL: page}): "not an imported subclass of Request",
        entry({CLASS: "subprocess.Popen", URL: page}): "not an imported subclass of Request",
        entry({URL: page, META: {"x": instance("canary_module:Thing", {})}}): "cannot be stored",
        entry({URL: page, META: {"x": instance("tree_project.canary:Thing", {})}}): "no imported module",
        entry({URL: page, META: {"x": instance("os:system", "touch canary")}}): "cannot be stored",
        entry({URL: f"file://{watched.project.folder}/canary.txt"}): "DQ_URL_SCHEMES",
        entry({URL: page, CALLBACK: "__class__"}): "has no callback '__class__'",
        entry({URL: page, CALLBACK: "from_crawler"}): "has no callback 'from_crawler'",
        entry({URL: page, CALLBACK: "parse.__globals__"}): "has no callback 'parse.__globals__'",
        entry({URL: page, HEADERS: {b"A": [b"b\r\nHost: elsewhere"]}}): "CR, LF",
        bomb: "its format is 128",
        b"\x01" + bomb: "",
    }
    harmless = [
        entry({URL: page, CALLBACK: "parse", META: {"x": bomb}}),
        entry({URL: "http://canary.invalid/", CALLBACK: "parse"}),
        entry({URL: page, CALLBACK: "parse", META: {"proxy": "http://canary.invalid:8080"}}),
    ]
    store(watched, [*hostile, *harmless])

    (worker,) = watched.start()
    verdict = watched.end()

    reasons = dead_letters(watched)
    watched.note(verdict, entries=len(hostile) + len(harmless), dead=reasons.total())
    assert_unharmed(watched, worker, len(hostile) + len(harmless))
    assert not _others(worker)
    assert reasons.total() == len(hostile)
    for part in hostile.values():
        assert any(part in reason for reason in reasons), part


def test_a_request_that_cannot_be_sent_fails_alone(watched: FaultCrawl) -> None:
    """If Scrapy raises an error for a decoded request, the request has failed. The crawl continues.

    With Scrapy 2.13, the first of these requests does not even decode.
    """
    page = watched.site.url("/hostile")
    unsent = [
        entry({URL: page + "/\ud800", CALLBACK: "parse"}),
        entry({URL: page, CALLBACK: "parse", HEADERS: {b"\xff @": [b"x"]}}),
        entry({URL: page, CALLBACK: "parse", ERRBACK: "parse", META: {"download_slot": [1]}}),
    ]
    store(watched, unsent)

    (worker,) = watched.start()
    verdict = watched.end(20)

    census = watched.overview().census
    watched.note(verdict, entries=len(unsent), failed=census.failed)
    assert_unharmed(watched, worker, len(unsent))
    assert census.failed + census.dead == len(unsent)
    assert census.dead <= 1
    with watched.redis.client() as client:
        assert len(kept(client, watched.project.name, "failed")) == census.failed


@pytest.mark.parametrize("count", [1_000, pytest.param(100_000, marks=pytest.mark.soak)])
def test_a_crawl_with_random_entries_ends(count: int, watched: FaultCrawl) -> None:
    """Entries have flipped bits, cuts, splices or random structures. Each is buried or crawled."""
    rng = random.Random(count)
    intact = good([watched.site.url(f"/good/{number}") for number in range(60)])
    samples = good([watched.site.url(f"/spoiled/{number}") for number in range(60)])
    payloads = [*intact, *corrupted(samples, count - len(intact), rng)]
    rng.shuffle(payloads)
    store(watched, payloads)

    (worker,) = watched.start()
    verdict = watched.end(60 + count / 100)

    reasons = dead_letters(watched)
    watched.note(verdict, entries=count, dead=reasons.total(), reasons=len(reasons))
    assert_unharmed(watched, worker, count)
    # Scrapy may be unable to send a decoded request, or the request may have `parse` as its errback. Then
    # Scrapy logs an error, and only this request fails.
    own = "[scrapy.core.scraper] ERROR: "
    assert not [
        e for e in _others(worker) if not e.startswith((f"{own}Error downloading", f"{own}Spider error"))
    ]
    # Many entries are buried, and many are crawled, including all unchanged entries.
    assert count / 4 < reasons.total() < count * 19 / 20
    hits = watched.site.hits()
    assert [hits[f"/good/{number}"] for number in range(60)] == [1] * 60


@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.soak)])
def test_requests_that_cannot_be_stored_survive_the_death_of_their_worker(
    kills: int, fault_crawl: MakeCrawl
) -> None:
    """Four requests in ten have a lambda, a file, a lock or 2 MiB. Workers are killed. No request is lost."""
    crawl = fault_crawl(
        site={"pages": 200 + 100 * kills},
        settings={"SCHEDULER_DEBUG": True, "CONCURRENT_REQUESTS": 8},
        spider=spider_source(unstorable_spider.UnstorableSpider),
    )
    live = crawl.start(2)
    for number in range(kills):
        crawl.wait_for_part(0.15 + 0.6 * number / kills)
        crawl.kill(live.pop(0))
        live += crawl.start()

    verdict = crawl.end()
    repeated = [path for path, times in crawl.done.items() if times > 1]
    again = sum(crawl.done[path] - 1 for path in repeated if not unstorable_spider.kind_of(path))
    crawl.note(verdict, kills=kills, leases_at_kills=crawl.leases_at_kills, storable_repeats=again)
    crawl.assert_whole(verdict, verdict.repeats)
    assert again <= crawl.leases_at_kills
    warnings = [line for worker in crawl.project.workers for line in outages.lines(worker, "WARNING")]
    for _, says in unstorable_spider.KINDS.values():
        assert any(says in line and "it stays in this worker" in line for line in warnings), says
    for worker in live:
        assert not errors(worker)


def test_a_killed_crawl_whose_callback_was_renamed_waits_for_the_right_code(fault_crawl: MakeCrawl) -> None:
    """Requests for the missing method stay in the backlog, until a worker has the method again."""
    crawl = fault_crawl(site={"pages": 300}, spider=RENAMED)
    (first,) = crawl.start()
    crawl.wait_for_part(0.2)
    crawl.kill(first)
    held = crawl.overview().census
    assert held.in_flight > 0
    module = crawl.project.folder / "tree_project" / "spiders" / "spider.py"
    module.write_text(RENAMED.replace("parse_page", "parse_leaf"))
    (second,) = crawl.start()
    second.wait()
    assert second.close_reason == "cannot_serve", second.text
    assert not crawl.project.count(pids=[second.pid])
    after = crawl.overview().census
    assert (after.waiting, after.in_flight, after.dead) == (held.waiting + held.in_flight, 0, 0)

    module.write_text(RENAMED)
    (third,) = crawl.start()
    verdict = crawl.end()
    crawl.note(pages=len(crawl.done), waiting=held.waiting, in_flight=held.in_flight)
    assert third.close_reason == "finished", third.text
    assert not verdict.lost
    assert not errors(third)
