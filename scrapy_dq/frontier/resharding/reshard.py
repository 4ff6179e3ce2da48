"""Change the number of shards of a crawl at rest.

What a shard holds and another one will hold is copied there, then waits until it is on that Redis's disk, and
only then leaves the old one: killed at any moment, and run again, a reshard loses nothing. Lists are read
from their head on in one fixed order, and each pair of shards counts the elements that went from one to the
other, so that none is stored twice. All else is a set.

The fingerprint of a request does not name its partition. So where there are partitions, each shard gets a
copy of the tokens of every old one from which it gets partitions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from scrapy_dq.frontier.admin.shards import before_and_after
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.keys import HOME
from scrapy_dq.frontier.model import FrontierRefused, Seen
from scrapy_dq.frontier.resharding.routes import Routes
from scrapy_dq.frontier.resharding.shard_change import ShardChange, end_again, meta_of
from scrapy_dq.frontier.resharding.source import Source
from scrapy_dq.frontier.resharding.transfer import Transfer
from scrapy_dq.frontier.wire import half_moved
from scrapy_dq.frontier.worker.audit import audit

_OF_HOME = (
    b"epoch", b"run", b"order", b"seen_kind", b"fingerprinter", b"spider", b"partition_by", b"spider_args",
    b"run_name", b"schema", b"keep_seen", b"seen_since", b"seen_for", b"limits_set", b"began",
)  # fmt: skip
"""What a new shard takes from home's meta."""


@dataclass
class Resharded:
    """What a call has done."""

    before: int
    """The number of shards when the reshard was begun."""
    entries: int = 0
    """Waiting and delayed requests, failed ones and dead letters that have left their old shard."""
    tokens: int = 0
    """Fingerprints and other tokens that were copied, each counted once per copy."""
    doubts: list[str] = field(default_factory=list)
    """Why it is not certain that what was moved is on disk; a sentence without a full stop each."""


async def reshard(
    frontiers: Sequence[Frontier], to: int, progress: Callable[[int], object] = lambda count: None
) -> Resharded:
    """Move a crawl without members into *to* shards; the next call continues one that was interrupted.

    Until it is complete no worker can join.

    Args:
        frontiers: of all shards, those that were and those that will be; home first.
        progress: called with the number of further entries and tokens that were read.
    Raises:
        FrontierUnavailable: a shard does not answer: repeat the call.
        FrontierRefused: it is not possible; the message says why, and whether something was moved.
    """
    metas = [await meta_of(each) for each in frontiers]
    home, crawl = metas[HOME], frontiers[HOME].crawl
    if b"epoch" not in home:
        raise FrontierRefused(f"there is no crawl {crawl!r}")
    before, after = before_and_after(home.get(b"shards"))
    if not before:
        raise FrontierRefused(half_moved("0", str(after)))
    if after not in (before, to):
        raise FrontierRefused(
            f"crawl {crawl!r} is half moved from {before} to {after} shards: finish that first, with "
            f"--to {after}"
        )
    if before == to:
        await end_again(frontiers, metas)
        return Resharded(before)
    # Of any shard: neither this nor the conversion could be completed.
    if any(b">" in meta.get(b"seen_kind", b"") for meta in metas if meta.get(b"epoch") == home[b"epoch"]):
        raise FrontierRefused(f"the seen set of crawl {crawl!r} is half converted: finish that first")
    _refuse_if_one_is_lost(crawl, metas, before)
    change = ShardChange(frontiers, before, to, home, _OF_HOME)
    await change.begin(metas)
    copied = await _move(frontiers, before, to, home, change.transfer, progress)
    await change.end()
    return Resharded(before, change.transfer.moved, copied, change.transfer.doubts)


async def _move(
    frontiers: Sequence[Frontier], before: int, to: int, home: dict[bytes, bytes], transfer: Transfer,
    progress: Callable[[int], object],
) -> int:  # fmt: skip
    """Move all that belongs elsewhere; return how many tokens were copied."""
    copied = 0
    kind = Seen((home.get(b"seen_kind") or b"exact").decode())
    routes = Routes(before, to, home.get(b"partition_by") != b"none", kind)
    for number in range(before):
        if number not in transfer.clocks:
            continue  # it is no more
        if number >= to:
            # A list that is in no index would be deleted with this shard.
            await audit(frontiers[number], home[b"epoch"].decode(), int(home[b"run"]))
        source = Source(number, transfer, routes, progress)
        await source.move(await meta_of(frontiers[number]))
        copied += source.copied
    await transfer.complete()
    return copied


def _refuse_if_one_is_lost(crawl: str, metas: Sequence[dict[bytes, bytes]], before: int) -> None:
    home = metas[HOME]
    if b"shards_exist" not in home:
        return  # its first worker was killed while it joined
    for number in range(1, before):
        was_ended = b"reshard:sums %d" % number in home
        if metas[number].get(b"epoch") != home[b"epoch"] and not was_ended:
            raise FrontierRefused(
                f"shard {number} of crawl {crawl!r} is gone, and with it what waited there: nothing was "
                f"moved. `scrapy dq clear` deletes what is left"
            )
