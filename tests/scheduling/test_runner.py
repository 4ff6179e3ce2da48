"""Crawlers run without `scrapy crawl`: several in one process, one after another, or without a reactor."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.util import find_spec

import pytest
import scrapy.crawler
from scrapy.settings import default_settings

from scrapy_dq.backend.clients import connect_url
from scrapy_dq.frontier import Overview, keys
from support.given import Errors, StartScript, Tree
from support.project import SPIDER
from support.tree_spider import spider_of

Look = Callable[[str], Overview]

# The second spider has its own settings, and its pages are recorded as "other".
SPIDERS = spider_of("""
class OtherSpider(TreeSpider):
    name = SPIDER_NAME + "-other"
    custom_settings = {"DQ_CRAWL": "custom-%(spider)s", "DQ_ORDER": "fifo", "CONCURRENT_REQUESTS": 1}

    def parse(self, response):
        self.record("other", page_path(response))
        yield from response.follow_all(css="a", callback=self.parse)
""")
AT_ONCE = """\
from scrapy import crawler
from scrapy.utils.project import get_project_settings

settings = get_project_settings()
process = crawler.{process}(settings)
name = settings["SPIDER_NAME"]
for spider in (name, name, name + "-other"):
    process.crawl(spider, part=len(spider))
process.start()
"""
ONE_BY_ONE = """\
from scrapy.utils.reactor import install_reactor
install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")
from scrapy.crawler import CrawlerRunner
from scrapy.utils.log import configure_logging
from scrapy.utils.project import get_project_settings
from twisted.internet import reactor
from twisted.internet.defer import inlineCallbacks

settings = get_project_settings()
configure_logging(settings)
runner = CrawlerRunner(settings)

@inlineCallbacks
def crawl():
    yield runner.crawl(settings["SPIDER_NAME"])
    yield runner.crawl(settings["SPIDER_NAME"])
    reactor.stop()

crawl()
reactor.run()
"""


@pytest.mark.parametrize("process", ["CrawlerProcess", "AsyncCrawlerProcess"])
def test_two_crawlers_of_a_spider_and_another_spider_can_share_a_process(
    process: str, redis_url: str, tree: Tree, start_script: StartScript, look: Look
) -> None:
    """Two crawlers of a spider share its crawl. The other spider's custom_settings name another crawl."""
    if not hasattr(scrapy.crawler, process):
        pytest.skip(f"this Scrapy has no {process}")
    site, project = tree(spider=SPIDERS, pages=60, latency_s=0.01)
    script = start_script(project, AT_ONCE.format(process=process))
    assert script.wait(30) == 0
    assert script.text.count("Spider closed (finished)") == 3
    assert project.count() == dict.fromkeys(site.paths, 1)
    assert project.count("item") == dict.fromkeys(site.paths, 1)
    assert "alongside 1 registered worker;" in script.text
    with connect_url(redis_url) as client:
        (stored,) = client.hmget(keys.meta(project.name), "spider_args")
    assert list(json.loads(stored)) == ["part"]
    # The other spider crawls the pages in the order of their numbers, one request at a time.
    assert [e.path for e in project.events() if e.event == "other"] == [f"/p/{k}" for k in range(60)]
    assert look(f"custom-{project.name}-other").phase == "finished"
    assert look(f"{project.name}-other").phase == "absent"


def test_starting_a_spider_again_after_its_end_begins_a_new_run(
    tree: Tree, start_script: StartScript, look: Look
) -> None:
    """A CrawlerRunner starts the spider a second time after its end, so all pages are crawled again."""
    site, project = tree(pages=20)
    script = start_script(project, ONE_BY_ONE)
    assert script.wait(30) == 0
    assert "new run 0" in script.text
    assert "new run 1" in script.text
    assert project.count() == dict.fromkeys(site.paths, 2)
    assert (look(project.name).run, look(project.name).members) == (1, [])


IDLE = spider_of("""
    idles = 0

    RECEIVERS = {"idle": signals.spider_idle}

    def idle(self):
        self.idles += 1
        self.record("idle", str(self.idles))
        if self.idles == 1:
            self.add("/from-idle?s=0")
            raise DontCloseSpider
        if self.idles == 2:
            asyncio.get_running_loop().call_later(0.3, self.add, "/from-timer?s=0")
            raise DontCloseSpider

    def add(self, path):
        url = self.start_urls[0].replace("/p/0", path)
        self.crawler.engine.crawl(scrapy.Request(url, self.parse))
""")


def test_a_spider_idle_handler_can_add_requests(tree: Tree) -> None:
    """Requests from spider_idle, or from a timer after DontCloseSpider, open the run again."""
    _, project = tree(spider=IDLE, pages=5)
    worker = project.run_to_end(timeout_s=20)
    order = [(e.event, e.path) for e in project.events() if e.event in ("idle", "done")]
    assert order[5:] == [
        ("idle", "1"),
        ("done", "/from-idle?s=0"),
        ("idle", "2"),
        ("done", "/from-timer?s=0"),
        ("idle", "3"),
    ]
    assert worker.stats["dq/acked"] == 7


@pytest.mark.skipif(
    not hasattr(default_settings, "TWISTED_REACTOR_ENABLED"), reason="this Scrapy needs a reactor"
)
@pytest.mark.skipif(
    scrapy.version_info < (2, 19) and not (find_spec("httpx") or find_spec("httpx2")),
    reason="without a reactor this Scrapy downloads with httpx, which is not there",
)
def test_scrapy_without_a_reactor_crawls(tree: Tree) -> None:
    """With TWISTED_REACTOR_ENABLED = False, two workers share a crawl with redirects and retries."""
    # With a run name, a late worker finds the run finished, and starts no new run.
    site, project = tree(
        settings={"TWISTED_REACTOR_ENABLED": False, "DQ_RUN_NAME": "only"},
        pages=40,
        redirect_every=7,
        flaky_every=5,
        latency_s=0.02,
    )
    workers = project.start_workers(2)
    assert project.wait(30) == ["finished", "finished"]
    assert project.count() == dict.fromkeys(site.paths, 1)
    assert sum(worker.stats.get("dq/acked", 0) for worker in workers) == 40 + 6 + 8


# This scheduler does not open, which shows Scrapy's exit code in such a case. Scrapy 2.14 exits with 0.
UNOPENED = (
    SPIDER
    + """\

from scrapy.core.scheduler import Scheduler

class Unopened(Scheduler):
    def open(self, spider):
        raise RuntimeError("not opened")
"""
)


def test_another_reactor_is_refused(tree: Tree, errors: Errors, look: Look) -> None:
    """With SelectReactor, the first ERROR line names TWISTED_REACTOR, and the worker stores nothing."""
    _, project = tree(spider=UNOPENED, pages=1)
    select = {"TWISTED_REACTOR": "twisted.internet.selectreactor.SelectReactor"}
    worker = project.start_worker(settings=select)
    control = project.start_worker(settings=select | {"SCHEDULER": "tree_project.spiders.spider.Unopened"})
    assert worker.wait() == control.wait()
    assert "RuntimeError: not opened" in control.text
    assert errors(worker)[0].startswith("scrapy_dq.scheduling.session: scrapy_dq cannot start: ")
    assert "TWISTED_REACTOR" in errors(worker)[0]
    assert look(project.name).phase == "absent"
    assert not project.events()
