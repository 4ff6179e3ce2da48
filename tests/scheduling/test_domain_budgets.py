"""DQ_DOMAIN_BUDGET limits the requests of all workers to a host per run. Other requests stay waiting."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from scrapy_dq.backend.clients import connect_url
from scrapy_dq.frontier import limit
from support.given import Look, Tree
from support.tree_site import TreeSite

HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3")


def of_hosts(site: TreeSite) -> Counter[str]:
    return Counter(hit.host for hit in site.log())


@pytest.mark.parametrize("shards", [1, 3])
def test_no_host_gets_more_than_its_budget(redis_url: str, tree: Tree, look: Look, shards: int) -> None:
    """A host may have its own budget. If all budgets are spent, workers close. A user can raise budgets."""
    limits = {"127.0.0.2": {"budget": 20}}
    settings: dict[str, Any] = {"DQ_DOMAIN_BUDGET": 10, "DQ_DOMAIN_LIMITS": limits, "DQ_WORKER_TTL": 2}
    settings |= {"DQ_SHARDS": shards, "DQ_ROLLBACK_HORIZON": 1}
    site, project = tree(settings=settings, pages=90, fan_out=5, hosts=HOSTS)
    workers = project.start_workers(3)
    project.wait()
    assert {worker.close_reason for worker in workers} == {"domain_budget"}
    hits = of_hosts(site)
    assert max(hits[host] for host in ("127.0.0.1", "127.0.0.3")) == 10
    assert hits["127.0.0.2"] <= 20
    overview = look(project)
    assert (overview.phase, overview.census.in_flight) == ("open", 0)
    assert overview.census.waiting > 0
    with connect_url(redis_url) as client:
        for host in HOSTS:
            assert limit(client, project.name, host, budget=0) is not None
    assert project.run_worker().close_reason == "finished"
    assert of_hosts(site).total() == 90
