"""Every setting: what is read, what is refused and how, and what the docs say."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from scrapy.settings import Settings
from scrapy.squeues import LifoMemoryQueue

from scrapy_dq import get_redis_from_settings
from scrapy_dq.backend.connection import Connection
from scrapy_dq.frontier.model import Limits, Order, Seen, StartQueue
from scrapy_dq.inspection.settings import settings_of
from scrapy_dq.scheduling import progress_log
from scrapy_dq.settings import SETTINGS, Backoff, Config, ConfigError, Setting, enabled, queues_in_vain
from scrapy_dq.settings.setting import Budget
from scrapy_dq.stats import names as stats

NAMES = {"spider": "books", "project": "shop", "job": "j1", "category": "poetry"}
BY_NAME = {setting.name: setting for setting in SETTINGS}


def read(**settings: Any) -> Config:
    return Config.read(settings, NAMES)


def test_the_defaults_of_config_and_settings_agree() -> None:
    """Whether it was read from no settings or made by hand."""
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
    """As Python writes it in settings.py, and as text from the command line."""
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
    ("DQ_ITEMS_TYPE", "set"),
    ("REDIS_ITEMS_KEY", b"items"),
    ("REDIS_ITEMS_SERIALIZER", 5),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD, ids=[f"{name}={value!r}" for name, value in BAD])
def test_a_bad_value_is_refused(name: str, value: Any) -> None:
    """The error names the setting, the value and what is allowed."""
    with pytest.raises(ConfigError) as refusal:
        read(**{name: value})
    message = str(refusal.value)
    assert message.startswith(name)
    assert BY_NAME[name].allowed in message
    secret = ("REDIS_URL", "REDIS_HOST", "REDIS_PORT", "REDIS_PARAMS", "DQ_NOTIFY_URL")
    assert (f"= {value!r}:" in message) == (name not in secret)


@pytest.mark.parametrize("value", ["zz%s", "%(zz)s", "%"])
def test_a_start_key_with_another_placeholder_is_refused(value: str) -> None:
    """Whether or not this crawl has use for it."""
    with pytest.raises(ConfigError, match=re.escape(f"REDIS_START_URLS_KEY = {value!r}: ")):
        read(REDIS_START_URLS_KEY=value)


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
    """An unescaped / ? or # ends the host: the password's beginning would stand in the log as a port."""
    with pytest.raises(ConfigError, match=setting) as refusal:
        read(**{setting: url if setting == "REDIS_URL" else {"url": url}})
    assert "percent-encoded" in str(refusal.value)
    assert url not in str(refusal.value)
    # A traceback has the text of what it was raised from.
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
    """It would be printed as the place of Redis."""
    with pytest.raises(ConfigError, match=rf"{name} in REDIS_PARAMS \(not shown here\): expected") as refusal:
        read(REDIS_PARAMS={name: value})
    assert expected in str(refusal.value)
    assert "geheim" not in str(refusal.value)


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
    """A misspelt setting would silently do nothing; the nearest name is suggested, else the docs."""
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
def test_a_setting_of_redis_has_no_prefix(name: str) -> None:
    """Who followed another advice would put the password where it is shown."""
    with pytest.raises(ConfigError, match="did you mean REDIS_URL") as refusal:
        read(**{name: "redis://:geheim@there/0"})
    assert "geheim" not in str(refusal.value)


def said_of(name: str, value: Any) -> str:
    try:
        read(**{name: value})
    except ConfigError as refusal:
        return str(refusal)
    return ""


@pytest.mark.parametrize("name", [setting.name for setting in SETTINGS])
def test_no_error_shows_a_login(name: str) -> None:
    """Whatever setting it has got into."""
    for login in (
        "redis://:geheim@there/%(none)s", "redis://:geheim@there/0", "unix:///r.sock?db=0&password=geheim"
    ):  # fmt: skip
        for value in (login, [login, 1], {login: login}):
            assert "geheim" not in said_of(name, value)


def test_settings_of_others_are_left_alone() -> None:
    """Also those that merely look similar."""
    settings: Mapping[Any, Any] = {
        "REDIS_START_URLS_BATCH_SIZE": 1,
        "STATS_KEY": 1,
        "XDQ_": 1,
        5: 1,
    }
    assert Config.read(settings, NAMES) == Config("books")


# Partitions: limits, back-off, and what fits together

BAD_OPTIONS: list[tuple[str, Any, str]] = [
    ("DQ_DOMAIN_LIMITS", {"a.com": {"dealy": 2}}, "'concurrency' and 'budget' of 'a.com', not 'dealy'"),
    ("DQ_DOMAIN_LIMITS", {"a.com": 2}, "a dict with 'delay', 'concurrency' and 'budget' of 'a.com'"),
    ("DQ_DOMAIN_LIMITS", {"https://user@a.com:8080/path": {"delay": 2}}, "the name of a partition"),
    ("DQ_DOMAIN_LIMITS", {"x" * 10_000: {"delay": 2}}, "the name of a partition"),
    ("DQ_DOMAIN_LIMITS", {"ä" * 256 + "x": {"delay": 2}}, "the name of a partition"),
    ("DQ_DOMAIN_LIMITS", {"a\nb": {"delay": 2}}, "the name of a partition"),
    ("DQ_DOMAIN_LIMITS", {"a\ud800b": {"delay": 2}}, "the name of a partition"),
    ("DQ_DOMAIN_LIMITS", {5: {"delay": 2}}, "the name of a partition"),
    ("DQ_DOMAIN_LIMITS", {"a.com": {"delay": -1}}, ": delay of 'a.com' = -1: expected 0 to 86400"),
    ("DQ_DOMAIN_LIMITS", {"a.com": {"delay": None}}, ": delay of 'a.com' = None"),
    ("DQ_DOMAIN_LIMITS", '{"a.com": {"delay": NaN}}', ": delay of 'a.com' = nan"),
    ("DQ_DOMAIN_LIMITS", {"a.com": {"concurrency": 1.5}}, ": concurrency of 'a.com' = 1.5: expected a whole"),
    ("DQ_DOMAIN_LIMITS", {"a.com": {"budget": "9/week"}}, ": budget of 'a.com' = '9/week': expected"),
    ("DQ_RETRY_BACKOFF", {"base": 1}, 'both "base" and "cap"'),
    ("DQ_RETRY_BACKOFF", {"base": 0, "cap": 1}, "the base above 0"),
    ("DQ_RETRY_BACKOFF", {"base": 2, "cap": 1}, "not above the cap"),
    ("DQ_RETRY_BACKOFF", {"base": True, "cap": 1}, ": base = True"),
    ("DQ_RETRY_BACKOFF", {"retry_after": 31_536_000}, ": retry_after = 31536000: expected 0 to 86400"),
    ("DQ_RETRY_BACKOFF", {"base": 1, "cpa": 2}, "not 'cpa'"),
]


@pytest.mark.parametrize(("name", "value", "says"), BAD_OPTIONS, ids=[case[2][:40] for case in BAD_OPTIONS])
def test_options_that_cannot_be_kept_are_refused(name: str, value: Any, says: str) -> None:
    """A limit that silently does nothing would be found out by the site."""
    with pytest.raises(ConfigError, match=rf"^{name}( = |: | \(not shown here\))") as refusal:
        read(**{name: value})
    assert says in str(refusal.value)
    assert len(str(refusal.value)) < 1000


ONE = {"DQ_PARTITION_BY": "none"}
OWN = {"a.com": {"budget": "9/day"}, "b.com": {"budget": 0}, "c.com": {}}
CONTRADICTIONS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"DQ_DOMAIN_LIMITS": {"a.com": {"delay": 2}}}, ONE, "DQ_DOMAIN_LIMITS needs partitions"),
    ({"DQ_DOMAIN_LIMITS": OWN}, {"DQ_DOMAIN_BUDGET": 5}, "write /day after each"),
    ({"DQ_SHARDS": 2}, {"DQ_STRICT_ORDER": True}, "each shard has its own order"),
    ({"DQ_SHARDS": 2}, {"CONCURRENT_REQUESTS_PER_IP": 2}, "needs CONCURRENT_REQUESTS_PER_IP = 0"),
    ({"DQ_SHARDS": 2, "DQ_DOMAIN_DELAY": 1}, ONE, "remove DQ_DOMAIN_ limits"),
    ({}, {"DQ_SEEN_TTL": 60}, "DQ_SEEN_TTL = 60 needs SCHEDULER_PERSIST"),
    ({"SCHEDULER_PERSIST": True, "DQ_SEEN_TTL": 60}, {"DQ_REVISIT": "fixed:1d"}, "both visit pages again"),
    ({"SCHEDULER_PERSIST": True, "DQ_SEEN_TTL": 60}, {"DQ_SEEN": "compact"}, "stores none"),
    ({"REDIS_START_URLS_AS_SET": True}, {"REDIS_START_URLS_AS_ZSET": True}, "AS_SET and ZSET"),
]


@pytest.mark.parametrize(("first", "second", "says"), CONTRADICTIONS)
def test_settings_that_exclude_each_other_are_refused(
    first: dict[str, Any], second: dict[str, Any], says: str
) -> None:
    """A misunderstanding; without the second one, the first is accepted."""
    read(**first)
    with pytest.raises(ConfigError, match=says):
        read(**first, **second)


def test_the_kind_of_seen_and_the_limits_are_those_of_the_settings() -> None:
    assert read(DQ_SEEN="compact").seen_kind is Seen.COMPACT
    assert read(DQ_SEEN_TTL=60, SCHEDULER_PERSIST=True).seen_kind is Seen.EXPIRING
    assert read().seen_kind is Seen.EXACT
    assert read(DQ_DOMAIN_LIMITS=OWN).limits.daily
    assert read(DQ_DOMAIN_BUDGET="5/day", DQ_DOMAIN_LIMITS=OWN).limits.budget == 5
    assert list(read(DQ_DOMAIN_LIMITS={"ä" * 256: {}}).domain_limits) == ["ä" * 256]
    assert read(**ONE, DQ_DOMAIN_DELAY=2, DQ_DOMAIN_LIMITS={}).limits == Limits(2, 0, {})


def test_the_limits_of_a_config_are_all_there_are() -> None:
    """The crawl's own, and those of single partitions."""
    config = read(DQ_DOMAIN_DELAY=0.5, DQ_DOMAIN_CONCURRENCY=2, DQ_DOMAIN_LIMITS={"a": {"delay": 2}})
    assert config.limits == Limits(0.5, 2, {"a": (2, None)})


def test_the_timeout_of_redis_is_that_of_its_client() -> None:
    assert read().redis_timeout_s == read(REDIS_PARAMS={"socket_timeout": None}).redis_timeout_s == 2.0
    assert read(REDIS_PARAMS='{"socket_timeout": "5"}').redis_params == {"socket_timeout": 5.0}


# DQ_CRAWL and DQ_RUN_NAME


@pytest.mark.parametrize("name", ["DQ_CRAWL", "DQ_RUN_NAME"])
def test_placeholders_are_filled(name: str) -> None:
    """Spider, project, job, and the spider's arguments."""
    config = read(**{name: "%(project)s/%(spider)s-%(category)s:%(job)s 100%%"})
    assert getattr(config, BY_NAME[name].field) == "shop/books-poetry:j1 100%"


@pytest.mark.parametrize("name", ["DQ_CRAWL", "DQ_RUN_NAME"])
@pytest.mark.parametrize("template", ["%s", "100%", "%(spider)d", "%(spider", "%d", "%(spider)s %", "%%%s"])
def test_an_invalid_template_is_refused(name: str, template: str) -> None:
    """Instead of a name that nobody meant."""
    with pytest.raises(ConfigError, match=f"^{name} = ") as refusal:
        read(**{name: template})
    assert "%(spider)s" in str(refusal.value)
    assert "poetry" not in str(refusal.value)


def test_an_unknown_placeholder_is_refused_and_the_allowed_ones_listed() -> None:
    """`%(job)s` outside Scrapyd, or an argument that was not given."""
    with pytest.raises(ConfigError, match=r"there is no 'jobs' here.*%\(category\)s, %\(job\)s.*-a jobs="):
        read(DQ_CRAWL="%(jobs)s")


@pytest.mark.parametrize("settings", [{"DQ_CRAWL": ""}, {"DQ_CRAWL": "%(empty)s"}])
def test_a_crawl_has_a_name(settings: dict[str, str]) -> None:
    """An argument that is empty makes no name."""
    with pytest.raises(ConfigError, match=r"DQ_CRAWL = .*not empty"):
        Config.read(settings, NAMES | {"empty": ""})


# DQ_ORDER by recipe


@pytest.mark.parametrize(
    ("settings", "order"),
    [
        ({"SCHEDULER_MEMORY_QUEUE": "scrapy.squeues.LifoMemoryQueue"}, Order.PRIORITY_LIFO),
        ({"SCHEDULER_MEMORY_QUEUE": "scrapy.squeues.FifoMemoryQueue"}, Order.PRIORITY_FIFO),
        ({"SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleFifoDiskQueue"}, Order.PRIORITY_FIFO),
        ({"SCHEDULER_DISK_QUEUE": type("FifoQueue", (), {})}, Order.PRIORITY_FIFO),
        ({"SCHEDULER_MEMORY_QUEUE": "a.FifoMemoryQueue", "DQ_ORDER": "lifo"}, Order.LIFO),
    ],
)
def test_scrapys_recipe_for_breadth_first_order_is_understood(settings: dict[str, Any], order: Order) -> None:
    """FIFO queues mean `priority-fifo`, unless DQ_ORDER says something else."""
    assert read(**settings).order is order


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({}, StartQueue.FIFO),
        ({"SCHEDULER_START_MEMORY_QUEUE": "scrapy.squeues.FifoMemoryQueue"}, StartQueue.FIFO),
        ({"SCHEDULER_START_MEMORY_QUEUE": LifoMemoryQueue}, StartQueue.LIFO),
        ({"SCHEDULER_START_MEMORY_QUEUE": None}, StartQueue.SHARED),
        ({"SCHEDULER_START_DISK_QUEUE": None}, StartQueue.FIFO),
        ({"SCHEDULER_START_DISK_QUEUE": None, "JOBDIR": "job"}, StartQueue.SHARED),
    ],
)
def test_start_requests_stand_where_scrapys_setting_says(settings: dict[str, Any], found: StartQueue) -> None:
    """The disk queue's counts where Scrapy would go by it."""
    assert read(**settings).start_queue is found
    project = Settings(settings)
    assert Config.read(project, NAMES).start_queue is found


@pytest.mark.parametrize(
    ("settings", "order", "named"),
    [
        ({"SCHEDULER_MEMORY_QUEUE": LifoMemoryQueue}, Order.PRIORITY_LIFO, []),
        ({"SCHEDULER_MEMORY_QUEUE": LifoMemoryQueue}, Order.FIFO, ["SCHEDULER_MEMORY_QUEUE"]),
        ({"SCHEDULER_DISK_QUEUE": "a.MyQueue"}, Order.PRIORITY_LIFO, ["SCHEDULER_DISK_QUEUE"]),
        ({"SCHEDULER_START_MEMORY_QUEUE": LifoMemoryQueue}, Order.PRIORITY_FIFO, []),
        ({"SCHEDULER_START_MEMORY_QUEUE": LifoMemoryQueue}, Order.LIFO, ["SCHEDULER_START_MEMORY_QUEUE"]),
        ({"SCHEDULER_START_MEMORY_QUEUE": "a.My"}, Order.PRIORITY_LIFO, ["SCHEDULER_START_MEMORY_QUEUE"]),
        ({"SCHEDULER_START_MEMORY_QUEUE": None}, Order.LIFO, []),
    ],
)
def test_queues_that_contradict_the_order_have_no_effect(
    settings: dict[str, Any], order: Order, named: list[str]
) -> None:
    assert queues_in_vain(settings, order) == named


@pytest.mark.parametrize(
    ("name", "order"),
    [
        ("PriorityQueue", Order.PRIORITY_LIFO),
        ("SpiderPriorityQueue", Order.PRIORITY_LIFO),
        ("FifoQueue", Order.FIFO),
        ("SpiderQueue", Order.FIFO),
        ("LifoQueue", Order.LIFO),
        ("SpiderStack", Order.LIFO),
    ],
)
def test_the_queue_class_of_scrapy_redis_chooses_the_order(name: str, order: Order) -> None:
    """By its last name: nothing is imported, so that changed import paths do no harm. DQ_ORDER wins."""
    for cls in (f"scrapy_redis.queue.{name}", f"scrapy_dq.queue.{name}", type(name, (), {})):
        assert read(SCHEDULER_QUEUE_CLASS=cls).order is order
        assert read(SCHEDULER_QUEUE_CLASS=cls, DQ_ORDER="priority-fifo").order is Order.PRIORITY_FIFO
        fifo = {"SCHEDULER_MEMORY_QUEUE": "scrapy.squeues.FifoMemoryQueue"}
        assert read(SCHEDULER_QUEUE_CLASS=cls, **fifo).order is order


@pytest.mark.parametrize("cls", ["project.MyQueue", "", None, 5, object()])
def test_another_queue_class_chooses_nothing(cls: Any) -> None:
    """What it would do cannot be known."""
    assert read(SCHEDULER_QUEUE_CLASS=cls).order is Order.PRIORITY_LIFO


# DQ_ENABLED


def test_a_bad_value_does_not_turn_the_scheduler_off() -> None:
    """It is refused when the crawl opens, where that makes one clear line; until then it counts as on."""
    assert [enabled({"DQ_ENABLED": value}) for value in (None, True, "1", "no", [])] == [True] * 5
    assert [enabled({"DQ_ENABLED": value}) for value in (False, 0, "0", "false", "")] == [False] * 5


# Where Redis is, embedded or not, and passwords


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
def test_the_embedded_redis_serves_where_none_is_named(settings: dict[str, Any], embedded: bool) -> None:
    """A port, a database, a password: each means that there is one."""
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
def test_a_setting_wins_over_its_namesake_in_params(settings: dict[str, Any], target: str) -> None:
    """As with scrapy-redis: REDIS_URL, then REDIS_HOST, REDIS_PORT and REDIS_DB, then REDIS_PARAMS."""
    assert Connection(read(**settings), Path()).target == target
    if not target.startswith("unix:"):
        client = get_redis_from_settings(settings)
        where = client.connection_pool.connection_kwargs
        found = (where.get("host", "localhost"), where.get("port", 6379), where.get("db", 0))
        assert "{}:{}/{}".format(*found) == target


@pytest.mark.parametrize("database", ["notadb", "1x", "0/1x", "geheim/0"])
@pytest.mark.parametrize("scheme", ["redis", "rediss"])
def test_a_database_that_is_no_number_is_refused(scheme: str, database: str) -> None:
    """redis-py takes number 0 instead, with everything that is there."""
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
    """Neither by repr() nor by an error, nor on the page of the settings."""
    try:
        config = read(**settings)
        shown = f"{config!r} {settings_of(config)}"
    except ConfigError as refusal:
        shown = str(refusal)
        assert "REDIS_" in shown
    assert "s3cr3t" not in shown


# docs/settings.md

DOCS = (Path(__file__).parents[2] / "docs" / "settings.md").read_text("utf-8")


def shown_default(setting: Setting) -> str:
    default = setting.default
    if isinstance(default, str):
        return default or '""'
    if isinstance(default, tuple):
        return str(list(default)).replace("'", '"')
    return f"{default:.12g}" if isinstance(default, float) else str(default)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_the_docs_tell_of_each_setting(setting: Setting) -> None:
    """A section of its own, which begins with the default and the range, and goes on."""
    section = rf"^### `{setting.name}`\n\nDefault `([^\n]*)`; ([^\n]*)\.\n\n(.+?)(?=^#|\Z)"
    found = re.search(section, DOCS, re.M | re.S)
    assert found, "no section, or one that begins otherwise"
    assert (found[1], found[2]) == (shown_default(setting), setting.allowed)
    assert len(found[3]) > 20


def test_the_docs_tell_of_no_other_setting() -> None:
    """What was renamed or removed does not stay there."""
    assert set(re.findall(r"\bDQ_[A-Z_]+", DOCS)) == {name for name in BY_NAME if name.startswith("DQ_")}
    assert sorted(re.findall(r"^### `(\w+)`", DOCS, re.M)) == sorted(BY_NAME)


def test_the_docs_list_scrapy_settings_without_effect() -> None:
    for name in progress_log.WITHOUT_EFFECT:
        assert f"`{name}`" in DOCS


def test_the_docs_list_every_stat() -> None:
    """And none that is not written."""
    names = {value for name, value in vars(stats).items() if name.isupper() and name != "PREFIX"}
    page = (Path(__file__).parents[2] / "docs" / "stats.md").read_text("utf-8")
    documented = set(re.findall(r"`((?:dq|scheduler|dupefilter)/[\w/]+)`", page))
    assert documented == names
    for name in names:
        if name.startswith(stats.PREFIX):
            assert re.search(rf"^\| `{name}` \| .{{10,}} \|$", page, re.M)


def test_the_docs_list_the_meta_keys() -> None:
    """Three for users, one that they may meet."""
    assert re.findall(r"^\| `(dq_\w+)` \|", DOCS, re.M) == [
        "dq_local",
        "dq_delay",
        "dq_not_before",
        "dq_seeded",
    ]


def test_a_name_that_a_spider_keeps_for_itself_is_not_proposed() -> None:
    """Only those that a user may have meant."""
    names = {"spider": "books", "_follow_links": "True"}
    with pytest.raises(ConfigError, match=r"there is no 'foo' here; use %\(spider\)s, or pass"):
        Config.read(Settings({"DQ_CRAWL": "%(foo)s"}), names)
