"""The tests' own tools must work, because tests with a faulty proxy, site or server would prove nothing."""

from __future__ import annotations

import json
import re
from functools import partial

import pytest
import redis

from support.given import MakeProject, StartProxy, StartSite
from support.project import PLAIN, SPIDER, Project
from support.proxy import RedisProxy
from support.redis_server import RedisServer
from support.resp import Framer
from support.waiting import wait_until


@pytest.fixture
def proxy(redis_server: RedisServer, start_proxy: StartProxy) -> RedisProxy:
    return start_proxy(redis_server.url)


@pytest.fixture
def through(proxy: RedisProxy, redis_server: RedisServer) -> redis.Redis:
    """Return a client that connects through the proxy, without retries."""
    client = redis_server.client(socket_timeout=2)
    options = client.connection_pool.connection_kwargs | {"port": int(proxy.url.split(":")[-1].split("/")[0])}
    return redis.Redis(connection_pool=redis.ConnectionPool(**options))


def test_a_stream_is_cut_into_the_same_messages_wherever_its_chunks_end() -> None:
    """Nested arrays, maps, attributes, pushes and nil are one message each."""
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
    """The client loses its connection once, but Redis has applied the command."""
    through.incr(crawl_name)
    fault = proxy.cut_next_reply("INCRBY", containing=crawl_name.encode())
    assert through.get(crawl_name) == b"1"
    with pytest.raises(redis.ConnectionError):
        through.incr(crawl_name)
    assert fault.fired
    assert redis_server.client().get(crawl_name) == b"2"
    assert through.incr(crawl_name) == 3


def test_a_held_command_arrives_when_released(
    proxy: RedisProxy, through: redis.Redis, redis_server: RedisServer, crawl_name: str
) -> None:
    """A command may reach Redis long after its sender has given up."""
    fault = proxy.hold_next_command("SET")
    with pytest.raises(redis.ConnectionError):
        through.set(crawl_name, "late")
    fault.wait()
    through.set(crawl_name, "early")
    proxy.drop_connections()
    fault.release()
    direct = redis_server.client()
    wait_until(lambda: direct.get(crawl_name) == b"late", "the command arrives")
    assert proxy.connections == 0


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


def test_a_forked_worker_behaves_like_a_started_one(make_project: MakeProject, start_site: StartSite) -> None:
    """The forked worker has the same environment, and its end is reported in the same way."""
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
        found.append(re.sub(r"<Coverage @.*?>", "<Coverage>", text))  # the signal handler of `make coverage`
    assert json.loads(found[0]) == json.loads(found[1])
