"""A project of a scrapy-redis user: three spiders, a pipeline, and a program that takes the items.

The project is like scrapy-redis's example project. For scrapy_dq, only the first part of the import paths
(`root`) differs.
"""

from __future__ import annotations

import sys
from pathlib import Path

from support.project import Project
from support.worker import Worker

FILES = {
    "scrapy.cfg": "[settings]\ndefault = example.settings\n",
    "example/__init__.py": "",
    "example/spiders/__init__.py": "",
    "example/settings.py": """\
SPIDER_MODULES = ["example.spiders"]
NEWSPIDER_MODULE = "example.spiders"
USER_AGENT = "example ({root})"

DUPEFILTER_CLASS = "{root}.dupefilter.RFPDupeFilter"
SCHEDULER = "{root}.scheduler.Scheduler"
SCHEDULER_PERSIST = True
SCHEDULER_QUEUE_CLASS = "{root}.queue.SpiderPriorityQueue"

ITEM_PIPELINES = {{
    "example.pipelines.ExamplePipeline": 300,
    "{root}.pipelines.RedisPipeline": 400,
}}

REDIS_URL = {redis_url!r}
START_URL = {start_url!r}
MAX_IDLE_TIME_BEFORE_CLOSE = 3
DOWNLOAD_DELAY = 0
TELNETCONSOLE_ENABLED = False
HTTPPROXY_ENABLED = False
""",
    "example/pipelines.py": """\
from datetime import datetime, timezone


class ExamplePipeline:
    def process_item(self, item, spider=None):
        item["crawled"] = datetime.now(timezone.utc)
        return item
""",
    "example/items.py": """\
from scrapy.item import Field, Item


class ExampleItem(Item):
    name = Field()
    url = Field()
    crawled = Field()
""",
    "example/spiders/tree.py": """\
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import CrawlSpider, Rule

from example.items import ExampleItem


class TreeSpider(CrawlSpider):
    name = "tree"
    rules = [Rule(LinkExtractor(), callback="parse_page", follow=True)]

    async def start(self):
        import scrapy
        yield scrapy.Request(self.settings["START_URL"], dont_filter=True)

    def parse_page(self, response):
        yield ExampleItem(name=response.css("title::text").get(), url=response.url)
""",
    "example/spiders/fed.py": """\
from {root}.spiders import RedisSpider


class FedSpider(RedisSpider):
    name = "fed"
    redis_key = "fed:start_urls"

    def parse(self, response):
        return {{"name": response.css("title::text").get(), "url": response.url}}
""",
    "example/spiders/fed_crawl.py": """\
from scrapy.linkextractors import LinkExtractor
from scrapy.spiders import Rule
from {root}.spiders import RedisCrawlSpider


class FedCrawlSpider(RedisCrawlSpider):
    name = "fed_crawl"
    redis_key = "fed_crawl:start_urls"
    rules = (Rule(LinkExtractor(), callback="parse_page", follow=True),)

    def parse_page(self, response):
        return {{"name": response.css("title::text").get(), "url": response.url}}
""",
    "process_items.py": """\
import json
import sys

from {root} import get_redis

key, limit = sys.argv[1], int(sys.argv[2])
connection = get_redis(url={redis_url!r})
for _ in range(limit):
    found = connection.blpop([key], timeout=60)
    if found is None:
        sys.exit("nothing came")
    item = json.loads(found[1])
    print(item["url"], item["crawled"], flush=True)
""",
}


class ScrapyRedisProject:
    """The project in *folder*. Its import paths begin with *root*: "scrapy_redis" or "scrapy_dq"."""

    def __init__(self, folder: Path, root: str, redis_url: str, start_url: str) -> None:
        self.folder = folder
        for name, source in FILES.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source.format(root=root, redis_url=redis_url, start_url=start_url))
        self._any = Project(folder / "unused", [])

    def crawl(self, spider: str) -> Worker:
        """Start `scrapy crawl`."""
        command = self._any.command("crawl", spider)
        return Worker(command, self.folder, self.folder / f"{spider}.log", self._any.environ())

    def process_items(self, key: str, limit: int) -> Worker:
        """Start the program that takes items from Redis and prints them to its log."""
        command = [sys.executable, "process_items.py", key, str(limit)]
        return Worker(command, self.folder, self.folder / "items.log", self._any.environ())
