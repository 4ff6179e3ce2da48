"""A move is refused if another move runs, a worker joins, a call is late, or the move is not possible."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from scrapy_dq.frontier import forget, peek
from scrapy_dq.frontier.admin.control import Command, steer
from scrapy_dq.frontier.admin.drop import drop
from scrapy_dq.frontier.admin.retry import retry_records
from scrapy_dq.frontier.archive import move
from scrapy_dq.frontier.archive.parts import Shape
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.keys import Shard
from scrapy_dq.frontier.model import FrontierRefused, FrontierUnavailable, Order, Seen, Status
from scrapy_dq.frontier.scripts import Script
from support import stored
from support.sharded_crawl import HOSTS, Crawl, filled

quick = pytest.mark.usefixtures("_quick_disks")


# Concurrent calls


@quick
def test_one_of_two_simultaneous_moves_is_refused(
    crawl_of: Callable[..., Crawl], monkeypatch: pytest.MonkeyPatch, elsewhere: str
) -> None:
    """A user repeats a move that is still running. The later command completes it. The first one stops."""
    crawl, there = crawl_of(Seen.EXACT, True), crawl_of(Seen.EXACT, True, url=elsewhere)
    filled(crawl, 1)
    entries, call, begun = crawl.entries(), Script.call, []

    async def second(self: Script, client: Any, *args: Any) -> Any:
        if not begun and args[3:4] == ("delayed",):
            begun.append(1)
            await asyncio.to_thread(crawl.move, 3, elsewhere)
        return await call(self, client, *args)

    monkeypatch.setattr(Script, "call", second)
    with pytest.raises(FrontierRefused, match="or the same command runs elsewhere"):
        crawl.move(3, elsewhere)
    assert begun
    assert there.entries() == entries
    there.check(3)


@quick
def test_a_move_is_refused_if_a_worker_joins_during_it(
    crawl_of: Callable[..., Crawl], elsewhere: str
) -> None:
    """No entry is moved while a worker is present. A rejoin into a frozen or moved shard gets LOST."""
    crawl, there = crawl_of(Seen.EXACT, True), crawl_of(Seen.EXACT, True, url=elsewhere)
    filled(crawl, 2)
    crawl.join(2)
    workers = crawl.workers
    with pytest.raises(FrontierRefused, match=r"worker worker has just joined crawl .*: stop it"):
        crawl.move(3, elsewhere)
    assert there.entries() == {}
    workers[0].leave()
    with pytest.raises(FrontierRefused, match="worker worker has just joined"):
        crawl.move(3, elsewhere)
    assert workers[1].rejoin("again").status is Status.OK  # the move has not reached shard 1
    assert workers[0].rejoin("again").status is Status.LOST
    for worker in workers[1:]:
        worker.leave()
    crawl.move(3, elsewhere)
    assert workers[1].rejoin("once more").status is Status.LOST


@quick
@pytest.mark.parametrize("since", ["it is complete", "another crawl has begun"])
def test_a_late_copy_of_the_first_step_empties_no_shard(
    crawl_of: Callable[..., Crawl], monkeypatch: pytest.MonkeyPatch, since: str, elsewhere: str
) -> None:
    """The first step of a move deletes the data of its target shard. A late copy would delete entries."""
    crawl, there = crawl_of(Seen.EXACT, True), crawl_of(Seen.EXACT, True, url=elsewhere)
    filled(crawl, 1)
    call, late = Script.call, []

    async def noted(script: Script, client: Any, names: Any, *args: Any) -> Any:
        if args[2:3] == ("begin",):
            late.append((script, names, args))
        return await call(script, client, names, *args)

    monkeypatch.setattr(Script, "call", noted)
    crawl.move(2, elsewhere)
    if since == "another crawl has begun":
        for number in range(2):
            stored.roll_back(there.redis, Shard(there.name, number), {})
        filled(there, 2)
    entries = there.entries()
    assert len(late) == 2
    for script, names, args in late:

        async def again(frontiers: list[Frontier]) -> Any:
            return await call(script, frontiers[0].client, names, *args)  # noqa: B023

        assert there.with_frontiers(again)[0] == b"CHANGED"
    assert there.entries() == entries


# Refused


@quick
def test_commands_that_change_a_crawl_are_refused_during_a_move(
    crawl_of: Callable[..., Crawl], killed_at: Callable[[int, bool], None], elsewhere: str
) -> None:
    """Such a command would change data that the move has read. Each message names the move to repeat."""
    crawl = crawl_of(Seen.EXACT, True)
    crawl_of(Seen.EXACT, True, url=elsewhere)
    filled(crawl, 1)
    killed_at(12, True)
    with pytest.raises(FrontierUnavailable):
        crawl.move(3, elsewhere)
    killed_at(0, False)
    before = stored.dump(crawl.redis, crawl.name)
    home, overview = Shard(crawl.name, 0), peek(crawl.redis, crawl.name)
    for change in (
        lambda: retry_records(crawl.redis, home, overview, (), [b"x" * 12]),
        lambda: crawl.workers[0].live.call("limit", HOSTS[0]),
        lambda: forget(crawl.redis, crawl.name, [(b"x" * 20, b"-")]),
        lambda: drop(crawl.redis, crawl.name, HOSTS[0].decode()),
        lambda: steer(crawl.redis, crawl.name, Command.COMPLETE),
        lambda: crawl.join(1),
    ):
        with pytest.raises(FrontierRefused, match="being moved: `scrapy dq move <spider>` with the same opt"):
            change()
    with pytest.raises(FrontierRefused, match=rf"half moved: repeat the command with --to {elsewhere}"):
        crawl.move(3)
    assert stored.dump(crawl.redis, crawl.name) == before
    # The repeat completes the move to the shape that the first call named.
    assert crawl.move(1, elsewhere, Order.LIFO).now == Shape(Order.FIFO, Seen.EXACT, 3)


@quick
def test_a_move_that_is_not_possible_is_refused_and_changes_nothing(
    crawl_of: Callable[..., Crawl], elsewhere: str
) -> None:
    """The crawl is missing, or exists in the target, or a compact `seen` would have to become exact."""
    crawl, there = crawl_of(Seen.COMPACT, True), crawl_of(Seen.COMPACT, True, url=elsewhere)
    with pytest.raises(FrontierRefused, match="there is no crawl"):
        crawl.move(3)
    filled(crawl, 1)
    before = stored.dump(crawl.redis, crawl.name)
    for url in (elsewhere, ""):
        with pytest.raises(FrontierRefused, match="does not hold whole fingerprints"):
            crawl.move(3, url, seen=Seen.EXACT)
    filled(there, 2)
    for url in (elsewhere, crawl.url):
        with pytest.raises(FrontierRefused, match="already exists: delete it"):
            crawl.move(2, url)
    assert stored.dump(crawl.redis, crawl.name) == before


@quick
def test_entries_that_are_not_found_are_not_deleted(
    crawl_of: Callable[..., Crawl], monkeypatch: pytest.MonkeyPatch, elsewhere: str
) -> None:
    """The move has read fewer entries than the counts state. So it stops, and deletes nothing."""
    crawl, read = crawl_of(Seen.EXACT, True), move.dump
    there = crawl_of(Seen.EXACT, True, url=elsewhere)
    filled(crawl, 1)
    entries = crawl.entries()

    async def some(*args: Any) -> Any:
        async for part in read(*args):
            if part.kind != "delayed":
                yield part

    with monkeypatch.context() as patched:
        patched.setattr(move, "dump", some)
        with pytest.raises(FrontierRefused, match=r"counts 198 requests, and 178 were found: it was not mov"):
            crawl.move(1, elsewhere)
    assert crawl.entries() == entries
    with pytest.raises(FrontierRefused, match="half imported"):
        there.join(1)
