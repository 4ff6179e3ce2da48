"""The stored state of one crawl, read key by key without Lua."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import msgpack
import redis

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.model import Admission, Order
from support.compact import read_buckets
from support.reference import ReferenceFrontier
from support.reference_entries import KEEP_FAILED as KEEP_FAILED
from support.stored_counts import apart
from support.stored_partitions import TURNING, check_partitions, limits_in, spent_in

BIAS = 2**52
PLAIN_KEYS = {key.name: key.type for key in keys.KEYS if "<" not in key.name and key.name != "never"}
"""The types of keys with a fixed name. The key `never` must not exist, so it is missing here.

If it exists, reading the state fails.
"""
KEY_FAMILIES = {key.name.partition("<")[0]: key.type for key in keys.KEYS if "<" in key.name}
EMPTY = {"hash": {}, "set": set(), "zset": [], "list": []}
WORKER_FIELDS = {
    b"last_seq", b"seeding", b"fenced", b"identity", b"quarantined", b"dropped", b"leases",
    b"since", b"done", b"starts", b"joined", b"registered",
}  # fmt: skip
HISTORY = ("samples", "minutes", "journal")
"""Keys of the history, which no other state depends on. They are kept when a run is finished."""
AHEAD_MS = 2_000
"""The maximum time in ms from the lease of a request to its planned time of sending."""

Dump = dict[bytes, bytes]
State = dict[str, Any]
Place = tuple[int, int]
"""The place of an entry: its rank and its sequence."""


def crawl_keys(client: redis.Redis, crawl: str | keys.Shard) -> list[bytes]:
    """Return the keys of *crawl*, chosen from all keys of the database."""
    return _of_crawl(client.keys("*"), crawl)


def dump(client: redis.Redis, crawl: str | keys.Shard) -> Dump:
    """Return the values of all keys of *crawl* in DUMP's format, for a roll-back or to detect changes."""

    def queue(pipe: Any, names: list[bytes]) -> None:
        for name in names:
            pipe.dump(name)

    return dict(zip(*_at_one_moment(client, crawl, queue), strict=True))


def roll_back(client: redis.Redis, crawl: str | keys.Shard, snapshot: Dump) -> None:
    """Restore the keys of *crawl* from *snapshot*, as if Redis had been rolled back."""

    def queue(pipe: Any, names: list[bytes]) -> None:
        for name in names:
            pipe.delete(name)
        for name, value in snapshot.items():
            pipe.restore(name, 0, value)

    _at_one_moment(client, crawl, queue)


def stored_state(
    client: redis.Redis,
    crawl: str | keys.Shard,
    order: Order,
    ahead_ms: int = AHEAD_MS,
    strict: bool = True,
    forgotten: Callable[[bytes], bool] = lambda payload: False,
) -> State:
    """Read the whole stored state in the form of `reference_state`. Times are in ms by the frontier's clock.

    Args:
        ahead_ms: the maximum time from the lease of a request to its planned time of sending.
        strict: whether each partition must be in the right set. If not, partitions in the rotation or at rest
            may be saturated, because new limits move a partition only at its next turn.
        forgotten: a function that returns whether a user has made Redis forget this payload's page. Then a
            replay log may have stored the request again while a worker still holds it. So the request may be
            delayed and also be in another place.
    Raises:
        AssertionError: the keys contradict each other, or there is a key that must not exist.
    """
    plain, families = _read(client, crawl)
    meta, beats = plain["meta"], plain["beats"]
    counts = apart(meta)
    workers, in_flight = families["worker:"], families["in-flight:"]
    members = {member.decode() for member in plain["members"]}
    assert members == set(workers) == {member.decode() for member in beats}
    assert members >= set(in_flight)

    places: dict[bytes, tuple[int, int]] = {}
    entries: dict[bytes, tuple[str, int, bool, bytes]] = {}
    partitions: dict[bytes, bytes] = {}

    def found(entry_id: bytes, partition: bytes, place: tuple[int, int], *entry: Any) -> None:
        assert entry_id not in places, f"{entry_id!r} is in two places: {entry} and {entries[entry_id]}"
        places[entry_id], entries[entry_id], partitions[entry_id] = place, entry, partition

    bands: dict[bytes, list[int]] = {}
    for name, elements in families["backlog:"].items():
        rank, _, slot = name.partition(":")
        partition = slot.encode()
        bands.setdefault(partition, []).append(int(rank))
        newest_first = order is Order.LIFO or (order is Order.PRIORITY_LIFO and int(rank) % 4 == 0)
        turns = [int.from_bytes(element[:8], "big") for element in elements]
        assert turns == sorted(turns, reverse=newest_first)
        for turn, element in zip(turns, elements, strict=True):
            found(element[8:20], partition, (int(rank), turn), "backlog", 0, False, element[20:])
    assert plain["bands"] == {partition: _rank8(min(ranks)) for partition, ranks in bands.items()}
    others = {(p, rank) for p, ranks in bands.items() for rank in ranks if rank > min(ranks)}
    assert dict(plain["more_bands"]) == {p + b"\0" + _rank8(rank): 0 for p, rank in others}
    for name in ("returned", "quarantine"):
        for member, score in plain[name]:
            assert score == 0
            partition, _, rest = member.partition(b"\0")
            suspect = name == "quarantine"
            found(rest[16:28], partition, place_in(rest), "backlog", rest[28], suspect, rest[29:])
    waiting = dict(entries)
    for worker_id, leases in in_flight.items():
        for entry_id, record in leases.items():
            suspect, attempts = divmod(record[8], 128)
            partition, _, element = record[9:].partition(b"\0")
            place = place_in(record[:8] + element[:8])
            assert element[8:20] == entry_id
            found(entry_id, partition, place, worker_id, attempts, bool(suspect), element[20:])
    delayed = dict(_delayed(member, due) for member, due in plain["delayed"])
    leased = {i: partitions[i] for i in entries if i not in waiting}
    for member, _ in plain["declined"]:
        partition, _, rest = member.partition(b"\0")
        suspect, attempts = divmod(rest[28], 128)
        found(rest[16:28], partition, place_in(rest), "declined", attempts, bool(suspect), rest[29:])
    twice = set(delayed) & (set(entries) | set(plain["dead"]))
    assert not [entry_id for entry_id in twice if not forgotten(delayed[entry_id][2])]
    assert not set(entries) & set(plain["dead"])
    assert counts["waiting"] == len(waiting) + len(plain["declined"])
    assert counts["in_flight"] == len(leased)
    assert (counts["delayed"], counts["members"]) == (len(delayed), len(members))
    seen = plain["seen"]
    # A compact `seen` keeps its directory when all fingerprints are forgotten.
    assert (counts["seen"] > 0) == (
        int(seen[b"count"]) > 0 if isinstance(seen, dict) and seen else bool(seen)
    )

    ordinary = {partitions[i] for i, (_, _, suspect, _) in waiting.items() if not suspect}
    nonempty = {partitions[i] for i in waiting}
    check_partitions(plain, ordinary, nonempty, leased, ahead_ms, strict)
    return {
        "epoch": meta.get(b"epoch", b"").decode(),
        "run": int(meta.get(b"run", 0)),
        "phase": meta.get(b"phase", b"absent").decode(),
        "done": counts["done"],
        "run name": meta.get(b"run_name", b"").decode(),
        "spider args": meta.get(b"spider_args", b"").decode(),
        "places": sorted(places, key=lambda entry_id: (places[entry_id], entry_id)),
        "entries": entries,
        "partitions": partitions,
        "delayed": delayed,
        "members": {i: _member(workers[i], int(beats[i.encode()])) for i in members},
        "absent": {worker_id.decode(): int(seq) for worker_id, seq in plain["absent"].items()},
        "accused": {entry_id: by.decode() for entry_id, by in plain["accused"].items()},
        "cleared": meta.get(b"cleared") == b"1",
        "starts": starts_in(meta),
        "tokens": {
            Admission.SEEN: _seen(plain["seen"], plain["discarded"], families["seen:"]),
            Admission.SEED: plain["seeds"],
            Admission.ID: plain["admitted"],
        },
        "declined": [int(number) for _, number in plain["declined"]],
        "decliners": {entry_id: _declined(record) for entry_id, record in plain["decliners"].items()},
        "unserved": int(meta.get(b"unserved", 0)),
        "dead": {entry_id: _dead_letter(record) for entry_id, record in plain["dead"].items()},
        "failed": [_failed(record) for record in plain["failed"]],
        "count of failed": counts["failed"],
        "never sent": int(meta.get(b"never_sent", 0)),
        "turns": [
            (name, partition)
            for _, partition, name in sorted(
                (turn, partition, name) for name in TURNING for partition, turn in plain[name]
            )
        ],
        "resting": dict(plain["resting"]),
        "saturated": {partition for partition, _ in plain["saturated"]},
        "unsent": plain["unsent"],
        "earliest": dict(plain["earliest"]),
        "blocked": dict(plain["blocked"]),
        "limits": limits_in(plain),
        "spent": spent_in(plain),
        "offset": counts["offset"],
    }


def waiting_places(client: redis.Redis, crawl: str | keys.Shard) -> dict[bytes, list[Place]]:
    """Return the places of waiting entries, by partition, without suspects and declined entries."""
    places: dict[bytes, list[Place]] = defaultdict(list)
    prefix = keys.prefix(crawl).encode()
    for key in crawl_keys(client, crawl):
        if not key.startswith(prefix + b"backlog:"):
            continue
        rank, _, partition = key.removeprefix(prefix + b"backlog:").partition(b":")
        elements = client.lrange(key, 0, -1)
        places[partition] += [(int(rank), int.from_bytes(element[:8], "big")) for element in elements]
    for member in client.zrange(prefix + b"returned", 0, -1):
        partition, _, rest = member.partition(b"\0")
        places[partition].append(place_in(rest))
    return places


def reference_state(reference: ReferenceFrontier) -> State:
    """Return the whole state of *reference* in the form of `stored_state`."""
    declined = {i: entry for i, (_, entry) in reference.declined.items()}
    everywhere = {"backlog": reference.backlog, "declined": declined} | {
        i: w.leases for i, w in reference.members.items()
    }
    everything = {i: entry for found in everywhere.values() for i, entry in found.items()}
    turns = [(turn, p, name) for p, (name, turn) in reference.location.items() if name in TURNING]
    return {
        "epoch": reference.epoch or "",
        "run": reference.run,
        "phase": reference.phase,
        "done": reference.done,
        "run name": reference.crawl.run_name,
        "spider args": reference.crawl.spider_args,
        "places": sorted(everything, key=lambda i: (everything[i].place, i)),
        "entries": {
            i: (where, entry.attempts, entry.suspect, entry.payload)
            for where, found in everywhere.items()
            for i, entry in found.items()
        },
        "partitions": {i: entry.partition for i, entry in everything.items()},
        "delayed": {i: (due, put.partition, put.payload) for i, (due, put) in reference.delayed.items()},
        "members": {
            i: (
                *(w.identity, w.last_seq, w.seeding, w.fenced, w.beats, w.dropped, w.granted),
                *(w.suspects, w.starts, w.came_from, w.offered),
            )
            for i, w in reference.members.items()
        },
        "absent": reference.absent,
        "accused": reference.accused,
        "cleared": reference.cleared,
        "starts": reference.starts,
        "tokens": reference.tokens,
        "declined": [number for number, _ in reference.declined.values()],
        "decliners": {
            i: (by.worker_id, by.fingerprint, len(by.workers)) for i, by in reference.decliners.items()
        },
        "unserved": reference.unserved,
        "dead": reference.dead,
        "failed": reference.failed[::-1],
        "count of failed": reference.count_of_failed,
        "never sent": reference.never_sent,
        "turns": [(name, partition) for _, partition, name in sorted(turns)],
        "resting": {p: time for p, (name, time) in reference.location.items() if name == "resting"},
        "saturated": {p for p, (name, _) in reference.location.items() if name == "saturated"},
        "unsent": reference.unsent,
        "earliest": reference.earliest,
        "blocked": reference.blocked,
        "limits": (reference.limited, reference.delay, reference.concurrency, reference.own),
        "spent": reference.spent,
        "offset": reference.clock,
    }


def _of_crawl(names: list[bytes], crawl: str | keys.Shard) -> list[bytes]:
    prefix = keys.prefix(crawl).encode()
    return sorted(key for key in names if key.startswith(prefix))


def _at_one_moment(
    client: redis.Redis, crawl: str | keys.Shard, queue: Callable[[Any, list[bytes]], None]
) -> tuple[list[bytes], list[Any]]:
    """Let *queue* write commands for all keys of *crawl*. Return the keys and the replies.

    Between the listing of the keys and the transaction, a worker may add or remove keys. Therefore the
    transaction lists the keys again, and is repeated if they differ.
    """
    names = crawl_keys(client, crawl)
    while True:
        pipe = client.pipeline(transaction=True)
        pipe.keys("*")
        queue(pipe, names)
        listed, *replies = pipe.execute()
        if (found := _of_crawl(listed, crawl)) == names:
            return names, replies
        names = found


def _read(client: redis.Redis, crawl: str | keys.Shard) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the values of all keys in two dicts.

    The first dict has the values of keys with a fixed name, by name. The second dict has the values of all
    other keys, by family and then by the rest of the name.
    """
    prefix = keys.prefix(crawl)
    # The kind of `seen` does not change while that key exists, so it may be read before the other keys.
    kind = client.hget(prefix + "meta", "seen_kind")

    def queue(pipe: Any, found: list[bytes]) -> None:
        for key in found:
            name = key.decode().removeprefix(prefix)
            head, colon, _ = name.partition(":")
            expected = KEY_FAMILIES.get(head + colon) if colon else PLAIN_KEYS.get(name)
            assert expected, f"unknown key: {name}"
            if expected == "hash" or (name == "seen" and kind == b"compact"):
                pipe.hgetall(key)
            elif expected == "zset":
                pipe.zrange(key, 0, -1, withscores=True)
            elif name == "seen" and kind == b"expiring":
                pipe.zrange(key, 0, -1)
            elif expected == "set":
                pipe.smembers(key)
            else:
                pipe.lrange(key, 0, -1)

    plain = {name: EMPTY[expected] for name, expected in PLAIN_KEYS.items()}
    families: dict[str, dict[str, Any]] = {head: {} for head in KEY_FAMILIES}
    for key, value in zip(*_at_one_moment(client, crawl, queue), strict=True):
        name = key.decode().removeprefix(prefix)
        head, colon, which = name.partition(":")
        if colon:
            families[head + colon][which] = value
        else:
            plain[name] = set(value) if name == "seen" and kind != b"compact" else value
    return plain, families


def _seen(seen: Any, discarded: dict[bytes, bytes], buckets: dict[str, Any]) -> Any:
    """Return the members of *seen*. If it is compact, return the bucket and number of each fingerprint."""
    generations = {name.partition(":")[0] for name in buckets} - {each.decode() for each in discarded}
    if not isinstance(seen, dict):
        assert not generations, "there are buckets that no worker will delete"
        return seen
    generation = seen[b"generation"].decode()
    assert generations <= {generation}
    assert generation.encode() not in discarded
    return read_buckets(seen, buckets)


def _rank8(rank: int) -> bytes:
    return (rank + BIAS).to_bytes(8, "big")


def place_in(stored: bytes) -> Place:
    """Return the place in the first 16 bytes of *stored*."""
    return int.from_bytes(stored[:8], "big") - BIAS, int.from_bytes(stored[8:16], "big")


def _delayed(member: bytes, due: float) -> tuple[bytes, tuple[float, bytes, bytes]]:
    partition, _, payload = member[20:].partition(b"\0")
    return member[:12], (due, partition, payload)


def starts_in(meta: dict[bytes, bytes]) -> dict[str, bool]:
    """Return for each recorded start() whether it is complete."""
    stored = msgpack.unpackb(meta[b"starts"]) if b"starts" in meta else {}
    return {name: was == "done" for name, was in stored.items()}


def _member(worker: dict[bytes, bytes], beats: int) -> tuple[Any, ...]:
    assert set(worker) - {b"came_from", b"adopted", b"waits", b"offered"} == WORKER_FIELDS
    dropped, granted = worker[b"dropped"], worker[b"leases"]
    return (
        json.loads(worker[b"identity"]),
        int(worker[b"last_seq"]),
        int(worker[b"seeding"]),
        worker[b"fenced"] == b"1",
        beats,
        tuple(int(i) for i in dropped.split(b",")) if dropped else (),
        _granted(granted),
        [worker[b"quarantined"]] if worker[b"quarantined"] else [],
        worker[b"starts"].decode(),
        int(worker[b"came_from"]) if b"came_from" in worker else None,
        int(worker.get(b"offered", 0)),
    )


def _granted(remembered: bytes) -> tuple[tuple[bytes, int | None], ...]:
    timed = remembered[:1] == b"t"
    return tuple(
        (remembered[i : i + 12], (timed and int.from_bytes(remembered[i + 12 : i + 20], "big")) or None)
        for i in range(1, len(remembered), 20 if timed else 12)
    )


def _failed(record: bytes) -> tuple[bytes, str, str, str, bytes]:
    entry_id, label, reason, _, worker_id, _, _, payload, _ = msgpack.unpackb(record, raw=True)
    return entry_id, label.decode(), reason.decode(), worker_id.decode(), payload


def _declined(record: bytes) -> tuple[str, bytes, int]:
    _, worker_id, fingerprint, *workers = msgpack.unpackb(record, raw=True)
    return worker_id.decode(), fingerprint, len(workers)


def _dead_letter(record: bytes) -> tuple[str, int, bytes]:
    _, _, worker_id, attempts, _, payload, _ = msgpack.unpackb(record, raw=True)
    return worker_id.decode(), attempts, payload
