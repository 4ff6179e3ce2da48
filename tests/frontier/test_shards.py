"""Other shards follow home's run and its end. They keep leases of done requests until puts are retired."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.admin.backlog import other_names
from scrapy_dq.frontier.admin.overview import _of_all
from scrapy_dq.frontier.answers import Joined, Member
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.model import (
    ELSEWHERE,
    UNFINISHED,
    FrontierRefused,
    Gone,
    RunOver,
    Seeding,
    Status,
    Terms,
)
from scrapy_dq.frontier.moves import Defer, Release
from scrapy_dq.sharding.membership import Home, follow_home
from support import stored
from support.live_frontier import IDENTITY, HandWorker, LiveFrontier, ack, entry_id, limited, numbers, put

SPREAD = replace(IDENTITY, shards=3)


def test_leases_of_one_process_in_another_shard_count_once() -> None:
    """A process has other worker ids in another shard. So its first worker gets all counts from there."""
    here, there = ([Member(name, {"pid": 1}, False, n, done=10 * n) for name in "ab"] for n in (1, 2))
    other = Member("c", {"pid": 2}, False, 5)
    found = _of_all([*here, other], there)
    assert [(each.in_flight, each.done) for each in found] == [(5, 50), (1, 10), (5, 0)]


THERE = Terms(finish_at=ELSEWHERE)


def ends(version: int = UNFINISHED) -> Terms:
    return Terms(finish_at=version)


class Other:
    """A shard other than home. `join` lets a worker join it as real workers do."""

    def __init__(self, live: LiveFrontier) -> None:
        self._live = live
        self.name = keys.Shard(live.crawl, 2)
        self.frontier = Frontier(live.frontier.client, live.crawl, live.order, shard=2)

    def join(self, home: Joined, *, complete: bool = False, worker_id: str = "a", **changed: Any) -> Joined:
        of = Home(home.epoch, home.run, complete, self._live.frontier.run_state)
        crawl = replace(SPREAD, **changed)
        return self._live.run(follow_home(self.frontier, worker_id, {"host": worker_id}, crawl, of))

    def meta(self, field: str) -> bytes | None:
        return self._live.redis.hget(keys.meta(self.name), field)


@pytest.fixture
def other(live: LiveFrontier) -> Iterator[Other]:
    yield Other(live)
    for number in range(3):
        stored.roll_back(live.redis, keys.Shard(live.crawl, number), {})


def test_a_shard_is_created_with_the_epoch_and_the_run_of_home(live: LiveFrontier, other: Other) -> None:
    home = HandWorker(live, "a", SPREAD).joined
    joined = other.join(replace(home, run=7))
    assert (joined.status, joined.epoch, joined.run) == (Status.OK, home.epoch, 7)


def test_a_shard_that_is_gone_after_all_shards_existed_is_lost(live: LiveFrontier, other: Other) -> None:
    """Until all shards exist, each join creates a missing shard: the worker that had to may have died."""
    home = HandWorker(live, "a", SPREAD).joined
    assert not home.shards_exist
    other.join(home)
    live.call("note_shards", home.epoch, home.run)
    again = live.call("join", "b", {}, uuid4().hex, SPREAD)
    assert again.shards_exist
    stored.roll_back(live.redis, other.name, {})
    with pytest.raises(FrontierRefused, match=r"shard 2 of crawl .* is gone"):
        other.join(again, complete=True)
    assert other.join(again).status is Status.OK


def test_a_worker_whose_crawl_was_lost_as_it_joined_clears_no_shard(live: LiveFrontier, other: Other) -> None:
    """While the worker joined, home was emptied, and a new crawl began."""
    lost = HandWorker(live, "a", SPREAD).joined
    stored.roll_back(live.redis, live.crawl, {})
    new = HandWorker(live, "b", SPREAD).joined
    other.join(new, worker_id="b")
    with pytest.raises(FrontierRefused, match="was lost while this worker joined it"):
        other.join(lost)
    assert other.meta("epoch") == new.epoch.encode()
    assert other.meta("epoch") != lost.epoch.encode()


def test_a_run_that_ends_while_a_worker_joins_it_is_not_begun_again(live: LiveFrontier, other: Other) -> None:
    """The end of the run has cleared the shard. So all puts would be new there, and pages would run again."""
    home = HandWorker(live, "a", SPREAD)
    other.join(home.joined)
    home.exchange(seeding=Seeding.DONE, terms=ends(home.exchange(seeding=Seeding.DONE).census.version))
    live.run(other.frontier.leave("a", home.joined.epoch, 0, None, version=2**52))
    assert other.meta("cleared") == b"1"
    with pytest.raises(RunOver, match=r"run 0 of crawl .* has ended while this worker joined it"):
        other.join(home.joined, worker_id="b")
    assert not live.redis.exists(keys.prefix(other.name) + "members")


def test_a_cleared_shard_is_used_again_if_home_was_opened_again(live: LiveFrontier, other: Other) -> None:
    """After the shard was cleared, a late put has opened home again."""
    home = HandWorker(live, "a", SPREAD)
    other.join(home.joined)
    live.run(other.frontier.leave("a", home.joined.epoch, 0, None, version=2**52))
    assert other.meta("cleared") == b"1"
    joined = other.join(home.joined, worker_id="b")
    assert (joined.status, joined.run, other.meta("cleared")) == (Status.OK, 0, b"0")


def test_a_shard_of_another_crawl_is_cleared(live: LiveFrontier, other: Other) -> None:
    """Home was deleted, and a new crawl began. The shard still has the old crawl's keys."""
    old = HandWorker(live, "a", SPREAD).joined
    other.join(replace(old, epoch="0ld"))
    live.redis.rpush(keys.prefix(other.name) + "failed", "record")
    assert other.join(old).epoch == old.epoch
    assert not live.redis.exists(keys.prefix(other.name) + "failed")


def test_a_shard_begins_the_run_of_home_and_does_not_go_back(live: LiveFrontier, other: Other) -> None:
    """The shard deletes its data of an older run, which was done before home began the next run."""
    home = HandWorker(live, "a", SPREAD).joined
    other.join(home)
    assert other.join(replace(home, run=1), worker_id="b").run == 1
    with pytest.raises(FrontierRefused, match=r"shard 2 of crawl .* is in run 1, and home in run 0"):
        other.join(home, worker_id="c")


@pytest.mark.parametrize(
    ("shards", "says"), [(1, "'3', this worker has '1'"), (4, "'3', this worker has '4'")]
)
def test_another_number_of_shards_is_refused(
    live: LiveFrontier, other: Other, shards: int, says: str
) -> None:
    HandWorker(live, "a", SPREAD)
    with pytest.raises(FrontierRefused, match=f"DQ_SHARDS {says}"):
        HandWorker(live, "b", replace(SPREAD, shards=shards))


def test_a_crawl_of_one_shard_stores_no_number_of_shards(live: LiveFrontier) -> None:
    HandWorker(live, "a")
    assert live.redis.hmget(live.key("meta"), "shards", "shards_exist") == [None, None]
    with pytest.raises(FrontierRefused, match="DQ_SHARDS '1', this worker has '3'"):
        HandWorker(live, "b", SPREAD)


def test_home_finishes_only_with_the_version_of_the_collect(live: LiveFrontier, other: Other) -> None:
    worker = HandWorker(live, "a", SPREAD)
    worker.exchange(put(1), want=1, seeding=1, terms=ends())
    version = worker.exchange(ack(1), terms=ends()).census.version
    assert worker.exchange(terms=ends(version - 1)).status is Status.OK
    assert worker.exchange(terms=ends(version)).status is Status.FINISHED


def test_a_raised_level_changes_the_version_and_opens_home(live: LiveFrontier, other: Other) -> None:
    """A worker with an earlier census version cannot finish the run, and a finished run opens again."""
    worker = HandWorker(live, "a", SPREAD)
    version = worker.exchange(terms=ends()).census.version
    raised = worker.exchange(seeding=1, terms=ends())
    assert raised.census.version == version + 1
    assert worker.exchange(seeding=1, terms=ends()).census.version == version + 1
    assert worker.exchange(terms=ends(version)).status is Status.OK
    assert worker.exchange(terms=ends(version + 1)).status is Status.FINISHED
    assert worker.exchange(terms=ends()).status is Status.FINISHED
    assert worker.exchange(seeding=1, terms=ends()).status is Status.OK


@pytest.mark.parametrize("since", [0, 1])
def test_a_shard_other_than_home_never_finishes_on_its_own(
    live: LiveFrontier, other: Other, since: int
) -> None:
    """After the end at home, the last worker to leave a shard clears it.

    The shard stays if puts came *since* the census version that the leave names.
    """
    worker = HandWorker(live, "a", SPREAD)
    worker.exchange(put(1), want=1, terms=THERE)
    assert worker.exchange(ack(1), terms=THERE).status is Status.OK
    version = worker.exchange(put(2), terms=THERE).census.version - since
    live.call("leave", "a", worker.epoch, worker.run, False, version)
    assert live.redis.hget(live.key("meta"), "phase") == (b"open" if since else b"finished")
    assert (live.key_names() == {"meta"}) is not bool(since)


def test_a_kept_lease_does_not_count_against_a_limit(live: LiveFrontier, other: Other) -> None:
    worker = HandWorker(live, "a", limited(concurrency=1))
    worker.exchange(put(1, partition=b"x"), put(2, partition=b"x"))
    (first,) = numbers(worker.exchange(want=2))
    assert numbers(worker.exchange(want=2)) == []
    kept = worker.exchange(Defer(entry_id(first)), want=2)
    worker.held.add(entry_id(first))
    assert numbers(kept) == [3 - first]
    assert worker.exchange(ack(first)).census.done == 1
    assert numbers(worker.exchange(put(3, partition=b"x"), want=2)) == []
    live.state()


def test_a_partition_with_a_kept_lease_is_in_use_under_its_own_name(live: LiveFrontier) -> None:
    worker = HandWorker(live, "a", limited(concurrency=1))
    worker.exchange(put(1, partition=b"x"), want=1)
    worker.exchange(Defer(entry_id(1)))
    assert other_names(live.redis, live.crawl, "y") == ["x"]
    assert other_names(live.redis, live.crawl, "x") is None


@pytest.mark.parametrize("ends_by", ["its worker's death", "a release"])
def test_a_kept_lease_does_not_count_as_a_suspect(live: LiveFrontier, other: Other, ends_by: str) -> None:
    """The suspect is done. So no attempt is charged, and its worker gets the next suspect."""
    first, worker = HandWorker(live, "a"), HandWorker(live, "b")
    first.exchange(put(1), put(2))
    first.take(2)
    worker.fence("a", gone=True)
    worker.drain("a")
    (suspect,) = worker.exchange(want=2).leases
    assert suspect.suspect
    kept = worker.exchange(Defer(suspect.entry_id), want=2)
    worker.held.add(suspect.entry_id)
    assert [lease.suspect for lease in kept.leases] == [True]
    third = HandWorker(live, "c")
    if ends_by == "a release":
        worker.exchange(Release(suspect.entry_id))
    else:
        third.fence("b", gone=True)
        third.drain("b")
    again = {lease.entry_id: lease for lease in third.exchange(want=2).leases}
    assert again[suspect.entry_id].attempts == 0
    assert not again[suspect.entry_id].suspect
    live.state()


def test_a_worker_with_a_suspect_in_another_shard_gets_no_suspect(live: LiveFrontier) -> None:
    first, worker = HandWorker(live, "a"), HandWorker(live, "b")
    first.exchange(put(1), want=1)
    worker.fence("a", gone=True)
    worker.drain("a")
    assert not worker.exchange(want=1, terms=Terms(no_suspects=True)).leases
    assert worker.exchange(want=1).leases


def test_losses_of_another_shard_are_noted_at_home(live: LiveFrontier) -> None:
    """A loss counts once, even if several workers report it several times."""
    worker = HandWorker(live, "a")

    def told(*notes: Gone) -> int:
        return worker.exchange(terms=Terms(notes=notes), seeding=1).census.gone

    found = [told(Gone(2, 1)), told(Gone(2, 1), Gone(17, 3)), told(Gone(17, 2)), told(Gone(2, 4))]
    assert found == [1, 4, 4, 7]
    assert HandWorker(live, "b").joined.census.gone == 7


def test_a_run_with_losses_in_another_shard_is_not_complete(live: LiveFrontier) -> None:
    """A worker with the run's name begins the next run, as it does after a loss at home."""
    named = replace(IDENTITY, run_name="today")
    worker = HandWorker(live, "a", named)
    worker.exchange(terms=Terms(notes=[Gone(2, 1)]), seeding=1)
    assert worker.exchange().status is Status.FINISHED
    worker.leave()
    again = HandWorker(live, "b", named)
    assert (again.joined.status, again.run, again.joined.census.gone) == (Status.OK, worker.run + 1, 0)
    assert live.redis.hget(live.key("meta"), "gone_elsewhere") is None
    again.exchange()
    again.leave()
    assert HandWorker(live, "c", named).joined.status is Status.FINISHED
