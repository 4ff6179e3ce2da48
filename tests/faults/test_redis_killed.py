"""Redis is killed with SIGKILL and restarted. The crawl continues, and Scrapy's loop never waits."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import pytest

from support import outages
from support.fault_crawl import FaultCrawl
from support.fault_spiders import GATHERED, start_together
from support.given import MakeCrawl
from support.timed_scheduler import TIMED, longest_call_ms
from support.waiting import Stopwatch

LONGEST_CALL_MS = 200
# The longest pause between two attempts of a worker, plus the time in which Redis starts and answers.
NOTICED_WITHIN_S = 4.0


def moves_of(crawl: FaultCrawl, pages: Iterable[str]) -> int:
    """Return the number of moves for *pages*: a put for each link, and one ack for each page."""
    tree = crawl.site.tree
    first = [int(page.rpartition("/")[2]) * tree.fan_out + 1 for page in pages]
    return sum(1 + max(0, min(tree.fan_out, tree.pages - link)) for link in first)


@pytest.mark.parametrize(
    "away_s",
    [(2,), pytest.param((2, 12) * 5, marks=pytest.mark.soak)],
    ids=lambda away_s: f"{len(away_s)} times",
)
def test_the_crawl_continues_on_its_own_after_redis_was_killed(
    away_s: Sequence[float], fault_crawl: MakeCrawl
) -> None:
    """No page is lost, and no call waits. Each outage has one warning, and one log line at its end."""
    crawl = fault_crawl(
        site={"pages": 300 + 150 * len(away_s)},
        settings={"SCHEDULER": TIMED, "CONCURRENT_REQUESTS": 8},
        spider=GATHERED,
    )
    workers = start_together(crawl)
    # The number of moves in each outage, for each worker.
    made: list[list[int]] = [[], []]
    stalled_s = 0.0
    for number, seconds in enumerate(away_s):
        # The first kill is early. Few pages are known then, and the workers must still find all other pages
        # from them.
        crawl.wait_for_part(0.05 + 0.35 * number / len(away_s))
        away = Stopwatch()
        crawl.redis.kill()
        before = [crawl.project.count(pids=[worker.pid]) for worker in workers]
        time.sleep(seconds)
        assert len(crawl.live) == 2
        for moves, worker, done in zip(made, workers, before, strict=True):
            moves.append(moves_of(crawl, crawl.project.count(pids=[worker.pid]) - done))
        crawl.redis.start()
        outages.wait_for_ends(workers, number + 1)
        assert not any(worker.close_reason for worker in workers)
        stalled_s = max(stalled_s, away.stalled_s)

    verdict = crawl.end()
    told = outages.assert_outages_logged(workers, len(away_s))
    rejoins = sum(worker.stats.get("dq/rejoins", 0) for worker in workers)
    longest_ms = longest_call_ms(crawl.project, 2)
    crawl.note(verdict, kills=len(away_s), longest_call_ms=longest_ms, rejoins=rejoins)
    # Redis has written all data that it had confirmed, unless an fsync was in progress at the kill.
    crawl.assert_whole(verdict, verdict.repeats if rejoins else 0)
    assert longest_ms < LONGEST_CALL_MS + stalled_s * 1000
    for one, moves in zip(told, [*made[0], *made[1]], strict=True):
        assert min(away_s) - 1 < one.lasted_s < max(away_s) + NOTICED_WITHIN_S + stalled_s
        assert one.kept >= moves
    assert all(worker.stats["dq/redis_errors"] >= len(away_s) for worker in workers)
