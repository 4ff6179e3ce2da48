"""The example project's spider that visits pages again. (`make demo` runs the other spider.)"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections import Counter
from pathlib import Path

from support.redis_server import RedisServer
from support.waiting import wait_until
from support.worker import Worker

ROOT = Path(__file__).parents[2]


def test_products_that_are_sold_are_visited_again(
    tmp_path: Path, redis_server: RedisServer, crawl_name: str
) -> None:
    """The spider visits products until it is stopped."""
    project = shutil.copytree(ROOT / "example_project", tmp_path / "shop")
    environ = {**os.environ, "PYTHONPATH": str(project), "PYTHONUNBUFFERED": "1"}
    python, visits = [sys.executable, "-m"], tmp_path / "visits.jsonl"
    site = Worker(
        [*python, "bookshop.site", "--port", "0", "--changing", "--latency", "0", "--log", str(visits)],
        project, tmp_path / "site.log", environ,
    )  # fmt: skip
    try:
        url = wait_until(lambda: re.search(r"http://\S+", site.text), "the shop prints its address", 30)[0]
        settings = {
            "REDIS_URL": redis_server.url,
            "DQ_CRAWL": crawl_name,
            "BOOKSHOP_URL": url,
            "DQ_REVISIT": "adaptive:1s..4s, field=stock",
        }
        options = [word for name, value in settings.items() for word in ("-s", f"{name}={value}")]
        words = [*python, "scrapy", "crawl", "stock", *options]
        spider = Worker(words, project, tmp_path / "spider.log", environ)
        try:

            def products() -> Counter[str]:
                lines = visits.read_bytes().rpartition(b"\n")[0].splitlines() if visits.exists() else []
                return Counter(json.loads(line)["path"] for line in lines if b"/product" in line)

            wait_until(lambda: products() and max(products().values()) >= 3, "a product is visited again", 60)
            spider.terminate()
            assert spider.wait() == 0
        finally:
            if spider.running:
                spider.kill()
    finally:
        site.kill()
    assert spider.close_reason == "shutdown"
    assert spider.stats["dq/revisits"] > 0
