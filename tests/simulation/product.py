"""The simulator's changes to scrapy_dq: heartbeats without threads, a host for each worker, other sizes."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from scrapy_dq.frontier.worker import outbox, pace, reclaim
from scrapy_dq.frontier.worker import worker as worker_module
from scrapy_dq.frontier.worker.heartbeat import Heartbeat, Pulse
from scrapy_dq.frontier.worker.replay_log import ReplayLog
from scrapy_dq.sharding import worker as sharded_module
from simulation.virtual import Process, world

if TYPE_CHECKING:
    from simulation.plan import Setup


def install() -> None:
    """Let workers beat by events instead of a thread, and give each worker its own host.

    Each log also records when its worker emptied it, because the worker closes: `emptied_at`.
    """

    def start(self: Any) -> None:
        self._thread = loop = self._loop
        process: Process = loop._process

        def beat() -> None:
            if not self._stop.is_set():
                for pulse in filter(Pulse.may_beat, self.due()):
                    with suppress(StopIteration):  # the beat has ended without waiting
                        pulse.beat().send(None)
                        raise AssertionError("a beat waits")
                process.world.at(process.world.now + self.interval_s, beat, process.heartbeat)

        process.world.at(process.world.now + self.interval_s, beat, process.heartbeat)

    retire_all = ReplayLog.retire_all

    def empty(self: Any) -> None:
        self.emptied_at = world().now
        retire_all(self)

    ReplayLog.retire_all = empty  # type: ignore[method-assign]
    Heartbeat._start_thread = start  # type: ignore[method-assign]
    worker_module.own_identity = sharded_module.own_identity = lambda: {
        "host": f"host{next(world().hosts)}", "boot": "", "pid_namespace": "", "pid": 1, "pid_start": "",
    }  # fmt: skip


def size(setup: Setup) -> None:
    """Set the constants of scrapy_dq that a plan has drawn: sizes of outboxes and drains, and times."""
    outbox.MEMORY_MOVES, outbox.CHUNK_MOVES = setup.memory_moves, min(setup.memory_moves, 1000)
    reclaim.DRAIN_LIMIT = setup.drain_limit
    Heartbeat.stall_timeout_s = setup.stall_s
    pace.IDLE_FIRST_S = setup.idle_s
