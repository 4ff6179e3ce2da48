"""Take the pictures of `scrapy dq web` for docs/watching.md: a crawl of the bookshop, in Chromium.

    make screenshots

Three workers crawl; one is killed; some URLs that nobody serves fail. Each page is taken in light, in dark,
and in the width of a telephone.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from playwright import sync_api

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "example_project"))

from processes import running, wait_for_url  # noqa: E402

PICTURES = Path(__file__).parent
CRAWL = "books"
TOKEN = "only-for-these-pictures"
PAGES = {
    "crawls": "",
    "crawl": f"/crawl/{CRAWL}",
    "events": f"/crawl/{CRAWL}/events",
    "failed": f"/crawl/{CRAWL}/failed",
    "request": f"/crawl/{CRAWL}/failed",
    "dead": f"/crawl/{CRAWL}/dead",
    "settings": "/settings",
}
LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1200, "height": 860}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1200, "height": 860}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 780}, "color_scheme": "light"},
}
LATENCY_S = 4.0
KILLED_AT, SHOWN_AT = 100, 450
"""Requests that are done by then."""
LONGEST_S = 300.0


def main() -> None:
    """Write the pictures anew."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        raise SystemExit("No Chromium is installed: apt-get install chromium")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bookshop-")))
        project = folder / "project"
        shutil.copytree(ROOT / "example_project", project, ignore=shutil.ignore_patterns(".*", "items"))
        env = os.environ | {"DQ_WEB_TOKEN": TOKEN}
        site = ("bookshop.site", "--port", "0", "--latency", str(LATENCY_S))
        log = stack.enter_context((folder / "site.log").open("wb"))
        stack.enter_context(running(*site, cwd=project, env=env, output=log))
        env["BOOKSHOP_URL"] = wait_for_url(folder / "site.log")
        options = ("-s", "REDIS_URL=", "-s", "FEEDS={}")
        crew = ("scrapy", "dq", "crawl", CRAWL, "-w", "3", *options)
        stack.enter_context(running(*crew, cwd=project, env=env))
        _wait_for(project, env, 1)
        urls = [f"http://127.0.0.1:{9 + n % 2}/product/{n}" for n in range(40)]
        _dq(project, env, "push", CRAWL, "--priority", "100", *urls)
        _wait_for(project, env, KILLED_AT)
        pid = json.loads(_dq(project, env, "workers", CRAWL, "--json", "--no-rate"))["workers"][0]["pid"]
        os.kill(pid, signal.SIGKILL)
        log = stack.enter_context((folder / "page.log").open("wb"))
        page = ("scrapy", "dq", "web", CRAWL, "--port", "0", "--allow-steering", *options[:2])
        stack.enter_context(running(*page, cwd=project, env=env, output=log))
        address = wait_for_url(folder / "page.log").partition("#")[0]
        _wait_for(project, env, SHOWN_AT)
        playwright = stack.enter_context(sync_api.sync_playwright())
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        tabs = {look: browser.new_context(**of).new_page() for look, of in LOOKS.items()}
        for name, route in PAGES.items():
            for tab in tabs.values():
                tab.goto(f"{address}#token={TOKEN}&{route or '/'}")
                tab.reload()
                tab.get_by_role("heading", level=1).wait_for()
                if name == "request":
                    tab.locator("main a[href*='/failed/']").first.click()
            time.sleep(7)  # until there are rates
            for look, tab in tabs.items():
                tab.screenshot(path=PICTURES / f"page-{name}-{look}.png")
                print(f"page-{name}-{look}.png", flush=True)


def _dq(project: Path, env: dict[str, str], *words: str) -> str:
    command = [sys.executable, "-m", "scrapy", "dq", *words, "-s", "REDIS_URL="]
    return subprocess.run(command, cwd=project, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout


def _wait_for(project: Path, env: dict[str, str], done: int) -> None:
    until = time.monotonic() + LONGEST_S
    while time.monotonic() < until:
        command = [
            sys.executable,
            "-m",
            "scrapy",
            "dq",
            "status",
            CRAWL,
            "--no-rate",
            "--json",
            "-s",
            "REDIS_URL=",
        ]
        found = subprocess.run(command, cwd=project, env=env, check=False, capture_output=True, text=True)
        if found.returncode == 0 and json.loads(found.stdout)["done"] >= done:
            return
        time.sleep(0.5)
    raise SystemExit(f"the crawl did not come to {done} requests")


if __name__ == "__main__":
    main()
