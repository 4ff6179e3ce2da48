"""A process puts entries and ends. Then Redis loses power, is rolled back, or fails over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from queues.conftest import Background
from scrapy_dq import Queue
from scrapy_dq.frontier import peek
from scrapy_dq.frontier.worker import durability
from scrapy_dq.queue import FrontierUnavailable, ShutDown
from support.given import MakeProject, StartRedis
from support.power_loss import PoweredRedis
from support.project import Project
from support.redis_server import Kind, RedisServer
from support.scrapy_redis_crawl import run_dq
from support.waiting import wait_until
from worker.engine import Crawl, Engine

ITEMS = 50
PATIENT = {"DQ_SHUTDOWN_GRACE": 60}
DOUBT = "If Redis fails now, the last puts may be lost"


@pytest.fixture
def powered(redis_kind: Kind, start_redis: StartRedis, tmp_path: Path, crawl_name: str) -> PoweredRedis:
    """Return a Redis whose disk has the crawl, with one item."""
    powered = PoweredRedis(start_redis, redis_kind, tmp_path)
    with Queue(crawl_name, url=powered.url) as q:
        q.put("first")
    return powered


def waiting(server: RedisServer, crawl: str) -> int:
    with server.client() as client:
        return peek(client, crawl).census.waiting


def asked(server: RedisServer) -> int:
    """Return how often clients have begun to wait for the disk. A wait begins with CONFIG GET appendfsync."""
    with server.client() as client:
        stats = client.info("commandstats")
    return sum(stats[name]["calls"] for name in stats if name in ("cmdstat_config", "cmdstat_config|get"))


def end_when_it_may(call: Callable[[], object], powered: PoweredRedis) -> object:
    """Make a call that must wait for an fsync, allow the fsync only during the wait, then cut the power."""
    before = asked(powered.server)
    ending = Background(call)
    wait_until(lambda: asked(powered.server) > before, "the call waits for the disk", 30)
    assert ending.blocked
    powered.open_gate()
    found = ending.wait(30)
    powered.lose_power()
    return found


def test_items_are_on_the_disk_when_a_queue_is_closed(powered: PoweredRedis, crawl_name: str) -> None:
    """close() returns only after an fsync that began after the last put."""
    q = Queue(crawl_name, url=powered.url, settings=PATIENT)
    powered.shut_gate()
    q.put_all(range(ITEMS))
    end_when_it_may(q.close, powered)
    assert waiting(powered.server, crawl_name) == 1 + ITEMS


def test_a_queue_that_is_not_durable_loses_items_in_a_power_loss(
    powered: PoweredRedis, crawl_name: str
) -> None:
    """Without the wait for the disk, the queue loses its puts. This shows what the other tests depend on."""
    q = Queue(crawl_name, url=powered.url, settings=PATIENT, durable=False)
    powered.shut_gate()
    q.put_all(range(ITEMS))
    q.close()
    powered.lose_power()
    assert waiting(powered.server, crawl_name) == 1


def test_items_are_on_the_disk_when_a_queue_is_flushed(powered: PoweredRedis, crawl_name: str) -> None:
    """flush() returns after the fsync, or raises with the reason. The queue remains usable."""
    q = Queue(crawl_name, url=powered.url, settings=PATIENT)
    powered.shut_gate()
    q.put_all(range(ITEMS))
    with pytest.raises(FrontierUnavailable, match="has not confirmed in time"):
        q.flush(timeout=1)
    end_when_it_may(q.flush, powered)
    assert waiting(powered.server, crawl_name) == 1 + ITEMS
    flushing = Background(q.flush)
    q.close()
    with suppress(ShutDown):
        flushing.wait()


def test_a_worker_that_has_put_nothing_leaves_at_once(powered: PoweredRedis, crawl_name: str) -> None:
    """A queue that only takes items need not wait for the disk."""
    q = Queue(crawl_name, url=powered.url, settings=PATIENT)
    before = asked(powered.server)
    powered.shut_gate()
    assert q.get() == "first"
    q.task_done()
    q.close()
    powered.open_gate()
    assert asked(powered.server) == before


def test_a_disk_that_takes_too_long_is_reported(
    powered: PoweredRedis, crawl_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """close() gives up after DQ_SHUTDOWN_GRACE, and logs that the item may be lost."""
    q = Queue(crawl_name, url=powered.url, settings={"DQ_SHUTDOWN_GRACE": 1})
    powered.shut_gate()
    q.put("late")
    q.close()
    assert [text for text in caplog.messages if DOUBT in text] == [
        f"{DOUBT}: it has not confirmed in time that the data is on its disk"
    ]
    assert waiting(powered.server, crawl_name) == 2
    powered.open_gate()


def test_a_roll_back_while_a_queue_closes_loses_no_item(powered: PoweredRedis, crawl_name: str) -> None:
    """The queue stores the forgotten items again, and waits for the disk again."""
    q = Queue(crawl_name, url=powered.url, settings=PATIENT)
    q.put("second")
    before = powered.server.snapshot()
    powered.shut_gate()
    q.put_all(range(ITEMS))
    asked_before = asked(powered.server)
    closing = Background(q.close)
    wait_until(lambda: asked(powered.server) > asked_before, "close() waits for the disk")
    powered.roll_back(before)
    closing.wait(30)
    powered.lose_power()
    assert waiting(powered.server, crawl_name) == 2 + ITEMS


@pytest.fixture
def project(powered: PoweredRedis, crawl_name: str, make_project: MakeProject) -> Project:
    return make_project(
        ["http://127.0.0.1:9/"], redis_url=powered.url, settings={"DQ_CRAWL": crawl_name, **PATIENT}
    )


def test_pushed_requests_are_on_the_disk_when_the_command_ends(
    powered: PoweredRedis, crawl_name: str, project: Project
) -> None:
    """`scrapy dq push` ends only after an fsync that began after the push."""
    urls = [f"http://127.0.0.1:9/{n}" for n in range(ITEMS)]
    powered.shut_gate()
    pushing = end_when_it_may(lambda: run_dq(project, "push", project.name, *urls), powered)
    assert (pushing.returncode, pushing.stderr) == (0, "")  # type: ignore[attr-defined]
    assert waiting(powered.server, crawl_name) == 1 + ITEMS


def test_a_push_with_no_wait_loses_requests_in_a_power_loss(
    powered: PoweredRedis, crawl_name: str, project: Project
) -> None:
    """With --no-wait, the command does not wait for the disk, and a power loss removes the pushed URL."""
    powered.shut_gate()
    assert run_dq(project, "push", project.name, "--no-wait", "http://127.0.0.1:9/1").returncode == 0
    powered.lose_power()
    assert waiting(powered.server, crawl_name) == 1


def test_a_worker_leaves_when_its_start_requests_are_on_the_disk(
    powered: PoweredRedis, crawl_name: str
) -> None:
    """The worker waits for the disk if it leaves an open run. At the end of a run, it does not wait."""

    async def put_and_leave(name: str, count: int, finish: bool) -> None:
        async with Engine(Crawl(powered.url, name, size=count)) as engine:
            engine.seed(range(count))
            if finish:
                await engine.run()
            await engine.stop(60)

    name = f"{crawl_name}-worker"
    asyncio.run(put_and_leave(name, 1, False))
    powered.shut_gate()
    asyncio.run(put_and_leave(f"{name}-finished", ITEMS, True))
    end_when_it_may(lambda: asyncio.run(put_and_leave(name, ITEMS, False)), powered)
    assert waiting(powered.server, name) == ITEMS


def replicated(start_redis: StartRedis) -> tuple[RedisServer, RedisServer]:
    """Return a primary, and a replica that has all its data."""
    primary, replica = (start_redis(appendonly=True) for _ in range(2))
    with replica.client() as client:
        client.replicaof("127.0.0.1", primary.port)  # type: ignore[no-untyped-call]
        wait_until(lambda: client.info()["master_link_status"] == "up", "the replica has all data")
    with primary.client() as client:
        wait_until(
            lambda: client.info().get("slave0", {}).get("state") == "online", "the primary knows the replica"
        )
    return primary, replica


def wait_for_silent(
    replica: RedisServer, primary: RedisServer, q: Queue, call: Callable[[], object]
) -> Background:
    """Freeze the replica, put items that it cannot confirm, and start a call that must wait for it."""
    replica.suspend()
    q.put_all(range(ITEMS))
    begun = Background(call)
    with primary.client() as client:
        wait_until(
            lambda: "cmdstat_wait" in str(client.info("commandstats")), "the call waits for the replica"
        )
    assert begun.blocked
    return begun


def test_a_failover_to_a_replica_keeps_all_items(start_redis: StartRedis, crawl_name: str) -> None:
    """close() returns only after all connected replicas have the items."""
    primary, replica = replicated(start_redis)
    q = Queue(crawl_name, url=primary.url, settings=PATIENT)
    closing = wait_for_silent(replica, primary, q, q.close)
    replica.resume()
    closing.wait(30)
    primary.kill()
    with replica.client() as client:
        client.replicaof("no", "one")  # type: ignore[no-untyped-call]
    assert waiting(replica, crawl_name) == ITEMS


def test_a_flush_does_not_wait_for_a_replica_that_is_gone_for_good(
    start_redis: StartRedis, crawl_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it waited for such a replica, a flush without a timeout would never return."""
    primary, replica = replicated(start_redis)
    monkeypatch.setattr(durability, "GONE_S", 0.5)
    with Queue(crawl_name, url=primary.url, settings=PATIENT) as q:
        flushing = wait_for_silent(replica, primary, q, q.flush)
        replica.kill()
        flushing.wait(30)


def test_without_an_aof_a_queue_closes_with_one_warning(
    start_redis: StartRedis, crawl_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The warning says that Redis has no AOF."""
    caplog.set_level(logging.WARNING)
    with Queue(crawl_name, url=start_redis().url, settings=PATIENT) as q:
        q.put("item")
    assert [text for text in caplog.messages if DOUBT in text] == [f"{DOUBT}: it has no AOF"]
