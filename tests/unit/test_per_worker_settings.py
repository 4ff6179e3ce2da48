"""Warnings about Scrapy settings that apply to each worker separately."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from scrapy.settings import Settings

from scrapy_dq.scheduling.progress_log import CLOSING_COUNTS, warnings_of_each_worker
from scrapy_dq.settings import Config


def warnings(config: Config, settings: dict[str, Any], **spider: Any) -> list[str]:
    crawler: Any = SimpleNamespace(spider=SimpleNamespace(**spider), settings=Settings(settings))
    return list(warnings_of_each_worker(crawler, config))


@pytest.mark.parametrize(
    ("setting", "names", "instead"),
    [
        ("DOWNLOAD_DELAY", "DOWNLOAD_DELAY = 1: each worker", "DQ_DOMAIN_DELAY"),
        ("AUTOTHROTTLE_ENABLED", "AUTOTHROTTLE_ENABLED = True: each worker", "DQ_DOMAIN_CONCURRENCY"),
        *((name, f"{name} = 1", "DQ_MAX_PAGES") for name in CLOSING_COUNTS),
    ],
)
def test_a_setting_that_several_workers_multiply_has_a_warning(
    setting: str, names: str, instead: str
) -> None:
    (warning,) = warnings(Config("c"), {setting: 1})
    assert names in warning
    assert instead in warning
    assert "all workers together" in warning


def test_scrapys_own_values_have_no_warning() -> None:
    assert warnings(Config("c"), {}) == []


def test_a_setting_that_limits_all_workers_silences_the_warning() -> None:
    """The project has already set a limit for all workers."""
    closing = dict.fromkeys(CLOSING_COUNTS, 9)
    assert warnings(Config("c", max_pages=9), closing) == []
    slow = {"DOWNLOAD_DELAY": 1, "AUTOTHROTTLE_ENABLED": True}
    for config in (
        Config("c", domain_delay_s=2.0),
        Config("c", domain_limits={"a.example": (1.0, None, None)}),
        Config("c", partition_by="none"),
    ):
        assert warnings(config, slow) == []
    assert warnings(Config("c", domain_concurrency=2), {"AUTOTHROTTLE_ENABLED": True}) == []


def test_the_delay_of_a_spider_is_also_warned_about() -> None:
    """Scrapy's downloader also prefers the spider's attribute to the setting."""
    (warning,) = warnings(Config("c"), {}, download_delay=0.5)
    assert "DOWNLOAD_DELAY = 0.5" in warning
