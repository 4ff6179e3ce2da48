"""`scrapy dq reshard`: what it says and refuses, and in a real crawl that is killed and moved on its way."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from commands.test_changes import start_dq
from commands.test_clear import TTL, beaten, quick_looks  # noqa: F401  fixtures
from scrapy_dq.commands.subcommand import CommandError
from scrapy_dq.frontier import keys
from scrapy_dq.frontier.model import FrontierRefused
from scrapy_dq.frontier.resharding import reshard
from support.live_frontier import HandWorker, LiveFrontier, put
from support.project import Project
from support.redis_server import RedisServer
from support.scrapy_redis_crawl import run_dq
from support.stored import roll_back
from support.tree_site import TreeSite
from support.waiting import wait_until


@pytest.fixture(autouse=True)
def _deleted(live: LiveFrontier) -> Iterator[None]:
    yield
    for number in range(1, 4):
        roll_back(live.redis, keys.Shard(live.crawl, number), {})


def waiting(client: Any, crawl: str, shards: int) -> list[int]:
    """Return how many entries wait in each shard."""
    counts = (client.hget(keys.meta(keys.Shard(crawl, n)), "counts") for n in range(shards))
    return [int(each.split()[1]) if each else 0 for each in counts]


@pytest.fixture
def filled(live: LiveFrontier) -> None:
    worker = HandWorker(live, "worker")
    worker.exchange(*(put(n) for n in range(40)))
    worker.leave()


@pytest.mark.usefixtures("filled")
def test_it_says_what_was_moved_and_which_setting_follows(dq: Any, live: LiveFrontier) -> None:
    """There and back; the second time there is nothing to do."""
    text = dq.text("reshard", "--to", "3")
    assert f"Crawl {live.crawl!r} at " in text
    assert "It had 1 shard, and has 3 now.\n" in text
    assert "Set DQ_SHARDS = 3 before you crawl: a worker with 1 is refused.\n" in text
    parts = waiting(live.redis, live.crawl, 3)
    assert sum(parts) == 40
    assert min(parts) > 0
    found = dq.found("reshard", "--to", "1", DQ_SHARDS=3)
    assert (found["from"], found["to"], found["moved"]) == (3, 1, sum(parts[1:]))
    assert dq.text("reshard", "--to", "1").endswith("\nIt has 1 shard already.\n")
    assert waiting(live.redis, live.crawl, 3) == [40, 0, 0]


def test_it_refuses_while_a_worker_lives(dq: Any, live: LiveFrontier, beaten: HandWorker) -> None:  # noqa: F811
    before = live.dump()
    with pytest.raises(FrontierRefused, match=r"worker worker of crawl .* is alive: nothing was moved"):
        dq.text("reshard", "--to", "2", **TTL)
    assert live.dump().keys() == before.keys()


def test_leases_of_a_dead_worker_are_moved_too(dq: Any, live: LiveFrontier, worker: HandWorker) -> None:
    """They wait again first, as when a worker finds it dead."""
    worker.exchange(*(put(n) for n in range(40)), want=9)
    dq.text("reshard", "--to", "2", **TTL)
    assert sum(waiting(live.redis, live.crawl, 2)) == 40


@pytest.mark.usefixtures("filled")
def test_until_it_is_complete_nobody_joins_and_no_other_number_is_begun(
    dq: Any, live: LiveFrontier, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(reshard.Source, "move", interrupted)
        with pytest.raises(CommandError, match=r"interrupted. .*the same command \(--to 3\) is complete"):
            dq.text("reshard", "--to", "3")
    with pytest.raises(FrontierRefused, match=r"half moved .* `scrapy dq reshard <spider> --to 3`"):
        HandWorker(live, "worker")
    with pytest.raises(FrontierRefused, match="half moved from 1 to 3 shards: finish that first"):
        dq.text("reshard", "--to", "2")
    assert dq.found("status", "--no-rate")["waiting"] == 40
    dq.text("reshard", "--to", "3")
    assert sum(waiting(live.redis, live.crawl, 3)) == 40


def test_a_crawl_that_does_not_exist_is_reported(dq: Any, live: LiveFrontier) -> None:
    with pytest.raises(CommandError, match="there is no crawl"):
        dq.text("reshard", "--to", "2")
    assert live.dump() == {}


def test_a_crawl_continues_in_other_shards(
    make_project: Callable[..., Project], start_site: Callable[..., TreeSite], server: RedisServer
) -> None:
    """It was begun in one: no page is crawled twice, or left out, and a worker as before is refused.

    The move is killed again and again, each time a little later.
    """
    site = start_site(pages=300)
    project = make_project([site.start_url], redis_url=server.url)
    project.run_worker(settings={"CLOSESPIDER_PAGECOUNT": 40})
    with server.client() as client:
        lines = 0
        for more in (1, 20, 400):
            command = start_dq(project, "reshard", project.name, "--to", "3")

            def calls() -> int:
                return sum(
                    client.hlen(keys.meta(keys.Shard(project.name, n))) + count
                    for n, count in enumerate(waiting(client, project.name, 3))
                )

            was = calls()
            wait_until(lambda: command.poll() is not None or calls() > was + more, "it is under way", 20)  # noqa: B023
            if command.poll() is None:
                os.kill(command.pid, signal.SIGKILL)
                lines += 1
            command.wait(10)
            command.communicate()
        assert lines > 0
    done = run_dq(project, "reshard", project.name, "--to", "3")
    assert done.returncode == 0, done.stderr
    refused = project.run_worker()
    assert "DQ_SHARDS" in refused.text
    project.start_workers(2, settings={"DQ_SHARDS": 3, "DQ_ROLLBACK_HORIZON": 1})
    project.wait()
    assert project.workers[-1].close_reason == "finished"
    assert set(project.count("item")) == site.paths
    assert max(project.count("item").values()) == 1
