"""The frontier of one crawl as typed calls. Workers make every move of an entry through these calls."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgpack
from redis.exceptions import RedisError

from scrapy_dq.frontier import keys, wire
from scrapy_dq.frontier.answers import (
    Audited,
    Figures,
    Flushed,
    Joined,
    Member,
    Notices,
    Receipt,
    Rejoined,
    RunState,
)
from scrapy_dq.frontier.caller import Caller
from scrapy_dq.frontier.calls import Exchange, Rejoin
from scrapy_dq.frontier.errors import as_unavailable, unavailable
from scrapy_dq.frontier.model import (
    MAX_EXCHANGE_BYTES,
    Census,
    CrawlReplaced,
    FrontierError,
    FrontierUnavailable,
    Identity,
    Order,
    Seen,
    StartKeys,
)
from scrapy_dq.frontier.scan import Found
from scrapy_dq.frontier.wire import ms

SWEEP_STEP = 1_000
"""Number of keys to unlink in one call, which takes about 1 ms of Redis's time."""
SWEEP_S = 1.0
"""The longest time for which a leaving worker sweeps (unlinks) discarded keys."""
FLUSH_SWEEP_S = 10.0
"""The longest time for which a flush sweeps discarded keys: enough for about 50 million fingerprints."""


class Frontier(Caller):
    """All stored state of one crawl, behind one `redis.asyncio` client.

    Every call either returns or raises one of two errors. After FrontierUnavailable (no usable reply), repeat
    the call unchanged. FrontierRefused means that Redis cannot be used as configured, or has invalid data.
    """

    keep_failed = 10_000
    """How many of the newest failed requests Redis keeps, so that a user can list and retry them. At about
    250 bytes each, they take 2.5 MB of Redis's memory. More are not kept, because after so many failures a
    user has to remove the cause, and will begin a new run."""

    def __init__(
        self,
        client: Any,
        crawl: str,
        order: Order,
        seen: Seen = Seen.EXACT,
        start_keys: StartKeys | None = None,
        wait_replicas: int = 0,
        wait_s: float = 1.0,
        shard: int = 0,
    ) -> None:
        super().__init__(client, keys.Shard(crawl, shard), start_keys)
        self._wait_replicas, self._wait_s = wait_replicas, wait_s
        self.order = order
        self._seen = seen

    async def join(self, worker_id: str, identity: dict[str, Any], new_epoch: str, crawl: Identity) -> Joined:
        """Register a new worker. If no run is open, create the frontier or start its next run.

        Args:
            new_epoch: a fresh uuid; it becomes the epoch if the frontier is absent.
        """
        return wire.parse_joined(await self.call_join(worker_id, identity, new_epoch, crawl))

    async def call_join(
        self,
        worker_id: str,
        identity: dict[str, Any],
        epoch: str,
        crawl: Identity,
        run: int = -1,
        exists: bool = False,
        replaces: bytes = b"",
    ) -> list[Any]:
        """Return the answer to `join`, at home or in a shard that follows home.

        Args:
            run: the run of home; -1: this is home.
            exists: home knows that this shard exists. If its data is gone, the answer is LOST.
            replaces: the epoch of another crawl in this shard. The script deletes that crawl, so that the
                crawl at home can have this shard.
        Source: transitions/join.lua
        """
        reply: list[Any] = await self._call(
            "join", worker_id, json.dumps(identity), epoch, ms(crawl.restart_window_s), run, int(exists),
            replaces, self._start_kind, *wire.pack_identity(crawl, self.order, self._seen),
        )  # fmt: skip
        return reply

    async def run_state(self) -> RunState:
        """Return the stored state of the run."""
        with as_unavailable():
            epoch, run, phase = await self.client.hmget(keys.meta(self.name), "epoch", "run", "phase")
        return RunState(wire.parse_epoch(epoch or b""), wire.number_of(run or b""), phase != b"finished")

    async def note_shards(self, epoch: str, run: int) -> None:
        """Record at home that all other shards exist; do nothing if the run is over or home was replaced.

        Source: transitions/shards.lua
        """
        await self._call("shards", epoch, run)

    async def rejoin(self, call: Rejoin, identity: dict[str, Any], crawl: Identity) -> Rejoined:
        """Register a live worker again; it keeps its leases that are still in flight.

        Source: transitions/rejoin.lua
        """
        old_ids = "\0".join((call.old_id, *call.former_ids))
        reply = await self._call(
            "rejoin", call.new_id, json.dumps(identity), old_ids, call.epoch, call.run,
            b"".join(call.held), int(call.parentless), int(call.seeding), call.registered,
            *wire.pack_identity(crawl, self.order, self._seen),
        )  # fmt: skip
        return wire.parse_rejoined(reply)

    async def exchange(self, call: Exchange) -> Receipt:
        """Apply the moves of *call* in order and take at most `call.want` leases, in one atomic step.

        Raises:
            FrontierUnavailable: the moves may or may not have been applied. Repeat the same call: Redis
                applies it once.
        Source: transitions/exchange.lua
        """
        reply = await self._call(
            "exchange", call.worker_id, call.epoch, call.run, call.seq, call.want, int(call.seeding),
            call.held, MAX_EXCHANGE_BYTES, self.keep_failed, call.terms, call.moves, call.registered,
        )  # fmt: skip
        if self._wait_replicas:
            await self._replicated(call.worker_id, call.epoch)
        return wire.parse_receipt(reply, time.monotonic())

    async def _replicated(self, worker_id: str, epoch: str) -> None:
        """Wait until enough replicas have received all data that the master has so far.

        Raises:
            FrontierUnavailable: too few replicas have received it in time. The worker repeats the exchange,
                although the master has applied it.
        """
        async with self.on_one_connection() as (own, client):
            # WAIT refers to the last write on the same connection. A repeated exchange writes nothing, but a
            # heartbeat writes.
            await own.beats(worker_id, epoch)
            with as_unavailable():
                reached = await client.execute_command("WAIT", self._wait_replicas, ms(self._wait_s))
        if reached < self._wait_replicas:
            raise FrontierUnavailable(
                f"{reached} of {self._wait_replicas} replicas (DQ_WAIT_REPLICAS) have the newest data"
            )

    async def adopt(
        self,
        epoch: str,
        run: int,
        worker_id: str,
        number: int,
        fingerprints: Sequence[bytes],
        *,
        native: bool = False,
    ) -> tuple[int, bool]:
        """Store fingerprints that another scheduler has seen, in that scheduler's format.

        Args:
            worker_id: the member that makes the call.
            number: the number of this call, from 1 on; a repeat has the same number.
            fingerprints: at most 1,000; 20 bytes each if they are scrapy-redis's.
            native: this crawl's fingerprinter makes the same fingerprints, so add them to the seen set.
        Returns:
            the number of new fingerprints; whether Redis still has the data of all earlier calls (False: it
            was rolled back).
        Raises:
            FrontierRefused: the run is over, or the frontier is a different one.
        Source: transitions/adopt.lua
        """
        packed = msgpack.packb(fingerprints, use_bin_type=False)
        reply = await self._call("adopt", epoch, run, worker_id, number, int(native), packed)
        new, intact = wire.answer_of(reply)
        return int(new), intact == 1

    async def fence(
        self, worker_id: str, epoch: str, run: int, gone: bool = False, by: str = ""
    ) -> tuple[str, str]:
        """Fence a dead worker.

        Args:
            gone: the worker's process has ended. False: it may come back, and Redis keeps data for its
                rejoin.
            by: the id of the calling worker, if its start() has not begun. Redis then records that this
                caller joined after the interruption, so that its start() can complete the interrupted one.
        Returns:
            OK, ABSENT, LOST, RESYNC or FINISHED; the name (`Identity.starts`) of the dead worker's start() if
            that start() is incomplete now, else "".
        Source: transitions/fence.lua
        """
        reply = await self._call("fence", worker_id, epoch, run, int(gone), by)
        return reply[0].decode(), reply[1].decode("utf-8", "replace") if len(reply) > 1 else ""

    async def drain(
        self, worker_id: str, epoch: str, run: int, limit: int, max_attempts: int
    ) -> tuple[int, int, int]:
        """Take up to *limit* leases from a fenced worker.

        Returns:
            the numbers of moved, buried and remaining leases.
        Source: transitions/drain.lua
        """
        reply = await self._call("drain", worker_id, epoch, run, limit, max_attempts)
        return (reply[1], reply[2], reply[3]) if reply[0] == b"OK" else (0, 0, 0)

    async def leave(
        self,
        worker_id: str,
        epoch: str,
        run: int,
        keep_seen: bool | None,
        version: int = -1,
        kept: bool = False,
        began: bool = True,
        reason: str = "",
    ) -> tuple[int, bool]:
        """Release all leases and unregister; return how many were released, and whether no member is left.

        Args:
            version: the `Census.version` that this shard had when home had finished the run; -1: the run is
                not over, or this is home.
            kept: another shard has failed requests or dead letters, so this shard keeps the data for a retry.
            began: the worker's start() may have begun.
            reason: why the worker closes, for the journal.
        Source: transitions/leave.lua
        """
        reply = await self._call(
            "leave", worker_id, epoch, run, wire.pack_keep_seen(keep_seen), version, int(kept), int(began),
            reason,
        )  # fmt: skip
        if reply[0] != b"OK":
            return 0, False
        if reply[2] and reply[3]:
            with suppress(FrontierError):  # the next worker continues the sweep
                await self.sweep(SWEEP_S)
        return reply[1], bool(reply[2])

    async def audit(
        self,
        epoch: str,
        run: int,
        lists: Sequence[bytes],
        worker_ids: Sequence[bytes],
        last: bool = True,
        repair: bool = True,
    ) -> Audited:
        """Rebuild derived keys from *lists* (rank, partition, rank, partition, ...) and *worker_ids*.

        Args:
            last: no more parts follow, so compare the counts, and record losses.
            repair: False: only report.
        Raises:
            FrontierRefused: the run is over, or the frontier is a different one.
        Source: transitions/audit.lua
        """
        packed = (msgpack.packb(list(each), use_bin_type=False) for each in (lists, worker_ids))
        reply = await self._call("audit", epoch, run, *packed, int(last), int(repair))
        bands, bandless, partitions, members, gone, seen_gone = wire.answer_of(reply)
        return Audited(bands, bandless, partitions, members, gone, bool(seen_gone))

    async def epoch(self) -> bytes:
        """Return the stored epoch; empty: no readable epoch is stored."""
        try:
            return await self.client.hget(keys.meta(self.name), "epoch") or b""
        except (RedisError, OSError, TimeoutError) as error:
            if not str(error).startswith("WRONGTYPE"):
                raise unavailable(error) from error
            return b""

    async def flush(self, dead: Sequence[str], force: bool = False, epoch: bytes | None = None) -> Flushed:
        """Delete the crawl, even if its data is invalid, if all its members are among *dead*.

        Args:
            force: delete it even if workers are live.
            epoch: the epoch of the crawl to delete; None: the epoch that is stored now.
        Raises:
            CrawlReplaced: the crawl was deleted, and another one has begun; this call deleted nothing.
        Source: transitions/flush.lua
        """
        packed = msgpack.packb(list(dead), unicode_errors="surrogateescape")
        epoch = await self.epoch() if epoch is None else epoch
        reply = await self._call("flush", packed, int(force), epoch)
        if reply[0] == b"CHANGED":
            raise CrawlReplaced(f"crawl {self.crawl!r} has just begun again. Nothing was deleted")
        if reply[0] == b"LIVE":
            return Flushed(wire.id_text(reply[1]), Census())
        left = False
        if reply[4]:
            # If some keys are left, the exchanges of the next run sweep them.
            left = await self.sweep(FLUSH_SWEEP_S)
        return Flushed("", Census(waiting=reply[1], in_flight=reply[2], seen=reply[3]), left, reply[5])

    async def purge(self, found: Found) -> int:
        """Unlink the keys in *found* that no index names, and return how many.

        Call this only for a flushed crawl. In any other crawl, an audit rebuilds the indexes instead.

        Source: transitions/purge.lua
        """
        packed = (msgpack.packb(each, use_bin_type=False) for each in found)
        _, deleted = await self._call("purge", *packed)
        return int(deleted)

    async def sweep(self, budget_s: float) -> bool:
        """Unlink discarded keys for about *budget_s* seconds at most; return whether some are left.

        Source: transitions/sweep.lua
        """
        until = time.monotonic() + budget_s
        while (await self._call("sweep", SWEEP_STEP))[1]:
            if time.monotonic() >= until:
                return True
        return False

    async def tally(self, source: str, epoch: str, run: int, number: int, deltas: bytes) -> str:
        """Add one worker's stats to the sums of all workers; return OK, LOST, RESYNC or FINISHED.

        Args:
            source: identifies the reporter, and stays the same when the worker rejoins.
            number: one more than in the source's last answered tally.
            deltas: from `pack_tally`.
        Raises:
            FrontierUnavailable: no usable reply. Repeat the same arguments: Redis counts them once.
        Source: transitions/tally.lua
        """
        reply = await self._call("tally", source, epoch, run, number, deltas)
        return str(reply[0].decode())

    async def notices(self, dead: int = 0, outage_s: float = 0.0) -> Notices | None:
        """Return the kinds of events of the run that were not reported yet; None: there is no crawl.

        Args:
            dead: the number of dead letters in the other shards.
            outage_s: seconds of the longest outage of the other shards.
        Raises:
            FrontierUnavailable: no usable reply. Redis may have marked these events as reported.
        Source: transitions/notices.lua
        """
        status, *found = await self._call("notices", dead, ms(outage_s))
        if status != b"OK":
            return None
        run, counts, kinds = found
        return Notices(run, Census(*counts), [kind.decode() for kind in kinds])

    async def interrupted_starts(self) -> list[str]:
        """Return the name (`Identity.starts`) of each interrupted start(); "?" if its name is not known."""
        with as_unavailable():
            stored = await self.client.hget(self._keys[0], "starts")
        starts = msgpack.unpackb(stored, raw=True) if stored else {}
        return [name.decode("utf-8", "replace") for name, was in starts.items() if isinstance(was, list)]

    async def members(self) -> list[Member]:
        """Return the registered workers. Source: transitions/overview.lua"""
        return wire.parse_members((await self._call("overview", ""))[4])

    async def beats(self, worker_id: str, epoch: str) -> dict[str, int]:
        """Make the same call as `beat`, and return only the heartbeats."""
        return (await self.beat(worker_id, epoch))[0]

    async def beat(self, worker_id: str, epoch: str, observe: bool = True) -> tuple[dict[str, int], int]:
        """Increment this worker's heartbeat; return the heartbeats of all workers and `Commands.count`.

        If the frontier is lost, the result has no heartbeats.

        Args:
            observe: False: return no heartbeats, which saves Redis time if there are many workers.
        Source: transitions/beat.lua
        """
        return wire.parse_beats(await self._call("beat", worker_id, epoch, int(observe)))

    async def report(
        self, worker_id: str, epoch: str, observe: bool, counted: Figures, ended_s: float,
        waited_s: float = 0.0, reason: str = "",
    ) -> tuple[dict[str, int], int]:  # fmt: skip
        """Beat as in `beat`, and add the figures that this worker has *counted* since its last report.

        Args:
            ended_s: seconds of the longest outage that has ended since the last report; 0: no outage was
                worth noting.
            waited_s: seconds since the present outage began; 0: there is no outage.
            reason: the reason of the present outage.
        Raises:
            FrontierUnavailable: no usable reply. A second report may count the figures twice.
        Source: transitions/report.lua
        """
        figures = counted.exchanges, ms(counted.exchange_s), counted.errors, ms(counted.outage_s)
        return wire.parse_beats(
            await self._call(
                "report", worker_id, epoch, int(observe), *figures, ms(ended_s), ms(waited_s), reason
            )
        )
