"""A crew stops after one Ctrl-C, after two, or with a hanging worker. A later crew continues."""

from __future__ import annotations

import os
import re
import signal

from crew.conftest import SetScene
from crew.outcome import assert_tidy, held_by, repeats, start_and_wait
from support.crew_process import alive, paths_of
from support.redis_server import RedisServer
from support.waiting import wait_until


def test_ctrl_c_stops_gracefully_and_the_same_command_continues(
    scene: SetScene, redis_server: RedisServer
) -> None:
    """The exit status is 1. Even with -O, the feed has the items of all done pages. No page is done twice."""
    here = scene(pages=60, latency_s=0.3)
    here.feed.write_text("of an earlier crawl\n")
    crew = here.crew("-w", "2", "-O", "items.jsonl")
    wait_until(lambda: here.done() >= 12, "some pages are done", 30)
    crew.interrupt()
    assert crew.wait(10) == 1
    assert not any(map(alive, crew.pids))
    assert held_by(redis_server, here) == 0
    assert re.search(r"Continue with: scrapy dq crawl tree-\w+ -w 2 -O items.jsonl", crew.out)
    assert paths_of(here.feed) == here.project.count("done")

    here.site.set_latency(0.02)
    following = here.crew("-w", "2", "-O", "items.jsonl")
    assert following.wait() == 0
    assert "items.jsonl: 60 items\n" in following.out
    assert repeats(here) == 0
    assert_tidy(here)

    # A new run overwrites the feed.
    last = here.crew("-w", "2", "-O", "items.jsonl")
    assert last.wait() == 0
    assert "run 1 is finished" in last.out
    assert repeats(here) == 0


def test_a_second_ctrl_c_stops_at_once_and_loses_nothing(scene: SetScene, redis_server: RedisServer) -> None:
    """The crew does not wait for slow pages. The next crew crawls these pages."""
    here = scene(pages=60, latency_s=0.2)
    crew = start_and_wait(here)
    here.site.set_latency(300)
    wait_until(lambda: held_by(redis_server, here) >= 4, "slow pages are in progress")
    crew.interrupt()
    crew.wait_for("Stopping: the workers finish")
    crew.interrupt()
    assert crew.wait(5) == 1
    assert not any(map(alive, crew.pids))

    here.site.set_latency(0.02)
    following = here.crew("-w", "2", "-o", "items.jsonl")
    assert following.wait() == 0
    assert repeats(here) == 0


def test_a_worker_that_does_not_stop_is_killed(scene: SetScene) -> None:
    """If a worker hangs even after the second Ctrl-C and the grace, the crew kills it."""
    here = scene(pages=60, latency_s=0.2, project={"DQ_SHUTDOWN_GRACE": 0})
    crew = start_and_wait(here)
    os.kill(crew.pids[0], signal.SIGSTOP)
    crew.interrupt()
    crew.wait_for("Stopping: the workers finish")
    crew.interrupt()
    assert crew.wait(12) == 1
    assert "worker 1 does not stop: killed" in crew.err
    assert not any(map(alive, crew.pids))
