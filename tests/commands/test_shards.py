"""`scrapy dq` on a crawl with several shards: each command covers all of them."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import msgpack
import pytest

from scrapy_dq.commands.subcommand import CommandError
from scrapy_dq.frontier import Retried, forget, kept, keys, limit, peek, retry, shared_stats
from scrapy_dq.frontier.admin.backlog import other_names
from scrapy_dq.frontier.keys import shard_of
from scrapy_dq.frontier.model import Admission, StartQueue, Terms
from scrapy_dq.frontier.moves import Defer, Put
from scrapy_dq.inspection.history import Event, describe, is_known, read_events
from scrapy_dq.inspection.place import NoSuchCrawl, opened
from scrapy_dq.settings import Config
from support import stored
from support.live_frontier import HandWorker, LiveFrontier, entry_id, fail, numbers, put
from support.live_shards import HOSTS, SHARDS, SPREAD, Other, fill
from support.redis_server import RedisServer


@pytest.fixture
def workers(live: LiveFrontier, server: RedisServer) -> Iterator[list[HandWorker]]:
    """Yield the parts of one worker, one in each shard."""
    with ExitStack() as stack:
        home = HandWorker(live, "worker", SPREAD)
        others = [stack.enter_context(closing(Other(server.url, home, shard))) for shard in range(1, SHARDS)]
        yield [home, *(HandWorker(other, "worker", SPREAD) for other in others)]


def test_status_counts_all_shards(dq: Any, workers: list[HandWorker]) -> None:
    fill(workers)
    workers[1].exchange(want=1, terms=Terms(finish_at=-2))
    found = dq.found("status", "--no-rate")
    assert (found["waiting"], found["in_flight"], found["workers"]) == (len(HOSTS) - 1, 1, 1)
    assert (found["shards"], found["unreachable_shards"]) == (SHARDS, [])
    assert found["partitions"] == len(HOSTS) - 1
    assert len(found["largest_partitions"]) == len(HOSTS) - 1
    (row,) = dq.listed("workers", "--no-rate")
    assert row["leases"] == 1


def test_a_shard_without_data_of_the_run_is_named(dq: Any, workers: list[HandWorker]) -> None:
    """The shard answers, but its data was lost or rolled back."""
    fill(workers)
    dq.may_say = True
    workers[1].live.redis.hset(keys.meta(keys.Shard(dq.crawl, 1)), "epoch", "another")
    found = dq.found("status", "--no-rate")
    assert (found["unreachable_shards"], found["apart_shards"]) == ([], [1])
    assert any(
        "no data of this run in shard 1: it was lost" in line for line in dq.lines("status", "--no-rate")
    )
    assert dq.found("pause")["apart_shards"] == [1]


def test_an_audit_examines_the_shards_of_this_run(dq: Any, workers: list[HandWorker]) -> None:
    """The finding also names the shard that has no data of this run."""
    fill(workers)
    client = workers[0].live.redis
    client.hset(keys.meta(keys.Shard(dq.crawl, 1)), "epoch", "another")
    client.delete(keys.prefix(keys.Shard(dq.crawl, 2)) + "rotation")
    for repair in ([], ["--repair"]):
        found = {each["what"]: each["text"] for each in dq.found("doctor", "--audit", *repair)["findings"]}
        assert "partitions that would not have been served" in found["crawl"]
        assert "; no data of this run in shard 1: it was lost" in found["crawl"]
    assert client.zcard(keys.prefix(keys.Shard(dq.crawl, 2)) + "rotation")


def test_a_long_watch_sees_all_shards_after_a_move(server: RedisServer, live: LiveFrontier) -> None:
    """The web page and `status --watch` remember the crawl's number of shards, and notice a new number."""
    config = Config.read({"DQ_CRAWL": live.crawl, "REDIS_URL": server.url}, {})
    with opened(config) as place, ExitStack() as stack:
        alone = HandWorker(live, "worker")
        assert place.overview().shards == 1
        alone.leave()
        live.call("flush", [], True)
        home = HandWorker(live, "worker", SPREAD)
        others = [stack.enter_context(closing(Other(server.url, home, shard))) for shard in range(1, SHARDS)]
        fill([home, *(HandWorker(other, "worker", SPREAD) for other in others)])
        found = place.overview()
        assert (found.shards, found.census.waiting) == (SHARDS, len(HOSTS))


def test_the_backlog_of_all_shards_is_listed(dq: Any, workers: list[HandWorker]) -> None:
    fill(workers)
    shown = {each["partition"] for each in dq.listed("search", "-n", "100")}
    assert shown == {host.decode() for host in HOSTS}


def test_a_search_looks_into_all_shards(dq: Any, workers: list[HandWorker]) -> None:
    fill(workers)
    found = dq.found("search", "unreadable")
    assert {each["partition"] for each in found["entries"]} == {host.decode() for host in HOSTS}
    assert (found["looked_at"], found["complete"]) == (len(HOSTS), True)


def test_a_limit_is_set_where_the_partition_lives(dq: Any, workers: list[HandWorker]) -> None:
    fill(workers)
    for host in HOSTS:
        dq.text("limit", "--site", host.decode(), "--delay", "1000")
        worker = workers[shard_of(host, b"", SHARDS)]
        name = keys.prefix(worker.live.frontier.name) + "limits"
        assert host in worker.live.redis.hgetall(name)


def test_failures_are_listed_and_retried_in_all_shards_and_home_is_opened(
    dq: Any, workers: list[HandWorker]
) -> None:
    """Otherwise home would be finished, and the next run would clear the other, open shards."""
    fill(workers)
    for worker in workers:
        ends = Terms(finish_at=-1 if worker is workers[0] else -2)
        while taken := numbers(worker.exchange(want=9, terms=ends)):
            worker.exchange(*map(fail, taken), terms=ends)
    home = workers[0]
    version = home.exchange(terms=Terms(finish_at=-1)).census.version
    assert home.exchange(terms=Terms(finish_at=version)).status.value == "FINISHED"
    assert len(dq.listed("failed", "-n", "100")) == len(HOSTS)
    entry = dq.listed("failed", "-n", "100")[0]["id"]
    assert dq.found("failed", entry)["id"] == entry
    found = dq.found("retry", "--all", "--yes")
    assert (found["failed"], found["left"]) == (len(HOSTS), 0)
    status = dq.found("status", "--no-rate")
    assert (status["phase"], status["waiting"], status["failed"]) == ("open", len(HOSTS), 0)


def test_a_retry_in_a_shard_other_than_home_opens_home(dq: Any, workers: list[HandWorker]) -> None:
    home, other = workers[0], workers[1]
    there = Terms(finish_at=-2)
    host = next(host for host in HOSTS if shard_of(host, b"", SHARDS) == 1)
    other.exchange(put(1, partition=host), want=1, terms=there)
    other.exchange(fail(1), terms=there)
    version = home.exchange(terms=Terms(finish_at=-1)).census.version
    assert home.exchange(terms=Terms(finish_at=version)).status.value == "FINISHED"
    assert dq.found("retry", "--all", "--yes")["failed"] == 1
    assert dq.found("status", "--no-rate")["phase"] == "open"


def note(worker: HandWorker, kind: str, who: str, count: int, ago_s: float = 0.0, about: str = "") -> None:
    """Append an event to the journal of the worker's shard."""
    record = msgpack.packb([0, int((time.time() - ago_s) * 1000), kind, who, count, about])
    worker.live.redis.rpush(worker.live.key("journal"), record)


def test_a_fact_noted_by_several_shards_is_one_event(dq: Any, workers: list[HandWorker]) -> None:
    """Events are sorted by time. Events of several shards about one fact (a death) become one event."""
    for shard, worker in enumerate(workers):
        worker.live.redis.delete(worker.live.key("journal"))
        note(worker, "joined", f"host-7-00000000000{shard}", 1, 400)
        note(worker, "died", f"host-7-00000000000{shard}", shard, 300 - shard)
        note(worker, "outage", f"host-{shard}-000000000000", 1000 + shard, 200)
    note(workers[1], "died", "host-7-00000000000f", 5, 100)
    note(workers[0], "retry", "ann@desk", 2, 50)
    note(workers[2], "retry", "ann@desk", 3, 50)
    note(workers[2], "limit", "ann@desk", 1, 20, "delay")
    found = [(each["kind"], each["count"], each["shards"]) for each in dq.listed("events")]
    assert found == [
        ("joined", 1, [0]),
        ("died", 0 + 1 + 2, [0, 1, 2]),
        ("outage", 1002, [0, 1, 2]),
        ("died", 5, [1]),
        ("retry", 2 + 3, [0, 2]),
        ("limit", 1, [2]),
    ]
    words = [describe(event) for event in read_events(workers[0].live.redis, dq.crawl)]
    assert words[1] == "a worker died with 3 leases"
    assert words[3] == "a worker died with 5 leases (shard 1)"
    assert words[5] == "limits changed: delay"
    samples = {each["name"]: each["value"] for each in dq.listed("metrics")}
    assert (samples["dq_workers_died_total"], samples["dq_leases_reclaimed_total"]) == (1, 0 + 1 + 2 + 5)


def test_an_event_noted_later_by_other_shards_is_not_shown_again() -> None:
    """`events --follow` has already printed the event, when the first shard reported it."""
    first = Event(100.0, 0, "died", "host-7-00000000000a", 1, "", (1,))
    later = Event(99.0, 0, "died", "host-7-00000000000b", 3, "", (0, 1))
    assert is_known(later, {first})
    assert not is_known(replace(later, who="host-8-00000000000b"), {first})
    assert not is_known(replace(later, at=200.0), {first})
    assert not is_known(replace(first, count=2), {first})


def test_an_event_is_not_shown_again_when_a_shard_does_not_answer() -> None:
    """With a smaller count or fewer shards, it is the same event. With a larger count, it is shown again."""
    known = Event(100.0, 0, "died", "host-7-00000000000a", 5, "", (0, 1))
    assert is_known(replace(known, count=2, shards=(0,)), {known})
    assert is_known(replace(known, shards=(0, 2)), {known})
    assert not is_known(replace(known, count=9), {known})


def test_partitions_are_counted_in_all_shards_by_metrics(dq: Any, workers: list[HandWorker]) -> None:
    fill(workers)
    found = [each for each in dq.listed("metrics") if each["name"] == "dq_partitions"]
    assert sum(each["value"] for each in found) == len(HOSTS)


def test_functions_for_programs_cover_all_shards_of_a_crawl(
    workers: list[HandWorker], live: LiveFrontier
) -> None:
    """`peek`, `limit`, `kept`, `retry`, `forget` and `shared_stats` cover all shards."""
    fill(workers)
    client, crawl, who = live.redis, live.crawl, workers[2]
    found = peek(client, crawl)
    assert (found.census.waiting, found.shards, found.unreachable) == (len(HOSTS), SHARDS, ())
    host = next(host for host in HOSTS if shard_of(host, b"", SHARDS) == 2).decode()
    assert limit(client, crawl, host, delay_s=9) is not None
    assert live.redis.hkeys(who.live.key("limits")) == [host.encode()]
    there = Terms(finish_at=-2)
    (taken,) = numbers(who.exchange(want=1, terms=there))
    who.exchange(fail(taken), terms=there)
    assert [each.entry_id for each in kept(client, crawl, "failed")] == [entry_id(taken)]
    assert kept(client, crawl, "dead") == []
    moved = retry(client, crawl, peek(client, crawl), failed=lambda record: True)
    assert moved == Retried(1)
    assert peek(client, crawl).census.waiting == len(HOSTS)
    known = Put(entry_id(99), Admission.SEEN, b"fingerprint", 0, StartQueue.SHARED, b"")
    who.exchange(known, terms=there)
    assert forget(client, crawl, [(b"fingerprint", b"")]) == 1
    assert shared_stats(client, crawl) == {}


def test_doctor_names_the_shards_whose_keys_a_user_may_not_use(
    dq_at: Any, workers: list[HandWorker], live: LiveFrontier, server: RedisServer
) -> None:
    """The user only has the rights for a crawl with one shard."""
    prefix = keys.prefix(live.crawl)
    live.redis.execute_command("ACL", "SETUSER", "poor", "on", ">pw", f"~{prefix}*", "+@all", "allchannels")
    dq = dq_at(f"redis://poor:pw@127.0.0.1:{server.port}")
    dq.crawl = live.crawl
    scripts = [each for each in dq.found("doctor")["findings"] if each["what"] == "scripts"]
    assert [each["level"] for each in scripts] == ["bad"]
    assert scripts[0]["text"].startswith("shard 1: Redis refuses scripts")


def test_a_partition_with_kept_leases_is_known_by_its_host(dq: Any, workers: list[HandWorker]) -> None:
    """The hint names the host, not the internal partition whose leases are exempt from limits."""
    worker = workers[0]
    host = next(host for host in HOSTS if not shard_of(host, b"", SHARDS))
    worker.exchange(put(1, partition=host), want=1, terms=Terms(finish_at=-1))
    worker.exchange(Defer(entry_id(1)), terms=Terms(finish_at=-1))
    assert other_names(worker.live.redis, worker.live.crawl, host.decode()) is None
    other = next(
        name for name in (f"{n}.example" for n in range(99)) if not shard_of(name.encode(), b"", SHARDS)
    )
    assert other_names(worker.live.redis, worker.live.crawl, other) == [host.decode()]


def metas(live: LiveFrontier) -> int:
    return live.redis.exists(*(keys.meta(keys.Shard(live.crawl, shard)) for shard in range(SHARDS)))


def test_clear_deletes_all_shards(dq: Any, workers: list[HandWorker], live: LiveFrontier) -> None:
    """Dead workers do not prevent this, even if their heartbeats differ between home and another shard."""
    fill(workers)
    live.redis.hincrby(f"{keys.prefix(workers[1].live.frontier.name)}beats", "worker", 7)
    assert metas(live) == SHARDS
    found = dq.found("clear", "--all", "--yes", DQ_WORKER_TTL=1)
    assert found["deleted"]["waiting"] == len(HOSTS)
    assert not metas(live)
    with pytest.raises(NoSuchCrawl, match="there is no crawl"):
        dq.text("clear", "--all", "--yes", DQ_SHARDS=SHARDS)


def test_clear_deletes_the_other_shards_if_home_is_lost(
    dq: Any, workers: list[HandWorker], live: LiveFrontier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command asks first. After a loss of home, the user need not know the number of shards."""
    fill(workers)
    stored.roll_back(live.redis, live.crawl, {})
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    with pytest.raises(CommandError, match="--yes"):
        dq.text("clear", "--all")
    assert metas(live) == SHARDS - 1
    text = dq.text("clear", "--all", "--yes")
    assert "has lost its home shard; 2 shards are left" in text
    assert text.endswith(f"The remains of crawl {live.crawl!r} are deleted.\n")
    assert not metas(live)
