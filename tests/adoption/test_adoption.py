"""The adoption of a scrapy-redis crawl: its requests, order, fingerprints and dead letters."""

from __future__ import annotations

import datetime
import pickle
import random
from typing import Any

import pytest
from scrapy import FormRequest, Request
from scrapy_redis.dupefilter import RFPDupeFilter

from adoption.conftest import Case
from scrapy_dq import scrapy_redis
from scrapy_dq.frontier import keys
from scrapy_dq.frontier.model import FrontierRefused
from support import stored_counts
from support.scrapy_redis_requests import HOST, ORDERS, member, pages, url


def drained(queue: Any) -> list[str]:
    """Return the URLs in scrapy-redis's order. The queue is empty afterwards."""
    found = []
    while (request := queue.pop()) is not None:
        found.append(request.url)
    return found


@pytest.mark.parametrize(
    ("queue", "order"), [(queue, order) for queue, orders in ORDERS.items() for order in orders]
)
def test_requests_are_served_as_scrapy_redis_would_have(queue: str, order: str, case: Case) -> None:
    """Some requests have equal priorities, are unfiltered or start requests. They fill several batches."""
    rng = random.Random(7)
    metas: tuple[dict[str, Any], ...] = ({}, {"is_start_request": True}, {"depth": 2})
    requests = [
        Request(url(n), priority=rng.choice((0, 5)), dont_filter=n % 3 == 0, meta=rng.choice(metas))
        for n in range(700)
    ]
    theirs = case.push(requests, queue)
    settings = {"DQ_ORDER": order, "SCHEDULER_QUEUE_CLASS": f"scrapy_redis.queue.{queue}"}
    report = case.adopt(settings)
    assert (report.counts.adopted, report.counts.known, report.counts.dead) == (700, 0, 0)
    assert case.progress.shown["requests"] == [700, 700]
    served = [request.url for request in case.serve(**settings)]
    assert served == drained(theirs)


def test_a_request_is_adopted_with_all_its_attributes(case: Case) -> None:
    """Class, callback, body, headers and meta are kept. A start request is marked as already seeded."""
    spider = case.spider()
    sent = [
        FormRequest(url(1), spider.parse_book, formdata={"a": "é"}, headers={"X": ["a", "b"]}, priority=3,
                    cookies={"c": "d"}, meta={"t": (1, {2}), "is_start_request": True}, cb_kwargs={"k": 1}),
        Request(url(2), errback=spider.parse_book, body=b"\xff\0", encoding="latin-1", flags=["f"]),
    ]  # fmt: skip
    case.push(sent)
    assert case.adopt().counts.adopted == 2
    first, second = (request.to_dict(spider=spider) for request in case.serve())
    expected = sent[0].to_dict(spider=spider)
    expected["meta"] = expected["meta"] | {"dq_seeded": True}
    assert first == expected
    assert second == sent[1].to_dict(spider=spider)


def test_a_repeated_adoption_stores_nothing_twice(case: Case) -> None:
    """Unfiltered requests, dead letters, and equal requests in a LIST are also recognized."""
    same = [Request(HOST, dont_filter=True)] * 3
    case.push([*same, *pages(5), *same], "LifoQueue")
    case.client.lpush(case.queue_key, b"junk", b"junk")
    first = case.adopt(queue="lifo").counts
    assert (first.adopted, first.known, first.dead, first.fingerprints) == (11, 0, 2, 5)
    again = case.adopt(queue="lifo").counts
    assert (again.adopted, again.known, again.dead, again.new_fingerprints) == (0, 13, 0, 0)
    census = case.look().census
    assert (census.waiting, census.dead) == (11, 2)


def test_pages_that_our_crawl_has_seen_are_not_adopted(case: Case) -> None:
    """A page that our crawl found before the adoption is not crawled a second time."""
    case.push(pages(3))
    case.adopt()
    case.client.delete(case.queue_key, case.dupefilter_key)
    case.push(pages(5))
    counts = case.adopt().counts
    assert (counts.adopted, counts.known) == (2, 3)


def test_the_run_stays_open(case: Case) -> None:
    """The run also stays open without requests, because later workers need its fingerprints."""
    RFPDupeFilter(case.client, case.dupefilter_key).request_seen(Request(HOST))
    report = case.adopt()
    assert (report.counts.requests, report.counts.new_fingerprints) == (0, 1)
    overview = case.look()
    assert (overview.phase, overview.members) == ("open", [])


def test_the_dupefilter_is_copied(case: Case) -> None:
    """Fingerprints are stored as bytes. Values that scrapy-redis cannot have written are skipped."""
    filter_ = RFPDupeFilter(case.client, case.dupefilter_key)
    for request in pages(1_200):
        filter_.request_seen(request)
    case.client.sadd(case.dupefilter_key, b"", b"\xff" * 40, "g" * 40, "a" * 39, "a" * 42, "junk")
    report = case.adopt()
    assert report.counts.fingerprints >= 1_206
    assert report.counts.new_fingerprints == 1_200
    assert report.counts.invalid_fingerprints == 6
    stored = case.client.smembers(keys.prefix(case.name) + "adopted")
    assert stored == {scrapy_redis.fingerprint(request) for request in pages(1_200)}


WRONG: list[tuple[str, bytes, str]] = [
    ("a class", member(meta={"at": datetime.datetime(2026, 1, 1)}), "it names datetime.datetime"),
    ("a call", pickle.dumps(pytest.fail), "it names _pytest."),
    ("not a pickle", b"http://example.com", "it cannot be read as a pickle of plain data"),
    ("no bytes", b"", "it cannot be read as a pickle of plain data"),
    ("not a dict", pickle.dumps([1, 2]), "expected dict, not list"),
    ("no url", pickle.dumps({"method": "GET"}), "it has no url"),
    ("a callback that is gone", member(callback="parse_gone"), "callback: the spider"),
    ("an invalid errback", member(errback="__init__"), "has no callback '__init__'"),
    ("a forbidden scheme", member(url="file:///etc/passwd"), "the scheme 'file' is not in DQ_URL_SCHEMES"),
    ("a class of requests", member(_class="no.such.Request"), "is not an imported subclass of Request"),
    ("an attribute", member(made_up=1), "attribute 'made_up': neither its class nor this version"),
    ("a header", member(headers={b"A": [b"b\r\nC: d"]}), "headers: a header contains CR"),
    ("too large", member(body=b"x" * 5000), "are more than DQ_MAX_ENTRY_BYTES = 4,096"),
    ("a partition", member(meta={"download_slot": "x" * 600}), "the name of its download slot"),
    ("a login", member(meta={"download_slot": "http://u:secret@h\x01"}), "slot ('http://...@h"),
    ("a pickle of large data", member(meta={"x": [["a" * 100] * 10] * 10}), "more than DQ_MAX_ENTRY_BYTES"),
]


@pytest.mark.parametrize(("broken", "reason"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_a_request_that_cannot_be_crawled_becomes_a_dead_letter(
    broken: bytes, reason: str, case: Case
) -> None:
    """The dead letter has the reason and the bytes of the request. The other requests are adopted."""
    case.push(pages(3))
    case.add(broken)
    report = case.adopt({"DQ_MAX_ENTRY_BYTES": 4096, "DQ_PARTITION_BY": "slot"})
    assert (report.counts.adopted, report.counts.dead) == (3, 1)
    ((told, payload),) = case.dead().items()
    assert reason in told
    assert broken.startswith(payload)
    assert payload == broken[:4096]
    assert (len(broken) > 4096) == ("bytes are kept)" in told)
    assert list(report.counts.reasons) == [told]
    assert len(case.serve(DQ_PARTITION_BY="slot")) == 3


def test_a_finished_run_of_the_same_name_is_not_opened(case: Case) -> None:
    """The finished run has the same DQ_RUN_NAME, so the adoption is refused."""
    case.push(pages(1))
    settings = {"DQ_RUN_NAME": "nightly"}
    case.adopt(settings)
    stored_counts.finish(case.client, case.name)
    with pytest.raises(FrontierRefused, match="another DQ_RUN_NAME starts a new run"):
        case.adopt(settings)
