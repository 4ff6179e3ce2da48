"""Every setting: a good value is read, a bad one is refused, and an unknown name is reported."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from scrapy.settings import Settings

from scrapy_dq.frontier.model import Order
from scrapy_dq.settings import SETTINGS, Backoff, Config, ConfigError, enabled
from scrapy_dq.settings.setting import Budget
from support.read_settings import BY_NAME, NAMES, read


def test_the_defaults_of_config_and_settings_agree() -> None:
    """A Config that is read from no settings equals a Config that is made without arguments."""
    assert read() == Config("books")
    assert [setting.field for setting in SETTINGS] == list(
        dict.fromkeys(setting.field for setting in SETTINGS)
    )
    ours = {field.name for field in dataclasses.fields(Config)} - {"start_queue"}  # Scrapy's own setting
    assert {setting.field for setting in SETTINGS} == ours


GOOD: list[tuple[str, Any, Any]] = [
    ("DQ_CRAWL", "name", "name"),
    ("DQ_RUN_NAME", "nightly", "nightly"),
    ("DQ_ORDER", "priority-fifo", Order.PRIORITY_FIFO),
    ("DQ_PARTITION_BY", "none", "none"),
    ("DQ_DOMAIN_DELAY", "0.5", 0.5),
    ("DQ_DOMAIN_CONCURRENCY", "2", 2),
    ("DQ_DOMAIN_LIMITS", {"example.com": {"delay": 2, "concurrency": 4}}, {"example.com": (2, 4, None)}),
    ("DQ_DOMAIN_LIMITS", {"a": {"budget": "9/day"}}, {"a": (None, None, Budget(9, daily=True))}),
    (
        "DQ_DOMAIN_LIMITS",
        '{"a": {"delay": 0.5}, "b": {"concurrency": 1}}',
        {"a": (0.5, None, None), "b": (None, 1, None)},
    ),
    ("DQ_RETRY_BACKOFF", {"base": 0.5, "cap": 60}, Backoff(0.5, 60)),
    ("DQ_RETRY_BACKOFF", {"retry_after": 0}, Backoff(0, 0, 0)),
    ("DQ_RETRY_BACKOFF", "", Backoff()),
    ("DQ_SEEN", "compact", "compact"),
    ("DQ_SEEN_TTL", 0, 0.0),
    ("DQ_REVISIT", "fixed:1d", "fixed:1d"),
    ("DQ_MAX_PAGES", "1000", 1000),
    ("DQ_DOMAIN_BUDGET", "1000", Budget(1000)),
    ("DQ_DOMAIN_BUDGET", "1000/day", Budget(1000, daily=True)),
    ("DQ_SEED_ONCE", "False", False),
    ("DQ_STRICT_ORDER", "1", True),
    ("DQ_SHARDS", "12", 12),
    ("DQ_WORKER_TTL", 1, 1.0),
    ("DQ_SHUTDOWN_GRACE", 0, 0.0),
    ("DQ_MAX_ATTEMPTS", "7", 7),
    ("DQ_ROLLBACK_HORIZON", 600, 600.0),
    ("DQ_WAIT_REPLICAS", "1", 1),
    ("DQ_MAX_ENTRY_BYTES", 1024, 1024),
    ("DQ_URL_SCHEMES", ["http", "s3"], ("http", "s3")),
    ("DQ_URL_SCHEMES", "http, s3,", ("http", "s3")),
    ("DQ_TYPES", ("a.B",), ("a.B",)),
    ("DQ_NOTIFY_URL", "https://chat.example/hook?token=x", "https://chat.example/hook?token=x"),
    ("DQ_TRACE", "0.01", 0.01),
    ("DQ_DATA_DIR", Path("/data/dq"), "/data/dq"),
    ("SCHEDULER_IDLE_BEFORE_CLOSE", "5", 5.0),
    ("MAX_IDLE_TIME_BEFORE_CLOSE", 0, 0.0),
    ("REDIS_START_URLS_KEY", "urls", "urls"),
    ("REDIS_START_URLS_AS_SET", "True", True),
    ("REDIS_START_URLS_AS_ZSET", "1", True),
    ("REDIS_START_URLS_AS_STREAM", "1", True),
    ("REDIS_ENCODING", "latin1", "iso8859-1"),
    ("SCHEDULER_PERSIST", "true", True),
    ("SCHEDULER_FLUSH_ON_START", True, True),
    ("REDIS_URL", "redis://host", "redis://host"),
    ("REDIS_HOST", "host", "host"),
    ("REDIS_PORT", "6380", 6380),
    ("REDIS_DB", 15, 15),
    ("REDIS_PARAMS", {"password": "x"}, {"password": "x"}),
    ("REDIS_PARAMS", '{"password": "x"}', {"password": "x"}),
    ("DQ_ENABLED", "False", False),
    ("DQ_ITEMS", "redis", "redis"),
    ("DQ_ITEMS_TYPE", "stream", "stream"),
    ("REDIS_ITEMS_KEY", "items:%(spider)s", "items:%(spider)s"),
    ("REDIS_ITEMS_SERIALIZER", "json.dumps", "json.dumps"),
    ("SCHEDULER_SERIALIZER", "json", json),
    ("SCHEDULER_SERIALIZER", "", None),
    ("DQ_TRUST_PICKLE", "True", True),
    ("DQ_TUNE_GC", "False", False),
]


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    GOOD,
    ids=[f"{name}={getattr(value, '__name__', value)}" for name, value, _ in GOOD],
)
def test_a_good_value_is_read(name: str, value: Any, expected: Any) -> None:
    """The value is a Python object, as in settings.py, or a text, as on the command line."""
    found = getattr(read(**{name: value}), BY_NAME[name].field)
    assert found == expected
    assert type(found) is type(expected)


def test_every_setting_has_a_good_and_a_bad_value_here() -> None:
    assert {name for name, *_ in GOOD} == {name for name, _ in BAD} == set(BY_NAME)


BAD: list[tuple[str, Any]] = [
    ("SCHEDULER_SERIALIZER", "no_such_module"),
    ("SCHEDULER_SERIALIZER", "os"),
    ("DQ_TRUST_PICKLE", "perhaps"),
    ("DQ_TUNE_GC", "rarely"),
    ("DQ_CRAWL", 5),
    ("DQ_RUN_NAME", 20261121),
    ("DQ_ORDER", "bfs"),
    ("DQ_PARTITION_BY", "domain"),
    ("DQ_DOMAIN_DELAY", -0.1),
    ("DQ_DOMAIN_CONCURRENCY", 1.5),
    ("DQ_DOMAIN_LIMITS", "example.com=2"),
    ("DQ_RETRY_BACKOFF", "{base: 5}"),
    ("DQ_SEEN", "bloom"),
    ("DQ_SEEN_TTL", -1),
    ("DQ_REVISIT", 86_400),
    ("DQ_MAX_PAGES", -1),
    ("DQ_DOMAIN_BUDGET", 1_000_000_001),
    ("DQ_DOMAIN_BUDGET", "1000/week"),
    ("DQ_SEED_ONCE", "no"),
    ("DQ_STRICT_ORDER", "yes"),
    ("DQ_SHARDS", 1025),
    ("DQ_WORKER_TTL", 0.9),
    ("DQ_WORKER_TTL", float("nan")),
    ("DQ_WORKER_TTL", True),
    ("DQ_SHUTDOWN_GRACE", -1),
    ("DQ_MAX_ATTEMPTS", 0),
    ("DQ_ROLLBACK_HORIZON", 601),
    ("DQ_WAIT_REPLICAS", 17),
    ("DQ_MAX_ENTRY_BYTES", 4_194_305),
    ("DQ_URL_SCHEMES", 5),
    ("DQ_URL_SCHEMES", ["http:"]),
    ("DQ_TYPES", 3),
    ("DQ_NOTIFY_URL", "file:///etc/passwd"),
    ("DQ_NOTIFY_URL", "https://me:s3cr3t@chat.example/"),
    ("DQ_NOTIFY_URL", "https://chat.example/h\xf6"),
    ("DQ_NOTIFY_URL", b"https://chat.example/"),
    ("DQ_TRACE", 1.1),
    ("DQ_DATA_DIR", 1),
    ("SCHEDULER_IDLE_BEFORE_CLOSE", -1),
    ("MAX_IDLE_TIME_BEFORE_CLOSE", "soon"),
    ("REDIS_START_URLS_KEY", 1),
    ("REDIS_START_URLS_AS_SET", "maybe"),
    ("REDIS_START_URLS_AS_ZSET", 2),
    ("REDIS_START_URLS_AS_STREAM", "yes"),
    ("REDIS_ENCODING", "utf-9"),
    ("SCHEDULER_PERSIST", "maybe"),
    ("SCHEDULER_FLUSH_ON_START", []),
    ("REDIS_URL", 6379),
    ("REDIS_HOST", 127),
    ("REDIS_PORT", 65_536),
    ("REDIS_DB", "one"),
    ("REDIS_PARAMS", "{db: 1}"),
    ("DQ_ENABLED", "no"),
    ("DQ_ITEMS", "stream"),
    ("DQ_ITEMS_TYPE", "set"),
    ("REDIS_ITEMS_KEY", b"items"),
    ("REDIS_ITEMS_SERIALIZER", 5),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD, ids=[f"{name}={value!r}" for name, value in BAD])
def test_a_bad_value_is_refused(name: str, value: Any) -> None:
    """The error names the setting, the value and the allowed values."""
    with pytest.raises(ConfigError) as refusal:
        read(**{name: value})
    message = str(refusal.value)
    assert message.startswith(name)
    assert BY_NAME[name].allowed in message
    secret = ("REDIS_URL", "REDIS_HOST", "REDIS_PORT", "REDIS_PARAMS", "DQ_NOTIFY_URL")
    assert (f"= {value!r}:" in message) == (name not in secret)


@pytest.mark.parametrize("value", ["zz%s", "%(zz)s", "%"])
def test_a_start_key_with_another_placeholder_is_refused(value: str) -> None:
    """A start key with an unknown placeholder is refused even if the crawl uses no start keys."""
    with pytest.raises(ConfigError, match=re.escape(f"REDIS_START_URLS_KEY = {value!r}: ")):
        read(REDIS_START_URLS_KEY=value)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("DQ_WORKER_TLL", "DQ_WORKER_TTL?"),
        ("REDIS_START_URL_KEY", "REDIS_START_URLS_KEY?"),
        ("REDIS_CACHE_TTL", None),
        ("DQ_CRAWL_NAME", "DQ_CRAWL?"),
        ("DQ_ZZZZ", None),
    ],
)
def test_an_unknown_setting_is_refused(name: str, hint: str | None) -> None:
    """A misspelled setting would have no effect. The error suggests the nearest name, or names the docs."""
    with pytest.raises(ConfigError, match=rf"^{name} is not a setting") as refusal:
        read(**{name: None})
    if name.startswith("REDIS_"):
        with pytest.raises(ConfigError, match=re.escape(str(refusal.value))):
            Config.for_items({name: None})
    if hint:
        assert f"did you mean {hint}" in str(refusal.value)
    elif "did you mean" not in str(refusal.value):
        assert "docs/settings.md" in str(refusal.value)
    assert ("REDIS_PARAMS" in str(refusal.value)) == name.startswith("REDIS_")


@pytest.mark.parametrize("name", ["DQ_REDIS_URL", "DQ_REDIS_ULR"])
def test_a_redis_setting_with_the_dq_prefix_is_refused(name: str) -> None:
    """Otherwise the password could be in a setting that logs and pages show."""
    with pytest.raises(ConfigError, match="did you mean REDIS_URL") as refusal:
        read(**{name: "redis://:geheim@there/0"})
    assert "geheim" not in str(refusal.value)


def test_settings_of_other_packages_are_left_alone() -> None:
    """Settings whose names only look similar to ours are also left alone."""
    settings: Mapping[Any, Any] = {
        "REDIS_START_URLS_BATCH_SIZE": 1,
        "STATS_KEY": 1,
        "XDQ_": 1,
        5: 1,
    }
    assert Config.read(settings, NAMES) == Config("books")


def test_a_bad_value_does_not_turn_the_scheduler_off() -> None:
    """Until a crawl opens and refuses the value with one clear line, the scheduler counts as enabled."""
    assert [enabled({"DQ_ENABLED": value}) for value in (None, True, "1", "no", [])] == [True] * 5
    assert [enabled({"DQ_ENABLED": value}) for value in (False, 0, "0", "false", "")] == [False] * 5


def test_a_private_attribute_of_a_spider_is_not_suggested() -> None:
    """The error suggests only names that the user may have meant."""
    names = {"spider": "books", "_follow_links": "True"}
    with pytest.raises(ConfigError, match=r"there is no 'foo' here; use %\(spider\)s, or pass"):
        Config.read(Settings({"DQ_CRAWL": "%(foo)s"}), names)
