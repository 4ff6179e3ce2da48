"""Exports the feeds of a crew from the journals of its workers: one process for each feed."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from scrapy_dq.crew.errors import Interrupted
from scrapy_dq.crew.feeds.export import MIB, VARIABLE
from scrapy_dq.crew.feeds.folder import ItemsFolder, Run, read_json, write_json
from scrapy_dq.crew.feeds.journal import Work
from scrapy_dq.crew.feeds.plan import Feed
from scrapy_dq.crew.pipes import Child
from scrapy_dq.crew.worker_process import describe_exit

TICK_S = 0.05
GRACE_S = 10.0
"""Maximum seconds that a process gets to remove its unfinished file, which a busy machine may delay."""


class Bar(Protocol):
    """Shows progress; see commands/output/display.py."""

    def begin(self, label: str, total: int) -> None: ...
    def advance(self, count: int) -> None: ...


class Exported(NamedTuple):
    """The result for one feed."""

    name: str
    """A path, or a URI without its login."""
    items: int
    appended: bool
    """The file holds other content before these items."""


class Exports(NamedTuple):
    """The feeds of one crew, and how they are exported."""

    feeds: Sequence[Feed]
    folder: ItemsFolder
    command: Sequence[str]
    """The command line of an exporting process."""
    lock: int
    """The descriptor of the folder's lock. Exporting processes inherit it, so the folder stays locked as long
    as they run."""
    began: datetime
    """When the crew began."""
    say: Callable[[str], None]

    def run(
        self, run: Run, bar: Bar, stopped: Callable[[], None], *, finished: bool, began_run: bool
    ) -> tuple[list[Exported], list[str]]:
        """Export all feeds; before the run is finished, export only the feeds that can be replaced later.

        CRASH at any line: the next crew with feeds exports again, with the same result.

        Args:
            stopped: called repeatedly; raises Interrupted to stop. Each feed is then unchanged or complete.
            began_run: nothing was crawled in the run before this crew.
        Returns:
            The results of the stored feeds, and a message for each feed that failed.
        """
        folder = self.folder
        of_run = folder.journals(run)
        others = [path for path in folder.open_journals() if path not in of_run]
        if others:
            self.say("Earlier runs have left items that are in no feed: -o adds them, -O does not")
        time_of_run = folder.state(run, "time")
        if not time_of_run.exists():
            write_json(time_of_run, (self.began.isoformat(), not began_run))
        began, keeps = read_json(time_of_run)
        processes: list[_Process] = []
        size = 0
        try:
            with (folder.path / "export.log").open("wb") as log:
                for feed in self.feeds:
                    if finished or feed.is_local:
                        journals = of_run if feed.overwrite else [*others, *of_run]
                        size += sum(path.stat().st_size for path in journals)
                        work = Work(feed.uri, run, began, keeps, list(map(str, journals)))
                        processes.append(_Process(feed, work, self.command, log, self.lock))
                    else:
                        self.say(f"{feed.name}: is written when the run is finished")
            bar.begin("MiB read", 2 * size // MIB)
            while processes and not min([each.attend(bar) for each in processes]):
                stopped()
                time.sleep(TICK_S)
        except Interrupted:
            self.say("The export is interrupted")
        finally:
            for each in processes:
                each.terminate()
            for each in processes:
                each.close()
        failures = [
            f"{each.feed.name} is not written: {each.problem.rstrip('.')}. Its items and export.log stay in "
            f"{folder.path}; the same command, also with another -o, writes the feed"
            for each in processes
            if each.stored is None
        ]
        if len(processes) == len(self.feeds) and not failures:
            folder.settle([*others, *of_run], run)
        return [each.stored for each in processes if each.stored], failures


class _Process(Child):
    """A process that exports one feed."""

    def __init__(self, feed: Feed, work: Work, command: Sequence[str], log: Any, lock: int) -> None:
        self.feed = feed
        self.stored: Exported | None = None
        self.problem = ""
        self._done = 0
        super().__init__(
            command, lambda reports: {VARIABLE: str(reports)}, lock,
            stdin=subprocess.PIPE, stdout=log, stderr=log,
        )  # fmt: skip
        assert self.stdin is not None
        with suppress(BrokenPipeError), self.stdin as given:
            given.write(json.dumps(work).encode())

    def attend(self, bar: Bar) -> bool:
        """Read the reports of the process, and return whether it has ended."""
        status = self.poll()
        for report in self.reader.read():
            self.problem = report.get("error", self.problem)
            done = report.get("done", self._done)
            bar.advance(done - self._done)
            self._done = done
            if "end" in report:
                name, items, appends = report["end"].values()
                self.stored = Exported(name if self.feed.is_local else self.feed.name, items, appends)
        if status is not None:
            self.problem = self.problem or describe_exit(status)
        return status is not None

    def close(self) -> None:
        """Wait for the end of the process; kill it after GRACE_S."""
        self.problem = self.problem or "interrupted"
        with suppress(subprocess.TimeoutExpired):
            self.wait(GRACE_S)
        self.kill()
        self.wait()
        self.reader.close()
