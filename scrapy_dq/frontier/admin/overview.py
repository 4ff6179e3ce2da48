"""Read-only views of a crawl, for progress displays and the command line."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from redis.exceptions import ResponseError

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.admin.shards import at_home, shards_of
from scrapy_dq.frontier.answers import Member
from scrapy_dq.frontier.errors import as_unavailable
from scrapy_dq.frontier.keys import Shard
from scrapy_dq.frontier.model import Census, FrontierRefused, Hold, Order
from scrapy_dq.frontier.scripts import Script
from scrapy_dq.frontier.wire import (
    number_of,
    parse_commands,
    parse_epoch,
    parse_members,
    refuse_other_schema,
    wrong_type_in,
)


@dataclass(frozen=True)
class Overview:
    """Phase, counts and workers of a crawl; each shard is read at one instant."""

    phase: str
    """absent, open or finished."""
    epoch: str
    run: int
    census: Census
    """The counts; `seeding` counts only the workers in `members`."""
    members: list[Member]
    hold: Hold = Hold.NONE
    stops: int = 0
    """How often the workers were asked to close."""
    shards: int = 1
    unreachable: tuple[int, ...] = ()
    """The shards that did not answer. The counts do not include their entries."""
    apart: tuple[int, ...] = ()
    """The shards without data of this run: they were lost or rolled back, or have not begun the run."""
    run_name: str = ""
    began_at: float = 0.0
    finished_at: float = 0.0
    """When the last finished run of this crawl ended, in seconds since 1970 by Redis's clock; 0: unknown, or
    no run has finished."""


def shared_stats(client: Any, crawl: str) -> dict[str, int | float]:
    """Return the sums of `scrapy_dq.SharedStats` over all workers of this run; blocking.

    Raises:
        redis.exceptions.RedisError: no reply, or the key has another type.
    """
    found: dict[str, int | float] = {}
    stored = at_home(client, crawl, lambda client, home: client.hgetall(keys.prefix(home) + "stats"))
    for field, value in stored.items():
        kind, _, stat = field.decode("utf-8", "replace").partition(":")
        if kind in ("sum", "max", "min"):
            found[stat] = int(value) if value.lstrip(b"-").isdigit() else float(value)
    return found


def described(client: Any, crawl: str) -> dict[str, str]:
    """Return the stored `spider`, `fingerprinter`, `seen_kind` and `run_name`; empty: not stored. Blocking.

    Raises:
        redis.exceptions.RedisError: no reply.
    """
    fields = ("spider", "fingerprinter", "seen_kind", "run_name")
    stored = at_home(client, crawl, lambda client, home: client.hmget(keys.meta(home), *fields))
    return {
        name: (value or b"").decode("utf-8", "replace") for name, value in zip(fields, stored, strict=True)
    }


async def order_of(client: Any, crawl: str) -> Order | None:
    """Return the stored order of *crawl*; None: there is no order, or an unknown one.

    Args:
        client: a `redis.asyncio` client that decodes nothing.
    Raises:
        FrontierUnavailable: no usable reply.
    """
    with as_unavailable():
        order = await client.hget(keys.meta(crawl), "order")
    return {each.value.encode(): each for each in Order}.get(order)


def _of_all(members: Sequence[Member], others: Sequence[Member]) -> list[Member]:
    """Return *members*, with each worker's counts in another shard (*others*) added.

    A worker has another id in each shard, so this function matches processes. If several workers run in one
    process, the first of them gets the counts of all these workers.
    """
    by_process: defaultdict[Any, list[Member]] = defaultdict(list)
    for other in others:
        by_process[_process_of(other)].append(other)
    found = []
    for member in members:
        same_process = by_process.pop(_process_of(member), ())
        in_flight = member.in_flight + sum(other.in_flight for other in same_process)
        done = member.done + sum(other.done for other in same_process)
        found.append(replace(member, in_flight=in_flight, done=done))
    return found


def _process_of(member: Member) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, str(value)) for name, value in member.identity.items()))


def peek(client: Any, crawl: str, *, most_members: int | None = None) -> Overview:
    """Read the state of *crawl*, each shard in one atomic, read-only step; blocking.

    Args:
        client: a `redis` client that decodes nothing, e.g. from `scrapy_dq.backend.connection.connect_url`.
        most_members: read the records of at most this many workers; the census counts all workers.
    Raises:
        redis.exceptions.RedisError: home does not reply. `Overview.unreachable` names other silent shards.
        FrontierRefused: a key of the crawl has another type, or another version has stored the crawl.
    """
    shards = shards_of(client, crawl)
    shards.ask_all()
    (_, whole), *others = shards.each(
        lambda client, shard: (shard.number, peek_shard(client, shard, most_members)), strict=False
    )
    apart = []
    for number, part in others:
        if (part.epoch, part.run) == (whole.epoch, whole.run):
            census = whole.census + part.census
            whole = replace(whole, census=census, members=_of_all(whole.members, part.members))
        elif whole.phase != "absent":
            apart.append(number)
    unreachable = tuple(sorted(shards.unreachable))
    return replace(whole, shards=len(shards), unreachable=unreachable, apart=tuple(apart))


def peek_shard(client: Any, shard: Shard, most_members: int | None = None) -> Overview:
    """Read the state of one shard, in one atomic, read-only step; blocking; see `peek`."""
    most = "" if most_members is None else most_members
    try:
        reply = Script("overview").call_blocking(client, keys.fixed(shard), most)
    except ResponseError as error:
        if "WRONGTYPE" in str(error):
            raise FrontierRefused(wrong_type_in(shard.crawl)) from error
        raise
    phase, epoch = reply[0].decode(), parse_epoch(reply[1])
    commands = parse_commands(reply[5])
    members = parse_members(reply[4])
    name, *times, schema = reply[6]
    refuse_other_schema(shard.crawl, schema)
    began_at, finished_at = (number_of(at) / 1000 for at in times)
    return Overview(
        phase, epoch, int(reply[2]), Census(*reply[3]), members, commands.hold, commands.stops,
        run_name=(name or b"").decode("utf-8", "replace"), began_at=began_at, finished_at=finished_at,
    )  # fmt: skip
