"""Bounds what a set or a dict may cost: many members of one hash take the square of their number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from scrapy_dq.codec.unfit import Unfit

MAX_ALIKE = 32
"""Members of one hash in one set or dict. By chance there are no three, but of numbers around -1 and -2."""
# Python hashes them with a secret of the process: nobody can choose them alike.
_SECRET = frozenset({str, bytes})


class Hashes:
    """Counts the hashes of what is about to become a member of one set, or a key of one dict."""

    def __init__(self) -> None:
        self._alike: Counter[int] = Counter()

    def add(self, members: Iterable[object]) -> None:
        """Take in more members; raise Unfit if too many are alike by now, TypeError if one has no hash."""
        hashes = [hash(member) for member in members if type(member) not in _SECRET]
        self._alike.update(hashes)
        if any(self._alike[value] > MAX_ALIKE for value in hashes):
            raise Unfit(f"more than {MAX_ALIKE} members or keys of one set or dict have the same hash")
