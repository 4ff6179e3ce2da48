"""`scrapy dq workers`: who is registered, and what is known of each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from typing import Any

import pytest

from scrapy_dq.frontier.identity import own_identity
from support.live_frontier import HandWorker, LiveFrontier, put


def test_workers_are_told_with_what_is_known_of_them(dq: Any, live: LiveFrontier) -> None:
    """One of this process, one whose process is gone, one of another machine, one that is fenced."""
    gone = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    identities: dict[str, Any] = {
        "here": own_identity(),
        "gone": own_identity() | {"pid": int(gone.stdout)},
        "elsewhere": {"host": "far.example", "pid": 7},
        "fenced": {"host": "far.example", "pid": 8},
        "odd": ["no", "map"],
    }
    workers = {name: HandWorker(live, name) for name in identities}
    for name, identity in identities.items():
        live.redis.hset(live.key(f"worker:{name}"), "identity", json.dumps(identity))
    workers["elsewhere"].exchange(put(1), put(2), want=1)
    live.call("fence", "fenced", workers["fenced"].epoch, workers["fenced"].run)
    found = {worker["id"]: worker for worker in dq.found("workers")}
    assert {name: worker["state"] for name, worker in found.items()} == {
        "here": "running", "gone": "dead", "elsewhere": "unknown", "fenced": "fenced", "odd": "unknown",
    }  # fmt: skip
    assert (found["elsewhere"]["leases"], found["elsewhere"]["pid"]) == (1, 7)
    assert found["here"]["pid"] == os.getpid()
    text = dq.text("workers")
    assert "far.example" in text
    assert len(text.splitlines()) == 6


def test_who_beats_while_it_is_watched_is_alive(
    dq: Any, live: LiveFrontier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who does not is silent, whether its process is there or not known."""
    for name in ("beats", "silent"):
        HandWorker(live, name)

    def beat(seconds: float) -> None:
        assert seconds >= 2
        live.redis.hincrby(live.key("beats"), "beats", 2)

    monkeypatch.setattr(time, "sleep", beat)
    found = {worker["id"]: worker["state"] for worker in dq.found("workers", "--wait")}
    assert found == {"beats": "alive", "silent": "silent"}


def test_no_worker_is_no_failure(dq: Any, live: LiveFrontier, worker: HandWorker) -> None:
    """All may have left."""
    live.call("leave", "worker", worker.epoch, worker.run, False)
    assert dq.text("workers") == "No worker is registered.\n"
    assert dq.found("workers") == []
