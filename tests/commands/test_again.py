"""Commands print options that the user can type again. Dots replace values that may be secret."""

from __future__ import annotations

from typing import Any

import pytest

from scrapy_dq.commands.input.confirm import repeated
from scrapy_dq.inspection.settings import settings_of
from scrapy_dq.settings import SETTINGS, Config


@pytest.mark.parametrize(
    ("flag", "value", "shown"),
    [
        ("-a", "q=two words", "-a 'q=two words'"),
        ("-s", "REDIS_URL=redis://host:6379/0", "-s REDIS_URL=redis://host:6379/0"),
        ("-s", "REDIS_URL=redis://:s3cr3t@host/0", "-s REDIS_URL=..."),
        ("-s", "REDIS_URL=redis://host/0?password=s3cr3t", "-s REDIS_URL=..."),
        ("-s", 'REDIS_PARAMS={"password":\n"s3cr3t"}', "-s REDIS_PARAMS=..."),
        ("-s", "AWS_SECRET_ACCESS_KEY=s3cr3t", "-s AWS_SECRET_ACCESS_KEY=..."),
        ("-s", 'FEEDS={"ftp://me:s3cr3t@host/f": {}}', "-s FEEDS=..."),
        ("-a", "keyword=tree", "-a keyword=tree"),
        ("-a", "password=s3cr3t", "-a password=..."),
        ("-a", "api_token=s3cr3t", "-a api_token=..."),
        ("-a", "start=https://host/me@home", "-a start=https://host/me@home"),
        ("-o", "ftp://me:s3cr3t@host/f.jsonl", "-o ftp://...@host/f.jsonl"),
        ("-s", "REDIS_URL=redis://:s3c r3t@host/0", "-s REDIS_URL=..."),
        ("-s", "SENTRY_DSN=https://s3cr3t/@host/1", "-s SENTRY_DSN=..."),
        ("-s", 'DEFAULT_REQUEST_HEADERS={"Authorization":"Bearer s3cr3t"}', "-s DEFAULT_REQUEST_HEADERS=..."),
        ("-s", "PROXY=me:s3c@r3t@host:8080", "-s PROXY=..."),
        ("-a", "pw=s3cr3t", "-a pw=..."),
        ("-a", "pin=1234", "-a pin=..."),
        ("-a", "start=https://host/?pin=1234", "-a start=..."),
        ("-a", "pinned=1", "-a pinned=1"),
        ("-a", "start=https://host/?api_key=s3cr3t", "-a start=..."),
        ("-a", "start_url=https://host:8080/@me", "-a start_url=https://host:8080/@me"),
        ("-o", "ftp://me:s3c@r3t@host/f.jsonl", "-o ftp://...@host/f.jsonl"),
        ("-o", "C:f.jsonl", "-o C:f.jsonl"),
    ],
)
def test_a_password_is_not_repeated(flag: str, value: str, shown: str) -> None:
    assert list(repeated(flag, [value])) == [shown]


def test_an_option_that_was_not_given_is_not_repeated() -> None:
    assert list(repeated("-s", None)) == []


@pytest.mark.parametrize("setting", [each for each in SETTINGS if each.secret], ids=lambda each: each.name)
def test_no_secret_setting_is_shown_anywhere(setting: Any) -> None:
    """The options to type again, the page of the settings and Python's repr() hide the secret."""
    values = {
        "REDIS_URL": "redis://:s3cr3t-0123456789@host/0",
        "REDIS_PARAMS": {"password": "s3cr3t-0123456789"},
        "DQ_NOTIFY_URL": "https://hooks.example/services/s3cr3t-0123456789",
    }
    value = values[setting.name]
    config = Config.read({"DQ_CRAWL": "books", setting.name: value}, {})
    assert "s3cr3t" not in repr(config)
    (row,) = [row for row in settings_of(config) if row["name"] == setting.name]
    assert row["value"]
    assert "s3cr3t" not in str(settings_of(config))
    given = value if isinstance(value, str) else str(value)
    assert "s3cr3t" not in str(list(repeated("-s", [f"{setting.name}={given}"])))
