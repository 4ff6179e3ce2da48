"""When the page looks at which crawl: the times are the test's."""

from __future__ import annotations

import time
from collections import Counter

from scrapy_dq.settings import Config
from scrapy_dq.web.looks import MOST_PAUSE_S, PAUSE, Looks, Subject

BEGIN = 1000.0


def looks_in(passes_s: float, costs: dict[str, float]) -> Counter[str]:
    """Let the page look at crawls, each look of which takes so long; return how often it does."""
    looks = Looks(Config.read({"DQ_CRAWL": "x", "REDIS_URL": "redis://127.0.0.1:1/0"}, {}))
    now, found = BEGIN, Counter[str]()
    while now < BEGIN + passes_s:
        for crawl in costs:  # its browsers ask
            looks._asked_at[Subject("crawl", crawl)] = now
        subject, wait_s = looks._next(now)
        if subject is None:
            now += wait_s
            continue
        found[subject.crawl] += 1
        now += costs[subject.crawl]
        looks._looked_at[subject] = now
        now += looks._rest(subject.crawl, PAUSE * costs[subject.crawl], now)
    return found


def test_the_looks_at_a_crawl_take_a_fiftieth_of_the_time() -> None:
    """However long one takes; and at most one a second."""
    assert looks_in(1_000.0, {"cheap": 0.001})["cheap"] <= 1_000
    assert looks_in(1_000.0, {"costly": 1.0})["costly"] == 1_000 / 50
    assert sum(looks_in(1_000.0, {f"crawl {n}": 0.03 for n in range(50)}).values()) <= 1_000 / 50 / 0.03 + 1


def test_a_costly_crawl_keeps_no_other_waiting() -> None:
    """But for its look, and two seconds after it."""
    found = looks_in(1_000.0, {"cheap": 0.002, "costly": 1.1})
    assert found["cheap"] >= 1_000 / (1 + 0.002 * 50) - found["costly"] * (1.1 + MOST_PAUSE_S) - 1
    assert found["costly"] == -(-1_000 // (1.1 * 50))


def test_a_crawl_that_nobody_asks_for_is_not_looked_at() -> None:
    looks = Looks(Config.read({"DQ_CRAWL": "x", "REDIS_URL": "redis://127.0.0.1:1/0"}, {}))
    assert looks._next(time.monotonic())[0] is None
