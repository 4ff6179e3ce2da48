"""The URL of Redis Sentinel, and clients that ask Sentinel for the master and follow a failover."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import redis

from scrapy_dq.backend import sentinel
from scrapy_dq.backend.clients import connect_url, get_redis, get_redis_from_settings, new_client
from scrapy_dq.backend.connection import Connection, client_for_commands
from scrapy_dq.frontier.model import FrontierRefused
from scrapy_dq.settings import Config, ConfigError
from scrapy_dq.settings.redis_address import check_url, split_sentinel_url
from support.redis_server import RedisServer
from support.sentinels import SERVICE, Sentinels
from support.waiting import free_port, wait_until

PASSWORD, OF_SENTINEL = "s3cr3t/&%40", "0ther"
GOOD = {
    "redis+sentinel://host/service": ((("host", 26379),), "service", "redis://localhost/"),
    "redis+sentinel://host:1,b:65535/a%20b/3": ((("host", 1), ("b", 65535)), "a b", "redis://localhost/3"),
    "rediss+sentinel://me:p%2F%40@[::1]:5,[fe80::2]/s/0?ssl_cert_reqs=none&sentinel_password=x": (
        (("::1", 5), ("fe80::2", 26379)), "s", "rediss://me:p%2F%40@localhost/0?ssl_cert_reqs=none&sentinel_password=x",
    ),
}  # fmt: skip
BAD = [
    "redis+sentinel://",
    "redis+sentinel:///s3cr3t",
    "redis+sentinel://s3cr3t,/service",
    "redis+sentinel://s3cr3t:65536/service",
    "redis+sentinel://s3cr3t:x/service",
    "redis+sentinel://:s3/cr3t@host/service",
    "redis+sentinel://:s3,cr3t/@host/service",
    "redis+sentinel://s3cr3t/service/x",
    "redis+sentinel://s3 cr3t/service",
    "redis+sentinels://s3cr3t/service",
    "REDIS://:s3cr3t@host",
    " redis://:s3cr3t@host",
]


@pytest.mark.parametrize("url", GOOD)
def test_a_url_names_hosts_service_and_options_of_the_master(url: str) -> None:
    check_url("REDIS_URL", url)
    assert split_sentinel_url(url) == GOOD[url]


@pytest.mark.parametrize("url", BAD)
def test_a_wrong_url_is_refused_without_showing_it(url: str) -> None:
    """Otherwise a part of the password could be taken for the service or a host, and be shown."""
    with pytest.raises(ConfigError, match=r"expected redis://.*redis\+sentinel://") as refusal:
        connect_url(url)
    assert "s3" not in str(refusal.value)


@pytest.mark.parametrize("cls", [redis.Redis, redis.asyncio.Redis])
def test_the_master_and_sentinel_get_their_own_options(cls: Any) -> None:
    """TLS options apply to both. Sentinel may have its own login and time-outs."""
    client = sentinel.sentinel_client(
        cls, "rediss+sentinel://me:pw@a,b/s/3?sentinel_username=him&ssl_ca_certs=ca.pem",
        socket_timeout=7, sentinel_password="his", sentinel_socket_timeout=1,
    )  # fmt: skip
    of_master, *others = (pool.connection_kwargs for pool in sentinel.pools_of(client))
    assert (of_master["username"], of_master["password"], of_master["db"]) == ("me", "pw", 3)
    assert (of_master["socket_timeout"], of_master["ssl_ca_certs"]) == (7, "ca.pem")
    assert "SSL" in client.connection_pool.connection_class.__name__
    assert [each["host"] for each in others] == ["a", "b"]
    for each in others:
        assert (each["username"], each["password"], each["db"]) == ("him", "his", 0)
        assert (each["socket_timeout"], each["ssl_ca_certs"]) == (1, "ca.pem")
    assert not any(name.startswith("sentinel") for name in of_master)


@pytest.fixture(scope="module")
def sentinels() -> Iterator[Sentinels]:
    with Sentinels(password=PASSWORD, sentinel_password=OF_SENTINEL) as made:
        yield made


def refusal_of(url: str) -> str:
    connection = Connection(Config("crawl", redis_url=url), Path())

    async def both() -> None:
        try:
            await connection.open()
        finally:
            await connection.close()

    with pytest.raises(FrontierRefused) as refusal:
        asyncio.run(both())
    return str(refusal.value)


def test_an_error_names_the_sentinels_and_the_reason(
    sentinels: Sentinels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error shows no login."""
    monkeypatch.setattr("scrapy_dq.backend.connection.START_PATIENCE_S", 0.2)
    for url, reason in {
        sentinels.url.replace(f"/{SERVICE}/", "/other/"): "no Sentinel names a master of 'other'",
        sentinels.url.replace(OF_SENTINEL, "wr0ng"): f"no Sentinel names a master of '{SERVICE}'; 127.0.0.1:",
        sentinels.url.partition("?")[0]: "Authentication required",
        f"redis+sentinel://127.0.0.1:{free_port()}/s": "Error 111",
        sentinels.url.replace("://:", "://:wr0ng"): "denies access",
    }.items():
        told = refusal_of(url)
        assert reason in told
        assert "(Sentinel 127.0.0.1:" in told
        for secret in ("s3cr3t", "wr0ng", OF_SENTINEL):
            assert secret not in told


def test_each_client_finds_the_master(sentinels: Sentinels, tmp_path: Path) -> None:
    master = str(sentinels.master.port)
    config = Config("crawl", redis_url=sentinels.url)
    with client_for_commands(config, tmp_path) as (client, target, *_):
        assert str(client.config_get("port")["port"]) == master
        assert target.startswith(f"{SERVICE}/0 (Sentinel 127.0.0.1:")
    for made in (
        connect_url(sentinels.url),
        get_redis(url=sentinels.url),
        get_redis_from_settings({"REDIS_URL": sentinels.url}),
    ):
        assert made.config_get("port") == {"port": master} or made.config_get(b"port") == {b"port": master}
        made.close()


def test_the_longest_down_after_time_of_all_sentinels_is_used(sentinels: Sentinels) -> None:
    """After this time, Sentinels declare a silent master dead. Until then, it may confirm lost writes."""
    with connect_url(sentinels.url) as client:
        assert sentinel.down_after_s(client) == 0.5
        with sentinels.sentinel(sentinels.ports[1]) as one:
            one.sentinel_set(SERVICE, "down-after-milliseconds", 700)
        assert sentinel.down_after_s(client) == 0.7
    with redis.Redis(port=sentinels.master.port) as alone:
        assert sentinel.down_after_s(alone) is None


def test_a_client_follows_a_master_that_still_answers(
    sentinels: Sentinels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old master is cut off, but still accepts writes. So the client regularly asks Sentinel again."""
    monkeypatch.setattr(sentinel, "ASK_EVERY_S", 0.1)
    old = sentinels.master
    port = lambda client: int(client.config_get("port")["port"])  # noqa: E731
    with connect_url(sentinels.url) as client:
        assert port(client) == old.port
        sentinels.separate(old)
        new = sentinels.wait_for_another_master(old)
        wait_until(lambda: port(client) == new.port, "the client follows", 10)


def test_the_client_of_a_worker_also_follows(sentinels: Sentinels, monkeypatch: pytest.MonkeyPatch) -> None:
    """A `redis.asyncio` client is made of other classes. It also follows, even if its connection is open."""
    monkeypatch.setattr(sentinel, "ASK_EVERY_S", 0.0)
    other = RedisServer(password=PASSWORD)

    async def another(service: str) -> tuple[str, int]:
        return "127.0.0.1", other.port

    async def follow() -> None:
        client = new_client(redis.asyncio.Redis, sentinels.url, {"decode_responses": True})
        try:
            assert await client.config_get("port") == {"port": str(sentinels.master.port)}
            monkeypatch.setattr(client.connection_pool.sentinel_manager, "discover_master", another)
            assert await client.config_get("port") == {"port": str(other.port)}
        finally:
            await client.aclose()

    with other:
        asyncio.run(follow())


def test_connections_can_ask_sentinel_at_the_same_time(sentinels: Sentinels) -> None:
    """No task may close the connection to Sentinel while another task waits for an answer on it."""
    pool = new_client(redis.asyncio.Redis, sentinels.url, {}).connection_pool

    async def one(number: int) -> Any:
        await asyncio.sleep(number / 5_000)  # so that a task gets its answer while the next task waits
        return await pool.get_master_address()

    async def ask() -> list[Any]:
        return await asyncio.gather(*map(one, range(400)), return_exceptions=True)

    assert asyncio.run(ask()) == [("127.0.0.1", sentinels.master.port)] * 400


def test_a_client_stays_while_no_sentinel_answers(
    sentinels: Sentinels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sentinel, "ASK_EVERY_S", 0.0)
    with connect_url(sentinels.url) as client:
        assert client.ping()
        for each in client.connection_pool.sentinel_manager.sentinels:
            each.connection_pool.connection_kwargs["port"] = free_port()
            each.connection_pool.reset()
        asked = Mock(side_effect=client.connection_pool.proxy.get_master_address)
        monkeypatch.setattr(client.connection_pool.proxy, "get_master_address", asked)
        with pytest.raises(redis.ConnectionError):
            client.connection_pool.get_master_address()
        for _ in range(3):
            assert client.ping()
        assert asked.call_count == 1 + 1  # the client does not ask them again with each command


def test_a_client_leaves_a_redis_that_has_become_a_replica(redis_server: RedisServer) -> None:
    """The host's name may now lead to the new master, so the client connects again with the next command."""
    with RedisServer() as other, connect_url(other.url) as client, other.client() as by_hand:
        script = client.register_script("return redis.call('SET', 'a', 1)")
        for write in (lambda: client.set("a", 1), script):
            write()
            first = client.client_id()
            by_hand.replicaof("127.0.0.1", str(redis_server.port))
            with pytest.raises(redis.ResponseError, match="read only replica"):
                write()
            by_hand.replicaof("no", "one")
            write()
            assert client.client_id() > first
