"""Helpers for crawls that start under scrapy-redis, are adopted, and end under scrapy_dq."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from scrapy.http import Response

from support.project import Project
from support.tree_site import TreeSite
from support.tree_spider import TreeSpider, page_path
from support.waiting import patience, wait_until

SCRAPY_REDIS = {
    "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
    "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
    "SCHEDULER_PERSIST": "True",
}
"""Settings for `-s` with which scrapy-redis crawls a project."""


class MeshSpider(TreeSpider):
    """Also requests the previous page and the page with half the number, although no link leads to them."""

    def parse(self, response: Response) -> Iterator[Any]:
        """Yield the results of TreeSpider and the two requests."""
        yield from super().parse(response)
        number = int(page_path(response).rpartition("/")[2])
        yield response.follow(f"/p/{max(1, number // 2)}", self.parse)
        yield response.follow(f"/p/{max(1, number - 1)}", self.parse, priority=number % 3)


def interrupt(project: Project, site: TreeSite, settings: Mapping[str, Any], part: float) -> None:
    """Crawl with *settings* until *part* of the site is done. Then stop the worker with SIGTERM."""
    worker = project.start_worker(settings=settings)
    goal = int(len(site.paths) * part)
    wait_until(lambda: len(project.count("done")) >= goal or not worker.running, f"{goal} pages are done", 30)
    worker.terminate()
    worker.wait(30)
    assert worker.close_reason == "shutdown", worker.text[-2000:]


class Ended(NamedTuple):
    """A command's output and exit status."""

    stdout: str
    stderr: str
    returncode: int


def run_dq(project: Project, *words: str, timeout_s: float = 60.0) -> Ended:
    """Run `scrapy dq *words` in the project to its end."""
    with TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        process = project.launch(["dq", *words], out, err)
        try:
            status = process.wait(patience(timeout_s))
        finally:
            process.kill()
        return Ended(out.read_text(), err.read_text(), status)


_RUN_EACH = """
import contextlib, io, json, sys
from scrapy.cmdline import execute
found = []
for words in json.loads(sys.argv[1]):
    out, err, status = io.StringIO(), io.StringIO(), 0
    sys.argv = ["scrapy", *words]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            execute(list(sys.argv))
        except SystemExit as end:
            status = end.code or 0
    found.append([out.getvalue(), err.getvalue(), status])
print(json.dumps(found))
"""


def run_dq_each(project: Project, commands: Sequence[Sequence[str]]) -> list[Ended]:
    """Run `scrapy dq` with each of *commands*, all in one process, because Scrapy needs a second to start."""
    words = json.dumps([["dq", *command] for command in commands])
    done = subprocess.run(
        [sys.executable, "-c", _RUN_EACH, words],
        cwd=project.folder,
        env=project.environ(),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return [Ended(*ended) for ended in json.loads(done.stdout)]
