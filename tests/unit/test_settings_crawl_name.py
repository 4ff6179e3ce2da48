"""The templates of DQ_CRAWL and DQ_RUN_NAME: their placeholders, and templates that are refused."""

from __future__ import annotations

import pytest

from scrapy_dq.settings import Config, ConfigError
from support.read_settings import BY_NAME, NAMES, read


@pytest.mark.parametrize("name", ["DQ_CRAWL", "DQ_RUN_NAME"])
def test_placeholders_are_filled(name: str) -> None:
    """Placeholders are spider, project, job, and the arguments of the spider."""
    config = read(**{name: "%(project)s/%(spider)s-%(category)s:%(job)s 100%%"})
    assert getattr(config, BY_NAME[name].field) == "shop/books-poetry:j1 100%"


@pytest.mark.parametrize("name", ["DQ_CRAWL", "DQ_RUN_NAME"])
@pytest.mark.parametrize("template", ["%s", "100%", "%(spider)d", "%(spider", "%d", "%(spider)s %", "%%%s"])
def test_an_invalid_template_is_refused(name: str, template: str) -> None:
    """Otherwise the crawl would have a name that the user did not mean."""
    with pytest.raises(ConfigError, match=f"^{name} = ") as refusal:
        read(**{name: template})
    assert "%(spider)s" in str(refusal.value)
    assert "poetry" not in str(refusal.value)


def test_an_unknown_placeholder_is_refused_and_the_allowed_ones_listed() -> None:
    """Examples are `%(job)s` outside Scrapyd, and an argument that was not given."""
    with pytest.raises(ConfigError, match=r"there is no 'jobs' here.*%\(category\)s, %\(job\)s.*-a jobs="):
        read(DQ_CRAWL="%(jobs)s")


@pytest.mark.parametrize("settings", [{"DQ_CRAWL": ""}, {"DQ_CRAWL": "%(empty)s"}])
def test_an_empty_crawl_name_is_refused(settings: dict[str, str]) -> None:
    """The name is also empty if it consists only of an empty spider argument."""
    with pytest.raises(ConfigError, match=r"DQ_CRAWL = .*not empty"):
        Config.read(settings, NAMES | {"empty": ""})
