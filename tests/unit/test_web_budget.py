"""What looks at crawls may take of Redis, simulated: no time passes."""

from __future__ import annotations

from collections import Counter

import pytest

from scrapy_dq.web.budget import MOST_PAUSE_S, Budget

EVERY_S = 1.0


def looks_in(passes_s: float, costs: dict[str, float], each_once: bool = False) -> tuple[Counter[str], float]:
    """Look at crawls as the page does; return how often, and what that took in all."""
    budget, now, took_s = Budget(), 1000.0, 0.0
    looks, due = Counter[str](), dict.fromkeys(costs, 0.0)
    until = now + passes_s
    while due:
        ready = {crawl: max(at, now + budget.left_s(crawl, now)) for crawl, at in due.items()}
        crawl = min(ready, key=lambda each: (ready[each], due[each]))
        now = max(now, ready[crawl])
        if now >= until:
            break
        looks[crawl] += 1
        took_s += costs[crawl]
        now += costs[crawl]
        due[crawl] = now + EVERY_S
        if each_once:
            del due[crawl]
        now += budget.charge(crawl, costs[crawl], now)
    return looks, took_s


@pytest.mark.parametrize(
    "costs",
    [
        {"cheap": 0.001},
        {"costly": 1.1},
        {"cheap": 0.005, "costly": 1.1},
        {"cheap": 0.02, "other": 0.03, "costly": 1.1, "very": 5.0},
        {f"crawl {n}": 0.01 * n for n in range(1, 40)},
    ],
)
def test_in_the_long_run_all_looks_take_a_fiftieth(costs: dict[str, float]) -> None:
    """But for one look at each that owes a pause at the end."""
    passed_s = 5_000.0
    looks, took_s = looks_in(passed_s, costs)
    assert set(looks) == set(costs)
    assert took_s <= passed_s / 50 + sum(costs.values())


def test_a_costly_crawl_starves_no_other() -> None:
    """Each gets a half; what the cheap one does not need of that is the other's."""
    looks, _ = looks_in(5_000.0, {"cheap": 0.002, "costly": 1.1})
    assert looks["cheap"] >= 4_000
    assert looks["costly"] >= 5_000 / (1.1 * 50) * 0.8
    looks, _ = looks_in(10_000.0, {"a": 0.1, "b": 0.1, "costly": 10.0})
    assert min(looks["a"], looks["b"]) >= 10_000 / (0.1 * 50) / 3 * 0.9
    assert looks["costly"] >= 10_000 / (10 * 50) / 3 * 0.9


def test_a_crawl_waits_for_its_own_debt_alone() -> None:
    """As if there were no other, once those have paid theirs; all wait 2 s at most."""
    budget = Budget()
    assert budget.charge("costly", 1.0, 100.0) == MOST_PAUSE_S
    assert budget.left_s("new", 100.0) == 0.0
    assert budget.left_s("costly", 100.0) == pytest.approx(49.0)
    assert budget.charge("cheap", 0.01, 110.0) == pytest.approx(0.49)
    assert budget.left_s("cheap", 110.0) == pytest.approx(0.98)
    assert budget.left_s("costly", 110.0) == pytest.approx(39.49)
    assert budget.left_s("costly", 111.0) == pytest.approx(38.49)
    assert budget.left_s("cheap", 111.0) == 0.0
    assert budget.left_s("costly", 149.49) == pytest.approx(0.0, abs=0.01)
    budget.charge("costly", 1.0, 200.0)
    budget.charge("costly", 1.0, 200.0)
    assert budget.left_s("costly", 210.0) == pytest.approx(88.0)


def test_of_many_that_are_looked_at_once_each_delays_the_next() -> None:
    """They are as cheap as most: no debt of theirs is lost."""
    looks, took_s = looks_in(300.0, {f"crawl {n}": 0.03 for n in range(500)}, each_once=True)
    assert sum(looks.values()) <= 300 / (0.03 * 50) + 1
    assert took_s <= 300 / 50 + 0.03
