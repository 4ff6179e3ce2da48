"""The puts of a Queue: which ones wait, which are sent, which are confirmed."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Iterable

from scrapy_dq.frontier.model import MAX_EXCHANGE_BYTES, MAX_MOVES, FrontierUnavailable, Put
from scrapy_dq.frontier.worker.worker import Worker
from scrapy_dq.queue.calls import Putting, ShutDown

NOT_STORED = "The item was not stored"
PERHAPS_STORED = (
    "The item was sent and may be stored; if not, it will be as soon as Redis is available again, unless "
    "this process ends before that"
)


class Puts:
    """The puts, in order. Nothing goes into the worker's outbox while an exchange is under way.

    So a put that has waited too long can be withdrawn as long as it was not sent; and never more is sent and
    unconfirmed than one exchange carries.
    """

    def __init__(self, maxsize: int) -> None:
        self._maxsize = maxsize
        self._waiting: deque[Putting] = deque()
        self._sent: deque[tuple[Putting, Put]] = deque()
        self._refused: set[bytes] = set()
        self._full = False
        """The queue was full at the last exchange: puts wait for room in their order."""

    @property
    def bounded(self) -> bool:
        """There is a maxsize."""
        return bool(self._maxsize)

    def __bool__(self) -> bool:
        """Whether any put waits, for an exchange or for room."""
        return bool(self._waiting)

    def add(self, call: Putting) -> None:
        if not self._waiting:
            self._full = False  # the last census may be outdated: trying shows whether there is room
        self._waiting.append(call)

    def hand_over(self, worker: Worker) -> bool:
        """Put into the outbox what one exchange carries; return whether that is anything."""
        if self._full:
            return False
        before = len(self._sent)
        room_bytes = MAX_EXCHANGE_BYTES
        most = MAX_MOVES
        if self._maxsize:
            # No more than there was room for: the others would be refused.
            free = self._maxsize - worker.census.waiting - worker.census.delayed
            most = min(most, before + max(1, free))
        while self._waiting and len(self._sent) < most:
            call = self._waiting[0]
            if not call.puts:
                self._waiting.popleft()
                continue
            room_bytes -= call.puts[0].size
            if worker.under_way(call.puts[0]) or (self._sent and room_bytes < 0):
                break
            put = call.puts.popleft()
            call.sent += 1
            self._sent.append((call, put))
            worker.put(put)
        return len(self._sent) > before

    def replayed(self, worker: Worker) -> bool:
        """Tell whether the outbox contains puts that were confirmed before."""
        return worker.unconfirmed_puts > len(self._sent)

    def without_sent(self, puts: Iterable[Put]) -> list[Put]:
        """Return those of *puts* that no caller waits for."""
        sent = {put.entry_id for _, put in self._sent}
        return [put for put in puts if put.entry_id not in sent]

    def refuse(self, put: Put) -> None:
        """Note that there was no room for *put*."""
        self._refused.add(put.entry_id)

    def confirm(self, worker: Worker) -> None:
        """Answer the calls whose puts the worker has stored; after an exchange."""
        # A rejoin sends puts of the log again, before these.
        sent, self._sent = self._sent, deque()
        refused = []
        for call, put in sent:
            if not worker.confirmed(put):
                self._sent.append((call, put))
                continue
            call.sent -= 1
            if put.entry_id in self._refused:
                refused.append((call, put))
            elif not (call.sent or call.puts):
                call.answer()
        self._refused.clear()
        for call, put in reversed(refused):
            if not call.patient or call.future.done():
                call.fail(queue.Full())
                continue
            call.puts.appendleft(put)
            if not self._waiting or self._waiting[0] is not call:
                self._waiting.appendleft(call)

    def look_for_room(self, worker: Worker) -> None:
        """Use the census of an exchange that was applied."""
        if self._maxsize:
            census = worker.census
            self._full = self._maxsize <= census.waiting + census.delayed

    def fail_expired(self, worker: Worker, shut: bool) -> None:
        """Fail the calls that do not wait any longer, or whose puts must not be stored any more."""
        for call in list(self._waiting):
            if shut:
                self._give_up(call, ShutDown())
            elif not call.patient and not call.sent:
                if worker.outage:
                    self._give_up(call, FrontierUnavailable(f"{worker.outage}. {NOT_STORED}"))
                elif self._full and call.after < worker.applied:
                    self._give_up(call, queue.Full())
        if worker.outage:
            for call, _ in self._sent:
                if not call.patient:
                    call.fail(FrontierUnavailable(f"{worker.outage}. {PERHAPS_STORED}"))

    def withdraw(self, call: Putting) -> None:
        """Store nothing more of a call: its caller does not wait any more."""
        call.patient = False
        if call in self._waiting:
            self._waiting.remove(call)
        call.future.cancel()

    def start_over(self) -> None:
        """Restart all calls with a new worker: nothing that was sent is confirmed."""
        for call, put in reversed(self._sent):
            call.sent -= 1
            call.puts.appendleft(put)
            if not self._waiting or self._waiting[0] is not call:
                self._waiting.appendleft(call)
        self._sent.clear()
        self._refused.clear()
        self._full = False
        for call in self._waiting:
            call.after = 0

    def fail_all(self, waiting: Callable[[], Exception], sent: Callable[[], Exception]) -> None:
        """Fail the waiting calls with one error, those that were sent with another."""
        for call, _ in self._sent:
            call.fail(sent())
        for call in self._waiting:
            call.fail(waiting())
        self._waiting.clear()
        self._sent.clear()

    def _give_up(self, call: Putting, error: Exception) -> None:
        self._waiting.remove(call)
        call.fail(error)
