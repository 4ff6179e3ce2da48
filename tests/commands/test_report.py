"""`scrapy dq report`: one file with all data about a crawl, in which hostile data stays text."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgpack
import pytest

from scrapy_dq.commands.report import report_file
from scrapy_dq.commands.subcommand import CommandError
from support.live_frontier import IDENTITY, HandWorker, LiveFrontier, bury, fail, put
from support.samples import BEGAN, add_samples

HOSTILE = "<script>alert(x)</script>\x1b[31m\u202e&\"' http://a.example/"


class Page(HTMLParser):
    """A parsed HTML page: its elements, their text, and all addresses."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.open: list[str] = []
        self.text = ""
        self.addresses: list[str | None] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href") or name.startswith("on")]
        if tag not in ("meta", "line", "path"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("line", "path"):
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data + " "


@pytest.fixture
def crawl(live: LiveFrontier) -> LiveFrontier:
    """Return a crawl with a history, failures, dead letters and a dead worker. Some data is hostile."""
    worker = HandWorker(live, "worker", replace(IDENTITY, starts="{}"))
    worker.exchange(*(put(n, partition=b"a.example<b>") for n in range(1, 9)), want=3)
    first, second, _ = sorted(int(each) for each in worker.held)
    worker.exchange(fail(first, reason=HOSTILE), bury(second, reason="its format is 9"), seeding=1)
    HandWorker(live, "dead<i>")
    worker.fence("dead<i>")
    add_samples(live, 30)
    live.redis.rpush(
        live.key("journal"), msgpack.packb([0, (BEGAN + 90) * 1000, HOSTILE, HOSTILE, 1, HOSTILE])
    )
    live.redis.rpush(live.key("journal"), msgpack.packb([0, (BEGAN + 90) * 1000, "died", "dead<i>", 2, ""]))
    return live


def test_the_report_has_totals_curves_partitions_failures_and_events(dq: Any, crawl: LiveFrontier) -> None:
    """Failures and dead letters are grouped by cause."""
    page = Page("\n".join(dq.lines("report")))
    assert {"svg", "path", "line", "table", "dl"} <= page.tags
    text = " ".join(page.text.split())
    for part in (
        f"{crawl.crawl} Run 0, open",
        "failed 1 ",
        "dead 1 ",
        "pages/s :",
        "memory :",
        "The largest partitions, of ",
        "a.example<b>",
        "Failed requests, by cause",
        "its format is #",
        "a worker died with 2 leases",
        "the run began",
    ):
        assert part in text, (part, text)
    assert not page.open


def test_hostile_values_are_plain_text_in_the_report(dq: Any, crawl: LiveFrontier) -> None:
    """The page has no script, address or control character, and its policy also forbids scripts."""
    html = "\n".join(dq.lines("report"))
    page = Page(html)
    assert not page.tags & {"script", "img", "a", "link", "iframe", "i", "object"}
    assert not page.addresses
    assert "<script>alert(x)</script>" in page.text
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", html)
    assert "default-src &#x27;none&#x27;" in html or "default-src 'none'" in html


def test_a_crawl_without_a_history_has_a_report(dq: Any, live: LiveFrontier) -> None:
    """The report says that there are no samples."""
    HandWorker(live, "worker")
    assert "There are no samples" in "\n".join(dq.lines("report"))


def test_the_report_is_written_to_a_file(dq: Any, crawl: LiveFrontier, tmp_path: Path) -> None:
    assert dq.lines("report", "--output", str(tmp_path / "report.html")) == []
    assert Page((tmp_path / "report.html").read_text("utf-8")).tags >= {"svg", "table"}
    found = dq.found("report")
    assert (found["status"]["failed"], len(found["failed"]), len(found["dead"])) == (1, 1, 1)
    assert len(found["samples"]) >= 30
    assert {event["kind"] for event in found["events"]} >= {"joined", "died"}


def test_in_a_terminal_the_report_is_written_to_a_file_whose_name_is_printed(
    dq: Any, crawl: LiveFrontier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of the crawl is escaped in the file name, so the file is never in another folder."""
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.chdir(tmp_path)
    assert dq.lines("report") == [f"The report is in report-{crawl.crawl}.html"]
    assert Page((tmp_path / f"report-{crawl.crawl}.html").read_text("utf-8")).tags >= {"svg", "table"}
    assert report_file("../a/b").name == "report-..%2Fa%2Fb.html"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a link of another user")
def test_the_report_is_not_written_through_a_link_of_another_user(
    dq: Any, crawl: LiveFrontier, tmp_path: Path
) -> None:
    """A link of another user could lead to any file of the current user."""
    ours, report = tmp_path / "ours", tmp_path / "report.html"
    ours.write_text("precious")
    report.symlink_to(ours)
    os.chown(report, 65534, 65534, follow_symlinks=False)
    with pytest.raises(CommandError, match="is a link of another user"):
        dq.lines("report", "--output", str(report))
    assert ours.read_text() == "precious"
