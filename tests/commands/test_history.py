"""`scrapy dq history`: how fast a crawl was, over time."""

from __future__ import annotations

import io
import sys
from dataclasses import replace
from typing import Any

import pytest

from scrapy_dq.commands.history import BLOCKS, curve
from support.live_frontier import IDENTITY, HandWorker, LiveFrontier
from support.samples import BEGAN, add_samples


@pytest.fixture
def sampled(live: LiveFrontier) -> HandWorker:
    """Return a worker of a crawl that has a history of ten minutes: it was fast, stood still, and ended."""
    worker = HandWorker(live, "worker", replace(IDENTITY, starts="{}"))
    add_samples(live, 60)
    return worker


def test_all_samples_are_there_for_programs(dq: Any, sampled: HandWorker) -> None:
    """With what is computed from two of them."""
    found = dq.listed("history")
    assert len(found) == 60
    assert found[1] == {
        "at": BEGAN + 10, "run": 0, "done": 1000, "failed": 0, "dead": 1, "waiting": 9900, "delayed": 7,
        "in_flight": 16, "workers": 2, "seen": 1000, "memory_bytes": 2**30 + 1024, "exchanges": 50,
        "exchange_s": 0.1, "errors": 0, "outage_s": 0.0, "pages_per_s": 50.0, "failed_per_s": 0.0,
        "exchange_ms": 2.0,
    }  # fmt: skip
    assert (found[0]["pages_per_s"], found[35]["pages_per_s"]) == (None, 0.0)
    assert [sample["at"] for sample in dq.listed("history", "--minutes")] == list(
        range(BEGAN, BEGAN + 600, 60)
    )


def test_curves_and_the_newest_are_shown(dq: Any, sampled: HandWorker) -> None:
    """In 80 columns; each curve with its last and its largest value."""
    first, *lines = dq.text("history", "-n", "3").splitlines()
    assert first == "60 samples of 9 min 50 s."
    rate, waiting, failed, memory, head, *rows = lines
    assert rate.startswith("pages/s ")
    assert rate.endswith(" 100.0, at most 100.1")
    shown = rate.removeprefix("pages/s").strip().split()[0]
    assert {"▄", "▁", "█"} <= set(shown) or {"▅", "▁", "█"} <= set(shown)
    assert waiting.endswith(" 4,107, at most 10,007")
    assert failed.startswith("failed/s ")
    assert memory.endswith(" 1.0 GiB, at most 1.0 GiB")
    assert head.split()[:3] == ["when", "pages/s", "done"]
    assert len(rows) == 3
    assert "35,000" in rows[-1]
    text = dq.text("history", "--minutes", "-n", "100")
    assert text.startswith("10 samples of 9 min 0 s.\n")
    assert len(text.splitlines()) == 1 + 4 + 1 + 10


def test_a_terminal_that_has_no_blocks_gets_the_table(
    dq: Any, sampled: HandWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is printed that it cannot show."""
    monkeypatch.setattr("scrapy_dq.commands.history._prints", lambda text: False)
    text = dq.text("history")
    assert text.isascii()
    assert len(text.splitlines()) == 1 + 1 + 10


def test_whether_a_terminal_has_blocks_is_asked_of_its_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of standard output."""
    from scrapy_dq.commands.history import _prints

    for encoding, expected in (("utf-8", True), ("ascii", False), ("latin-1", False)):
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding))
        assert _prints(BLOCKS) is expected


def test_a_crawl_that_has_just_begun_has_no_sample(dq: Any, worker: HandWorker) -> None:
    """It says when there will be one."""
    assert dq.text("history") == "There is no sample yet: workers take one each 10 s.\n"
    assert dq.listed("history") == []


CURVES = {
    "": ([], 5),
    "▁█": ([0, 3], 5),
    "▁": ([0, 0], 1),
    "▁▁": ([0.0, 0.0], 5),
    "█ █": ([2, None, 2], 5),
    "▅█": ([1, 1, None, 2, 2, 1.0], 2),
}


@pytest.mark.parametrize("line", CURVES)
def test_a_curve_is_a_line_of_blocks(line: str) -> None:
    """From zero to the largest; the means of several where there is no room for all."""
    assert curve(*CURVES[line]) == line


def test_without_a_known_value_there_is_no_curve() -> None:
    assert curve([None, None], 5) == ""
