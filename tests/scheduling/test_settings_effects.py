"""Scrapy's settings have the same effect as with Scrapy's own scheduler, or a log line reports it."""

from __future__ import annotations

import json

from support.given import Look, StartProxy, StartScript, Tree
from support.project import PLAIN, Project
from support.tree_spider import spider_of
from support.waiting import wait_until
from support.worker import Worker


def pages_of(project: Project, worker: Worker) -> list[str]:
    """Return the paths that *worker* crawled, in order."""
    return [e.path for e in project.events() if e.event == "done" and e.pid == worker.pid]


def test_closespider_limits_leave_a_crawl_that_resumes(tree: Tree, look: Look) -> None:
    """After two workers have stopped at their limits, the third worker crawls only the rest."""
    site, project = tree(settings={"CONCURRENT_REQUESTS": 4}, pages=150, latency_s=0.02)
    for limit in ("CLOSESPIDER_ITEMCOUNT", "CLOSESPIDER_PAGECOUNT"):
        worker = project.run_worker(settings={limit: 10}, timeout_s=20)
        assert worker.close_reason == limit.lower()
        assert len(pages_of(project, worker)) >= 10
        left = look(project)
        assert (left.phase, left.members, left.census.in_flight) == ("open", [], 0)
        assert left.census.waiting > 0
    last = project.run_to_end(timeout_s=20)
    assert "resumed run 0" in last.text
    assert project.count() == dict.fromkeys(site.paths, 1)


PAUSING = spider_of("""
    async def start(self):
        site = self.start_urls[0]
        yield scrapy.Request(site + "/gate?s=0", self.gate, priority=1)
        for number in range(6):
            yield scrapy.Request(site + f"/slow/{number}?s=1")

    async def gate(self, response):
        await self.told_to("pause")
        self.crawler.engine.pause()
        await self.told_to("unpause")
        self.crawler.engine.unpause()

    async def told_to(self, what):
        while not Path(what).exists():
            await asyncio.sleep(0.02)
""")


def test_a_paused_engine_gives_its_buffer_back_and_stays_alive(begin: Tree, look: Look) -> None:
    """A worker in engine.pause() takes no leases, but keeps its page. Its heartbeat continues."""
    _, project = begin(PAUSING, settings={"CONCURRENT_REQUESTS": 2, "DQ_WORKER_TTL": 1})
    worker = project.start_worker()

    def waiting() -> int:
        return look(project).census.waiting

    def has_leased_ahead() -> bool:
        census = look(project).census
        return census.in_flight >= 4 and census.waiting <= 3

    wait_until(has_leased_ahead, "the worker has leases in its buffer", 20)
    (project.folder / "pause").touch()
    wait_until(lambda: waiting() == 4, "the buffer is given back", 10)
    beat = look(project).members[0].beat
    wait_until(lambda: look(project).members[0].beat >= beat + 9, "the heartbeat continues for 1.5 TTL", 10)
    assert waiting() == 4
    assert len(project.count()) == 2
    (project.folder / "unpause").touch()
    assert worker.wait(20) == 0
    assert worker.close_reason == "finished"
    assert project.count() == {f"/slow/{number}?s=1": 1 for number in range(6)}
    assert worker.stats["dq/released"] >= 1
    assert not {"dq/reclaimed", "dq/rejoins"} & worker.stats.keys()


def test_a_feed_per_worker_survives_a_kill(tree: Tree, start_proxy: StartProxy) -> None:
    """With ADDONS and %(dq_worker)s in FEEDS, the feed files have the items of each acked page."""
    site, project = tree(
        settings={
            "SCHEDULER": None,
            "DUPEFILTER_CLASS": None,
            "CONCURRENT_REQUESTS": 4,  # so that few leases are quarantined after the kill
            "ADDONS": {"scrapy_dq.Addon": 500},
            "FEEDS": {"items/%(name)s-%(dq_worker)s.jsonl": {"format": "jsonlines"}},
        },
        pages=150,
        latency_s=0.05,
    )
    first, second = project.start_workers(2)
    wait_until(lambda: len(pages_of(project, first)) >= 30, "the first worker is under way", 20)
    first.kill()
    second.wait(30)
    assert second.close_reason == "finished"
    feeds = list((project.folder / "items").iterdir())
    assert len(feeds) == 2
    # The killed worker may have left an incomplete line of a page in progress.
    lines = [line for feed in feeds for line in feed.read_text().splitlines() if line.endswith("}")]
    items = [json.loads(line)["path"] for line in lines]
    assert set(items) == site.paths
    assert len(items) - 150 <= second.stats["dq/reclaimed"]


# A worker stops after 20 pages until the file `go` exists, so that it is killed before the end.
GATED = spider_of("""
    pages = 0

    async def parse(self, response):
        self.pages += 1
        while self.pages > 20 and not Path("go").exists():
            await asyncio.sleep(0.02)
        for output in super().parse(response):
            yield output
""")


def test_a_feed_is_overwritten_only_by_a_new_run(tree: Tree) -> None:
    """`scrapy crawl NAME -O items.jsonl` is killed and run again. Items from before the kill are kept."""
    site, project = tree(
        spider=GATED,
        settings={
            "CONCURRENT_REQUESTS": 4,
            "ADDONS": {"scrapy_dq.Addon": 500},
            "FEEDS": {
                "items.jsonl": {"format": "jsonlines", "overwrite": True},
                "items.json": {"format": "json", "overwrite": True},
            },
        },
        pages=60,
    )
    feed = project.folder / "items.jsonl"

    def scraped() -> list[str]:
        lines = feed.read_text().splitlines() if feed.exists() else []
        return [json.loads(line)["path"] for line in lines if line.startswith("{") and line.endswith("}")]

    feed.write_text("of a run before\n")
    worker = project.start_worker()
    wait_until(lambda: len(scraped()) >= 16, "16 items are written", 20)
    worker.kill()
    (project.folder / "go").touch()
    assert "of a run before" not in feed.read_text()
    worker = project.run_worker()
    assert set(scraped()) == site.paths
    assert "items.jsonl: it may contain earlier items of this run\n" in worker.text
    assert "Appended json has a second beginning in its middle: jsonlines has none" in worker.text
    worker = project.run_worker(settings={"SCHEDULER_FLUSH_ON_START": True})
    assert sorted(scraped()) == sorted(site.paths)
    assert "Items are appended to" not in worker.text


def test_the_breadth_first_recipe_is_understood_and_other_queue_settings_are_named(tree: Tree) -> None:
    """DEPTH_PRIORITY = 1 and FIFO queues crawl level by level. The log names settings without an effect."""
    _, project = tree(
        settings={
            "CONCURRENT_REQUESTS": 1,
            "DEPTH_PRIORITY": 1,
            "SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleFifoDiskQueue",
            "SCHEDULER_MEMORY_QUEUE": "scrapy.squeues.FifoMemoryQueue",
            "JOBDIR": "job",
        },
        pages=40,
        fan_out=3,
    )
    worker = project.run_worker(timeout_s=20)
    pages = pages_of(project, worker)
    assert sorted(pages) == sorted(f"/p/{k}" for k in range(40))
    # Within a level, requests have Scrapy's order. Before Scrapy 2.19, this may differ from the links' order.
    levels = [sum(int(page.rpartition("/")[2]) > last for last in (0, 3, 12)) for page in pages]
    assert levels == sorted(levels)
    named = [line for line in worker.text.splitlines() if "no effect" in line]
    assert len(named) == 1
    assert "INFO" in named[0]
    assert ": JOBDIR. " in named[0]
    assert "SCHEDULER_DISK_QUEUE and SCHEDULER_MEMORY_QUEUE: breadth-first" in worker.text
    assert "DQ_ORDER = 'priority-fifo'" in named[0]


# The spider first crawls a gate, and then other requests. While it yields them, the engine is paused. So the
# worker leases none of them early, and crawls them in the order of the leases.
ORDERED = spider_of("""
    async def start(self):
        site = self.start_urls[0]
        self.at_the_gate, self.all_started = asyncio.Event(), asyncio.Event()
        yield scrapy.Request(site + "/gate?s=0", self.gate)
        await self.at_the_gate.wait()
        for number in range(4):
            yield scrapy.Request(site + f"/start/{number}?s=0", priority=number % 2)
        self.all_started.set()

    async def gate(self, response):
        self.crawler.engine.pause()
        self.at_the_gate.set()
        await self.all_started.wait()
        for number in range(12):
            priority = (0, 5, -1)[number % 3]
            yield response.follow(f"/p{priority}/{number}?s=0", priority=priority)
        yield response.follow("/twin?s=0", dont_filter=True)
        yield response.follow("/twin?s=0", dont_filter=True)
        await asyncio.sleep(0.2)
        self.crawler.engine.unpause()

    def parse(self, response):
        self.record(self.settings["ORDER_NAME"], page_path(response).partition("?")[0])
""")
# Runs several crawlers at the same time, each with its own settings.
CRAWLERS = """\
from scrapy.utils.reactor import install_reactor
install_reactor("twisted.internet.asyncioreactor.AsyncioSelectorReactor")
from scrapy.crawler import Crawler, CrawlerRunner
from scrapy.utils.log import configure_logging
from scrapy.utils.project import get_project_settings
from twisted.internet import reactor

configure_logging(get_project_settings())
runner = CrawlerRunner(get_project_settings())
for changed in {changed!r}:
    settings = get_project_settings()
    settings.update(changed, "cmdline")
    runner.crawl(Crawler(runner.spider_loader.load(settings["SPIDER_NAME"]), settings))
runner.join().addBoth(lambda _: reactor.stop())
reactor.run()
"""


def test_each_order_serves_as_named_and_the_default_serves_as_scrapy(
    begin: Tree, start_script: StartScript
) -> None:
    """Each order crawls one request at a time, some with equal priority. priority-lifo is Scrapy's order."""
    orders = ("priority-lifo", "priority-fifo", "fifo", "lifo")
    changed = [{"ORDER_NAME": "plain", **PLAIN}]
    for order in orders:
        changed.append({"ORDER_NAME": order, "DQ_ORDER": order, "DQ_CRAWL": f"%(spider)s-{order}"})
    _, project = begin(ORDERED, settings={"CONCURRENT_REQUESTS": 1})
    script = start_script(project, CRAWLERS.format(changed=changed))
    assert script.wait(30) == 0
    names = [settings["ORDER_NAME"] for settings in changed]
    paths = {name: [e.path for e in project.events() if e.event == name] for name in names}

    starts = [f"/start/{n}" for n in range(4)]
    by_priority = {p: [f"/p{p}/{n}" for n in range(12) if (0, 5, -1)[n % 3] == p] for p in (5, 0, -1)}
    yielded = [f"/p{(0, 5, -1)[n % 3]}/{n}" for n in range(12)] + ["/twin", "/twin"]
    by_priority[0] += ["/twin", "/twin"]
    odd, even = starts[1::2], starts[::2]
    assert paths["priority-lifo"] == paths["plain"]
    assert paths["priority-lifo"] == (
        by_priority[5][::-1] + odd + by_priority[0][::-1] + even + by_priority[-1][::-1]
    )
    assert paths["priority-fifo"] == by_priority[5] + odd + by_priority[0] + even + by_priority[-1]
    assert paths["fifo"] == starts + yielded
    assert paths["lifo"] == (starts + yielded)[::-1]


TWICE = spider_of(
    """
    def parse(self, response):
        self.record(self.settings["CASE"], page_path(response))
        for _ in range(2):
            yield from response.follow_all(css="a", callback=self.parse)
            yield response.follow("/linked-by-all?s=0", self.leaf)

    def leaf(self, response):
        self.record(self.settings["CASE"], "/linked-by-all")


class Raising(DupeFilter):
    def log(self, request, spider):
        raise ValueError("it cannot be logged")
""",
    before="from scrapy_dq import DupeFilter\n",
)


def test_a_dupefilter_class_is_replaced_only_if_it_is_scrapys_default(
    tree: Tree, start_script: StartScript
) -> None:
    """Two workers with our class or the default share `seen`. BaseDupeFilter filters nothing, with a warning.

    If a class raises an error when it logs a duplicate, the duplicate is still filtered. With Scrapy's
    scheduler, our class filters only within its own process.
    """
    ours = "scrapy_dq.Scheduler"
    cases = {
        "ours": (ours, "scrapy_dq.DupeFilter"),
        "default": (ours, "scrapy.dupefilters.RFPDupeFilter"),
        "raising": (ours, "tree_project.spiders.spider.Raising"),
        "none": (ours, "scrapy.dupefilters.BaseDupeFilter"),
        "alone": (PLAIN["SCHEDULER"], "scrapy_dq.DupeFilter"),
    }
    changed = []
    for case, (scheduler, dupefilter) in cases.items():
        settings = {"CASE": case, "SCHEDULER": scheduler, "DUPEFILTER_CLASS": dupefilter}
        settings["DQ_CRAWL"] = f"%(spider)s-{case}"
        changed += [settings] if case == "alone" else [settings, settings]
    site, project = tree(
        spider=TWICE, settings={"CONCURRENT_REQUESTS": 2}, pages=13, fan_out=3, latency_s=0.1
    )
    script = start_script(project, CRAWLERS.format(changed=changed))
    assert script.wait(30) == 0
    for case in ("ours", "default", "raising", "alone"):
        assert project.count(case) == dict.fromkeys(site.paths | {"/linked-by-all"}, 1), case
    unfiltered = {f"/p/{k}": 1 if k == 0 else 2 if k < 4 else 4 for k in range(13)}
    assert project.count("none") == unfiltered | {"/linked-by-all": 2 * sum(unfiltered.values())}
    said = "DUPEFILTER_CLASS = scrapy.dupefilters.BaseDupeFilter: duplicates are not shared between workers"
    assert script.text.count(said) == 2
