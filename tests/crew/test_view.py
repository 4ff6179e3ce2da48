"""The line that `scrapy dq crawl` prints now and then, and what it says at its end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from scrapy_dq.commands.crawl_view import _line
from scrapy_dq.crew.parts import Run
from scrapy_dq.frontier.model import Census, Hold
from scrapy_dq.frontier.overview import Overview


def crew_with(census: Census, hold: Hold = Hold.NONE, alive: int = 1) -> Any:
    """Return as much of a crew as is shown."""
    overview = Overview("open", "epoch", 0, census, [], hold)
    posts = [
        SimpleNamespace(number=n, rate=0.5, pages=5, items=4, errors=2, restarts=0, state="finished", log="w.log",
                        process=object() if n <= alive else None)
        for n in (1, 2)
    ]  # fmt: skip
    return SimpleNamespace(
        posts=posts, run=Run("epoch", 0), lookout=SimpleNamespace(overview=overview, problem=""),
        finished=True, took_s=2.0,
    )  # fmt: skip


CENSUS = Census(waiting=7, done=1200)


@pytest.mark.parametrize(
    ("hold", "alive", "line"),
    [
        (Hold.NONE, 2, "1,200 of 1,207 done; 7 waiting, 0 in flight; 2 workers, 1.0 pages/s, 4 errors"),
        (Hold.PAUSED, 1, "1,200 of 1,207 done; paused, 7 waiting, 0 in flight; 1 worker, 1.0 pages/s, 4 errors"),
        (Hold.DRAINING, 0, "1,200 of 1,207 done; draining, 7 waiting, 0 in flight; 0 workers, 1.0 pages/s, 4 errors"),
    ],
)  # fmt: skip
def test_the_line_says_whether_the_crawl_is_on_hold(hold: Hold, alive: int, line: str) -> None:
    """Else it looks as if it hung; and it counts as people do."""
    assert _line(crew_with(CENSUS, hold, alive)) == line
