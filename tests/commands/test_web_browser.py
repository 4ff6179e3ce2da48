"""The page of `scrapy dq web` in Chromium: its views and actions, hostile data, keyboard, and phone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from scrapy import Request
from scrapy.utils.request import RequestFingerprinter

pytest.importorskip("starlette", reason="the extra `web` is not installed")
pytest.importorskip("playwright", reason="the extra `browser` is not installed")

from playwright import sync_api

from scrapy_dq.frontier.admin.control import Command, steer
from scrapy_dq.frontier.admin.overview import peek
from scrapy_dq.frontier.model import Admission, Order
from scrapy_dq.frontier.moves import Bury, Fail
from support.failed_records import add_hostile
from support.given import StartProxy, StartRedis
from support.live_frontier import IDENTITY, HandWorker, LiveFrontier, ack, put, puts
from support.redis_server import RedisServer
from support.samples import add_samples
from support.stored_requests import stored
from support.web_page import TOKEN, WebPage

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
AXE = Path(__file__).parents[2] / ".axe/node_modules/axe-core/axe.min.js"
PATIENCE_MS = 60_000
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed: apt-get install chromium")


class Live(LiveFrontier):
    """Makes its calls in another thread, because Playwright's sync API runs an event loop in this thread."""

    def run(self, work: Awaitable[Any]) -> Any:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(super().run, work).result()

    def close(self) -> None:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(super().close).result()


@pytest.fixture
def live(server: RedisServer, crawl_name: str) -> Iterator[LiveFrontier]:
    with closing(Live(server.url, crawl_name)) as live:
        yield live


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


@pytest.fixture(scope="module")
def pages(server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, WebPage]]:
    """Yield a page that only reads, and a page that steers and needs a token."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(
                WebPage(tmp_path_factory.mktemp(name), server.url, *words, token=token, unpaced=True)
            )
            for name, words, token in (("reads", (), ""), ("steers", ("--allow-steering",), TOKEN))
        }


class Browser:
    """A browser tab. If a script or the page's policy reports an error, the test fails at its end."""

    def __init__(self, chromium: Any, web: WebPage, **options: Any) -> None:
        self.web = web
        self.context = chromium.new_context(**options)
        self.tab = self.context.new_page()
        self.tab.set_default_timeout(PATIENCE_MS)
        self.complaints: list[str] = []
        self.is_cut_off = False
        """Whether the page's server has ended. Then the browser reports each new request as an error."""
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.on("console", self._note)
        self.tab.on("dialog", lambda dialog: self.complaints.append(dialog.message))

    def _note(self, said: Any) -> None:
        if said.type == "error" and not (self.is_cut_off and "net::ERR_" in said.text):
            self.complaints.append(said.text)

    def open(self, where: str) -> Any:
        """Open *where*, the part of the address after #, and return the tab."""
        token = f"token={self.web.token}&" if self.web.token else ""
        self.tab.goto("about:blank")
        self.tab.goto(f"{self.web.origin}/#{token}{where}")
        return self.tab

    def see(self, text: str, within: str = "main") -> Any:
        """Wait until *text* is visible."""
        found = self.tab.locator(within).get_by_text(text).first
        found.wait_for()
        return found

    def said(self) -> str:
        """Return the page's message about an action, and clear it for the next one."""
        toast = self.tab.locator("#toast:not(:empty)")
        toast.wait_for()
        text = str(toast.text_content())
        self.tab.evaluate("document.getElementById('toast').textContent = ''")
        return text

    def click(self, name: str, within: str = "main") -> None:
        self.tab.locator(within).get_by_role("button", name=name, exact=True).first.click()


@pytest.fixture
def browse(chromium: Any, pages: dict[str, WebPage]) -> Iterator[Callable[..., Browser]]:
    """Yield a function that opens a tab."""
    opened: list[Browser] = []

    def make(web: str | WebPage = "reads", **options: Any) -> Browser:
        opened.append(Browser(chromium, pages[web] if isinstance(web, str) else web, **options))
        return opened[-1]

    yield make
    for browser in opened:
        browser.context.close()
        assert browser.complaints == []


def crawl_with_failures(live: LiveFrontier, worker: HandWorker) -> None:
    """Let two requests fail for one cause and a third for another. A fourth is a dead letter. Others wait."""
    worker.exchange(*[put(n, payload=stored(f"http://a.example/{n}")) for n in range(4)], want=4)
    reasons = ("Timeout after 1 s", "Timeout after 2 s", "KeyError: 'price'")
    worker.exchange(
        *[Fail(b"%012d" % n, reason, f"http://a.example/{n}") for n, reason in enumerate(reasons)],
        Bury(b"%012d" % 3, "its workers died 3 times"),
    )
    worker.exchange(*puts(b"a.example", 5, 10), *puts(b"b.example", 3, 20))


def where(live: LiveFrontier, *rest: str) -> str:
    return "/".join(["/crawl", quote(live.crawl, safe=""), *rest])


def all_pages(live: LiveFrontier) -> dict[str, str]:
    """Return the address of each page, with a text that the page shows."""
    return {
        "/": live.crawl, where(live): "b.example", where(live, "failed"): "KeyError: 'price'",
        where(live, "events"): "When", where(live, "dead"): "its workers died 3 times",
        "/settings": "DQ_WORKER_TTL", where(live, "failed", (b"%012d" % 2).hex()): "callback",
    }  # fmt: skip


@pytest.mark.parametrize("size", [(1280, 800), (360, 640)], ids=["desk", "telephone"])
def test_every_page(browse: Any, live: LiveFrontier, worker: HandWorker, size: tuple[int, int]) -> None:
    """Each view has one heading and a title, and is not wider than the screen."""
    crawl_with_failures(live, worker)
    browser = browse(viewport={"width": size[0], "height": size[1]})
    for page, text in all_pages(live).items():
        tab = browser.open(page)
        browser.see(text)
        assert tab.locator("h1").count() == 1
        assert tab.title().endswith(" – scrapy_dq")
        assert tab.evaluate("document.documentElement.scrollWidth") <= size[0]
        assert tab.locator("#banner").is_hidden()
    tab = browser.open("/")
    browser.see(live.crawl).click()
    browser.see("Failed", "nav.tabs").click()
    browser.see("http://a.example/2").click()
    browser.see("parse_page")
    tab.go_back()
    browser.see("http://a.example/2")


def test_the_page_is_live_while_a_worker_crawls_and_is_killed(browse: Any, live: LiveFrontier) -> None:
    """Counts change in place, and the focus stays. A dead worker becomes the first in the list."""
    identity = "import json; from scrapy_dq.frontier.worker.identity import own_identity as own"
    code = f"{identity}; print(json.dumps(own()), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        worker = HandWorker(live, "worker")
        HandWorker(live, "another")
        live.redis.hset(live.key("worker:worker"), "identity", process.stdout.readline())
        worker.exchange(*puts(b"a.example", 20))
        held = worker.take(5)
        browser = browse()
        tab = browser.open(where(live))
        browser.see("running")
        link = tab.locator("dl a").first
        link.focus()
        worker.exchange(*map(ack, held))
        browser.see("5 of 20 known")
        assert link.evaluate("node => node === document.activeElement")
        process.kill()
    browser.see("dead", "tbody tr:first-child")


def test_the_history_is_shown(browse: Any, live: LiveFrontier) -> None:
    """The page has curves of hours or days, with a mark for each event, and a list of the events."""
    HandWorker(live, "worker", replace(IDENTITY, starts="{}"))
    add_samples(live, 200, round(time.time()) - 1900)
    browser = browse(viewport={"width": 360, "height": 640})
    tab = browser.open(where(live))
    browser.see("Pages per second")
    assert tab.get_by_role("img").count() == 4
    assert "now 100.0, at most 100.1" in tab.get_by_role("img").first.get_attribute("aria-label")
    assert tab.locator("figure").first.locator("line").count() >= 1
    tab.get_by_role("button", name="2 days").click()
    tab.locator("button[aria-pressed=true]", has_text="2 days").wait_for()
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360
    tab.get_by_role("link", name="Events").click()
    browser.see("a worker joined", "main table")
    steer(live.redis, live.crawl, Command.PAUSE, "ann@desk")
    browser.see("paused", "main table")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 360


def test_an_outage_and_its_end_are_shown(
    browse: Any,
    start_redis: StartRedis,
    start_proxy: StartProxy,
    tmp_path: Path,
) -> None:
    """The page keeps showing the data, with its age. After the outage, the data is live again."""
    proxy = start_proxy(start_redis().url)
    with (
        closing(Live(proxy.url, "first", Order.FIFO)) as live,
        WebPage(tmp_path, proxy.url, unpaced=True) as web,
    ):
        worker = HandWorker(live, "worker")
        worker.exchange(*puts(b"a.example", 7))
        browser = browse(web)
        tab = browser.open("/crawl/first")
        browser.see("Live", "#state")
        proxy.refuse()
        browser.see("Redis does not answer", "#banner")
        browser.see("s old", "#state")
        browser.see("0 of 7 known")
        proxy.pass_through()
        browser.see("Live", "#state")
        tab.locator("#banner").wait_for(state="hidden")
        browser.is_cut_off = True
        web.end()
        browser.see(
            "No data" if tab.locator("#state-text").text_content() == "Connecting" else "s old", "#state"
        )


def test_hostile_values_stay_text(browse: Any, server: RedisServer, live: LiveFrontier) -> None:
    """With 1,000 hostile failed requests and a hostile crawl name, no script runs, and the layout holds."""
    name = f'{live.crawl}"><img src=x onerror=alert(1)>\u202e/#%'
    with closing(Live(server.url, name, Order.FIFO)) as hostile:
        worker = HandWorker(hostile, "<b>worker</b>\u202e")
        add_hostile(hostile, worker)
        worker.exchange(*[put(n, partition=b"<i>%d</i> \xe2\x80\xae" % n) for n in range(2000, 2020)])
        browser = browse(viewport={"width": 360, "height": 640})
        own = "document.querySelectorAll('main :is(script, img, b, i, a[href^=javascript])').length"
        for page, text in (
            (where(hostile), "<i>2000</i>"), ("/", name[:30]),
            (where(hostile, "failed"), "<script>alert(1)</script>"),
            (where(hostile, "failed", (b"%012d" % 0).hex()), "<script>alert(1)</script>"),
        ):  # fmt: skip
            tab = browser.open(page)
            browser.see(text)
            assert tab.evaluate(own) == 0
            assert tab.evaluate("document.documentElement.scrollWidth") <= 360
            assert tab.locator("tbody tr").count() <= 1_020  # the server sends at most 1,000 requests
            assert "\u202e" not in tab.title() + tab.locator("body").text_content()
        with pytest.raises(sync_api.Error, match="TrustedHTML"):
            tab.evaluate("document.body.innerHTML = '<b>x</b>'")
        hostile.redis.delete(*hostile.redis.keys(f"{hostile.key('')}*"))
    browser.complaints.clear()  # the report of Trusted Types


def test_every_action(browse: Any, live: LiveFrontier, worker: HandWorker) -> None:
    """Each action has a button, and a harmful action asks first."""
    crawl_with_failures(live, worker)
    browser = browse("steers")
    tab = browser.open(where(live))
    for action, hold in (("Pause", "paused"), ("Resume", ""), ("Drain", "draining"), ("Resume", "")):
        browser.click(action)
        if hold:
            browser.click(action, "#dialog")
        assert "1 worker registered" in browser.said()
        assert peek(live.redis, live.crawl).hold.value == hold
        browser.see(f"open, {hold}" if hold else "open", ".title")
    browser.click("Stop")
    browser.click("Cancel", "#dialog")
    assert peek(live.redis, live.crawl).stops == 0
    browser.click("Stop")
    browser.click("Stop", "#dialog")
    browser.said()
    assert peek(live.redis, live.crawl).stops == 1
    browser.click("Limit", "tbody tr")
    assert tab.get_by_label("Partition (usually a host)").input_value() == "a.example"
    tab.get_by_label("Seconds between two requests").fill("0.5")
    tab.get_by_label("Block it for seconds").fill("600")
    browser.click("Set", "#dialog")
    assert browser.said().startswith("a.example: 0.5 s between requests, no limit at once, blocked for")
    assert live.limit(b"a.example") == (0.5, 0, 600)
    url = "http://a.example/seen"
    token = RequestFingerprinter().fingerprint(Request(url))
    worker.exchange(put(90, admission=Admission.SEEN, token=token))
    live.redis.hset(live.key("meta"), "fingerprinter", "scrapy.utils.request.RequestFingerprinter")
    browser.click("Forget")
    tab.get_by_label("URLs, one a line").fill(f"{url}\n\nhttp://a.example/other\n")
    browser.click("Forget", "#dialog")
    assert browser.said() == "Forgotten: 1; not seen before: 1."


def test_the_page_asks_for_the_token(browse: Any, live: LiveFrontier, worker: HandWorker) -> None:
    """The tab keeps the token, but not in its address. A page that only reads has no action buttons."""
    browser = browse("steers")
    tab = browser.tab
    tab.goto(f"{browser.web.origin}/#{where(live)}")
    tab.get_by_label("Token").fill("another-token-of-16")
    browser.click("Open")
    browser.see("The token is wrong.")
    tab.get_by_label("Token").fill(TOKEN)
    browser.click("Open")
    browser.see("Pause")
    tab.reload()
    browser.see("Pause")
    browser.complaints.clear()  # the browser reports each 401
    browser.open(where(live))
    browser.see("Pause")
    assert TOKEN not in tab.url
    assert tab.evaluate("document.cookie") == ""
    reads = browse("reads")
    reads.open(where(live))
    reads.see("Workers")
    buttons = reads.tab.locator("main button:visible").all_text_contents()
    assert set(buttons) <= {"3 hours", "2 days"}


def test_the_page_can_be_used_by_keyboard(browse: Any, live: LiveFrontier, worker: HandWorker) -> None:
    """The first link leads to the content, a new view focuses its heading, and Escape closes a dialog."""
    worker.exchange(put(1))
    browser = browse("steers")
    tab = browser.open(where(live))
    browser.see("Pause")
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.className") == "skip"
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.activeElement.id") == "main"
    tab.get_by_role("link", name="Events").focus()
    tab.keyboard.press("Enter")
    tab.wait_for_function("location.hash.endsWith('/events') && document.activeElement.tagName === 'H1'")
    tab.go_back()
    button = tab.get_by_role("button", name="Drain")
    button.focus()
    tab.keyboard.press("Enter")
    tab.get_by_role("dialog").wait_for()
    tab.keyboard.press("Escape")
    tab.get_by_role("dialog").wait_for(state="hidden")
    assert button.evaluate("node => node === document.activeElement")
    assert peek(live.redis, live.crawl).hold.value == ""


@pytest.mark.skipif(not AXE.exists(), reason="axe is not installed: make browser")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browse: Any, live: LiveFrontier, worker: HandWorker, scheme: str) -> None:
    """axe examines each view and a dialog."""
    crawl_with_failures(live, worker)
    add_samples(live, 60, round(time.time()) - 600)
    browser = browse("steers", color_scheme=scheme, bypass_csp=True)
    found: dict[str, Any] = {}

    def examine(page: str) -> None:
        browser.tab.evaluate(AXE.read_text())
        result = browser.tab.evaluate("axe.run(document, {resultTypes: ['violations']})")
        bad = [each for each in result["violations"] if each["impact"] in ("serious", "critical", "moderate")]
        if bad:
            found[page] = [(each["id"], [node["html"][:200] for node in each["nodes"]]) for each in bad]

    for page, text in all_pages(live).items():
        browser.open(page)
        browser.see(text)
        examine(page)
    browser.open(where(live))
    browser.click("Limit")
    examine("dialog")
    assert found == {}, json.dumps(found, indent=1)
