"""`scrapy dq move`: its output and refusals, and a real crawl whose move is killed midway."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from commands.conftest import Dq
from commands.test_changes import start_dq
from commands.test_clear import TTL, beaten, quick_looks  # noqa: F401  fixtures
from commands.test_killed import killed_before
from scrapy_dq.commands.subcommand import CommandError, WrongUsage
from scrapy_dq.frontier import keys
from scrapy_dq.frontier.archive import move, new_crawl
from scrapy_dq.frontier.archive.move import BETWEEN
from scrapy_dq.frontier.model import Admission, FrontierRefused
from scrapy_dq.settings import ConfigError
from support.live_frontier import HandWorker, LiveFrontier, put
from support.project import Project
from support.redis_server import RedisServer
from support.scrapy_redis_crawl import run_dq
from support.stored import roll_back
from support.tree_site import TreeSite
from support.waiting import wait_until

FIFO = {"DQ_ORDER": "fifo"}


@pytest.fixture(autouse=True)
def _deleted(live: LiveFrontier) -> Iterator[None]:
    yield
    for number in range(4):
        for name in (live.crawl, live.crawl + BETWEEN):
            roll_back(live.redis, keys.Shard(name, number), {})


@pytest.fixture
def there(server: RedisServer) -> Iterator[RedisServer]:
    """Yield another Redis server."""
    with RedisServer(appendonly=True) as other:
        yield other


@pytest.fixture
def filled(live: LiveFrontier) -> None:
    worker = HandWorker(live, "worker")
    worker.exchange(*(put(n, admission=Admission.SEEN) for n in range(40)))
    worker.leave()


def waiting(client: Any, crawl: str, shards: int) -> list[int]:
    """Return the number of waiting entries in each shard."""
    counts = (client.hget(keys.meta(keys.Shard(crawl, n)), "counts") for n in range(shards))
    return [int(each.split()[1]) if each else 0 for each in counts]


@pytest.mark.usefixtures("filled", "_quick_disks")
def test_the_output_names_the_moved_data_and_the_settings_to_change(dq: Any, live: LiveFrontier) -> None:
    """Options have precedence over the settings. A second move with the same settings has nothing to do."""
    text = dq.text("move", "--shards", "3", "--seen", "compact", **FIFO)
    assert f"Crawl {live.crawl!r} at " in text
    assert "requests      40\nfingerprints  40\n" in text
    assert (
        "It was priority-lifo, seen exact, 1 shard, and is now fifo, seen compact, 3 shards.\n"
        "Before you crawl, set DQ_SHARDS = 3, DQ_SEEN = 'compact'.\n"
        f"Continue with: scrapy crawl <spider> -s DQ_CRAWL={live.crawl}" in text
    )
    parts = waiting(live.redis, live.crawl, 3)
    assert (sum(parts), min(parts) > 0) == (40, True)
    settings: dict[str, Any] = {"DQ_SHARDS": 3, "DQ_SEEN": "compact", **FIFO}
    assert dq.text("move", **settings).endswith(
        "\nNothing to do: the crawl is already fifo, seen compact, 3 shards.\n"
    )
    found = dq.found("move", "--shards", "1", "--order", "lifo", **settings)
    assert found["redis"] == found["from"]
    wanted = {
        "requests": 40,
        "fingerprints": 40,
        "order": "lifo",
        "seen": "compact",
        "shards": 1,
        "doubts": [],
    }
    assert {name: found[name] for name in wanted} == wanted
    assert waiting(live.redis, live.crawl, 3) == [40, 0, 0]


@pytest.mark.usefixtures("filled", "_quick_disks")
def test_a_crawl_can_be_moved_to_another_redis(dq: Any, live: LiveFrontier, there: RedisServer) -> None:
    """Afterwards, the same command reports that the crawl has been moved."""
    text = dq.text("move", "--to", there.url, REDIS_PARAMS={"socket_timeout": 5})
    assert f"Crawl {live.crawl!r} at {there.url.removeprefix('redis://').removesuffix('/0')}" in text
    assert "Before you crawl, set REDIS_URL for " in text
    assert live.dump() == {}
    with there.client() as client:
        assert waiting(client, live.crawl, 1) == [40]
    assert "An earlier command has moved the crawl, which is now priority-lifo" in dq.text(
        "move", "--to", there.url
    )
    with pytest.raises(ConfigError, match="REDIS_URL"):
        dq.text("move", "--to", "nonsense")


def test_move_refuses_while_a_worker_is_alive(dq: Any, live: LiveFrontier, beaten: HandWorker) -> None:  # noqa: F811
    with pytest.raises(FrontierRefused, match=r"worker worker of crawl .* is alive: nothing was moved"):
        dq.text("move", "--shards", "2", **TTL)
    assert live.redis.hget(live.key("meta"), "shards") is None


@pytest.mark.usefixtures("_quick_disks")
def test_leases_of_a_dead_worker_are_moved(dq: Any, live: LiveFrontier, worker: HandWorker) -> None:
    """The leases of a dead worker are returned to the backlog, as after a reclaim."""
    worker.exchange(*(put(n) for n in range(40)), want=9)
    dq.text("move", "--shards", "2", **TTL)
    assert sum(waiting(live.redis, live.crawl, 2)) == 40


@pytest.mark.usefixtures("filled", "_quick_disks")
@pytest.mark.parametrize("half", [1, 2])
def test_an_interrupted_move_must_be_completed_before_a_worker_can_join(
    dq: Any, live: LiveFrontier, monkeypatch: pytest.MonkeyPatch, half: int
) -> None:
    """A move that was interrupted in either half is completed with its original options."""
    load, begun = move.load, []

    async def interrupted(*args: Any, **named: Any) -> Any:
        begun.append(1)
        if len(begun) == half:
            raise KeyboardInterrupt
        return await load(*args, **named)

    with monkeypatch.context() as patched:
        patched.setattr(move, "load", interrupted)
        with pytest.raises(CommandError, match=r"interrupted. .*no worker can join until the same command"):
            dq.text("move", "--shards", "3")
    if half == 1:
        with pytest.raises(FrontierRefused, match="being moved: `scrapy dq move <spider>` with the same"):
            HandWorker(live, "worker")
        assert dq.found("status", "--no-rate")["waiting"] == 40
    said = dq.text("move", "--shards", "2").splitlines()
    assert any(line.endswith("now priority-lifo, seen exact, 3 shards.") for line in said)
    assert (
        "The interrupted move had these settings. To change to priority-lifo, seen exact, 2 shards, run this "
        "again."
    ) in said
    assert sum(waiting(live.redis, live.crawl, 3)) == 40


def test_a_crawl_that_does_not_exist_is_reported(dq: Any, live: LiveFrontier) -> None:
    with pytest.raises(FrontierRefused, match="there is no crawl"):
        dq.text("move", "--shards", "2")
    with pytest.raises(WrongUsage, match="name a spider"):
        Dq(dq.url, "", dq._capsys).text("move")
    assert live.dump() == {}


@pytest.mark.parametrize("away", [False, True])
def test_a_move_that_is_killed_at_any_command_loses_and_doubles_nothing(
    dq: Any, live: LiveFrontier, there: RedisServer, monkeypatch: pytest.MonkeyPatch, away: bool
) -> None:
    """The move is killed with kill -9, each time five Redis commands later."""

    async def written(frontier: Any, write: Callable[[Any], Any], deadline: float) -> str:
        await write(frontier)
        return ""

    monkeypatch.setattr(new_crawl, "written", written)
    worker = HandWorker(live, "worker")
    worker.exchange(*(put(n, admission=Admission.SEEN) for n in range(40)))
    worker.leave()
    words = ["move", "--shards", "2", *(["--to", there.url] if away else [])]
    kills, number = 0, 0
    while killed_before(number := number + 5, lambda: dq.text(*words)):
        kills += 1
        assert number < 900
    assert kills > 10
    with there.client() as client:
        redis = client if away else live.redis
        assert sum(waiting(redis, live.crawl, 2)) == 40
        prefixes = [keys.prefix(keys.Shard(live.crawl, n)) for n in range(2)]
        assert sum(redis.scard(prefix + "seen") for prefix in prefixes) == 40
        left = [*live.redis.scan_iter(f"*{live.crawl}*", count=1000)]
        assert not [name for name in left if away or BETWEEN.encode() in name]


@pytest.mark.parametrize("away", [False, True])
def test_a_moved_crawl_continues_without_loss_or_repeats(
    make_project: Callable[..., Project], start_site: Callable[..., TreeSite], server: RedisServer,
    there: RedisServer, away: bool,
) -> None:  # fmt: skip
    """After a move from one shard to three, no page is crawled twice or left out.

    A worker with the old settings is refused. The move is killed up to twice, at different steps.
    """
    site = start_site(pages=200)
    project = make_project([site.start_url], redis_url=server.url)
    project.run_worker(settings={"CLOSESPIDER_PAGECOUNT": 40})
    words = [
        "move",
        project.name,
        "--shards",
        "3",
        "--seen",
        "compact",
        *(["--to", there.url] if away else []),
    ]
    url = there.url if away else server.url
    with server.client() as client, there.client() as other:

        def calls() -> int:
            clients = (client, other) if away else (client,)
            sent = (each.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0) for each in clients)
            return sum(sent)

        killed = 0
        for more in (6, 25):
            was = calls()
            command = start_dq(project, *words)
            wait_until(lambda: command.poll() is not None or calls() > was + more, "the move has begun", 60)  # noqa: B023
            if command.poll() is None:
                os.kill(command.pid, signal.SIGKILL)
                killed += 1
            command.wait(10)
            command.communicate()
        assert killed > 0
    done = run_dq(project, *words, timeout_s=300)
    assert done.returncode == 0, done.stderr
    as_now = {"DQ_SHARDS": 3, "DQ_SEEN": "compact", "REDIS_URL": url, "DQ_ROLLBACK_HORIZON": 1}
    refused = project.run_worker(settings=as_now | {"DQ_SHARDS": 1})
    assert "Set DQ_SHARDS = 3, move it with `scrapy dq move <spider> --shards 1`" in refused.text
    project.start_workers(2, settings=as_now)
    project.wait()
    assert project.workers[-1].close_reason == "finished"
    assert set(project.count("item")) == site.paths
    assert max(project.count("item").values()) == 1
