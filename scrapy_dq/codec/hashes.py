"""Bounds the cost of a set or a dict: members with chosen hashes take quadratic time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from scrapy_dq.codec.unfit import Unfit

MAX_ALIKE = 32
"""Members with the same hash in one set or dict. By chance there are never three, except around -1 and -2."""
MAX_CHOSEN = 1_000
"""Members of one set or dict that are neither text nor bytes. Different hashes, too, can be chosen such that
each member collides with all others."""
MAX_SHARING = 2_000
"""Members of all sets of one value that share their hash with another one of their set. To compare two sets
is to compare these, so that sets of sets multiply their cost: 4 levels of 17 members took 5 s."""
# Python hashes these with a secret of the process: nobody can choose their hashes.
_SECRET = frozenset({str, bytes})


class Hashes:
    """Counts the hashes of the future members of one set, or keys of one dict."""

    def __init__(self) -> None:
        self._alike: Counter[int] = Counter()
        self._chosen = 0

    def add(self, members: Iterable[object]) -> None:
        """Count more members; raise Unfit if they may cost too much, TypeError if one is unhashable."""
        chosen = [member for member in members if type(member) not in _SECRET]
        self._chosen += len(chosen)
        if self._chosen > MAX_CHOSEN:
            raise Unfit(
                f"more than {MAX_CHOSEN:,} members or keys of one set or dict are neither text nor bytes: "
                f"store them as text, or in a list"
            )
        hashes = [hash(member) for member in chosen]
        self._alike.update(hashes)
        if any(self._alike[value] > MAX_ALIKE for value in hashes):
            raise Unfit(f"more than {MAX_ALIKE} members or keys of one set or dict have the same hash")


def sharing(members: Iterable[object]) -> int:
    """Return how many members share their hash with another one; raise TypeError if one is unhashable."""
    hashes = Counter(hash(member) for member in members if type(member) not in _SECRET)
    return sum(alike for alike in hashes.values() if alike > 1)
