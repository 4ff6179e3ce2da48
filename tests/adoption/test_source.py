"""scrapy-redis's keys: whether their pickles are trusted, their types, and their deletion."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from scrapy import Request

from adoption.conftest import Case
from scrapy_dq.adoption import source
from scrapy_dq.adoption.source import BadSource
from scrapy_dq.frontier.model import FrontierRefused, FrontierUnavailable
from support.proxy import RedisProxy
from support.scrapy_redis_requests import member, pages, url
from unit.test_serializer import OWN_JSON


def test_a_pickle_is_read_only_if_it_is_trusted(case: Case) -> None:
    """The refusal names the reason. Nothing is changed, and no crawl begins."""
    case.push(pages(3))
    with pytest.raises(BadSource, match=r"the 3 requests .* are taken to be pickles.*--trust-pickle"):
        case.adopt(trust_pickle=False)
    assert case.look().phase == "absent"
    assert case.client.zcard(case.queue_key) == 3


def test_a_dupefilter_alone_needs_no_trust(case: Case) -> None:
    case.client.sadd(case.dupefilter_key, "a" * 40)
    assert case.adopt(trust_pickle=False).counts.new_fingerprints == 1


def test_json_needs_no_trust(case: Case) -> None:
    """The project's serializer reads scrapy-redis's entries, and writes the new entries."""
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
    """With DQ_TRUST_PICKLE, the user trusts a serializer that scrapy_dq does not know."""
    own = SimpleNamespace(dumps=OWN_JSON.dumps, loads=lambda data: json.loads(data))
    case.theirs("PriorityQueue", own).push(Request(url(1)))
    settings = {"SCHEDULER_SERIALIZER": own, "DQ_TRUST_PICKLE": True}
    assert case.adopt(settings, trust_pickle=False).counts.adopted == 1
    assert [request.url for request in case.serve(**settings)] == [url(1)]


@pytest.mark.parametrize("queue_class", [None, "scrapy_redis.queue.PriorityQueue", "mine.Queue"])
def test_the_order_of_a_list_must_be_given(queue_class: str | None, case: Case) -> None:
    """A list does not show its order, so the refusal names both options."""
    case.push(pages(2), "FifoQueue")
    with pytest.raises(BadSource, match=r"is a LIST, and .* --queue fifo .*FifoQueue.* --queue lifo"):
        case.adopt({"SCHEDULER_QUEUE_CLASS": queue_class})
    assert case.look().phase == "absent"
    assert case.adopt({"SCHEDULER_QUEUE_CLASS": queue_class}, queue="fifo").source.served == "fifo"


def test_a_zset_is_served_by_priority(case: Case) -> None:
    """--queue is refused, because it would contradict the priorities."""
    case.push(pages(1))
    with pytest.raises(BadSource, match=r"is a ZSET, which .*PriorityQueue uses; .* omit --queue"):
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


def test_no_crawl_begins_if_the_source_is_empty(case: Case) -> None:
    """The command does not begin a crawl that a worker would then resume."""
    report = case.adopt(trust_pickle=False)
    assert report.nothing
    assert report.complete
    assert case.look().phase == "absent"


def test_the_source_is_deleted_only_if_asked(case: Case) -> None:
    """After everything is stored, the two keys are deleted, and no others. A message reports this."""
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
    """A user may repair unreadable entries in the source, even if an earlier adoption has found them."""
    case.push(pages(1))
    case.add(member(body=b"x" * bytes_, callback="gone"))
    for known in (0, 1):
        report = case.adopt({"DQ_MAX_ENTRY_BYTES": 4096}, delete_source=True)
        assert (report.counts.dead, report.counts.dead_before) == (1 - known, known)
        assert report.deleted == []
    assert case.client.exists(case.queue_key)


def test_a_source_is_kept_while_the_adopted_requests_may_not_be_on_disk(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Redis may lose the requests after this process has ended. Then only the source still has them."""

    async def doubt(*args: object) -> str:
        return "It is not certain"

    case.push(pages(2))
    monkeypatch.setattr("scrapy_dq.frontier.worker.durability.wait_until_durable", doubt)
    report = case.adopt(delete_source=True)
    assert (report.doubt, report.complete, report.deleted) == ("It is not certain", True, [])
    monkeypatch.undo()
    assert case.adopt(delete_source=True).deleted
