"""`scrapy dq purge`: it asks, drops what waits in one partition, and leaves all else."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from commands.test_killed import MOST, killed_before
from scrapy_dq.commands.subcommand import CommandError, WrongUsage
from scrapy_dq.frontier.admin.drop import waiting_in
from support.live_frontier import HandWorker, LiveFrontier, put

TRAP = "trap.example"
YES = ("--partition", TRAP, "--yes")


@pytest.fixture
def filled(live: LiveFrontier, worker: HandWorker) -> HandWorker:
    worker.exchange(*(put(n, partition=TRAP.encode()) for n in range(20)), want=2)
    worker.exchange(*(put(n, partition=TRAP.encode(), due_in=99.0) for n in range(20, 25)))
    worker.exchange(*(put(n, partition=b"shop.example") for n in range(30, 35)))
    return worker


def test_what_waits_in_one_partition_is_dropped(dq: Any, live: LiveFrontier, filled: HandWorker) -> None:
    """While a worker has some of it in flight; the event says who has done it."""
    assert dq.text("purge", *YES) == f"23 requests of {TRAP} dropped.\n"
    status = dq.found("status", "--no-rate")
    assert (status["waiting"], status["delayed"], status["in_flight"]) == (5, 0, 2)
    assert "23 requests dropped: trap.example" in dq.text("events")
    assert dq.found("purge", *YES)["dropped"] == 0


def test_it_asks_and_without_an_answer_drops_nothing(
    dq: Any, live: LiveFrontier, filled: HandWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(CommandError, match="standard input is not a terminal"):
        dq.text("purge", "--partition", TRAP)
    answer = io.StringIO("n\n")
    monkeypatch.setattr(answer, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", answer)
    with pytest.raises(CommandError, match="nothing was changed"):
        dq.text("purge", "--partition", TRAP)
    assert "Drop 18 requests of trap.example, and those that are delayed?" in dq.said[-1]
    assert waiting_in(live.redis, live.crawl, TRAP) == 18


@pytest.mark.parametrize("words", [[TRAP], ["pushed", TRAP], ["--partition", "TRAP.example."]])
@pytest.mark.usefixtures("filled")
def test_a_partition_is_named_as_by_limit(dq: Any, words: list[str]) -> None:
    spiders = {"SPIDER_MODULES": ["support.pushed_spider"]}
    assert dq.found("purge", *words, "--yes", **spiders)["dropped"] == 23
    assert dq.found("limit", *words, **spiders)["partition"] == TRAP


@pytest.mark.usefixtures("filled")
def test_a_misspelled_partition_is_refused(dq: Any) -> None:
    with pytest.raises(CommandError, match=r"nothing in a partition of that name now; did you mean"):
        dq.text("purge", "--partition", "trap.exampel", "--yes")
    with pytest.raises(WrongUsage, match="is not the name of a partition"):
        dq.text("purge", "--partition", "", "--yes")
    with pytest.raises(WrongUsage, match="both name the partition"):
        dq.text("purge", "pushed", TRAP, "--partition", TRAP, "--yes")


def test_it_may_be_killed_before_each_of_its_commands(
    dq: Any, live: LiveFrontier, filled: HandWorker
) -> None:
    """kill -9: a repeat goes on with what is left."""
    kills = 0
    while kills < MOST and killed_before(kills + 1, lambda: dq.text("purge", *YES)):
        kills += 1
        live.state()
    assert kills > 3
    status = dq.found("status", "--no-rate")
    assert (status["waiting"], status["delayed"], status["in_flight"]) == (5, 0, 2)
