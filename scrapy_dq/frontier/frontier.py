"""The frontier of one crawl as typed calls: every move of an entry goes through here."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from copy import copy
from dataclasses import dataclass, field
from typing import Any

import msgpack
from redis.exceptions import RedisError

from scrapy_dq.frontier import keys
from scrapy_dq.frontier.errors import as_unavailable, denies, describe, explain
from scrapy_dq.frontier.model import (
    ENTRY_ID_BYTES,
    MAX_EXCHANGE_BYTES,
    Audited,
    Census,
    FrontierError,
    FrontierRefused,
    FrontierUnavailable,
    Joined,
    Limits,
    Member,
    Order,
    Parentless,
    Receipt,
    Rejoined,
    Seeding,
    Seen,
    StartKeys,
    Status,
)
from scrapy_dq.frontier.scripts import TRANSITIONS, Script
from scrapy_dq.frontier.signing import Signer
from scrapy_dq.frontier.wire import (
    NO_TERMS,
    audit_args,
    denied,
    id_text,
    limit_args,
    ms,
    pack_limits,
    parse_audit,
    parse_beats,
    parse_epoch,
    parse_limit,
    parse_members,
    parse_receipt,
    parse_words,
    refuse,
)

SWEEP_STEP = 1_000
"""Keys unlinked at once: 1 ms of Redis's time."""
SWEEP_S = 1.0
"""Of what a worker that leaves does for those who come after it."""
FLUSH_SWEEP_S = 10.0
"""Of what a flush deletes: some 50 million fingerprints."""
SCHEMA = "5"
"""What the keys mean. Workers of another schema are refused: they would misread each other."""


@dataclass(frozen=True)
class Identity:
    """What must agree between all workers of a crawl."""

    fingerprinter: str
    spider: str
    spider_args: str
    run_name: str = ""
    keep_seen: bool | None = False
    """None: as a spider's worker had it."""
    partition_by: str = "none"
    seen_ttl_s: float = 0.0
    """With a kind of seen that knows it: what a new run does not know any more; 0: it knows all."""
    limits: Limits | None = field(default_factory=Limits)
    """None: as they are."""
    starts: str = ""
    """What this worker's start() is called with: another one of that name yields the same requests, unless it
    begins with a star; empty: it has none (lib/starts.lua)."""
    restart_window_s: float = 0.0
    """For so long after the end of a run that workers shared, this one counts as one of them, restarted."""
    order_given: bool = True
    seen_given: bool = True
    """False, as an empty name above: whatever is stored will do; if nothing is, the first worker that
    can says it."""


class Frontier:
    """All stored state of one crawl, behind one `redis.asyncio` client.

    The client must not retry by itself: a repeated script would be a second one. Every call either
    returns, or raises FrontierUnavailable (no usable reply: repeat it unchanged) or FrontierRefused
    (Redis or its data cannot serve; nothing was changed).
    """

    def __init__(
        self,
        client: Any,
        crawl: str,
        order: Order,
        keep_failed: int = 10_000,
        seen: Seen = Seen.EXACT,
        start_keys: StartKeys | None = None,
        signing_keys: Sequence[str] = (),
    ) -> None:
        self.crawl = crawl
        self.start_keys = start_keys
        # What others put under start keys nobody has signed.
        self.signer = Signer(crawl, signing_keys, start_keys.mark if start_keys else b"")
        self._keep_failed = keep_failed
        self.order = order
        self._seen = seen
        self.client = client
        self._keys = (keys.meta(crawl),)
        self._exchange_keys = (*self._keys, *(start_keys.keys if start_keys else ()))
        self._scripts = {name: Script(name, order, seen) for name in (*TRANSITIONS, "probe")}
        self._denied = False
        """Redis has refused a command: before the next script all are tried."""

    async def join(self, worker_id: str, identity: dict[str, Any], new_epoch: str, crawl: Identity) -> Joined:
        """Register a fresh worker; create the frontier, or start its next run, where there is none open.

        Args:
            new_epoch: a fresh uuid, used only if the frontier is absent.
        Source: transitions/join.lua
        """
        reply = await self._call(
            "join", worker_id, json.dumps(identity), new_epoch, ms(crawl.restart_window_s),
            *self._said_of(crawl),
        )  # fmt: skip
        (
            status, epoch, run, resumed, counts, spider_args, limits_changed, adopted, words, ended_ms,
            crawled,
        ) = reply  # fmt: skip
        return Joined(
            Status(status.decode()),
            parse_epoch(epoch),
            int(run),
            bool(resumed),
            Census(*counts),
            spider_args.decode("utf-8", "replace"),
            bool(limits_changed),
            bool(adopted),
            parse_words(words),
            None if ended_ms < 0 else ended_ms / 1000,
            bool(crawled),
        )

    def _said_of(self, crawl: Identity) -> tuple[Any, ...]:
        """Source: lib/described.lua"""
        return (
            SCHEMA, self.order.value if crawl.order_given else "",
            self._seen.value if crawl.seen_given else "", crawl.fingerprinter, crawl.spider,
            crawl.partition_by, crawl.spider_args, crawl.run_name, _said(crawl.keep_seen),
            ms(crawl.seen_ttl_s), _packed(crawl.limits), crawl.starts, self.signer.ids,
        )  # fmt: skip

    async def rejoin(
        self,
        new_id: str,
        identity: dict[str, Any],
        old_id: str,
        epoch: str,
        run: int,
        held: Sequence[bytes],
        parentless: Parentless,
        seeding: Seeding,
        crawl: Identity,
    ) -> Rejoined:
        """Register a live worker anew; keep those of *held* that are still in flight under *old_id*.

        Args:
            parentless: puts that no lease stands for: with these it registers in a finished run, too, while
                it is still known what was put in it; the first that is new opens it again.
            seeding: ACTIVE, or AGAIN.
        Source: transitions/rejoin.lua
        """
        reply = await self._call(
            "rejoin", new_id, json.dumps(identity), old_id, epoch, run, b"".join(held), int(parentless),
            int(seeding), *self._said_of(crawl),
        )  # fmt: skip
        status = Status(reply[0].decode())
        if status is Status.LOST:
            return Rejoined(status)
        last_seq = None if reply[-1] < 0 else int(reply[-1])
        if status is Status.FINISHED:
            return Rejoined(status, last_seq=last_seq)
        owned = reply[2]
        ids = (owned[i : i + ENTRY_ID_BYTES] for i in range(0, len(owned), ENTRY_ID_BYTES))
        return Rejoined(status, int(reply[1]), frozenset(ids), last_seq)

    async def exchange(
        self,
        worker_id: str,
        epoch: str,
        run: int,
        seq: int,
        want: int,
        seeding: Seeding,
        held: int,
        moves: bytes,
        terms: bytes = NO_TERMS,
    ) -> Receipt:
        """Apply *moves* in order and take up to *want* leases, in one atomic step.

        Args:
            seq: one more than that of the last exchange that was answered; 1 after (re)joining.
            want: leases, 0 to MAX_LEASES.
            held: leases that this worker believes to own before *moves* are applied.
            moves: a prefix of the outbox, from `pack_moves`; at most MAX_MOVES.
            terms: from `pack_terms`.
        Raises:
            FrontierUnavailable: the moves may or may not have been applied. Repeat the same
                arguments: they are applied once.
        Source: transitions/exchange.lua
        """
        while True:
            reply = await self._call(
                "exchange", worker_id, epoch, run, seq, want, int(seeding), held, MAX_EXCHANGE_BYTES,
                self._keep_failed, terms, moves,
            )  # fmt: skip
            if reply[0] != b"KIND":
                return parse_receipt(reply, self.signer, time.monotonic())
            # This frontier came without one, as a program's, or it was converted while this worker was away.
            self._scripts["exchange"] = Script("exchange", self.order, Seen(reply[1].decode()))

    async def adopt(
        self, epoch: str, run: int, worker_id: str, number: int, fingerprints: Sequence[bytes]
    ) -> tuple[int, bool]:
        """Note what another scheduler had seen, in its own notation.

        Args:
            worker_id: of the member that does it.
            number: of this call, from 1 on; a repeat has the same.
            fingerprints: of 20 bytes each, at most 1,000.
        Returns:
            how many of these are new; whether the calls before are remembered: if not, Redis came back older.
        Raises:
            FrontierRefused: the run is over, or the frontier another one.
        Source: transitions/adopt.lua
        """
        reply = await self._call("adopt", epoch, run, worker_id, number, b"".join(fingerprints))
        if reply[0] != b"OK":
            raise FrontierRefused(f"the crawl has changed meanwhile ({reply[0].decode()}): begin again")
        return int(reply[1]), reply[2] == 1

    async def fence(
        self, worker_id: str, epoch: str, run: int, gone: bool = False, by: str = ""
    ) -> tuple[str, str]:
        """Fence a worker that is dead.

        Args:
            gone: its process is known to be gone; else it may come back, and what it then needs is kept.
            by: the worker that does it before its own start() has begun: that one is later then.
        Returns:
            OK, ABSENT, LOST, RESYNC or FINISHED; what its start() was called with, if that was broken off and
            nobody has done the same (`Identity.starts`), else "".
        Source: transitions/fence.lua
        """
        reply = await self._call("fence", worker_id, epoch, run, int(gone), by)
        return reply[0].decode(), reply[1].decode("utf-8", "replace") if len(reply) > 1 else ""

    async def drain(
        self, worker_id: str, epoch: str, run: int, limit: int, max_attempts: int
    ) -> tuple[int, int, int]:
        """Move up to *limit* leases of a fenced worker to quarantine; return (moved, buried, left).

        Source: transitions/drain.lua
        """
        reply = await self._call("drain", worker_id, epoch, run, limit, max_attempts)
        return (reply[1], reply[2], reply[3]) if reply[0] == b"OK" else (0, 0, 0)

    async def leave(self, worker_id: str, epoch: str, run: int, keep_seen: bool | None) -> tuple[int, bool]:
        """Give all leases back and unregister; return (released, nobody is left).

        Source: transitions/leave.lua
        """
        reply = await self._call("leave", worker_id, epoch, run, _said(keep_seen))
        if reply[0] != b"OK":
            return 0, False
        if reply[2] and reply[3]:
            with suppress(FrontierError):  # whoever comes next goes on with it
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
        """Make derived keys anew, as far as *lists* (rank, partition, ...) and *worker_ids* tell.

        Args:
            last: that was all: compare the counts, and note what is gone.
            repair: False: only tell what there is to do.
        Raises:
            FrontierRefused: the run is over, or the frontier another one.
        Source: transitions/audit.lua
        """
        args = audit_args(epoch, run, lists, worker_ids, last, repair)
        return parse_audit(await self._call("audit", *args))

    async def flush(self, dead: Sequence[str]) -> tuple[str, Census]:
        """Delete the whole crawl; refuse, naming one, if a member is not among *dead*.

        Returns:
            ("", what was deleted), or (a worker's id, empty census) if refused.
        Source: transitions/flush.lua
        """
        packed = msgpack.packb(list(dead), unicode_errors="surrogateescape")
        reply = await self._call("flush", packed)
        if reply[0] == b"LIVE":
            return id_text(reply[1]), Census()
        if reply[4]:
            # Others may have written how much there is. What is left, the exchanges of the next run sweep.
            await self.sweep(FLUSH_SWEEP_S)
        return "", Census(waiting=reply[1], in_flight=reply[2], seen=reply[3])

    async def sweep(self, most_s: float) -> bool:
        """Unlink what is discarded, for *most_s*; return whether some is left.

        Source: transitions/sweep.lua
        """
        until = time.monotonic() + most_s
        while (await self._call("sweep", SWEEP_STEP))[1]:
            if time.monotonic() >= until:
                return True
        return False

    async def limit(
        self,
        partition: bytes,
        delay_s: float | None = None,
        concurrency: int | None = None,
        block_s: float | None = None,
    ) -> tuple[float, int, float] | None:
        """Change what one partition may have, for all workers, while the crawl runs.

        Args:
            delay_s, concurrency: None: as it is; negative: the crawl's own again; 0: no limit.
            block_s: leave the partition alone for so long; 0: not any more; None: as it is.
        Returns:
            delay, concurrency and what is left of a block, as they are now; None: there is no crawl.
        Source: transitions/limit.lua
        """
        reply = await self._call("limit", *limit_args(partition, delay_s, concurrency, block_s))
        return parse_limit(reply)

    async def tally(self, source: str, epoch: str, run: int, number: int, deltas: bytes) -> str:
        """Add what one worker has counted to the sums of all; OK, LOST, RESYNC or FINISHED.

        Args:
            source: whose counts these are; stays the same when the worker registers anew.
            number: one more than that of the source's last tally that was answered.
            deltas: from `pack_tally`.
        Raises:
            FrontierUnavailable: repeat the same arguments: they count once.
        Source: transitions/tally.lua
        """
        reply = await self._call("tally", source, epoch, run, number, deltas)
        return str(reply[0].decode())

    async def census(self) -> Census:
        """Return all counts, without being a worker of the crawl. Source: transitions/overview.lua"""
        return Census(*(await self._call("overview"))[3])

    async def members(self) -> list[Member]:
        """Return the registered workers. Source: transitions/overview.lua"""
        return parse_members((await self._call("overview"))[4])

    @asynccontextmanager
    async def on_one_connection(self) -> AsyncIterator[tuple[Frontier, Any]]:
        """Yield this frontier with a connection of its own, and the client of that."""
        with as_unavailable():
            client = await self.client.client().initialize()
        try:
            alone = copy(self)
            alone.client = client
            yield alone, client
        finally:
            await client.aclose()

    async def beats(self, worker_id: str, epoch: str) -> dict[str, int]:
        """Count up this worker's heartbeat and return everyone's; empty if LOST.

        Source: transitions/beat.lua
        """
        return parse_beats(await self._call("beat", worker_id, epoch))[0]

    def beats_blocking(self, client: Any, worker_id: str, epoch: str) -> tuple[dict[str, int], int]:
        """As `beats`, on a `redis` client of the heartbeat thread; with `Words.count`."""
        try:
            return parse_beats(self._scripts["beat"].call_blocking(client, self._keys[0], worker_id, epoch))
        except (RedisError, OSError) as error:
            raise FrontierUnavailable(explain(error)) from error

    async def _call(self, transition: str, *args: Any) -> Any:
        args = tuple(
            each.encode("utf-8", "surrogateescape") if isinstance(each, str) else each for each in args
        )
        try:
            keys_of = self._exchange_keys if transition == "exchange" else self._keys
            if self._denied:
                refuse(await self._scripts["probe"].call(self.client, self._keys))
                self._denied = False
            reply = await self._scripts[transition].call(self.client, keys_of, *args)
        except (RedisError, OSError, TimeoutError) as error:
            if denies(error):
                self._denied = True
                raise FrontierRefused(denied(describe(error))) from error
            raise FrontierUnavailable(explain(error)) from error
        refuse(reply)
        return reply


def _packed(limits: Limits | None) -> bytes:
    return pack_limits(limits) if limits else b""


def _said(keep_seen: bool | None) -> int | str:
    return "" if keep_seen is None else int(keep_seen)
