"""The waiting calls of a process that uses a Queue, and their answers."""

from __future__ import annotations

import logging
import queue
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import chain

from scrapy_dq.codec import CannotDecode, ForeignEntry, Items
from scrapy_dq.frontier.model import FrontierRefused, FrontierUnavailable
from scrapy_dq.frontier.worker.worker import Worker
from scrapy_dq.queue.calls import Call, Get, Join, Putting, ReadCensus, ShutDown
from scrapy_dq.queue.pace import OnDemand
from scrapy_dq.queue.puts import Puts

logger = logging.getLogger(__name__)


class Callers:
    """The waiting calls. Only the loop's thread uses them.

    Full, Empty and every census come from an exchange that began after the call, because an older exchange
    may be outdated.
    """

    worker: Worker

    def __init__(self, items: Items, maxsize: int, rollback_horizon_s: float) -> None:
        self.puts = Puts(maxsize)
        self._items = items
        self._rollback_horizon_s = rollback_horizon_s
        self._incomplete_until = 0.0
        """Monotonic time until which other workers may repeat puts that Redis has lost."""
        self._gets: deque[Get] = deque()
        self._census_reads: list[ReadCensus] = []
        self._joins: list[Join] = []
        self._shut = self._shut_now = False
        self._needed: list[int] = []
        """For each part of the worker, the number of an exchange. Until this exchange or a later one is
        composed, exchanges of the part are due at once."""
        self._applied = 0
        self._granted = 0

    @property
    def capacity(self) -> int:
        """Number of calls that wait for an item."""
        return len(self._gets)

    def new_worker(self, parts: int) -> None:
        """Reset the counts for a new worker with this number of *parts*, which replaces the present one."""
        self._needed = [0] * parts
        self._applied = 0
        self.puts.make_lanes(parts)

    def pace(self, part: int) -> OnDemand:
        """Return the pace of a part of the new worker."""
        return OnDemand(
            lambda: self._is_urgent(part),
            lambda: bool(self._gets or self._joins) or self.puts.any_wait_for(part),
        )

    def add(self, call: Call) -> None:
        """Add a call; it is answered as soon as possible."""
        call.after = self.worker.composed
        parts = None
        if isinstance(call, Putting):
            parts = self.puts.add(call, self.worker)
            self.puts.hand_over(self.worker)
        elif isinstance(call, Get):
            call.patient = call.patient and not self._shut
            self._gets.append(call)
            self.serve()  # the buffer may hold an item for a caller that was interrupted
        elif isinstance(call, ReadCensus):
            self._census_reads.append(call)
        elif isinstance(call, Join):
            self._joins.append(call)
        if self._shut_now:
            self._answer_shut()
        self.request_exchanges(parts)
        self.fail_expired()

    def expire(self, call: Call) -> None:
        """Let a call wait only for the next answer from Redis."""
        call.patient = False
        if not call.future.done():
            self.request_exchanges()
            self.fail_expired()

    def abandon(self, call: Call) -> None:
        """Drop a call whose caller was interrupted by an exception, and give its item back."""
        if isinstance(call, Putting):
            self.puts.withdraw(call)
        elif not call.future.done():
            call.future.cancel()
            self._forget_answered()
        elif isinstance(call, Get) and not call.future.exception():
            self.worker.release(call.future.result()[0])

    def shut(self, immediate: bool) -> None:
        """Accept no more puts, and hand out only items that wait already; *immediate*: hand out no items."""
        self._shut = True
        self._shut_now = self._shut_now or immediate
        for call in self._gets:
            call.patient = False
        if self._shut_now:
            self._answer_shut()
        if self._gets or self.puts:  # otherwise no caller waits, and there may be no worker yet
            self.request_exchanges()
            self.fail_expired()

    def fail_all(self, error: Callable[[], Exception]) -> None:
        """Answer each call with a new error."""
        self.puts.fail_all(error, error)
        for call in (*self._gets, *self._census_reads, *self._joins):
            call.fail(error())
        self._forget_answered()

    def serve(self) -> None:
        """Hand new leases to the waiting calls."""
        while self._gets and (lease := self.worker.take()):
            # A partition's delay counts from here, because the program does not report when it sends a
            # request.
            self.worker.sent(lease.entry_id)
            self.worker.downloaded(lease.entry_id)
            self._granted += 1
            try:
                item = self._items.decode(lease.payload)
            except ForeignEntry as error:
                self.worker.release(lease.entry_id)
                message = f"the next item is for other members of the crawl, and was given back: {error}"
                self._gets.popleft().fail(FrontierRefused(message))
                continue
            except CannotDecode as error:
                logger.error("An item that cannot be read is now a dead letter: %s", error)
                self.worker.bury(lease.entry_id, str(error))
                continue
            self._gets.popleft().answer((lease.entry_id, item))

    def exchanged(self) -> None:
        """Answer as many calls as possible after an exchange or a rejoin."""
        worker = self.worker
        granted, self._granted = self._granted, 0
        if granted and self._gets and worker.census.waiting:
            # The exchange brought items, but not enough for all calls. The next exchange may bring more.
            for get in self._gets:
                get.after = worker.composed
            self.request_exchanges()
        if worker.applied > self._applied:
            self._applied = worker.applied
            self._answer_joins()
        self.puts.check_full(worker)
        self._answer_census_reads()
        self.fail_expired()
        if parts := self.puts.hand_over(worker):
            self.request_exchanges(parts)

    def no_answer(self) -> None:
        """After a failed exchange, fail the calls that must not wait for a later answer."""
        self.puts.check_full(self.worker)
        self.fail_expired()

    def fail_expired(self) -> None:
        """Fail the calls that must not wait longer."""
        worker = self.worker
        self.puts.fail_expired(worker, self._shut)
        outage = f"{worker.outage}. It is not known whether anything waits there" if worker.outage else ""
        for call in self._impatient:
            # A `get` needs an answer from any shard; a count needs answers from all of them.
            if outage and (isinstance(call, ReadCensus) or call.after < worker.answered):
                call.fail(FrontierUnavailable(outage))
            elif isinstance(call, Get) and call.after < worker.answered:
                call.fail(ShutDown() if self._shut else queue.Empty())
        self._forget_answered()

    def disturbed(self, is_older: bool) -> None:
        """Record that Redis was rolled back (*is_older*), or may have been.

        So other workers may repeat puts.
        """
        now = time.monotonic()
        # A network that sometimes loses a reply must not delay `join` without an end.
        if is_older or now >= self._incomplete_until:
            self._incomplete_until = now + self._rollback_horizon_s

    def start_over(self) -> None:
        """Restart all calls with a new worker."""
        for call in chain(self._gets, self._census_reads, self._joins):
            call.after = 0
        self.puts.start_over()
        self.puts.hand_over(self.worker)
        self.request_exchanges()

    def request_exchanges(self, parts: Iterable[int] | None = None) -> None:
        """Make an exchange of each of these parts due at once; None: of all parts."""
        for number in range(len(self._needed)) if parts is None else parts:
            self._needed[number] = self.worker.composed + 1
            self.worker.parts[number].ask()

    def _is_urgent(self, number: int) -> bool:
        part = self.worker.parts[number]
        if part.composed < self._needed[number]:
            return True
        # If this process was declared dead and has registered again, the needed exchange was not applied.
        return part.applied < self._needed[number] and bool(self._impatient)

    @property
    def _impatient(self) -> list[Call]:
        return [call for call in chain(self._gets, self._census_reads) if not call.patient]

    def _answer_census_reads(self) -> None:
        for read in self._census_reads:
            if read.after < self.worker.applied:
                read.answer(self.worker.census)

    def _answer_joins(self) -> None:
        worker = self.worker
        if worker.idle_at_once() and not self.puts and time.monotonic() >= self._incomplete_until:
            for join in self._joins:
                if join.after < worker.applied:
                    join.answer()

    def _answer_shut(self) -> None:
        for waiting in chain(self._gets, self._census_reads):
            waiting.fail(ShutDown())
        for join in self._joins:
            join.answer()
        self._forget_answered()

    def _forget_answered(self) -> None:
        self._gets = deque(call for call in self._gets if not call.future.done())
        self._census_reads = [call for call in self._census_reads if not call.future.done()]
        self._joins = [call for call in self._joins if not call.future.done()]
