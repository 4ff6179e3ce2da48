"""Many workers and plain Scrapy find the same pages in Python's HTML documentation, served locally.

docs/real-pages.md has the figures, and `pytest -s` prints them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scrapy_dq.backend.clients import connect_url
from scrapy_dq.frontier import peek
from support.given import MakeProject, StartRedis
from support.project import PLAIN, Project
from support.tree_spider import spider_of
from support.waiting import wait_until

PAGES = Path(os.environ.get("DQ_TEST_PAGES", "/usr/share/doc/python3.11/html"))
TIMEOUT_S = 120

# HTTP/1.1 with keep-alive, one thread per connection. The server ends when its standard input is closed.
SERVER = """\
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer


class Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1

    def log_message(self, *args):
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *args):
        pass  # a killed worker resets its connections


server = Server(("127.0.0.1", 0), partial(Handler, directory=sys.argv[1]))
print(server.server_port, flush=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
sys.stdin.read()
"""

SPIDER = spider_of(
    """
    handle_httpstatus_list = [404]

    async def start(self):
        # Not with dont_filter=True: every page links to the first, which would be crawled twice.
        for url in self.start_urls:
            yield scrapy.Request(url)

    def parse(self, response):
        root = response.urljoin("/")
        page = f"{response.status}:{urldefrag(response.url).url}"
        self.record("start", page)
        if response.status == 200 and isinstance(response, TextResponse):
            hrefs = response.css("a::attr(href)").getall()
            # One request per pair of pages: 16,000 from 155,000 links. It keeps the fragment, so that the
            # fingerprinter has to recognize that page#a and page#b are one page.
            for href in {href.partition("#")[0]: href for href in hrefs}.values():
                url = response.urljoin(href)
                if url.startswith(root) and urldefrag(url).url.endswith(".html"):
                    yield scrapy.Request(url)
        yield {"path": page}
        self.record("done", page)
""",
    before="from urllib.parse import urldefrag\n",
)


@pytest.fixture(scope="module")
def start_url() -> Iterator[str]:
    """Serve the folder PAGES, and yield the URL of its first page."""
    if not (PAGES / "index.html").is_file():
        pytest.skip(f"no pages in {PAGES}: install python3.11-doc, or name a folder in DQ_TEST_PAGES")
    command = [sys.executable, "-c", SERVER, str(PAGES)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout
        os.set_blocking(server.stdout.fileno(), False)
        port = int(wait_until(server.stdout.readline, "the server prints its port"))
        yield f"http://127.0.0.1:{port}/index.html"
        server.kill()


def report(crawl: str, project: Project, began: float, held: int = 0) -> set[str]:
    """Print the figures of a crawl, and return the processed pages with their statuses."""
    seconds = time.monotonic() - began
    done = project.count("done")
    repeats = sum(done.values()) - len(done)
    missing = sum(page.startswith("404:") for page in done)
    print(
        f"{crawl}: {len(done)} pages ({missing} of them 404), {seconds:.1f} s, {repeats} repeats, "
        f"{held} leases held at the kill"
    )
    assert repeats <= held
    assert set(project.count("item")) == set(done)
    return set(done)


def test_many_workers_process_the_pages_that_plain_scrapy_does(
    start_url: str, start_redis: StartRedis, make_project: MakeProject
) -> None:
    """One worker, and three workers with a kill midway, process the same URLs as Scrapy's scheduler."""
    redis = start_redis(appendonly=True)
    plain = make_project([start_url], spider=SPIDER, settings=PLAIN)
    began = time.monotonic()
    assert plain.run_worker(timeout_s=TIMEOUT_S).close_reason == "finished"
    pages = report("plain Scrapy", plain, began)
    assert len(pages) > 100

    one = make_project([start_url], redis_url=redis.url, spider=SPIDER)
    began = time.monotonic()
    assert one.run_worker(timeout_s=TIMEOUT_S).close_reason == "finished"
    assert report("1 worker", one, began) == pages

    three = make_project([start_url], redis_url=redis.url, spider=SPIDER)
    began = time.monotonic()
    victim, *others = three.start_workers(3)
    wait_until(lambda: len(three.count("done")) >= len(pages) // 2, "half the pages are done", TIMEOUT_S)
    victim.kill()
    with connect_url(redis.url) as client:
        members = peek(client, three.name).members
    held = sum(member.in_flight for member in members if member.identity.get("pid") == victim.pid)
    for worker in others:
        worker.wait(TIMEOUT_S)
        assert worker.close_reason == "finished"
    assert victim.close_reason is None
    assert report("3 workers, 1 killed", three, began, held) == pages
