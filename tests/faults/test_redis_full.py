"""Redis's memory or disk is full. The crawl pauses, logs the reason, and continues when there is room."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import count
from pathlib import Path

import pytest
import redis

from support import outages
from support.fault_crawl import FaultCrawl
from support.fault_spiders import GATHERED, start_together
from support.given import MakeCrawl, StartRedis
from support.redis_server import Kind, find_binary
from support.scrapy_redis_crawl import run_dq
from support.small_disk import SmallDisk, small_disk
from support.waiting import repeated, wait_until
from support.worker import Worker

PAUSE_S = 1.0
FOREIGN_VALUE = b"x" * 10_000


def assert_paused(crawl: FaultCrawl, workers: Sequence[Worker], number: int) -> None:
    """Wait until the workers report outage *number*. Check that no page is done and that no worker ends."""
    for worker in workers:
        wait_until(lambda w=worker: w.text.count(outages.WARNING) == number, "a warning")
    # During this pause, the workers finish the requests that they hold.
    time.sleep(PAUSE_S)
    before = crawl.done.total()
    time.sleep(PAUSE_S)
    assert crawl.done.total() == before < crawl.pages
    assert len(crawl.live) == len(workers)
    assert not any(worker.close_reason for worker in workers)


def workers_waiting_for(crawl: FaultCrawl, reason: str) -> int:
    """Return how many workers report a reason for their wait that contains *reason*."""
    return sum(reason in member.waits_for for member in crawl.overview().members)


def assert_complete(crawl: FaultCrawl, workers: Sequence[Worker], pauses: int, says: str) -> None:
    """Assert that nothing was lost or done twice, and that each worker has reported each pause."""
    crawl.end_whole(pauses=pauses)
    outages.assert_outages_logged(workers, pauses, says)
    assert all("dq/rejoins" not in worker.stats for worker in workers)


@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.soak)])
def test_a_crawl_waits_until_redis_has_memory_again(
    times: int, redis_kind: Kind, start_redis: StartRedis, fault_crawl: MakeCrawl
) -> None:
    """If Redis uses more than maxmemory, both workers pause with a warning until the limit is raised."""
    server = start_redis(redis_kind, appendonly=True)
    crawl = fault_crawl(
        server,
        site={"pages": 150 + 150 * times, "latency_s": 0.04},
        settings={"CONCURRENT_REQUESTS": 4},
        spider=GATHERED,
    )
    with server.client() as client:
        workers = start_together(crawl)
        for number in range(times):
            crawl.wait_for_part(0.05 + 0.35 * number / times)
            client.config_set("maxmemory", client.info("memory")["used_memory"] // 2)
            assert_paused(crawl, workers, number + 1)
            wait_until(lambda: workers_waiting_for(crawl, "memory is full") == 2, "both workers report it")
            client.config_set("maxmemory", 0)
            outages.wait_for_ends(workers, number + 1)
        assert_complete(crawl, workers, times, "memory is full")


@pytest.mark.parametrize("pages", [400, pytest.param(3_000, marks=pytest.mark.soak)])
def test_volatile_ttl_evicts_no_key_of_a_crawl(
    pages: int, start_redis: StartRedis, fault_crawl: MakeCrawl
) -> None:
    """Redis evicts other keys. The workers warn about the policy, and lose nothing."""
    # Redis evicts the key with the shortest TTL in a sample. If the crawl's keys had a TTL, Redis could evict
    # one.
    policy = ["--maxmemory-policy", "volatile-ttl", "--maxmemory-samples", "64"]
    server = start_redis(appendonly=True, maxmemory="6mb", args=policy)
    with server.client() as client:
        for number in range(500):
            client.set(f"first-{number}", FOREIGN_VALUE, ex=2000)
        crawl = fault_crawl(server, site={"pages": pages}, spider=GATHERED)
        names = count()

        def use_cache() -> None:
            with suppress(redis.ResponseError):  # Redis found no key to evict
                client.set(f"foreign-{next(names)}", FOREIGN_VALUE, ex=1000)

        with repeated(use_cache, 0.002):
            workers = start_together(crawl)
            crawl.end_whole()
        assert client.info("stats")["evicted_keys"] > 100

    for worker in workers:
        (warning,) = outages.lines(worker, "WARNING")
        assert "maxmemory-policy volatile-ttl" in warning
        outages.assert_no_outage_logged(worker)


@pytest.fixture
def mount() -> Iterator[Callable[[Path], SmallDisk]]:
    """Yield a function that mounts a small disk at a folder, or skips the test if mounting is not allowed."""
    with ExitStack() as disks:

        def at(folder: Path) -> SmallDisk:
            try:
                return disks.enter_context(small_disk(folder))
            except PermissionError as error:
                pytest.skip(f"no file system can be mounted here: {error}")

        yield at


@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.soak)])
def test_a_crawl_waits_until_the_disk_of_the_embedded_redis_has_room(
    times: int,
    redis_kind: Kind,
    mount: Callable[[Path], SmallDisk],
    fault_crawl: MakeCrawl,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a full disk, both workers pause with a warning. They continue when there is room again."""
    (folder := tmp_path / "first").mkdir()
    (folder / "valkey-server").symlink_to(str(find_binary(redis_kind)))
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    crawl = fault_crawl(
        None,
        site={"pages": 150 + 150 * times, "latency_s": 0.04},
        settings={"CONCURRENT_REQUESTS": 4},
        spider=GATHERED,
    )
    disk = mount(crawl.project.folder / ".scrapy" / "dq")
    workers = start_together(crawl)
    for number in range(times):
        crawl.wait_for_part(0.05 + 0.35 * number / times)
        disk.fill()
        assert_paused(crawl, workers, number + 1)
        for words, shown in (
            (("status", "--no-rate"), "Redis refuses writes: the last write of its AOF failed"),
            (("doctor",), "bad disk the last write of its AOF failed"),
        ):
            done = run_dq(crawl.project, *words, crawl.project.name)
            assert shown in " ".join(done.stdout.split()), done.stdout + done.stderr
        disk.free()
        outages.wait_for_ends(workers, number + 1)
    assert_complete(crawl, workers, times, "No space left on device")
