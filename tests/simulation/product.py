"""What the simulator changes in the product: heartbeats by events, hosts, the sizes that are drawn."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from scrapy_dq.frontier.worker import outbox, pace, reclaim
from scrapy_dq.frontier.worker import worker as worker_module
from scrapy_dq.frontier.worker.heartbeat import Heartbeat, Pulse
from scrapy_dq.sharding import worker as sharded_module
from simulation.virtual import Process, world

if TYPE_CHECKING:
    from simulation.plan import Setup


def install() -> None:
    """Have workers beat by events instead of a thread, and be on hosts of their own."""

    def start(self: Any) -> None:
        self._thread = loop = self._loop
        process: Process = loop._process

        def beat() -> None:
            if not self._stop.is_set():
                for pulse in filter(Pulse.may_beat, self.due()):
                    with suppress(StopIteration):  # it has ended: nothing of it waits
                        pulse.beat().send(None)
                        raise AssertionError("a beat waits")
                process.world.at(process.world.now + self.interval_s, beat, process.heartbeat)

        process.world.at(process.world.now + self.interval_s, beat, process.heartbeat)

    Heartbeat._start_thread = start  # type: ignore[method-assign]
    worker_module.own_identity = sharded_module.own_identity = lambda: {
        "host": f"host{next(world().hosts)}", "boot": "", "pid_namespace": "", "pid": 1, "pid_start": "",
    }  # fmt: skip


def size(setup: Setup) -> None:
    """Set the constants of the product that a schedule draws: sizes of an outbox and a drain, a pause."""
    outbox.MEMORY_MOVES, outbox.CHUNK_MOVES = setup.memory_moves, min(setup.memory_moves, 1000)
    reclaim.DRAIN_LIMIT = setup.drain_limit
    Heartbeat.stall_timeout_s = setup.stall_s
    pace.IDLE_FIRST_S = setup.idle_s
