"""What becomes of a scrapy-redis crawl that is adopted: requests, order, fingerprints, and what is wrong."""

from __future__ import annotations

import datetime
import hashlib
import json
import pickle
import random
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from scrapy import FormRequest, Request
from scrapy_redis.dupefilter import RFPDupeFilter

from adoption.conftest import Case
from scrapy_dq import scrapy_redis
from scrapy_dq.adoption import source
from scrapy_dq.adoption.source import BadSource
from scrapy_dq.frontier import keys
from scrapy_dq.frontier.model import FrontierRefused, FrontierUnavailable
from support import stored_counts
from support.proxy import RedisProxy
from support.redis_server import RedisServer
from unit.test_serializer import OWN_JSON

ORDERS = {
    "PriorityQueue": ("priority-lifo", "priority-fifo"),
    "FifoQueue": ("fifo",),
    "LifoQueue": ("lifo",),
}
HOST = "http://example.com"


def url(number: int) -> str:
    return f"{HOST}/{number}"


def pages(count: int, **more: Any) -> list[Request]:
    return [Request(url(n), **more) for n in range(count)]


def member(**changes: Any) -> bytes:
    """Return a pickled request as scrapy-redis stores it, with something else in it."""
    values = Request(f"{HOST}/changed", meta={"depth": 1}).to_dict() | changes
    return pickle.dumps(values, protocol=-1)


def drained(queue: Any) -> list[str]:
    """Return the URLs in the order in which scrapy-redis serves them; nothing is left."""
    found = []
    while (request := queue.pop()) is not None:
        found.append(request.url)
    return found


@pytest.mark.parametrize(
    ("queue", "order"), [(queue, order) for queue, orders in ORDERS.items() for order in orders]
)
def test_requests_are_served_as_scrapy_redis_would_have(queue: str, order: str, case: Case) -> None:
    """Ties included, over several batches; whether filtered or not, start requests or not."""
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


def test_a_request_arrives_whole(case: Case) -> None:
    """Its class, callback, body, headers and meta; but a start request counts as no seed any more."""
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


def test_to_adopt_again_stores_nothing_twice(case: Case) -> None:
    """Neither filtered nor unfiltered requests, nor dead letters, nor equal ones in a LIST."""
    same = [Request(HOST, dont_filter=True)] * 3
    case.push([*same, *pages(5), *same], "LifoQueue")
    case.client.lpush(case.queue_key, b"junk", b"junk")
    first = case.adopt(queue="lifo").counts
    assert (first.adopted, first.known, first.dead, first.fingerprints) == (11, 0, 2, 5)
    again = case.adopt(queue="lifo").counts
    assert (again.adopted, again.known, again.dead, again.new_fingerprints) == (0, 13, 0, 0)
    census = case.look().census
    assert (census.waiting, census.dead) == (11, 2)


def test_what_our_own_crawl_has_seen_counts_as_seen(case: Case) -> None:
    """A page that it found before the adoption is not crawled twice."""
    case.push(pages(3))
    case.adopt()
    case.client.delete(case.queue_key, case.dupefilter_key)
    case.push(pages(5))
    counts = case.adopt().counts
    assert (counts.adopted, counts.known) == (2, 3)


def test_the_run_stays_open(case: Case) -> None:
    """With nothing to do, too: its dupefilter is kept for the workers that come."""
    RFPDupeFilter(case.client, case.dupefilter_key).request_seen(Request(HOST))
    report = case.adopt()
    assert (report.counts.requests, report.counts.new_fingerprints) == (0, 1)
    overview = case.look()
    assert (overview.phase, overview.members) == ("open", [])


def test_the_dupefilter_is_copied(case: Case) -> None:
    """As bytes; what scrapy-redis 0.9 would not have written is left out and counted."""
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
    ("not a pickle", b"http://example.com", "it is not a complete pickle"),
    ("no bytes", b"", "it is not a complete pickle"),
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
    ("a small pickle of much", member(meta={"x": [["a" * 100] * 10] * 10}), "more than DQ_MAX_ENTRY_BYTES"),
]


@pytest.mark.parametrize(("broken", "reason"), [case[1:] for case in WRONG], ids=[case[0] for case in WRONG])
def test_what_cannot_be_crawled_becomes_a_dead_letter(broken: bytes, reason: str, case: Case) -> None:
    """With its reason and its bytes; the rest continues."""
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


def test_a_pickle_is_read_only_if_it_is_trusted(case: Case) -> None:
    """One clear refusal that says why; nothing is changed, not even a crawl begun."""
    case.push(pages(3))
    with pytest.raises(BadSource, match=r"the 3 requests .* are pickles.*can hold code.*--trust-pickle"):
        case.adopt(trust_pickle=False)
    assert case.look().phase == "absent"
    assert case.client.zcard(case.queue_key) == 3


def test_a_dupefilter_alone_needs_no_trust(case: Case) -> None:
    case.client.sadd(case.dupefilter_key, "a" * 40)
    assert case.adopt(trust_pickle=False).counts.new_fingerprints == 1


def test_json_needs_no_trust(case: Case) -> None:
    """What scrapy-redis stored with a serializer is read with the same; and so are its entries written."""
    theirs = case.theirs("PriorityQueue", OWN_JSON)
    theirs.push(Request(url(1), case.spider().parse_book, body="é", headers={"A": "b"}))
    case.add(json.dumps({"url": "file:///etc/passwd"}).encode(), b"{", pickle.dumps({}))
    settings = {"SCHEDULER_SERIALIZER": OWN_JSON}
    report = case.adopt(settings, trust_pickle=False)
    assert (report.counts.adopted, report.counts.dead) == (1, 3)
    (request,) = case.serve(**settings)
    assert (request.url, request.body, request.headers[b"A"]) == (url(1), "é".encode(), b"b")
    assert request.callback.__name__ == "parse_book"


def test_a_trusted_serializer_reads_the_queue(case: Case) -> None:
    """What it is, is not known; that it is trusted is said by DQ_TRUST_PICKLE."""
    own = SimpleNamespace(dumps=OWN_JSON.dumps, loads=lambda data: json.loads(data))
    case.theirs("PriorityQueue", own).push(Request(url(1)))
    settings = {"SCHEDULER_SERIALIZER": own, "DQ_TRUST_PICKLE": True}
    assert case.adopt(settings, trust_pickle=False).counts.adopted == 1
    assert [request.url for request in case.serve(**settings)] == [url(1)]


@pytest.mark.parametrize("queue_class", [None, "scrapy_redis.queue.PriorityQueue", "mine.Queue"])
def test_a_list_needs_to_be_told_how_it_was_served(queue_class: str | None, case: Case) -> None:
    """The key itself does not say it; the refusal names both."""
    case.push(pages(2), "FifoQueue")
    with pytest.raises(BadSource, match=r"is a LIST, and .* --queue fifo .*FifoQueue.* --queue lifo"):
        case.adopt({"SCHEDULER_QUEUE_CLASS": queue_class})
    assert case.look().phase == "absent"
    assert case.adopt({"SCHEDULER_QUEUE_CLASS": queue_class}, queue="fifo").source.served == "fifo"


def test_a_zset_is_served_by_priority(case: Case) -> None:
    """To say otherwise is a mistake."""
    case.push(pages(1))
    with pytest.raises(BadSource, match="is a ZSET, as PriorityQueue has it: omit --queue"):
        case.adopt(queue="fifo")


@pytest.mark.parametrize(
    ("suffix", "says"),
    [
        ("requests", "would have a zset or a list"),
        ("dupefilter", "would have a set"),
    ],
)
def test_a_key_of_another_type_is_refused(suffix: str, says: str, case: Case) -> None:
    case.push(pages(1))
    case.client.set(f"{case.name}:{suffix}", "x")
    with pytest.raises(BadSource, match=rf"{suffix}' is a string.*{says}"):
        case.adopt()
    assert case.look().phase == "absent"


def test_a_key_that_the_user_may_not_read_is_named(case: Case) -> None:
    case.push(pages(1))
    case.client.execute_command("ACL", "SETUSER", case.name, "on", ">pw", "~other:*", "+@all")
    url = case.url.replace("redis://", f"redis://{case.name}:pw@")
    with pytest.raises(FrontierRefused, match=f"denies access to '{case.queue_key}'"):
        case.adopt({"REDIS_URL": url})


@pytest.mark.parametrize("patience_s", [30.0, 0.0])
def test_a_read_without_an_answer_is_repeated_for_a_while(
    case: Case, start_proxy: Callable[[str], RedisProxy], monkeypatch: pytest.MonkeyPatch, patience_s: float
) -> None:
    monkeypatch.setattr(source, "PATIENCE_S", patience_s)
    case.push(pages(1))
    proxy = start_proxy(case.url)
    proxy.cut_next_reply("TYPE")
    if patience_s:
        assert case.adopt({"REDIS_URL": proxy.url}).counts.adopted == 1
    else:
        with pytest.raises(FrontierUnavailable):
            case.adopt({"REDIS_URL": proxy.url})
        assert case.look().phase == "absent"


def test_keys_come_from_the_settings(case: Case) -> None:
    case.push(pages(3))
    case.client.rename(case.queue_key, f"q-{case.name}")
    case.client.rename(case.dupefilter_key, f"d-{case.name}")
    assert case.adopt().nothing
    named = {"SCHEDULER_QUEUE_KEY": "q-%(spider)s", "SCHEDULER_DUPEFILTER_KEY": "d-%(spider)s"}
    report = case.adopt(named)
    assert (report.counts.adopted, report.counts.fingerprints) == (3, 3)
    with pytest.raises(BadSource, match=r"SCHEDULER_QUEUE_KEY = '%\(spyder\)s'"):
        case.adopt({"SCHEDULER_QUEUE_KEY": "%(spyder)s"})


def test_where_nothing_is_there_nothing_begins(case: Case) -> None:
    """No crawl either, that a worker would resume."""
    report = case.adopt(trust_pickle=False)
    assert report.nothing
    assert report.complete
    assert case.look().phase == "absent"


def test_the_source_is_deleted_only_if_asked(case: Case) -> None:
    """Exactly the two keys, once all is stored, and not without a word."""
    case.push(pages(3))
    case.client.rpush(f"{case.name}:start_urls", "x")
    assert case.adopt().deleted == []
    assert case.progress.said == []
    assert case.adopt(delete_source=True).deleted == [case.queue_key, case.dupefilter_key]
    assert case.progress.said == [
        f"Everything is stored. Deleting {case.queue_key!r} and {case.dupefilter_key!r}"
    ]
    assert not case.client.exists(case.queue_key, case.dupefilter_key)
    assert case.client.exists(f"{case.name}:start_urls")
    assert len(case.serve()) == 3


@pytest.mark.parametrize("bytes_", [50, 5000])
def test_a_source_with_dead_letters_is_not_deleted(case: Case, bytes_: int) -> None:
    """What cannot be read may be repaired from there; also when it is found again, or kept in part only."""
    case.push(pages(1))
    case.add(member(body=b"x" * bytes_, callback="gone"))
    for known in (0, 1):
        report = case.adopt({"DQ_MAX_ENTRY_BYTES": 4096}, delete_source=True)
        assert (report.counts.dead, report.counts.dead_before) == (1 - known, known)
        assert report.deleted == []
    assert case.client.exists(case.queue_key)


def test_a_source_is_not_deleted_while_it_is_not_certain_that_redis_keeps_it(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The Redis of a shard may fail as this process has gone, which alone could store it again."""

    async def doubt(*args: object) -> str:
        return "It is not certain"

    case.push(pages(2))
    monkeypatch.setattr("scrapy_dq.frontier.worker.durability.wait_until_durable", doubt)
    report = case.adopt(delete_source=True)
    assert (report.doubt, report.complete, report.deleted) == ("It is not certain", True, [])
    monkeypatch.undo()
    assert case.adopt(delete_source=True).deleted


@pytest.mark.parametrize("queue", ORDERS)
def test_a_source_that_changes_is_reported(queue: str, case: Case) -> None:
    """A scrapy-redis worker that runs takes requests away and adds some: then nothing is deleted."""
    theirs = case.push(pages(200), queue)

    def work() -> None:
        case.progress.while_under_way = lambda: None
        theirs.pop()
        theirs.push(Request(f"{HOST}/new"))

    case.progress.while_under_way = work
    settings = {"SCHEDULER_QUEUE_CLASS": f"scrapy_redis.queue.{queue}"}
    report = case.adopt(settings, delete_source=True)
    assert report.changed
    assert not report.complete
    assert case.client.exists(case.queue_key)
    again = case.adopt(settings)  # what it says: stop it, and run this again
    assert not again.changed
    assert {request.url for request in case.serve(**settings)} >= {*map(url, range(1, 199)), f"{HOST}/new"}


def test_a_queue_that_becomes_empty_meanwhile_ends_the_adoption(case: Case) -> None:
    """It is reported, and not waited for."""
    case.push(pages(700))
    case.progress.while_under_way = lambda: case.client.delete(case.queue_key)
    report = case.adopt()
    assert report.changed


def test_no_worker_may_live(case: Case) -> None:
    """It would crawl again what scrapy-redis had done: it did not learn of it. A dead one is no obstacle."""
    case.push(pages(2))
    case.adopt()
    case.progress.shown.clear()
    with pytest.raises(FrontierRefused, match=r"worker elsewhere of crawl .* is alive.*stop it first"):
        case.adopt(beside=case.beat)
    assert case.progress.shown == {}  # it has not begun
    assert [member.worker_id for member in case.look().members] == ["elsewhere"]
    assert case.adopt().counts.known == 2  # it does not beat any more


def test_no_adoption_beside_a_worker_that_joined_too_early(case: Case) -> None:
    """One that joined before the first fingerprint was stored does not look them up."""
    case.push(pages(2))
    shown: list[int] = []

    def come() -> None:
        shown.append(1)
        case.beat()

    case.progress.while_under_way = come
    with pytest.raises(FrontierRefused, match="worker elsewhere of crawl"):
        case.adopt(beside=lambda: case.beat() if shown else None)
    assert len(shown) == 1  # one batch of fingerprints, no requests
    assert [member.worker_id for member in case.look().members] == ["elsewhere"]


def test_what_was_seen_comes_before_what_is_to_do(case: Case) -> None:
    """A crawl that starts after a kill between the two misses requests; it does not do anything twice."""
    case.push(pages(1))
    case.adopt()
    assert list(case.progress.shown) == ["fingerprints", "requests"]


def test_an_adoption_that_was_declared_dead_is_to_be_run_again(case: Case) -> None:
    """It goes on under a new id; what Redis may have lost meanwhile it cannot know."""
    case.push(pages(700))
    prefix = keys.prefix(case.name)

    def fence() -> None:
        case.progress.while_under_way = lambda: None
        (member,) = case.look().members
        case.client.hset(f"{prefix}worker:{member.worker_id}", "fenced", 1)

    case.progress.while_under_way = fence
    report = case.adopt(delete_source=True)
    assert (report.disturbed, report.complete, report.deleted) == (True, False, [])
    assert len(case.serve()) == 700
    assert case.adopt().complete


def test_a_crawl_that_is_deleted_meanwhile_ends_the_adoption(case: Case) -> None:
    """To go on would leave a part of it in a crawl of somebody else's."""
    case.push(pages(700))

    def delete() -> None:
        for key in case.client.keys(keys.prefix(case.name).replace("{", "[{]") + "*"):
            case.client.unlink(key)

    case.progress.while_under_way = delete
    with pytest.raises(FrontierRefused, match="start again"):
        case.adopt()
    assert case.client.zcard(case.queue_key) == 700


@pytest.fixture
def own(start_redis: Callable[..., RedisServer], crawl_name: str) -> Iterator[tuple[RedisServer, Case]]:
    """Yield a Redis of the test's own, and a crawl there with 1,500 requests and 20,000 more fingerprints."""
    redis = start_redis(appendonly=True, args=["--appendfsync", "always"])
    case = Case(redis.url, crawl_name)
    case.push(pages(1_500))
    case.client.sadd(case.dupefilter_key, *(hashlib.sha1(b"%d" % n).hexdigest() for n in range(20_000)))
    yield redis, case
    case.client.close()


def adopted(case: Case) -> int:
    return case.client.scard(f"{keys.prefix(case.name)}adopted")


def test_redis_may_be_unavailable_for_a_moment(own: tuple[RedisServer, Case]) -> None:
    """Reading and storing wait for it; what was read of a set says nothing to the next process of Redis."""
    redis, case = own

    def restart() -> None:
        case.progress.while_under_way = lambda: None
        redis.kill()
        redis.start()

    case.progress.while_under_way = restart
    report = case.adopt()
    assert (report.counts.adopted, report.counts.new_fingerprints, adopted(case)) == (1_500, 21_500, 21_500)
    assert report.complete
    assert len(case.serve()) == 1_500


def test_redis_may_be_rolled_back_among_the_fingerprints(own: tuple[RedisServer, Case]) -> None:
    """The source is kept, and to adopt again brings what is missing."""
    redis, case = own
    snapshot: Any = None

    def roll_back() -> None:
        nonlocal snapshot
        if adopted(case) > 9_000:
            case.progress.while_under_way = lambda: None
            redis.roll_back(snapshot)
        elif snapshot is None and adopted(case) > 3_000:
            snapshot = redis.snapshot()

    case.progress.while_under_way = roll_back
    report = case.adopt(delete_source=True)
    assert (report.disturbed, report.complete, report.deleted) == (True, False, [])
    assert case.adopt(delete_source=True).deleted
    assert adopted(case) == 21_500


def test_a_finished_run_of_the_same_name_is_not_opened(case: Case) -> None:
    """DQ_RUN_NAME says that it is over."""
    case.push(pages(1))
    settings = {"DQ_RUN_NAME": "nightly"}
    case.adopt(settings)
    stored_counts.finish(case.client, case.name)
    with pytest.raises(FrontierRefused, match="another DQ_RUN_NAME starts a new run"):
        case.adopt(settings)
