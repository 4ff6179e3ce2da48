"""Events during an adoption: its source changes, a worker joins, or Redis fails."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from scrapy import Request

from adoption.conftest import Case, adopted
from scrapy_dq.frontier import keys
from scrapy_dq.frontier.model import FrontierRefused
from support.redis_server import RedisServer
from support.scrapy_redis_requests import HOST, ORDERS, pages, url


@pytest.mark.parametrize("queue", ORDERS)
def test_a_source_that_changes_is_reported(queue: str, case: Case) -> None:
    """A scrapy-redis worker takes and adds requests. The adoption reports this, and deletes nothing."""
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
    again = case.adopt(settings)  # as the message advises: stop the worker, and run this again
    assert not again.changed
    assert {request.url for request in case.serve(**settings)} >= {*map(url, range(1, 199)), f"{HOST}/new"}


def test_an_adoption_ends_if_its_queue_is_deleted(case: Case) -> None:
    """The adoption ends and reports that the source has changed."""
    case.push(pages(700))
    case.progress.while_under_way = lambda: case.client.delete(case.queue_key)
    report = case.adopt()
    assert report.changed


def test_an_adoption_is_refused_while_a_worker_is_alive(case: Case) -> None:
    """A live worker would not know which pages scrapy-redis has done. A dead worker is no obstacle."""
    case.push(pages(2))
    case.adopt()
    case.progress.shown.clear()
    with pytest.raises(FrontierRefused, match=r"worker elsewhere of crawl .* is alive.*stop it first"):
        case.adopt(beside=case.beat)
    assert case.progress.shown == {}  # the adoption has not begun
    assert [member.worker_id for member in case.look().members] == ["elsewhere"]
    assert case.adopt().counts.known == 2  # without a heartbeat, the worker counts as dead


def test_an_adoption_stops_if_a_worker_joined_too_early(case: Case) -> None:
    """A worker that joined before the first fingerprint was stored would not look up fingerprints."""
    case.push(pages(2))
    shown: list[int] = []

    def come() -> None:
        shown.append(1)
        case.beat()

    case.progress.while_under_way = come
    with pytest.raises(FrontierRefused, match="worker elsewhere of crawl"):
        case.adopt(beside=lambda: case.beat() if shown else None)
    assert len(shown) == 1  # one batch of fingerprints, and no requests
    assert [member.worker_id for member in case.look().members] == ["elsewhere"]


def test_fingerprints_are_adopted_before_requests(case: Case) -> None:
    """After a kill between the two steps, a crawl may lack requests, but crawls no page twice."""
    case.push(pages(1))
    case.adopt()
    assert list(case.progress.shown) == ["fingerprints", "requests"]


def test_an_adoption_that_was_declared_dead_must_be_run_again(case: Case) -> None:
    """The adoption continues with a new id, but cannot know whether Redis lost data before."""
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


def test_an_adoption_stops_if_its_crawl_is_deleted(case: Case) -> None:
    """Otherwise a part of the adoption could be stored in a later crawl of the same name."""
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
    """Yield a Redis for one test, with 1,500 requests and 20,000 more fingerprints."""
    redis = start_redis(appendonly=True, args=["--appendfsync", "always"])
    case = Case(redis.url, crawl_name)
    case.push(pages(1_500))
    case.client.sadd(case.dupefilter_key, *(hashlib.sha1(b"%d" % n).hexdigest() for n in range(20_000)))
    yield redis, case
    case.client.close()


def test_an_adoption_survives_a_restart_of_redis(own: tuple[RedisServer, Case]) -> None:
    """Reads and writes wait for Redis. The new Redis process does not know the position of an SSCAN."""
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


def test_a_second_adoption_repairs_one_during_which_redis_was_rolled_back(
    own: tuple[RedisServer, Case],
) -> None:
    """After the first adoption, the source is kept. The second one adds the missing fingerprints."""
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
