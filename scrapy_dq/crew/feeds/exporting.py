"""Exports the feeds of a crew from the journals of its workers: one process for each feed."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from scrapy_dq.crew.errors import CrewError, Interrupted
from scrapy_dq.crew.feeds.export import VARIABLE
from scrapy_dq.crew.feeds.folder import ItemsFolder
from scrapy_dq.crew.feeds.journal import Work, choose
from scrapy_dq.crew.feeds.plan import Feed
from scrapy_dq.crew.feeds.records import Run, read_json, write_json
from scrapy_dq.crew.pipes import Reader
from scrapy_dq.crew.worker_process import how_it_ended

TICK_S = 0.05


class Bar(Protocol):
    """Shows progress; see commands/output/display.py."""

    def begin(self, what: str, total: int) -> None: ...
    def advance(self, count: int) -> None: ...


class Exported(NamedTuple):
    """The result for one feed."""

    name: str
    """A path, or a URI without its login."""
    items: int
    appended: bool
    """It holds something else, before these items."""


class Exports(NamedTuple):
    """The feeds of one crew."""

    feeds: Sequence[Feed]
    folder: ItemsFolder
    home: Path
    command: Sequence[str]
    """Of an exporting process."""
    lock: int
    """Of the folder. The exporting processes have it, too: nobody else exports meanwhile."""
    began: datetime
    """When the crew was begun."""
    say: Callable[[str], None]

    def run(
        self, run: Run, bar: Bar, stopped: Callable[[], None], *, finished: bool, began_run: bool
    ) -> tuple[list[Exported], list[str]]:
        """Export all feeds, or before the run is finished those that can be replaced later.

        CRASH at any line: the next crew with feeds exports again, and writes the same.

        Args:
            stopped: called repeatedly; raises Interrupted to stop. Each feed is as it was, or complete.
            began_run: nothing was crawled in the run before this crew.
        Returns:
            The feeds that are stored, and why others are not.
        """
        folder = self.folder
        journals, others = folder.journals(run), folder.owed_by_others(run)
        if others:
            self.say("Earlier runs have left items that are in no feed: -o adds them, -O does not")
        time_of_run = folder.state(run, "time")
        if not time_of_run.exists():
            write_json(time_of_run, (self.began.isoformat(), not began_run))
        began, keeps = read_json(time_of_run)
        of_run = choose(journals)
        chosen = {True: of_run, False: choose([*others, *journals]) if others else of_run}
        processes: list[_Process] = []
        try:
            with (folder.path / "export.log").open("wb") as log:
                for feed in self.feeds:
                    if finished or feed.is_local:
                        work = Work(
                            feed.uri, run, folder.crawl, str(self.home), began, keeps,
                            chosen[feed.overwrite],
                        )  # fmt: skip
                        processes.append(_Process(feed, work, self.command, log, self.lock))
                    else:
                        self.say(f"{feed.name}: is written when the run is finished")
            bar.begin("items exported", sum(chosen[each.feed.overwrite].total for each in processes))
            while processes and not min([each.attend(bar) for each in processes]):
                stopped()
                time.sleep(TICK_S)
        except Interrupted:
            self.say("The export is interrupted")
        finally:
            for each in processes:
                each.close()
        failures = [
            f"{each.feed.name} is not written: {each.problem}. Its items stay in {folder.path}, as does "
            f"export.log; the same command, also with another -o, writes it"
            for each in processes
            if each.stored is None
        ]
        if len(processes) == len(self.feeds) and not failures:
            folder.settle([*others, *journals], run)
        return [each.stored for each in processes if each.stored], failures


class _Process:
    """One that exports a feed."""

    def __init__(self, feed: Feed, work: Work, command: Sequence[str], log: Any, lock: int) -> None:
        self.feed = feed
        self.stored: Exported | None = None
        self.problem = ""
        self._done = 0
        ours, theirs = os.pipe()
        self._reader = Reader(ours)
        try:
            # In its own session: Ctrl-C in the terminal reaches only the parent.
            self._process = subprocess.Popen(
                command, env=os.environ | {VARIABLE: str(theirs)}, stdin=subprocess.PIPE, stdout=log,
                stderr=log, start_new_session=True, pass_fds=(theirs, lock),
            )  # fmt: skip
        except OSError as error:
            self._reader.close()
            raise CrewError(f"no process can be started that exports feeds: {error}") from error
        finally:
            os.close(theirs)
        assert self._process.stdin is not None
        with suppress(BrokenPipeError), self._process.stdin as given:
            given.write(json.dumps(work).encode())

    def attend(self, bar: Bar) -> bool:
        """Read its reports; return whether it has ended."""
        status = self._process.poll()
        for report in self._reader.read():
            self.problem = report.get("error", self.problem)
            done = report.get("done", self._done)
            bar.advance(done - self._done)
            self._done = done
            if "end" in report:
                name, items, appends = report["end"].values()
                self.stored = Exported(name if self.feed.is_local else self.feed.name, items, appends)
        if status is not None:
            self.problem = self.problem or how_it_ended(status)
        return status is not None

    def close(self) -> None:
        """End it, if it still runs."""
        self.problem = self.problem or "interrupted"
        self._process.kill()
        self._process.wait()
        self._reader.close()
