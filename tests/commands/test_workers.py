"""`scrapy dq workers`: the registered workers, and the details of each worker."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest

from scrapy_dq.commands import common
from scrapy_dq.crew.monitor import Monitor
from scrapy_dq.frontier.worker.identity import own_identity
from scrapy_dq.inspection import snapshot
from scrapy_dq.inspection.place import opened
from scrapy_dq.inspection.snapshot import Watcher
from scrapy_dq.settings import Config
from scrapy_dq.web import shown
from support.live_frontier import HandWorker, LiveFrontier, ack, limited, put, puts
from support.place import place_of


def test_workers_are_listed_with_their_process_and_state(dq: Any, live: LiveFrontier) -> None:
    """The workers are this process, an ended process, another machine's worker, and a fenced worker."""
    gone = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    identities: dict[str, Any] = {
        "here": own_identity(),
        "gone": own_identity() | {"pid": int(gone.stdout)},
        "elsewhere": {"host": "far.example", "pid": 7},
        "fenced": {"host": "far.example", "pid": 8},
    }
    workers = {name: HandWorker(live, name) for name in identities}
    for name, identity in identities.items():
        live.redis.hset(live.key(f"worker:{name}"), "identity", json.dumps(identity))
    workers["elsewhere"].exchange(put(1), put(2), want=1)
    live.call("fence", "fenced", workers["fenced"].epoch, workers["fenced"].run)
    found = {worker["id"]: worker for worker in dq.listed("workers", "--no-rate")}
    assert {name: worker["state"] for name, worker in found.items()} == {
        "here": "running", "gone": "dead", "elsewhere": "unknown", "fenced": "fenced",
    }  # fmt: skip
    assert (found["elsewhere"]["leases"], found["elsewhere"]["pid"]) == (1, 7)
    assert found["here"]["pid"] == os.getpid()
    text = dq.text("workers", "--no-rate")
    assert "far.example" in text
    assert len(text.splitlines()) == 5


def test_a_worker_that_beats_while_it_is_watched_is_alive(
    dq: Any, live: LiveFrontier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After 2.5 s without a heartbeat, a worker counts as silent, or as stalled if its process still runs."""
    for name in ("beats", "here", "elsewhere"):
        HandWorker(live, name)
    live.redis.hset(live.key("worker:here"), "identity", json.dumps(own_identity()))
    watched, clock = [], [0.0]

    def beat(seconds: float) -> None:
        watched.append(seconds)
        clock[0] += seconds
        live.redis.hincrby(live.key("beats"), "beats", 2)

    own = SimpleNamespace(**vars(time) | {"sleep": beat, "monotonic": lambda: clock[0]})
    monkeypatch.setattr(snapshot, "time", own)
    found = {worker["id"]: worker["state"] for worker in dq.listed("workers")}
    assert found == {"beats": "alive", "here": "running", "elsewhere": "unknown"}
    found = {worker["id"]: worker["state"] for worker in dq.listed("workers", "--wait")}
    assert found == {"beats": "alive", "here": "stalled", "elsewhere": "silent"}
    assert watched == [1.0, 2.5]


def test_a_worker_that_waits_for_the_turn_of_a_site_is_marked(dq: Any, live: LiveFrontier) -> None:
    """A worker without a request waits if each site with waiting requests is resting."""
    first, second = (HandWorker(live, name, limited(60.0, 0)) for name in ("first", "second"))
    first.exchange(*puts(b"a.example", 3), want=1)
    (held,) = first.held
    awaits = {row["id"]: row["turn"] for row in dq.listed("workers", "--no-rate")}
    assert (awaits["first"], awaits["second"]["partition"]) == (None, "a.example")
    first.exchange(ack(int(held)))
    status = dq.found("status", "--no-rate")
    assert (status["turn"]["partition"], status["turn"]["workers"]) == ("a.example", 2)
    assert 0 < status["turn"]["wait_s"] <= 60
    assert "2 workers wait " in dq.text("status", "--no-rate")
    text = " ".join(dq.text("workers", "--no-rate").split())
    assert len(re.findall(r"unknown, waits [\d.]+ s for the turn of a\.example|1 min 0 s", text)) == 2
    with opened(Config(live.crawl, redis_url=dq.url)) as place:  # this is what the page shows
        found = Watcher(place).snapshot(turn=True, partitions=True)
    assert "2 workers wait " in shown.crawl(found)["words"]["awaiting"][0]
    monitor = Monitor(place_of(live.redis, dq.url, live.crawl))  # this is what `scrapy dq crawl` shows
    monitor.poll()
    assert monitor.turn is not None
    assert monitor.turn.partition == b"a.example"
    first.exchange(*puts(b"b.example", 1, begin=9))
    assert dq.found("status", "--no-rate")["turn"] is None
    live.call("fence", "second", second.epoch, second.run)
    first.take(1)
    assert dq.found("status", "--no-rate")["turn"] is None
    monitor.poll()
    assert monitor.turn is None


def test_the_time_of_joining_is_reported_by_the_clock_of_redis(
    dq: Any, live: LiveFrontier, worker: HandWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--no-rate needs only one look. A missing field stays unknown."""
    monkeypatch.setattr(time, "sleep", pytest.fail)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    HandWorker(live, "odd")
    joined = live.redis.time()[0] - 7265
    live.redis.hset(live.key("worker:worker"), "since", joined * 1000)
    live.redis.hdel(live.key("worker:odd"), "since")
    odd, found = dq.listed("workers", "--no-rate")
    assert (found["since"], odd["since"], odd["since_s"]) == (joined, None, None)
    assert 7265 <= found["since_s"] < 7320
    assert found["pages_per_s"] is None
    assert "2 h 1 min" in dq.text("workers", "--no-rate")


def test_no_number_is_cut(dq: Any, live: LiveFrontier) -> None:
    """A long host name continues on the next line instead."""
    worker = HandWorker(live, "far-7-0123456789ab")
    identity = {"host": "ip-10-0-112-134.eu-central-1.compute.internal.example", "pid": 4_194_304}
    live.redis.hset(live.key(f"worker:{worker.worker_id}"), "identity", json.dumps(identity))
    live.redis.hset(live.key("beats"), worker.worker_id, 31_536_000)
    text = dq.text("workers", "--no-rate")
    assert "4194304" in text
    assert "31,536,000" in text
    assert "…" not in text


def test_an_empty_list_of_workers_is_not_a_failure(dq: Any, live: LiveFrontier, worker: HandWorker) -> None:
    """All workers may have left."""
    live.call("leave", "worker", worker.epoch, worker.run, False)
    assert dq.text("workers", "--no-rate") == "No worker is registered.\n"
    assert dq.listed("workers", "--no-rate") == []


def test_only_some_of_very_many_workers_are_shown(
    dq: Any, live: LiveFrontier, worker: HandWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier, a table of 19,000 workers took 20 s."""
    monkeypatch.setattr(common, "MAX_COUNT", 3)
    for n in range(5):
        HandWorker(live, f"other-{n}")
    lines = dq.text("workers", "--no-rate").splitlines()
    assert len(lines) == 1 + 3 + 1
    assert lines[-1] == "and 3 more (--json lists all)"
    assert len(dq.listed("workers", "--no-rate")) == 6
