"""Encodes calls for the Lua scripts, and decodes their answers."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from math import ceil, floor
from typing import Any

import msgpack

from scrapy_dq.frontier import keys, records
from scrapy_dq.frontier.answers import Joined, Member, Receipt, Rejoined
from scrapy_dq.frontier.messages import apart, joined
from scrapy_dq.frontier.model import (
    ENTRY_ID_BYTES,
    Block,
    Census,
    Commands,
    FrontierRefused,
    Hold,
    Identity,
    Lease,
    Limits,
    Note,
    Order,
    Seen,
    Sent,
    Status,
    Terms,
    clamped,
)
from scrapy_dq.frontier.moves import Again, Move, Put, fields_of
from scrapy_dq.frontier.rights import acl_of

MAX_BY_BYTES = 80
_EPOCH = re.compile(rb"[0-9A-Za-z-]{1,64}")


def pack_moves(moves: Sequence[Move], now: float = 0.0) -> bytes:
    """Return *moves* as transitions/exchange.lua reads them; a repeat sends the same bytes.

    Args:
        now: the present time by the clock of `Put.due_at`. All moves use the same time: if each used its own,
            the order in which they are due could change.
    """
    return msgpack.packb([_packed(move, now) for move in moves], use_bin_type=False)  # type: ignore[no-any-return]


def _packed(move: Move, now: float) -> tuple[Any, ...]:
    if not isinstance(move, Put):
        fields = fields_of(move)
        if not isinstance(move, Again):
            return fields
        kind, entry_id, next_id, payload, priority, start, due_at, never_sent = fields
        return kind, entry_id, next_id, payload, priority, start, max(0, ms(due_at - now)), never_sent
    put = (
        0, move.entry_id, int(move.admission), move.token, clamped(move.priority), int(move.start),
        joined(move.message, move.payload), move.partition,
    )  # fmt: skip
    if not (move.due_at or move.not_before_s or move.reason or move.known_as or move.most):
        return put
    wait_ms = ms(move.due_at - now) if move.due_at else 0
    rare = (max(0, wait_ms), ms(move.not_before_s), move.reason or False, move.known_as or False)
    return (*put, *rare, move.most) if move.most else (*put, *rare)


def pack_terms(terms: Terms, now: float = 0.0) -> bytes:
    """Return *terms* as lua/transitions/exchange.lua reads them; times become relative to *now*."""
    # Times are rounded in such a way that no delay gets shorter.
    notes = [_note(note, now) for note in terms.notes]
    claim = terms.claim and (terms.claim.kind, terms.claim.mark, terms.claim.id_stem)
    packed: tuple[Any, ...] = (ms(terms.ahead_s), terms.most, dict(terms.here), notes, claim or False)
    rare: tuple[Any, ...] = (
        terms.forget or False,
        False if terms.finish_at is None else terms.finish_at,
        terms.no_suspects,
        False if terms.max_pages is None else terms.max_pages,
        terms.busy_elsewhere,
    )
    while rare and rare[-1] is False:
        rare = rare[:-1]
    packed = (*packed, *rare)
    return msgpack.packb(packed, use_bin_type=False)  # type: ignore[no-any-return]


def _note(note: Note, now: float) -> tuple[Any, ...]:
    if isinstance(note, Sent):
        age_ms = False if note.at is None else floor((now - note.at) * 1000)
        return 1, note.partition, note.entry_id, age_ms
    if isinstance(note, Block):
        return 2, note.partition, max(0, whole_ms(note.until - now))
    return 3, note.shard, note.count


def pack_limits(limits: Limits) -> bytes:
    """Return *limits* as lua/lib/limits.lua reads them; equal limits give equal bytes."""
    own = []
    for partition in sorted({*limits.own, *limits.own_budgets}):
        delay_s, concurrency = limits.own.get(partition, (None, None))
        delay_ms = False if delay_s is None else whole_ms(delay_s)
        own += [partition, delay_ms, False if concurrency is None else concurrency]
    packed: tuple[Any, ...] = (whole_ms(limits.delay_s), limits.concurrency, own)
    if limits.budget or limits.own_budgets or limits.daily:
        budgets = dict(sorted(limits.own_budgets.items()))
        packed = (*packed, limits.budget, 2 if limits.daily else 1, budgets)
    return msgpack.packb(packed, use_bin_type=False)  # type: ignore[no-any-return]


def unpack_limits(packed: bytes) -> Limits:
    """Return the limits that `pack_limits` has packed."""
    delay_ms, concurrency, own, *more = msgpack.unpackb(packed, use_list=False)
    budget, period, own_budgets = more or (0, 1, {})
    return Limits(
        delay_ms / 1000,
        concurrency,
        {
            name: (None if delay is False else delay / 1000, None if most is False else most)
            for name, delay, most in zip(*[iter(own)] * 3, strict=True)
            if delay is not False or most is not False  # otherwise it has only a budget
        },
        budget,
        period == 2,
        own_budgets,
    )


def pack_identity(crawl: Identity, order: Order, seen: Seen) -> tuple[Any, ...]:
    """Return the arguments that describe a crawl. Source: lua/lib/described.lua"""
    return (
        keys.schema_of(crawl.shards), order.value if crawl.order_given else "",
        seen.value if crawl.seen_given else "", crawl.fingerprinter, crawl.spider, crawl.partition_by,
        crawl.spider_args, crawl.run_name, pack_keep_seen(crawl.keep_seen), ms(crawl.seen_ttl_s),
        pack_limits(crawl.limits) if crawl.limits else b"", crawl.starts, crawl.shards,
    )  # fmt: skip


def pack_keep_seen(keep_seen: bool | None) -> int | str:
    """Return the argument that tells whether a run keeps its fingerprints; None: use the stored value."""
    return "" if keep_seen is None else int(keep_seen)


def pack_tally(deltas: Sequence[tuple[str, str, int | float]]) -> bytes:
    """Return *deltas* (kind, stat, number) as lua/transitions/tally.lua reads them."""
    # Numbers are sent as text, because a Lua number has 53 bits, and a counter in Redis has 64.
    flat = [part for kind, stat, number in deltas for part in (kind, stat, repr(number))]
    return msgpack.packb(flat, use_bin_type=False)  # type: ignore[no-any-return]


def by_bytes(by: str) -> bytes:
    """Return the name of a command's sender as UTF-8, cut to the length that lua/lib/journal.lua keeps."""
    return by.encode("utf-8", "replace")[:MAX_BY_BYTES]


def ms(seconds: float) -> int:
    return round(seconds * 1000)


def whole_ms(seconds: float) -> int:
    """Return *seconds* in ms, rounded up, without float noise: 0.28 s are 280 ms."""
    return ceil(round(seconds * 1000, 6))


NO_TERMS = pack_terms(Terms())


def parse_joined(reply: list[Any]) -> Joined:
    """Parse the answer to join."""
    (
        status, epoch, run, resumed, counts, spider_args, limits_before, adopted, commands, ended_ms, crawled,
        forgotten, registered, shards_exist, run_name,
    ) = reply  # fmt: skip
    return Joined(
        Status(status.decode()),
        parse_epoch(epoch),
        int(run),
        bool(resumed),
        Census(*counts),
        spider_args.decode("utf-8", "replace"),
        unpack_limits(limits_before) if limits_before else None,
        bool(adopted),
        parse_commands(commands),
        None if ended_ms < 0 else ended_ms / 1000,
        bool(crawled),
        int(forgotten),
        int(registered),
        bool(shards_exist),
        run_name.decode("utf-8", "replace"),
    )


def parse_rejoined(reply: list[Any]) -> Rejoined:
    """Parse the answer to rejoin."""
    status = Status(reply[0].decode())
    if status is Status.LOST:
        return Rejoined(status)
    if status is Status.FINISHED:
        return Rejoined(status, last_seq=_exchange_number(reply[1]))
    _, stored_run, owned, last_seq, commands, registered = reply
    ids = (owned[i : i + ENTRY_ID_BYTES] for i in range(0, len(owned), ENTRY_ID_BYTES))
    return Rejoined(
        status, int(stored_run), frozenset(ids), _exchange_number(last_seq), parse_commands(commands),
        int(registered),
    )  # fmt: skip


def _exchange_number(stored: int) -> int | None:
    return None if stored == -1 else int(stored)


def parse_receipt(reply: list[Any], now: float) -> Receipt:
    """Read the answer of lua/transitions/exchange.lua, received at *now*, and convert times to this clock."""
    status = Status(reply[0].decode())
    if len(reply) == 1:
        return Receipt(status)
    _, applied, positions, counts, records, waits, next_due_ms, blocked, wrong, commands, damage, ids = reply
    declined = {ids[at : at + ENTRY_ID_BYTES] for at in range(0, len(ids), ENTRY_ID_BYTES)}
    dropped = positions.split(b",") if positions else []
    return Receipt(
        status,
        bool(applied),
        tuple(int(i) for i in dropped if i[:1] != b"~"),
        Census(*counts),
        tuple(
            # Redis rounds its clock down to whole ms, so the previous request may have been sent up to 1 ms
            # later than Redis assumes.
            _lease(record, None if wait_ms == b"" else now + (wait_ms + 1) / 1000, declined)
            for record, wait_ms in zip(records, waits or [b""] * len(records), strict=True)
        ),
        next_due_ms / 1000 if next_due_ms >= 0 else None,
        tuple(blocked),
        wrong_type(*(part.decode("utf-8", "replace") for part in wrong)) if wrong else "",
        tuple(int(i[1:]) for i in dropped if i[:1] == b"~"),
        parse_commands(commands),
        damage.decode(),
    )


def _lease(record: bytes, send_at: float | None, declined: Collection[bytes]) -> Lease:
    place, attempts, suspect, partition, entry_id, stored = records.split_lease(record)
    message, payload = apart(stored)
    return Lease(
        entry_id, attempts, payload, partition, send_at, place, suspect, message, entry_id in declined
    )


def parse_commands(packed: bytes) -> Commands:
    """Read the result of lua/lib/commands.lua."""
    if not packed:
        return Commands()
    *counts, hold = packed.decode().split(" ", 4)
    count, stops, forgets, limit_changes = map(int, counts)
    return Commands(count, stops, forgets, limit_changes, Hold(hold))


def parse_members(flat: list[Any]) -> list[Member]:
    """Read the members of lua/transitions/overview.lua's answer."""
    found = []
    for id_, identity, fenced, in_flight, beat, since, done, waits in zip(*[iter(flat)] * 8, strict=True):
        counts = (in_flight, beat, number_of(since) / 1000, number_of(done))
        waits_since, _, reason = waits.partition(b" ")
        wait = (number_of(waits_since) / 1000, reason.decode("utf-8", "replace"))
        found.append(Member(id_text(id_), json.loads(identity), fenced == b"1", *counts, *wait))
    return found


def parse_epoch(stored: bytes) -> str:
    """Return the epoch of a crawl; empty if the stored text must not become a part of a file name."""
    return stored.decode("ascii") if _EPOCH.fullmatch(stored) else ""


def id_text(stored: bytes) -> str:
    """Return the id of a worker; bytes that are not UTF-8 survive a round trip."""
    return stored.decode("utf-8", "surrogateescape")


def number_of(text: bytes | None) -> int:
    """Return a stored number, or 0 if the field is missing."""
    return int(text or 0)


def parse_beats(reply: list[Any]) -> tuple[dict[str, int], int]:
    """Read lua/transitions/beat.lua's answer: the heartbeats of all workers, and `Commands.count`."""
    if reply[0] != b"OK":
        return {}, 0
    flat = reply[1]
    return {id_text(flat[i]): number_of(flat[i + 1]) for i in range(0, len(flat), 2)}, int(reply[2])


def denied(message: str, start_keys: Sequence[str] = ()) -> str:
    """Return the message about access that Redis denies to this user; *message*: Redis's own message."""
    return (
        f"Redis denies access: {message}. The user in REDIS_URL needs what docs/deploying.md lists, for "
        f"example: ACL SETUSER name {acl_of('crawler', start_keys=start_keys)}"
    )


def refused_commands(reply: list[Any]) -> str:
    """Return the denied commands in an answer of probe.lua, with Redis's message; "": none is denied."""
    if reply[0] != b"DENIED":
        return ""
    _, message, *names = (part.decode("utf-8", "replace") for part in reply)
    return f"{', '.join(names)} ({message.strip().rstrip('.')})"


def refuse(reply: Any) -> None:
    """Raise FrontierRefused if *reply* reports denied commands or data that cannot be used."""
    if reply[0] == b"DENIED":
        raise FrontierRefused(denied(refused_commands(reply)))
    if reply[0] == b"MOVING":
        raise FrontierRefused(half_moved(reply[1]))
    if reply[0] == b"DIFFERS":
        _, field, stored, ours = (part[:1000].decode("utf-8", "replace") for part in reply)
        if field == "shards" and ">" in stored:
            raise FrontierRefused(half_moved(stored.encode()))
        way = "Run it as it was started, "
        settings = {
            "shards": f"DQ_SHARDS = {stored}", "order": f"DQ_ORDER = {stored!r}",
            "seen_kind": SETTING_OF_SEEN.get(stored),
        }  # fmt: skip
        if setting := settings.get(field):
            way = f"Set {setting}, "
            if stored != Seen.COMPACT.value:
                way += f"move it with `scrapy dq move <spider> --{field.removesuffix('_kind')} {ours}`, "
        raise FrontierRefused(
            f"the stored crawl has {_FIELDS[field]} {stored!r}, this worker has {ours!r}. {way}"
            f"choose another crawl name with DQ_CRAWL, or start from scratch with SCHEDULER_FLUSH_ON_START"
        )


def answer_of(reply: list[Any]) -> list[Any]:
    """Return the answer after OK.

    Raises:
        FrontierRefused: the run is over, or the frontier is a different one.
    """
    if reply[0] != b"OK":
        answer = reply[0].decode()
        raise FrontierRefused(f"the crawl has changed since this command read it ({answer}): start again")
    return reply[1:]


def refuse_other_schema(crawl: str, stored: bytes | None) -> None:
    """Raise FrontierRefused if a crawl is stored in a layout that this version does not read."""
    if stored and stored.decode() not in (keys.schema_of(1), keys.schema_of(2)):
        raise FrontierRefused(
            f"crawl {crawl!r} was stored by another version of scrapy_dq (schema {stored.decode()}, this one "
            f"has {keys.SCHEMA}): use that version, or `scrapy dq clear --all --force`"
        )


def half_moved(shards: bytes) -> str:
    """Return the message about a crawl with an incomplete import or move; *shards*: the field of `meta`."""
    if shards.startswith(b"0>"):
        return (
            "the crawl is half imported: `scrapy dq import` with the same file, or the same `scrapy dq move` "
            "completes the import, and `scrapy dq clear --all` deletes it"
        )
    return "the crawl is being moved: `scrapy dq move <spider>` with the same options completes the move"


def wrong_type(key: str, actual: str, expected: str) -> str:
    """Return a message about a start key of a wrong type, with the names of the settings to change."""
    return (
        f"the key {key!r} is a {actual}, not a {expected}: REDIS_START_URLS_AS_SET, _AS_ZSET and "
        f"_AS_STREAM set the type of start keys. Correct these, or the key"
    )


def wrong_type_in(crawl: str) -> str:
    """Return a message about a key of the crawl that has another type than the crawl gave it."""
    return (
        f"a key of crawl {crawl!r} has another type: another program uses its name. Choose another crawl "
        f"name with DQ_CRAWL, or delete the whole crawl with `scrapy dq clear --all --force`"
    )


SETTING_OF_SEEN: dict[str, str] = {
    Seen.EXACT: "DQ_SEEN = 'exact' without DQ_SEEN_TTL",
    Seen.EXPIRING: "DQ_SEEN_TTL",
    Seen.COMPACT: "DQ_SEEN = 'compact'",
}
"""The settings for each kind of seen."""
_FIELDS = {
    "schema": "schema version",
    "fingerprinter": "REQUEST_FINGERPRINTER_CLASS",
    "spider": "spider class",
    "order": "DQ_ORDER",
    "partition_by": "DQ_PARTITION_BY",
    "shards": "DQ_SHARDS",
    "seen_kind": "kind of seen (DQ_SEEN; expiring: with DQ_SEEN_TTL)",
}
