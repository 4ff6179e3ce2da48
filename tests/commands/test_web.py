"""`scrapy dq web`: its views of crawls, failures, history and settings."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("starlette", reason="the extra `web` is not installed")
pytest.importorskip("uvicorn", reason="the extra `web` is not installed")

from commands.conftest import PASSWORD
from scrapy_dq.frontier.admin.entries import kept
from scrapy_dq.frontier.model import Order
from scrapy_dq.frontier.moves import Bury, Fail
from scrapy_dq.inspection import entries
from scrapy_dq.inspection.entries import cause_of, host_of, read_failures
from scrapy_dq.inspection.place import opened
from scrapy_dq.inspection.settings import settings_of
from scrapy_dq.settings import Config
from scrapy_dq.web.reads import MAX_SUBJECTS, Busy, Reads, Subject
from scrapy_dq.web.shown import LONGEST, full
from support.failed_records import add_hostile
from support.live_frontier import IDENTITY, HandWorker, LiveFrontier, ack, fail, limited, put, puts
from support.redis_server import RedisServer
from support.samples import BEGAN, add_samples
from support.stored_requests import stored
from support.waiting import wait_until
from support.web_page import WebPage, look, texts_of

DATA = ("crawl", "failed", "dead")


def test_the_files_of_the_page_are_small_and_have_no_inline_code(page: WebPage) -> None:
    """The files have at most 120 kB in total, and no inline code. They load no file of another site."""
    sizes = 0
    for path, kind in {"/": "text/html", "/app.js": "text/javascript", "/parts.js": "text/javascript",
                       "/app.css": "text/css", "/icon.svg": "image/svg+xml"}.items():  # fmt: skip
        status, headers, text = page.ask(path)
        sizes += len(text.encode())
        assert (status, headers["content-type"].partition(";")[0]) == (200, kind)
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "require-trusted-types-for 'script'" in policy
        assert "unsafe" not in policy
        assert "set-cookie" not in headers
        assert not [name for name in headers if name.startswith("access-control-")]
        for word in ("innerHTML", "insertAdjacentHTML", "document.write", "eval(", "style=", "onclick="):
            assert word not in text
        for line in text.replace("http://www.w3.org/", "").splitlines():
            assert "//" not in line.partition("// ")[0].replace("\\/", "") or "://" not in line
    assert sizes <= 120_000


def test_all_crawls_are_found(page: WebPage, live: LiveFrontier, worker: HandWorker) -> None:
    """The list also contains this test's crawl, with its counts."""
    worker.exchange(*puts(b"a.example", 5), want=1)

    def row() -> Any:
        rows = [each for each in look(page, "crawls")["crawls"] if each["crawl"] == live.crawl]
        return rows and "phase" in rows[0] and rows[0]

    found = wait_until(row, "the crawl is found")
    assert [found[name] for name in ("phase", "workers", "left", "settled", "failed")] == ["open", 1, 5, 0, 0]


def test_a_crawl_is_shown_live(page: WebPage, live: LiveFrontier) -> None:
    """The page shows counts, rate, workers and partitions, in the command line's words."""
    worker = HandWorker(live, "worker", limited(0.0, 0, **{"slow.example": (60.0, None)}))
    worker.exchange(*puts(b"a.example", 30), *puts(b"slow.example", 4, 100))
    live.limit(b"slow.example", block_s=600)
    first = look(page, "crawl", live.crawl)
    assert (first["waiting"], first["pages_per_s"], first["words"]["phase"]) == (34, None, "open")
    (row,) = first["worker_rows"]
    assert (row["id"], row["host"], row["leases"], row["state"]) == ("worker", "worker", 0, "unknown")
    assert [each["partition"] for each in first["largest_partitions"]] == ["a.example", "slow.example"]
    assert [each["partition"] for each in first["blocked_partitions"]] == ["slow.example"]
    assert first["slowest_partitions"][0]["takes"].startswith("1")  # minutes: 10 blocked, 4 times 1
    held = worker.take(3)
    worker.exchange(*map(ack, held[:2]), fail(held[2]))
    live.redis.hincrby(live.key("beats"), "worker", 1)
    looks = (each["look"] for each in page.looks("crawl", live.crawl))
    later = next(each for each in looks if each["failed"] == 1)
    assert later["pages_per_s"] > 0
    assert later["worker_rows"][0]["pages_per_s"] > 0
    assert later["worker_rows"][0]["state"] == "alive"
    assert later["worker_states"] == {"alive": 1}
    assert later["words"]["left"]


def test_failures_are_grouped_by_cause_and_host(
    page: WebPage, live: LiveFrontier, worker: HandWorker
) -> None:
    """Numbers and URLs in a reason make no difference. One record is shown in full, without its login."""
    reasons = {1: "Timeout after 30 s at http://a.example/1", 2: "Timeout after 31.5 s at http://a.example/2",
               3: "Timeout after 30 s at http://a.example/3", 4: "KeyError: 'x'",
               5: "died 3 times"}  # fmt: skip
    urls = {n: f"http://{'b' if n == 3 else 'a'}.example/{n}" for n in reasons}
    urls[4] = f"http://user:{PASSWORD}@a.example/4"
    worker.exchange(*[put(n, payload=stored(url)) for n, url in urls.items()], want=5)
    held = {int(entry): entry for entry in worker.held}
    worker.exchange(*[Fail(held[n], reasons[n], urls[n]) for n in (1, 2, 3, 4)], Bury(held[5], reasons[5]))
    found = look(page, "failed", live.crawl)
    assert (found["total"], found["kept"]) == (4, 4)
    cause = "Timeout after # s at <URL>"
    groups = {(each["cause"], each["host"]): each["count"] for each in found["groups"]}
    assert groups == {
        (cause, "a.example"): 2, (cause, "b.example"): 1,
        ("KeyError: 'x'", "a.example"): 1,
    }  # fmt: skip
    row = next(each for each in found["rows"] if each["cause"].startswith("KeyError"))
    one = page.data("failed_one", live.crawl, row["id"])["look"]
    assert (one["url"], one["reason"], one["worker"]) == ("http://...@a.example/4", "KeyError: 'x'", "worker")
    assert ["callback", "parse_page"] in one["request"]
    (letter,) = look(page, "dead", live.crawl)["rows"]
    assert letter["reason"] == "died 3 times"
    assert page.data("dead_one", live.crawl, letter["id"])["look"]["id"] == letter["id"]
    gone = page.data("failed_one", live.crawl, "0" * 24)
    assert (gone["look"], gone["found"]) == (None, False)
    everything = json.dumps([page.data(kind, live.crawl) for kind in DATA])
    assert PASSWORD not in everything + json.dumps(one)


def test_hostile_values_are_short_and_printable(
    page: WebPage, live: LiveFrontier, worker: HandWorker
) -> None:
    """1,000 failed requests and 1,000 partitions have hostile URLs, reasons, hosts and names."""
    add_hostile(live, worker)
    worker.exchange(*[put(2000 + n, partition=b"p%d \xe2\x80\xae<b>" % n) for n in range(1000)])
    found = {kind: look(page, kind, live.crawl) for kind in DATA}
    assert len(found["failed"]["rows"]) == 1000
    assert (found["failed"]["total"], found["failed"]["kept"]) == (1, 1000)
    for text in texts_of(found):
        assert text.isprintable()
        assert len(text) <= 500
    one = page.data("failed_one", live.crawl, found["failed"]["rows"][0]["id"])["look"]
    assert all(text.replace("\n", "").isprintable() and len(text) < 21_000 for text in texts_of(one))
    assert len(found["crawl"]["largest_partitions"]) == 10
    assert found["crawl"]["partitions"] == 1000
    status, headers, _ = page.ask(f"/data?kind=failed&crawl={live.crawl}")
    assert (status, headers["content-type"]) == (200, "application/json")


def test_a_long_value_is_cut_and_not_indented() -> None:
    """Earlier, a record of 200 kB took 3 s and 60 MB, because its lines were indented by their depth."""
    value: Any = [1] * 100_000
    for _ in range(400):
        value = [value]
    record = {"id": "0", "at": 0.0, "attempts": 0, "url": "u", "reason": "r", "worker": "w"}
    found = full(record | {"request": {"meta": value, "short": {"a": [1, "é"]}}})
    assert found is not None
    (_, long), (_, short) = found["request"]
    assert long.startswith("[[")
    assert long.endswith(" more characters)")
    assert len(long) < LONGEST + 50
    assert json.loads(short) == {"a": [1, "é"]}
    assert "\n" in short


def test_the_history_is_shown(page: WebPage, live: LiveFrontier) -> None:
    """The history has at most as many points as fit on the page. Its newest events are first."""
    HandWorker(live, "worker", replace(IDENTITY, starts="{}"))
    add_samples(live, 800)
    found = look(page, "history", live.crawl)
    assert found["curves"] == ["at", "pages_per_s", "left", "failed", "memory_bytes", "workers"]
    points = found["points"]
    assert len(points) == 800 // 3 + 1
    assert points[0] == [BEGAN + 20, 50.0, 9823, 1, 2**30 + 2 * 1024, 2]
    assert points[-1][:2] == [BEGAN + 7990, 100.0]
    assert [event["said"] for event in found["events"]] == ["a worker joined", "the run began"]
    assert found["events"][0]["who"] == "worker"
    days = look(page, "days", live.crawl)
    assert [point[0] for point in days["points"]] == list(range(BEGAN, BEGAN + 8000, 60))


def test_a_list_reads_a_bounded_part(
    server: RedisServer, live: LiveFrontier, worker: HandWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A record may have megabytes. The page groups the records that it reads, and counts all."""
    add_hostile(live, worker, 20)
    worker.exchange(*[put(n, reason="odd") for n in range(2, 22)])
    with opened(Config.read({"DQ_CRAWL": live.crawl, "REDIS_URL": server.url}, {})) as place:
        assert [len(read_failures(place, kind, 100)["rows"]) for kind in ("failed", "dead")] == [20, 20]
        monkeypatch.setattr(entries, "MAX_BYTES", 1)
        found = read_failures(place, "failed", 100)
        assert (len(found["rows"]), found["kept"]) == (4, 20)
        assert len(read_failures(place, "dead", 100)["rows"]) <= 20
    assert len(kept(live.redis, live.crawl, "failed", 100, most_bytes=0)) <= 4  # the first part only
    assert len(kept(live.redis, live.crawl, "dead", 100, most_bytes=0)) <= 20


def test_too_many_crawls_at_once_are_refused(crawl_name: str) -> None:
    """Otherwise a reader could make the server read any number of crawls."""

    async def ask() -> int:
        looks = Reads(Config.read({"DQ_CRAWL": "x", "REDIS_URL": "redis://127.0.0.1:1/0"}, {}))
        try:
            for n in range(MAX_SUBJECTS):
                await looks.newest(Subject("crawl", f"{crawl_name}-{n}"), within_s=0)
            with pytest.raises(Busy):
                await looks.newest(Subject("crawl", crawl_name), within_s=0)
            return len(looks._kept)
        finally:
            await looks.close()

    assert asyncio.run(ask()) == MAX_SUBJECTS


def test_only_some_of_very_many_workers_are_shown(page: WebPage, live: LiveFrontier) -> None:
    """All workers are counted, and workers in trouble are shown first."""
    for n in range(120):
        HandWorker(live, f"worker-{n:03}")
    live.redis.hset(live.key("worker:worker-110"), "fenced", 1)
    found = look(page, "crawl", live.crawl)
    assert (found["workers"], len(found["worker_rows"])) == (120, 100)
    assert found["worker_rows"][0]["id"] == "worker-110"
    assert found["worker_states"] == {"unknown": 119, "fenced": 1}


def test_a_crawl_that_does_not_exist_yet_is_shown_when_it_begins(
    page: WebPage, server: RedisServer, crawl_name: str
) -> None:
    """Before a worker joins, the page reports that the crawl does not exist."""
    looks = page.looks("crawl", crawl_name)
    first = next(looks)
    assert (first["look"], first["found"]) == (None, False)
    assert crawl_name in first["error"]
    with closing(LiveFrontier(server.url, crawl_name, Order.FIFO)) as live:
        HandWorker(live, "worker")
        assert next(each["look"] for each in looks if each["look"])["workers"] == 1


def test_the_settings_in_force_are_shown_without_passwords(page: WebPage) -> None:
    """REDIS_URL and REDIS_PARAMS may contain passwords."""
    status, _, text = page.ask("/settings")
    found = {row["name"]: row for row in json.loads(text)["settings"]}
    assert status == 200
    assert found["REDIS_URL"]["value"].startswith("redis://...@127.0.0.1:")
    assert (found["REDIS_PARAMS"]["value"], found["REDIS_PARAMS"]["default"]) == (
        "socket_timeout = ...",
        False,
    )
    assert (found["DQ_DOMAIN_BUDGET"]["value"], found["DQ_DOMAIN_BUDGET"]["default"]) == ("0", True)
    assert found["DQ_ORDER"]["default"]
    assert PASSWORD not in text
    secrets = {
        "REDIS_PARAMS": {"password": PASSWORD, "host": "h"},
    }
    config = Config.read({"DQ_CRAWL": "x", "REDIS_URL": "", **secrets}, {})
    config = replace(config, redis_url=f"redis://:{PASSWORD} / {PASSWORD}@redis.example/0")
    assert PASSWORD not in json.dumps(settings_of(config))


def test_reasons_that_differ_in_numbers_have_one_cause() -> None:
    """The time to find the cause of a long or hostile reason is proportional to the reason's length."""
    assert cause_of("HTTP 503 at https://a/b?c=1, try 2") == "HTTP 503 at <URL> try #"
    assert cause_of("bad status 404. Status 410") == "bad status 404. Status 410"
    assert cause_of("HTTP 5031, HTTP 500.5, status 459x, xHTTP 500") == "HTTP #, HTTP #, status 459x, xHTTP #"
    assert cause_of("0xdeadbeef x12 12x 1.5, 500.5 s, 459. 5031 600") == "# x12 12x #, # s, #. # #"
    place = "(spiders/shop.py:31 in parse_item)"
    assert cause_of(f"callback: KeyError: 459 {place}") == f"callback: KeyError: # {place}"
    assert cause_of(f"{'é' * 450} {place}") == f"{'é' * 165} {place}"
    assert len(cause_of("é" * 100_000)) == 200
    assert (host_of("http://A.example:80/"), host_of("http://["), host_of("nothing")) == ("a.example", "", "")
