"""A worker of a crew, or the crew's parent process, is killed. The work continues. No item is lost."""

from __future__ import annotations

import json
import os
import signal

import pytest

from crew.conftest import SetScene
from crew.outcome import assert_tidy, held_by, journals, repeats, start_and_wait
from support.crew_process import paths_of, wait_for_ends
from support.redis_server import RedisServer
from support.waiting import Stopwatch, wait_until


def test_a_killed_worker_is_replaced(scene: SetScene) -> None:
    """No item is missing. Pages in progress are crawled twice, but the feed has their items once."""
    here = scene(pages=80, latency_s=0.2)
    crew = start_and_wait(here)
    os.kill(crew.pids[0], signal.SIGKILL)

    assert crew.wait() == 0

    assert "worker 1 died: killed by SIGKILL" in crew.err
    assert len(crew.pids) == 3
    assert repeats(here) == 0
    assert_tidy(here)


def test_a_killed_parent_stops_its_workers_and_the_next_crawl_finishes(
    scene: SetScene, redis_server: RedisServer
) -> None:
    """The workers notice the death, and stop within the grace. The next crew also exports their items."""
    here = scene(pages=80, latency_s=0.3)
    crew = start_and_wait(here)
    crew.kill()
    killed = Stopwatch()
    wait_for_ends(crew.pids, 5)
    assert killed.seconds < 3
    assert held_by(redis_server, here) == 0
    assert not here.feed.exists()

    here.site.set_latency(0.05)
    following = here.crew("-w", "2", "-o", "items.jsonl")

    assert following.wait() == 0
    assert repeats(here) == 0
    assert_tidy(here)


@pytest.mark.parametrize("addon", [True, False])
def test_scrapy_crawl_after_a_killed_parent_reports_its_items_and_loses_none(
    scene: SetScene, addon: bool
) -> None:
    """`scrapy crawl` writes its own items. The next crew adds the killed crew's items, even with -O."""
    here = scene({"ADDONS": {"scrapy_dq.Addon": 500}} if addon else {}, pages=60, latency_s=0.3)
    crew = start_and_wait(here)
    crew.kill()
    wait_for_ends(crew.pids, 5)
    here.site.set_latency(0.02)
    feeds = {"items.jsonl": {"format": "jsonlines"}}
    alone = here.project.run_to_end(settings={"FEEDS": json.dumps(feeds)})
    assert "holds items of a `scrapy dq crawl` that was killed" in alone.text
    assert f"run `scrapy dq items {here.project.name} -o FILE`" in alone.text
    assert 0 < len(here.feed.read_text().splitlines()) < 60

    joining = here.crew("-w", "1", "-O" if addon else "-o", "items.jsonl")

    assert joining.wait() == 0
    assert repeats(here) == 0
    assert_tidy(here)


def test_the_items_of_a_killed_crew_are_in_the_feeds_of_the_next(scene: SetScene) -> None:
    """The next crew may name other feeds. Each gets all items of the run; `%(time)s` has one value."""
    here = scene(pages=60, latency_s=0.3)
    crew = start_and_wait(here)
    crew.kill()
    wait_for_ends(crew.pids, 5)
    here.site.set_latency(0.02)

    following = here.crew("-w", "1", "-s", "CLOSESPIDER_PAGECOUNT=20", "-o", "out/%(name)s-%(time)s.csv")
    assert following.wait() == 1
    (out,) = (here.project.folder / "out").iterdir()
    some = out.read_text().splitlines()
    assert 20 < len(some) < 60
    finishing = here.crew("-w", "1", "-o", "items.jsonl", "-o", "out/%(name)s-%(time)s.csv")
    assert finishing.wait() == 0
    assert repeats(here) == 0
    assert out.read_text().splitlines()[: len(some)] == some
    assert sorted(out.read_text().split()) == sorted(["path", *here.site.paths])
    assert_tidy(here)


@pytest.mark.parametrize("flag", ["-o", "-O"])
def test_the_feed_of_a_finished_run_whose_parent_was_killed_is_written(scene: SetScene, flag: str) -> None:
    """The next command writes the feed and crawls nothing. Only the command after that begins a new run."""
    here = scene(pages=5)
    assert here.crew("-w", "1", flag, "items.jsonl").wait() == 0
    for path in journals(here, "exported"):
        path.rename(path.with_suffix(".journal"))
    here.feed.write_text("of another program\n")

    crew = here.crew("-w", "1", flag, "other.jsonl")

    assert crew.wait() == 0
    assert "Run 0 was finished, but its feeds were not written: they are written now" in crew.err
    assert "other.jsonl: 5 items" in crew.out
    assert set(here.site.hits().values()) == {1}
    assert paths_of(here.feed.with_name("other.jsonl")) == dict.fromkeys(here.site.paths, 1)
    following = here.crew("-w", "1", flag, "other.jsonl")
    assert following.wait() == 0
    assert set(here.site.hits().values()) == {2}
    assert paths_of(here.feed.with_name("other.jsonl")) == dict.fromkeys(here.site.paths, 1 + (flag == "-o"))
    assert len(journals(here, "exported")) == 1


def test_restarts_have_a_limit(scene: SetScene) -> None:
    """At the limit, the crew continues with its live workers. Without any worker, it ends with status 1."""
    here = scene(pages=100, latency_s=0.3)
    crew = start_and_wait(here, "--restarts", "0")
    first, second = crew.pids
    os.kill(first, signal.SIGKILL)
    crew.wait_for("worker 1 is not restarted: 0 restarts are the limit (--restarts)")
    done = here.done()
    wait_until(lambda: here.done() > done + 4, "the other worker crawls", 10)
    os.kill(second, signal.SIGKILL)
    assert crew.wait(10) == 1
    assert "No worker is left, and the run is not finished." in crew.err
    assert len(crew.pids) == 2
