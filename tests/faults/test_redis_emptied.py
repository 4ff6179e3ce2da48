"""A user deletes all keys of Redis, or its scripts, during a crawl."""

from __future__ import annotations

import pytest

from support import outages
from support.fault_spiders import GATHERED, GO, start_together
from support.given import MakeCrawl
from support.stored import crawl_keys
from support.waiting import repeated, wait_until

EVERY_S = 0.02


@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.soak)])
def test_after_flushall_no_worker_closes_with_finished(times: int, fault_crawl: MakeCrawl) -> None:
    """Both workers close with frontier_lost, and log one CRITICAL line. The next crawl is complete."""
    crawl = fault_crawl(site={"pages": 250, "latency_s": 0.04}, spider=GATHERED)
    for number in range(times):
        workers = start_together(crawl)
        pids = [worker.pid for worker in workers]
        pages = crawl.pages * (0.05 + 0.35 * number / times)
        wait_until(lambda p=pids, n=pages: crawl.project.count(pids=p).total() >= n, "pages are done", 30)
        with crawl.redis.client() as client:
            client.flushall()

            assert set(crawl.end(20).reasons) == {"frontier_lost"}

            assert crawl_keys(client, crawl.project.name) == []
        for worker in workers:
            (line,) = outages.lines(worker, "CRITICAL", "ERROR")
            assert line.startswith("CRITICAL: The frontier of crawl ")
            assert "Traceback" not in worker.text
        (crawl.project.folder / GO).unlink()

    last = start_together(crawl)

    verdict = crawl.end()
    crawl.note(verdict, flushes=times)
    assert [worker.close_reason for worker in last] == ["finished", "finished"]
    assert verdict.leases_left == 0
    pids = [worker.pid for worker in last]
    assert crawl.project.count(pids=pids) == dict.fromkeys(crawl.site.paths, 1)
    outages.assert_outages_logged(last, 0)


@pytest.mark.parametrize("pages", [400, pytest.param(3_000, marks=pytest.mark.soak)])
def test_a_redis_that_forgets_its_scripts_gets_them_again(pages: int, fault_crawl: MakeCrawl) -> None:
    """SCRIPT FLUSH runs every 20 ms, also during the first join. It causes neither an error nor a rejoin."""
    crawl = fault_crawl(site={"pages": pages}, spider=GATHERED)
    with crawl.redis.client() as client, repeated(client.script_flush, EVERY_S) as flushed:
        workers = start_together(crawl)
        verdict = crawl.end(90)
    crawl.note(verdict, script_flushes=len(flushed))
    crawl.assert_whole(verdict)
    assert len(flushed) > 10
    outages.assert_outages_logged(workers, 0)
    for worker in workers:
        assert not {"dq/redis_errors", "dq/rejoins"} & set(worker.stats)
