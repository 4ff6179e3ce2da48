"""Checks after each answer of Redis: to an exchange, a drain, a leave or a fence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgpack

from scrapy_dq.frontier import keys
from simulation.checks import Violation
from simulation.store import CRAWL
from support.stored import Place, place_in, waiting_places

if TYPE_CHECKING:
    from simulation.schedule import Schedule

CLAIMED = b"\x01"
"""The partition of start payloads."""
LEAST: Place = (-(2**63), -(2**64))


def applied(
    schedule: Schedule, worker_id: str, last: int, number: int, answer: list[Any], shard: int
) -> None:
    """Check that an exchange follows the last one, its worker is not fenced, and keys match the counts."""
    if number != last + 1 and not schedule.losses:
        raise Violation(f"exchange {number} of {worker_id} is applied after exchange {last}")
    of_worker = f"{keys.prefix(keys.Shard(CRAWL, shard))}worker:{worker_id}"
    was_applied = worker_id in schedule.fenced and answer[1] == 1  # 0 means that the run is finished
    if was_applied and schedule.store.run("HGET", of_worker, "fenced") == b"1":
        raise Violation(f"an exchange of {worker_id} is applied, although the worker is fenced")
    if answer[10]:
        raise Violation(f"keys contradict the counts: {answer[10].decode()}")


def within_budget(schedule: Schedule, answer: list[Any]) -> None:
    """Check that the requests in flight, done or failed, except those never sent, are within DQ_MAX_PAGES."""
    most = {each.max_pages for each in schedule.crawlers}
    if None in most or not answer[4] or schedule.commands["queue"] or schedule.commands["feed"]:
        return
    _, in_flight, done, _, _, _, _, failed, *_ = answer[3]
    never_sent = answer[3][13]
    pages = in_flight + done + failed - never_sent
    if pages > max(most):
        raise Violation(f"{pages} requests are leased or done, and {most} are allowed")


def within_domain_budgets(schedule: Schedule, records: list[bytes], shard: int) -> None:
    """Check that no host has more requests in flight and done than its budget."""
    budget = schedule.setup.budget_at(schedule.world.now)
    if not budget or not records or schedule.commands["limit"]:
        return
    prefix = keys.prefix(keys.Shard(CRAWL, shard))
    run = schedule.store.run("HGET", prefix + "meta", "run")
    for partition in {record[9:].partition(b"\0")[0] for record in records} - {CLAIMED}:
        spent = schedule.store.run("HGET", prefix + "spent", partition) or b"0 0"
        busy = sum(
            int(schedule.store.run("HGET", prefix + "busy", mark + partition) or 0) for mark in (b"", b"\2")
        )
        of_run, count = spent.split()
        # A shard that was rolled back to the previous run still has that run's spent budget.
        if int(count) * (of_run == run) + busy > budget:
            raise Violation(
                f"{spent.decode()} and {busy} in flight of {partition!r}, at a budget of {budget}"
            )


def over_budget(schedule: Schedule, answer: list[Any], shard: int) -> None:
    """Check that only requests over their budgets are left if an answer reports this."""
    in_flight, over = answer[3][1], answer[3][12]
    if not over or schedule.commands["limit"]:
        return
    of, prefix = keys.Shard(CRAWL, shard), keys.prefix(keys.Shard(CRAWL, shard))
    limiting = schedule.store.run("HGET", keys.meta(of), "limiting") or b""
    budget = int((*limiting.split(), 0, 0, 0)[2])
    for partition in waiting_places(schedule.store.reader, of):
        spent = schedule.store.run("HGET", prefix + "spent", partition) or b"0 0"
        if not 0 < budget <= int(spent.split()[1]):
            raise Violation(f"{partition!r} is not over its budget: {spent.decode()} of {budget}")
    for member in schedule.store.run("SMEMBERS", prefix + "members"):
        if schedule.store.run("HGET", f"{prefix}worker:{member.decode()}", "seeding") in (b"1", b"3"):
            raise Violation(f"{member.decode()} may still add something")
    if in_flight or schedule.store.run("EXISTS", prefix + "delayed"):
        raise Violation(f"not only requests over budgets are left in shard {shard}")


def drained(schedule: Schedule, worker_id: str) -> None:
    """Check that a drained worker is fenced; otherwise it could get leases during the drain."""
    if worker_id not in schedule.fenced:
        raise Violation(f"{worker_id} is drained, and was not fenced")


def left(schedule: Schedule, shard: int, *, last: bool) -> None:
    """Check that a leaving worker does not remove other members."""
    if not last and not schedule.store.run("EXISTS", keys.prefix(keys.Shard(CRAWL, shard)) + "members"):
        raise Violation("a worker that leaves has removed the others")


def start_noted(schedule: Schedule, worker_id: str, level: str, broken: bytes) -> None:
    """Check that Redis records an interrupted start() of a worker that is fenced or leaves.

    Args:
        level: the worker's last seeding level in Redis.
        broken: the name that the script returned for the interrupted start(); empty if this start(), or one
            with the same arguments, is complete.
    """
    if broken or level not in ("1", "2", "4") or schedule.losses:
        return
    if not any(worker_id in each.ids for each in schedule.crawlers):
        return  # a program has no start()
    phase, starts = schedule.store.run("HMGET", keys.meta(CRAWL), "phase", "starts")
    complete = starts and "done" in msgpack.unpackb(starts).values()
    if phase == b"open" and not complete:
        raise Violation(f"{worker_id} has not completed its start(), and Redis does not record that")


def leased(schedule: Schedule, answer: list[Any], shard: int, *, with_order: bool) -> None:
    """Check that an exchange leases nothing while the crawl is on hold, and otherwise what comes first."""
    records, declined = answer[4], answer[11]
    if not records:
        return
    held = schedule.commands["pause"] + schedule.commands["drain"]
    # Only home knows the hold, and a worker learns it from its next exchange with home.
    if held and not shard and (hold := schedule.store.run("HGET", keys.meta(CRAWL), "hold")):
        raise Violation(f"requests are leased while the crawl is {hold.decode()}")
    if not with_order:
        return
    last: dict[bytes, Place] = {}
    for record in records:  # rank(8) flags(1) partition 0 turn(8) id(12) payload
        partition, _, rest = record[9:].partition(b"\0")
        # Skip suspects and entries that others have declined, because they may come before better entries.
        # Also skip a start payload that was just claimed, because it comes after all others.
        if record[8] < 128 and partition != CLAIMED and rest[8:20] not in declined:
            last[partition] = max(last.get(partition, LEAST), place_in(record[:8] + rest[:8]))
    for partition, places in waiting_places(schedule.store.reader, keys.Shard(CRAWL, shard)).items():
        if partition in last and min(places) < last[partition]:
            raise Violation(f"a worse request of {partition!r} is leased than one that waits")


def unserved(schedule: Schedule, buried: set[bytes], shard: int) -> None:
    """Check that no member could have served the entries that an exchange gave up as unserved."""
    name = keys.prefix(keys.Shard(CRAWL, shard)) + "members"
    members = {each.decode() for each in schedule.store.run("SMEMBERS", name)}
    for entry_id in buried:
        page = schedule.buried[entry_id]
        able = [each for each in schedule.crawlers if each.serves(page) and each.ids & members]
        if able and not schedule.losses:
            names = [each.process.name for each in able]
            raise Violation(f"page {page} became a dead letter, and {names} could have served it")
    schedule.unserved |= buried
