"""The history of a crawl: samples of its counts, and the journal of its events."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import msgpack
import pytest
import redis
import redis.asyncio

from scrapy_dq.frontier.admin.control import Command, limit, steer, wake
from scrapy_dq.frontier.admin.overview import peek
from scrapy_dq.frontier.admin.retry import retry
from scrapy_dq.frontier.admin.seen import forget
from scrapy_dq.frontier.answers import Figures
from scrapy_dq.frontier.model import Admission, Limits, Status
from scrapy_dq.frontier.worker.audit import audit
from scrapy_dq.inspection.history import (
    MAX_EVENTS,
    MAX_MINUTES,
    MAX_SAMPLES,
    Event,
    Pace,
    Sample,
    describe,
    paces,
    read_events,
    read_samples,
)
from support.live_frontier import HISTORY, IDENTITY, HandWorker, LiveFrontier, ack, bury, fail, put, puts
from support.redis_server import RedisServer

SPIDER = replace(IDENTITY, starts="{}")
"""A worker with a start(). A program without start() causes no events when it joins and leaves."""
BY = "ann@desk"


NOTHING = Figures()


def report(
    worker: HandWorker, counted: Figures = NOTHING, ended_s: float = 0.0, epoch: str = "",
    waited_s: float = 0.0, reason: str = "",
) -> tuple[dict[str, int], int]:  # fmt: skip
    """Send a heartbeat with a report of the worker's figures and outages."""
    live, epoch = worker.live, epoch or worker.epoch
    return live.call("report", worker.worker_id, epoch, True, counted, ended_s, waited_s, reason)


def report_as(live: LiveFrontier, url: str, epoch: str, ended_s: float) -> dict[str, int]:
    """Send a heartbeat with a report as another Redis user. Return the heartbeats."""

    async def make() -> dict[str, int]:
        async with redis.asyncio.Redis.from_url(url) as client:
            return (await live.frontier.using(client).report("spider", epoch, True, Figures(1), ended_s))[0]

    return live.run(make())  # type: ignore[no-any-return]


def grow_older(live: LiveFrontier, seconds: float, field: str = "sampled") -> None:
    """Make the time at the start of a `meta` field older. By default, it is the time of the last sample."""
    first, *rest = live.redis.hget(live.key("meta"), field).decode().split()
    live.redis.hset(live.key("meta"), field, " ".join([str(int(first) - round(seconds * 1000)), *rest]))


def samples(live: LiveFrontier, **options: Any) -> list[Sample]:
    return read_samples(live.redis, live.crawl, **options)


def events(live: LiveFrontier) -> list[Event]:
    return read_events(live.redis, live.crawl)


def happened(live: LiveFrontier) -> list[tuple[str, str, int, str]]:
    return [(event.kind, event.who, event.count, event.about) for event in events(live)]


@pytest.fixture
def spider(live: LiveFrontier) -> HandWorker:
    """Return a worker of a spider that has joined."""
    return HandWorker(live, "spider", SPIDER)


# Samples


def test_a_sample_holds_the_current_counts(live: LiveFrontier, spider: HandWorker) -> None:
    """The counts equal the census. The time and the memory come from Redis."""
    HandWorker(live, "other")
    spider.exchange(
        *(put(n, admission=Admission.SEEN, token=b"%d" % n) for n in range(8)), put(9, due_in=100)
    )
    spider.take(4)
    held = sorted(int(i) for i in spider.held)
    spider.exchange(ack(held[0]), fail(held[1]), bury(held[2]), seeding=1)
    before = live.redis.time()[0]
    report(spider, Figures(12, 0.25, 3, 1.5))
    (sample,) = samples(live)
    census = live.call("census")
    assert before <= sample.at <= live.redis.time()[0] + 1
    assert sample == Sample(
        sample.at, 0, 1, 1, 1, census.waiting, 1, census.in_flight, 2, 8, sample.memory_bytes,
        exchanges=12, exchange_s=0.25, errors=3, outage_s=1.5,
    )  # fmt: skip
    # The current memory may differ, because Redis may still be freeing keys that other tests unlinked.
    assert 100_000 < sample.memory_bytes <= live.redis.info("memory")["used_memory_peak"]


def test_all_workers_together_take_one_sample_in_ten_seconds(live: LiveFrontier, spider: HandWorker) -> None:
    """A sample includes the reports of all workers since the last sample."""
    other = HandWorker(live, "other", SPIDER)
    for _ in range(3):
        report(spider, Figures(1))
        report(other, Figures(2))
    assert [sample.exchanges for sample in samples(live)] == [1]
    grow_older(live, 10)
    report(other, Figures(0, 0.5))
    report(spider)
    assert [(sample.exchanges, sample.exchange_s) for sample in samples(live)] == [(1, 0), (9, 0.5)]


def test_samples_continue_after_the_clock_was_set_back(live: LiveFrontier, spider: HandWorker) -> None:
    """The last sample is then in the future, but the next report still takes a sample."""
    report(spider)
    grow_older(live, -3600)
    report(spider, Figures(1))
    report(spider, Figures(1))
    assert [sample.exchanges for sample in samples(live)] == [0, 1]


def test_every_sixth_sample_is_kept_for_days(live: LiveFrontier, spider: HandWorker) -> None:
    """The list `minutes` gets the first sample and then each sixth sample."""
    for _ in range(13):
        report(spider, Figures(1))
        grow_older(live, 10)
    assert [sample.exchanges for sample in samples(live)] == list(range(1, 14))
    assert [sample.exchanges for sample in samples(live, minutes=True)] == [1, 7, 13]


def test_the_last_worker_to_leave_takes_a_last_sample(live: LiveFrontier, spider: HandWorker) -> None:
    """Both lists get this sample, even just after another one. Workers that leave earlier take no sample."""
    other = HandWorker(live, "other", SPIDER)
    report(spider)
    spider.exchange(put(1), want=1)
    spider.exchange(ack(1))
    other.exchange()
    spider.leave()
    assert len(samples(live)) == 1
    other.leave()
    assert [(sample.done, sample.workers) for sample in samples(live)] == [(0, 2), (1, 0)]
    assert samples(live, minutes=True) == samples(live)


def test_a_program_that_leaves_at_once_takes_no_sample(live: LiveFrontier) -> None:
    """A program may run every second, and samples of it would fill the history."""
    HandWorker(live, "program").leave()
    assert samples(live) == []


def test_only_a_member_can_report(live: LiveFrontier, spider: HandWorker) -> None:
    """Redis ignores a report of another epoch, or of a non-member (which still gets the heartbeats)."""
    report(spider, epoch="another")
    spider.worker_id = "nobody"
    assert report(spider, Figures(5), 2.0)[0] == {"spider": 0}
    assert samples(live) == []
    assert "outage" not in {event.kind for event in events(live)}


def test_the_history_is_bounded(live: LiveFrontier, spider: HandWorker) -> None:
    """Each list is bounded in length. All lists of a huge crawl with long events need at most 256 KiB."""
    size = 2**20
    for name in ("done", "failed", "waiting", "delayed", "seen"):
        live.change_count(name, size + len(name))
    figures, meta = Figures(size, size / 1000, size, size / 1000), live.key("meta")
    for n in range(MAX_MINUTES + 20):
        live.redis.hset(meta, "sampled", f"0 0 {n} 0 0 0 0")  # so that `minutes` also gets each sample
        report(spider, figures)
    for n in range(MAX_EVENTS + 20):
        steer(live.redis, live.crawl, Command.PAUSE, f"{n:03}" + "x" * 500)
    kept = [live.redis.llen(live.key(name)) for name in ("samples", "minutes", "journal")]
    assert kept == [MAX_SAMPLES, MAX_MINUTES, MAX_EVENTS]
    assert sum(live.redis.memory_usage(live.key(name), samples=0) for name in HISTORY) <= 256 * 1024
    found = len(samples(live)), len(samples(live, minutes=True)), len(events(live))
    assert found == (MAX_SAMPLES, MAX_MINUTES, MAX_EVENTS)


def test_without_the_right_to_use_info_samples_lack_only_the_memory(
    redis_server: RedisServer, live: LiveFrontier, spider: HandWorker
) -> None:
    """A user may lack the right to INFO. All other commands of the scripts are required."""
    name = re.sub(r"\W", "_", live.crawl)
    live.redis.acl_setuser(name, enabled=True, nopass=True, keys=["*"], commands=["+@all", "-info"])
    try:
        url = redis_server.url.replace("redis://", f"redis://{name}:any@")
        report_as(live, url, spider.epoch, 0.0)
        assert [(sample.memory_bytes, sample.exchanges) for sample in samples(live)] == [(0, 1)]
    finally:
        live.redis.acl_deluser(name)


# Runs


def finish(worker: HandWorker) -> None:
    """Let the worker's run end, and the worker leave."""
    assert worker.exchange().status is Status.FINISHED
    worker.leave()


def test_the_next_run_counts_from_zero_and_keeps_the_history(live: LiveFrontier, spider: HandWorker) -> None:
    """Samples and events of both runs are kept."""
    report(spider, Figures(7, 0.5, 2, 3.0))
    finish(spider)
    following = HandWorker(live, "following", SPIDER)
    report(following, Figures(1))
    assert [(sample.run, sample.exchanges, sample.errors) for sample in samples(live)] == [
        (0, 7, 2), (0, 7, 2), (1, 1, 0),
    ]  # fmt: skip
    assert {event.run for event in events(live)} == {0, 1}


def test_a_deleted_crawl_leaves_no_history(live: LiveFrontier, spider: HandWorker) -> None:
    """A flush deletes the history. If a user deletes only `meta`, the next join does so."""
    report(spider)
    live.call("flush", ["spider"])
    assert live.dump() == {}
    HandWorker(live, "again", SPIDER)
    report(HandWorker(live, "other", SPIDER))
    live.redis.delete(live.key("meta"))
    HandWorker(live, "new", SPIDER)
    assert samples(live) == []
    assert [(event.kind, event.who) for event in events(live)] == [("began", "new"), ("joined", "new")]


# Events


def test_joins_leaves_deaths_and_returns_are_in_the_journal(live: LiveFrontier, spider: HandWorker) -> None:
    """Each join, leave, death and return is one event, even if its call is repeated."""
    other = HandWorker(live, "other", SPIDER)
    HandWorker(live, "spider", SPIDER)  # a repeat
    spider.exchange(*puts(b"", 9))
    spider.take(3)
    other.take(2)
    other.fence("spider")
    other.fence("spider")
    spider.rejoin("spider again")
    spider.rejoin("spider again")
    other.leave()
    assert happened(live) == [
        ("began", "spider", 1, ""),
        ("joined", "spider", 1, ""),
        ("joined", "other", 1, ""),
        ("died", "spider", 3, ""),
        ("returned", "spider again", 0, "spider"),
        ("left", "other", 2, ""),
    ]
    now = live.redis.time()[0]
    assert all(now - 60 < event.at < now + 60 for event in events(live))


def test_limits_of_a_worker_that_replace_others_are_an_event(live: LiveFrontier, spider: HandWorker) -> None:
    """The event has the old and the new values. Equal limits and a repeated call cause no event."""
    for name, limits in (
        ("same", SPIDER.limits),
        ("slow", Limits(delay_s=2.5, concurrency=3)),
        ("slow", Limits(delay_s=2.5, concurrency=3)),
        ("own", Limits(delay_s=2.5, concurrency=3, own={"a.example": (None, 1)})),
    ):
        HandWorker(live, name, replace(SPIDER, limits=limits))
    assert [event for event in happened(live) if event[0] == "limits"] == [
        ("limits", "slow", 1, "delay 0 -> 2.5, concurrency 0 -> 3"),
        ("limits", "own", 1, "of single partitions"),
    ]


def test_a_program_is_in_the_journal_only_if_it_dies(live: LiveFrontier, spider: HandWorker) -> None:
    """Otherwise the joins and leaves of a `scrapy dq push` every minute would fill the journal."""
    program = HandWorker(live, "program")
    program.exchange(put(1), want=1)
    program.leave()
    HandWorker(live, "dying")
    spider.reclaim("dying")
    assert happened(live)[2:] == [("died", "dying", 0, "")]


def test_the_end_of_a_run_is_an_event(live: LiveFrontier, spider: HandWorker) -> None:
    """A run may end repeatedly, for example after one put per hour. All ends are one event with a count."""
    spider.exchange()
    ended = events(live)[-1]
    for n in range(2):
        let_the_last_event_be_older(live)
        spider.exchange(put(n), want=1)
        spider.exchange(ack(n))
    assert (ended.kind, ended.count) == ("finished", 1)
    again = events(live)[-1]
    assert (again.kind, again.count) == ("finished", 3)
    assert again.at >= ended.at
    assert len(events(live)) == 3


def test_commands_and_their_authors_are_in_the_journal(live: LiveFrontier, spider: HandWorker) -> None:
    """The event has the effect of the command. A command without an effect causes no event."""
    spider.exchange(put(1, admission=Admission.SEEN, token=b"token"), put(2), want=2)
    for word in Command:
        steer(live.redis, live.crawl, word, BY)
    wake(live.redis, live.crawl)
    forget(live.redis, live.crawl, [(b"unknown", b"")], BY)
    limit(live.redis, live.crawl, "a.example", by=BY)
    limit(live.redis, live.crawl, "a.example", delay_s=0.5, concurrency=3, by=BY)
    limit(live.redis, live.crawl, "a.example", block_s=60, by=BY)
    forget(live.redis, live.crawl, [(b"token", b""), (b"unknown", b"")], BY)
    spider.exchange(fail(1), bury(2))
    overview = peek(live.redis, live.crawl)
    everything = lambda record: True  # noqa: E731
    retry(live.redis, live.crawl, overview, failed=everything, dead=everything, by=BY)
    retry(live.redis, live.crawl, overview, failed=everything, by=BY)
    found = [event for event in happened(live)[2:] if event[0] != "finished"]
    assert {who for _, who, _, _ in found} == {BY}
    assert [(kind, count, about) for kind, _, count, about in found] == [
        *((word.value, 1, "") for word in Command),
        ("limit", 1, "delay 0.5 s, concurrency 3, blocked 0 s: a.example"),
        ("limit", 1, "delay 0.5 s, concurrency 3, blocked 60 s: a.example"),
        ("forget", 1, ""),
        ("retry", 2, ""),
    ]


def test_an_event_that_repeats_the_last_one_replaces_it(live: LiveFrontier, spider: HandWorker) -> None:
    """A repeat within ten minutes by the same user adds to the count."""
    for by in (BY, BY, "bob@desk", BY):
        steer(live.redis, live.crawl, Command.PAUSE, by)
    let_the_last_event_be_older(live)
    steer(live.redis, live.crawl, Command.PAUSE, BY)
    assert happened(live)[2:] == [
        ("pause", BY, 2, ""), ("pause", "bob@desk", 1, ""), ("pause", BY, 1, ""), ("pause", BY, 1, ""),
    ]  # fmt: skip


def let_the_last_event_be_older(live: LiveFrontier) -> None:
    """Make the last event more than ten minutes older."""
    run, at, *rest = msgpack.unpackb(live.redis.lindex(live.key("journal"), -1), raw=True)
    record = msgpack.packb([run, at - 601_000, *rest], use_bin_type=False)
    live.redis.lset(live.key("journal"), -1, record)


def test_an_outage_is_noted_once_for_all_workers(live: LiveFrontier, spider: HandWorker) -> None:
    """The first worker that returns notes the outage. A later outage is another event."""
    other = HandWorker(live, "other", SPIDER)
    report(spider, Figures(0, 0, 4, 12.5), 12.5)
    report(other, Figures(0, 0, 4, 12.0), 12.0)
    assert happened(live)[3:] == [("outage", "spider", 12_500, "")]
    grow_older(live, 3600)
    found = live.redis.hget(live.key("meta"), "sampled").decode().split()
    live.redis.hset(live.key("meta"), "sampled", " ".join([*found[:6], str(int(found[6]) - 20_000)]))
    report(other, ended_s=2.0)
    assert happened(live)[4:] == [("outage", "other", 2_000, "")]
    assert samples(live)[-1].outage_s == 24.5


def test_the_beginning_of_an_outage_is_one_event_for_all_workers(
    live: LiveFrontier, spider: HandWorker
) -> None:
    """Each worker reports the start and the reason of its wait. Another reason is another event."""
    other = HandWorker(live, "other", SPIDER)
    for worker, why in ((spider, "full"), (spider, "full"), (other, "full"), (other, "denied")):
        report(worker, waited_s=5.0, reason=why)
    assert happened(live)[3:] == [("waits", "", 2, "full"), ("waits", "", 1, "denied")]
    now = live.redis.time()[0]
    waits = {
        each.worker_id: (each.waits_for, each.waits_since) for each in peek(live.redis, live.crawl).members
    }
    assert {name: why for name, (why, _) in waits.items()} == {"spider": "full", "other": "denied"}
    assert all(now - 60 < since < now for _, since in waits.values())
    report(spider)
    assert [each.waits_for for each in peek(live.redis, live.crawl).members if each.waits_for] == ["denied"]


def test_keys_that_vanish_are_an_event(live: LiveFrontier, spider: HandWorker) -> None:
    """The audit that finds the loss adds the event."""
    spider.exchange(*puts(b"", 5))
    live.redis.delete(live.key("backlog:0:"))
    live.run(audit(live.frontier, spider.epoch, spider.run))
    assert happened(live)[-1] == ("damaged", "", 5, "")


def test_a_pace_is_computed_from_two_consecutive_samples() -> None:
    """Between samples of two runs, the pace is unknown. It is never negative."""
    first = Sample(100.0, 0, 10, 1, 0, 0, 0, 0, 1, 0, 0, 10, 1.0, 0, 0.0)
    second = replace(first, at=110.0, done=50, failed=11, exchanges=30, exchange_s=1.5)
    rolled_back = replace(second, at=120.0, done=20)
    other = replace(second, at=130.0, run=1)
    assert list(paces([first, second, rolled_back, other])) == [
        Pace(), Pace(5.0, 1.0, 25.0), Pace(0.0, 0.0, None), Pace(),
    ]  # fmt: skip


# Records of other versions and programs


LATER = {
    "samples": b"\2" + bytes(20),
    "minutes": b"\2",
    "journal": msgpack.packb([0, 1, b"joined", b"", 1, b"", 0]),
}


def test_a_record_of_a_later_version_is_skipped(live: LiveFrontier, spider: HandWorker) -> None:
    """All other records are read, and later events are written as usual."""
    for name, record in LATER.items():
        live.redis.rpush(live.key(name), record)
    report(spider)
    steer(live.redis, live.crawl, Command.PAUSE, BY)
    for name, record in LATER.items():
        live.redis.rpush(live.key(name), record)
    assert len(samples(live)) == len(samples(live, minutes=True)) == 1
    assert [event.kind for event in events(live)] == ["began", "joined", "pause"]


def test_texts_are_shown_in_one_short_line(live: LiveFrontier, spider: HandWorker) -> None:
    """The name of a partition or user may contain any characters."""
    steer(live.redis, live.crawl, Command.PAUSE, "\x1b[31m\u202e\n\udcff" + "é" * 500)
    limit(live.redis, live.crawl, "x" * 500, delay_s=1.0)
    live.redis.rpush(
        live.key("journal"), msgpack.packb([0, 1, b"joined", b"\x1b]0;x\a" + b"\xff" * 300, 1, b"\n\x9b"])
    )
    for event in events(live):
        for text in (event.who, event.about, describe(event)):
            assert text.isprintable()
            assert len(text) < 200
    assert len(events(live)) == 5


@pytest.mark.parametrize("command", ["rpush", "ltrim", "lset", "lindex"])
def test_missing_rights_affect_only_the_history(
    redis_server: RedisServer, live: LiveFrontier, spider: HandWorker, command: str
) -> None:
    """A heartbeat counts even if its user may not write to the lists of the history."""
    name = re.sub(r"\W", "_", live.crawl)
    live.redis.acl_setuser(name, enabled=True, nopass=True, keys=["*"], commands=["+@all", f"-{command}"])
    try:
        url = redis_server.url.replace("redis://", f"redis://{name}:any@")
        for number in (1, 2):
            assert report_as(live, url, spider.epoch, 2.0 * number) == {"spider": number}
    finally:
        live.redis.acl_deluser(name)
