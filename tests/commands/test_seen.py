"""`scrapy dq seen convert`: what it says and refuses, in a real crawl, and killed on its way."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from commands.test_changes import start_dq
from commands.test_clear import TTL, beaten, quick_looks  # noqa: F401  fixtures
from scrapy_dq.commands.subcommand import CommandError
from scrapy_dq.frontier import forget, keys
from scrapy_dq.frontier.admin import convert
from scrapy_dq.frontier.model import Admission, FrontierRefused, Put
from support.live_frontier import HandWorker, LiveFrontier, put
from support.project import Project
from support.redis_server import RedisServer
from support.scrapy_redis_crawl import run_dq
from support.tree_site import TreeSite
from support.waiting import wait_until

COMPACT = {"DQ_SEEN": "compact"}
EXPIRING = {"DQ_SEEN_TTL": 60, "SCHEDULER_PERSIST": True}


def seen(n: int) -> Put:
    return put(n, admission=Admission.SEEN)


def kind(live: LiveFrontier) -> str:
    return str(live.redis.hget(live.key("meta"), "seen_kind").decode())


def test_it_makes_what_the_settings_say(dq: Any, live: LiveFrontier, worker: HandWorker) -> None:
    """Without --to; it tells how many there are, and that nothing was to be done."""
    worker.exchange(seen(1), seen(2), seen(3))
    worker.leave()
    text = dq.text("seen", "convert", **COMPACT)
    assert f"Crawl {live.crawl!r} at " in text
    assert "seen  3\nIt was exact, and is now compact.\n" in text
    assert "before you crawl" not in text
    assert dq.text("seen", "convert", **COMPACT).endswith("It is already compact.\n")
    assert kind(live) == "compact"
    assert (dq.found("status", "--no-rate")["seen"], dq.status) == (3, 0)
    with pytest.raises(FrontierRefused, match="it is compact, and cannot be converted"):
        dq.text("seen", "convert")


def test_it_makes_what_is_requested(dq: Any, live: LiveFrontier, worker: HandWorker) -> None:
    """And says what has to be set then, if the settings say something else."""
    worker.exchange(seen(1))
    worker.leave()
    assert dq.found("seen", "convert", "--to", "expiring") | {"redis": ""} == {
        "crawl": live.crawl, "redis": "", "from": "exact", "to": "expiring", "seen": 1,
    }  # fmt: skip
    text = dq.text("seen", "convert", "--to", "compact", **EXPIRING)
    assert "Set DQ_SEEN = 'compact' before you crawl: a worker with expiring is refused." in text


def test_it_refuses_while_a_worker_lives(dq: Any, live: LiveFrontier, beaten: HandWorker) -> None:  # noqa: F811
    """It says who; a worker that is silent for long is dead, and blocks nobody."""
    beaten.exchange(seen(1))
    with pytest.raises(FrontierRefused, match=r"worker worker of crawl .* is alive: nothing was changed"):
        dq.text("seen", "convert", **COMPACT | TTL)
    assert kind(live) == "exact"


def test_a_silent_worker_blocks_nobody(dq: Any, live: LiveFrontier, worker: HandWorker) -> None:
    """It is watched for DQ_WORKER_TTL."""
    worker.exchange(seen(1))
    dq.text("seen", "convert", **COMPACT | TTL)
    assert dq.said == ["Watching for up to 1 s whether worker is alive"]
    assert kind(live) == "compact"
    assert worker.exchange(seen(1)).dropped == (0,)


def test_an_interrupt_says_how_it_continues(
    dq: Any, live: LiveFrontier, worker: HandWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left, and that nobody can join before."""
    worker.exchange(*(seen(n) for n in range(30)))
    worker.leave()
    monkeypatch.setattr(convert, "STEP", 10)
    some, calls = convert.convert_some, []

    def interrupted(*args: Any) -> int:
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return some(*args)

    monkeypatch.setattr(convert, "convert_some", interrupted)
    with pytest.raises(CommandError, match=r"interrupted: 10 fingerprints are left.*continues"):
        dq.text("seen", "convert", **COMPACT)
    assert kind(live) == "exact>compact"
    assert "It was exact, and is now compact." in dq.text("seen", "convert", **COMPACT)
    assert dq.found("status", "--no-rate")["seen"] == 30


def test_a_crawl_that_does_not_exist_is_reported(dq: Any, live: LiveFrontier) -> None:
    with pytest.raises(CommandError, match="there is no crawl"):
        dq.text("seen", "convert")
    assert live.dump() == {}


def test_what_a_clear_that_broke_off_has_left_is_cleared(dq: Any, live: LiveFrontier) -> None:
    """The crawl is gone, and buckets of what it had seen are not."""
    live.redis.hset(live.key("discarded"), "generation", 3000)
    for n in range(3000):
        live.redis.sadd(live.key(f"seen:generation:{n}"), n)
    assert dq.text("clear", "--all") == f"What was left of crawl {live.crawl!r} is deleted.\n"
    assert live.dump() == {}


def test_a_clear_says_that_some_is_left(
    dq: Any, live: LiveFrontier, worker: HandWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A seen set of very many fingerprints is deleted in several commands, or by the next run."""
    monkeypatch.setattr("scrapy_dq.frontier.frontier.FLUSH_SWEEP_S", 0.05)
    worker.leave()
    live.redis.hset(live.key("discarded"), mapping={f"generation {n}": 2**26 for n in range(100)})
    said = r"is deleted but for .* is in Redis still: run this again"
    with pytest.raises(CommandError, match=said):
        dq.text("clear", "--all", "--yes")
    assert "is deleted" not in dq.printed
    monkeypatch.setattr("scrapy_dq.commands.deletion.SWEEP_S", 0.05)
    with pytest.raises(CommandError, match=r"some is left after 0.05 s: run this again"):
        dq.text("clear", "--all")
    assert live.key_names() == {"discarded"}
    HandWorker(live, "again").leave()
    with pytest.raises(CommandError, match=said):
        dq.text("clear", "--all", "--yes", "--json")
    assert json.loads(dq.printed)["left"] is True


def test_a_crawl_continues_with_another_kind(
    make_project: Callable[..., Project], start_site: Callable[..., TreeSite], server: RedisServer
) -> None:
    """It was begun as exact; no page is crawled twice, or left out, and a worker as before is refused."""
    site = start_site()
    project = make_project([site.start_url], redis_url=server.url)
    project.run_worker(settings={"CLOSESPIDER_PAGECOUNT": 5})
    refused = project.run_worker(settings=COMPACT)
    assert f"scrapy dq seen convert {project.name} --to compact" in refused.text.replace(
        "<spider>", project.name
    )
    assert run_dq(project, "seen", "convert", project.name, "-s", "DQ_SEEN=compact").returncode == 0
    project.start_workers(2, settings=COMPACT)
    project.wait()
    assert project.workers[-1].close_reason == "finished"
    assert set(project.count("item")) == site.paths
    assert max(project.count("item").values()) == 1


def test_a_conversion_that_is_killed_loses_nothing(
    make_project: Callable[..., Project], server: RedisServer
) -> None:
    """Killed in the middle, twice, and run again: every fingerprint is known."""
    project, count = make_project([], redis_url=server.url), 100_000
    prefix = keys.prefix(project.name)
    tokens = [b"%020d" % n for n in range(count)]
    with server.client() as client:
        client.hset(
            prefix + "meta", mapping={"epoch": "epoch", "phase": "open", "seen_kind": "exact", "run": 0}
        )
        for start in range(0, count, 5000):
            client.sadd(prefix + "seen", *tokens[start : start + 5000])
        for left in (80_000, 50_000):
            command = start_dq(project, "seen", "convert", project.name, "--to", "compact")
            wait_until(lambda: 0 < client.scard(prefix + "converting") < left, "it is under way", 20)  # noqa: B023
            os.kill(command.pid, signal.SIGKILL)
            command.wait(10)
            assert 0 < client.scard(prefix + "converting") < left
            command.communicate()
        worker = project.run_worker()
        assert "scrapy dq seen convert <spider> --to compact" in worker.text
        done = run_dq(project, "seen", "convert", project.name, "--to", "compact")
        assert (done.returncode, done.stderr) == (0, "")
        assert "seen  100,000\nIt was exact, and is now compact." in done.stdout
        assert client.exists(prefix + "converting") == 0
        parts = (tokens[start : start + 1000] for start in range(0, count, 1000))
        known = (forget(client, project.name, [(token, b"-") for token in part]) for part in parts)
        assert sum(filter(None, known)) == count
