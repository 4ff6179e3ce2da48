"""Clients that repeat no command on their own, and the check of the Redis server."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio

from scrapy_dq.backend.clients import connect_url, get_redis, get_redis_from_settings, new_client, speaks_tls
from scrapy_dq.backend.connection import Connection, check_info
from scrapy_dq.frontier.model import FrontierRefused
from scrapy_dq.settings import Config, ConfigError
from support.given import StartProxy, StartRedis
from support.redis_server import RedisServer

PASSWORD = "s3cr3t/&%40"
HEALTHY = {"redis_version": "7.2.4", "maxmemory_policy": "noeviction", "aof_enabled": 1}


def connection_to(url: str = "", **other: Any) -> Connection:
    return Connection(Config("crawl", redis_url=url, **other), Path())


def options_of(**config: Any) -> dict[str, Any]:
    """Return the options that each connection of a client gets."""
    options: dict[str, Any] = (
        Connection(Config("crawl", **config), Path()).blocking().connection_pool.connection_kwargs
    )
    return options


def open_and_close(connection: Connection) -> None:
    async def both() -> None:
        try:
            await connection.open()
        finally:
            await connection.close()

    asyncio.run(asyncio.wait_for(both(), 10))


# Clients retry no command, decode no reply, and have time-outs

URL_OPTIONS = "?retry_on_timeout=true&retry_on_error=ConnectionError&retry=3&decode_responses=true"
PARAMS: dict[str, Any] = {
    "retry": redis.retry.Retry(redis.backoff.NoBackoff(), 3),
    "retry_on_timeout": True,
    "retry_on_error": [redis.ConnectionError, redis.TimeoutError],
    "decode_responses": True,
    "connection_pool": redis.ConnectionPool(),
    "redis_cls": "redis.StrictRedis",
}


@pytest.mark.parametrize("by", ["REDIS_URL", "REDIS_PARAMS", "REDIS_HOST"])
def test_a_cut_reply_raises_once_and_its_command_was_sent_once(
    redis_server: RedisServer, start_proxy: StartProxy, crawl_name: str, by: str
) -> None:
    """Neither kind of client repeats a command, even if REDIS_PARAMS or the URL's query ask for repeats."""
    proxy = start_proxy(redis_server.url)
    port = int(proxy.url.split(":")[-1].split("/")[0])
    connection = {
        "REDIS_URL": connection_to(proxy.url + URL_OPTIONS, redis_params=PARAMS),
        "REDIS_PARAMS": connection_to(redis_params=PARAMS | {"host": "127.0.0.1", "port": port}),
        "REDIS_HOST": connection_to(redis_host="127.0.0.1", redis_port=port, redis_params=PARAMS),
    }[by]

    async def on_the_loop() -> None:
        client = await connection.open()
        try:
            proxy.cut_next_reply("INCRBY")
            with pytest.raises(redis.ConnectionError):
                await client.incr(crawl_name)
            assert await client.get(crawl_name) == b"1"
        finally:
            await connection.close()

    asyncio.run(asyncio.wait_for(on_the_loop(), 10))
    with connection.blocking() as client:
        proxy.cut_next_reply("INCRBY")
        with pytest.raises(redis.ConnectionError):
            client.incr(crawl_name)
        assert client.get(crawl_name) == b"2"
    with connect_url(proxy.url) as client:
        proxy.cut_next_reply("INCRBY")
        with pytest.raises(redis.ConnectionError):
            client.incr(crawl_name)
        assert client.get(crawl_name) == b"3"
        client.delete(crawl_name)
    assert proxy.commands["INCRBY"] == 3


def test_a_silent_redis_raises_after_the_timeout(redis_server: RedisServer, start_proxy: StartProxy) -> None:
    """The socket's time-out limits each wait, both on the event loop and in threads."""
    proxy = start_proxy(redis_server.url)
    connection = connection_to(proxy.url, redis_params={"socket_timeout": 0.2})

    async def on_the_loop() -> None:
        client = await connection.open()
        proxy.black_hole()
        try:
            with pytest.raises(redis.TimeoutError):
                await asyncio.wait_for(client.get("key"), 2)
        finally:
            await connection.close()

    asyncio.run(asyncio.wait_for(on_the_loop(), 10))
    with connection.blocking() as client, pytest.raises(redis.TimeoutError):
        client.get("key")


def test_a_call_of_a_script_is_packed_as_redis_py_does_it() -> None:
    """hiredis packs the call in one piece. redis-py's own code makes several, and takes ten times as long."""
    client: Any = new_client(redis.asyncio.Redis, "redis://localhost", {})
    ours = client.connection_pool.make_connection()
    call = ("EVALSHA", "a" * 40, 2, "one", b"\xff", 5, b"x" * 10_000)
    theirs = redis.asyncio.connection.Connection().pack_command(*call)
    assert ours.pack_command(*call) == [b"".join(theirs)]
    assert len(theirs) > 1
    assert ours.pack_command("CONFIG GET", "a") == redis.asyncio.Connection().pack_command("CONFIG GET", "a")


def test_timeouts_and_keepalive_have_defaults_that_params_override() -> None:
    """A given time-out applies to connecting and to each reply."""
    options = options_of(redis_url="redis://host", redis_params={"socket_timeout": 1.5})
    assert (options["socket_timeout"], options["socket_connect_timeout"]) == (1.5, 1.5)
    assert options["socket_keepalive"] is True
    options = options_of(redis_host="host", redis_params={"socket_timeout": 9, "socket_keepalive": False})
    assert (options["socket_timeout"], options["socket_connect_timeout"]) == (9, 9)
    assert options["socket_keepalive"] is False


# REDIS_PARAMS


def test_redis_params_are_used() -> None:
    """User, password, TLS, client name and other arguments of redis-py can be in REDIS_PARAMS."""
    options = options_of(redis_host="b", redis_params={"username": "u", "password": "p", "client_name": "n"})
    assert (options["username"], options["password"], options["client_name"]) == ("u", "p", "n")
    tls = Connection(Config("crawl", redis_host="b", redis_params={"ssl": True}), Path()).blocking()
    assert issubclass(tls.connection_pool.connection_class, redis.SSLConnection)


@pytest.mark.parametrize("url", ["redis://a", "redis+sentinel://a/main", "redis+cluster://a"])
@pytest.mark.parametrize("ssl", [True, False])
def test_ssl_is_accepted_with_a_url(url: str, ssl: bool) -> None:
    """REDIS_PARAMS may contain `ssl` even if a URL is set, just as if REDIS_HOST is set."""
    pool = connection_to(url, redis_params={"ssl": ssl}).blocking().connection_pool
    assert speaks_tls(pool) == ssl


# Unusable settings, and secrets that are never shown


@pytest.mark.parametrize(
    "config",
    [
        {"redis_url": "redis://:s3cr3t/x@host"},
        {"redis_url": "redis://:s3cr3t#x@host"},
        {"redis_url": "http://:s3cr3t@host"},
        {"redis_url": "redis://:s3cr3t@host:99999"},
        {"redis_url": "redis://:s3cr3t@host?db=one"},
        {"redis_url": "redis://:s3cr3t@host", "redis_params": {"sockettimeout": 3}},
        {"redis_host": "host", "redis_params": {"sockettimeout": 3, "password": "s3cr3t"}},
        {"redis_params": {"host": "host", "port": "one", "password": "s3cr3t"}},
    ],
)
def test_unusable_settings_are_refused_before_anything_is_sent(config: dict[str, Any]) -> None:
    """The error names the setting, but shows no part of the password, wherever it is in a bad URL."""
    with pytest.raises(ConfigError, match=r"REDIS_URL|REDIS_PARAMS") as refused:
        open_and_close(Connection(Config("crawl", **config), Path()))
    assert "s3cr3t" not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__


def test_no_redis_is_started_with_arguments_that_cannot_be_used(tmp_path: Path) -> None:
    """The error names the argument, and no embedded Redis is started."""
    connection = Connection(Config("crawl", redis_params={"passwort": "s3cr3t"}), tmp_path)
    with pytest.raises(ConfigError, match=r"^REDIS_PARAMS.*argument 'passwort'$"):
        open_and_close(connection)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("make", [connect_url, lambda url: get_redis(url=url)], ids=["connect", "get"])
@pytest.mark.parametrize(
    "url",
    ["redis://:s3cr3t/x@host", "redis://:s3cr3t\uff1fx@host", "http://:s3cr3t@host", "redis://host:s3cr3t"],
)
def test_a_url_that_a_program_cannot_use_is_not_shown(make: Callable[[str], redis.Redis], url: str) -> None:
    """Neither the error nor its cause shows the URL."""
    with pytest.raises(ConfigError, match=r"url, or REDIS_URL \(not shown here\): expected") as refused:
        make(url)
    assert "s3cr3t" not in "".join(traceback.format_exception(refused.value, limit=0))


@pytest.mark.parametrize(
    ("query", "checked"),
    [
        ("", True),
        ("?ssl_cert_reqs=required", True),
        ("?ssl_cert_reqs=none", None),
        ("?ssl_check_hostname=True", True),
    ],
)
def test_the_host_name_of_a_certificate_is_checked(query: str, checked: bool | None) -> None:
    """redis-py before 6 would accept a trusted certificate of any host."""
    url = f"rediss://host:6379/0{query}"
    settings = {"REDIS_URL": url}
    for client in (
        Connection(Config("crawl", redis_url=url), Path()).blocking(),
        connect_url(url),
        get_redis_from_settings(settings),
    ):
        assert client.connection_pool.connection_kwargs.get("ssl_check_hostname") in (checked, str(checked))
    assert "ssl_check_hostname" not in options_of(redis_url="redis://host")


@pytest.mark.parametrize("right", [True, False])
def test_a_password_is_in_no_target_log_or_error(
    start_redis: StartRedis, caplog: pytest.LogCaptureFixture, right: bool
) -> None:
    """Neither a right nor a wrong password is shown."""
    caplog.set_level(logging.DEBUG)
    server = start_redis(password=PASSWORD if right else "another")
    url = f"redis://:s3cr3t%2F&%2540@127.0.0.1:{server.port}/0"
    connection = connection_to(url)
    if right:
        open_and_close(connection)
    else:
        with pytest.raises(FrontierRefused, match="denies access") as refused:
            open_and_close(connection)
        assert "REDIS_URL" in str(refused.value)
        assert "s3cr3t" not in str(refused.value)
    assert connection.target == f"127.0.0.1:{server.port}/0"
    assert "s3cr3t" not in caplog.text
    assert "s3cr3t" not in repr(connection._config)


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_server_that_quotes_an_unknown_command_reveals_no_password(
    start_redis: StartRedis, protocol: int
) -> None:
    """Some managed or old servers do not know AUTH (sent with protocol 2) or HELLO (sent with 3)."""
    server = start_redis(args=["--rename-command", "AUTH", "", "--rename-command", "HELLO", ""])
    url = f"redis://:s3cr3t@127.0.0.1:{server.port}/0"
    command = "HELLO" if protocol == 3 else "AUTH"
    with pytest.raises(FrontierRefused, match=f"refuses commands: unknown command .{command}.$") as refused:
        open_and_close(connection_to(url, redis_params={"protocol": protocol}))
    assert "s3cr3t" not in "".join(traceback.format_exception(refused.value))
    settings = {"REDIS_URL": url, "REDIS_PARAMS": {"protocol": protocol}}
    for client in (
        connect_url(f"{url}?protocol={protocol}"),
        get_redis(url=url, protocol=protocol),
        get_redis_from_settings(settings),
        connection_to(url, redis_params={"protocol": protocol}).blocking(),
    ):
        with client, pytest.raises(redis.ResponseError, match=f"unknown command .{command}.$"):
            client.ping()


@pytest.mark.parametrize("params", [
    {"credential_provider": redis.UsernamePasswordCredentialProvider(password="s3cr3t\ud800")},
    {"password": "s3cr3t\ud800"}, {"username": "s3cr3t\xe4", "password": "x", "encoding": "ascii"},
    {"password": "s3cr3t", "encoding": "klingon"},
])  # fmt: skip
def test_a_login_that_cannot_be_encoded_is_not_shown(
    params: dict[str, Any], redis_server: RedisServer
) -> None:
    connection = connection_to(redis_server.url, redis_params=params)
    with pytest.raises(FrontierRefused, match="denies access") as refused:
        open_and_close(connection)
    assert "s3cr3t" not in "".join(traceback.format_exception(refused.value))
    with connection.blocking() as client, pytest.raises(redis.AuthenticationError) as error:
        client.ping()
    assert "s3cr3t" not in "".join(traceback.format_exception(error.value))


def test_an_unreachable_redis_is_reported_with_solutions() -> None:
    """The error names the fault, the address and the remedies."""
    with pytest.raises(FrontierRefused, match=r"127\.0\.0\.1:9/0 cannot be reached") as refused:
        open_and_close(connection_to("redis://127.0.0.1:9"))
    for way in ("REDIS_URL", "REDIS_HOST", "embedded"):
        assert way in str(refused.value)


# Servers that may hold a crawl


@pytest.mark.parametrize("version", ["2.8.24", "6.0.20", "6"])
def test_a_redis_older_than_6_2_is_refused(version: str) -> None:
    """The Lua scripts use features of Redis 6.2."""
    with pytest.raises(FrontierRefused, match=rf"here.*{version}; 6\.2 or newer"):
        check_info(HEALTHY | {"redis_version": version}, "here")


@pytest.mark.parametrize("version", ["6.2.0", "8.0.0", "10.1"])
def test_6_2_and_newer_are_accepted_silently(version: str, caplog: pytest.LogCaptureFixture) -> None:
    """Versions are compared as numbers. Valkey and managed servers may report any newer version."""
    check_info(HEALTHY | {"redis_version": version}, "here")
    assert not caplog.records


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-random"])
def test_a_redis_that_would_evict_the_crawl_is_refused_with_the_command(policy: str) -> None:
    """If Redis evicted a key of a crawl, the requests in it would look done."""
    with pytest.raises(FrontierRefused, match=policy) as refused:
        check_info(HEALTHY | {"maxmemory_policy": policy}, "here")
    assert "CONFIG SET maxmemory-policy noeviction" in str(refused.value)


@pytest.mark.parametrize("policy", ["volatile-lru", "volatile-ttl"])
def test_a_redis_that_evicts_keys_with_a_ttl_is_warned_about(
    policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No key of a crawl has a TTL, so such a Redis is only warned about. The warning names the policy."""
    check_info(HEALTHY | {"maxmemory_policy": policy}, "here")
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert policy in record.getMessage()


def test_a_missing_aof_is_warned_about_except_in_the_embedded_redis(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The warning contains the command that turns the AOF on."""
    info = {name: value for name, value in HEALTHY.items() if name != "aof_enabled"}
    check_info(info, "here", embedded=True)
    assert not caplog.records
    check_info(info | {"aof_enabled": 0}, "here")
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "CONFIG SET appendonly yes" in record.getMessage()


def test_a_user_who_may_not_use_info_gets_a_warning(
    redis_server: RedisServer, crawl_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Managed servers may forbid INFO. Then the check cannot know the version and the policies."""
    with redis_server.client() as admin:
        admin.execute_command("ACL", "SETUSER", crawl_name, "on", ">pw", "~*", "+@all", "-info")
        try:
            open_and_close(connection_to(redis_server.url.replace("redis://", f"redis://{crawl_name}:pw@")))
        finally:
            admin.execute_command("ACL", "DELUSER", crawl_name)
    [record] = [record for record in caplog.records if record.name.startswith("scrapy_dq")]
    assert "does not allow INFO" in record.getMessage()
