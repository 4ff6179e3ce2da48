"""Plain clients for programs beside a crawl."""

from __future__ import annotations

from typing import Any

import pytest
import redis
from scrapy.settings import Settings

import scrapy_dq
from scrapy_dq import get_redis, get_redis_from_settings
from scrapy_dq.settings import ConfigError
from support.given import StartProxy
from support.redis_server import RedisServer


class OwnRedis(redis.Redis):
    """A client class that a project may name as `redis_cls`."""


def options_of(client: redis.Redis) -> dict[str, Any]:
    options: dict[str, Any] = client.connection_pool.connection_kwargs
    return options


def test_get_redis_takes_a_url_or_the_arguments_of_redis_py(
    redis_server: RedisServer, crawl_name: str
) -> None:
    """get_redis() works as in scrapy-redis: scrapy-redis's example consumer has to change only an import."""
    port = int(redis_server.url.split(":")[-1].split("/")[0])
    with get_redis(url=redis_server.url, decode_responses=True) as by_url:
        by_url.rpush(crawl_name, "item")
        with get_redis(host="127.0.0.1", port=port) as by_host:
            assert by_host.blpop([crawl_name], 1) == (crawl_name.encode(), b"item")
            assert by_host.blpop([crawl_name], 1) is None
    assert (options_of(get_redis())["host"], options_of(get_redis(url=None))["port"]) == ("localhost", 6379)


@pytest.mark.parametrize("cls", [OwnRedis, f"{__name__}.OwnRedis"])
def test_get_redis_makes_a_client_of_the_given_class(cls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`redis_cls` is a class or its path."""
    monkeypatch.setattr(scrapy_dq.backend.clients, "load_object", lambda path: OwnRedis)
    assert type(get_redis(redis_cls=cls)) is OwnRedis
    assert type(get_redis(url="redis://a", redis_cls=cls)) is OwnRedis
    assert type(get_redis_from_settings({"REDIS_HOST": "a", "REDIS_PARAMS": {"redis_cls": cls}})) is OwnRedis


def test_a_plain_client_repeats_no_command_on_its_own(
    redis_server: RedisServer, start_proxy: StartProxy, crawl_name: str
) -> None:
    """A repeated LPOP would lose an item. A program can still ask for repeats with `retry`."""
    proxy = start_proxy(redis_server.url)
    port = int(proxy.url.split(":")[-1].split("/")[0])
    for client in (
        get_redis(url=proxy.url),
        get_redis(host="127.0.0.1", port=port),
        get_redis_from_settings({"REDIS_URL": proxy.url}),
        get_redis_from_settings({"REDIS_HOST": "127.0.0.1", "REDIS_PORT": port}),
    ):
        with client:
            client.rpush(crawl_name, "a", "b")
            proxy.cut_next_reply("LPOP")
            with pytest.raises(redis.ConnectionError):
                client.lpop(crawl_name)
            assert client.lpop(crawl_name) == b"b"
    retry = redis.retry.Retry(redis.backoff.NoBackoff(), 3)
    assert options_of(get_redis(retry=retry))["retry"]._retries == 3
    params = {"REDIS_HOST": "a", "REDIS_PARAMS": {"retry": retry}}
    assert options_of(get_redis_from_settings(params))["retry"]._retries == 3


def test_a_consumer_may_wait_longer_than_a_worker() -> None:
    """The socket's time-out must not cut short a BLPOP that waits for several seconds."""
    assert options_of(get_redis())["socket_timeout"] is None
    assert options_of(get_redis(socket_timeout=3))["socket_timeout"] == 3
    settings = {"REDIS_HOST": "a"}
    assert options_of(get_redis_from_settings(settings))["socket_timeout"] == 30
    params = settings | {"REDIS_PARAMS": {"socket_timeout": 5}}
    assert options_of(get_redis_from_settings(params))["socket_timeout"] == 5


def test_the_settings_of_a_project_are_read_as_scrapy_redis_does() -> None:
    """Host, port, database, password, encoding and decoding are read from Scrapy's Settings or a dict."""
    settings = {
        "REDIS_HOST": "a", "REDIS_PORT": "7", "REDIS_DB": 2, "REDIS_ENCODING": "latin-1",
        "REDIS_DECODE_RESPONSES": "True", "REDIS_PARAMS": {"password": "x", "db": 9},
    }  # fmt: skip
    for given in (settings, Settings(settings)):
        options = options_of(get_redis_from_settings(given))
        assert (options["host"], options["port"], options["db"], options["password"]) == ("a", 7, 2, "x")
        assert (options["encoding"], options["decode_responses"]) == ("latin-1", True)
    for off in (False, "False", "0"):
        options = options_of(get_redis_from_settings(settings | {"REDIS_DECODE_RESPONSES": off}))
        assert options["decode_responses"] is False


def test_get_redis_refuses_to_use_the_embedded_redis() -> None:
    """The embedded Redis runs only as long as a worker. The error names the remedy."""
    with pytest.raises(ConfigError, match=r"REDIS_URL.*docs/embedded\.md"):
        get_redis_from_settings(Settings())
