"""The settings that say where Redis is, embedded or not. No password is shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from scrapy_dq import get_redis_from_settings
from scrapy_dq.backend.connection import Connection
from scrapy_dq.inspection.settings import settings_of
from scrapy_dq.settings import SETTINGS, ConfigError
from support.read_settings import read


@pytest.mark.parametrize(
    "url",
    [
        "redis://:123/45@db",
        "redis://bob:99#x@db",
        "rediss://:1?2@db:6379",
        "redis://:gehe@imes/pw@db",
        "unix://:geh/eim@/tmp/r.sock",
        "redis://:geheim\uff1fpw@db",
        "redis://:gehe[im@db",
        "redis://db:geheim",
    ],
)
@pytest.mark.parametrize("setting", ["REDIS_URL", "REDIS_PARAMS"])
def test_a_password_that_would_be_cut_is_refused_and_not_shown(setting: str, url: str) -> None:
    """An unescaped / ? or # ends the host, so a log would show the beginning of the password as a port."""
    with pytest.raises(ConfigError, match=setting) as refusal:
        read(**{setting: url if setting == "REDIS_URL" else {"url": url}})
    assert "percent-encoded" in str(refusal.value)
    assert url not in str(refusal.value)
    # A traceback would also show the original error.
    assert refusal.value.__suppress_context__


def test_the_path_of_a_socket_may_have_an_at_sign() -> None:
    url = "unix:///run/me@host.sock?db=1"
    assert read(REDIS_URL=url).redis_url == url
    assert not read(REDIS_PARAMS={"url": url}).embedded


PLACES: list[tuple[str, Any, str]] = [
    ("url", ["redis://db"], "a string"),
    ("url", "redis://host/geheim", "redis://"),
    ("unix_socket_path", "unix://:geheim@/tmp/r.sock", "the path of a socket"),
    ("host", ":geheim@db", "the name of a host"),
    ("port", "geheim", "a number, 1 to 65535"),
    ("socket_timeout", "geheim", "a number, at least 0.1"),
]


@pytest.mark.parametrize(("name", "value", "expected"), PLACES)
def test_a_wrong_argument_in_the_params_is_named_and_not_shown(name: str, value: Any, expected: str) -> None:
    """Otherwise messages would show the argument as the address of Redis."""
    with pytest.raises(ConfigError, match=rf"{name} in REDIS_PARAMS \(not shown here\): expected") as refusal:
        read(REDIS_PARAMS={name: value})
    assert expected in str(refusal.value)
    assert "geheim" not in str(refusal.value)


def said_of(name: str, value: Any) -> str:
    try:
        read(**{name: value})
    except ConfigError as refusal:
        return str(refusal)
    return ""


@pytest.mark.parametrize("name", [setting.name for setting in SETTINGS])
def test_no_error_shows_a_login(name: str) -> None:
    """A user may put a login into any setting."""
    for login in (
        "redis://:geheim@there/%(none)s", "redis://:geheim@there/0", "unix:///r.sock?db=0&password=geheim"
    ):  # fmt: skip
        for value in (login, [login, 1], {login: login}):
            assert "geheim" not in said_of(name, value)


def test_the_redis_timeout_comes_from_redis_params() -> None:
    assert read().redis_timeout_s == read(REDIS_PARAMS={"socket_timeout": None}).redis_timeout_s == 2.0
    assert read(REDIS_PARAMS='{"socket_timeout": "5"}').redis_params == {"socket_timeout": 5.0}


@pytest.mark.parametrize(
    ("settings", "embedded"),
    [
        ({}, True),
        ({"REDIS_PARAMS": {"socket_timeout": 5, "encoding": "latin1", "retry_on_timeout": True}}, True),
        ({"REDIS_ENCODING": "latin1", "REDIS_PARAMS": {"host": "", "password": None}}, True),
        ({"REDIS_PORT": 6380}, False),
        ({"REDIS_DB": 0}, False),
        ({"REDIS_PARAMS": {"password": "x"}}, False),
        ({"REDIS_PARAMS": {"db": 2}}, False),
        ({"REDIS_URL": "redis://host"}, False),
        ({"REDIS_HOST": "host"}, False),
        ({"REDIS_PARAMS": {"host": "host"}}, False),
        ({"REDIS_PARAMS": {"unix_socket_path": "/run/redis.sock"}}, False),
        ({"REDIS_PARAMS": {"url": "redis://host"}}, False),
    ],
)
def test_the_embedded_redis_is_used_if_no_redis_is_configured(
    settings: dict[str, Any], embedded: bool
) -> None:
    """A port, a database or a password shows that the project has its own Redis."""
    assert read(**settings).embedded is embedded


@pytest.mark.parametrize(
    ("settings", "target"),
    [
        ({"REDIS_PORT": 5}, "localhost:5/0"),
        ({"REDIS_URL": "redis://user:pw@a:1/2"}, "a:1/2"),
        ({"REDIS_PORT": 5, "REDIS_DB": 2}, "localhost:5/2"),
        ({"REDIS_DB": 2}, "localhost:6379/2"),
        ({"REDIS_DB": 2, "REDIS_PARAMS": {"db": 3, "port": 4}}, "localhost:4/2"),
        ({"REDIS_PARAMS": {"db": 3, "port": "4"}}, "localhost:4/3"),
        ({"REDIS_PARAMS": {"password": "x"}}, "localhost:6379/0"),
        ({"REDIS_HOST": "a"}, "a:6379/0"),
        ({"REDIS_HOST": "a", "REDIS_PARAMS": {"port": 5, "db": 6}}, "a:5/6"),
        ({"REDIS_HOST": "a", "REDIS_PORT": 6379, "REDIS_PARAMS": {"port": 5}}, "a:6379/0"),
        ({"REDIS_HOST": "a", "REDIS_PARAMS": {"url": "redis://b:5/6"}}, "b:5/6"),
        ({"REDIS_HOST": "a", "REDIS_PARAMS": {"unix_socket_path": "/r.sock"}}, "unix:///r.sock"),
        ({"REDIS_HOST": "a", "REDIS_DB": 0, "REDIS_PARAMS": {"db": 6}}, "a:6379/6"),
        ({"REDIS_PORT": 5, "REDIS_PARAMS": {"host": "b"}}, "b:5/0"),
        ({"REDIS_DB": 2, "REDIS_PARAMS": {"host": "b", "port": 5}}, "b:5/2"),
        ({"REDIS_PORT": 5, "REDIS_PARAMS": {"unix_socket_path": "/r.sock"}}, "unix:///r.sock"),
        ({"REDIS_URL": "redis://a", "REDIS_PORT": 5, "REDIS_DB": 2}, "a:5/2"),
        ({"REDIS_URL": "redis://a:7/3", "REDIS_HOST": "b", "REDIS_PORT": 5, "REDIS_DB": 2}, "a:7/3"),
        ({"REDIS_URL": "unix:///r.sock", "REDIS_PORT": 5, "REDIS_DB": 2}, "unix:///r.sock"),
        ({"REDIS_PORT": 5, "REDIS_DB": 2, "REDIS_PARAMS": {"url": "redis://a"}}, "a:5/2"),
    ],
)
def test_a_setting_overrides_redis_params(settings: dict[str, Any], target: str) -> None:
    """The precedence is the same as in scrapy-redis.

    REDIS_URL goes first, then REDIS_HOST, REDIS_PORT and REDIS_DB, and then REDIS_PARAMS.
    """
    assert Connection(read(**settings), Path()).target == target
    if not target.startswith("unix:"):
        client = get_redis_from_settings(settings)
        where = client.connection_pool.connection_kwargs
        found = (where.get("host", "localhost"), where.get("port", 6379), where.get("db", 0))
        assert "{}:{}/{}".format(*found) == target


@pytest.mark.parametrize("database", ["notadb", "1x", "0/1x", "geheim/0"])
@pytest.mark.parametrize("scheme", ["redis", "rediss"])
def test_a_database_that_is_not_a_number_is_refused(scheme: str, database: str) -> None:
    """redis-py would silently use database 0 and its keys."""
    url = f"{scheme}://host/{database}"
    for settings, name in (
        ({"REDIS_URL": url}, "REDIS_URL"),
        ({"REDIS_PARAMS": {"url": url}}, "url in REDIS_P"),
    ):
        with pytest.raises(ConfigError, match=rf"^{name}.* \(not shown here\): expected redis:") as refusal:
            read(**settings)
        assert database not in str(refusal.value)


@pytest.mark.parametrize("rest", ["", "/", "/3", "/3/", "//3", "/%33", "/?db=3"])
def test_a_database_as_redis_py_reads_it_is_accepted(rest: str) -> None:
    url = f"redis://host{rest}"
    assert read(REDIS_URL=url).redis_url == url


@pytest.mark.parametrize(
    "settings",
    [
        {"REDIS_URL": "redis://:s3cr3t@host"},
        {"REDIS_PARAMS": {"password": "s3cr3t"}},
        {"REDIS_URL": b"redis://:s3cr3t@host"},
        {"REDIS_PARAMS": '{"password": "s3cr3t"}'},
        {"REDIS_HOST": "redis://:s3cr3t@host"},
        {"REDIS_HOST": "user:s3cr3t@host"},
        {"REDIS_PARAMS": {"host": "user:s3cr3t@host"}},
        {"REDIS_HOST": "a", "REDIS_PORT": "s3cr3t"},
        {"REDIS_HOST": "a", "REDIS_PARAMS": {"port": "s3cr3t"}},
        {"REDIS_URL": "unix:///r.sock?db=0&password=s3cr3t"},
        {"REDIS_URL": "unix:///r.sock?db=0&password=x;s3cr3t&s3cr3t"},
        {"REDIS_URL": "redis://there?username=s3cr3t&ssl_password=s3cr3t"},
        {"REDIS_URL": "redis+sentinel://there/service/0?sentinel_password=s3cr3t"},
    ],
)
def test_no_password_is_shown(settings: dict[str, Any]) -> None:
    """repr(), an error and the page of the settings show no password."""
    try:
        config = read(**settings)
        shown = f"{config!r} {settings_of(config)}"
    except ConfigError as refusal:
        shown = str(refusal)
        assert "REDIS_" in shown
    assert "s3cr3t" not in shown
