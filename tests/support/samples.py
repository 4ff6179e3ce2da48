"""Samples in the format of lua/lib/samples.lua."""

from __future__ import annotations

from support.live_frontier import LiveFrontier

BEGAN = 1_790_000_000
GIB_KIB = 2**20


def packed(*numbers: int) -> bytes:
    """Return a sample with these numbers, as Redis stores it."""
    found = bytearray(b"\1")
    for number in numbers:
        while number >= 128:
            found.append(128 + number % 128)
            number //= 128
        found.append(number)
    return bytes(found)


def add_samples(live: LiveFrontier, count: int, began: int = BEGAN) -> None:
    """Give a crawl a history of *count* samples, one every 10 s.

    The crawl is fast for 300 s, stands still for 100 s, and is then twice as fast.
    """
    done = 0
    for n in range(count):
        done += 500 if n < 30 else 0 if n < 40 else 1000
        record = packed(
            0, began + 10 * n, 0, done, n // 10, 1, max(0, 10_000 - 100 * n), 7, 16, 2, done, GIB_KIB + n,
            50 * n, 100 * n, 0, 0,
        )  # fmt: skip
        live.redis.rpush(live.key("samples"), record)
        if n % 6 == 0:
            live.redis.rpush(live.key("minutes"), record)
