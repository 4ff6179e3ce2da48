"""Who waits for what, in a process that uses a Queue, and how each is answered."""

from __future__ import annotations

import logging
import queue
import time
from collections import deque
from collections.abc import Callable
from itertools import chain

from scrapy_dq.codec import CannotDecode, Items
from scrapy_dq.frontier.model import FrontierUnavailable
from scrapy_dq.frontier.worker.worker import Worker
from scrapy_dq.queue.calls import Call, Get, Join, Look, Putting, ShutDown
from scrapy_dq.queue.pace import OnDemand
from scrapy_dq.queue.puts import Puts

logger = logging.getLogger(__name__)


class Callers:
    """The calls that wait; all of it belongs to the loop's thread.

    Full, Empty and every census come from an exchange that began after the call: what an older one saw
    may not be true any more.
    """

    worker: Worker

    def __init__(self, items: Items, maxsize: int, rollback_horizon_s: float) -> None:
        self.puts = Puts(maxsize)
        self._items = items
        self._rollback_horizon_s = rollback_horizon_s
        self._incomplete_until = 0.0
        """Monotonic seconds: until then others store again what Redis may have forgotten."""
        self._gets: deque[Get] = deque()
        self._looks: list[Look] = []
        self._joins: list[Join] = []
        self._shut = self._shut_now = False
        self._needed = 0
        """An exchange is due at once until so many were composed."""
        self._applied = 0
        self._granted = 0
        self._pace = self.new_pace()

    @property
    def capacity(self) -> int:
        """How many wait for an item."""
        return len(self._gets)

    def new_pace(self) -> OnDemand:
        """Return the pace of a worker that is about to be the one that serves."""
        self._needed = self._applied = 0
        self._pace = OnDemand(
            lambda: self._needed > self.worker.composed,
            lambda: bool(self._gets or self._joins or self.puts),
        )
        return self._pace

    def add(self, asked: Call) -> None:
        """Take in what somebody waits for; it is answered as soon as it can be."""
        asked.after = self.worker.composed
        if isinstance(asked, Putting):
            self.puts.add(asked)
            self.puts.hand_over(self.worker)
        elif isinstance(asked, Get):
            asked.patient = asked.patient and not self._shut
            self._gets.append(asked)
            self.serve()  # one may lie in the buffer whose own caller went away
        elif isinstance(asked, Look):
            self._looks.append(asked)
        elif isinstance(asked, Join):
            self._joins.append(asked)
        if self._shut_now:
            self._dismiss()
        self.hurry()
        self.judge()

    def expire(self, asked: Call) -> None:
        """Its caller waits no longer than for the next answer of Redis."""
        asked.patient = False
        if not asked.future.done():
            self.hurry()
            self.judge()

    def abandon(self, asked: Call) -> None:
        """Its caller was torn away by an exception: what came for it goes back."""
        if isinstance(asked, Putting):
            self.puts.withdraw(asked)
        elif not asked.future.done():
            asked.future.cancel()
            self._forget_answered()
        elif isinstance(asked, Get) and not asked.future.exception():
            self.worker.release(asked.future.result()[0])

    def shut(self, immediate: bool) -> None:
        """Take no more puts, and hand out only what waits already; *immediate*: nothing."""
        self._shut = True
        self._shut_now = self._shut_now or immediate
        for asked in self._gets:
            asked.patient = False
        if self._shut_now:
            self._dismiss()
        if self._gets or self.puts:  # else nobody waits, and there may be no worker yet
            self.hurry()
            self.judge()

    def fail_all(self, error: Callable[[], Exception]) -> None:
        """Answer everybody with an error, each with one of its own."""
        self.puts.fail_all(error, error)
        for asked in (*self._gets, *self._looks, *self._joins):
            asked.fail(error())
        self._forget_answered()

    def serve(self) -> None:
        """Hand leases that have arrived to those who wait."""
        while self._gets and (lease := self.worker.take()):
            # A partition's delay counts from here: whoever works at the item does not say when it is sent.
            self.worker.sent(lease.entry_id)
            self.worker.downloaded(lease.entry_id)
            self._granted += 1
            try:
                item = self._items.decode(lease.payload)
            except CannotDecode as error:
                logger.error("An item that cannot be read is now a dead letter: %s", error)
                self.worker.bury(lease.entry_id, str(error))
                continue
            self._gets.popleft().answer((lease.entry_id, item))

    def exchanged(self) -> None:
        """Answer what the exchange, or the rejoin, that has just ended allows to."""
        worker = self.worker
        if worker.applied > self._applied:
            self._applied = worker.applied
            self._answer()
        self.judge()
        handed_over = self.puts.hand_over(worker)
        if handed_over or any(not asked.patient for asked in chain(self._gets, self._looks)):
            self.hurry()

    def judge(self) -> None:
        """Fail those who do not wait any longer."""
        worker = self.worker
        self.puts.judge(worker, self._shut)
        for asked in chain(self._gets, self._looks):
            if asked.patient:
                continue
            if worker.outage:
                asked.fail(FrontierUnavailable(f"{worker.outage}. Whether anything waits is not known"))
            elif isinstance(asked, Get) and asked.after < worker.applied:
                asked.fail(ShutDown() if self._shut else queue.Empty())
        self._forget_answered()

    def disturbed(self, is_older: bool) -> None:
        """Note that Redis *is_older* than it was, or was away and may be: others have to store again, too."""
        now = time.monotonic()
        # A network that loses a reply now and then is not to hold up a join for ever.
        if is_older or now >= self._incomplete_until:
            self._incomplete_until = now + self._rollback_horizon_s

    def start_over(self) -> None:
        """Let all begin anew with another worker."""
        for asked in chain(self._gets, self._looks, self._joins):
            asked.after = 0
        self.puts.start_over()
        self.puts.hand_over(self.worker)
        self.hurry()

    def hurry(self) -> None:
        """Make an exchange due that is not composed yet."""
        self._needed = self.worker.composed + 1
        self._pace.called()
        self.worker.kick()

    def _answer(self) -> None:
        worker, census = self.worker, self.worker.census
        self.puts.look_for_room(worker)
        granted, self._granted = self._granted, 0
        if granted and census.waiting:
            # It brought something, if not for all: the others have not asked in vain yet.
            for get in self._gets:
                get.after = worker.composed
        for look in self._looks:
            if look.after < worker.applied:
                look.answer(census)
        if worker.idle and not self.puts and time.monotonic() >= self._incomplete_until:
            for join in self._joins:
                if join.after < worker.applied:
                    join.answer()
        self._forget_answered()

    def _dismiss(self) -> None:
        for waiting in chain(self._gets, self._looks):
            waiting.fail(ShutDown())
        for join in self._joins:
            join.answer()
        self._forget_answered()

    def _forget_answered(self) -> None:
        self._gets = deque(asked for asked in self._gets if not asked.future.done())
        self._looks = [asked for asked in self._looks if not asked.future.done()]
        self._joins = [asked for asked in self._joins if not asked.future.done()]
