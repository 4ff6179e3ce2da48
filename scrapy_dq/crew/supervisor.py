"""The parent of a crew: starts the workers, starts those again that die, passes on who asks to stop."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from scrapy_dq.crew.feeds.parts import Run
from scrapy_dq.crew.monitor import Lookout
from scrapy_dq.crew.stop_signals import Stops
from scrapy_dq.crew.worker_agent import AFTER_GRACE_S
from scrapy_dq.crew.worker_process import WorkerProcess, how_it_ended
from scrapy_dq.crew.worker_slot import Post

TICK_S = 0.1
BETWEEN_SIGNALS_S = 0.5
"""Two signals of one kind that come at once are one."""


class View(Protocol):
    """Shows the crew at work."""

    def show(self, crew: Crew) -> None: ...
    def say(self, line: str) -> None: ...


class Crew:
    """So many workers of one crawl.

    Args:
        command: of a worker.
        logs: one file per worker.
        parts: the folder of each feed that is joined, by its URI.
        restarts: how many of all workers' deaths are made good.
        grace_s: DQ_SHUTDOWN_GRACE.
    """

    def __init__(
        self,
        command: Sequence[str],
        logs: Sequence[Path],
        parts: Mapping[str, str],
        *,
        restarts: int,
        grace_s: float,
        lookout: Lookout,
        view: View,
    ) -> None:
        self.posts = [Post(number, log) for number, log in enumerate(logs, 1)]
        self.lookout = lookout
        self.began = time.monotonic()
        self.took_s = 0.0
        self.run: Run | None = None
        """Of the first worker that joined."""
        self.took_part = False
        """A worker joined before the run was finished."""
        self.restarted = 0
        self._command = command
        self._parts = parts
        self._restarts = restarts
        self._grace_s = grace_s
        self._view = view
        self._say: Callable[[str], None] = view.say
        self._hopeless = False
        """One could not begin, and has shown why."""
        self._told = 0
        self._told_at = 0.0
        self._stops: int | None = None
        self._calm_at = 0.0
        """When a look last found that nobody had said `scrapy dq stop`."""
        self._called_off = False
        # Open for writing in this process alone: the kernel closes it with us, and the workers see that.
        self._lifeline, self._life = os.pipe()

    @property
    def finished(self) -> bool:
        """Whether the run is finished, as of the last look."""
        seen = self.lookout.overview
        if self.run is None or seen is None or seen.epoch != self.run.epoch:
            return False
        return seen.run > self.run.number or (seen.run == self.run.number and seen.phase == "finished")

    @property
    def stopping(self) -> bool:
        return self._told > 0

    def work(self, stops: Stops) -> None:
        """Start the workers, and return once none is left and none is to be started again."""
        try:
            for post in self.posts:
                self._start(post)
            while any(post.process or post.due for post in self.posts):
                for post in self.posts:
                    self._attend(post)
                    post.sample()
                self._hear_stop()
                self._pass_on(stops.count)
                self._view.show(self)
                time.sleep(TICK_S)
        except BaseException:
            self._abandon()
            raise
        finally:
            os.close(self._life)
            os.close(self._lifeline)
        self.took_s = time.monotonic() - self.began
        self.lookout.look()
        if not self.finished and not self.stopping:
            self._say("No worker is left, and the run is not finished.")

    def _start(self, post: Post) -> None:
        post.due = 0.0
        try:
            post.process = WorkerProcess(post.number, self._command, post.log, self._lifeline, self._parts)
        except OSError as error:
            post.state = "cannot be started"
            self._say(f"{post.name} cannot be started: {error}")
            return
        self._say(f"{post.name} started, pid {post.process.pid}")

    def _attend(self, post: Post) -> None:
        process = post.process
        if process is None:
            if post.due and time.monotonic() >= post.due:
                self._start_again(post)
            return
        # In this order: what it reported before its end is there, then.
        status = process.status
        for error in process.read():
            self._say(f"{post.name}: {error}")
        self.run = self.run or process.run
        self.took_part |= process.run is not None and not process.over
        if status is not None:
            self._ended(post, process, status)

    def _ended(self, post: Post, process: WorkerProcess, status: int) -> None:
        post.take_leave(process)
        # One that has closed its spider has ended, though a signal may find it while Python exits.
        if process.reason and status in (0, -signal.SIGTERM):
            post.state = process.reason
            if process.reason != "finished":
                self._say(f"{post.name} closed: {process.reason}")
            return
        post.state = how_it_ended(status)
        if self.stopping and status == 0:
            post.state = "stopped"  # by its second signal: it could not say so
            return
        self._say(f"{post.name} died: {post.state}")
        if self.stopping or self._called_off:
            return
        hopeless = process.run is None and status >= 0 and self.run is None
        if (process.run is None or status >= 0) and not (hopeless and self._hopeless):
            for line in process.last_words():
                self._say(f"  {line}")
        if hopeless:
            # Nobody has joined so far: it would fare no better if it were started again.
            self._hopeless = True
            self._say(f"{post.name} could not begin; its log is {post.log}")
        elif self.restarted >= self._restarts:
            self._say(
                f"{post.name} is not started again: {self._restarts} restarts are the limit (--restarts)"
            )
        else:
            self.restarted += 1
            pause_s = post.pause(process)
            post.due = time.monotonic() + pause_s
            post.state = f"{post.state}; again in {pause_s:g} s"

    def _start_again(self, post: Post) -> None:
        if self.lookout.at < post.due - TICK_S and not self.lookout.problem:
            return  # the next look is due any moment
        if self.finished:
            post.due, post.state = 0.0, "died; the run is finished"
        else:
            self._start(post)

    def _hear_stop(self) -> None:
        """Start nobody any more once all workers were asked to close: who joins later would go on."""
        at, seen = self.lookout.at, self.lookout.overview
        if seen is None or self._called_off:
            return
        if self._stops is None or seen.stops <= self._stops:
            self._stops, self._calm_at = seen.stops, at
            return
        self._called_off = True
        self._say("All workers of the crawl are asked to stop: none is started again")
        for post in self.posts:
            if post.due:
                post.due, post.state = 0.0, "died; not started again"
        late = [
            post.process for post in self.posts if post.process and post.process.joined_at > self._calm_at
        ]
        self._signal(late, signal.SIGTERM)

    def _pass_on(self, stops: int) -> None:
        """Tell the workers what we were told; kill those that do not end."""
        now = time.monotonic()
        processes = [post.process for post in self.posts if post.process]
        if stops > self._told and self._told < 2 and now >= self._told_at + BETWEEN_SIGNALS_S:
            self._told, self._told_at = self._told + 1, now
            for post in self.posts:
                post.due = 0.0
            how = (
                "finish what they have begun; Ctrl-C again stops at once"
                if self._told == 1
                else "stop at once"
            )
            if processes:
                self._say(f"Stopping: the workers {how}")
            self._signal(processes, signal.SIGTERM)
        elif self._told == 2 and now >= self._told_at + self._grace_s + AFTER_GRACE_S:
            self._told = 3
            for post in self.posts:
                if post.process:
                    self._say(f"{post.name} does not stop: killed")
            self._signal(processes, signal.SIGKILL)

    def _abandon(self) -> None:
        """Something is wrong with this program: leave no worker behind."""
        processes = [post.process for post in self.posts if post.process]
        self._signal(processes, signal.SIGTERM)
        deadline = time.monotonic() + self._grace_s + AFTER_GRACE_S
        while any(process.status is None for process in processes) and time.monotonic() < deadline:
            time.sleep(TICK_S)
        self._signal(processes, signal.SIGKILL)

    @staticmethod
    def _signal(processes: list[WorkerProcess], number: signal.Signals) -> None:
        for process in processes:
            process.send(number)
