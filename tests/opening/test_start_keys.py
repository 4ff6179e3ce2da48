"""Start keys on a Redis Cluster: keys in the crawl's slot are used, keys in other slots are refused."""

from __future__ import annotations

from scrapy_dq.frontier import keys
from support.given import MakeProject, StartRedis, StartSite
from support.tree_spider import FED
from support.waiting import wait_until

SPIDER = FED + '    custom_settings = {"MAX_IDLE_TIME_BEFORE_CLOSE": 0.3}\n'


def test_start_keys_must_be_in_the_slot_of_the_crawl(
    start_redis: StartRedis, start_site: StartSite, make_project: MakeProject
) -> None:
    """No script can use two slots. One ERROR names this key and a usable key. No payload is taken."""
    server = start_redis(args=["--cluster-enabled", "yes"])
    site = start_site(pages=5)
    with server.client() as client:
        client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
        wait_until(
            lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO"), "the cluster is up", 10
        )
        project = make_project([], redis_url=server.url, spider=SPIDER)
        plain = f"{project.name}:start_urls"
        client.rpush(plain, site.start_url)
        worker = project.run_worker()
        own = f"{{{project.name}}}:start_urls"
        assert f"the key '{plain}' is in another slot than crawl '{project.name}'" in worker.text
        assert f"for example '{own}'" in worker.text
        assert client.llen(plain) == 1
        assert not client.exists(keys.meta(project.name))

        client.rpush(own, site.start_url)
        worker = project.run_to_end(settings={"REDIS_START_URLS_KEY": own})
    assert set(site.hits()) == site.paths
