"""The puts of a Queue on their way to Redis: which wait, which are sent, which are confirmed."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Iterable

from scrapy_dq.frontier.model import MAX_EXCHANGE_BYTES, MAX_MOVES, FrontierUnavailable, Put
from scrapy_dq.frontier.worker.worker import Worker
from scrapy_dq.queue.calls import Putting, ShutDown

NOT_STORED = "The item was not stored"
PERHAPS_STORED = (
    "The item was sent and may be stored; if it is not, it will be as soon as Redis serves again, unless "
    "this process ends before"
)


class Puts:
    """In order. Nothing goes into the worker's outbox while an exchange is under way.

    So a put that has waited too long can be taken back as long as it was not sent; and of what was sent no
    more is unconfirmed than one exchange carries.
    """

    def __init__(self, maxsize: int) -> None:
        self._maxsize = maxsize
        self._waiting: deque[Putting] = deque()
        self._sent: deque[tuple[Putting, Put]] = deque()
        self._refused: set[bytes] = set()
        self._full = False
        """There was no room, as of the last exchange: it is waited for in order, with nobody overtaken."""

    def __bool__(self) -> bool:
        """Whether any wait, for an exchange or for room."""
        return bool(self._waiting)

    def add(self, asked: Putting) -> None:
        if not self._waiting:
            self._full = False  # the newest news of that may be old: it is found out by trying
        self._waiting.append(asked)

    def hand_over(self, worker: Worker) -> bool:
        """Put into the outbox what one exchange carries; tell whether that is anything."""
        if self._full or worker.under_way:
            return False
        before = len(self._sent)
        room_bytes = MAX_EXCHANGE_BYTES
        most = MAX_MOVES
        if self._maxsize:
            # No more than there was room for: what is refused has been sent in vain.
            free = self._maxsize - worker.census.waiting - worker.census.delayed
            most = min(most, before + max(1, free))
        while self._waiting and len(self._sent) < most:
            asked = self._waiting[0]
            if not asked.puts:
                self._waiting.popleft()
                continue
            room_bytes -= asked.puts[0].size
            if self._sent and room_bytes < 0:
                break
            put = asked.puts.popleft()
            asked.sent += 1
            self._sent.append((asked, put))
            worker.put(put)
        return len(self._sent) > before

    def replayed(self, worker: Worker) -> bool:
        """Tell whether puts wait in the outbox that were confirmed once."""
        return worker.unconfirmed_puts > len(self._sent)

    def without_sent(self, puts: Iterable[Put]) -> list[Put]:
        """Return those of *puts* for which no caller waits."""
        sent = {put.entry_id for _, put in self._sent}
        return [put for put in puts if put.entry_id not in sent]

    def refuse(self, put: Put) -> None:
        """Note that there was no room for *put*."""
        self._refused.add(put.entry_id)

    def confirm(self, worker: Worker) -> None:
        """Answer those that the worker has handed in; after an exchange."""
        # A rejoin hands in puts of the log once more, which stand before these.
        confirmed = max(0, len(self._sent) - worker.unconfirmed_puts)
        turned_away = []
        for _ in range(confirmed):
            asked, put = self._sent.popleft()
            asked.sent -= 1
            if put.entry_id in self._refused:
                turned_away.append((asked, put))
            elif not (asked.sent or asked.puts):
                asked.answer()
        self._refused.clear()
        for asked, put in reversed(turned_away):
            if not asked.patient or asked.future.done():
                asked.fail(queue.Full())
                continue
            asked.puts.appendleft(put)
            if not self._waiting or self._waiting[0] is not asked:
                self._waiting.appendleft(asked)

    def look_for_room(self, worker: Worker) -> None:
        """Go by the census of an exchange that was applied."""
        census = worker.census
        self._full = 0 < self._maxsize <= census.waiting + census.delayed

    def judge(self, worker: Worker, shut: bool) -> None:
        """Fail those that do not wait any longer, or that are not to be stored any more."""
        for asked in list(self._waiting):
            if shut:
                self._give_up(asked, ShutDown())
            elif not asked.patient and not asked.sent:
                if worker.outage:
                    self._give_up(asked, FrontierUnavailable(f"{worker.outage}. {NOT_STORED}"))
                elif self._full and asked.after < worker.applied:
                    self._give_up(asked, queue.Full())
        if worker.outage:
            for asked, _ in self._sent:
                if not asked.patient:
                    asked.fail(FrontierUnavailable(f"{worker.outage}. {PERHAPS_STORED}"))

    def withdraw(self, asked: Putting) -> None:
        """Store nothing more of it: its caller does not wait any more."""
        asked.patient = False
        if asked in self._waiting:
            self._waiting.remove(asked)
        asked.future.cancel()

    def start_over(self) -> None:
        """Let all begin anew with another worker: nothing that was sent is confirmed."""
        for asked, put in reversed(self._sent):
            asked.sent -= 1
            asked.puts.appendleft(put)
            if not self._waiting or self._waiting[0] is not asked:
                self._waiting.appendleft(asked)
        self._sent.clear()
        self._refused.clear()
        self._full = False
        for asked in self._waiting:
            asked.after = 0

    def fail_all(self, waiting: Callable[[], Exception], sent: Callable[[], Exception]) -> None:
        """Fail those that wait with one error, those that were sent with another."""
        for asked, _ in self._sent:
            asked.fail(sent())
        for asked in self._waiting:
            asked.fail(waiting())
        self._waiting.clear()
        self._sent.clear()

    def _give_up(self, asked: Putting, error: Exception) -> None:
        self._waiting.remove(asked)
        asked.fail(error)
