"""A Queue's membership in a crawl: one worker for all threads of a process."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from contextlib import suppress
from dataclasses import replace
from typing import Any

from scrapy_dq.backend.connection import Connection
from scrapy_dq.codec import Items
from scrapy_dq.environment import data_dir
from scrapy_dq.factory import frontiers_of, identity_without_spider, options_of
from scrapy_dq.frontier.admin.overview import order_of
from scrapy_dq.frontier.model import FrontierError, FrontierLost, FrontierUnavailable, Order, Status
from scrapy_dq.frontier.moves import Move, Put
from scrapy_dq.frontier.worker.listener import Count, Listener
from scrapy_dq.frontier.worker.membership import JOIN_PATIENCE_S
from scrapy_dq.frontier.worker.worker import Worker
from scrapy_dq.queue import lifetime
from scrapy_dq.queue.callers import Callers
from scrapy_dq.queue.calls import Call, Flush, Putting, ReadCensus, ShutDown
from scrapy_dq.queue.lifetime import LoopThread
from scrapy_dq.queue.puts import PERHAPS_STORED
from scrapy_dq.settings import Config
from scrapy_dq.sharding.make import worker_of

logger = logging.getLogger(__name__)
FORGOTTEN = (
    "Redis was rolled back further than DQ_ROLLBACK_HORIZON: items that were put before are gone, and have "
    "to be put again"
)
AGAIN_S = 1.0
"""Seconds between two tries to join the next run."""


class Member(Listener):
    """Joins a crawl, listens to its worker, and leaves."""

    worker: Worker

    def __init__(
        self, config: Config, order: Order | None, items: Items, maxsize: int, durable: bool
    ) -> None:
        """
        Args:
            order: the caller's order; None: the crawl's order.
            durable: leave only when all put items are on Redis's disk.
        """
        self._config = config
        self._order = order
        self._durable = durable
        self._has_put = False
        self._unanswered = False
        self._forgotten = False
        """A roll-back of Redis has lost items. The next `flush` must report this."""
        self._flushes: set[asyncio.Task[None]] = set()
        self._callers = Callers(items, maxsize, config.rollback_horizon_s)
        self._connection = Connection(config, data_dir(config.data_dir))
        self._closing = asyncio.Event()
        self._broken = ""
        self._starting_over: asyncio.Task[None] | None = None
        self._stopping = asyncio.Lock()
        self._stopped: Worker | None = None
        """The last worker that has left the crawl."""
        self._leftover_puts: dict[bytes, Put] = {}
        """Puts that an ended run may not have completed, and that the next run has not stored."""
        self._thread = LoopThread(self._live, self._end)

    # Any thread may call these methods.

    def start(self) -> None:
        """Begin to connect and to join."""
        self._thread.start()  # RuntimeError from Python 3.12 on, if the main thread has ended
        lifetime.opened(self)

    def await_opened(self) -> None:
        """Wait until this process is a member of the crawl.

        Raises:
            FrontierError, ConfigError: it cannot become a member; this object is then unusable.
        """
        self._thread.opened.result()

    def ask(self, call: Call) -> None:
        """Submit a call.

        When this member has ended, this method, `expire`, `abandon` and `done` raise ShutDown.
        """
        self._thread.submit(self._ask, call)

    def expire(self, call: Call) -> None:
        """See `Callers.expire`."""
        self._thread.submit(self._callers.expire, call)

    def abandon(self, call: Call) -> None:
        """See `Callers.abandon`."""
        self._thread.submit(self._callers.abandon, call)

    def done(self, entry_id: bytes) -> None:
        """Acknowledge an item."""
        self._thread.submit(lambda: self.worker.ack(entry_id))

    def shut(self, immediate: bool) -> None:
        """See `Callers.shut`; without effect when this member has ended."""
        with suppress(ShutDown):
            self._thread.submit(self._callers.shut, immediate)

    def begin_close(self) -> None:
        """Begin to leave the crawl, in the background.

        From then on, calls are not answered. Finished items are acknowledged, and all other leases are given
        back.
        """
        with suppress(Exception):  # this member never opened, or has ended
            self._thread.opened.result(self._patience_s)
            self._thread.submit(self._closing.set)

    def await_closed(self) -> None:
        """Wait until `begin_close` has finished, up to its time limit."""
        self._thread.ended.wait(self._patience_s)

    @property
    def _patience_s(self) -> float:
        return self._config.shutdown_grace_s + 2 * self._config.redis_timeout_s + lifetime.CLOSING_S

    # Only the loop's thread calls these methods.

    async def _live(self) -> None:
        try:
            await self._open()
        except Exception as error:
            await self._disconnect()
            self._thread.opened.set_exception(error)
            return
        self._thread.opened.set_result(None)
        try:
            await self._closing.wait()
            await self._leave()
        finally:
            await self._disconnect()
            await self._thread.stop_accepting()

    async def _open(self) -> None:
        client = await self._connection.open()
        order = self._order or await self._stored_order(client) or Order.FIFO
        self._frontiers = await frontiers_of(replace(self._config, order=order), self._connection)
        await self._join()

    async def _stored_order(self, client: Any) -> Order | None:
        deadline = time.monotonic() + JOIN_PATIENCE_S
        while True:
            try:
                return await order_of(client, self._config.crawl)
            except FrontierUnavailable:
                if time.monotonic() >= deadline:
                    raise
            await asyncio.sleep(0.2)

    async def _join(self) -> None:
        config = self._config
        identity = identity_without_spider(config, order_given=self._order is not None)
        while True:
            self._callers.new_worker(len(self._frontiers))
            self.worker = self._callers.worker = worker_of(
                self._frontiers, identity, options_of(config), self,
                connect=self._connection.another, capacity=lambda: self._callers.capacity,
                pace=self._callers.pace,
            )  # fmt: skip
            joined = await self.worker.start(uuid.uuid4().hex)
            if joined.status is not Status.FINISHED:
                break
            # The run may end while this process joins several frontiers: then it joins the next run.
            await self._stop_worker(0)
        self.worker.seeded()
        # Without this, the run would finish as soon as nothing is left to do, and the next put would begin a
        # new run.
        self.worker.listen(True)
        logger.info("Crawl %r: run %d, as worker %s", config.crawl, joined.run, self.worker.id)
        if joined.loss:
            logger.warning("Crawl %r: %s", config.crawl, joined.loss)

    def _ask(self, call: Call) -> None:
        if self._broken:
            call.fail(FrontierLost(self._broken))
        elif isinstance(call, Flush):
            task = asyncio.get_running_loop().create_task(self._flush(call))
            self._flushes.add(task)
            task.add_done_callback(self._flushes.discard)
        else:
            self._has_put = self._has_put or isinstance(call, Putting)
            self._callers.add(call)

    async def _flush(self, call: Flush) -> None:
        puts = self._callers.puts

        async def verify() -> None:
            again = True
            while again:
                if self._broken:
                    raise FrontierLost(self._broken)  # no answer would come
                read = ReadCensus()
                self._callers.add(read)
                try:
                    left = call.deadline - time.monotonic()
                    await asyncio.wait_for(asyncio.wrap_future(read.future), left)
                except asyncio.TimeoutError:
                    raise FrontierUnavailable(self.worker.outage or "Redis takes too long") from None
                again = puts.replayed(self.worker)

        try:
            worker, doubt = None, ""
            while worker is not self.worker:
                if puts.replayed(self.worker):
                    await verify()  # before waiting for the disk
                worker = self.worker
                doubt = await worker.wait_until_durable(verify, call.deadline)
                if self._starting_over is not None:
                    await verify()  # the run is over; a new worker answers, in the next run
            if self._forgotten:
                self._forgotten = False
                call.fail(FrontierUnavailable(FORGOTTEN))
            if doubt:
                call.fail(FrontierUnavailable(doubt))
            call.answer()
        except Exception as error:
            call.fail(error)
        finally:
            call.fail(ShutDown())  # cancelled: this process leaves

    def _start_over(self) -> None:
        leftover_puts = self._callers.puts.without_sent(self.worker.leftover_puts)
        self._leftover_puts.update((put.entry_id, put) for put in leftover_puts)
        if self._starting_over is None and (leftover_puts or not self._closing.is_set()):
            self._starting_over = asyncio.get_running_loop().create_task(self._join_next_run())

    async def _join_next_run(self) -> None:
        """Join the next run, and put the items there that the ended run has not stored."""
        await self._stop_worker(0)
        while True:
            try:
                await self._join()
                break
            except FrontierUnavailable:
                await asyncio.sleep(AGAIN_S)
            except FrontierError as error:
                self._break(f"crawl {self._config.crawl!r} has a new run that cannot be joined: {error}")
                return
        self._starting_over = None
        logger.info("Items that were not stored in the previous run are put into this one")
        if self._leftover_puts:
            logger.warning(
                "%d items are put into the new run again: Redis was rolled back and lost them",
                len(self._leftover_puts),
            )
            for put in self._leftover_puts.values():
                self.worker.put(put)
        self._callers.start_over()

    async def _stop_worker(self, within_s: float, *, durable: bool = False) -> None:
        """Stop the worker, unless it has been stopped.

        RACE: while this process leaves, one frontier reports the end of the run, so this process also starts
        over. Without the lock, `_leave` and `_join_next_run` would both make exchanges with the other
        frontiers.
        """
        async with self._stopping:
            worker = self.worker
            if worker is not self._stopped:
                await worker.stop(within_s, durable=durable)
                self._stopped = worker

    def _break(self, reason: str) -> None:
        self._broken = reason
        self._callers.fail_all(lambda: FrontierLost(reason))

    async def _leave(self) -> None:
        self._callers.shut(immediate=True)
        grace_s = max(self._config.shutdown_grace_s, self._config.redis_timeout_s)
        deadline = time.monotonic() + grace_s
        left = True
        while left:
            if (joining := self._starting_over) is not None:
                left_s = max(0.0, deadline - time.monotonic()) if self._leftover_puts else 0.0
                await asyncio.wait([joining], timeout=left_s)
                joining.cancel()
                await asyncio.wait([joining])
            failed, worker = self._starting_over, self.worker
            left_s = max(0.0, deadline - time.monotonic())
            await self._stop_worker(left_s, durable=self._durable and self._has_put)
            # The run may have ended during this stop: then this process may be a member of the next run.
            left = self._starting_over is not failed or self.worker is not worker
        if self._leftover_puts:
            logger.error(
                "%d items may be lost: Redis was rolled back, and they could not be stored again within the "
                "%.0f s that closing may take",
                len(self._leftover_puts),
                grace_s,
            )
        outage = self.worker.outage or "This process has left the crawl"
        self._callers.puts.fail_all(ShutDown, lambda: FrontierUnavailable(f"{outage}. {PERHAPS_STORED}"))

    async def _disconnect(self) -> None:
        try:
            await self._connection.close()
        except Exception as error:
            logger.warning("The connection of a Queue could not be closed: %s", error)

    def _end(self) -> None:
        self._callers.fail_all(ShutDown)
        lifetime.closed(self)

    # The following methods are the worker's reports. Its other reports need no method here: `_exchanged`
    # detects the end of a run; a dropped put was stored by an earlier attempt that got no answer; and the
    # program itself decides when to close.

    def leases_arrived(self) -> None:
        self._callers.serve()

    def frontier_lost(self) -> None:
        self._break(
            f"the frontier of crawl {self._config.crawl!r} is gone or was replaced: the items that waited in "
            f"it are lost. A new Queue object works with the present frontier"
        )

    def put_refused(self, put: Put) -> None:
        self._callers.puts.refuse(put)

    def outbox_lost(self, parentless: bool) -> None:
        self._start_over()

    def rolled_back(self, parentless: bool) -> None:
        self._forgotten = self._forgotten or parentless  # `flush` reports it; later puts are stored again

    def counted(self, kind: Count | type[Move], amount: float) -> None:
        if kind is Count.EXCHANGE:
            if self._unanswered:
                self._unanswered = False
                self._callers.disturbed(is_older=False)
            self._exchanged()
        elif kind is Count.REJOIN:
            self._callers.disturbed(is_older=True)
        elif kind is Count.ERROR:
            self._unanswered = True
            self._connection.note_no_answer()
            self._callers.no_answer()

    def _exchanged(self) -> None:
        if self.worker.lost or self._starting_over is not None:
            return
        if self.worker.over or not self.worker.pending:
            self._start_over()  # the run has ended while this process was declared dead
            return
        # Confirm only after these checks, because an outbox that was given up is also empty, but its puts are
        # not stored.
        self._callers.puts.confirm(self.worker)
        if not self._callers.puts.replayed(self.worker):
            self._leftover_puts.clear()
        if not self._closing.is_set():
            self._callers.exchanged()
