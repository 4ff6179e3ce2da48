"""A small Scrapy project in a folder, and the workers that crawl it."""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from support.fork_server import Forked, ForkServer
from support.worker import Worker, wait_all

TESTS = Path(__file__).parents[1]

SPIDER = """\
from support.tree_spider import TreeSpider
from tree_project.settings import SPIDER_NAME


class ProjectSpider(TreeSpider):
    name = SPIDER_NAME
"""

SETTINGS: dict[str, Any] = {
    "BOT_NAME": "tree_project",
    "SPIDER_MODULES": ["tree_project.spiders"],
    "SCHEDULER": "scrapy_dq.Scheduler",
    "DUPEFILTER_CLASS": "scrapy_dq.DupeFilter",
    "ITEM_PIPELINES": {"support.tree_spider.ItemRecord": 500},
    "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
    "HTTPPROXY_ENABLED": False,
    "LOG_COLOR": False,
    "LOG_LEVEL": "INFO",
    "TELNETCONSOLE_ENABLED": False,
}

# The code of the package `spiders`, which each process of the project imports.
SET_CONSTANTS = """\
from pkgutil import resolve_name

for name, value in {constants!r}.items():
    owner, _, constant = name.rpartition(".")
    vars(resolve_name(owner))[constant]  # raises if there is none
    setattr(resolve_name(owner), constant, value)
"""

# The settings of a crawl with plain Scrapy.
PLAIN = {
    "SCHEDULER": "scrapy.core.scheduler.Scheduler",
    "DUPEFILTER_CLASS": "scrapy.dupefilters.RFPDupeFilter",
}


class Event(NamedTuple):
    """A line of the record. The event is `start`, `item` or `done`, or an event of a test's own spider."""

    event: str
    pid: int
    path: str


class Project:
    """A Scrapy project with one spider, written into *folder*.

    Args:
        folder: a new or empty folder.
        start_urls: the URLs of the first requests, usually `[site.start_url]`.
        redis_url: the setting REDIS_URL, or None if the project does not set it.
        settings: these replace or extend SETTINGS. The value None removes a setting. CONSTANTS is not a
            setting, but the argument of `set_constants`.
        spider: the source of the module with the spider class, instead of SPIDER.
        name: the name of the spider and of its crawl, by default a random name.
        fork_server: starts all processes, unless they need another environment or a sitecustomize.
    """

    def __init__(
        self,
        folder: Path,
        start_urls: Iterable[str],
        *,
        redis_url: str | None = None,
        settings: Mapping[str, Any] | None = None,
        spider: str = SPIDER,
        name: str | None = None,
        fork_server: ForkServer | None = None,
    ) -> None:
        self.folder = folder
        self._fork_server = fork_server
        self.name = name or f"tree-{secrets.token_hex(6)}"
        self.record = folder / "record.txt"
        self.workers: list[Worker] = []
        written = SETTINGS | {
            "SPIDER_NAME": self.name,
            "START_URLS": list(start_urls),
            "RECORD_PATH": str(self.record),
            "REDIS_URL": redis_url,
        }
        written |= settings or {}
        constants = written.pop("CONSTANTS", {})
        package = folder / "tree_project"
        spiders = package / "spiders"
        spiders.mkdir(parents=True)
        (folder / "scrapy.cfg").write_text("[settings]\ndefault = tree_project.settings\n")
        (package / "__init__.py").touch()
        (package / "settings.py").write_text(
            "".join(f"{key} = {value!r}\n" for key, value in written.items() if value is not None)
        )
        self.set_constants(constants)
        (spiders / "spider.py").write_text(spider)

    def set_constants(self, constants: Mapping[str, Any]) -> None:
        """Set constants of the product, by dotted name, in all processes that start later."""
        text = SET_CONSTANTS.format(constants=dict(constants)) if constants else ""
        (self.folder / "tree_project" / "spiders" / "__init__.py").write_text(text)

    def start_worker(
        self,
        *,
        settings: Mapping[str, Any] | None = None,
        args: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> Worker:
        """Start `scrapy crawl` with *settings* as `-s`, *args* as `-a`, and the variables of *environ*."""
        given = {
            key: json.dumps(value) if isinstance(value, dict) else value
            for key, value in (settings or {}).items()
        }
        options = [part for key, value in given.items() for part in ("-s", f"{key}={value}")]
        options += [part for key, value in (args or {}).items() for part in ("-a", f"{key}={value}")]
        command = self.command("crawl", self.name, *options)
        log = self.folder / f"worker-{len(self.workers)}.log"
        fork_server = None if environ else self._forks  # Python reads its environment when it starts
        worker = Worker(command, self.folder, log, self.environ() | dict(environ or {}), fork_server)
        self.workers.append(worker)
        return worker

    def start_workers(self, count: int, **options: Any) -> list[Worker]:
        """Start *count* workers together, with the *options* of `start_worker`."""
        return [self.start_worker(**options) for _ in range(count)]

    def run_worker(self, *, timeout_s: float = 60.0, **options: Any) -> Worker:
        """Start a worker and wait until it ends. Raise TimeoutError with its log after *timeout_s*."""
        worker = self.start_worker(**options)
        worker.wait(timeout_s)
        return worker

    def run_to_end(self, **options: Any) -> Worker:
        """Run a worker, with the *options* of `run_worker`. Assert that it closes with `finished`."""
        worker = self.run_worker(**options)
        assert worker.close_reason == "finished", worker.text
        return worker

    def wait(self, timeout_s: float = 60.0) -> list[str | None]:
        """Wait until all workers of the project have ended, with one deadline. Return the close reasons."""
        return wait_all(self.workers, timeout_s)

    def close(self) -> None:
        """Kill the workers that still run."""
        for worker in self.workers:
            if worker.running:
                worker.kill()

    def launch(self, words: Sequence[str], out: Path, err: Path) -> subprocess.Popen[bytes] | Forked:
        """Start `scrapy *words` in its own session, with its output and errors in these two files."""
        with out.open("wb") as output, err.open("wb") as errors:
            if self._forks:
                return self._forks.start(words, self.folder, out, err, self.environ())
            return subprocess.Popen(
                self.command(*words), cwd=self.folder, env=self.environ(), stdin=subprocess.DEVNULL,
                stdout=output, stderr=errors, start_new_session=True,
            )  # fmt: skip

    @property
    def _forks(self) -> ForkServer | None:
        """The fork server, or None if there is a sitecustomize, which Python reads only when it starts."""
        return None if (self.folder / "sitecustomize.py").exists() else self._fork_server

    def command(self, *words: str) -> list[str]:
        """Return the command line of `scrapy *words`."""
        return [sys.executable, "-m", "scrapy", *words]

    def environ(self) -> dict[str, str]:
        """Return the environment in which a worker can import this folder, `support` and `scrapy_dq`."""
        path = [str(self.folder), str(TESTS)]
        # Use the same package as this process: the checkout, or the installed wheel under tox.
        package = importlib.util.find_spec("scrapy_dq")
        if package and package.submodule_search_locations:
            path.append(str(Path(package.submodule_search_locations[0]).parent))
        environ = os.environ | {"PYTHONPATH": os.pathsep.join(path), "PYTHONUNBUFFERED": "1"}
        # Python would run the old bytecode if a test rewrites a module within a second and keeps its length.
        environ["PYTHONDONTWRITEBYTECODE"] = "1"
        environ.pop("SCRAPY_SETTINGS_MODULE", None)
        return environ

    def events(self) -> list[Event]:
        """Return the record of all workers in the order of writing."""
        if not self.record.exists():
            return []
        # While a worker writes a line that crosses a page boundary of the file, the line may be incomplete.
        whole = self.record.read_text().rpartition("\n")[0]
        lines = (line.split(" ", 2) for line in whole.splitlines())
        return [Event(event, int(pid), path) for event, pid, path in lines]

    def count(self, event: str = "done", *, pids: Sequence[int] | None = None) -> Counter[str]:
        """Return how often *event* was recorded for each path, by all processes or by the ones in *pids*."""
        return Counter(e.path for e in self.events() if e.event == event and (pids is None or e.pid in pids))
