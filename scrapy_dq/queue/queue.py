"""The public class: the interface of `queue.Queue`, implemented by calls to a member of the crawl."""

from __future__ import annotations

import math
import queue
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from functools import partial
from types import GenericAlias
from typing import Any

from scrapy_dq.codec import BadType, CannotEncode, Items
from scrapy_dq.frontier.model import MAX_EXCHANGE_BYTES, MAX_MOVES, Census, FrontierUnavailable, Order
from scrapy_dq.inspection.place import opened
from scrapy_dq.inspection.words import unanswered
from scrapy_dq.queue import lifetime
from scrapy_dq.queue.calls import Call, Flush, Get, Join, ReadCensus, ShutDown, putting
from scrapy_dq.queue.member import Member
from scrapy_dq.settings import Config, ConfigError


class HeldItems:
    """The items that this process works on, in the order of `get`; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[tuple[threading.Thread, bytes]] = []

    def take(self, entry_id: bytes) -> None:
        """Record that this thread got an item."""
        with self._lock:
            self._held.append((threading.current_thread(), entry_id))

    def remove_oldest(self) -> bytes | None:
        """Remove and return the oldest item of this thread, or of all threads if this thread has no item."""
        current = threading.current_thread()
        with self._lock:
            if not self._held:
                return None
            found = next((each for each in self._held if each[0] is current), self._held[0])
            self._held.remove(found)
            return found[1]


class Queue:
    """A queue of Python values that any number of processes share; no item is lost if a process dies.

    It has the methods of Python's `queue.Queue`; docs/queue.md lists the differences. An item belongs to the
    process that got it until `task_done`. If the process dies before that, another process gets the item.

        with Queue("books") as q:
            q.put("https://books.example/")

        with Queue("resize", url="redis://redis.example.com") as q:
            while True:
                picture = q.get()
                ...
                q.task_done()

    Any thread may call any method. The first call that needs Redis connects to it and joins the crawl.
    """

    def __init__(
        self,
        crawl: str,
        maxsize: int = 0,
        *,
        url: str = "",
        order: str = "",
        settings: Mapping[str, Any] | None = None,
        durable: bool = True,
    ) -> None:
        """
        Args:
            crawl: the name that all users of the queue share. To feed a spider, use the spider's name (see
                DQ_CRAWL).
            maxsize: how many items, from all processes, may wait before `put` blocks; 0 or less: no limit.
                With DQ_SHARDS the limit is approximate: a process learns of other puts up to 0.5 s late.
            url: the address of Redis, like REDIS_URL in *settings*. Without either, the queue uses the
                embedded Redis of this folder's project.
            order: like DQ_ORDER; "": the crawl's order, or fifo for a new crawl.
            settings: settings of scrapy_dq and Redis, by name; may be a Settings object of Scrapy. DQ_SHARDS
                is needed if the crawl has several shards.
            durable: after a `put`, `close` waits for about a second, until Redis has the item on its disk; so
                does the exit of the program. False: they do not wait, so a power loss may lose the item.
        Raises:
            ConfigError: a setting cannot be used. The queue has not connected to Redis yet.
        """
        given = dict(settings or {})
        self._remake = partial(
            type(self), crawl, maxsize, url=url, order=order, settings=dict(given), durable=durable
        )
        self.maxsize = maxsize
        self._durable = durable
        given |= {"REDIS_URL": url} if url else {}
        given |= {"DQ_ORDER": order} if order else {}
        self._config = Config.read({**given, "DQ_CRAWL": crawl.replace("%", "%%")}, {})
        self._order: Order | None = self._config.order if given.get("DQ_ORDER") else None
        self._shut = self._shut_now = self._closed = False
        self._finalizer: Any = None
        self.forget()
        lifetime.watch(self)

    __class_getitem__: Any = classmethod(GenericAlias)

    def __reduce__(self) -> tuple[Any, ...]:
        """Allow pickling. Another process gets the same queue, and joins as another worker."""
        return self._remake, ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._config.crawl!r}>"

    def __enter__(self) -> Queue:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # queue.Queue

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Store *item* at the end of the queue. When this method returns, Redis has the item.

        With DQ_SHARDS, the item goes to the end of one shard, which is chosen at random.

        Raises:
            queue.Full: there was no room within *timeout* seconds.
            ValueError: *item* is too large, or of a type that entries cannot contain.
            FrontierUnavailable: Redis gave no answer within *timeout*; the error message tells whether the
                item may be stored nevertheless. Without a timeout, `put` waits for Redis.
            ShutDown: this object was shut down.
        """
        self._refuse_if_shut()
        payload = self._encoded(item)
        self._await(putting([payload], patient=block), block, timeout)

    def put_nowait(self, item: Any) -> None:
        """Like `put` with block=False: one round trip to Redis, no waiting for room."""
        self.put(item, block=False)

    def put_all(self, items: Iterable[Any]) -> None:
        """Store many items in their order, up to 1,000 at a time; each item waits for room.

        With DQ_SHARDS, their order is kept within each shard. If this method raises, some of the first items
        may be stored; with DQ_SHARDS, some of the first items of each shard.
        """
        for payloads in self._chunks(items):
            self._refuse_if_shut()
            self._await(putting(payloads, patient=True), True, None)

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Return the next item; this process owns it until `task_done`.

        Raises:
            queue.Empty: nothing came within *timeout* seconds.
            FrontierUnavailable: Redis gave no answer within *timeout*.
            FrontierRefused: only other members of the crawl can read the next item; it was given back.
            ShutDown: this object was shut down and no item waits, or it was shut down immediately.
        """
        try:
            entry_id, item = self._await(Get(patient=block and not self._shut), block, timeout)
        except queue.Empty:
            if self._shut:
                raise ShutDown from None
            raise
        self._held.take(entry_id)
        return item

    def get_nowait(self) -> Any:
        """Like `get` with block=False: one round trip to Redis."""
        return self.get(block=False)

    def task_done(self) -> None:
        """Mark the oldest item of this thread as done; no process gets it again.

        If this thread has no item, mark the oldest item of all threads of this process.

        Raises:
            ValueError: this process has no item.
            ShutDown: this object was closed.
        """
        if self._closed:
            raise ShutDown("this queue is closed; unfinished items were given back")
        entry_id = self._held.remove_oldest()
        if entry_id is None:
            raise ValueError("task_done() called more often than get() returned an item")
        self._joined().done(entry_id)

    def join(self) -> None:
        """Wait until all items of all processes are done, and no spider of the crawl has work left."""
        self._await(Join(), True, None)

    def qsize(self) -> int:
        """Return the number of items, from all processes, that wait now."""
        if self._member is None and not self._shut_now:
            # Joining would begin the next run of a finished crawl, which a read must not do.
            # Another thread reads, because this one may have a running event loop.
            census = ThreadPoolExecutor(1, "scrapy-dq-look").submit(_census_of, self._config).result()
        else:
            census = self._await(ReadCensus(patient=False), False, None)
        return int(census.waiting + census.delayed)

    def empty(self) -> bool:
        """Tell whether no item waits now."""
        return self.qsize() == 0

    def full(self) -> bool:
        """Tell whether as many items wait now as `maxsize` allows."""
        return 0 < self.maxsize <= self.qsize()

    def shutdown(self, immediate: bool = False) -> None:
        """Make `put` of this object raise ShutDown. `get` also raises it, as soon as no item waits.

        No item is removed, so other processes still get the items. With *immediate*, `get` raises at once,
        and calls of `join` return.
        """
        with self._starting:
            self._shut = True
            self._shut_now = self._shut_now or immediate
            if self._member is not None:
                self._member.shut(immediate)

    # Beyond queue.Queue

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all items that this object has put are on Redis's disk, and on its replicas.

        Raises:
            FrontierUnavailable: it was not confirmed within *timeout* seconds that all items are there, or it
                cannot be confirmed at all; the message gives the reason.
        """
        self._refuse_if_shut()
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        self._await(Flush(deadline=deadline), True, None)

    def close(self) -> None:
        """Shut down at once, give back unfinished items, acknowledge finished items, and leave the crawl.

        This takes at most DQ_SHUTDOWN_GRACE, and one more timeout of Redis if Redis does not answer. The end
        of the program closes all queues.
        """
        self._shut = self._shut_now = self._closed = True
        with self._starting:
            member = self._member
        if member is not None:
            member.begin_close()
            member.await_closed()

    def forget(self) -> None:
        """Reset to the state without a connection, because a child process lacks its parent's threads."""
        if self._finalizer is not None:
            self._finalizer.detach()
        self._finalizer = None
        # New objects with new locks, because a thread of the parent may have held an old lock.
        try:
            self._items = Items(self._config.types, self._config.max_entry_bytes)
        except BadType as error:
            raise ConfigError(f"DQ_TYPES: {error}") from error
        # This lock is reentrant, because a signal handler may call `shutdown` or `close` while the
        # interrupted thread joins the crawl.
        self._starting = threading.RLock()
        self._member: Member | None = None
        self._held = HeldItems()

    def _joined(self) -> Member:
        with self._starting:
            if self._closed:  # by another thread, just now
                raise ShutDown
            member = self._member
            if member is None:
                member = Member(self._config, self._order, self._items, max(0, self.maxsize), self._durable)
                member.start()
                self._member = member
                if self._shut:  # before there was a member, or by a signal handler just now
                    member.shut(self._shut_now)
                # A Queue that is garbage-collected leaves the crawl.
                self._finalizer = weakref.finalize(self, member.begin_close)
                self._finalizer.atexit = False
        try:
            member.await_opened()
        except Exception:
            with self._starting:
                if self._member is member:
                    self._member = None  # the next call tries again
            raise
        if self._closed:  # by another thread, or a signal handler, which may not have seen this member
            member.begin_close()
            raise ShutDown
        return member

    def _await(self, call: Call, block: bool, timeout: float | None) -> Any:
        if not block:
            timeout = None  # the first answer of Redis decides
        elif timeout is not None and timeout < 0:
            raise ValueError("'timeout' must be a non-negative number")
        if self._shut_now:
            raise ShutDown
        member = self._joined()
        member.ask(call)
        try:
            try:
                error = call.future.exception(timeout)
            except FutureTimeout:
                # At least one exchange has to answer the call, even if it takes longer than this timeout.
                member.expire(call)
                error = call.future.exception()
        except BaseException:
            with suppress(ShutDown):
                member.abandon(call)
            raise
        if error is not None:
            raise error
        return call.future.result()

    def _refuse_if_shut(self) -> None:
        if self._shut:
            raise ShutDown

    def _encoded(self, item: Any) -> bytes:
        try:
            return self._items.encode(item)
        except CannotEncode as error:
            raise ValueError(f"this item cannot be stored: {error}") from error

    def _chunks(self, items: Iterable[Any]) -> Iterator[list[bytes]]:
        chunk: list[bytes] = []
        size = 0
        for item in items:
            payload = self._encoded(item)
            if len(chunk) == MAX_MOVES or (chunk and size + len(payload) > MAX_EXCHANGE_BYTES):
                yield chunk
                chunk, size = [], 0
            chunk.append(payload)
            size += len(payload)
        if chunk:
            yield chunk


def _census_of(config: Config) -> Census:
    """Return the counts of a crawl without joining or changing it; blocking.

    Raises:
        FrontierError, ConfigError: this Redis does not exist, or Redis or a shard gives no answer.
    """
    with opened(config) as place:
        overview = place.peek(most_members=0)
    if overview.unreachable:
        raise FrontierUnavailable("; ".join(unanswered(overview.unreachable)))
    return overview.census
