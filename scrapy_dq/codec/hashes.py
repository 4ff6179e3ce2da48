"""Bounds what a set or a dict may cost: members of chosen hashes take the square of their number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from scrapy_dq.codec.unfit import Unfit

MAX_ALIKE = 32
"""Members of one hash in one set or dict. By chance there are no three, but of numbers around -1 and -2."""
MAX_CHOSEN = 1_000
"""Members of one set or dict that are neither text nor bytes. Different hashes, too, can be chosen such that
Python looks for each member in the places of all others."""
# Python hashes them with a secret of the process: nobody can choose what their hashes are.
_SECRET = frozenset({str, bytes})


class Hashes:
    """Counts the hashes of what is about to become a member of one set, or a key of one dict."""

    def __init__(self) -> None:
        self._alike: Counter[int] = Counter()
        self._chosen = 0

    def add(self, members: Iterable[object]) -> None:
        """Take in more members; raise Unfit if they may cost too much, TypeError if one has no hash."""
        chosen = [member for member in members if type(member) not in _SECRET]
        self._chosen += len(chosen)
        if self._chosen > MAX_CHOSEN:
            raise Unfit(
                f"more than {MAX_CHOSEN:,} members or keys of one set or dict are neither text nor bytes: "
                f"as text, or in a list, they can be stored"
            )
        hashes = [hash(member) for member in chosen]
        self._alike.update(hashes)
        if any(self._alike[value] > MAX_ALIKE for value in hashes):
            raise Unfit(f"more than {MAX_ALIKE} members or keys of one set or dict have the same hash")
