"""`scrapy dq pause`, `drain`, `resume`, `stop` and `complete`: their output, and workers that obey soon."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from scrapy_dq.backend.clients import connect_url
from scrapy_dq.commands.subcommand import DONE, CommandError
from scrapy_dq.frontier import peek
from scrapy_dq.frontier.model import Admission, Census, Status
from support.given import MakeProject, StartSite
from support.live_frontier import IDENTITY, HandWorker, LiveFrontier, ack, put
from support.redis_server import RedisServer
from support.scrapy_redis_crawl import run_dq
from support.waiting import Stopwatch, wait_until

SOON_S = 2.0
START_S = 2.0


def test_the_output_counts_the_notified_workers(dq: Any, worker: HandWorker) -> None:
    """The output has the numbers of workers and leases. --json shows the new state."""
    worker.exchange(put(1), put(2), want=1)
    name = f"Crawl {dq.crawl!r}: "
    assert dq.text("pause") == f"{name}paused. 1 worker, 1 in flight.\n"
    assert dq.found("drain") == {
        "crawl": dq.crawl, "phase": "open", "hold": "draining", "obeyed": True, "workers": 1, "in_flight": 1,
        "unreachable_shards": [], "apart_shards": [],
    }  # fmt: skip
    assert dq.text("resume") == f"{name}resumed. 1 worker, 1 in flight.\n"
    assert dq.text("stop") == f"{name}stopping. 1 worker, 1 in flight.\n"
    assert worker.exchange().commands.stops == 1
    worker.leave()
    assert dq.text("stop", "--wait") == f"{name}stopping. No worker is registered.\nAll workers are gone.\n"
    assert dq.status == DONE


def test_a_command_stops_waiting_after_the_given_time(dq: Any, worker: HandWorker) -> None:
    """After the given time, the command exits with 1, and counts the remaining leases and workers."""
    worker.exchange(put(1), want=1)
    for word in ("pause", "drain", "stop"):
        began, clock = time.monotonic(), Stopwatch()
        with pytest.raises(
            CommandError, match=r"sent, but after 0\.2 s, 1 are still in flight and 1 worker "
        ):
            dq.text(word, "--wait", "0.2")
        assert time.monotonic() - began >= 0.2
        assert clock.seconds < 2


def test_complete_ends_a_run_without_its_incomplete_start(dq: Any, live: LiveFrontier) -> None:
    """A start() was interrupted, so the run stays open. `complete` ends it without the missing requests."""
    lost = HandWorker(live, "lost", replace(IDENTITY, starts="args"))
    lost.exchange(seeding=1)
    lost.leave()
    worker = HandWorker(live, "worker", replace(IDENTITY, starts="other args"))
    assert worker.exchange().census.incomplete == 1
    worker.exchange(put(1))
    assert "1 start() incomplete, and none with the same arguments has completed" in dq.text("status")
    assert dq.text("complete").startswith(
        f"Crawl {dq.crawl!r}: the run will end without the missing start requests. 1 worker"
    )
    assert dq.text("complete") == f"Crawl {dq.crawl!r}: no start() is incomplete: nothing is missing.\n"
    worker.take(1)
    assert worker.exchange(ack(1)).status is Status.FINISHED


def test_complete_ends_a_run_whose_start_always_raises(dq: Any, live: LiveFrontier) -> None:
    """No worker could end the run, because each runs start() first. Waiting requests are still crawled."""
    workers = [HandWorker(live, name, replace(IDENTITY, starts="args")) for name in ("puts", "raises")]
    for worker, moves in zip(workers, ([put(1)], []), strict=True):
        worker.exchange(*moves, seeding=1)
    for worker in workers:
        worker.leave()
    assert dq.text("complete") == (
        f"Crawl {dq.crawl!r}: the run will end without the missing start requests. No worker is registered.\n"
    )
    again = HandWorker(live, "again", replace(IDENTITY, starts="args"))
    again.exchange(want=1, seeding=1)
    again.exchange(ack(1), seeding=1)
    again.leave()
    assert dq.text("complete") == f"Crawl {dq.crawl!r}: finished without the rest.\n"
    assert dq.listed("events")[-1]["kind"] == "finished"
    before = len(dq.listed("events"))
    for word in ("complete", "resume", "stop"):
        dq.text(word)
    assert len(dq.listed("events")) == before  # the commands had no effect
    assert not HandWorker(live, "next", replace(IDENTITY, starts="args")).joined.resumed


def test_a_run_whose_keys_are_damaged_is_not_finished_by_hand(dq: Any, live: LiveFrontier) -> None:
    """A worker must first look for the missing keys and report them."""
    worker = HandWorker(live, "worker", replace(IDENTITY, starts="args"))
    worker.exchange(put(1, admission=Admission.SEEN, token=b"fingerprint"), want=1, seeding=1)
    worker.exchange(ack(1), seeding=1)
    worker.leave()
    live.redis.delete(live.key("seen"))
    assert "the run will end without the missing start requests" in dq.text("complete")
    assert dq.found("status")["phase"] == "open"


def test_complete_reports_a_dead_worker_that_is_not_reclaimed_yet(dq: Any, live: LiveFrontier) -> None:
    """A start() counts as incomplete only after its worker has been reclaimed."""
    HandWorker(live, "killed", replace(IDENTITY, starts="args")).exchange(seeding=1)
    live.redis.hset(live.key("worker:killed"), "fenced", 1)
    assert "1 dead worker not reclaimed yet" in dq.text("complete")


def test_a_finished_run_cannot_be_paused_or_drained(dq: Any, worker: HandWorker) -> None:
    """A hold does not apply to the next run, so `pause` and `drain` fail. `resume` and `stop` do nothing."""
    worker.exchange()
    for word in ("pause", "drain"):
        with pytest.raises(CommandError, match="the run is finished: there is nothing to pause or drain"):
            dq.text(word)
    assert dq.text("stop") == f"Crawl {dq.crawl!r}: stopping. 1 worker, 0 in flight.\n"
    worker.leave()
    for word in ("resume", "stop"):
        assert dq.text(word) == f"Crawl {dq.crawl!r}: the run is finished: there is nothing to {word}.\n"
        assert (dq.status, dq.found(word)["phase"]) == (DONE, "finished")


def test_all_workers_of_a_crawl_obey_within_two_seconds(
    make_project: MakeProject, start_site: StartSite, server: RedisServer
) -> None:
    """The test pauses, resumes, drains and stops two workers. Each page is crawled once."""
    # Two workers, with one request at a time each, need 150 s for these pages, while the commands start.
    site = start_site(pages=1000, latency_s=0.3)
    project = make_project([site.start_url], redis_url=server.url, settings={"CONCURRENT_REQUESTS": 1})

    def done() -> int:
        return len(project.count("done"))

    def census() -> Census:
        with connect_url(server.url) as client:
            return peek(client, project.name).census

    workers = project.start_workers(2)
    wait_until(lambda: done() >= 20 and census().workers == 2, "both workers crawl", 30)
    # Each time includes the start of the command.
    began = Stopwatch()
    paused = run_dq(project, "pause", project.name, "--wait", "60")
    assert began.seconds < SOON_S + START_S
    assert (paused.returncode, paused.stderr) == (0, "")
    assert paused.stdout.startswith(f"Crawl {project.name!r}: paused. 2 workers, ")
    assert paused.stdout.endswith("Nothing is in flight.\n")
    before = done()
    time.sleep(0.7)
    assert done() == before
    resumed = run_dq(project, "resume", project.name)
    assert resumed.returncode == 0
    wait_until(lambda: done() >= before + 8, "the crawl continues", 10)
    began = Stopwatch()
    drained = run_dq(project, "drain", project.name, "--wait", "60")
    assert began.seconds < SOON_S + START_S
    assert (drained.returncode, drained.stderr) == (0, "")
    held, before = census(), done()
    assert (held.in_flight, held.workers) == (0, 2)
    assert held.waiting > 0
    began = Stopwatch()
    stopped = run_dq(project, "stop", project.name, "--wait", "60")
    assert began.seconds < SOON_S + START_S
    assert (stopped.returncode, stopped.stderr) == (0, "")
    assert project.wait() == ["stopped", "stopped"]
    for worker in workers:
        assert worker.text.count("paused; no requests are sent") == 1
        assert worker.text.count("resumed") == 1
        assert worker.text.count("all workers were asked to stop") == 1

    last = project.start_worker()
    last.wait_for_log("WARNING: Crawl")
    assert "draining" in last.text
    assert done() == before
    site.set_latency(0)
    run_dq(project, "resume", project.name)
    assert project.wait()[-1] == "finished"
    assert project.count("done") == dict.fromkeys(site.paths, 1)
