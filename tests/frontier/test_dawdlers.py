"""Workers that come, die and dawdle, under limits: what they send is looked at from outside."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from scrapy_dq.frontier.frontier import Identity
from scrapy_dq.frontier.model import Move, Terms
from support.live_frontier import (
    IDENTITY,
    HandWorker,
    LiveFrontier,
    ack,
    limited,
    partitions,
    put,
    sent,
    waits,
)


class Dawdler(HandWorker):
    """A worker that sends its leases in order, at their time or later, and settles them at some time."""

    def __init__(self, live: LiveFrontier, crawl: Identity, rng: random.Random, name: str) -> None:
        super().__init__(live, name, crawl)
        self.rng = rng
        self.unsent: dict[int, tuple[bytes, float]] = {}
        self.unsettled: list[int] = []

    def send_some(self, now: float) -> list[tuple[int, bytes]]:
        """Return what is sent at this moment; what was timed to follow it follows as much later."""
        gone: list[tuple[int, bytes]] = []
        kept: dict[int, tuple[bytes, float]] = {}
        late: dict[bytes, float] = {}
        for n, (slot, send_at) in self.unsent.items():
            send_at += late.get(slot, 0.0)
            waits_for_another = slot in {other for other, _ in kept.values()}
            if waits_for_another or send_at > now or self.rng.random() < 0.3:
                kept[n] = (slot, send_at)
            else:
                late[slot] = now - send_at
                gone.append((n, slot))
        self.unsent = kept
        self.unsettled += [n for n, _ in gone]
        return gone

    def speak(self, now: float, gone: list[tuple[int, bytes]], *moves: Move) -> list[int]:
        """Report, settle some, and lease some; return what was settled."""
        settled = [n for n in self.unsettled if self.rng.random() < 0.5]
        notes = [sent(n, partition=slot) for n, slot in gone]
        ahead = self.rng.choice((0.0, 50.0, 200.0))
        receipt = self.exchange(
            *moves,
            *(ack(n) for n in settled),
            want=self.rng.randint(0, 4),
            seeding=1,
            terms=Terms(ahead_s=ahead, notes=notes),
        )
        self.unsettled = [n for n in self.unsettled if n not in settled]
        for (n, wait), slot in zip(waits(receipt).items(), partitions(receipt), strict=True):
            self.unsent[n] = (slot, now + (wait or 0.0))
        return settled


@pytest.mark.parametrize("seed", range(5))
def test_a_crawl_keeps_to_its_limits(live: LiveFrontier, seed: int) -> None:
    """Workers that come, die and dawdle send nothing too early, hold never too much, and end all of it."""
    rng = random.Random(seed)
    own = {"b": (0.0, 1), "c": (rng.choice((None, 300.0)), 3), "d": (0.0, 0)}
    limits = limited(rng.choice((0.0, 100.0)), rng.choice((0, 2)), **own).limits
    crawl = replace(IDENTITY, limits=limits)
    slots = [slot.encode() for slot in "abcde"]
    each = {slot: own.get(slot.decode(), (None, None)) for slot in slots}
    delays = {slot: limits.delay_s if delay is None else delay for slot, (delay, _) in each.items()}
    mosts = {slot: limits.concurrency if most is None else most for slot, (_, most) in each.items()}
    last_sent, done, now = dict.fromkeys(slots, -1e9), 0, 0
    workers = [Dawdler(live, crawl, rng, "worker 0")]
    workers[0].exchange(
        *(put(n, rng.randint(-1, 1), partition=rng.choice(slots)) for n in range(60)), seeding=1
    )
    while done < 60:
        assert now < 100_000, "it is stuck"
        now += 25
        live.advance(25)
        if len(workers) < 3:
            workers.append(Dawdler(live, crawl, rng, f"worker {now}"))
        worker = rng.choice(workers)
        gone = worker.send_some(now)
        for _, slot in gone:
            assert now - last_sent[slot] >= delays[slot] - 10
            last_sent[slot] = now
        if rng.random() < 0.05:
            # It dies before it could tell what it has sent.
            workers.remove(worker)
            rng.choice(workers).reclaim(worker.worker_id, 99)
        else:
            done += len(worker.speak(now, gone))
        state = live.state()
        held = [state["partitions"][i] for i, (where, *_) in state["entries"].items() if where != "backlog"]
        assert all(held.count(slot) <= most for slot, most in mosts.items() if most)
    assert live.state()["entries"] == {}
