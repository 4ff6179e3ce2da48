"""Checks that the stored data of a crawl's partitions fits the places of its entries."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from support.stored_counts import apart

TURNING = ("rotation", "suspects")
"""ZSETs of the partitions that may be served, in the order of their turns."""
LOCATIONS = (*TURNING, "resting", "saturated")
"""The keys of partitions. Every partition with waiting entries is in exactly one of them."""


def check_partitions(
    plain: dict[str, Any],
    ordinary: set[bytes],
    nonempty: set[bytes],
    leased: dict[bytes, bytes],
    ahead_ms: int,
    strict: bool,
) -> None:
    """Assert that the stored data of partitions fits the places of the entries.

    Args:
        ordinary: partitions with waiting entries that are not suspects.
        nonempty: partitions with any waiting entries.
        leased: the partition of every entry in flight.
    """
    meta, unsent, busy = plain["meta"], plain["unsent"], Counter(leased.values())
    limited, _, concurrency, own = limits_in(plain)
    assert {p: int(n) for p, n in plain["busy"].items()} == (busy if limited else {})
    assert all(leased.get(i) == p for p, i in unsent.items())
    earliest, blocked = dict(plain["earliest"]), dict(plain["blocked"])
    assert all(earliest[p] >= until for p, until in blocked.items() if p in earliest)

    locations = [(p, name, score) for name in LOCATIONS for p, score in plain[name]]
    assert sorted(p for p, *_ in locations) == sorted(nonempty), "states do not match the nonempty partitions"
    turns = [turn for _, name, turn in locations if name in TURNING and turn]
    assert len(turns) == len(set(turns))
    counts = apart(meta)
    assert max(turns, default=0) <= counts["turn"]
    soon = counts["clock"] + ahead_ms
    for p, name, score in locations:
        _, most, budget = own.get(p, (None, None, None))
        most = concurrency if most is None else most
        budget = counts["budget"] if budget is None else budget
        spent = spent_in(plain).get(p, 0)
        used = spent + busy[p] + busy[b"\2" + p]  # the last term: leases of done requests that `defer` keeps
        saturated = limited and (p in unsent or 0 < most <= busy[p] or 0 < budget <= used)
        if name == "saturated":
            assert saturated, f"{p!r} is stuck"
        elif strict and (name, score) != ("rotation", 0):
            # With turn 0, the partition was saturated when limits changed, and the next exchange examines it.
            assert not saturated or (name == "resting" and counts["budget_period"] == 2)
        if name == "resting":  # with a spent budget, perhaps until the next day
            assert score == earliest.get(p) or 0 < budget <= spent
        elif name != "saturated" and score:
            assert earliest.get(p, 0) <= soon
            assert (name == "rotation") == (p in ordinary)


def spent_in(plain: dict[str, Any]) -> dict[bytes, int]:
    """Return the number of requests that each partition has spent of its budget in this run or day."""
    meta = plain["meta"]
    now = int(meta.get(b"spent_on" if apart(meta)["budget_period"] == 2 else b"run", 0))
    spent = {partition: list(map(int, text.split())) for partition, text in plain["spent"].items()}
    return {partition: n for partition, (of, n) in spent.items() if of == now}


def limits_in(
    plain: dict[str, Any],
) -> tuple[bool, int, int, dict[bytes, tuple[int | None, int | None, int | None]]]:
    """Return whether this run has had limits, its delay (ms) and concurrency, and partitions' own limits."""
    meta, own = plain["meta"], {}
    for partition, text in plain["limits"].items():
        match = re.fullmatch(rb"(\d*):(\d*)(?::(\d+))?", text)
        assert match
        delay, most, budget = (int(number) if number else None for number in match.groups())
        own[partition] = (delay, most, budget)
    counts = apart(meta)
    return b"limiting" in meta, counts["delay_ms"], counts["concurrency"], own
