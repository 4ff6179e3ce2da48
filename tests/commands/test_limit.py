"""`scrapy dq limit`: what is shown, changed, and refused."""

from __future__ import annotations

from typing import Any

import pytest

from scrapy_dq.commands.subcommand import CommandError
from support.live_frontier import HandWorker, limited, numbers, puts

HOST = "a.example"
A = HOST.encode()
SPIDERS = {"SPIDER_MODULES": ["support.pushed_spider"]}


def test_without_options_it_shows_what_holds(dq: Any, live: Any) -> None:
    """And changes nothing; a partition that has nothing has the crawl's."""
    HandWorker(live, "worker", limited(2.0, 3))
    before = live.dump()
    assert dq.found("limit", HOST) == {
        "partition": HOST, "delay_s": 2.0, "concurrency": 3, "blocked_s": 0.0,
    }  # fmt: skip
    head, row = dq.text("limit", HOST).splitlines()
    assert head.split() == ["delay", "concurrency", "blocked", "partition"]
    assert row.split() == ["2", "s", "3", "no", HOST]
    assert {key: value for key, value in live.dump().items() if not key.endswith(b"meta")} == {
        key: value for key, value in before.items() if not key.endswith(b"meta")
    }
    assert dq.status == 0


def test_each_limit_is_set_and_taken_back(dq: Any, worker: HandWorker) -> None:
    """One by one; --default brings back those of the settings."""
    assert dq.found("limit", "pushed", HOST, "--delay", "1.5", **SPIDERS)["delay_s"] == 1.5
    assert dq.found("limit", HOST, "--concurrency", "2")["concurrency"] == 2
    found = dq.found("limit", HOST, "--block", "60")
    assert (found["delay_s"], found["concurrency"]) == (1.5, 2)
    assert 55 < found["blocked_s"] <= 60
    row = dq.text("limit", HOST).splitlines()[1]
    assert "1.5 s" in row
    assert "for 1 min 0 s" in row or "for 60 s" in row or "for 59 s" in row
    assert dq.found("limit", HOST, "--unblock")["blocked_s"] == 0
    assert dq.found("limit", HOST, "--default")["concurrency"] == 0
    assert "none   no limit     no       a.example" in dq.text("limit", HOST)


def test_workers_go_by_it(dq: Any, worker: HandWorker) -> None:
    """From their next exchange on."""
    worker.exchange(*puts(A, 9))
    dq.text("limit", HOST, "--concurrency", "2")
    assert len(numbers(worker.exchange(want=9))) == 2


@pytest.mark.parametrize(
    "words",
    [
        ["--delay", "-1"], ["--delay", "nan"], ["--delay", "inf"], ["--delay", "x"], ["--delay", "86401"],
        ["--concurrency", "1.5"], ["--concurrency", "-1"], ["--concurrency", "1000001"],
        ["--concurrency", "٣"], ["--block", "0"], ["--block", "31536001"], ["--block", ""],
    ],
)  # fmt: skip
def test_a_number_that_is_none_is_typed_wrongly(
    dq: Any, worker: HandWorker, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """It is said what is allowed."""
    with pytest.raises(SystemExit) as end:
        dq.text("limit", HOST, *words)
    assert end.value.code == 2
    assert ": expected " in capsys.readouterr().err
    assert dq.found("limit", HOST) == {
        "partition": HOST, "delay_s": 0.0, "concurrency": 0, "blocked_s": 0.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--default", "--delay", "1"], "leave them out"),
        (["--default", "--concurrency", "0"], "leave them out"),
        (["--block", "1", "--unblock"], "either"),
        (["spider", HOST], "not 3 words"),
    ],
)
def test_what_contradicts_itself_changes_nothing(
    dq: Any, worker: HandWorker, words: list[str], says: str
) -> None:
    """Nor does what is no partition."""
    with pytest.raises(CommandError, match=says):
        dq.text("limit", HOST, *words)
    with pytest.raises(CommandError, match="too long"):
        dq.text("limit", "x" * 513)
    assert dq.found("limit", HOST)["delay_s"] == 0
