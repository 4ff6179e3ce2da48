"""The computations of lua/seen/seen_compact.lua in Python."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from hashlib import sha1
from math import log2
from typing import Any

FIRST = 1024
LOW = 10**9
"""A divisor. Its remainders have at most nine digits."""


def stored_as(token: bytes) -> tuple[int, int]:
    """Return the bucket of *token* before any bucket is split, and the integer that is stored for *token*."""
    digest = sha1(token).digest()
    bits, high, low = (int.from_bytes(digest[i:j], "big") for i, j in ((0, 2), (2, 6), (6, 10)))
    number = ((bits >> 10) % 8 + 1) * LOW**2 + high % LOW * LOW + low % LOW
    return bits % FIRST, -number if bits >> 15 else number


def bucket_of(first: int, number: int, buckets: int) -> int:
    """Return the bucket of *number* among *buckets* buckets, as linear hashing defines it."""
    level = int(log2(buckets // FIRST))
    digits = abs(number) % LOW
    n = first + FIRST * (digits % 2 ** (level + 1))
    return n if n < buckets else first + FIRST * (digits % 2**level)


def chance_of_a_false_seen(urls: int) -> float:
    """Return an upper bound of the probability that two of *urls* fingerprints have the same stored form.

    Two stored forms are the same if all their parts (see `stored_as`) are equal. This is a little more likely
    than with evenly spread parts, because numbers of 32 bits modulo 10^9 have some remainders more often than
    others.
    """
    often, rest = divmod(2**32, LOW)
    nine_digits = (rest * (often + 1) ** 2 + (LOW - rest) * often**2) / 2**64
    return urls * (urls - 1) / 2 / FIRST / 8 / 2 * nine_digits**2


def compacted(tokens: Collection[bytes]) -> set[tuple[int, int]]:
    return {stored_as(token) for token in tokens}


def read_buckets(directory: Mapping[bytes, bytes], found: Mapping[str, Any]) -> set[tuple[int, int]]:
    """Return the members of those buckets in *found* that belong to the directory's generation.

    A key of *found* is `generation:n`, and its value has the members of the generation's bucket n.

    Raises:
        AssertionError: a member is in the wrong bucket, or the count is wrong.
    """
    if not directory:
        return set()
    buckets, generation = int(directory[b"buckets"]), directory[b"generation"].decode()
    members = set()
    for name, bucket in found.items():
        of, _, n = name.partition(":")
        if of == generation:
            assert int(n) < buckets
            for member in bucket:
                assert str(int(member)).encode() == member
                assert bucket_of(int(n) % FIRST, int(member), buckets) == int(n)
                members.add((int(n) % FIRST, int(member)))
    assert len(members) == int(directory[b"count"])
    return members
