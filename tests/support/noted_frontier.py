"""A crawl that records its state after each call that has changed it, and copies of truncated AOFs."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from scrapy_dq.frontier.model import Admission
from support.live_frontier import HandWorker, LiveFrontier, ack, bury, entry_id, put, release
from support.stored import State

FAN_OUT = 3
ENTRIES = 40
PAYLOAD = b"payload" * 30


class NotedFrontier(LiveFrontier):
    """Records the stored state whenever a call has changed it."""

    def __init__(self, url: str, crawl: str) -> None:
        super().__init__(url, crawl)
        self.states: list[State] = [self.state()]

    def call(self, method: str, *args: Any, **named: Any) -> Any:
        """Make the call. Then record the state if it has changed."""
        reply = super().call(method, *args, **named)
        state = self.state()
        if state != self.states[-1]:
            self.states.append(state)
        return reply


def live_through_all(live: LiveFrontier) -> None:
    """Crawl with three workers, a death, a rejoin, the end of the run, the next run, and a flush."""
    one, two, dying = (HandWorker(live, name) for name in ("one", "two", "dying"))
    one.exchange(put(0, start=True, admission=Admission.SEED, payload=PAYLOAD), seeding=1)
    one.exchange()
    _crawl(one, 6)
    dying.take(4)
    for worker in (one, two, one, two):
        _crawl(worker, 5)
        live.call("beats", worker.worker_id, worker.epoch)
    one.fence("dying")
    while one.drain("dying", 2)[2]:
        pass
    two.take(3)
    two.rejoin("two again", held=sorted(int(i) for i in two.held)[:2])
    two.exchange(*(release(int(i)) for i in sorted(two.held)))
    one.exchange(*(bury(n) for n in one.take(2)))
    one.leave()
    while _crawl(two, 8):
        pass
    two.leave()
    HandWorker(live, "next").leave()
    live.call("flush", [])
    HandWorker(live, "afresh").leave()


def _crawl(worker: HandWorker, count: int) -> int:
    """Lease up to *count* entries. Put their children and ack them in one exchange. Return their number."""
    taken = worker.take(count)
    children = (FAN_OUT * n + i for n in taken for i in range(1, FAN_OUT + 1))
    puts = [
        put(n, n % 2, admission=Admission.SEEN, token=entry_id(n), payload=PAYLOAD)
        for n in children
        if n < ENTRIES
    ]
    worker.exchange(*puts, *(ack(n) for n in taken))
    return len(taken)


def aof_of(folder: Path) -> Path:
    """Return the file in a data folder to which Redis appends. Since Redis 7, it is a part of the AOF."""
    return next(iter(folder.glob("appendonlydir/*.incr.aof")), folder / "appendonly.aof")


def cut(snapshot: Path, size: int) -> Path:
    """Return a copy of *snapshot* whose AOF ends after *size* bytes."""
    copy = snapshot.with_name(f"{snapshot.name}-cut-{size}")
    shutil.copytree(snapshot, copy)
    os.truncate(aof_of(copy), size)
    return copy
