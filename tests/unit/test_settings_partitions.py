"""The settings of partitions: limits, back-off, and settings that exclude each other."""

from __future__ import annotations

from typing import Any

import pytest

from scrapy_dq.frontier.model import Limits, Seen
from scrapy_dq.settings import ConfigError
from support.read_settings import read

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
def test_limits_that_cannot_be_kept_are_refused(name: str, value: Any, says: str) -> None:
    """Otherwise the limit would have no effect, and the site would be the first to notice."""
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
    """A contradiction is a mistake of the user. Without the second setting, the first is accepted."""
    read(**first)
    with pytest.raises(ConfigError, match=says):
        read(**first, **second)


def test_the_settings_choose_the_kind_of_seen_and_the_limits() -> None:
    assert read(DQ_SEEN="compact").seen_kind is Seen.COMPACT
    assert read(DQ_SEEN_TTL=60, SCHEDULER_PERSIST=True).seen_kind is Seen.EXPIRING
    assert read().seen_kind is Seen.EXACT
    assert read(DQ_DOMAIN_LIMITS=OWN).limits.daily
    assert read(DQ_DOMAIN_BUDGET="5/day", DQ_DOMAIN_LIMITS=OWN).limits.budget == 5
    assert list(read(DQ_DOMAIN_LIMITS={"ä" * 256: {}}).domain_limits) == ["ä" * 256]
    assert read(**ONE, DQ_DOMAIN_DELAY=2, DQ_DOMAIN_LIMITS={}).limits == Limits(2, 0, {})


def test_the_limits_of_a_config_include_those_of_single_partitions() -> None:
    """A Config's limits are the crawl's own limits and the limits of single partitions."""
    config = read(DQ_DOMAIN_DELAY=0.5, DQ_DOMAIN_CONCURRENCY=2, DQ_DOMAIN_LIMITS={"a": {"delay": 2}})
    assert config.limits == Limits(0.5, 2, {"a": (2, None)})
