"""A worker logs a line of progress while the crawl runs."""

from __future__ import annotations

import re

from support.given import MakeProject, StartRedis, StartSite


def test_the_progress_of_all_workers_is_logged(
    start_redis: StartRedis,
    start_site: StartSite,
    make_project: MakeProject,
) -> None:
    """Every LOGSTATS_INTERVAL, each worker logs the counts of the whole crawl, which never fall."""
    site = start_site(pages=120, latency_s=0.1)
    project = make_project(
        [site.start_url],
        redis_url=start_redis(appendonly=True).url,
        settings={"LOGSTATS_INTERVAL": 0.2, "CONCURRENT_REQUESTS": 4},
    )
    first, second = project.start_workers(2)
    assert project.wait(60) == ["finished", "finished"]
    line = r"together: ([\d.]+) pages/s, (\d+) done, \d+ waiting, \d+ in flight, (\d) workers"
    last = []
    for worker in (first, second):
        found = re.findall(line, worker.text)
        assert max(float(speed) for speed, _, _ in found) > 0
        assert max(int(workers) for _, _, workers in found) == 2
        done = [int(count) for _, count, _ in found]
        assert done == sorted(done)
        assert 0 < done[-1] <= 120
        last.append(done[-1])
    # The line counts the whole crawl, not one worker.
    assert max(last) > min(worker.stats["dq/acked"] for worker in (first, second))
