"""Hypothesis strategies for the model test: moves, limits, notes, and a worker's requests."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from scrapy_dq.frontier.model import Limits
from support.both_frontiers import PARTITIONS
from support.reference_partitions import UNIT_S

# No strategy depends on the state, and no rule has a precondition. Therefore Hypothesis can repeat an
# example, although each run of a server orders its hashes differently.
WHICH = st.integers(0, 2**16)
PUTS = ("seen", "seed", "id")
SETTLE = ("ack", "release", "bury", "fail", "later", "decline", "decline")
FOREIGN = ("foreign ack", "foreign release", "foreign bury", "foreign later", "foreign decline")
KINDS = (*PUTS, *PUTS, "id", *SETTLE, "again", *FOREIGN)
LOST = st.sampled_from((False, False, True))
SEEDING = st.sampled_from((0, 0, 0, 0, 0, 1, 2, 3))
SLOT = st.integers(0, len(PARTITIONS) - 1)
WHEN = st.sampled_from(("", "", "", "", "", "", "due 1", "due 2", "not before 0", "not before 1", "never"))
# Each tuple has a delay (in units), a concurrency, the limits of single partitions, a budget, and the budgets
# of single partitions.
LIMITS = tuple(
    Limits(delay * UNIT_S, concurrency, own, budget, own_budgets=budgets)
    for delay, concurrency, own, budget, budgets in (
        (0, 0, {}, 0, {}),
        (1, 0, {"a": (2 * UNIT_S, None), "b": (0.0, 1)}, 0, {}),
        (0, 2, {}, 0, {}),
        (2, 3, {"c": (None, 0)}, 0, {}),
        (0, 0, {}, 6, {"a": 3, "b": 0}),
    )
)


def moves_of(kinds: tuple[str, ...], min_size: int, max_size: int) -> st.SearchStrategy[list[Any]]:
    recipe = st.tuples(st.sampled_from(kinds), WHICH, st.integers(-1, 1), st.booleans(), SLOT, WHEN)
    return st.lists(recipe, min_size=min_size, max_size=max_size)


HERE = st.dictionaries(st.sampled_from(PARTITIONS), st.tuples(st.integers(0, 3), st.integers(0, 3)))
NOTE = st.tuples(
    st.sampled_from(("sent", "sent", "never sent", "foreign sent", "block")), WHICH, SLOT, st.integers(0, 2)
)
TERMS = st.just((0, 1000, {}, [], None)) | st.tuples(
    st.integers(0, 2),
    st.sampled_from((1, 2, 1000)),
    HERE,
    st.lists(NOTE, max_size=3),
    st.sampled_from((None, None, None, None, None, 0, 8, 20)),
)
