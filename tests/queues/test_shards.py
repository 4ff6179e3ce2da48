"""A Queue over several shards: DQ_SHARDS."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scrapy_dq import Queue
from scrapy_dq.frontier.model import FrontierRefused
from support.waiting import wait_until

SETTINGS = {"DQ_SHARDS": 3, "DQ_ROLLBACK_HORIZON": 1}


def test_items_of_all_shards_are_handed_out_while_others_are_worked_at(make: Callable[..., Queue]) -> None:
    """A caller is not a slot: what this process works at leaves it free."""
    q = make(settings=SETTINGS, durable=False)
    for item in range(9):
        q.put(item)
    assert sorted(q.get(timeout=30) for _ in range(9)) == list(range(9))
    for _ in range(9):
        q.task_done()
    q.join()
    wait_until(q.empty, "items are left", 30)


def test_a_bound_is_refused(make: Callable[..., Queue]) -> None:
    """Each shard would count only its own items."""
    with pytest.raises(FrontierRefused, match=r"maxsize does not work with DQ_SHARDS = 3"):
        make(5, settings=SETTINGS).put(1)


def test_who_has_not_joined_counts_the_items_of_all_shards(make: Callable[..., Queue]) -> None:
    q = make(settings=SETTINGS, durable=False)
    for item in range(9):
        q.put(item)
    q.flush()
    assert make(settings=SETTINGS).qsize() == 9
