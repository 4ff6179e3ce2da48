"""Retries failed requests and dead letters: puts them back into the backlog."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack

from scrapy_dq.frontier import keys, records
from scrapy_dq.frontier.admin.overview import Overview
from scrapy_dq.frontier.admin.shards import command, shards_of
from scrapy_dq.frontier.errors import as_unavailable
from scrapy_dq.frontier.model import MAX_EXCHANGE_BYTES
from scrapy_dq.frontier.reader import Reader, ReadPace, drained
from scrapy_dq.frontier.records import DEAD, Entry
from scrapy_dq.frontier.wire import by_bytes

_Move = Callable[[Sequence[tuple[bytes, int]], Sequence[bytes]], int]
"""A function that moves failed records and dead letters, which it gets in the same form as `retry_records`,
and returns how many were moved."""
MAX_RECORDS = 100
"""Maximum number of records in one call, because a script blocks Redis while it runs."""


@dataclass
class Retried:
    """The result of a retry."""

    failed: int = 0
    dead: int = 0
    left: int = 0
    """Number of chosen records that were gone before the call could move them."""
    unreachable: tuple[int, ...] = ()
    """The shards that did not answer. Some of their records may be left."""


def retry(
    client: Any,
    crawl: str,
    overview: Overview,
    *,
    failed: Callable[[Entry], bool] | None = None,
    dead: Callable[[Entry], bool] | None = None,
    moved: Callable[[int], object] = lambda count: None,
    by: str = "",
) -> Retried:
    """Move failed requests and dead letters of the run back to their places in the backlog; blocking.

    The attempts of each request are reset to 0. A finished run is reopened, with its seen set and the tokens
    of its start requests. A request that fails again during the call is not moved a second time. The call may
    be repeated at any time.

    Args:
        client: a `redis` client that decodes nothing.
        overview: the overview of this crawl, from `peek`.
        failed, dead: return whether to retry a record; None: retry no record of this kind.
        moved: called from time to time with the number of further records that were examined.
        by: the caller's name for the journal of the crawl.
    Raises:
        redis.exceptions.RedisError, FrontierUnavailable: home does not reply; some requests may have moved.
        FrontierRefused: the crawl or run is not the one in *overview* any more, or a key has a foreign type.
    """
    shards, found = shards_of(client, crawl), Retried()
    home = next(iter(shards))

    def open_home() -> None:
        # While the run is finished at home, a worker may begin the next run, and this clears the other
        # shards, even open ones. So open home before each batch, and again after it: workers may have crawled
        # the earlier batches, and finished the run again.
        with as_unavailable():  # so that `each` does not take this for an error of the other shard
            retry_records(*home, overview, by=by, reopen=True)

    def retry_shard(client: Any, shard: keys.Shard) -> None:
        def move(failed: Sequence[tuple[bytes, int]], dead: Sequence[bytes]) -> int:
            if shard.number != keys.HOME:
                open_home()
            counts = retry_records(client, shard, overview, failed, dead, by)
            if shard.number != keys.HOME and any(counts):
                open_home()
            found.failed += counts[0]
            found.dead += counts[1]
            found.left += len(failed) + len(dead) - sum(counts)
            return sum(counts)

        if failed is not None:
            _retry_failed(client, shard, _once(failed), move, moved)
        if dead is not None:
            _retry_dead(client, shard, _once(dead), move, moved)

    for _ in shards.each(retry_shard, strict=False):
        pass
    found.unreachable = tuple(sorted(shards.unreachable))
    return found


def _once(wanted: Callable[[Entry], bool]) -> Callable[[Entry], bool]:
    """Make *wanted* choose each entry only once, even if the entry fails again during the retry.

    The result remembers ids instead of comparing times, because Redis's clock may be set back.
    """
    chosen: set[bytes] = set()

    def choose(record: Entry) -> bool:
        if record.entry_id in chosen or not wanted(record):
            return False
        chosen.add(record.entry_id)
        return True

    return choose


def count_kept(client: Any, crawl: str) -> tuple[int, int]:
    """Return the numbers of stored failed requests and dead letters; blocking.

    Raises:
        redis.exceptions.RedisError: no reply.
    """

    def count_in_shard(client: Any, shard: keys.Shard) -> tuple[int, int]:
        prefix = keys.prefix(shard)
        return client.llen(prefix + "failed"), client.hlen(prefix + "dead")

    failed, dead = zip(*shards_of(client, crawl).each(count_in_shard), strict=True)
    return sum(failed), sum(dead)


def _retry_failed(
    client: Any, shard: keys.Shard, wanted: Callable[[Entry], bool], move: _Move,
    moved: Callable[[int], object],
) -> None:  # fmt: skip
    name, at, pace = keys.prefix(shard) + "failed", 0, ReadPace()
    while True:
        # Read from the head to the tail. New failures are inserted at the head, so this skips no record.
        pipe = client.pipeline(transaction=False)  # the user may not be allowed to call MULTI
        pipe.llen(name)
        pipe.lrange(name, at, at + pace.count - 1)
        kept, found = pipe.execute()
        if not found:
            return
        pace.observe(found)
        chosen = [
            (record, index - kept)
            for index, record in enumerate(found, at)
            if record and wanted(records.failed(record))  # a retry that was stopped leaves empty records
        ]
        taken = sum(move(batch, ()) for batch in _batches(chosen, lambda each: len(each[0])))
        moved(len(found))
        at += len(found) - taken


def _retry_dead(
    client: Any, shard: keys.Shard, wanted: Callable[[Entry], bool], move: _Move,
    moved: Callable[[int], object],
) -> None:  # fmt: skip
    for part in drained(Reader(client, shard).entries(DEAD)):
        chosen = [(each.entry_id, len(each.payload) + len(each.reason)) for each in part if wanted(each)]
        for batch in _batches(chosen, lambda each: each[1]):
            move((), [entry_id for entry_id, _ in batch])
        moved(len(part))


def retry_records(
    client: Any,
    shard: keys.Shard,
    overview: Overview,
    failed: Sequence[tuple[bytes, int]] = (),
    dead: Sequence[bytes] = (),
    by: str = "",
    reopen: bool = False,
) -> tuple[int, int]:
    """Move these records, at most MAX_RECORDS, in one atomic step; return how many of each kind were moved.

    Args:
        failed: each record, and its position in the list, counted from the tail (-1: the last element).
        dead: ids of dead letters.
        by: see `retry`.
        reopen: open the run even if no record is moved.
    Raises:
        See `retry`.
    Source: transitions/retry.lua
    """
    flat = [part for each in failed for part in each]
    args = (msgpack.packb(part, use_bin_type=False) for part in (flat, list(dead)))
    epoch_and_run = overview.epoch, overview.run
    # The script never answers ABSENT: without a crawl, it answers LOST, which raises FrontierRefused.
    from_failed, from_dead = command(
        client, shard, "retry", *epoch_and_run, *args, by_bytes(by), int(reopen)
    ) or (0, 0)
    return from_failed, from_dead


def _batches(chosen: Sequence[Any], size: Callable[[Any], int]) -> Iterator[list[Any]]:
    batch: list[Any] = []
    room = MAX_EXCHANGE_BYTES
    for each in chosen:
        room -= size(each)
        if batch and (room < 0 or len(batch) == MAX_RECORDS):
            yield batch
            batch, room = [], MAX_EXCHANGE_BYTES - size(each)
        batch.append(each)
    if batch:
        yield batch
