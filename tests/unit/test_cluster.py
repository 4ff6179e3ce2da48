"""The URL of a Redis Cluster, and clients that follow the keys of a crawl to their node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.crc import key_slot

from scrapy_dq.backend import connection as module
from scrapy_dq.backend.clients import connect_url, get_redis_from_settings
from scrapy_dq.backend.cluster import Route, _Follows, tag_of
from scrapy_dq.backend.connection import Connection, client_for_commands
from scrapy_dq.frontier import kept, keys, peek
from scrapy_dq.frontier.admin.overview import described
from scrapy_dq.frontier.errors import moved_to
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.model import Order
from scrapy_dq.frontier.rights import acl_of
from scrapy_dq.items.writer import ItemNotStored, ItemWriter
from scrapy_dq.settings import Config, ConfigError
from scrapy_dq.settings.redis_address import check_url, split_cluster_url
from support.clusters import Cluster
from support.given import StartRedis
from support.waiting import free_port, patience

GOOD = {
    "redis+cluster://host": ((("host", 6379),), "redis://host:6379/0"),
    "redis+cluster://host:1,b:65535/": ((("host", 1), ("b", 65535)), "redis://host:1/0"),
    "rediss+cluster://me:p%2F%40@[::1]:5,[fe80::2]/0?ssl_cert_reqs=none": (
        (("::1", 5), ("fe80::2", 6379)), "rediss://me:p%2F%40@[::1]:5/0?ssl_cert_reqs=none",
    ),
}  # fmt: skip
BAD = [
    "redis+cluster://",
    "redis+cluster:///0",
    "redis+cluster://s3cr3t:0",
    "redis+cluster://s3cr3t:x",
    "redis+cluster://s3cr3t,",
    "redis+cluster://s3cr3t/1",
    "redis+cluster://:s3/cr3t@host",
    "redis+cluster://:s3#cr3t@host",
    "redis+cluster://:s3?cr3t@host",
    "redis+clusters://s3cr3t",
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(password="pass", masters=3) as made:
        yield made


@pytest.mark.parametrize("url", GOOD)
def test_a_url_names_nodes_and_the_options_of_each(url: str) -> None:
    check_url("REDIS_URL", url)
    assert split_cluster_url(url) == GOOD[url]


@pytest.mark.parametrize("url", BAD)
def test_a_wrong_url_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ConfigError, match=r"expected redis://.*redis\+cluster://") as refusal:
        connect_url(url)
    assert "s3" not in str(refusal.value)


@pytest.mark.parametrize(
    ("error", "node"),
    [
        (redis.ResponseError("MOVED 1 a.com:7"), ("a.com", 7)),
        (redis.exceptions.MovedError("1 ::1:7"), ("::1", 7)),
        (redis.exceptions.MovedError("1 :7"), ("", 7)),
        (redis.exceptions.AskError("1 a.com:7"), None),
        (redis.ResponseError("1 a.com:7"), None),
        (redis.ConnectionError("MOVED 1 a.com:7"), None),
    ],
)
def test_the_node_in_a_moved_error_is_read(error: Exception, node: tuple[str, int] | None) -> None:
    assert moved_to(error) == node


def test_a_route_leads_to_the_named_node_while_it_answers() -> None:
    """When the node fails, the route tries the nodes of the URL. An error of another node is ignored."""
    route = Route((("a", 1), ("b", 2)))
    assert route.address == ("a", 1)
    route.named(("c", 3))
    route.failed(("a", 1))
    assert route.address == ("c", 3)
    route.failed(("c", 3))
    assert route.address == ("a", 1)
    route.failed(("a", 1))
    route.failed(("a", 1))
    assert route.address == ("b", 2)
    route.failed(("b", 2))
    assert route.address == ("a", 1)


@pytest.mark.parametrize(
    ("error", "leads_to"),
    [
        (redis.ResponseError("MOVED 1 c:3"), ("c", 3)),
        (redis.ResponseError("MOVED 1 :3"), ("a", 3)),
        (redis.ResponseError("CLUSTERDOWN Hash slot not served"), ("b", 2)),
        (redis.exceptions.ClusterDownError("The cluster is down"), ("b", 2)),
        (redis.TimeoutError("Timeout reading from a:1"), ("b", 2)),
        (redis.ResponseError("OOM command not allowed"), ("a", 1)),
        (redis.exceptions.AskError("1 c:3"), ("a", 1)),
    ],
)
def test_only_an_error_of_a_node_that_does_not_serve_leads_to_another_node(
    error: Exception, leads_to: tuple[str, int]
) -> None:
    """A client leaves a node that does not serve the keys. After any other error, it stays."""
    connection = _Follows()
    connection._route = Route((("a", 1), ("b", 2)))
    connection.host, connection.port = connection._route.address
    assert connection._leads_away(error) == (leads_to != ("a", 1))
    assert connection._route.address == leads_to


def test_a_client_waits_for_a_cluster_that_is_failing_over(
    start_redis: StartRedis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A node answers CLUSTERDOWN as long as some slots belong to no node."""
    server = start_redis(args=["--cluster-enabled", "yes"])
    monkeypatch.setattr(module, "START_PATIENCE_S", patience(60.0))
    caplog.set_level("INFO")

    async def open_it() -> dict[str, Any]:
        connection = Connection(Config("crawl", redis_url=f"redis+cluster://127.0.0.1:{server.port}"), Path())
        opening = asyncio.create_task(connection.open())
        while "Waiting up to" not in caplog.text:
            await asyncio.sleep(0.01)
            assert not opening.done()
        with server.client() as client:
            client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
        try:
            return dict(await (await opening).cluster("INFO"))
        finally:
            await connection.close()

    assert asyncio.run(open_it())["cluster_state"] == "ok"


@pytest.mark.parametrize("key", ["books:items", "a{b}c{d}", "{a", b"\xff{\xfe}"])
def test_a_hash_tag_leads_to_the_slot_of_a_key(key: str | bytes) -> None:
    name = key if isinstance(key, bytes) else key.encode()
    assert key_slot(tag_of(key).encode("utf-8", "surrogateescape") + b":more") == key_slot(name)


@pytest.mark.parametrize("key", ["a}b", "{}x", "x{}y{z}"])
def test_a_key_without_a_possible_hash_tag_raises(key: str) -> None:
    """Redis hashes these keys as a whole. A hash tag ends at the first `}`, so it cannot contain them."""
    with pytest.raises(ValueError, match="no hash tag"):
        tag_of(key)


def test_all_clients_of_a_crawl_find_its_node(cluster: Cluster) -> None:
    """Clients start from any node, even a replica. The clients of one connection share the found node."""
    for crawl in ("one", "two", "three", "four"):
        config = Config(crawl, redis_url=cluster.url)
        with client_for_commands(config, Path()) as (client, target, *_):
            assert "pass" not in target
            assert target.endswith(" (Redis Cluster)")
            assert peek(client, crawl).phase == "absent"
            assert client.connection_pool.route.address[1] == cluster.owner(keys.meta(crawl)).port
        asyncio.run(_use(Connection(config, Path()), crawl, cluster))
    with get_redis_from_settings({"REDIS_URL": cluster.url}) as client:
        assert peek(client, "five").phase == "absent"


def test_commands_ask_the_next_node_if_the_first_one_is_gone(cluster: Cluster) -> None:
    nodes = f"127.0.0.1:{free_port()},127.0.0.1:{cluster.servers[0].port}"
    config = Config("crawl", redis_url=f"redis+cluster://:pass@{nodes}")
    with client_for_commands(config, Path()) as (client, _, connect, _):
        assert peek(client, "crawl").phase == "absent"
        assert connect(1) is connect(1)


def test_one_client_reads_the_crawls_of_all_nodes(cluster: Cluster) -> None:
    """Commands that run no script also find the crawls: a node's MOVED error names the node with the keys."""
    with connect_url(cluster.url) as client:
        for crawl in ("one", "two", "three", "four"):
            assert kept(client, crawl, "failed") == []
            assert described(client, crawl)["spider"] == ""


@pytest.mark.parametrize("may_know", [True, False])
def test_an_observer_finds_all_masters(
    cluster: Cluster, may_know: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Without the right to run CLUSTER SLOTS, the observer sees one node's crawls, and a message says why."""
    user = f"observer-{may_know}"
    for server in cluster.servers:
        rights = acl_of("observer").split() if may_know else ["+@read"]
        cluster.run(server, "ACL", "SETUSER", user, "on", ">secret", "~dq:*", "+@connection", *rights)
    config = Config("crawl", redis_url=cluster.url.replace(":pass@", f"{user}:secret@"))
    with client_for_commands(config, Path()) as (client, _, _, of_nodes):
        nodes = of_nodes()
        ports = {each.info("server")["tcp_port"] for each in nodes} if may_know else set()
        assert (nodes == [client]) != may_know
        again = of_nodes()
    with client_for_commands(config, Path(), any_node=True) as (client, *_):
        assert client.ping()
    assert ports == ({each.port for each in cluster.servers[:3]} if may_know else set())
    assert all(one is other for one, other in zip(nodes, again, strict=True))
    assert caplog.text.count("CLUSTER SLOTS") == (not may_know)


async def _use(connection: Connection, crawl: str, cluster: Cluster) -> None:
    client = await connection.open(quiet=True)
    try:
        await Frontier(client, crawl, Order.FIFO).members()
        owner = cluster.owner(keys.meta(crawl)).port
        with connection.blocking() as other:
            assert other.connection_pool.route is client.connection_pool.route  # type: ignore[attr-defined]
            assert other.info("server")["tcp_port"] == owner
        connection.require_one_slot(crawl, [f"{keys.prefix(crawl)}fed"])
    finally:
        await connection.close()


def test_items_are_written_to_one_slot(cluster: Cluster) -> None:
    """The writer's mark, a key that reveals a roll-back of Redis, is in the slot of the first item.

    So the writer refuses an item for another slot.
    """
    asyncio.run(_write(cluster))
    with connect_url(cluster.url) as client:
        for _ in range(3):
            try:
                assert client.lrange("books:items", 0, -1) == [b"1", b"2"]
                break
            except redis.ResponseError:
                continue  # MOVED
        else:
            pytest.fail("not found")


async def _write(cluster: Cluster) -> None:
    def nothing(*_: Any) -> Any:
        return ""

    writer = ItemWriter(
        Connection(Config("crawl", redis_url=cluster.url), Path()), "list",
        closing=lambda: False, grace_s=5, horizon_s=5, given_up=nothing, counted=nothing,
    )  # fmt: skip
    try:
        await writer.write("books:items", b"1")
        await writer.write("books:items", b"2")
        with pytest.raises(ItemNotStored, match="one hash tag"):
            await writer.write("others:items", b"3")
    finally:
        await writer.close()
