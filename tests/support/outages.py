"""Reads the outages of Redis from a worker's log, and checks that a log has no errors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from support.waiting import wait_until
from support.worker import Worker

# All warnings about an outage contain this text. The text before it describes the problem.
WARNING = "The crawl continues with the requests that this worker holds"
NO_ANSWER = "Redis does not answer"


class Outage(NamedTuple):
    """One outage in a worker's log."""

    warning: str
    lasted_s: float
    kept: int


def lines(worker: Worker, *levels: str) -> list[str]:
    """Return the log lines of these levels, without date and logger."""
    return re.findall(rf"^\S+ \S+ \[\S+\] ((?:{'|'.join(levels)}): .*)$", worker.text, re.MULTILINE)


def outages(worker: Worker) -> list[Outage]:
    """Return the outages in the order of the log.

    Raises:
        AssertionError: the log reports an outage twice, or only its start, or only its end.
    """
    told: list[Outage] = []
    warning = ""
    for line in lines(worker, "WARNING", "INFO"):
        if WARNING in line:
            assert line.startswith("WARNING")
            assert not warning, f"reported twice: {line}"
            warning = line
        elif found := re.search(r"Redis is back after ([\d.]+) s; (\d+) moves were kept", line):
            assert warning, f"no line reports the beginning of: {line}"
            told.append(Outage(warning, float(found[1]), int(found[2])))
            warning = ""
    assert not warning, f"no line reports the end of: {warning}"
    return told


def ended(worker: Worker) -> int:
    """Return the number of ended outages in the log so far."""
    return worker.text.count("Redis is back after")


def wait_for_ends(workers: Sequence[Worker], count: int = 1, timeout_s: float = 10.0) -> None:
    """Wait until each log reports *count* ended outages."""
    for worker in workers:
        wait_until(lambda w=worker: ended(w) >= count, "the log reports the end of the outage", timeout_s)


def assert_outages_logged(workers: Sequence[Worker], count: int, says: str = NO_ANSWER) -> list[Outage]:
    """Assert that each log reports *count* outages, one after another, and no error. Return all outages."""
    every: list[Outage] = []
    for worker in workers:
        told = outages(worker)
        assert len(told) == count, told
        assert all(says in outage.warning for outage in told), told
        assert_no_outage_logged(worker)
        every += told
    return every


def assert_no_outage_logged(worker: Worker) -> None:
    """Assert that the log has no error and no traceback, and that the worker declared no worker dead."""
    assert not lines(worker, "ERROR", "CRITICAL")
    assert "Traceback" not in worker.text
    assert " is dead (" not in worker.text
    assert worker.stats.get("dq/reclaimed", 0) == 0
