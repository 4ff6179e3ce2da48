"""Counts this worker's downloads by partition, and decides when its local requests may be sent."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain, islice
from math import inf
from weakref import WeakSet

from scrapy import Request

from scrapy_dq.frontier.model import Limits
from scrapy_dq.scheduling.engine_hooks import EngineHooks
from scrapy_dq.scheduling.partitions import OneSlot, Slots

MARGIN_S = 0.25
"""After a local request, the next local request of its partition waits for the delay, and for up to this many
seconds more, so that a waiting stored request goes first."""


class Downloads:
    """The requests between `next_request` and the end of their download.

    The frontier applies the limits of a partition to leases, and does not know local requests. This class
    applies the limits to local requests, and counts all requests that this worker sends.
    """

    def __init__(
        self,
        slots: Slots | OneSlot,
        limits: Limits,
        wake: Callable[[], None],
        block: Callable[[bytes, float], None],
        most: int,
    ) -> None:
        """
        Args:
            wake: makes the engine ask for a request.
            block: blocks a partition, for all workers, for a number of seconds.
            most: maximum number of requests in the downloader, including requests that wait in middlewares.
        """
        self._slots = slots
        self._limits = limits
        self._own = {name.encode(): own for name, own in limits.own.items()}
        self._wake = wake
        self._block = block
        self._most_of_one = most - most // 4
        self._partitions: dict[Request, bytes] = {}
        self._local: dict[Request, bytes] = {}
        """The local requests among `_partitions`."""
        self._unsent: dict[bytes, Request] = {}
        """By partition with a delay: the request that the engine got and that was not sent yet."""
        self._held_up: dict[Request, bytes] = {}
        """The partition of each request that waits in the downloader and does not count against a limit."""
        self._rest: dict[bytes, float] = {}
        """By partition: the monotonic time before which no further local request may be sent."""
        self._last_was_local = False
        self._short_of_room = False
        self._timer: asyncio.TimerHandle | None = None

    def limit(self, partition: bytes) -> int:
        """Return how many leases of *partition* may be downloading here at the same time."""
        if not self._local or partition not in self._local.values():
            return self._slots.limit(partition)
        if partition in self._unsent:
            return 0
        return self._most(partition) - list(self._local.values()).count(partition)

    def partition_of(self, request: Request) -> bytes | None:
        """Return the partition of a request in the downloader.

        None: the scheduler has not served the request, or its download has ended.
        """
        partition = self._partitions.get(request)
        return self._held_up.get(request) if partition is None else partition

    @property
    def local_turn(self) -> bool:
        """Whether a local request, if its partition has room, goes before the leases.

        If enough requests of both kinds wait, each kind gets half of the downloads. With `OneSlot`, local
        requests always go first.
        """
        local = len(self._local)
        stored = len(self._partitions) - local
        even = local == stored and not self._last_was_local
        return local < stored or even or isinstance(self._slots, OneSlot)

    def choose(self, partitions: Iterable[bytes]) -> bytes | None:
        """Return the least loaded of the *partitions* in which a local request may be sent now.

        None: there is no such partition. Then the engine is woken as soon as there may be one.
        """
        now, earliest = time.monotonic(), inf
        loads = Counter(self._partitions.values())
        best, least = None, 0
        for partition in partitions:
            if partition in self._unsent:
                continue
            rest_until = self._rest.get(partition, now)
            if rest_until > now:
                earliest = min(earliest, rest_until)
                continue
            load = loads[partition]
            if load < self._most(partition) and (best is None or load < least):
                best, least = partition, load
                if not load:
                    break
        if best is None:
            self._short_of_room = True
            self._wake_at(earliest)
        return best

    def begin_local(self, request: Request, partition: bytes) -> bool:
        """Record that the engine gets a local request; return whether `sent` has to be called for it."""
        timed = self._delay_s(partition) > 0
        self.begin(request, partition, timed=timed)
        self._local[request] = partition
        self._last_was_local = True
        return timed

    def begin(self, request: Request, partition: bytes, *, timed: bool) -> None:
        """Record that the engine gets the request of a lease; *timed*: `sent` will be called for it."""
        self._partitions[request] = partition
        self._last_was_local = False
        if timed:
            self._unsent[partition] = request

    def move(self, request: Request, to: Request) -> None:
        """Record that the engine gets *to*, a copy, instead of *request*, which has just begun."""
        partition = self._partitions[to] = self._partitions.pop(request)
        if request in self._local:
            self._local[to] = self._local.pop(request)
        if self._unsent.get(partition) is request:
            self._unsent[partition] = to

    def sent(self, request: Request, *, never: bool = False) -> None:
        """Record that a request was sent. Only the first call has an effect.

        *never*: the request was not sent, and will never be sent.
        """
        partition = self._partitions.get(request)
        if partition is None or self._unsent.get(partition) is not request:
            return
        del self._unsent[partition]
        delay_s = 0.0 if never else self._delay_s(partition)
        if request in self._local and delay_s:
            self.block(partition, delay_s)
            delay_s += min(delay_s, MARGIN_S)
        self._rest_for(partition, delay_s)
        self._room_appeared()

    def held_up(self, request: Request) -> bool:
        """Record that a request waits in this process, so it no longer counts against its partition's limit.

        A request whose sending begins a delay keeps counting until it is sent.

        Returns:
            False: the request keeps counting, because requests of its partition already fill three quarters
            of the downloader. They may wait in vain, for example for a `robots.txt`, and the other partitions
            need the rest of the downloader.
        """
        if request in self._unsent.values() or (partition := self._partitions.get(request)) is None:
            return True
        held = chain(self._partitions.values(), self._held_up.values())
        # This number is at least one more than the limit. The held-up requests may wait for a stored request,
        # such as a login, which could not be sent if all of them kept counting.
        most = max(self._most_of_one, self._most(partition) + 1)
        if not isinstance(self._slots, OneSlot) and list(held).count(partition) >= most:
            return False
        self.ended(request)
        self._held_up[request] = partition
        return True

    def ended(self, request: Request, *, sent: bool = True) -> None:
        """Record that a request has left the downloader; only the first call has an effect.

        Args:
            sent: whether a site got the request.
        """
        if self._unsent:
            self.sent(request, never=not sent)
        self._held_up.pop(request, None)
        if self._partitions.pop(request, None) is not None:
            self._local.pop(request, None)
            self._room_appeared()

    def block(self, partition: bytes, seconds: float) -> None:
        """Block a partition for *seconds*, for all workers and for this worker's local requests."""
        self._rest_for(partition, seconds)
        self._block(partition, seconds)

    def _delay_s(self, partition: bytes) -> float:
        own = self._own.get(partition, (None, None))[0]
        return self._limits.delay_s if own is None else own

    def _most(self, partition: bytes) -> int:
        own = self._own.get(partition, (None, None))[1]
        most = self._limits.concurrency if own is None else own
        limit = self._slots.limit(partition)
        return min(most, limit) if most else limit

    def _rest_for(self, partition: bytes, seconds: float) -> None:
        now = time.monotonic()
        # Each call checks two partitions and adds at most one, so that expired times do not pile up.
        for other in list(islice(self._rest, 2)):
            rest_until = self._rest.pop(other)
            if rest_until > now:
                self._rest[other] = rest_until
        if seconds:
            self._rest[partition] = max(now + seconds, self._rest.get(partition, 0.0))

    def _room_appeared(self) -> None:
        if self._short_of_room:
            self._short_of_room = False
            self._wake()

    def _wake_at(self, moment: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if moment < inf:
            pause_s = max(0.0, moment - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(pause_s, self._wake)


HELD_UP_AFTER_S = 1.0
"""Seconds. A request that waits longer in a downloader middleware counts as held up."""


class HeldDownloads:
    """Calls *held_up* with requests that have waited long in a downloader middleware: one request per second.

    Such requests use no connection to their site. If they counted against its concurrency limit, the request
    that they wait for, such as a login, could not be sent.
    """

    def __init__(self, hooks: EngineHooks, held_up: Callable[[Request], bool]) -> None:
        """
        Args:
            held_up: returns False for a request that keeps counting against the limit.
        """
        self._hooks = hooks
        self._held_up = held_up
        self._checked_at = 0.0
        self._waiting: WeakSet[Request] = WeakSet()
        self._reported: WeakSet[Request] = WeakSet()

    def check(self) -> None:
        """Look for a request that has waited long, at most once per second.

        Called when no local request can be served.
        """
        now = time.monotonic()
        if now - self._checked_at < HELD_UP_AFTER_S:
            return
        self._checked_at = now
        waiting = self._hooks.held_up().difference(self._reported)
        for_long = (request for request in waiting if request in self._waiting)
        held_up = next(filter(self._held_up, for_long), None)
        if held_up is not None:
            self._reported.add(held_up)
        self._waiting = WeakSet(waiting)
        if waiting:
            asyncio.get_running_loop().call_later(HELD_UP_AFTER_S, self._hooks.wake)
