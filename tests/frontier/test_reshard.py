"""The number of shards of a crawl at rest is changed: nothing is lost, doubled or left behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from scrapy_dq.frontier import forget, keys, peek
from scrapy_dq.frontier.admin.convert import convert_some
from scrapy_dq.frontier.admin.retry import retry_records
from scrapy_dq.frontier.admin.shards import before_and_after
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.keys import Shard
from scrapy_dq.frontier.model import (
    ELSEWHERE,
    Admission,
    FrontierRefused,
    FrontierUnavailable,
    Order,
    Seen,
    Status,
    Terms,
)
from scrapy_dq.frontier.resharding import transfer
from scrapy_dq.frontier.resharding.reshard import reshard
from scrapy_dq.frontier.resharding.routes import Routes
from scrapy_dq.frontier.scripts import Script
from scrapy_dq.frontier.worker.routing import shard_of
from support import stored
from support.live_frontier import partitions, put
from support.sharded_crawl import HOSTS, MOST, Crawl, filled


@pytest.mark.usefixtures("_quick_disks")
@pytest.mark.parametrize("seen", list(Seen))
@pytest.mark.parametrize("partitioned", [True, False])
@pytest.mark.parametrize(("before", "after"), [(1, 3), (2, 4), (3, 2)])
def test_all_is_moved(
    crawl_of: Callable[..., Crawl], seen: Seen, partitioned: bool, before: int, after: int
) -> None:
    """And a worker with the new number finds each request seen, and all of them waiting."""
    crawl = crawl_of(seen, partitioned)
    known = filled(crawl, before)
    entries = crawl.entries()
    assert {label for label, _ in entries} == {"backlog", "returned", "delayed", "dead", "failed"}
    done = crawl.reshard(after)
    assert crawl.entries() == entries
    assert done.entries > 0
    crawl.check(after)
    crawl.join(after)
    admitted = 0
    for partition, token in known:
        worker = crawl.worker_of(partition, token)
        waits = worker.exchange(terms=Terms(finish_at=ELSEWHERE)).census
        new = put(next(crawl.numbers), partition=partition)
        admission = Admission.SEEN if len(token) == 20 else Admission.ID
        census = worker.exchange(
            replace(new, admission=admission, token=token), terms=Terms(finish_at=ELSEWHERE)
        ).census
        admitted += census.waiting - waits.waiting
    assert admitted == 0


def test_tokens_go_where_partitions_go() -> None:
    for before, after in ((1, 3), (2, 4), (3, 2), (4, 6), (6, 4)):
        routes = Routes(before, after, True, Seen.EXACT)
        for host in range(5000):
            partition = b"%d.example" % host
            shard = shard_of(partition, b"", before)
            assert routes.of_entry(partition, b"") in routes.of_tokens("seen", shard)


@pytest.mark.usefixtures("_quick_disks")
@pytest.mark.parametrize(
    ("before", "after", "late", "partitioned"), [(1, 3, True, False), (3, 2, False, True)]
)
def test_a_reshard_that_is_killed_again_and_again_loses_and_doubles_nothing(
    crawl_of: Callable[..., Crawl], killed_at: Callable[[int, bool], None], monkeypatch: pytest.MonkeyPatch,
    before: int, after: int, late: bool, partitioned: bool,
) -> None:  # fmt: skip
    """At each of its steps once; meanwhile no worker can join."""
    for module in ("source", "shard_reader"):
        monkeypatch.setattr(f"scrapy_dq.frontier.resharding.{module}.PART", 25)
    monkeypatch.setattr(transfer, "WINDOW_BYTES", 600)  # so that some has left when some has not arrived
    crawl = crawl_of(Seen.EXACT, partitioned)
    filled(crawl, before)
    entries, kills = crawl.entries(), 0
    while True:
        killed_at(kills + 1, late)
        try:
            crawl.reshard(after)
        except FrontierUnavailable:
            kills += 1
        else:
            break
        killed_at(0, False)
        changing = before_and_after(crawl.redis.hget(keys.meta(crawl.name), "shards"))
        if changing[0] != changing[1]:
            for shards in {before, after}:
                with pytest.raises(FrontierRefused, match=r"DQ_SHARDS|half moved"):
                    crawl.join(shards)
    killed_at(0, False)
    assert kills > 20
    assert crawl.entries() == entries
    crawl.check(after)


@pytest.mark.usefixtures("_quick_disks")
def test_a_shard_that_was_rolled_back_meanwhile_is_reported(
    crawl_of: Callable[..., Crawl], killed_at: Callable[[int, bool], None]
) -> None:
    """What it had received has left its old shard, and is gone: the crawl must not go on."""
    crawl = crawl_of(Seen.EXACT, True)
    filled(crawl, 1)
    there = Shard(crawl.name, 1)
    before: stored.Dump = {}
    for at in count(1):
        killed_at(at, True)
        with pytest.raises(FrontierUnavailable):
            crawl.reshard(3)
        if not before and crawl.redis.exists(keys.meta(there)):
            before = stored.dump(crawl.redis, there)
        sent = crawl.redis.hget(keys.meta(crawl.name), "reshard:to 1")
        if sent:
            break
    stored.roll_back(crawl.redis, there, before)
    killed_at(0, False)
    with pytest.raises(FrontierRefused, match="the Redis of shard 1 was rolled back, or emptied"):
        crawl.reshard(3)


def test_what_is_moved_is_on_disk_before_it_leaves(crawl_of: Callable[..., Crawl]) -> None:
    """With a Redis that has an AOF nothing is doubtful."""
    crawl = crawl_of(Seen.EXACT, True)
    filled(crawl, 2)
    assert crawl.reshard(3).doubts == []
    crawl.check(3)


@pytest.mark.usefixtures("_quick_disks")
@pytest.mark.parametrize("partitioned", [True, False])
def test_of_two_that_move_a_crawl_at_once_one_is_refused(
    crawl_of: Callable[..., Crawl], monkeypatch: pytest.MonkeyPatch, partitioned: bool
) -> None:
    """Somebody repeats a command that is still running: what one has read must not leave for the other."""
    monkeypatch.setattr(transfer, "WINDOW_BYTES", 600)
    crawl = crawl_of(Seen.EXACT, partitioned)
    filled(crawl, 1)
    entries, call = crawl.entries(), Script.call
    begun = []

    async def second(self: Script, *args: Any) -> Any:
        if not begun and b"reshard:to 1" in crawl.redis.hkeys(keys.meta(crawl.name)):
            begun.append(1)
            await reshard([Frontier(args[0], crawl.name, Order.FIFO, shard=number) for number in range(3)], 3)
        return await call(self, *args)

    monkeypatch.setattr(Script, "call", second)
    with pytest.raises(FrontierRefused, match="or the same command runs elsewhere"):
        crawl.reshard(3)
    assert begun
    assert crawl.entries() == entries
    crawl.check(3)


@pytest.mark.usefixtures("_quick_disks")
@pytest.mark.parametrize("left", ["begun", "empty"])
def test_what_was_lost_while_it_was_moved_is_reported(
    crawl_of: Callable[..., Crawl], monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    """Of sets, too, when nothing more is to arrive there; and if nothing of the new shard is left."""
    monkeypatch.setattr(transfer, "WINDOW_BYTES", 600)
    crawl = crawl_of(Seen.EXACT, True)
    filled(crawl, 1)
    there, stay = Shard(crawl.name, 1), {host for host in HOSTS if not shard_of(host, b"", 2)}
    begun: stored.Dump = {}
    call = Script.call

    async def killed_when_all_is_moved(self: Script, *args: Any) -> Any:
        reply = await call(self, *args)
        if not begun and crawl.redis.exists(keys.meta(there)):
            begun.update(stored.dump(crawl.redis, there))
        if set(crawl.redis.hkeys(keys.prefix(crawl.name) + "bands")) <= stay:
            raise ConnectionError
        return reply

    with monkeypatch.context() as patched:
        patched.setattr(Script, "call", killed_when_all_is_moved)
        with pytest.raises(FrontierUnavailable):
            crawl.reshard(2)
    stored.roll_back(crawl.redis, there, begun if left == "begun" else {})
    with pytest.raises(FrontierRefused, match="the Redis of shard 1 was rolled back, or emptied"):
        crawl.reshard(2)


@pytest.mark.usefixtures("_quick_disks")
@pytest.mark.parametrize("last", [True, False])
def test_what_was_lost_before_it_left_is_moved_by_the_repeat(
    crawl_of: Callable[..., Crawl], monkeypatch: pytest.MonkeyPatch, last: bool
) -> None:
    """The new shard is rolled back when delayed entries have arrived; others arrive after them, or none."""
    crawl = crawl_of(Seen.EXACT, True)
    filled(crawl, 1)
    entries, there = crawl.entries(), Shard(crawl.name, 1)
    held: stored.Dump = {}
    arrive = transfer.Transfer.arrive

    async def rolled_back(
        self: transfer.Transfer, to: int, of: int, label: str, *args: Any, **on: Any
    ) -> None:
        chosen = to == 1 and label == ("delayed" if not last else "failed")
        before = stored.dump(crawl.redis, there) if chosen else {}
        await arrive(self, to, of, label, *args, **on)
        if chosen and not held:
            held.update(before)
            stored.roll_back(crawl.redis, there, before)

    with monkeypatch.context() as patched:
        patched.setattr(transfer.Transfer, "arrive", rolled_back)
        with pytest.raises(FrontierRefused, match="is still there: repeat the command"):
            crawl.reshard(2)
    assert held
    crawl.reshard(2)
    assert crawl.entries() == entries
    crawl.check(2)


@pytest.mark.usefixtures("_quick_disks")
def test_a_reshard_that_home_has_forgotten_is_begun_anew(
    crawl_of: Callable[..., Crawl], killed_at: Callable[[int, bool], None]
) -> None:
    """Home was rolled back to before it: no old count hides what is new."""
    crawl = crawl_of(Seen.EXACT, True)
    filled(crawl, 1)
    before = stored.dump(crawl.redis, crawl.name)
    killed_at(60, True)
    with pytest.raises(FrontierUnavailable):
        crawl.reshard(3)
    killed_at(0, False)
    stored.roll_back(crawl.redis, crawl.name, before)
    entries = at_home(crawl)
    crawl.reshard(3)
    assert crawl.entries() == entries
    crawl.check(3)


def at_home(crawl: Crawl) -> Counter[tuple[str, bytes]]:
    """Return where each entry of home is."""
    others = [(Shard(crawl.name, n), stored.dump(crawl.redis, Shard(crawl.name, n))) for n in range(1, MOST)]
    for shard, _ in others:
        stored.roll_back(crawl.redis, shard, {})
    try:
        return crawl.entries()
    finally:
        for shard, dump in others:
            stored.roll_back(crawl.redis, shard, dump)


@pytest.mark.usefixtures("_quick_disks")
def test_limits_set_by_hand_hold_in_the_new_shard(crawl_of: Callable[..., Crawl]) -> None:
    """Though the settings have none; what is spent of a budget stays spent."""
    crawl = crawl_of(Seen.EXACT, True)
    filled(crawl, 1)
    host = next(host for host in HOSTS if shard_of(host, b"", 2))
    crawl.workers[0].live.call("limit", host, delay_s=5.0, concurrency=1, budget=2)
    old = crawl.workers[0].live
    old.redis.hset(old.key("spent"), host, b"%d 2" % crawl.workers[0].run)
    crawl.reshard(2)
    assert not old.redis.exists(old.key("spent"))
    crawl.join(2)
    new = crawl.workers[1]
    assert new.live.call("limit", host) == (5.0, 1, 0.0, 2, 2)
    assert host not in partitions(new.exchange(want=100))
    assert host in new.live.redis.zrange(new.live.key("saturated"), 0, -1)


@pytest.mark.usefixtures("_quick_disks")
@pytest.mark.parametrize("cleared", [True, False])
def test_a_shard_that_is_a_run_behind_begins_that_of_home(
    crawl_of: Callable[..., Crawl], cleared: bool
) -> None:
    """What it has of the run before is not moved, and what is moved there is not deleted by the next join."""
    crawl = crawl_of(Seen.EXACT, True)
    filled(crawl, 2)
    entries = at_home(crawl)
    if cleared:
        crawl.redis.hset(keys.meta(Shard(crawl.name, 1)), "cleared", 1)
    else:
        crawl.redis.hset(keys.meta(crawl.name), "run", 1)
    crawl.reshard(3)
    assert crawl.entries() == entries
    crawl.join(3)
    assert crawl.entries() == entries


@pytest.mark.usefixtures("_quick_disks")
def test_what_cannot_be_done_meanwhile_is_refused(
    crawl_of: Callable[..., Crawl], killed_at: Callable[[int, bool], None]
) -> None:
    """A retry would take records out of a list that is half moved."""
    crawl = crawl_of(Seen.EXACT, True)
    filled(crawl, 1)
    killed_at(30, True)
    with pytest.raises(FrontierUnavailable):
        crawl.reshard(3)
    killed_at(0, False)
    home = Shard(crawl.name, 0)
    overview = peek(crawl.redis, crawl.name)
    for change in (
        lambda: retry_records(crawl.redis, home, overview, (), [b"x" * 12]),
        lambda: crawl.workers[0].live.call("limit", HOSTS[0]),
        lambda: convert_some(crawl.redis, home, Seen.COMPACT, []),
        lambda: forget(crawl.redis, crawl.name, [(b"x" * 20, b"-")]),
    ):
        with pytest.raises(FrontierRefused, match="half moved from 1 to 3 shards"):
            change()


@pytest.mark.usefixtures("_quick_disks")
def test_a_conversion_that_begins_at_the_same_moment_is_completed_first(
    crawl_of: Callable[..., Crawl], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else neither of the two could be completed."""
    crawl = crawl_of(Seen.EXACT, True)
    filled(crawl, 1)
    home, call = Shard(crawl.name, 0), Script.call

    async def after_a_step_of_the_other(*args: Any) -> Any:
        monkeypatch.setattr(Script, "call", call)
        monkeypatch.setattr("scrapy_dq.frontier.admin.convert.STEP", 1)
        assert convert_some(crawl.redis, home, Seen.COMPACT, ["worker"])
        return await call(*args)

    monkeypatch.setattr(Script, "call", after_a_step_of_the_other)
    with pytest.raises(FrontierRefused, match="half converted"):
        crawl.reshard(2)
    while convert_some(crawl.redis, home, Seen.COMPACT, []):
        pass


@pytest.mark.usefixtures("_quick_disks")
def test_another_shard_that_is_half_converted_is_completed_first(crawl_of: Callable[..., Crawl]) -> None:
    """It is home where a conversion begins: that one says nothing of the others."""
    crawl = crawl_of(Seen.EXACT, True)
    filled(crawl, 2)
    crawl.redis.hset(keys.meta(Shard(crawl.name, 1)), "seen_kind", "exact>compact")
    with pytest.raises(FrontierRefused, match="half converted"):
        crawl.reshard(3)
    assert crawl.redis.hget(keys.meta(crawl.name), "shards") == b"2"


@pytest.mark.usefixtures("_quick_disks")
@pytest.mark.parametrize("since", ["it is complete", "another crawl has begun"])
def test_a_late_copy_of_the_first_step_empties_no_shard(
    crawl_of: Callable[..., Crawl], monkeypatch: pytest.MonkeyPatch, since: str
) -> None:
    """Of a new shard: there was nothing then."""
    crawl = crawl_of(Seen.EXACT, True)
    filled(crawl, 1)
    call, late = Script.call, []

    async def noted(script: Script, client: Any, names: Any, *args: Any) -> Any:
        if args[4:6] == (0, "begin"):
            late.append((script, names, args))
        return await call(script, client, names, *args)

    monkeypatch.setattr(Script, "call", noted)
    crawl.reshard(2)
    if since == "another crawl has begun":
        for number in range(2):
            stored.roll_back(crawl.redis, Shard(crawl.name, number), {})
        filled(crawl, 2)
    entries = crawl.entries()
    assert len(late) == 1

    async def once_more(frontiers: list[Frontier]) -> Any:
        script, names, args = late[0]
        return await call(script, frontiers[0].client, names, *args)

    assert crawl.with_frontiers(once_more)[0] == b"CHANGED"
    assert crawl.entries() == entries


@pytest.mark.usefixtures("_quick_disks")
def test_what_several_shards_have_seen_is_forgotten_once(crawl_of: Callable[..., Crawl]) -> None:
    """Each new shard has a copy of what the old one had seen."""
    crawl = crawl_of(Seen.EXACT, True)
    crawl.join(1)
    _, token = crawl.put(admission=Admission.SEEN)
    crawl.leave()
    crawl.reshard(3)
    assert forget(crawl.redis, crawl.name, [(token, b"-"), (b"another", b"-")]) == 1


@pytest.mark.usefixtures("_quick_disks")
def test_a_worker_that_was_away_is_told_that_its_crawl_was_moved(crawl_of: Callable[..., Crawl]) -> None:
    """It would take entries for those of other shards."""
    crawl = crawl_of(Seen.EXACT, True)
    filled(crawl, 2)
    crawl.reshard(3)
    for worker in crawl.workers:
        answer = worker.rejoin("again")
        assert (answer.status, answer.shards) == (Status.LOST, "3")
