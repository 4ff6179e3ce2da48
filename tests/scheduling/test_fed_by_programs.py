"""A program without Scrapy uses a Queue to feed a spider's crawl, or to process its requests."""

from __future__ import annotations

import queue

import pytest

from queues.conftest import Background
from scrapy_dq import Queue
from support.given import Look, MakeProject, StartSite, Tree
from support.waiting import wait_until


def test_a_program_feeds_a_crawl_before_its_spider_starts(
    make_project: MakeProject, start_site: StartSite, redis_url: str, look: Look
) -> None:
    """URLs and dicts become requests. The spider accepts the program's crawl as its own, and finishes it."""
    site = start_site(pages=30)
    project = make_project([], redis_url=redis_url)
    with Queue(project.name, url=redis_url) as q:
        q.put(site.start_url)
        q.put({"url": site.url("/p/29?once"), "method": "HEAD", "callback": "parse"})
        q.put(7)
        assert q.qsize() == 3
    assert look(project).phase == "open"
    worker = project.run_to_end()
    assert set(site.hits()) == {*(f"/p/{k}" for k in range(30)), "/p/29?once"}
    assert "arguments" not in worker.text
    assert "a int is neither a URL nor a dict of a request's attributes" in worker.text
    assert look(project).census.dead == 1
    assert look(project).phase == "finished"


def test_a_spider_waits_while_a_queue_is_open(
    make_project: MakeProject, start_site: StartSite, redis_url: str
) -> None:
    """join() returns when all pages are crawled. The crawl ends when the program closes its queue."""
    site = start_site(pages=20)
    project = make_project([], redis_url=redis_url)
    with Queue(project.name, url=redis_url) as q:
        with pytest.raises(queue.Empty):
            q.get_nowait()  # joins the crawl; otherwise the spider could find no request and finish
        worker = project.start_worker()
        for round_ in range(2):
            q.put(site.url(f"/p/0?{round_}"))
            Background(q.join).wait(60)
            assert site.hits()[f"/p/0?{round_}"] == 1
        assert len(site.hits()) == 21
        assert worker.running
    wait_until(lambda: not worker.running, "the spider closes", 20)
    assert project.wait() == ["finished"]


def test_a_program_takes_the_requests_that_a_spider_found(tree: Tree, redis_url: str) -> None:
    """The program gets a stopped crawl's requests as dicts. Requests that the program finishes are done."""
    site, project = tree(settings={"CLOSESPIDER_PAGECOUNT": 20}, pages=200, latency_s=0.02)
    worker = project.run_worker()
    assert worker.close_reason == "closespider_pagecount"
    with Queue(project.name, url=redis_url) as q:
        left = q.qsize()
        urls = set()
        for _ in range(left):
            urls.add(q.get(timeout=60)["url"])
            q.task_done()
        Background(q.join).wait(60)
    assert left == len(urls) > 0
    assert not any(url.removeprefix(site.url("")) in site.hits() for url in urls)
    assert project.run_worker().close_reason == "finished"
