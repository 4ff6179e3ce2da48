"""The environment of a crawl: data directory, Scrapyd's job, and arguments of the spider."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from scrapy import Spider
from scrapy.crawler import Crawler

from scrapy_dq import environment, gc_tuning


@pytest.mark.parametrize(
    ("config", "named", "found"),
    [
        ("", "", ".scrapy/dq"),
        ("[datadir]\ndefault = elsewhere\n", "", "elsewhere/dq"),
        ("[datadir]\ndefault = elsewhere\n", "named", "named"),
        (None, "", ".scrapy/dq"),
    ],
)
def test_naming_the_data_directory_creates_nothing(
    config: str | None, named: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a REDIS_URL, a worker must start even if the data directory is not writable."""
    if config is not None:
        (tmp_path / "scrapy.cfg").write_text(f"[settings]\n{config}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCRAPY_SETTINGS_MODULE", "scrapy.settings.default_settings")
    before = os.listdir()
    assert environment.data_dir(named).absolute() == tmp_path / found
    assert os.listdir() == before


@pytest.mark.parametrize(
    ("environ", "arguments", "job"),
    [
        ({"SCRAPY_JOB": "7"}, {}, "7"),
        ({"SCRAPYD_JOB": "7"}, {}, "7"),
        ({}, {"_job": "7"}, "7"),
        ({"SCRAPYD_JOB": "7"}, {"_job": "7"}, "7"),
        ({}, {}, None),
    ],
)
def test_the_job_of_scrapyd_is_found(
    environ: dict[str, str], arguments: dict[str, str], job: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scrapyd passes the job in the environment (up to 1.3, and in some later versions) or as an argument."""
    for name in ("SCRAPY_JOB", "SCRAPYD_JOB"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    crawler = Crawler(Spider)
    assert environment.names_of(crawler, Spider(name="books", **arguments)).get("job") == job


def opened_with(*args: object, frozen: bool = False, **kwargs: object) -> dict[str, str]:
    """Return the spider's arguments, as `spider_args` finds them while `crawl()` runs."""

    class Opening(Crawler):
        def crawl(self, *args: Any, **kwargs: Any) -> Any:
            yield

    crawler = Opening(Spider)
    crawling = crawler.crawl(*args, **kwargs)
    next(crawling)
    if frozen:
        gc_tuning.freeze()
    try:
        return environment.spider_args(crawler)
    finally:
        if frozen:
            gc_tuning.release()


def test_spider_arguments_are_the_arguments_of_the_constructor() -> None:
    """The command line, Scrapyd or a script passes them. Attributes that the spider sets do not count."""
    assert opened_with(part=2, start_urls=["a"]) == opened_with(start_urls=["a"], part="2") != {}
    others = [opened_with(part=part) for part in (2, 3, [2], None, {"a": 2})]
    assert len(set(map(str, others))) == 5
    assert list(opened_with(part=2, _job="7")) == ["part"]
    assert len(set(map(str, [opened_with(), opened_with(2), opened_with(3), opened_with(2, part=2)]))) == 4
    assert opened_with(part="is at 0x1") != opened_with(part="is at 0x2")
    # equal sets with different orders, as in two processes
    assert repr({8, 0}) != repr({0, 8})
    assert opened_with(parts={8, 0}) == opened_with(parts={0, 8}) != opened_with(parts={0, 1})


class Rows:
    def __repr__(self) -> str:
        return "   a\n0  1\n..  ...\n9  2"


@pytest.mark.parametrize("value", [object(), iter([1]), (n for n in [1]), [object()], Rows()])
def test_arguments_without_a_distinct_repr_do_not_count_as_equal(value: object) -> None:
    """Two iterators look alike, but may yield different values, so equal texts are no proof of equality."""
    assert not environment.are_comparable(opened_with(rows=value))
    assert environment.are_comparable(opened_with(rows=[1, "a... at 0x1"], text="an object at 0x1..."))
    assert opened_with(rows=value) == opened_with(rows=value)


def test_the_order_of_plain_data_does_not_matter() -> None:
    """The order of a set differs between processes, even inside lists and dicts."""
    first, second = {8, 0}, {0, 8}
    assert repr(first) != repr(second)
    one, other = ({"a": [first], "b": (1,)}, {"b": (1,), "a": [second]})
    assert opened_with(given=one) == opened_with(given=other)
    assert opened_with(given=one) != opened_with(given={"a": [first], "b": [2]})
    endless: list[Any] = []
    endless.append(endless)
    assert not environment.are_comparable(opened_with(given=endless))


def test_spider_arguments_are_found_after_another_crawl_of_the_process_joined() -> None:
    """The other crawl froze the arguments, so the garbage collector no longer finds them."""
    assert opened_with(category=1, frozen=True) == opened_with(category=1)


def test_without_a_crawl_spider_arguments_come_from_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """`scrapy dq push` makes a spider without a crawl."""
    words = ["scrapy", "dq", "push", "-a", "_job=7", "-a", "category=1", "-acolour=red"]
    monkeypatch.setattr(sys, "argv", words)
    assert list(environment.spider_args(Crawler(Spider))) == ["category", "colour"]


@pytest.mark.parametrize(
    ("starts", "says"),
    [
        ("{}", "no -a part"),
        ('{"part": "1a"}', "-a part (the same here)"),
        ("?", "unknown arguments"),
        ('*{"part": "2b", "colour": "5c"}', "-a colour (not given here), -a part (another value here)"),
    ],
)
def test_differences_from_the_arguments_of_another_start_are_named(starts: str, says: str) -> None:
    """Only the names of arguments are shown, because their values are stored as digests."""
    assert environment.compared(starts, '{"part": "1a"}') == says
    assert environment.compared("{}", "{}") == "no arguments"
