"""The tests' own tools: a proxy, a site or a server that lies would prove nothing."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import redis

from support.project import PLAIN, SPIDER, Project
from support.proxy import RedisProxy
from support.redis_server import RedisServer
from support.resp import Framer
from support.tree_site import TreeSite
from support.waiting import Stopwatch, wait_until

StartRedis = Callable[..., RedisServer]
StartProxy = Callable[[str], RedisProxy]


@pytest.fixture
def proxy(redis_server: RedisServer, start_proxy: StartProxy) -> RedisProxy:
    return start_proxy(redis_server.url)


@pytest.fixture
def through(proxy: RedisProxy, redis_server: RedisServer) -> redis.Redis:
    """A client behind the proxy, without retries."""
    client = redis_server.client(socket_timeout=2)
    options = client.connection_pool.connection_kwargs | {"port": int(proxy.url.split(":")[-1].split("/")[0])}
    return redis.Redis(connection_pool=redis.ConnectionPool(**options))


def test_a_stream_is_cut_into_messages_wherever_its_chunks_end() -> None:
    """Nested arrays, maps, attributes, pushes and nil are each one message."""
    messages = [
        b"+OK\r\n",
        b"*2\r\n$3\r\nGET\r\n$4\r\n\r\n\r\n\r\n",
        b"*-1\r\n",
        b"$-1\r\n",
        b"%1\r\n+a\r\n*2\r\n:1\r\n~1\r\n_\r\n",
        b">2\r\n+invalidate\r\n*0\r\n",
        b"|1\r\n+ttl\r\n:1\r\n:7\r\n",
    ]
    stream = b"".join(messages)
    for size in (1, 2, 7, len(stream)):
        framer = Framer()
        chunks = (stream[at : at + size] for at in range(0, len(stream), size))
        assert [message for chunk in chunks for message in framer.feed(chunk)] == messages


def test_a_cut_reply_leaves_its_command_applied(
    proxy: RedisProxy, through: redis.Redis, redis_server: RedisServer, crawl_name: str
) -> None:
    """The client sees a lost connection, once; Redis has counted."""
    through.incr(crawl_name)
    fault = proxy.cut_next_reply("INCRBY", containing=crawl_name.encode())
    assert through.get(crawl_name) == b"1"
    with pytest.raises(redis.ConnectionError):
        through.incr(crawl_name)
    assert fault.fired
    assert redis_server.client().get(crawl_name) == b"2"
    assert through.incr(crawl_name) == 3


def test_random_loss_hits_about_its_share(proxy: RedisProxy, through: redis.Redis, crawl_name: str) -> None:
    """Every command is applied once, and the loss is repeatable by its seed."""
    proxy.set_loss(0.2, seed=1)
    lost = 0
    for _ in range(100):
        try:
            through.incr(crawl_name)
        except redis.ConnectionError:
            lost += 1
    proxy.set_loss(0)
    assert through.get(crawl_name) == b"100"
    assert 10 <= lost <= 30


def test_a_held_command_arrives_when_released(
    proxy: RedisProxy, through: redis.Redis, redis_server: RedisServer, crawl_name: str
) -> None:
    """A sent command may still arrive long after its sender gave up."""
    fault = proxy.hold_next_command("SET")
    with pytest.raises(redis.ConnectionError):
        through.set(crawl_name, "late")
    fault.wait()
    through.set(crawl_name, "early")
    proxy.drop_connections()
    fault.release()
    direct = redis_server.client()
    wait_until(lambda: direct.get(crawl_name) == b"late", "it arrives")
    assert proxy.connections == 0


def test_latency_does_not_serialise(proxy: RedisProxy, crawl_name: str) -> None:
    """50 commands sent apart on one connection take about one round trip, and stay in order."""

    async def crowd() -> tuple[float, list[bytes]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(proxy.url.split(":")[-1][:-2]))
        began, clock = time.monotonic(), Stopwatch()
        for _ in range(50):
            writer.write(b"INCR %s\r\n" % crawl_name.encode())
            await asyncio.sleep(0.001)
        replies = [await reader.readline() for _ in range(50)]
        writer.close()
        assert clock.seconds < 0.6
        return time.monotonic() - began, replies

    proxy.set_delay(each_way_s=0.1)
    took_s, replies = asyncio.run(crowd())
    assert replies == [b":%d\r\n" % number for number in range(1, 51)]
    assert took_s > 0.2


def test_a_black_hole_is_silent_and_a_refusal_is_not(
    proxy: RedisProxy, through: redis.Redis, redis_server: RedisServer
) -> None:
    """Both end with pass_through."""
    impatient = redis.Redis(port=int(proxy.url.split(":")[-1][:-2]), socket_timeout=0.1)
    impatient.set_retry(redis.retry.Retry(redis.backoff.NoBackoff(), 0))
    through.ping()
    proxy.black_hole()
    with pytest.raises(redis.TimeoutError):
        impatient.ping()
    proxy.refuse()
    with pytest.raises(redis.ConnectionError):
        impatient.ping()
    with pytest.raises(redis.ConnectionError):
        through.ping()
    proxy.pass_through()
    assert through.ping()
    assert impatient.ping()


@pytest.mark.parametrize("unix", [False, True])
def test_a_server_keeps_address_and_data_through_a_kill(
    start_redis: StartRedis, start_proxy: StartProxy, unix: bool
) -> None:
    """SIGKILL and start: same URL, same keys; a roll-back forgets what came after the snapshot."""
    always = ["--appendfsync", "always"]
    server = start_redis(unix=unix, appendonly=True, password="a/b c", args=always)
    url = server.url
    client = redis.Redis.from_url(url if unix else start_proxy(url).url)
    client.set("a", 1)
    before = server.snapshot()
    client.set("b", 1)
    server.restart(kill=True)
    assert server.url == url
    assert client.exists("a", "b") == 2
    server.roll_back(before)
    assert client.exists("a", "b") == 1


def test_a_server_holds_no_pipe_of_who_started_it(start_redis: StartRedis) -> None:
    """Who reads the output of a process to its end waits for all that hold it, its server too."""
    server = start_redis()
    assert {os.readlink(f"/proc/{server.pid}/fd/{number}") for number in (0, 1, 2)} == {"/dev/null"}


def test_a_full_server_says_so(start_redis: StartRedis) -> None:
    """maxmemory reaches the server, and two servers run side by side."""
    other, server = start_redis(), start_redis(maxmemory="4mb")
    client = server.client()

    def fill() -> None:
        for number in range(100):
            client.set(str(number), b"x" * 100_000)

    with pytest.raises(redis.OutOfMemoryError):
        fill()
    assert other.client().dbsize() == 0


def test_the_site_counts_and_behaves_as_asked(start_site: Callable[..., TreeSite]) -> None:
    """503 once per flaky page, redirects, delays, statuses."""
    site = start_site(pages=10, fan_out=3, flaky_every=4, redirect_every=5)
    assert site.get("/p/1").count(b"<a ") == 3
    assert [site.get("/p/4") == b"try again" for _ in range(2)] == [True, False]
    assert site.get("/p/5") == b""
    assert "/r/5" in site.paths
    assert b"<title>5</title>" in site.get("/r/5")
    began, clock = time.monotonic(), Stopwatch()
    with ThreadPoolExecutor() as pool:
        list(pool.map(site.get, ["/slow?s=0.2"] * 5))
    assert time.monotonic() - began >= 0.2
    assert clock.seconds < 0.8
    assert site.hits() == {"/p/1": 1, "/p/4": 2, "/p/5": 1, "/r/5": 1, "/slow?s=0.2": 5}
    assert [hit.target for hit in site.log()][:2] == ["/p/1", "/p/4"]
    site.reset()
    assert not site.hits()


def test_a_project_crawls_every_page_and_tells_it(
    start_site: Callable[..., TreeSite], make_project: Callable[..., Project]
) -> None:
    """With plain Scrapy: each page requested, recorded and turned into an item once."""
    site = start_site(pages=30, fan_out=3, flaky_every=7, redirect_every=5)
    project = make_project([site.start_url], settings=PLAIN)
    worker = project.run_to_end(timeout_s=30)
    once = dict.fromkeys(site.paths, 1)
    assert project.count("start") == project.count("item") == project.count("done") == once
    assert project.count(pids=[worker.pid]) == once
    assert project.count(pids=[1]) == {}
    assert worker.stats["item_scraped_count"] == 30
    assert worker.stats["retry/count"] == sum(site.hits().values()) - 30 - 6


def test_a_killed_worker_is_not_waited_for(
    start_site: Callable[..., TreeSite], make_project: Callable[..., Project]
) -> None:
    """A crawl that never ends: kill -9 leaves no close reason, a deadline raises with the log."""
    site = start_site()
    project = make_project([site.url("/slow?s=60")], settings=PLAIN)
    killed, slow = project.start_workers(2)
    killed.wait_for_log("Spider opened")
    killed.kill()
    assert (killed.wait(), killed.close_reason, killed.stats) == (-9, None, {})
    slow.wait_for_log("Spider opened")
    with pytest.raises(TimeoutError, match="Spider opened"):
        slow.wait(0.1)
    assert not slow.running


LOOKS = (
    SPIDER
    + """
import json, os, signal, sys, threading

seen = {
    "path": sys.path,
    "argv": sys.argv,
    "environ": dict(os.environ),
    "folder": os.getcwd(),
    "leads its session": os.getsid(0) == os.getpid(),
    "handlers": [str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)],
    "threads": threading.active_count(),
    "files": len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else None,
    "flags": [sys.dont_write_bytecode, sys.stdin.read(), sys.stdout.isatty()],
}
with open(f"seen-{os.getpid()}", "w") as file:
    json.dump(seen, file)
"""
)


def test_a_forked_worker_is_as_one_that_is_started(
    make_project: Callable[..., Project], start_site: Callable[..., TreeSite]
) -> None:
    """It sees the same, ends in the same way, and its end is reported in the same way."""
    site = start_site(pages=30, latency_s=0.05)
    forked = make_project([site.start_url], settings=PLAIN, spider=LOOKS)
    started = Project(forked.folder / "another", [site.start_url], settings=PLAIN, spider=LOOKS)
    found = []
    for project in (forked, started):
        killed, ends = project.start_workers(2)
        wait_until(partial(project.count, pids=[killed.pid]), "a page is done")
        killed.kill()
        assert not killed.running
        assert (killed.wait(), ends.wait(), ends.close_reason) == (-9, 0, "finished")
        text = (project.folder / f"seen-{ends.pid}").read_text()
        text = text.replace(str(project.folder), "…").replace(project.name, "…")
        found.append(re.sub(r"<Coverage @.*?>", "<Coverage>", text))  # its handler, in `make coverage`
    assert json.loads(found[0]) == json.loads(found[1])
