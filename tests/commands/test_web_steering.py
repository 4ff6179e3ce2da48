"""Changes through the page of `scrapy dq web`: holds, limits, retries, and forgotten URLs."""

from __future__ import annotations

import pytest
from scrapy import Request
from scrapy.utils.request import RequestFingerprinter

pytest.importorskip("starlette", reason="the extra `web` is not installed")
pytest.importorskip("uvicorn", reason="the extra `web` is not installed")

from scrapy_dq.frontier.admin.overview import peek
from scrapy_dq.frontier.model import Admission
from scrapy_dq.frontier.moves import Fail
from scrapy_dq.frontier.worker.identity import own_name
from scrapy_dq.inspection.history import read_events
from support.live_frontier import HandWorker, LiveFrontier, ack, bury, put, puts
from support.stored_requests import stored
from support.web_page import WebPage, look


def test_a_crawl_is_paused_drained_resumed_stopped(
    steering: WebPage, live: LiveFrontier, worker: HandWorker
) -> None:
    """The page's orders have the effects of commands. An order without an effect is refused with a reason."""
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
    """Zero removes a limit."""
    own = {"action": "limit", "crawl": live.crawl, "partition": "a.example"}
    worker.exchange(*puts(b"a.example", 3))
    status, said = steering.do(own | {"delay_s": 0.5, "concurrency": 2, "block_s": 60})
    assert status == 200
    assert said["done"].startswith("a.example: 0.5 s between requests, 2 at once, blocked for ")
    assert live.limit(b"a.example") == (0.5, 2, 60)
    assert steering.do(own | {"delay_s": 0, "concurrency": 0, "block_s": 0})[0] == 200
    assert live.limit(b"a.example") == (0, 0, 0)


def test_failures_are_retried(steering: WebPage, live: LiveFrontier, worker: HandWorker) -> None:
    """An order retries one request, a group or all, and leaves the others."""
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
    """The page uses this project's fingerprinter, and refuses a crawl with another one."""
    worker = HandWorker(live, "worker")
    token = RequestFingerprinter().fingerprint(Request("http://a.example/1"))
    worker.exchange(put(1, admission=Admission.SEEN, token=token))
    name = "scrapy.utils.request.RequestFingerprinter"
    own = {"action": "forget", "crawl": live.crawl, "urls": ["http://a.example/1", "http://a.example/2"]}
    assert steering.do(own)[0] == 400
    live.redis.hset(live.key("meta"), "fingerprinter", name)
    assert steering.do(own) == (200, {"done": "Forgotten: 1; not seen before: 1."})
    assert steering.do(own) == (200, {"done": "Forgotten: 0; not seen before: 2."})
