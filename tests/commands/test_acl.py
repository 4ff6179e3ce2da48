"""`scrapy dq doctor --acl`: users with the printed rights can do their work, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from scrapy_dq.commands.subcommand import WrongUsage
from scrapy_dq.frontier.rights import ROLES, acl_of
from support.given import MakeProject, StartRedis, StartSite
from support.project import Project
from support.scrapy_redis_crawl import run_dq, run_dq_each
from support.tree_spider import FED

PASSWORD = "least"
FED_BY_KEY = FED + '    redis_key = "%(name)s:[start] *"\n'
SETTINGS = {
    "MAX_IDLE_TIME_BEFORE_CLOSE": 0.3,
    "ITEM_PIPELINES": {"scrapy_dq.RedisPipeline": 1},
    "REDIS_START_URLS_AS_SET": True,
}


@pytest.fixture
def url(start_redis: StartRedis) -> str:
    """Return the URL of database 1, because the rights must work in any database."""
    return start_redis(appendonly=True).url.removesuffix("/0") + "/1"


@pytest.fixture
def project(make_project: MakeProject, url: str) -> Project:
    return make_project([], redis_url=url, spider=FED_BY_KEY, settings=SETTINGS)


@pytest.fixture
def admin(url: str) -> Iterator[Any]:
    with redis.Redis.from_url(url) as client:
        yield client


@pytest.fixture
def urls(project: Project, admin: Any, url: str) -> dict[str, str]:
    """Create the users with the commands that doctor prints, and return a URL for each user."""
    found = {}
    for done in run_dq_each(project, [("doctor", project.name, "--acl", role) for role in ROLES]):
        command = done.stdout.replace(">PASSWORD", f">{PASSWORD}").split()
        admin.execute_command(*command)
        found[command[2]] = url.replace("redis://", f"redis://{command[2]}:{PASSWORD}@")
    return found


def test_each_role_can_do_its_work_and_nothing_else(
    project: Project, admin: Any, urls: dict[str, str], start_site: StartSite
) -> None:
    """Three users run a crawl with a start key and items in Redis. None of them can use another key."""
    site = start_site(pages=20)
    key = f"{project.name}:[start] *"
    with redis.Redis.from_url(urls["feeder"]) as feeder:
        assert feeder.sadd(key, site.start_url) == 1
        for harm in (("SMEMBERS", key), ("RPUSH", key, "x"), ("SADD", f"{project.name}:s *", "x")):
            with pytest.raises(redis.ResponseError):
                feeder.execute_command(*harm)
    worker = project.run_to_end(settings={"REDIS_URL": urls["crawler"]}, timeout_s=60)
    assert project.count() == dict.fromkeys(site.paths, 1), worker.text
    assert admin.llen(f"{project.name}:items") == 20
    with redis.Redis.from_url(urls["crawler"]) as crawler, redis.Redis.from_url(urls["observer"]) as observer:
        for client in crawler, observer:
            for other in ("theirs", f"dq:{{{project.name}2}}:meta"):
                with pytest.raises(redis.ResponseError):
                    client.type(other)
        with pytest.raises(redis.ResponseError):
            observer.delete(f"dq:{{{project.name}}}:meta")
    looked = run_dq(project, "status", project.name, "--no-rate", "-s", f"REDIS_URL={urls['observer']}")
    assert looked.returncode == 0, looked.stderr
    of_crawler = ["-s", f"REDIS_URL={urls['crawler']}"]
    for words in (
        ["push", project.name, "http://a.example/1", "http://b.example/2"],
        ["export", project.name, "crawl.jsonl"],
        ["clear", project.name, "--all", "--yes"],
        ["import", project.name, "crawl.jsonl"],
        ["clear", project.name, "--site", "a.example", "--yes"],
    ):
        done = run_dq(project, *words, *of_crawler)
        assert done.returncode == 0, done.stderr
    cleared = run_dq(project, "clear", project.name, "--all", "--yes", "-s", f"REDIS_URL={urls['observer']}")
    assert cleared.returncode == 1
    assert "denies access" in cleared.stderr


def test_a_feeder_needs_a_start_key_and_a_crawler_needs_no_crawl(dq: Any) -> None:
    """Without a spider, a feeder has no start key. Without a crawl, the crawler's rights cover all crawls."""
    with pytest.raises(WrongUsage, match="name a RedisSpider"):
        dq.text("doctor", "--acl", "feeder")
    line = dq.found("doctor", "--acl", "crawler", "--crawl", "")["acl"]
    assert line == f"ACL SETUSER crawler on >PASSWORD {acl_of('crawler')}"
    assert dq.lines("doctor", "--acl", "crawler", "--crawl", "a *") == [
        line.replace("~dq:*", "~dq:{a%20%2A}:*")
    ]
