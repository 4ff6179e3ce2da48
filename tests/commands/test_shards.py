"""`scrapy dq` on a crawl over several shards: each command means all of them."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import pytest

from scrapy_dq.commands.subcommand import CommandError
from scrapy_dq.frontier import keys
from scrapy_dq.frontier.frontier import Frontier, Home
from scrapy_dq.frontier.model import Terms
from scrapy_dq.frontier.worker.routing import shard_of
from support import stored
from support.live_frontier import IDENTITY, HandWorker, LiveFrontier, fail, numbers, put
from support.redis_server import RedisServer

SHARDS = 3
SPREAD = replace(IDENTITY, shards=SHARDS, partition_by="slot")
HOSTS = [b"%s.example" % name for name in (b"books", b"news", b"shop", b"wiki", b"maps", b"mail")]


class Other(LiveFrontier):
    """Another shard than home."""

    def __init__(self, url: str, home: HandWorker, shard: int) -> None:
        super().__init__(url, home.live.crawl, home.live.order)
        self.frontier = Frontier(self._client, self.crawl, self.order, shard=shard)
        self._home = Home(home.epoch, home.run, False)

    def call(self, method: str, *args: Any, **named: Any) -> Any:
        return super().call(method, *args, *((self._home,) if method == "join" else ()), **named)

    def close(self) -> None:
        stored.roll_back(self.redis, keys.Shard(self.crawl, self.frontier.name.number), {})
        super().close()


@pytest.fixture
def workers(live: LiveFrontier, server: RedisServer) -> Iterator[list[HandWorker]]:
    """Yield one worker, in each shard."""
    with ExitStack() as stack:
        home = HandWorker(live, "worker", SPREAD)
        others = [stack.enter_context(closing(Other(server.url, home, shard))) for shard in range(1, SHARDS)]
        yield [home, *(HandWorker(other, "worker", SPREAD) for other in others)]


def fill(workers: list[HandWorker]) -> None:
    """Put an entry of each host into its shard; all shards get some."""
    for number, host in enumerate(HOSTS):
        worker = workers[shard_of(host, b"", SHARDS)]
        worker.exchange(put(number, partition=host, payload=b"%d" % number), terms=Terms(finish_at=-1))
    assert {shard_of(host, b"", SHARDS) for host in HOSTS} == set(range(SHARDS))


def test_status_counts_all_shards(dq: Any, workers: list[HandWorker]) -> None:
    fill(workers)
    workers[1].exchange(want=1, terms=Terms(finish_at=-2))
    found = dq.found("status", "--no-rate")
    assert (found["waiting"], found["in_flight"], found["workers"]) == (len(HOSTS) - 1, 1, 1)
    assert (found["shards"], found["unreachable_shards"]) == (SHARDS, [])
    assert found["partitions"] == len(HOSTS) - 1
    assert len(found["largest_partitions"]) == len(HOSTS) - 1
    (row,) = dq.found("workers", "--no-rate")
    assert row["leases"] == 1


def test_what_waits_is_shown_of_all_shards(dq: Any, workers: list[HandWorker]) -> None:
    fill(workers)
    shown = {each["partition"] for each in dq.found("peek", "-n", "100")}
    assert shown == {host.decode() for host in HOSTS}


def test_a_limit_is_set_where_the_partition_lives(dq: Any, workers: list[HandWorker]) -> None:
    fill(workers)
    for host in HOSTS:
        dq.text("limit", host.decode(), "--delay", "1000")
        worker = workers[shard_of(host, b"", SHARDS)]
        name = keys.prefix(worker.live.frontier.name) + "limits"
        assert host in worker.live.redis.hgetall(name)


def test_failures_are_listed_and_retried_in_all_shards_and_home_is_opened(
    dq: Any, workers: list[HandWorker]
) -> None:
    """Also if the run was finished: a shard that is open in it would be cleared by the next run."""
    fill(workers)
    for worker in workers:
        ends = Terms(finish_at=-1 if worker is workers[0] else -2)
        while taken := numbers(worker.exchange(want=9, terms=ends)):
            worker.exchange(*map(fail, taken), terms=ends)
    home = workers[0]
    version = home.exchange(terms=Terms(finish_at=-1)).census.version
    assert home.exchange(terms=Terms(finish_at=version)).status.value == "FINISHED"
    assert len(dq.found("failed", "-n", "100")) == len(HOSTS)
    entry = dq.found("failed", "-n", "100")[0]["id"]
    assert dq.found("failed", entry)["id"] == entry
    found = dq.found("retry", "--all", "--yes")
    assert (found["failed"], found["left"]) == (len(HOSTS), 0)
    status = dq.found("status", "--no-rate")
    assert (status["phase"], status["waiting"], status["failed"]) == ("open", len(HOSTS), 0)


def metas(live: LiveFrontier) -> int:
    return live.redis.exists(*(keys.meta(keys.Shard(live.crawl, shard)) for shard in range(SHARDS)))


def test_clear_deletes_all_shards(dq: Any, workers: list[HandWorker], live: LiveFrontier) -> None:
    """Also under workers that are dead; those of another shard have another heartbeat than at home."""
    fill(workers)
    live.redis.hincrby(f"{keys.prefix(workers[1].live.frontier.name)}beats", "worker", 7)
    assert metas(live) == SHARDS
    found = dq.found("clear", "--yes", DQ_WORKER_TTL=1)
    assert found["deleted"]["waiting"] == len(HOSTS)
    assert not metas(live)
    with pytest.raises(CommandError, match="there is no crawl"):
        dq.text("clear", "--yes", DQ_SHARDS=SHARDS)


def test_clear_deletes_what_is_left_when_home_is_lost(
    dq: Any, workers: list[HandWorker], live: LiveFrontier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After it has asked."""
    fill(workers)
    stored.roll_back(live.redis, live.crawl, {})
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with pytest.raises(CommandError, match="--yes"):
        dq.text("clear", DQ_SHARDS=SHARDS)
    assert metas(live) == SHARDS - 1
    text = dq.text("clear", "--yes", DQ_SHARDS=SHARDS)
    assert "has lost its home shard; 2 shards are left" in text
    assert text.endswith(f"What was left of crawl {live.crawl!r} is deleted.\n")
    assert not metas(live)
