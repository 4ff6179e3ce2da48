"""Waits, before a worker ends, until Redis has the worker's confirmed puts on disk and on the replicas.

A live worker repeats the puts that a rolled-back Redis has lost (`replay_log.py`). After the worker has
ended, no worker repeats its puts without a parent lease. So a worker with such puts stays registered, with
its log, until an fsync of the AOF is complete, and then makes an exchange. If Redis was rolled back during
the wait, it rejects the exchange. Then the worker repeats the puts of its log, and the wait starts again.

Two commands report an fsync, and this module uses both.

- `INFO` tells whether an fsync is in progress (`aof_pending_bio_fsync`). If no fsync is in progress, Redis
  writes all confirmed data to the file in the next iteration of its event loop. With `appendfsync everysec`,
  the next fsync starts in the first iteration that comes at least a second after the start of the last fsync.
  (In Redis up to 7.0: in the first iteration in which the clock shows another second.) So if INFO reports
  after that time that no fsync is in progress, this next fsync is complete.
- `WAITAOF` (7.2 and later) alone is not enough: in Redis 7.4.2 and Valkey 9.1, among others, it replies while
  written data waits for its fsync (https://github.com/redis/redis/pull/13793). But WAITAOF covers two cases
  that INFO does not: the first rewrite of an AOF that was just enabled, and the file that Redis closes when a
  rewrite begins.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from redis.exceptions import NoPermissionError, ResponseError

from scrapy_dq.frontier.errors import as_unavailable
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.model import FrontierUnavailable
from scrapy_dq.frontier.worker.protocol import WorkerProtocol

POLL_S = 0.02
AGAIN_S = 0.2
SLICE_MS = 100
"""Timeout of one WAIT or WAITAOF: shorter than any timeout of a connection."""
GONE_S = 60.0
"""A replica that is offline for this many seconds is no longer waited for. Redis also gives up a
replica that is silent for a time."""


async def wait_until_durable(
    frontier: Frontier, member: WorkerProtocol, verify: Callable[[], Awaitable[object]], deadline: float
) -> str:
    """Wait until all confirmed moves of *member* are on the disk of Redis and on its connected replicas.

    Args:
        verify: makes at least one exchange, and more until nothing is left to send.
        deadline: in seconds of the monotonic clock; *verify* must observe it as well.
    Returns:
        "" on success; else the reason why the data may not be stored there yet, a sentence without a full
        stop.
    Raises:
        FrontierError: raised by *verify*.
    """
    while True:
        registered, doubt = member.id, ""
        try:
            doubt = await written(frontier, lambda own: own.beats(member.id, member.epoch), deadline)
            passed = True
        except FrontierUnavailable as error:
            doubt, passed = str(error), False
            await asyncio.sleep(min(AGAIN_S, max(0.0, deadline - time.monotonic())))
        try:
            await verify()
        except FrontierUnavailable as error:
            if member.outbox:  # Redis was rolled back, and is unavailable again
                raise
            doubt, deadline = doubt or str(error), 0.0
            passed = False
        if member.lost or member.over:
            return ""  # the worker has logged this already, and has no data to keep
        kept = passed and member.id == registered
        if kept or time.monotonic() >= deadline:
            doubt = doubt or ("" if kept else "it was rolled back")
            return doubt and f"If Redis fails now, the last puts may be lost: {doubt}"


async def written(frontier: Frontier, write: Callable[[Frontier], Awaitable[object]], deadline: float) -> str:
    """Wait until all data of a frontier is on Redis's disk and on the connected replicas.

    Args:
        write: makes a call that writes, with the frontier that it gets.
    Returns:
        "" on success; else the reason why the data may not be stored there yet.
    Raises:
        FrontierError: *write* has raised it, or Redis gives no reply.
    """
    waiting = _Waiting(deadline)
    try:
        async with frontier.on_one_connection() as (own, client):
            # WAIT and WAITAOF refer to the last write on the same connection.
            await write(own)
            return await waiting.wait(client)
    except _TooLate:
        return waiting.outstanding


class _TooLate(Exception):
    """The deadline of the wait has passed."""


class _Waiting:
    """One wait on one connection. Each command has a timeout, so that no command has to be cancelled."""

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self.outstanding = "it has not confirmed in time that the data is on its disk"

    async def wait(self, client: Any) -> str:
        """Wait for the disk, then for the replicas; return "", or why their state cannot be determined."""
        with as_unavailable():
            try:
                info = await client.info()
            except NoPermissionError:
                return "this user may not ask it (INFO)"
            return await self._disk(client, info) or await self._replicas(client, _online(info))

    async def _disk(self, client: Any, info: dict[str, Any]) -> str:
        if not int(info.get("aof_enabled", 0)):
            return "it has no AOF"
        config: dict[bytes, bytes] = {}
        with suppress(ResponseError):  # many users may not call this: then assume Redis's defaults
            config = dict(await client.config_get("*appendfsync*"))
        policy = _text(config, "appendfsync")
        if policy == "no":
            return "appendfsync is 'no', so that it is unknown when the data is on its disk"
        if policy == "always":
            return ""
        exempt = _text(config, "no-appendfsync-on-rewrite") == "yes"
        passed = False
        while not passed:
            server = await self._idle(client, exempt)
            await self._turn_of_second(client, str(info["redis_version"]))
            passed = await self._idle(client, exempt) == server
        try:
            while not (await client.execute_command("WAITAOF", 1, 0, SLICE_MS))[0]:
                await self._sleep(0)
        except NoPermissionError:
            return "this user may not ask it (WAITAOF)"
        except ResponseError:
            pass  # WAITAOF does not exist before 7.2
        return ""

    async def _turn_of_second(self, client: Any, version: str) -> None:
        """Wait until the next fsync has started."""
        seconds, micros = await client.time()
        has_ms_precision = tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) >= (7, 2)
        due = seconds + 1 + (micros / 1e6 if has_ms_precision else 0)
        left = 1.0
        while left > 0:
            seconds, micros = await client.time()
            left = due - seconds - micros / 1e6
            await self._sleep(max(0.0, left))
        # The iteration that answered the last TIME may have read its clock a moment before the turn. The
        # answer to one more command comes from a later iteration.
        await client.time()

    async def _idle(self, client: Any, exempt: bool) -> Any:
        """Wait until no fsync is in progress; return the run id of the Redis process."""
        while True:
            info = await client.info()
            held_up = info.get("aof_last_write_status", "ok") != "ok" or info.get("aof_pending_bio_fsync", 0)
            if exempt:  # no fsync starts while a child process writes
                held_up = held_up or info["aof_rewrite_in_progress"] or info["rdb_bgsave_in_progress"]
            if not held_up:
                return info["run_id"]
            await self._sleep(POLL_S)

    async def _sleep(self, pause_s: float) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise _TooLate
        await asyncio.sleep(min(pause_s, left))

    async def _replicas(self, client: Any, count: int) -> str:
        reached, give_up_at = 0, time.monotonic() + GONE_S
        while reached < count:
            self.outstanding = f"{reached} of {count} replicas have it"
            try:
                reached = await client.execute_command("WAIT", count, SLICE_MS)
            except ResponseError:
                return "this user may not ask it for its replicas (WAIT)"
            if reached < count:
                await self._sleep(0)
                online = _online(await client.info("replication"))
                if online >= count:
                    give_up_at = time.monotonic() + GONE_S
                elif time.monotonic() >= give_up_at:
                    count = online
        return ""


def _online(info: dict[str, Any]) -> int:
    """Return how many replicas are online according to INFO: they have loaded a first copy of all data."""
    found = (info.get(f"slave{n}") for n in range(int(info.get("connected_slaves", 0))))
    return sum(isinstance(each, dict) and each.get("state") == "online" for each in found)


def _text(config: dict[Any, Any], name: str) -> str:
    value = config.get(name.encode(), config.get(name, b""))
    return value.decode() if isinstance(value, bytes) else str(value)
