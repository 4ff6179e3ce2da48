"""A worker's half of the protocol: what it sends, and what each answer changes.

Knows no pace and starts no task: `speaker.py` decides when. docs/design.md has the protocol;
lua/transitions/exchange.lua and lua/transitions/rejoin.lua are its other half.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Protocol

from scrapy_dq.frontier.frontier import Frontier, Identity
from scrapy_dq.frontier.model import (
    AGAIN,
    ENTRY_ID_BYTES,
    LISTENING,
    MAX_LEASES,
    MAX_MOVES,
    Block,
    Census,
    Claim,
    FrontierRefused,
    Hold,
    Joined,
    Move,
    Note,
    Parentless,
    Put,
    Receipt,
    Release,
    Status,
    Terms,
    Words,
)
from scrapy_dq.frontier.wire import pack_moves, pack_terms
from scrapy_dq.frontier.worker.identity import new_worker_id
from scrapy_dq.frontier.worker.leases import Leases
from scrapy_dq.frontier.worker.outbox import Outbox
from scrapy_dq.frontier.worker.replay_log import ReplayLog
from scrapy_dq.frontier.worker.spill import SpillLost

logger = logging.getLogger(__name__)
_LEFT_BEHIND = "a crawl closes with reason run_over, a Queue puts its items into the next run"


class Listener(Protocol):
    """What a worker tells its owner; called on the event loop, must neither block nor raise."""

    def leases_arrived(self) -> None: ...
    def run_finished(self) -> None: ...
    def frontier_lost(self) -> None: ...
    def put_dropped(self, put: Put) -> None: ...
    def put_refused(self, put: Put) -> None:
        """There are too many already (`Put.most`); it was not stored."""

    def outbox_lost(self, parentless: bool) -> None:
        """Puts are gone that were never stored: what was found may not be taken for known any more.

        Those whose parent has a lease come again; if some have none (*parentless*), only the next
        crawl's start() brings them back.
        """

    def rolled_back(self, parentless: bool) -> None:
        """Redis was rolled back further than the log of this worker reaches: confirmed puts are gone.

        Those whose parent has a lease come again, if nobody takes them for known; if some have none
        (*parentless*), only the next crawl's start() brings them back.
        """

    def told(self, before: Words, words: Words) -> None:
        """All workers were told something, by somebody outside; what holds is obeyed already."""

    def counted(self, what: str, amount: float) -> None:
        """*what*: exchange, seconds, error, rejoin, reclaim, or a move's name once it is confirmed."""


@dataclass(frozen=True)
class _Sent:
    """An exchange under way: frozen until it is answered, so that a repeat is the same bytes."""

    prefix: list[Move]
    want: int
    seeding: int
    held: int
    moves: bytes
    terms: bytes
    notes: int
    forgotten: int
    sent_at: float


@dataclass(frozen=True)
class _Rejoin:
    """A rejoin under way: frozen until it is answered, for the same reason."""

    new_id: str
    held: list[bytes]
    parentless: Parentless
    seeding: int


def _may_be_known(moves: Iterable[Move]) -> None:
    """Take note that puts may have been applied already: none of them is counted as a duplicate."""
    for move in moves:
        if isinstance(move, Put):
            move.fresh = False


def _listened(sent: _Sent) -> bool:
    """Others finished the run while this worker was away: it would listen for what nobody claims there."""
    return sent.seeding == LISTENING


class WorkerProtocol:
    """One worker's conversation with the frontier: at most one exchange or rejoin is under way."""

    def __init__(
        self,
        frontier: Frontier,
        crawl: Identity,
        identity: dict[str, Any],
        listener: Listener,
        rollback_horizon_s: float,
        spill_dir: str = "",
        limit: Callable[[bytes], int] = lambda partition: MAX_LEASES,
    ) -> None:
        self._frontier = frontier
        self._crawl = crawl
        self._identity = identity
        self._listener = listener
        self._log = ReplayLog(rollback_horizon_s)
        self._sent: _Sent | None = None
        self._rejoin: _Rejoin | None = None
        self.id = new_worker_id(identity)
        self.epoch = ""
        self.run = 0
        self.seq = 1
        self.seeding = 1
        self.listening = False
        """More may be fed at any time: the run is not to be finished, whatever is left of it."""
        self.census = Census()
        self.words = Words()
        self.outbox = Outbox(spill_dir)
        self.leases = Leases(limit)
        self.notes: list[Note] = []
        """What is to be told with the next exchange; told again if that is not applied."""
        self.next_due_s: float | None = None
        """When something falls due, as of the last exchange."""
        self._wrong_key = ""
        self.composed = 0
        self.applied = 0
        """How many exchanges were composed; which of them was the last one applied, counted from 1."""
        self.finished = False
        """The run is finished, as far as this worker knows; a put opens it again."""
        self.over = False
        """The run is finished for good: nothing is put any more."""
        self.lost = False
        """The frontier is gone."""
        self.damage = ""
        """Keys that contradict the counts, as the last exchange has found: an audit is due; empty: none."""
        self.left_over: list[Put] = []
        """Puts without a parent that the run, now over, has perhaps not done: the next one may take them."""
        self._left_behind = False

    @property
    def under_way(self) -> bool:
        """An exchange or a rejoin was sent and is not answered."""
        return self._sent is not None or self._rejoin is not None

    @property
    def unsaid(self) -> bool:
        """There is something to hand in or to tell, or an answer is owed."""
        return bool(self.outbox or self.notes) or self.under_way

    @property
    def idle(self) -> bool:
        """Nothing of the whole crawl is left, as of the last exchange, but what may be fed."""
        # A start() that failed (2) yields nothing more.
        return not (self.outbox or self.leases or self.seeding == 1) and self.census.empty

    @property
    def pending(self) -> bool:
        """Something of the whole crawl is not done yet, as far as this worker knows."""
        if self.over:
            return False
        others_broken = self.seeding == 0 and self.census.incomplete and not self.damage
        broken = self.seeding in (2, AGAIN) or others_broken
        if broken and not self.outbox and not self.leases:
            # A start() failed, or died: the run stays open, so that the next crawl repeats it.
            return not self.census.empty
        return not self.finished or bool(self.outbox)

    @property
    def ending(self) -> str:
        """Why this worker closes when nothing is left to do: `finished`, unless something is missing."""
        if self._left_behind:
            return "run_over"
        if self.census.gone:
            return "frontier_damaged"
        return "start_incomplete" if self.census.incomplete else "finished"

    async def join(self, new_epoch: str) -> Joined:
        """Register; see Frontier.join."""
        joined = await self._frontier.join(self.id, self._identity, new_epoch, self._crawl)
        self.epoch, self.run, self.census = joined.epoch, joined.run, joined.census
        self.words = joined.words
        self.finished = self.over = joined.status is Status.FINISHED
        if self.over:
            self.census = Census()  # nothing of it concerns a worker that does not take part
        return joined

    @property
    def forgets(self) -> bool:
        """Redis keeps tokens that only a repeat by this worker would need, and it repeats them no more."""
        return bool(self._log.forgettable)

    @property
    def vouches(self) -> bool:
        """Its log has puts that no lease stands for: nobody else would bring them back."""
        return self._log.parentless

    def retire_log(self) -> None:
        """Repeat nothing any more: this worker leaves."""
        self._log.retire_all()

    async def leave(self) -> None:
        """Give all leases back and unregister."""
        released, last = await self._frontier.leave(self.id, self.epoch, self.run, self._crawl.keep_seen)
        logger.debug("Worker %s left: %d leases released, nobody left: %s", self.id, released, last)

    async def speak(
        self,
        want: int,
        ahead_s: float = 0.0,
        ahead: int = 0,
        most: int = MAX_LEASES,
        until: int | None = None,
    ) -> tuple[int, int]:
        """Make one exchange, or the rejoin that is due; return how many leases were asked for and came.

        Args:
            ahead_s, most: see `Terms`.
            ahead: see `Leases.here`.
            until: see `Outbox.prefix`.

        Raises:
            FrontierUnavailable: no answer; the next call says the same once more.
        """
        if self._rejoin is not None:
            await self._register_anew(self._rejoin)
            return 0, 0
        if self._sent is None:
            try:
                forget = b"".join(islice(self._log.forgettable, MAX_MOVES))
                here = self.leases.here(ahead)
                terms = Terms(ahead_s, most, here, self.notes, self._claim(want), forget)
                self._sent = self._freeze(want, terms, until)
            except SpillLost as error:
                self._give_up_outbox(error)
                return 0, 0
        sent = self._sent
        try:
            receipt = await self._frontier.exchange(
                self.id, self.epoch, self.run, self.seq, sent.want, sent.seeding, sent.held, sent.moves,
                sent.terms,
            )  # fmt: skip
        except FrontierRefused:
            _may_be_known(sent.prefix)  # it may have been stopped half-way
            raise
        self._sent = None
        if receipt.status is Status.LOST:
            self._lose()
        elif receipt.status is Status.RESYNC:
            _may_be_known(sent.prefix)  # by a try whose reply was lost
            logger.warning(
                "Worker %s is out of step with the frontier: it was taken for dead, or Redis has lost its "
                "newest data. It registers anew, keeps the requests that are still its own, and stores its "
                "newest again",
                self.id,
            )
            self._begin_rejoin()
        elif receipt.applied:
            self._accept(sent, receipt)
            self._hear(receipt.words)
            if receipt.status is Status.FINISHED and not self.outbox:
                self._finish(over=_listened(sent))
            return sent.want, len(receipt.leases)
        else:
            self.seq += 1  # noted all the same: the next is no repeat of it, and no late copy of it the next
            self._learn_of_the_end(sent, receipt)
            return sent.want, 0
        return 0, 0

    def _learn_of_the_end(self, sent: _Sent, receipt: Receipt) -> None:
        if sent.prefix:
            self._begin_rejoin()
        elif not self.outbox:
            # The run ended without us: what is in the buffer was reclaimed, and done by others.
            self.leases.keep(())
            # If the next run has begun, there is no word of this one: what is known to be gone stays so.
            self.census = replace(receipt.census, gone=max(self.census.gone, receipt.census.gone))
            self._finish(over=_listened(sent))
            self._hear(receipt.words)

    def _freeze(self, want: int, terms: Terms, until: int | None) -> _Sent:
        prefix = self.outbox.prefix(until)
        # A parentless put beyond the prefix is known to nobody else: until it is handed in, we seed.
        beyond = self.outbox.parentless - sum(isinstance(m, Put) and m.parent is None for m in prefix)
        seeding = self.seeding or int(beyond > 0) or (LISTENING if self.listening else 0)
        now = time.monotonic()
        self.composed += 1
        packed = pack_moves(prefix, self._frontier.signer)
        return _Sent(
            prefix, want, seeding, len(self.leases), packed, pack_terms(terms), len(terms.notes),
            len(terms.forget) // ENTRY_ID_BYTES, now,
        )  # fmt: skip

    def _claim(self, want: int) -> Claim | None:
        keys = self._frontier.start_keys
        return Claim(keys.kind, keys.mark, os.urandom(8)) if keys and want else None

    def _accept(self, sent: _Sent, receipt: Receipt) -> None:
        now = time.monotonic()
        self.applied = self.composed
        self.finished = False
        self.census = receipt.census
        self.damage = receipt.damage
        self.next_due_s = receipt.next_due_s
        self.outbox.confirm(sent.prefix)
        del self.notes[: sent.notes]
        for _ in range(sent.forgotten):
            self._log.forgettable.popleft()
        seq = self.seq
        self.seq += 1
        self._log.retire(sent.sent_at)
        for position in receipt.dropped:
            put = sent.prefix[position]
            if isinstance(put, Put) and put.fresh:
                self._listener.put_dropped(put)
        for kind, count in Counter(map(type, sent.prefix)).items():
            self._listener.counted(kind.__name__.lower(), count)
        refused = set(receipt.refused)
        for position in receipt.refused:
            put = sent.prefix[position]
            if isinstance(put, Put):
                self._listener.put_refused(put)
        for position, move in enumerate(sent.prefix):
            if isinstance(move, Put):
                if position not in refused:
                    self._log.add(move, now, seq)
            else:
                self.leases.confirmed(move.entry_id)
        for lease in receipt.leases:
            self.leases.grant(lease)
        # Some were granted before this block was told.
        untold = (note.partition for note in self.notes if isinstance(note, Block))
        for partition in (*receipt.blocked, *untold):
            self.withdraw(partition)
        if receipt.wrong_key and receipt.wrong_key != self._wrong_key:
            logger.error("Some requests cannot be crawled until this is mended: %s", receipt.wrong_key)
        self._wrong_key = receipt.wrong_key
        if receipt.leases:
            self._listener.leases_arrived()
        elif not self.pending:
            self._listener.run_finished()

    def _hear(self, words: Words | None) -> None:
        if words is None:
            return
        before, self.words = self.words, words
        # What is buffered was leased under other limits; a late answer may bring leases to one that pauses.
        if words.hold is Hold.PAUSED or words.limitings != before.limitings:
            self.empty_buffer()
        if words != before:
            self._listener.told(before, words)

    def withdraw(self, partition: bytes) -> None:
        """Give back what is in the buffer of a partition that is to be left alone."""
        self._give_back(self.leases.withdraw(partition))

    def empty_buffer(self) -> None:
        """Give back all that is in the buffer."""
        self._give_back(self.leases.empty_buffer())

    def _give_back(self, entry_ids: Iterable[bytes]) -> None:
        for entry_id in entry_ids:
            if self.leases.settle(Release(entry_id)):
                self.outbox.append(Release(entry_id))

    def _finish(self, *, over: bool) -> None:
        """Note that the run is finished; *over*: for good, as far as this worker is concerned."""
        self.notes.clear()  # of a finished run nothing is sent, and nothing applies them
        before = self.finished, self.over
        self.finished, self.over = True, self.over or over
        if (self.finished, self.over) != before:
            self._listener.run_finished()

    def _give_up_outbox(self, error: SpillLost) -> None:
        """Give every lease back: an ack that comes after lost children would lose them for good."""
        logger.error(
            "Requests that waited on disk for Redis cannot be read back (%s). The pages that they were found "
            "on are given back and crawled again%s",
            error,
            "; start() has to run again, too: this worker closes with reason outbox_lost"
            if self.outbox.parentless
            else "",
        )
        parentless = self.outbox.parentless > 0
        if parentless:
            self.seeding = AGAIN  # nobody may take the run for finished
        self.outbox.clear()
        self.leases.forfeit()
        self._listener.outbox_lost(parentless)
        self._begin_rejoin()

    def _begin_rejoin(self) -> None:
        parentless = Parentless.NONE
        if self.outbox.parentless:
            parentless = Parentless.WAITING
        elif self._log.parentless:
            parentless = Parentless.LOGGED
        new_id, seeding = new_worker_id(self._identity), AGAIN if self.seeding == AGAIN else 1
        self._rejoin = _Rejoin(new_id, self.leases.held(), parentless, seeding)

    async def _register_anew(self, rejoin: _Rejoin) -> None:
        """Register under a new id, keep what is still ours, and queue the log again."""
        answer = await self._frontier.rejoin(
            rejoin.new_id, self._identity, self.id, self.epoch, self.run, rejoin.held, rejoin.parentless,
            rejoin.seeding, self._crawl,
        )  # fmt: skip
        self._rejoin = None
        self._listener.counted("rejoin", 1)
        if answer.status is Status.LOST:
            self._lose()
            return
        self.leases.keep(answer.owned)
        if answer.status is Status.OK:
            forgot, parentless = self._log.forgot(answer.last_seq)
            self._log.begin_anew()
            if forgot:
                self.id, self.run, self.seq = rejoin.new_id, answer.run, 1
                self._give_up_leases(parentless)
                return
        if answer.status is Status.FINISHED:
            if self.outbox.parentless and rejoin.parentless is not Parentless.WAITING:
                self._begin_rejoin()  # it came while this rejoin was under way
            else:
                self._close_run(answer.last_seq)
            return
        logger.info("Worker %s goes on as %s with %d leases", self.id, rejoin.new_id, len(answer.owned))
        self.id, self.run, self.seq = rejoin.new_id, answer.run, 1
        self.outbox.replay(self._log.take(), answer.owned)

    def _give_up_leases(self, parentless: bool) -> None:
        """Redis was rolled back further than the log reaches: have all that this worker holds run again.

        What it put before is not all stored, and neither is what its leases, still at work, have put: their
        ack would lose it for good.
        """
        then = "The pages that it holds are given back, and what Redis has forgotten is crawled again"
        if parentless and self._crawl.starts:
            then += (
                "; start() has to run again, too: this worker closes with reason frontier_rolled_back, and "
                "the same command goes on"
            )
        elif parentless:
            then = "What this program had put before that is known to nobody else: it has to be put again"
        logger.error(
            "Redis was rolled back further than DQ_ROLLBACK_HORIZON: what worker %s had stored is gone. %s",
            self.id,
            then,
        )
        if parentless:
            self.seeding = AGAIN  # nobody may take the run for finished
        self.leases.forfeit()
        self._listener.rolled_back(parentless)
        self._begin_rejoin()

    def _close_run(self, last_seq: int | None) -> None:
        # What waits in the log was put again, if Redis knows of this worker.
        forgotten = self._log.forgot(last_seq)[1] or (last_seq is None and self._log.parentless)
        dropped = self.outbox.parentless
        if self.outbox.puts > dropped:
            logger.info(
                "The run is over, finished by others while this worker was away: %d requests that its pages "
                "yielded late are dropped; others crawled these pages again, and found them",
                self.outbox.puts - dropped,
            )
        if dropped:
            logger.error(
                "The run is over, finished by others while this worker was away: %d requests of start() or "
                "engine.crawl() that it could not store are dropped; %s",
                dropped,
                _LEFT_BEHIND,
            )
            self._left_behind = True
        elif forgotten:
            logger.error(
                "The run is over, finished by others while this worker was away, and Redis has forgotten "
                "what this worker had stored (rolled back?): requests of its start() or engine.crawl() may "
                "be missing; %s",
                _LEFT_BEHIND,
            )
            self._left_behind = True
        logged = self._log.take() if forgotten else []
        self.left_over = [put for put in logged if put.parent is None] + self.outbox.parentless_in_memory()
        self.outbox.clear()
        self._finish(over=True)

    def _lose(self) -> None:
        self.lost = True
        logger.critical(
            "The frontier of crawl %r is gone, or another one has taken its place (FLUSHALL? an empty "
            "replica promoted? a Redis without persistence restarted?). This worker closes with reason "
            "frontier_lost; the next crawl begins again from start()",
            self._frontier.crawl,
        )
        self._listener.frontier_lost()
