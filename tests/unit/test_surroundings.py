"""What a crawl finds around it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import scrapy.utils.project
from scrapy import Spider
from scrapy.crawler import Crawler

from scrapy_dq import surroundings


def test_two_workers_may_make_the_data_directory_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scrapy finds no `.scrapy`, another process makes it, and Scrapy's mkdir fails: we look again."""
    (tmp_path / "scrapy.cfg").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCRAPY_SETTINGS_MODULE", "scrapy.settings.default_settings")
    mkdir = Path.mkdir

    def beaten(path: Path, *args: object, **kwargs: object) -> None:
        mkdir(path, parents=True)
        mkdir(path, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(scrapy.utils.project.Path, "mkdir", beaten)
    assert surroundings.data_dir() == tmp_path / ".scrapy" / "dq"


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
def test_scrapyd_names_its_job(
    environ: dict[str, str], arguments: dict[str, str], job: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the environment up to 1.3 and in some since, and as an argument: for `%(job)s`."""
    for name in ("SCRAPY_JOB", "SCRAPYD_JOB"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    crawler = Crawler(Spider)
    assert surroundings.names_of(crawler, Spider(name="books", **arguments)).get("job") == job


def test_another_job_of_scrapyd_has_the_same_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning that the run was started with others would be untrue of every second worker."""
    monkeypatch.setattr(sys, "argv", ["/venv/bin/scrapy", "books", "-a", "_job=7", "-a", "category=1"])
    assert list(surroundings.spider_args(Spider("books", _job="7", category="1"))) == ["category"]


@pytest.mark.parametrize(
    "started", ["bin/scrapy", "scrapy.exe", "scrapy/__main__.py", "scrapy/cmdline.py", "scrapyd/runner.py"]
)
def test_what_runs_scrapy_crawl_has_its_arguments(started: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else the spider sets in its constructor, which need not be the same in each process."""
    monkeypatch.setattr(sys, "argv", [started, "books", "-a", "category=1", "-acolour=red"])
    assert list(surroundings.spider_args(Spider("books", began="now"))) == ["category", "colour"]


@pytest.mark.parametrize("argv", [["run.py"], ["run.py", "crawl", "-a", "x=1"]])
def test_a_script_gives_its_arguments_in_another_way(
    argv: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`process.crawl(Books, part=2)`: the spider's attributes tell; else all scripts would look alike."""
    monkeypatch.setattr(sys, "argv", argv)

    def args(**kwargs: object) -> dict[str, str]:
        return surroundings.spider_args(Spider("books", **kwargs))

    assert args(part=2, start_urls=["a"]) == args(start_urls=["a"], part=2)
    assert len({str(args(part=2)), str(args(part=3)), str(args(part=[2])), str(args(start_urls=[2]))}) == 4
    assert list(args(part=2, settings=object(), _job="7")) == ["part"]
