"""docs/settings.md and docs/stats.md describe each setting, stat and meta key, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scrapy_dq.scheduling import progress_log
from scrapy_dq.settings import SETTINGS, Setting
from scrapy_dq.stats import names as stats
from support.read_settings import BY_NAME

DOCS = (Path(__file__).parents[2] / "docs" / "settings.md").read_text("utf-8")


def shown_default(setting: Setting) -> str:
    default = setting.default
    if isinstance(default, str):
        return default or '""'
    if isinstance(default, tuple):
        return str(list(default)).replace("'", '"')
    return f"{default:.12g}" if isinstance(default, float) else str(default)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_the_docs_describe_each_setting(setting: Setting) -> None:
    """Each section gives the default and the allowed values, then a description."""
    section = rf"^### `{setting.name}`\n\nDefault `([^\n]*)`; ([^\n]*)\.\n\n(.+?)(?=^#|\Z)"
    found = re.search(section, DOCS, re.M | re.S)
    assert found, "no section begins with this setting's default and range"
    assert (found[1], found[2]) == (shown_default(setting), setting.allowed)
    assert len(found[3]) > 20


def test_the_docs_mention_no_other_setting() -> None:
    """The docs keep no setting that was renamed or removed."""
    assert set(re.findall(r"\bDQ_[A-Z_]+", DOCS)) == {name for name in BY_NAME if name.startswith("DQ_")}
    assert sorted(re.findall(r"^### `(\w+)`", DOCS, re.M)) == sorted(BY_NAME)


def test_the_docs_list_scrapy_settings_without_effect() -> None:
    for name in progress_log.IGNORED_SETTINGS:
        assert f"`{name}`" in DOCS


def test_the_docs_list_every_stat() -> None:
    """docs/stats.md lists no other stat."""
    names = {value for name, value in vars(stats).items() if name.isupper() and name != "PREFIX"}
    page = (Path(__file__).parents[2] / "docs" / "stats.md").read_text("utf-8")
    documented = set(re.findall(r"`((?:dq|scheduler|dupefilter)/[\w/]+)`", page))
    assert documented == names
    for name in names:
        if name.startswith(stats.PREFIX):
            assert re.search(rf"^\| `{name}` \| .{{10,}} \|$", page, re.M)


def test_the_docs_list_the_meta_keys() -> None:
    """Users set the first three keys, and may meet the fourth in stored requests."""
    assert re.findall(r"^\| `(dq_\w+)` \|", DOCS, re.M) == [
        "dq_local",
        "dq_delay",
        "dq_not_before",
        "dq_seeded",
    ]
