"""The lines that `scrapy dq crawl` prints while it runs, and at its end."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import redis

from scrapy_dq.commands.output.crawl_view import Summary, _line, state_of
from scrapy_dq.crew.feeds.exporting import Exported
from scrapy_dq.crew.feeds.folder import Run
from scrapy_dq.crew.monitor import Monitor, run_name_for
from scrapy_dq.frontier.admin.overview import Overview
from scrapy_dq.frontier.model import Census, FrontierUnavailable, Hold
from scrapy_dq.frontier.records import Entry
from scrapy_dq.settings import Config
from support.place import place_of
from support.waiting import free_port


def crew_with(census: Census, hold: Hold = Hold.NONE, alive: int = 1) -> Any:
    """Return a double with the parts of a crew that the view shows."""
    overview = Overview("open", "epoch", 0, census, [], hold)

    def running(number: int) -> Any:
        return SimpleNamespace(outage="", run=Run("epoch", 0), pid=number)

    slots = [
        SimpleNamespace(number=n, rate=0.5, counts=Counter(pages=1, items=4, errors=2, done=1), restarts=0,
                        state="finished", log="w.log", process=running(n) if n <= alive else None)
        for n in (1, 2)
    ]  # fmt: skip
    return SimpleNamespace(
        slots=slots, run=Run("epoch", 0), monitor=SimpleNamespace(overview=overview, problem="", turn=None),
        finished=True, took_s=2.0, began_run=False,
    )  # fmt: skip


OPTIONS = argparse.Namespace(
    spider="books", workers=2, spargs=[], set=[], output=[], overwrite_output=[], crawl=None
)
CENSUS = Census(waiting=7, done=1200)


@pytest.mark.parametrize(
    ("hold", "alive", "says"),
    [
        (Hold.NONE, 2, "done; 7 waiting, 0 in flight; 2 workers"),
        (Hold.PAUSED, 1, "done; paused, 7 waiting, 0 in flight; 1 worker"),
        (Hold.DRAINING, 0, "done; draining, 7 waiting, 0 in flight; 0 workers"),
    ],
)
def test_the_line_shows_whether_the_crawl_is_on_hold(hold: Hold, alive: int, says: str) -> None:
    """Otherwise a crawl on hold would seem to hang. The line has commas in numbers and the correct plural."""
    pace = "" if hold is Hold.PAUSED else ", 1.0 pages/s"
    crew = crew_with(CENSUS, hold, alive)
    assert _line(crew) == f"1,200 of 1,207 {says}{pace}, 4 errors"
    for slot in crew.slots:
        slot.counts = Counter(errors=slot.number - 1)
    assert _line(crew).endswith(", 1 error")


def test_the_line_shows_why_workers_wait() -> None:
    """Without the reason, such as a full disk, the crawl would seem to hang."""
    crew = crew_with(CENSUS, alive=2)
    crew.slots[1].process.outage = "Redis cannot write to its disk"
    assert "; 1 worker waits: Redis cannot write to its disk, 7 waiting, " in _line(crew)
    crew.stopping = False
    assert state_of(crew.slots[1], crew) == "waits: Redis cannot write to its disk"
    assert state_of(crew.slots[0], crew) == "crawling"


def test_the_line_names_the_site_that_all_workers_wait_for() -> None:
    crew = crew_with(CENSUS, alive=2)
    crew.monitor.turn = Entry("resting", b"", b"a.example\n", b"", wait_s=12.0)
    assert "; all wait 12 s for the turn of a.example, 7 waiting, " in _line(crew)
    crew.monitor.overview = replace(crew.monitor.overview, census=Census(waiting=7, in_flight=1))
    assert "all wait" not in _line(crew)


def test_the_summary_counts_lost_requests_and_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """The lines name the commands that show and retry these requests, even with an unusual crawl name."""
    for census, name, lines in (
        (Census(done=2), "books", []),
        (Census(failed=1200, dead=1), "books", [
            "Requests of this run: 1,200 failed for good and 1 became a dead letter. `scrapy dq failed "
            "books` and `scrapy dq dead books` show why; `scrapy dq retry books --all` runs them again",
        ]),
        (Census(dead=2), "x y", [
            "Requests of this run: 2 became dead letters. `scrapy dq dead --crawl 'x y'` shows why; "
            "`scrapy dq retry --crawl 'x y' --all` runs them again",
        ]),
    ):  # fmt: skip
        crew = crew_with(census)
        crew.slots[0].counts += Counter(failed=census.failed)
        summary = Summary(crew, name, "redis", [], [], OPTIONS)
        summary.print()
        printed = capsys.readouterr().out.splitlines()
        assert printed[5:] == lines
        assert [line.split()[4] for line in printed[1:5]] == [
            "failed", f"{census.failed:,}", "0", f"{census.failed:,}",
        ]  # fmt: skip
        found = json.loads(json.dumps(summary.found))
        assert (found["failed"], found["dead"]) == (census.failed, census.dead)


def test_the_number_of_lost_requests_is_the_last_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The line comes after the feeds, and after the command that continues an unfinished run."""
    crew = crew_with(Census(failed=1, waiting=3))
    crew.finished = False
    Summary(crew, "books", "redis", [Exported("a.csv", 1, True)], ["a line"], OPTIONS).print()
    *_, before, last = capsys.readouterr().out.splitlines()
    assert "Continue with: scrapy dq crawl books" in before
    assert last.startswith("Requests of this run: 1 failed for good. ")


def test_the_summary_counts_the_items_that_are_in_no_feed(capsys: pytest.CaptureFixture[str]) -> None:
    """The summary also lists the feeds that are not written."""
    crew = crew_with(Census(done=2))
    for unwritten, unstored, lines in (
        (0, 0, []),
        (1, 1, [
            "1 item could not be written: the logs say why",
            "1 feed could not be stored, and lacks all items: the logs say why",
        ]),
        (1200, 2, [
            "1,200 items could not be written: the logs say why",
            "2 feeds could not be stored, and lacks all items: the logs say why",
        ]),
    ):  # fmt: skip
        crew.slots[0].counts = Counter(pages=1, done=1, unwritten=unwritten)
        crew.slots[1].counts = Counter(pages=1, done=1, unstored=unstored)
        stored = [Exported("/tmp/a.csv", 7, False), Exported("s3://bucket/a.csv", 7, True)]
        summary = Summary(crew, "books", "redis", stored, ["b.csv is not written: why"], OPTIONS)
        assert summary.lacks_items == bool(lines)
        summary.print()
        feeds = ["/tmp/a.csv: 7 items", "s3://bucket/a.csv: 7 items appended", "b.csv is not written: why"]
        assert capsys.readouterr().out.splitlines()[5:] == feeds + lines
        found = json.loads(json.dumps(summary.found))
        assert (found["feed_writes_failed"], found["feeds_not_stored"]) == (unwritten, unstored)
        assert found["feeds_not_written"] == ["b.csv is not written: why"]


def test_a_redis_that_does_not_answer_is_reported(crawl_name: str) -> None:
    """At its start, the crew raises an error. Later, it keeps showing the last state."""
    with redis.Redis(port=free_port()) as client:
        monitor = Monitor(place_of(client, "redis://127.0.0.1", crawl_name))
        monitor.poll()
        assert monitor.problem.startswith("Redis does not answer (")
        assert monitor.overview is None
        with pytest.raises(FrontierUnavailable, match="Redis does not answer"):
            run_name_for(client, Config(crawl_name))
