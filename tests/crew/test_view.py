"""The line that `scrapy dq crawl` prints now and then, and what it says at its end."""

from __future__ import annotations

import argparse
import json
from types import SimpleNamespace
from typing import Any

import pytest

from scrapy_dq.commands.output.crawl_summary import Summary
from scrapy_dq.commands.output.crawl_view import _line
from scrapy_dq.crew.feeds.parts import Run
from scrapy_dq.frontier.admin.overview import Overview
from scrapy_dq.frontier.model import Census, Hold


def crew_with(census: Census, hold: Hold = Hold.NONE, alive: int = 1) -> Any:
    """Return as much of a crew as is shown."""
    overview = Overview("open", "epoch", 0, census, [], hold)
    slots = [
        SimpleNamespace(number=n, rate=0.5, pages=5, items=4, errors=2, done=1, restarts=0, state="finished",
                        log="w.log", process=object() if n <= alive else None)
        for n in (1, 2)
    ]  # fmt: skip
    return SimpleNamespace(
        slots=slots, run=Run("epoch", 0), monitor=SimpleNamespace(overview=overview, problem=""),
        finished=True, took_s=2.0,
    )  # fmt: skip


CENSUS = Census(waiting=7, done=1200)


@pytest.mark.parametrize(
    ("hold", "alive", "says"),
    [
        (Hold.NONE, 2, "done; 7 waiting, 0 in flight; 2 workers"),
        (Hold.PAUSED, 1, "done; paused, 7 waiting, 0 in flight; 1 worker"),
        (Hold.DRAINING, 0, "done; draining, 7 waiting, 0 in flight; 0 workers"),
    ],
)
def test_the_line_says_whether_the_crawl_is_on_hold(hold: Hold, alive: int, says: str) -> None:
    """Else it looks as if it hung; and it counts as people do."""
    pace = "" if hold is Hold.PAUSED else ", 1.0 pages/s"
    crew = crew_with(CENSUS, hold, alive)
    assert _line(crew) == f"1,200 of 1,207 {says}{pace}, 4 errors"
    for slot in crew.slots:
        slot.errors = slot.number - 1
    assert _line(crew).endswith(", 1 error")


def test_the_end_says_what_was_lost(capsys: pytest.CaptureFixture[str]) -> None:
    """With the commands that show it and try it again, also of a crawl with a name of its own."""
    options = argparse.Namespace(
        spider="books", workers=2, spargs=[], set=[], output=[], overwrite_output=[], crawl=None
    )
    for census, name, lines in (
        (Census(done=2), "books", []),
        (Census(done=3), "books", [
            "The whole run: 3 requests done. The table shows what the processes of this command reported; a "
            "process that is killed does not report its last second",
        ]),
        (Census(failed=1200, dead=1), "books", [
            "1,200 requests failed for good: scrapy dq failed books, scrapy dq retry books --all",
            "1 dead letter: scrapy dq dead books",
        ]),
        (Census(failed=1, dead=2), "x y", [
            "1 request failed for good: scrapy dq failed --crawl 'x y', scrapy dq retry --crawl 'x y' --all",
            "2 dead letters: scrapy dq dead --crawl 'x y'",
        ]),
    ):  # fmt: skip
        summary = Summary(crew_with(census), name, "redis", [], [], options)
        summary.print()
        assert capsys.readouterr().out.splitlines()[5:] == lines
        summary.print_json()
        found = json.loads(capsys.readouterr().out)
        assert (found["failed"], found["dead"]) == (census.failed, census.dead)
