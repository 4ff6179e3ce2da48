"""Stored entries that cannot be crawled become dead letters with a reason. The engine never gets them."""

from __future__ import annotations

import pickle
from contextlib import closing
from typing import Any

import msgpack

from scrapy_dq.backend.clients import connect_url
from scrapy_dq.frontier import kept
from scrapy_dq.frontier.model import Identity
from support.given import Errors, Look, Reasons, Tree
from support.live_frontier import HandWorker, LiveFrontier, put
from support.tree_spider import spider_of

IDENTITY = Identity(
    "scrapy.utils.request.RequestFingerprinter",
    "tree_project.spiders.spider.ProjectSpider",
    "{}",
    partition_by="slot",
)
CLASS, URL, CALLBACK, HEADERS, META, PRIORITY, CB_KWARGS = 0, 1, 2, 5, 8, 10, 13
PAGE = "http://127.0.0.1/p/1"


def entry(fields: dict[int, Any], version: int = 1) -> bytes:
    """Return an entry as another program could write it."""
    return bytes((version,)) + msgpack.packb(fields)


def nested(depth: int) -> bytes:
    """Return an entry with *depth* nested arrays in its meta."""
    return bytes((1,)) + b"\x82\x01" + msgpack.packb(PAGE) + b"\x08\x81\xa1a" + b"\x91" * depth + b"\xc0"


# For each name: a payload, and a part of the reason with which it is buried.
HOSTILE: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "its format is None"),
    "another format": (entry({URL: PAGE}, version=9), "its format is 9"),
    "a pickle": (pickle.dumps({"url": PAGE}), "its format is 128"),
    "garbage": (b"\x01\xc1\xff\x00", ""),
    "half an entry": (entry({URL: PAGE})[:-3], ""),
    "no dict": (b"\x01" + msgpack.packb([PAGE]), "expected dict"),
    "no URL": (entry({CALLBACK: "parse"}), "it has no url"),
    "a local file": (entry({URL: "file:///etc/passwd"}), "DQ_URL_SCHEMES"),
    "an unknown callback": (entry({URL: PAGE, CALLBACK: "parse_gone"}), "has no callback 'parse_gone'"),
    "a dunder": (entry({URL: PAGE, CALLBACK: "__init__"}), "has no callback '__init__'"),
    "a hook of Scrapy's": (entry({URL: PAGE, CALLBACK: "closed"}), "has no callback 'closed'"),
    "a class from elsewhere": (entry({CLASS: "os.system", URL: PAGE}), "not an imported subclass of Request"),
    "a header in a header": (entry({URL: PAGE, HEADERS: {b"A": [b"b\r\nC: d"]}}), "CR, LF"),
    "an invalid meta": (entry({URL: PAGE, META: [1]}), "expected dict"),
    "an invalid priority": (entry({URL: PAGE, PRIORITY: "1"}), "a priority is an int"),
    "an attribute of tomorrow": (entry({URL: PAGE, 99: 1}), "this version of scrapy_dq has it"),
    "a deep nest": (nested(5_000), ""),
    "a mebibyte too much": (entry({URL: PAGE, META: {"a": "x" * 2**20}}), "DQ_MAX_ENTRY_BYTES"),
}


def test_hostile_entries_become_dead_letters_and_the_crawl_ends(
    redis_url: str, tree: Tree, look: Look, reasons: Reasons, errors: Errors
) -> None:
    """Each entry is buried with a reason, and counted. Nothing is raised, and all other pages are crawled."""
    site, project = tree(pages=9)
    with closing(LiveFrontier(redis_url, project.name)) as live:
        stranger = HandWorker(live, "stranger", IDENTITY)
        payloads = [payload for payload, _ in HOSTILE.values()]
        payloads.append(entry({URL: site.url("/good?s=0"), CALLBACK: "parse"}))
        stranger.exchange(*(put(n, payload=payload) for n, payload in enumerate(payloads)))
        stranger.leave()

        worker = project.run_worker(timeout_s=30)
        assert worker.close_reason == "unserved", worker.text
        assert project.count() == dict.fromkeys(site.paths | {"/good?s=0"}, 1)
        # Other code might serve some of these entries. They are declined first, and count as unserved.
        unserved = look(project).census.unserved
        assert [line for line in errors(worker) if "became dead letters because no worker" not in line] == []
        assert "Traceback" not in worker.text
        assert worker.stats["dq/buried"] == len(HOSTILE) - unserved
        assert look(project).census.dead == len(HOSTILE)
        given = reasons(project)
        assert all(given)
        for case, (_, part) in HOSTILE.items():
            assert any(part in reason for reason in given), case


# These requests can be decoded, but a part of Scrapy raises an error for them. Each has a page of the site.
TROUBLE: dict[str, dict[int, Any]] = {
    "cb_kwargs": {CB_KWARGS: {"surprise": 1}},
    "slot": {META: {"download_slot": [1]}},
    "timeout": {META: {"download_timeout": "soon"}},
    "depth": {META: {"depth": "deep"}},
    "proxy": {META: {"proxy": 5}},
    "cookiejar": {META: {"cookiejar": [1]}},
    "redirects": {META: {"redirect_times": "x", "retry_times": "y"}},
    "latency": {META: {"handle_httpstatus_list": 5}},
    "seeded": {META: {"is_start_request": [1]}},
}


def test_requests_that_make_scrapy_raise_do_not_stop_the_crawl(
    redis_url: str, tree: Tree, look: Look
) -> None:
    """If a middleware or the downloader raises an error because of a meta, only this request fails."""
    site, project = tree(pages=9)
    with closing(LiveFrontier(redis_url, project.name)) as live:
        stranger = HandWorker(live, "stranger", IDENTITY)
        payloads = [
            entry({URL: site.url(f"/{case}?s=0"), CALLBACK: "parse"} | fields)
            for case, fields in TROUBLE.items()
        ]
        stranger.exchange(*(put(n, payload=payload) for n, payload in enumerate(payloads)))
        stranger.leave()
        project.run_to_end(timeout_s=30)
        assert site.paths <= project.count().keys()
        assert look(project).census.in_flight == 0


NOWHERE = spider_of("""
    def parse(self, response):
        for host in ("a" * 600, ".".join(["a" * 60] * 9)):
            for number in range(5):
                yield response.follow(f"http://{host}/{number}")
""")


def test_links_to_hosts_that_cannot_exist_fail_and_leave_no_dead_letters(
    redis_url: str, tree: Tree, look: Look
) -> None:
    """A page can have 20,000 such links. Redis keeps all dead letters, but only the newest failures."""
    _, project = tree(
        spider=NOWHERE,
        settings={"RETRY_TIMES": 1, "CONSTANTS": {"scrapy_dq.frontier.frontier.Frontier.keep_failed": 3}},
        pages=1,
    )
    worker = project.run_to_end(timeout_s=60)
    assert worker.stats["retry/count"] == 10
    assert look(project).census.dead == 0
    assert look(project).census.failed == 10
    with connect_url(redis_url) as client:
        assert len(kept(client, project.name, "failed")) == 3
