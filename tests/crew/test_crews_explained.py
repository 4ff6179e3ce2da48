"""A crew explains errors, holds, waits and differences between counts, in its view and at its end."""

from __future__ import annotations

import json
import re

from crew.conftest import SetScene
from scrapy_dq.backend.clients import connect_url
from scrapy_dq.frontier.admin.control import Command, steer
from scrapy_dq.inspection.history import describe, read_events
from support.redis_server import RedisServer
from support.tree_spider import spider_of
from support.waiting import wait_until


def test_the_crew_explains_why_pages_and_finished_requests_differ(scene: SetScene) -> None:
    here = scene(pages=4, redirect_every=3)
    crew = here.crew("-w", "2")
    assert crew.wait() == 0
    assert re.search(r"^ +all .* 4 +4 ", crew.out, re.MULTILINE)
    assert "\n4 pages, 6 requests done: redirects and retries are done without a page; " in crew.out


def test_a_crew_that_finishes_an_earlier_run_reports_that_its_own_has_not_begun(
    scene: SetScene, redis_server: RedisServer
) -> None:
    """A warning and the last line report this. The exit status is 3. The next command begins its own run."""
    here = scene(pages=30, latency_s=0.1)
    (killed,) = here.project.start_workers(1, settings={"DQ_RUN_NAME": "night-6"})
    wait_until(lambda: here.done() > 3, "night-6 has begun")
    killed.kill()
    here.site.set_latency(0.0)
    crew = here.crew("-w", "1", "-s", "DQ_RUN_NAME=night-7", "--logfile", "crawl.log")
    assert crew.wait() == 3
    assert "run 0 'night-6' is not finished, and this worker continues it" in crew.err
    last = "Finished run 0 'night-6'; 'night-7' has not begun: run the command again"
    assert crew.out.splitlines()[-1] == last
    log = here.project.folder / "crawl-1.log"
    assert f"WARNING: {last}" in log.read_text().splitlines()[-1]
    with connect_url(redis_server.url) as client:
        began, *_, finished, _left = read_events(client, here.project.name)
    assert (describe(began), describe(finished)) == ("the run 'night-6' began", "the run 'night-6' finished")
    crew = here.crew("-w", "1", "--json", "-s", "DQ_RUN_NAME=night-7")
    assert crew.wait() == 0
    summary = json.loads(crew.out)
    assert (summary["run"], summary["run_name"], summary["not_begun"]) == (1, "night-7", None)
    assert summary["pages"] == 30


def test_the_crew_shows_the_errors_of_its_workers_and_their_log_files(scene: SetScene) -> None:
    """The crew prints the first line of each error with the worker's number. Each worker has a log."""
    spider = spider_of("""
    def parse(self, response):
        yield from super().parse(response)
        if response.url.endswith("/p/2"):
            self.logger.error("this page is wrong\\nsecond line")
        if response.url.endswith("/p/3"):
            raise ValueError("page 3 is odd\\nand so on")
""")
    here = scene(pages=5, spider=spider)
    crew = here.crew("-w", "2", "--logfile", "crawl.log")
    assert crew.wait() == 0
    assert re.search(r"^worker [12]: this page is wrong$", crew.err, re.MULTILINE)
    assert "second line" not in crew.err
    assert re.search(r"^worker [12]: Spider error .*: ValueError: page 3 is odd$", crew.err, re.MULTILINE)
    logs = [here.project.folder / f"crawl-{number}.log" for number in (1, 2)]
    assert sum("second line" in log.read_text() for log in logs) == 1
    assert re.search(r"^ +all +.* 2 +0 +[\d.]+ s$", crew.out, re.MULTILINE)


def test_a_start_request_that_each_worker_crawls_is_shown_once(scene: SetScene) -> None:
    """Each worker crawls a start request that cannot be stored. Other local requests are only in logs."""
    spider = spider_of("""
    async def start(self):
        self.record("joined", "/")
        while Path(RECORD_PATH).read_text().count("joined ") < 2:  # else one finds it finished
            await asyncio.sleep(0.02)
        yield scrapy.Request(START_URLS[0], lambda response: self.then(response))

    def then(self, response):
        yield scrapy.Request(response.url + "?2", lambda response: None)
""")
    here = scene(pages=1, spider=spider)
    crew = here.crew("-w", "2", "--logfile", "crawl.log")
    assert crew.wait() == 0
    assert here.site.hits()["/p/0"] == 2
    assert re.findall(r"^Warning: .*: (.*)\. No more", crew.err, re.M) == [
        "each worker crawls this start request"
    ]
    logs = [here.project.folder / f"crawl-{number}.log" for number in (1, 2)]
    assert all("/p/0?2> cannot be stored" in log.read_text() for log in logs)


def test_a_crew_shows_that_the_crawl_is_on_hold(scene: SetScene, redis_server: RedisServer) -> None:
    """The crew shows the hold. At its end, it prints the command that ends the hold."""
    here = scene(pages=40, latency_s=0.1)
    name = here.project.name
    crew = here.crew("-w", "1")
    wait_until(lambda: here.done() >= 4, "some pages are done", 20)
    with connect_url(redis_server.url) as client:
        steer(client, name, Command.PAUSE)
        crew.wait_for("done; paused, ")
        crew.interrupt()
        assert crew.wait(10) == 1
        assert f"The crawl is paused: first run scrapy dq resume {name}\n" in crew.out
        (log,) = here.project.folder.glob(".scrapy/dq/logs/*/worker-1.log")
        way = f"`scrapy dq resume --crawl {name}`, and then the same command, continues"
        assert f". The crawl is on hold: {way}" in log.read_text()
        following = here.crew("-w", "1")
        following.wait_for("done; paused, ")
        steer(client, name, Command.RESUME)
    assert following.wait() == 0


def test_a_crew_shows_why_its_workers_wait(scene: SetScene, redis_server: RedisServer) -> None:
    """A full Redis still answers the crew, but accepts no work. With more memory, the crawl continues."""
    here = scene(pages=200, latency_s=0.1)
    with redis_server.client() as client:
        crew = here.crew("-w", "2")
        try:
            wait_until(lambda: here.done() > 5, "the crew crawls", 60)
            client.config_set("maxmemory", 1)
            why = re.compile(" waits?: Redis's memory is full: raise its maxmemory")
            wait_until(lambda: why.search(crew.err), "the crew says why its workers wait", 60)
        finally:
            client.config_set("maxmemory", 0)
    assert crew.wait(120) == 0, crew.err
    assert here.done() >= len(here.site.paths)


FAILING = spider_of("""
    async def start(self):
        async for request in super().start():
            yield request
        raise RuntimeError("the list of URLs ends in the middle")

    def parse(self, response):
        logging.getLogger("pages").error("the price is missing")
        yield from super().parse(response)
""")


def test_an_incomplete_start_and_repeated_errors_are_explained(scene: SetScene) -> None:
    """The crew prints the commands that run start() again or end the run. It shows a repeated error once."""
    here = scene(pages=10, spider=FAILING)
    crew = here.crew("-w", "1")
    assert crew.wait() == 1
    assert here.done() == 10
    assert crew.err.count("worker 1: the price is missing") == 1
    name = here.project.name
    assert f"Continue with: scrapy dq crawl {name} -w 1\n" in crew.out
    assert f"did not complete. To end the run without it: scrapy dq complete {name}\n" in crew.out
