"""The puts of a Queue, from the wait for room to the confirmation.

A worker has one part for each shard of the crawl. Most crawls have one shard.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Iterable

from scrapy_dq.frontier.model import MAX_EXCHANGE_BYTES, MAX_MOVES, Census, FrontierUnavailable
from scrapy_dq.frontier.moves import Put
from scrapy_dq.frontier.worker.worker import Worker
from scrapy_dq.queue.calls import Putting, ShutDown

NOT_STORED = "The item was not stored"
PERHAPS_STORED = (
    "The item was sent and may be stored; if not, it will be as soon as Redis is available again, unless "
    "this process ends before that"
)


class Lane:
    """The puts for one part of the worker, in order, each with its call."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Putting, Put]] = deque()
        self.sent: deque[tuple[Putting, Put]] = deque()
        """Puts that are in the worker's outbox, and not confirmed."""

    def hand_over(self, worker: Worker, most: int, room: int) -> bool:
        """Move the puts for one exchange into the outbox; return whether there are any.

        Args:
            most: maximum number of sent and unconfirmed puts.
            room: see `Put.most`.
        """
        before = len(self.sent)
        left_bytes = MAX_EXCHANGE_BYTES
        while self.waiting and len(self.sent) < most:
            put = self.waiting[0][1]
            left_bytes -= put.size
            if self.sent and left_bytes < 0:
                break
            put.most = room
            self.sent.append(self.waiting.popleft())
            worker.put(put)
        return len(self.sent) > before


class Puts:
    """The puts, in one lane for each part of the worker. A part that gets no answers delays only its own
    puts.

    While an exchange of a part is under way, no put goes into the part's outbox. So an unsent put that
    has waited too long can be withdrawn. A part never has more unconfirmed puts than one exchange carries.
    """

    def __init__(self, maxsize: int) -> None:
        self._maxsize = maxsize
        self._lanes: list[Lane] = []
        self._refused: set[bytes] = set()
        self._full = False
        """Whether the queue was full at the last exchange. Then puts wait for room, in their order."""

    def make_lanes(self, parts: int) -> None:
        """Make a lane for each part of a worker, unless the lanes of an earlier worker exist."""
        self._lanes = self._lanes or [Lane() for _ in range(parts)]

    def __bool__(self) -> bool:
        """Whether any put waits, for an exchange or for room."""
        return any(lane.waiting for lane in self._lanes)

    def any_wait_for(self, part: int) -> bool:
        """Tell whether any put waits for a part, or for room, which may appear in any part."""
        return bool(self) if self._maxsize else bool(self._lanes[part].waiting)

    def add(self, call: Putting, worker: Worker) -> Iterable[int]:
        """Let the puts of a call wait; return the parts that have to make an exchange."""
        if not self:
            self._full = False  # the last census may be outdated, and a try shows whether there is room
        parts = set()
        for put in call.puts:
            parts.add(part := worker.part_of(put))
            self._lanes[part].waiting.append((call, put))
        return range(len(self._lanes)) if self._maxsize else parts

    def hand_over(self, worker: Worker) -> list[int]:
        """Move the puts for one exchange of each part into its outbox; return the parts that got any."""
        if self._full:
            return []
        return [
            part
            for part, lane in enumerate(self._lanes)
            if lane.waiting
            and worker.parts[part].accepts_at_once
            and lane.hand_over(worker, *self._limits(worker, part))
        ]

    def _limits(self, worker: Worker, part: int) -> tuple[int, int]:
        """Return the maximum number of sent and unconfirmed puts of a part, and of items that wait there."""
        if not self._maxsize:
            return MAX_MOVES, 0
        here, sent = _items(worker.parts[part].census), len(self._lanes[part].sent)
        in_other_parts = _items(worker.census) - here + sum(len(lane.sent) for lane in self._lanes) - sent
        room = self._maxsize - in_other_parts
        # Redis would refuse more puts. If there is only one part, at least one put is tried, because the
        # census may be outdated.
        free = max(room - here, int(len(self._lanes) == 1))
        return min(MAX_MOVES, sent + free), room

    def replayed(self, worker: Worker) -> bool:
        """Tell whether the outboxes contain puts that were confirmed before."""
        return worker.unconfirmed_puts > sum(len(lane.sent) for lane in self._lanes)

    def without_sent(self, puts: Iterable[Put]) -> list[Put]:
        """Return *puts* without the sent puts that a caller waits for."""
        sent = {put.entry_id for lane in self._lanes for _, put in lane.sent}
        return [put for put in puts if put.entry_id not in sent]

    def refuse(self, put: Put) -> None:
        """Record that there was no room for *put*."""
        self._refused.add(put.entry_id)

    def confirm(self, worker: Worker) -> None:
        """After an exchange, answer the calls whose puts Redis has stored."""
        for part, lane in zip(worker.parts, self._lanes, strict=True):
            refused = []
            # After a rejoin, the worker first sends the puts of its log again, and then these puts.
            while lane.sent and part.confirmed(lane.sent[0][1]):
                call, put = lane.sent.popleft()
                if put.entry_id in self._refused:
                    refused.append((call, put))
                else:
                    call.stored()
            lane.waiting.extendleft(reversed(refused))
            self._forget_answered(lane)
        self._refused.clear()

    def check_full(self, worker: Worker) -> None:
        """Record whether the queue is full according to the last counts.

        Puts that were sent to a part without an answer count as stored.
        """
        if self._maxsize:
            lanes = zip(worker.parts, self._lanes, strict=True)
            sent = sum(len(lane.sent) for part, lane in lanes if part.puts_outage)
            self._full = self._maxsize <= _items(worker.census) + sent

    def fail_expired(self, worker: Worker, shut: bool) -> None:
        """Fail the calls that must not wait longer, or whose puts must not be stored any more."""
        for part, lane in zip(worker.parts, self._lanes, strict=True):
            if not (lane.waiting or lane.sent):
                continue
            outage = part.puts_outage
            for call, _ in lane.waiting:
                if shut:
                    call.fail(ShutDown())
                elif not call.patient and outage:
                    call.fail(FrontierUnavailable(f"{outage}. {NOT_STORED}"))
                elif not call.patient and self._full and worker.outage:
                    call.fail(FrontierUnavailable(f"{worker.outage}. {NOT_STORED}"))
                elif not call.patient and self._full and call.after < worker.applied:
                    call.fail(queue.Full())
            for call, _ in lane.sent:
                if not call.patient and outage:
                    call.fail(FrontierUnavailable(f"{outage}. {PERHAPS_STORED}"))
            self._forget_answered(lane)

    def withdraw(self, call: Putting) -> None:
        """Store no more puts of a call, because its caller was interrupted."""
        call.patient = False
        call.future.cancel()
        for lane in self._lanes:
            self._forget_answered(lane)

    def start_over(self) -> None:
        """Restart all calls with a new worker, which sends the unconfirmed puts again."""
        for lane in self._lanes:
            lane.waiting.extendleft(reversed(lane.sent))
            lane.sent.clear()
            for call, _ in lane.waiting:
                call.after = 0
        self._refused.clear()
        self._full = False

    def fail_all(self, waiting: Callable[[], Exception], sent: Callable[[], Exception]) -> None:
        """Fail all calls. A call with a sent put gets an error from *sent*, any other one from *waiting*."""
        for lane in self._lanes:
            for call, _ in lane.sent:
                call.fail(sent())
        for lane in self._lanes:
            for call, _ in lane.waiting:
                call.fail(waiting())
            lane.waiting.clear()
            lane.sent.clear()

    def _forget_answered(self, lane: Lane) -> None:
        if any(call.future.done() for call, _ in lane.waiting):
            lane.waiting = deque(each for each in lane.waiting if not each[0].future.done())


def _items(census: Census) -> int:
    return census.waiting + census.delayed
