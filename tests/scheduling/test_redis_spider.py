"""RedisSpider: other programs feed it start requests through Redis while it runs."""

from __future__ import annotations

import json
import re
import signal
import textwrap
from pathlib import Path
from typing import Any

import pytest
import redis

from scrapy_dq import RedisSpider
from scrapy_dq.frontier import keys
from scrapy_dq.scheduling.warnings_once import MAX_REASONS
from scrapy_dq.settings import Config, ConfigError
from scrapy_dq.start_urls.keys import patience_s, start_keys_of
from support.given import Errors, Look, MakeProject, Reasons, StartSite, Tree
from support.project import Project
from support.tree_site import TreeSite
from support.tree_spider import FED
from support.waiting import wait_until

QUICK = {"MAX_IDLE_TIME_BEFORE_CLOSE": 0.3}


def spider(*lines: str) -> str:
    return FED + "".join(f"    {line}\n" for line in lines)


@pytest.fixture
def fed(make_project: MakeProject, start_site: StartSite, redis_url: str) -> Tree:
    """Return a function that starts a site and makes a project with a RedisSpider.

    Its arguments are *lines* for the spider's class, options of the site, *more* text for the module, and
    settings. In the project, the setting SITE is the site's URL.
    """

    def make(
        *lines: str, pages: int = 9, latency_s: float = 0.0, more: str = "", **settings: Any
    ) -> tuple[TreeSite, Project]:
        site = start_site(pages=pages, latency_s=latency_s)
        settings = QUICK | {"SITE": site.url("")} | settings
        return site, make_project([], redis_url=redis_url, spider=spider(*lines) + more, settings=settings)

    return make


def key(project: Project) -> str:
    return f"{project.name}:start_urls"


def targets(site: TreeSite) -> list[str]:
    """Return the targets of all requests to the site, with repetitions."""
    return sorted(site.hits().elements())


def test_start_payloads_are_crawled_and_an_idle_spider_closes(
    fed: Tree, client: redis.Redis, look: Look
) -> None:
    """Payloads are bare URLs, or JSON with method, meta or form data. At the end, the run is finished."""
    site, project = fed(pages=40)
    client.rpush(
        key(project),
        site.start_url,
        json.dumps({"url": site.url("/p/39"), "meta": {"depth": 3}}),
        json.dumps({"url": site.url("/p/38"), "query": "x y", "n": 1}),
        json.dumps({"url": site.url("/p/37"), "method": "post", "field": ["1", "2"]}),
    )
    worker = project.run_to_end()
    hits = site.hits()
    assert set(hits) == {*(f"/p/{k}" for k in range(40)), "/p/38?query=x+y&n=1"}
    assert worker.stats["dq/fed"] == 4
    assert look(project).phase == "finished"
    assert not client.exists(key(project))


def test_without_an_idle_time_the_spider_stays_open(fed: Tree, client: redis.Redis, look: Look) -> None:
    """MAX_IDLE_TIME_BEFORE_CLOSE = 0, the default, keeps the spider open. Two workers share the payloads."""
    site, project = fed(MAX_IDLE_TIME_BEFORE_CLOSE=0, pages=3)
    workers = project.start_workers(2)
    wait_until(lambda: look(project).census.workers == 2, "both workers have joined", 30)
    for round_ in range(3):
        client.rpush(key(project), *(site.url(f"/p/2?{round_}-{n}") for n in range(5)))
        wait_until(lambda r=round_: sum(site.hits().values()) == 5 * (r + 1), "all are crawled", 20)
        assert [w.running for w in workers] == [True, True]
        assert look(project).phase == "open"
    for worker in workers:
        worker.terminate()
    assert project.wait() == ["shutdown", "shutdown"]
    assert sum(w.stats.get("dq/fed", 0) for w in workers) == 15


@pytest.mark.parametrize("kind", ["SET", "ZSET"])
def test_sets_and_sorted_sets_feed_a_spider(fed: Tree, client: redis.Redis, kind: str) -> None:
    """REDIS_START_URLS_AS_SET or _AS_ZSET chooses the type of the key. The highest score comes first."""
    site, project = fed(**{f"REDIS_START_URLS_AS_{kind}": True, "CONCURRENT_REQUESTS": 1})
    urls = [site.url(f"/p/{k}") for k in range(4, 9)]
    if kind == "SET":
        client.sadd(key(project), *urls)
    else:
        client.zadd(key(project), {url: k for k, url in enumerate(urls)})
    assert project.run_worker().close_reason == "finished"
    assert targets(site) == [f"/p/{k}" for k in range(4, 9)]


def test_streams_feed_a_spider_and_finished_messages_are_acknowledged(fed: Tree, client: redis.Redis) -> None:
    """A message is pending until its page is crawled, including retries and redirects, even after a kill."""
    site, project = fed(latency_s=30, REDIS_START_URLS_AS_STREAM=True, DQ_WORKER_TTL=2)
    group = f"scrapy_dq:dq:{{{project.name}}}"
    first = client.xadd(key(project), {"url": site.url("/p/5")})
    for n, path in enumerate(("/flaky?flaky=2", "/moved?to=/p/6", "/p/7?status=404")):
        client.xadd(
            key(project), {"data": site.url(path)} if n % 2 else {"url": site.url(path), "method": "GET"}
        )
    killed = project.start_worker()
    wait_until(lambda: site.hits()["/p/5"], "the page is requested", 20)
    assert client.xpending(key(project), group)["min"] == first
    killed.kill()
    site.set_latency(0)
    worker = project.run_worker()
    assert worker.close_reason == "finished"
    assert client.xpending(key(project), group)["pending"] == 0
    assert set(targets(site)) == {"/p/5", "/flaky?flaky=2", "/moved?to=/p/6", "/p/6", "/p/7?status=404"}
    assert not client.exists(keys.prefix(project.name) + "messages")


def test_a_spider_can_be_fed_by_several_keys(fed: Tree, client: redis.Redis) -> None:
    """The class's `redis_key` has precedence over the setting. %(name)s is the spider's name."""
    site, project = fed('redis_key = ["%(name)s:urgent", "%(name)s:other"]', REDIS_START_URLS_KEY="unused")
    client.rpush(f"{project.name}:other", site.url("/p/8"))
    client.rpush(f"{project.name}:urgent", site.url("/p/7"))
    worker = project.run_worker()
    assert targets(site) == ["/p/7", "/p/8"]
    assert f"Fed by {project.name}:urgent, {project.name}:other; closes after 0.3 s" in worker.text


# Python would need minutes to encode this host name.
HUGE_HOST = "".join(map(chr, range(0x4E00, 0x4E00 + 20_000)))
BAD = {
    b'{"form": {"password": "SEKRET"}, "url": "no scheme either"}': "Missing scheme in request url",
    b"\xff\xfe": "it is not valid utf-8",
    b"": "'' is neither a URL nor a JSON object",
    b"not a url": "'not a url' is neither a URL nor a JSON object",
    b'{"url": ': "it begins like JSON but is invalid",
    b'{"uri": "http://localhost/"}': 'its JSON has no "url"',
    b'{"url": 7}': 'its "url" is a int, not a str',
    b'{"url": "http://localhost/", "meta": []}': 'its "meta" is a list, not a dict',
    b'{"url": "http://localhost/", "method": "GET\\r\\nX: y"}': "a method consists of",
    b'{"url": "http://localhost/", "form": {"a": 1}}': 'its "form" is not form data',
    b'{"url": "no scheme"}': "ValueError: Missing scheme in request url",
    b"file:///etc/passwd": "the scheme 'file' is not in DQ_URL_SCHEMES",
    b'{"url": "file:///etc/passwd", "meta": {"dq_local": true}}': "the scheme 'file' is not in DQ_URL",
    b'{"url": "http://localhost/", "meta": {"ftp_local_filename": "/x"}}': "would make Scrapy write a file",
    b'{"url": "http://localhost/", "meta": {"dq_delay": 2592001}}': '"dq_delay" is more than 30 days away',
    b'{"url": "http://localhost/", "meta": {"dq_not_before": 9e9}}': '"dq_not_before" is more than 30 days',
    b'{"url": "http://localhost/", "meta": {"referrer_policy": "os.abort"}}': "what Scrapy would import",
    b"[" * 100_000: "it begins like JSON but is invalid",
    f"http://{HUGE_HOST}/".encode(): "its host has more than 1,000 characters",
    rb"http:\\\\" + f"{HUGE_HOST}/".encode(): "its host has more than 1,000 characters",
    b"http://" + b"a." * 25_000 + b"com/": "its host has more than 1,000 characters",
    "http://\uff3b/".encode(): "its URL cannot be parsed (Invalid IPv6 URL)",
    b"http://user:SEK/RET@localhost/": "its URL cannot be parsed",
    b"http://localhost/" + b"x" * 2**20: "1,048,594 bytes are more than DQ_MAX_ENTRY_BYTES = 1,048,576",
}


def test_a_payload_that_makes_no_request_becomes_a_dead_letter(
    fed: Tree, client: redis.Redis, reasons: Reasons, errors: Errors
) -> None:
    """Each such payload becomes a dead letter with a reason. The log has only some of the reasons."""
    site, project = fed()
    for n, payload in enumerate(BAD):
        client.rpush(key(project), payload, site.url(f"/p/8?{n}"))
    worker = project.run_to_end()
    assert len(targets(site)) == len(BAD)
    assert worker.stats["dq/buried"] == len(BAD)
    found = reasons(project)
    for reason in BAD.values():
        assert any(reason in one for one in found), (reason, found)
    assert worker.text.count("becomes a dead letter") == MAX_REASONS < len(BAD)
    assert "A start payload ('no scheme either')" in worker.text
    assert not any("SEK" in one for one in (*found, worker.text))
    assert not errors(worker)


def test_the_meta_of_a_payload_becomes_the_meta_of_its_request(fed: Tree, client: redis.Redis) -> None:
    """As with scrapy-redis, Scrapy's middlewares obey the meta, and callbacks can read it."""
    site, project = fed(
        "def parse(self, response):",
        "    self.record('page', f'{response.status} {response.meta[\"own\"]}')",
    )
    meta = {"handle_httpstatus_list": [404], "own": {"a": [1]}}
    client.rpush(key(project), json.dumps({"url": site.url("/p/8?status=404"), "meta": meta}))
    project.run_to_end()
    assert list(project.count("page")) == ["404 {'a': [1]}"]


def test_payloads_of_other_hosts_are_not_fetched_with_the_method_of_the_docs(
    fed: Tree, start_site: StartSite, client: redis.Redis
) -> None:
    """Scrapy's offsite middleware drops them, whatever their meta is. It also drops redirects elsewhere."""
    other = start_site(pages=9)
    elsewhere = other.url("/p/8").replace("127.0.0.1", "localhost")
    docs = (Path(__file__).parents[2] / "docs" / "from-scrapy-redis.md").read_text("utf-8")
    (method,) = re.findall(r"(?ms)^(    def make_request_from_data.*?)^```", docs)
    site, project = fed('allowed_domains = ["127.0.0.1"]', *textwrap.dedent(method).splitlines())
    client.rpush(
        key(project),
        elsewhere,
        json.dumps({"url": elsewhere, "meta": {"allow_offsite": True}}),
        site.url(f"/p/1?to={elsewhere}"),
        site.url("/p/2?to=/p/3"),
    )
    worker = project.run_to_end()
    assert {"/p/3", f"/p/1?to={elsewhere}"} <= set(targets(site))
    assert not other.hits()
    assert worker.stats["offsite/filtered"] >= 2


OWN = (
    "def make_request_from_data(self, data):",
    "    import json",
    "    fed = json.loads(data)",
    "    return scrapy.Request(fed['url'], meta={**fed['meta'], 'lock': object()}, dont_filter=True)",
)


def test_meta_from_a_payload_cannot_run_code_through_a_method_of_the_spider(
    fed: Tree, client: redis.Redis, reasons: Reasons
) -> None:
    """A request that cannot be stored is checked like a stored one before its own worker crawls it."""
    site, project = fed(*OWN)
    for page, meta in enumerate(({}, {"referrer_policy": "os.abort"}, {"download_slot": "\n"}), 1):
        client.rpush(key(project), json.dumps({"url": site.url(f"/p/{page}"), "meta": meta}))
    project.run_to_end()
    assert {target for target in targets(site) if target in ("/p/1", "/p/2", "/p/3")} == {"/p/1"}
    slot, policy = sorted(reasons(project), key=lambda reason: "policy" in reason)
    assert "the name of its download slot" in slot
    assert "DQ_TYPES lists" in policy


def test_a_project_can_override_make_request_from_data(
    fed: Tree, client: redis.Redis, reasons: Reasons
) -> None:
    """The method may yield requests with any callback. Its exception is the reason of a dead letter."""
    site, project = fed(
        "def make_request_from_data(self, data):",
        "    if data == b'none':",
        "        return None",
        "    if data == b'item':",
        "        return {'a': 1}",
        "    for n in range(int(data)):",
        "        yield scrapy.Request(SITE + '/p/8?%d' % n, callback=self.parse_it)",
        "def parse_it(self, response):",
        "    self.record('own', page_path(response))",
    )
    client.rpush(key(project), "3", "what?", "2")
    worker = project.run_worker()
    # The requests are filtered, so the last payload's requests are duplicates of the first payload's.
    assert targets(site) == ["/p/8?0", "/p/8?1", "/p/8?2"]
    assert [event.event for event in project.events()] == ["own"] * 3
    assert reasons(project) == ["ValueError: invalid literal for int() with base 10: b'what?'"]
    assert worker.stats["dq/duplicates"] == 2


def test_the_spiders_own_start_requests_also_run(fed: Tree, client: redis.Redis) -> None:
    """Older spiders define `start_requests`. A RedisSpider's `start_urls` are not crawled."""
    site, project = fed(
        "start_urls = [SITE + '/p/7']",
        "def start_requests(self):",
        "    yield scrapy.Request(SITE + '/p/8?own')",
    )
    client.rpush(key(project), site.url("/p/8?fed"))
    assert project.run_worker().close_reason == "finished"
    assert targets(site) == ["/p/8?fed", "/p/8?own"]


def test_a_method_that_makes_no_request_leaves_a_reason(
    fed: Tree, client: redis.Redis, reasons: Reasons
) -> None:
    """The reasons distinguish None and an empty list from objects that are not a Request."""
    _, project = fed(
        "def make_request_from_data(self, data):",
        "    return {b'none': None, b'empty': [], b'item': {'a': 1}, b'number': 7}[data]",
    )
    client.rpush(key(project), "none", "empty", "item", "number")
    project.run_worker()
    nothing = "make_request_from_data() made no request from it"
    assert sorted(reasons(project)) == sorted([
        nothing,
        nothing,
        "make_request_from_data() made a str from it, not a Request",
        "make_request_from_data() made a int from it, not a Request",
    ])  # fmt: skip


def test_a_crawl_waits_until_a_start_key_of_another_type_is_repaired(
    fed: Tree, client: redis.Redis, errors: Errors
) -> None:
    """One ERROR names the key. After the user has deleted it, the crawl continues."""
    site, project = fed(MAX_IDLE_TIME_BEFORE_CLOSE=2)
    client.set(key(project), "mine")
    worker = project.start_worker()
    wait_until(lambda: errors(worker), "the error is logged", 20)
    client.delete(key(project))
    client.rpush(key(project), site.url("/p/8"))
    assert project.wait() == ["finished"]
    (error,) = errors(worker)
    assert f"the key '{key(project)}' is a string, not a list" in error
    assert targets(site) == ["/p/8"]


PICKY = """

class Picky:
    def fingerprint(self, request):
        raise ValueError("on purpose")
"""
FINGERPRINTER = {"REQUEST_FINGERPRINTER_CLASS": "tree_project.spiders.spider.Picky"}


@pytest.mark.parametrize(
    ("callback", "settings"),
    [("lambda response: None", {}), ("None", FINGERPRINTER)],
    ids=["local", "not classified"],
)
def test_a_payload_whose_request_stays_in_its_worker_is_in_flight(
    fed: Tree, client: redis.Redis, look: Look, callback: str, settings: dict[str, Any]
) -> None:
    """If the worker dies, another worker makes the request from the payload again."""
    site, project = fed(
        "def make_request_from_data(self, data):",
        f"    return scrapy.Request(data.decode(), callback={callback})",
        more=PICKY,
        MAX_IDLE_TIME_BEFORE_CLOSE=0,
        **settings,
    )
    client.rpush(key(project), site.url("/p/8?s=60"))
    worker = project.start_worker()
    wait_until(lambda: site.hits(), "the page is requested", 20)
    assert look(project).census.in_flight == 1
    worker.kill()
    worker = project.start_worker()
    wait_until(lambda: sum(site.hits().values()) == 2, "the page is requested again", 30)
    worker.kill()


def test_a_plain_spider_waits_for_the_idle_time(tree: Tree, look: Look) -> None:
    """SCHEDULER_IDLE_BEFORE_CLOSE works with any spider. The wait does not block the event loop."""
    settings = {"SCHEDULER_IDLE_BEFORE_CLOSE": 1}
    _, project = tree(settings=settings, pages=3)
    worker = project.run_to_end()
    assert "The crawl has been idle for 1 s" in worker.text
    assert worker.stats["elapsed_time_seconds"] >= 1
    assert look(project).phase == "finished"


@pytest.mark.parametrize(
    ("attribute", "value", "says"),
    [
        ("redis_key", "", "redis_key (REDIS_START_URLS_KEY) = '': expected a name that is not empty"),
        ("redis_key", [], "redis_key (REDIS_START_URLS_KEY) = []: expected a name that is not empty"),
        ("redis_key", "%(nmae)s", "expected a key's name, or several"),
        ("max_idle_time", "soon", "max_idle_time of Fed = 'soon': expected seconds"),
        ("max_idle_time", -1, "max_idle_time of Fed = -1: expected seconds"),
    ],
)
def test_an_attribute_that_cannot_be_used_is_refused(attribute: str, value: Any, says: str) -> None:
    spider = type("Fed", (RedisSpider,), {attribute: value})(name="fed")
    check = patience_s if attribute == "max_idle_time" else start_keys_of
    with pytest.raises(ConfigError, match=re.escape(says)):
        check(spider, Config("crawl"))


def test_the_spider_has_the_server_attribute_of_scrapy_redis(fed: Tree, client: redis.Redis) -> None:
    """`self.server` is a client of the crawl's Redis, for rare calls."""
    site, project = fed(
        "def parse(self, response):", "    self.server.set(self.redis_key + ':seen', response.url)"
    )
    client.rpush(key(project), site.url("/p/8"))
    assert project.run_worker().close_reason == "finished"
    assert client.getdel(key(project) + ":seen") == site.url("/p/8").encode()


def test_a_spider_whose_run_is_over_does_not_listen(fed: Tree, client: redis.Redis) -> None:
    """The run of this DQ_RUN_NAME is over. So the spider closes, and payloads stay in the start key."""
    site, project = fed(DQ_RUN_NAME="monday")
    client.rpush(key(project), site.url("/p/8"))
    assert project.run_worker().close_reason == "finished"
    client.rpush(key(project), site.url("/p/8"))
    worker = project.run_worker(settings={"MAX_IDLE_TIME_BEFORE_CLOSE": 0})
    assert (worker.close_reason, client.llen(key(project))) == ("finished", 1)
    assert project.run_worker(settings={"DQ_RUN_NAME": "tuesday"}).close_reason == "finished"
    assert targets(site) == ["/p/8"] * 2


def test_a_spider_fed_through_the_embedded_redis_logs_a_hint(fed: Tree, make_project: MakeProject) -> None:
    """After a migration, programs may still push to localhost:6379, which no worker reads."""
    says = "programs that push to a Redis server do not use it. Set REDIS_URL to that server"
    assert says in make_project([], spider=spider(), settings=QUICK).run_worker().text
    assert says not in fed()[1].run_worker().text


def test_under_another_scheduler_a_redis_spider_warns_that_it_is_not_fed(
    fed: Tree, client: redis.Redis, start_site: StartSite
) -> None:
    """With DQ_ENABLED = False or another SCHEDULER, the start keys stay unchanged."""
    site, project = fed(DQ_ENABLED=False, pages=2)
    client.rpush(key(project), site.start_url)
    worker = project.run_worker()
    assert "is fed by scrapy_dq.Scheduler, but this crawl has another scheduler" in worker.text
    assert client.llen(key(project)) == 1
    client.delete(key(project))


def test_a_payload_that_kills_its_worker_is_given_back(fed: Tree, client: redis.Redis, look: Look) -> None:
    """A method of the spider kills its worker. The next worker gets the claimed payloads."""
    site, project = fed(
        "def make_request_from_data(self, data):",
        "    import os, pathlib, signal",
        "    if not pathlib.Path('died').exists():",
        "        pathlib.Path('died').touch()",
        "        os.kill(os.getpid(), signal.SIGKILL)",
        "    return super().make_request_from_data(data)",
    )
    client.rpush(key(project), *(site.url(f"/p/{k}") for k in (6, 7, 8)))
    assert project.start_worker().wait(20) == -signal.SIGKILL
    assert not client.exists(key(project))  # the worker has claimed all three
    assert look(project).census.in_flight == 3
    assert project.run_worker().close_reason == "finished"
    assert site.hits()["/p/6"] == site.hits()["/p/7"] == site.hits()["/p/8"] == 1


def test_an_idle_spider_asks_redis_twice_a_second(fed: Tree, client: redis.Redis, look: Look) -> None:
    """Redis does not notify the worker of new payloads. The worker's usual exchanges look for them."""
    _, project = fed(MAX_IDLE_TIME_BEFORE_CLOSE=5)
    worker = project.run_worker()
    # The first pause is 20 ms long. Each further pause is twice as long, up to 0.4 to 0.5 s.
    assert 10 <= worker.stats["dq/exchanges"] <= 5 / 0.4 + 8
