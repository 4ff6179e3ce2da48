"""`scrapy dq web`: what its page reads and changes, whom it refuses, outages, and what it costs Redis."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.settings import Settings
from scrapy.utils.request import RequestFingerprinter

pytest.importorskip("starlette", reason="the extra `web` is not installed")
pytest.importorskip("uvicorn", reason="the extra `web` is not installed")

from scrapy_dq.frontier.admin.entries import kept
from scrapy_dq.frontier.admin.overview import peek
from scrapy_dq.frontier.model import Admission, Order
from scrapy_dq.frontier.moves import Bury, Fail
from scrapy_dq.frontier.worker.identity import own_name
from scrapy_dq.inspection import entries
from scrapy_dq.inspection.entries import cause_of, host_of, read_failures
from scrapy_dq.inspection.history import read_events
from scrapy_dq.inspection.place import opened
from scrapy_dq.inspection.settings import settings_of
from scrapy_dq.settings import Config, ConfigError
from scrapy_dq.web import app
from scrapy_dq.web.access import Access, given_token, is_loopback
from scrapy_dq.web.looks import MOST_SUBJECTS, Busy, Looks, Seen, Subject, _Kept
from scrapy_dq.web.shown import LONGEST, full
from support.failed_records import add_hostile
from support.given import StartProxy, StartRedis
from support.live_frontier import IDENTITY, HandWorker, LiveFrontier, ack, bury, fail, limited, put, puts
from support.redis_server import RedisServer
from support.samples import BEGAN, add_samples
from support.stored_requests import stored
from support.waiting import patience, wait_until
from support.web_page import TOKEN, WebPage, ask_app, refused, texts_of

PASSWORD = "s3cr3t-w0rd"
DATA = ("crawl", "failed", "dead")


@pytest.fixture(scope="module")
def pages(server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, WebPage]]:
    """Yield a page that only reads, without a token; and one that steers, with one. They log nothing."""
    with ExitStack() as stack:
        folders = {name: tmp_path_factory.mktemp(name) for name in ("reads", "steers")}
        yield {
            "reads": stack.enter_context(WebPage(folders["reads"], server.url)),
            "steers": stack.enter_context(
                WebPage(folders["steers"], server.url, "--allow-steering", token=TOKEN)
            ),
        }


@pytest.fixture
def page(pages: dict[str, WebPage]) -> WebPage:
    return pages["reads"]


@pytest.fixture
def steering(pages: dict[str, WebPage]) -> WebPage:
    return pages["steers"]


def look(page: WebPage, kind: str, crawl: str = "") -> Any:
    """Return what a look has found; asked again, as the page does, until there is one."""
    until = time.monotonic() + patience(30)
    while True:
        found = page.data(kind, crawl)
        assert found["error"] == ""
        if found["look"] is not None or time.monotonic() > until:
            return found["look"]


def test_the_files_of_the_page(page: WebPage) -> None:
    """Together at most 120 kB, with no script or style inline, and none from elsewhere."""
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
    """With their counts, among those of others."""
    worker.exchange(*puts(b"a.example", 5), want=1)

    def row() -> Any:
        rows = [each for each in look(page, "crawls")["crawls"] if each["crawl"] == live.crawl]
        return rows and "phase" in rows[0] and rows[0]

    found = wait_until(row, "the crawl is found")
    assert [found[name] for name in ("phase", "workers", "left", "settled", "failed")] == ["open", 1, 5, 0, 0]


def test_a_crawl_is_shown_live(page: WebPage, live: LiveFrontier) -> None:
    """Counts, rate, workers, partitions, and the words of the command line."""
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
    """Numbers and URLs of a reason make no other cause; one is shown in full, without a login."""
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


def test_what_is_hostile_is_short_and_printable(
    page: WebPage, live: LiveFrontier, worker: HandWorker
) -> None:
    """1,000 failed requests, in 1,000 partitions: whatever their URLs, reasons, hosts, and names are."""
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
    """A record of 200 kB took 3 s and 60 MB: each line of it was indented by how deep it was."""
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
    """In as many points as there is room for; with the events, the newest first."""
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
    """Records may have megabytes: those that were read are grouped, and the others counted."""
    add_hostile(live, worker, 20)
    worker.exchange(*[put(n, reason="odd") for n in range(2, 22)])
    with opened(Config.read({"DQ_CRAWL": live.crawl, "REDIS_URL": server.url}, {})) as place:
        assert [len(read_failures(place, kind, 100)["rows"]) for kind in ("failed", "dead")] == [20, 20]
        monkeypatch.setattr(entries, "MOST_BYTES", 1)
        found = read_failures(place, "failed", 100)
        assert (len(found["rows"]), found["kept"]) == (4, 20)
        assert len(read_failures(place, "dead", 100)["rows"]) <= 20
    assert len(kept(live.redis, live.crawl, "failed", 100, most_bytes=0)) <= 4  # only the first part
    assert len(kept(live.redis, live.crawl, "dead", 100, most_bytes=0)) <= 20


def test_too_many_things_are_not_looked_at(crawl_name: str) -> None:
    """Whoever may read could ask for any number of crawls."""

    async def ask() -> int:
        looks = Looks(Config.read({"DQ_CRAWL": "x", "REDIS_URL": "redis://127.0.0.1:1/0"}, {}))
        try:
            for n in range(MOST_SUBJECTS):
                await looks.newest(Subject("crawl", f"{crawl_name}-{n}"), within_s=0)
            with pytest.raises(Busy):
                await looks.newest(Subject("crawl", crawl_name), within_s=0)
            return len(looks._kept)
        finally:
            await looks.close()

    assert asyncio.run(ask()) == MOST_SUBJECTS


def test_of_a_great_many_workers_some_are_shown(page: WebPage, live: LiveFrontier) -> None:
    """Those that are in trouble first; all are counted."""
    for n in range(120):
        HandWorker(live, f"worker-{n:03}")
    live.redis.hset(live.key("worker:worker-110"), "fenced", 1)
    found = look(page, "crawl", live.crawl)
    assert (found["workers"], len(found["worker_rows"])) == (120, 100)
    assert found["worker_rows"][0]["id"] == "worker-110"
    assert found["worker_states"] == {"unknown": 119, "fenced": 1}


def test_a_crawl_that_is_not_there_is_shown_when_it_begins(
    page: WebPage, server: RedisServer, crawl_name: str
) -> None:
    """Before that, the page says so."""
    looks = page.looks("crawl", crawl_name)
    first = next(looks)
    assert (first["look"], first["found"]) == (None, False)
    assert crawl_name in first["error"]
    with closing(LiveFrontier(server.url, crawl_name, Order.FIFO)) as live:
        HandWorker(live, "worker")
        assert next(each["look"] for each in looks if each["look"])["workers"] == 1


def test_the_settings_in_force_are_shown_without_passwords(page: WebPage) -> None:
    """Which may be in any of some."""
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


# ---- who may do what


def orders(crawl: str) -> list[dict[str, Any]]:
    """Return an order of each kind."""
    own = {"crawl": crawl}
    return [
        {"action": "pause"} | own, {"action": "resume"} | own,
        {"action": "drain"} | own, {"action": "stop"} | own,
        {"action": "limit", "partition": "a.example", "delay_s": 5, "concurrency": 2, "block_s": 60} | own,
        {"action": "retry", "kind": "failed", "all": True} | own,
        {"action": "forget", "urls": ["http://a.example/"]} | own,
    ]  # fmt: skip


def state(live: LiveFrontier) -> Any:
    """Return all that an order could change."""
    client = live.redis
    kept = [client.hgetall(live.key(name)) for name in ("meta", "limits")]
    return (
        kept,
        client.llen(live.key("failed")),
        client.scard(live.key("seen")),
        client.zcard(live.key("blocked")),
    )


def test_nothing_is_changed_by_a_page_that_only_reads(
    page: WebPage, live: LiveFrontier, worker: HandWorker
) -> None:
    """Not even with everything else right."""
    before = state(live)
    for order in orders(live.crawl):
        status, said = page.do(order)
        assert status == 403
        assert "--allow-steering" in said["error"]
    assert state(live) == before


WRONG: dict[str, tuple[int, dict[str, str]]] = {
    "no token": (401, {"Authorization": ""}),
    "another token": (401, {"Authorization": f"Bearer {TOKEN}x"}),
    "a part of it": (401, {"Authorization": f"Bearer {TOKEN[:-1]}"}),
    "another scheme": (401, {"Authorization": f"Basic {TOKEN}"}),
    "another origin": (403, {"Origin": "http://evil.example"}),
    "no origin that can be told": (403, {"Origin": "null"}),
    "another port": (403, {"Origin": "http://127.0.0.1:1"}),
    "another site": (403, {"Sec_Fetch_Site": "cross-site"}),
    "a sibling": (403, {"Sec_Fetch_Site": "same-site"}),
    "a rebound name": (421, {"Host": "evil.example"}),
    "a rebound name with a port": (421, {"Host": "127.0.0.1.evil.example:6870"}),
    "a form": (415, {"Content_Type": "application/x-www-form-urlencoded"}),
    "plain text": (415, {"Content_Type": "text/plain"}),
    "no type": (415, {"Content_Type": ""}),
    "too much": (413, {"Content_Length": "999999999"}),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_nothing_is_changed_for_others(
    steering: WebPage, live: LiveFrontier, worker: HandWorker, wrong: str
) -> None:
    """Each is refused for one thing alone, before the order is read."""
    before = state(live)
    status, headers = WRONG[wrong]
    for order in orders(live.crawl):
        assert steering.do(order, **headers)[0] == status
    assert state(live) == before


def test_what_is_no_order_is_refused(steering: WebPage, live: LiveFrontier, worker: HandWorker) -> None:
    """In words, and nothing is changed."""
    own = {"crawl": live.crawl}
    before = state(live)
    for order in (
        [], None, "pause", {}, {"action": "pause"}, {"action": "pause", "crawl": 1},
        {"action": "clear"} | own,
        {"action": ["pause"]} | own, {"action": "retry", "kind": "failed"} | own,
        {"action": "retry", "kind": ["x"], "all": True} | own,
        {"action": "retry", "kind": "failed", "all": 1} | own,
        {"action": "retry", "kind": "failed", "id": "x"} | own, {"action": "limit", "partition": "a"} | own,
        {"action": "limit", "partition": "a\n", "delay_s": 1} | own,
        {"action": "limit", "partition": "a", "delay_s": -1} | own,
        {"action": "limit", "partition": "a", "delay_s": float("nan")} | own,
        {"action": "limit", "partition": "a", "concurrency": 1.5} | own,
        {"action": "limit", "partition": "a", "block_s": True} | own, {"action": "forget", "urls": []} | own,
        {"action": "forget", "urls": ["no URL"]} | own, {"action": "forget", "urls": [1]} | own,
    ):  # fmt: skip
        status, said = steering.do(order)
        assert status == 400, order
        assert said["error"]
    status, said = steering.do({"action": "pause", "crawl": f"{live.crawl}x"})
    assert (status, live.crawl in said["error"]) == (404, True)
    assert state(live) == before
    assert steering.ask("/do", "POST", "[" * 100_000, Content_Type="application/json")[0] == 400


def test_reading_needs_the_token_too_if_there_is_one(steering: WebPage, live: LiveFrontier) -> None:
    """The files of the page do not: they hold nothing of a crawl."""
    for path in ("/settings", f"/data?kind=crawl&crawl={live.crawl}"):
        status, headers, text = steering.ask(path, Authorization="")
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
        assert live.crawl not in text
    assert steering.ask("/", Authorization="")[0] == 200
    assert TOKEN not in steering.printed


def test_other_sites_load_nothing(page: WebPage, live: LiveFrontier) -> None:
    """A link to the page may lead there; a name that was rebound reads nothing."""
    for path in ("/data?kind=crawls", "/settings", "/app.js", "/"):
        assert page.ask(path, Sec_Fetch_Site="cross-site", Sec_Fetch_Dest="empty")[0] == 403
        assert page.ask(path, Host="evil.example")[0] == 421
        assert page.ask(path, Host="")[0] == 421
    assert page.ask("/", Sec_Fetch_Site="cross-site", Sec_Fetch_Dest="document")[0] == 200
    assert page.ask("/settings", Sec_Fetch_Site="cross-site", Sec_Fetch_Dest="document")[0] == 403
    for name in ("localhost:1", "127.0.0.1", "[::1]:80", "10.1.2.3"):
        assert page.ask("/settings", Host=name)[0] == 200
    for method in ("PUT", "DELETE", "OPTIONS", "TRACE"):
        assert page.ask("/settings", method)[0] == 405
    for path in ("/nothing", "/data", "/data?kind=crawl", "/data?kind=failed_one&crawl=x&id=zz"):
        assert page.ask(path)[0] in (400, 404)


# ---- steering


def test_a_crawl_is_paused_drained_resumed_stopped(
    steering: WebPage, live: LiveFrontier, worker: HandWorker
) -> None:
    """As by the commands; what makes no sense is refused in words."""
    worker.exchange(put(1))
    for action, hold in (("pause", "paused"), ("resume", ""), ("drain", "draining"), ("resume", "")):
        status, said = steering.do({"action": action, "crawl": live.crawl})
        assert (status, "1 worker registered" in said["done"]) == (200, True)
        assert peek(live.redis, live.crawl).hold.value == hold
    stops = peek(live.redis, live.crawl).stops
    assert steering.do({"action": "stop", "crawl": live.crawl})[0] == 200
    assert peek(live.redis, live.crawl).stops == stops + 1
    ordered = [event for event in read_events(live.redis, live.crawl) if event.kind in ("pause", "stop")]
    assert [event.who for event in ordered] == [f"{own_name()} (page)"] * 2
    worker.take(1)
    worker.exchange(ack(1))
    worker.exchange()
    assert peek(live.redis, live.crawl).phase == "finished"
    status, said = steering.do({"action": "pause", "crawl": live.crawl})
    assert (status, said["error"]) == (400, "the run is finished: there is nothing to pause")


def test_a_partition_is_limited(steering: WebPage, live: LiveFrontier, worker: HandWorker) -> None:
    """Or no longer."""
    own = {"action": "limit", "crawl": live.crawl, "partition": "a.example"}
    worker.exchange(*puts(b"a.example", 3))
    status, said = steering.do(own | {"delay_s": 0.5, "concurrency": 2, "block_s": 60})
    assert status == 200
    assert said["done"].startswith("a.example: 0.5 s between requests, 2 at once, blocked for ")
    assert live.limit(b"a.example") == (0.5, 2, 60)
    assert steering.do(own | {"delay_s": 0, "concurrency": 0, "block_s": 0})[0] == 200
    assert live.limit(b"a.example") == (0, 0, 0)


def test_failures_are_retried(steering: WebPage, live: LiveFrontier, worker: HandWorker) -> None:
    """One, a group, all, and no other."""
    worker.exchange(*[put(n, payload=stored(f"http://a.example/{n}")) for n in range(9)], want=9)
    held = {int(entry): entry for entry in worker.held}
    kinds = ["Timeout after 1 s"] * 3 + ["KeyError"] * 2
    urls = {n: f"http://a.example/{n}" for n in held}
    worker.exchange(*[Fail(held[n], kinds[n], urls[n]) for n in range(5)], *[bury(n) for n in range(5, 9)])
    own = {"action": "retry", "crawl": live.crawl}
    rows = look(steering, "failed", live.crawl)["rows"]
    one = next(row for row in rows if row["url"].endswith("/3"))
    assert (
        steering.do(own | {"kind": "failed", "id": one["id"]})[1]["done"] == "Back in the backlog: 1 request."
    )
    again = steering.do(own | {"kind": "failed", "id": one["id"]})
    assert again == (200, {"done": "Nothing to retry: it is not kept any more."})
    group = {"cause": "Timeout after # s", "host": "a.example"}
    assert steering.do(own | {"kind": "failed"} | group | {"host": "b.example"})[1]["done"].startswith(
        "Nothing"
    )
    assert steering.do(own | {"kind": "failed"} | group)[1]["done"] == "Back in the backlog: 3 requests."
    left = look(steering, "failed", live.crawl)
    assert [group["cause"] for group in left["groups"]] == ["KeyError"]
    assert (left["kept"], live.redis.hlen(live.key("dead"))) == (1, 4)
    assert steering.do(own | {"kind": "failed", "all": True})[1]["done"] == "Back in the backlog: 1 request."
    assert steering.do(own | {"kind": "dead", "all": True})[1]["done"] == "Back in the backlog: 4 requests."
    assert peek(live.redis, live.crawl).census.waiting == 9


def test_requests_are_forgotten(steering: WebPage, live: LiveFrontier) -> None:
    """Those that the crawl had seen, by the fingerprints of this project; else the spider is needed."""
    worker = HandWorker(live, "worker")
    token = RequestFingerprinter().fingerprint(Request("http://a.example/1"))
    worker.exchange(put(1, admission=Admission.SEEN, token=token))
    name = "scrapy.utils.request.RequestFingerprinter"
    own = {"action": "forget", "crawl": live.crawl, "urls": ["http://a.example/1", "http://a.example/2"]}
    assert steering.do(own)[0] == 400
    live.redis.hset(live.key("meta"), "fingerprinter", name)
    assert steering.do(own) == (200, {"done": "Forgotten: 1; not seen before: 1."})
    assert steering.do(own) == (200, {"done": "Forgotten: 0; not seen before: 2."})


# ---- outages, ends, costs


def test_it_goes_on_through_an_outage(
    start_redis: StartRedis, start_proxy: StartProxy, tmp_path: Path
) -> None:
    """It says how old its data is, and why; then it is live again."""
    proxy = start_proxy(start_redis(password=PASSWORD).url)
    with closing(LiveFrontier(proxy.url, "first", Order.FIFO)) as live, WebPage(tmp_path, proxy.url) as page:
        worker = HandWorker(live, "worker")
        worker.exchange(*puts(b"a", 7))
        looks = page.looks("crawl", "first")
        assert next(looks)["look"]["waiting"] == 7
        proxy.refuse()
        missed = list(islice((each for each in looks if each["error"]), 3))
        assert [each["look"]["waiting"] for each in missed] == [7] * 3
        ages = [each["age_s"] for each in missed]
        assert ages == sorted(ages)
        assert ages[2] > 2
        status, _, text = page.ask("/data?kind=failed&crawl=first")
        assert (status, json.loads(text)["look"], json.loads(text)["found"]) == (200, None, True)
        proxy.black_hole()
        assert next(looks)["error"]
        proxy.pass_through()
        back = next(each for each in looks if not each["error"])
        assert back["age_s"] < ages[2]
        assert back["look"]["waiting"] == 7
        assert PASSWORD not in json.dumps(missed) + page.log.read_text() + page.printed


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_although_pages_are_open(server: RedisServer, tmp_path: Path, number: int) -> None:
    """They wait for the next look; the exit status is 0, and nothing is on standard error."""
    with WebPage(tmp_path, server.url) as page, closing(page.connection()) as waiting:
        page.data("crawls")
        waiting.request("GET", "/data?kind=crawl&crawl=none")
        assert page.end(number) == 0
        assert page.log.read_text() == ""


def test_an_order_does_not_wait_for_a_look(server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which may take long."""
    begun, may_end = threading.Event(), threading.Event()

    def look(looks: Looks, *asked: Any) -> tuple[Seen, bool]:
        begun.set()
        may_end.wait(patience(60))
        return Seen(at=time.monotonic(), body="{}"), True

    monkeypatch.setattr(Looks, "_look", look)

    async def ask() -> None:
        looks = Looks(Config.read({"DQ_CRAWL": "x", "REDIS_URL": server.url}, {}))
        await looks.open()
        looking = asyncio.ensure_future(looks.newest(Subject("crawl", "a")))
        try:
            await asyncio.to_thread(begun.wait, patience(30))
            assert await asyncio.wait_for(looks.call("b", lambda place: place.crawl), patience(20)) == "b"
            assert not looking.done()
        finally:
            may_end.set()
            await looks.close()
            await looking

    asyncio.run(ask())


def test_one_key_of_another_type_is_no_outage(start_redis: StartRedis) -> None:
    """Nor is one that this user may not read: looks at all others go on without a pause."""
    server = start_redis()
    with (
        closing(LiveFrontier(server.url, "first", Order.FIFO)) as first,
        closing(LiveFrontier(server.url, "second", Order.FIFO)) as second,
    ):
        HandWorker(first, "worker")
        HandWorker(second, "worker")
        first.redis.set(first.key("failed"), "not a list")
        first.redis.execute_command(
            "ACL", "SETUSER", "observer", "on", f">{PASSWORD}", "~dq:{first}:*", "+@all"
        )
        url = server.url.replace("//", f"//observer:{PASSWORD}@")
        looks = Looks(Config.read({"DQ_CRAWL": "x", "REDIS_URL": url}, {}))

        async def ask() -> None:
            await looks.open()
            failed, answered = await asyncio.to_thread(looks._look, Subject("failed", "first"), _Kept())
            assert (failed.body, answered) == ("", True)
            assert "WRONGTYPE" in failed.error
            listed, answered = await asyncio.to_thread(looks._look, Subject("crawls"), _Kept())
            rows = {row["crawl"]: row for row in json.loads(listed.body)["crawls"]}
            assert (answered, "error" in rows["first"]) == (True, False)
            assert "permission" in rows["second"]["error"]
            await looks.close()

        asyncio.run(ask())


# ---- how it is started


def test_what_is_wrong_is_said_in_one_line(server: RedisServer, page: WebPage, tmp_path: Path) -> None:
    """Another address without a token; a port in use; a token that is short, or in no file."""
    short = tmp_path / "short"
    short.write_text("short\n")
    for words, status, said in (
        (["--host", "0.0.0.0"], 2, "lets other machines read the crawls: give a token"),
        (["--port", str(page.port)], 1, "Address already in use. --port names another port"),
        (["--token-file", str(short)], 1, "it needs 16 or more"),
        (["--token-file", str(tmp_path / "none")], 1, "cannot be read"),
        (["-s", f"REDIS_URL=redis://:{PASSWORD}@127.0.0.1:1/0"], 1, "cannot be reached"),
    ):
        ended, line = refused(tmp_path, server.url, "web", *words)
        assert (ended, said in line, PASSWORD in line) == (status, True, False), line


def test_without_the_extra_a_line_says_what_to_install(server: RedisServer, tmp_path: Path) -> None:
    assert refused(tmp_path, server.url, "web", without="uvicorn") == (
        1,
        "scrapy dq web: the page needs Starlette, uvicorn and prometheus_client: "
        "pip install prometheus_client starlette uvicorn",
    )


def test_steering_without_a_token_makes_one(server: RedisServer, tmp_path: Path, live: LiveFrontier) -> None:
    """It is in the address that is printed, behind #, which no browser sends and no server logs."""
    HandWorker(live, "worker")
    with WebPage(tmp_path, server.url, "--allow-steering") as page:
        _, _, fragment = page.address.partition("#token=")
        token, _, where = fragment.partition("&")
        assert where == "/crawl/first"
        assert page.ask("/settings")[0] == 401
        assert page.do({"action": "pause", "crawl": live.crawl})[0] == 401
        page.token = token
        assert page.do({"action": "pause", "crawl": live.crawl})[0] == 200
        assert token not in page.log.read_text()


def test_who_is_admitted() -> None:
    """Of hosts: addresses, localhost and those that are named. A token that is none is refused."""
    access = Access.of("", False, ["Crawls.example.", "box"])
    for host in ("LOCALHOST:6870", "127.0.0.1:1", "[::1]", "[fe80::1]:80", "crawls.example:443", "box"):
        assert access.knows(host)
    for host in ("", "evil.example", "localhost.evil.example", "crawls.example.evil", "[evil]", "127.1.evil"):
        assert not access.knows(host)
    assert access.admits("")
    for token, steers in ("", True), ("short", False), ("x" * 15 + "\n" + "x" * 9, False), ("é" * 20, False):
        with pytest.raises(ConfigError):
            Access.of(token, steers, ())
    assert repr(Access.of(TOKEN, True, ())).count(TOKEN) == 0
    assert given_token("", {"DQ_WEB_TOKEN": f" {TOKEN}\n"}) == TOKEN
    assert is_loopback("127.3.2.1")
    assert not is_loopback("0.0.0.0")
    assert not is_loopback("example.org")


def test_a_cause_is_what_reasons_have_in_common() -> None:
    """Long or hostile ones cost no more than they are long."""
    assert cause_of("HTTP 503 at https://a/b?c=1, try 2") == "HTTP 503 at <URL> try #"
    assert cause_of("bad status 404. Status 410") == "bad status 404. Status 410"
    assert cause_of("HTTP 5031, HTTP 500.5, status 459x, xHTTP 500") == "HTTP #, HTTP #, status 459x, xHTTP #"
    assert cause_of("0xdeadbeef x12 12x 1.5, 500.5 s, 459. 5031 600") == "# x12 12x #, # s, #. # #"
    place = "(spiders/shop.py:31 in parse_item)"
    assert cause_of(f"callback: KeyError: 459 {place}") == f"callback: KeyError: # {place}"
    assert cause_of(f"{'é' * 450} {place}") == f"{'é' * 165} {place}"
    assert len(cause_of("é" * 100_000)) == 200
    assert (host_of("http://A.example:80/"), host_of("http://["), host_of("nothing")) == ("a.example", "", "")


def test_the_app_is_mounted_in_another_one(server: RedisServer, live: LiveFrontier) -> None:
    """Below a path; it begins to look when somebody asks, and waits for no lifespan event."""
    HandWorker(live, "worker")
    mounted = app(Settings({"REDIS_URL": server.url}), token=TOKEN)

    async def main() -> list[tuple[int, str]]:
        query = f"kind=crawl&crawl={live.crawl}"
        asked = (("/", "", ""), ("/data", query, ""), ("/data", query, TOKEN))
        answers = [await ask_app(mounted, *each, root="/dq") for each in asked]
        events = iter(({"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}))

        async def next_event() -> dict[str, Any]:
            return next(events)

        async def ignore(message: dict[str, Any]) -> None: ...

        # Else what it has opened is left to the garbage collector, in some other test.
        await mounted({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, next_event, ignore)
        return answers

    answers = asyncio.run(main())
    assert [status for status, _ in answers] == [200, 401, 200]
    assert json.loads(answers[-1][1])["look"]["workers"] == 1
