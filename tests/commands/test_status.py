"""`scrapy dq status`: its counts, their bounds, and its answer for a crawl that does not exist."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

import pytest

from commands.conftest import READ_ONLY, loader_of
from scrapy_dq.commands import status
from scrapy_dq.commands.output.status_view import one_line
from scrapy_dq.frontier.admin.backlog import sizes
from scrapy_dq.frontier.admin.crawls import CrawlSearch
from scrapy_dq.frontier.answers import Figures
from scrapy_dq.frontier.worker.identity import own_identity
from scrapy_dq.inspection.place import NoSuchCrawl
from scrapy_dq.inspection.words import when
from support.given import StartRedis
from support.live_frontier import HandWorker, LiveFrontier, ack, bury, fail, limited, numbers, put, puts
from support.waiting import free_port


def test_all_counts_are_reported(dq: Any, live: LiveFrontier, worker: HandWorker) -> None:
    """Each kind of entry has its own count, for programs and for people."""
    worker.exchange(*puts(b"a.example", 7), put(90, due_in=900), put(91, reason="odd"), want=4)
    first, second, third, _ = sorted(int(entry) for entry in worker.held)
    worker.exchange(ack(first), fail(second), bury(third))
    found = dq.found("status", "--no-rate")
    counts = ("phase", "run", "workers", "waiting", "delayed", "in_flight", "done", "failed", "dead")
    assert [found[name] for name in counts] == ["open", 0, 1, 3, 1, 1, 1, 1, 2]
    assert found["pages_per_s"] is None
    assert found["redis_memory_bytes"] > 0
    free = {"delay_s": 0, "concurrency": 0, "blocked_s": 0, "takes_s": 0}
    assert found["largest_partitions"] == [{"partition": "a.example", "waiting": 3} | free]
    assert found["slowest_partitions"] == []
    text = dq.text("status", "--no-rate")
    rows = [" ".join(line.split()) for line in text.splitlines()]
    for row in (
        "workers 1",
        "waiting 3",
        "delayed 1",
        "in flight 1",
        "done 1",
        "failed 1",
        "dead 2",
        "3 a.example",
    ):
        assert row in rows
    assert f"Crawl {live.crawl!r} at 127.0.0.1:" in text
    assert "of 1:" in text
    assert dq.status == 0


def test_a_redis_that_refuses_writes_is_shown(start_redis: StartRedis, dq_at: Callable[[str], Any]) -> None:
    """INFO and the workers' reports show that Redis is full. INFO also shows that it is a replica."""
    server = start_redis()
    with closing(LiveFrontier(server.url, "crawl")) as live, server.client() as client:
        worker = HandWorker(live, "worker")
        dq = dq_at(server.url)
        found = dq.found("status", "--no-rate")
        assert (found["waits"], found["redis_refuses"]) == ([], [])
        client.config_set("maxmemory", 1)
        live.call("report", "worker", worker.epoch, False, Figures(), 0.0, 5.0, "no memory")
        (wait,) = dq.found("status", "--no-rate")["waits"]
        assert (wait["workers"], wait["why"]) == (1, "no memory")
        lines = dq.lines("status", "--no-rate")
        assert any(re.fullmatch("1 worker waits since .*: no memory", line) for line in lines)
        assert any("Redis refuses writes: " in line and "raise maxmemory" in line for line in lines)
        client.config_set("maxmemory", 0)
        client.replicaof("127.0.0.1", str(free_port()))
        lines = dq.lines("status", "--no-rate")
        client.replicaof("NO", "ONE")
        assert any("Redis refuses writes: this Redis is a replica" in line for line in lines)


def test_dead_workers_are_counted_as_dead(dq: Any, live: LiveFrontier) -> None:
    """All forms of the status count dead workers separately, and do not show that they wait."""
    gone = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    for name in ("first", "second"):
        worker = HandWorker(live, name)
        live.call("report", name, worker.epoch, False, Figures(), 0.0, 5.0, "no memory")
        identity = own_identity() | {"pid": int(gone.stdout)}
        live.redis.hset(live.key(f"worker:{name}"), "identity", json.dumps(identity))
    found = dq.found("status", "--no-rate")
    assert (found["worker_states"], found["waits"]) == ({"dead": 2}, [])
    assert "\nworkers    2 (dead)\n" in dq.text("status", "--no-rate")
    assert ", 2 workers (dead)" in one_line(dq.found("status", "--no-rate"))
    HandWorker(live, "third")
    assert "\nworkers    3 (2 dead)\n" in dq.text("status", "--no-rate")
    dq.crawl = ""
    (row,) = (line for line in dq.lines("status") if line.endswith(f" {live.crawl}"))
    assert " ".join(row.split()).startswith("open 3 (2 dead) ")


def test_all_crawls_in_the_redis_are_listed_after_those_of_the_project(
    dq_at: Callable[[str], Any], start_redis: StartRedis
) -> None:
    """Each crawl that the user may read is listed once, even if the project has no spider."""
    server = start_redis()
    lives = [LiveFrontier(server.url, name) for name in ("alien", "ours", "secret", "zebra")]
    for live in lives:
        HandWorker(live, "worker").exchange(put(1))
    dq = dq_at(server.url)
    dq.crawl = ""
    spiders = {"SPIDER_LOADER_CLASS": loader_of("ours")}
    found = dq.listed("status", **spiders)
    assert [(each["spider"], each["crawl"], each["waiting"]) for each in found] == [
        ("ours", "ours", 1), (None, "alien", 1), (None, "secret", 1), (None, "zebra", 1)
    ]  # fmt: skip
    assert [line.split()[-1] for line in dq.lines("status", **spiders)[1:]] == [
        "ours", "alien", "secret", "zebra"
    ]  # fmt: skip
    assert len(dq.listed("status", SPIDER_LOADER_CLASS=loader_of())) == 4
    params = {"zebra": {"REDIS_PARAMS": {"socket_timeout": 7}}}
    found = dq.listed("status", SPIDER_LOADER_CLASS=loader_of("ours", "zebra", **params))
    assert [each["crawl"] for each in found] == ["ours", "zebra", "alien", "secret"]
    rights = ["~dq:{ours}:*", "~dq:{zebra}:*", "+@all"]
    lives[0].redis.execute_command("ACL", "SETUSER", "observer", "on", ">pw", *rights)
    dq = dq_at(server.url.replace("redis://", "redis://observer:pw@"))
    dq.crawl = ""
    assert [each["crawl"] for each in dq.listed("status", **spiders)] == ["ours", "zebra"]
    lives[0].redis.execute_command("ACL", "SETUSER", "observer", "-scan")
    assert [each["crawl"] for each in dq.listed("status", **spiders)] == ["ours"]
    for live in lives:
        live.close()


def test_all_reads_every_key_and_shows_when_crawls_finished(
    dq_at: Callable[[str], Any], start_redis: StartRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without --all, the search stops at a limit, and a message names this option."""
    monkeypatch.setattr(status, "MAX_CRAWLS", 1)
    server = start_redis()
    with ExitStack() as stack:
        lives = [stack.enter_context(closing(LiveFrontier(server.url, name))) for name in "abc"]
        for live in lives:
            worker = HandWorker(live, "worker")
            worker.exchange(put(1), want=1)
        worker.exchange(ack(1))
        worker.exchange()
        worker.leave()
        dq = dq_at(server.url)
        dq.crawl, dq.may_say = "", True
        none = {"SPIDER_LOADER_CLASS": loader_of()}
        assert [each["crawl"] for each in dq.listed("status", **none)] == ["a"]
        assert dq.said[0].endswith(
            "may have more crawls: only a part of its keys was searched. --all searches all keys"
        )
        found = {each["crawl"]: each["ended"] for each in dq.listed("status", "--all", **none)}
        assert (list(found), found["a"]) == (["a", "b", "c"], None)
        assert abs(found["c"] - lives[0].redis.time()[0]) < 3600
        assert dq.said == []
        *_, last = dq.lines("status", "--all", **none)
        assert f"{when(found['c'])}  c" in last


def test_pages_are_counted_over_an_interval(
    dq: Any, worker: HandWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Done, failed and dead requests all count. The remaining time is an estimate from this rate."""
    worker.exchange(*puts(b"a", 100), want=30)
    held, sleep = sorted(int(entry) for entry in worker.held), time.sleep

    def crawl_meanwhile(seconds: float) -> None:
        worker.exchange(*map(ack, held[:10]), fail(held[10]), bury(held[11]))
        sleep(0.05)

    monkeypatch.setattr(time, "sleep", crawl_meanwhile)
    found = dq.found("status")
    assert 12 < found["pages_per_s"] <= 12 / 0.05
    assert found["left_s"] == pytest.approx(88 / found["pages_per_s"], abs=0.06)
    held = held[12:]
    assert "pages/s; " in dq.text("status")


def test_the_largest_partitions_are_found_in_lists_of_all_ranks(
    live: LiveFrontier, worker: HandWorker
) -> None:
    """The size of a partition includes its entries of all priorities. A deleted list counts as empty."""
    worker.exchange(*[put(n, n % 3, partition=b"several") for n in range(30)])
    worker.exchange(*[put(100 + n, partition=b"p%d" % n) for n in range(20)], *puts(b"one", 25, 200))
    found = sizes(live.redis, live.crawl, 3)
    assert [(each.partition, each.waiting) for each in found.largest][:2] == [("several", 30), ("one", 25)]
    assert (found.partitions, found.examined) == (22, 22)
    live.redis.delete(live.key("backlog:0:one"))
    assert "one" not in [each.partition for each in sizes(live.redis, live.crawl, 22).largest]


def test_only_a_part_of_many_partitions_is_examined(
    dq: Any, live: LiveFrontier, worker: HandWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The output shows how many partitions were examined, and how many exist."""
    for begin in range(0, 3000, 1000):
        worker.exchange(*[put(n, partition=b"p%d" % n) for n in range(begin, begin + 1000)])
    found = sizes(live.redis, live.crawl, 3, most=600, budget_s=9)
    assert 600 <= found.examined < 2000
    assert found.partitions == 3000 > found.examined
    assert sizes(live.redis, live.crawl, 3, budget_s=9).examined == 3000
    assert sizes(live.redis, live.crawl, 3, budget_s=0).examined < 3000
    monkeypatch.setattr(sizes, "__kwdefaults__", {"most": 600, "budget_s": 9})
    assert f"of {found.examined:,} examined, of 3,000:" in dq.text("status", "--no-rate")


def test_the_slowest_partitions_are_found_by_delay_and_block(dq: Any, live: LiveFrontier) -> None:
    """A partition's time is the number of waiting requests times the delay, plus the rest of its block."""
    limits = {"slow.example": (10.0, 3), "none.example": (0.0, None), "narrow.example": (0.0, 1)}
    worker = HandWorker(live, "worker", limited(0.5, 0, **limits))
    for n, name in enumerate((*limits, "plain.example", "blocked.example")):
        worker.exchange(*puts(name.encode(), 2 + n, 100 * n))
    live.limit(b"blocked.example", block_s=600)
    live.limit(b"nothing-waits.example", block_s=600)
    found = dq.found("status", "--no-rate")["slowest_partitions"]
    assert [each["partition"] for each in found] == ["blocked.example", "slow.example", "plain.example"]
    assert 590 < found[0]["blocked_s"] <= 600
    assert found[0]["takes_s"] == pytest.approx(found[0]["blocked_s"] + 6 * 0.5)
    told = ("waiting", "delay_s", "concurrency", "blocked_s", "takes_s")
    assert [[each[name] for name in told] for each in found[1:]] == [[2, 10, 3, 0, 20], [5, 0.5, 0, 0, 2.5]]
    # The search by limits also finds these partitions, but each appears once.
    two = sizes(live.redis, live.crawl, 2).slowest
    assert [each.partition for each in two] == ["blocked.example", "slow.example"]
    text = dq.text("status", "--no-rate")
    assert "The slowest partitions, of 5:" in text
    rows = [line.split() for line in text.splitlines()]
    assert ["20", "s", "2", "10", "s", "3", "slow.example"] in rows
    assert ["2", "s", "5", "0.5", "s", "plain.example"] in rows


def test_partitions_that_are_largest_and_slowest_are_reported_once(dq: Any, live: LiveFrontier) -> None:
    """With the same delay for all partitions, the largest partition is also the slowest."""
    worker = HandWorker(live, "worker", limited(60.0))
    worker.exchange(*puts(b"a.example", 3), *puts(b"b.example", 2, 50))
    text = dq.text("status", "--no-rate")
    assert "The largest and slowest partitions, of 2:" in text
    assert "at once" not in text
    assert "blocked" not in text
    assert text.count("a.example") == 1
    assert "3 min 0 s        3" in text


def test_the_slowest_of_very_many_partitions_are_found(dq: Any, live: LiveFrontier) -> None:
    """Blocked partitions, and partitions with their own limits, are always examined."""
    worker = HandWorker(live, "worker", limited(1.0))
    for begin in range(0, 3000, 1000):
        worker.exchange(*[put(n, partition=b"p%d" % n) for n in range(begin, begin + 1000)])
    live.limit(b"p1234", block_s=600)
    live.limit(b"p2345", delay_s=300)
    found = sizes(live.redis, live.crawl, 3, budget_s=0)
    assert found.examined < 3000
    assert [each.partition for each in found.slowest[:2]] == ["p1234", "p2345"]


def test_the_time_left_is_not_less_than_the_slowest_partition_takes(
    dq: Any, live: LiveFrontier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The speed of the other partitions makes no difference."""
    worker = HandWorker(live, "worker", limited(slow=(100.0, None)))
    worker.exchange(*puts(b"slow", 5), *puts(b"quick", 50, 100))
    held = worker.take(30)

    def crawl_meanwhile(seconds: float) -> None:
        worker.exchange(*map(ack, held))

    monkeypatch.setattr(time, "sleep", crawl_meanwhile)
    assert dq.found("status")["left_s"] == 400  # one of the five requests is in flight


def test_status_needs_no_placeholder_that_only_a_worker_has(dq: Any, worker: HandWorker) -> None:
    """DQ_RUN_NAME may contain Scrapyd's job, which a command does not know."""
    assert "phase" in dq.found("status", "--no-rate", DQ_RUN_NAME="%(job)s")


BOUNDED = {
    "auth", "client|setinfo", "client", "ping", "info", "evalsha", "eval", "select", "type", "exists",
    "hmget",
    "smembers", "hlen", "hget", "scard", "zcard", "hscan", "llen", "zrangebylex", "zrange", "zrevrange",
    "zmscore", "lindex", "lrange", "time", "script", "script|exists",
}  # fmt: skip
"""Commands that do not read a whole key, except the set of members, which is small."""


def test_reading_commands_read_no_whole_key_and_change_nothing(
    dq_at: Callable[[str], Any], start_redis: StartRedis
) -> None:
    """The test reads Redis's own command statistics."""
    server = start_redis(appendonly=True)
    live = LiveFrontier(server.url, "crawl")
    worker = HandWorker(live, "worker", limited(own=(3.0, 1)))
    live.call("limit", b"p7", block_s=60)
    worker.exchange(
        *[put(n, n % 3, partition=b"p%d" % (n % 40)) for n in range(400)], put(900, due_in=99), want=9
    )
    held = numbers(worker.exchange(want=9))
    worker.exchange(fail(held[0]), bury(held[1]))
    before = live.dump()
    live.redis.config_resetstat()
    dq = dq_at(server.url)
    for name in READ_ONLY[:-1]:
        dq.text(name, *["--no-rate"] * (name == "status"))
    called = {name.removeprefix("cmdstat_").lower() for name in live.redis.info("commandstats")}
    assert "hscan" in called
    assert called - {"config|resetstat", "config"} <= BOUNDED
    dq.text("doctor")  # doctor tries each command of the scripts, on a key that does not exist
    assert live.dump() == before
    live.close()


def test_a_user_with_the_rights_of_a_worker_can_run_reading_commands(
    dq_at: Callable[[str], Any], start_redis: StartRedis
) -> None:
    """The rights in docs/deploying.md are enough, even without INFO."""
    server = start_redis(appendonly=True)
    live = LiveFrontier(server.url, "crawl")
    HandWorker(live, "worker").exchange(put(1))
    rights = "~dq:* +@connection +@read +@write +@scripting +time"
    live.redis.execute_command("ACL", "SETUSER", "crawler", "on", ">pw", *rights.split())
    dq = dq_at(server.url.replace("redis://", "redis://crawler:pw@"))
    for name in READ_ONLY:
        dq.text(name)
        assert dq.status == 0, name
    assert dq.found("status", "--no-rate")["redis_memory_bytes"] is None
    with pytest.raises(NoSuchCrawl, match="did you mean"):
        dq.text("status", "--crawl", "crowl")
    live.close()


def test_a_crawl_that_does_not_exist_is_reported_with_the_nearest(
    dq: Any, live: LiveFrontier, worker: HandWorker
) -> None:
    """Every command for one crawl reports it, with any characters in the name."""
    words = {"retry": ["--all"], "limit": ["--site", "a"], "clear": ["--all"]}
    for name in (*READ_ONLY[:-1], "pause", "drain", "resume", "stop", "complete", *words):
        with pytest.raises(NoSuchCrawl, match=f"did you mean --crawl '{live.crawl}'") as told:
            dq.text(name, "--crawl", live.crawl + "x", *words.get(name, ()))
        assert f"no crawl '{live.crawl}x' at 127.0.0.1:" in str(told.value)
    with pytest.raises(NoSuchCrawl, match="existing crawls: "):
        dq.text("status", "--crawl", "ü/{%s}:*")


def test_the_search_for_crawl_names_is_bounded(start_redis: StartRedis) -> None:
    """The number of keys of other programs makes no difference."""
    with start_redis().client() as client:
        client.mset({f"other-{n}": "" for n in range(5000)})
        search = CrawlSearch()
        search.scan_more(lambda: [client], budget_s=0)
        assert client.info("commandstats")["cmdstat_scan"]["calls"] == 1
        search.scan_more(lambda: [client], most_keys=2000)
        assert not search.complete
        assert client.info("commandstats")["cmdstat_scan"]["calls"] == 3
        search.scan_more(lambda: [client])
        assert search.complete
