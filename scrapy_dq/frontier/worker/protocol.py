"""The worker's side of the protocol, which composes the calls and processes the answers.

This module has no I/O, clock, randomness or tasks: `dialogue.py` sends the calls to Redis. The other side is
lua/transitions/exchange.lua and lua/transitions/rejoin.lua; docs/design.md describes the protocol.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from itertools import chain, islice
from math import inf
from typing import TYPE_CHECKING

from scrapy_dq.frontier.answers import Joined, Receipt, Rejoined
from scrapy_dq.frontier.calls import Composed, Demand, Exchange, Rejoin
from scrapy_dq.frontier.model import (
    ENTRY_ID_BYTES,
    MAX_LEASES,
    MAX_MOVES,
    Admission,
    Block,
    Census,
    Claim,
    Commands,
    Hold,
    Note,
    Parentless,
    Seeding,
    SpillLost,
    StartKeys,
    Status,
    Terms,
)
from scrapy_dq.frontier.moves import Defer, Move, Put, Release, is_parentless, may_be_known
from scrapy_dq.frontier.wire import pack_moves, pack_terms
from scrapy_dq.frontier.worker.leases import Leases
from scrapy_dq.frontier.worker.listener import Count, Listener
from scrapy_dq.frontier.worker.log import LabelledLog
from scrapy_dq.frontier.worker.replay_log import ReplayLog

if TYPE_CHECKING:
    # An outbox does I/O for its part on disk, so the caller passes an outbox in.
    from scrapy_dq.frontier.worker.outbox import Outbox

logger = logging.getLogger(__name__)
_NO_RECORDS = 2**52
"""The value of `Rejoined.last_seq` if the next run has begun, so that the records of the worker are gone
(rejoin.lua)."""
_ABSENT = "The run is over: other workers finished it while this worker was absent. "
_RESTART_NOTE = (
    ". Requests that came from no page, such as those of start(), are missing, so start() has to run again: "
    "a spider closes with reason %s, and the same command continues; a Queue's program puts its items again"
)


class WorkerProtocol:
    """The protocol state of one worker; at most one exchange or rejoin is pending.

    `compose` returns the next call. Pass its answer to `received` or `rejoined`, and call `refused` after a
    refusal. If there is no usable answer, Redis may have applied the call, so `compose` returns the same call
    again.

    This class is complete for a crawl with one frontier. For several, `sharding/protocol.py` overrides parts.
    """

    def __init__(
        self,
        crawl: str,
        listener: Listener,
        outbox: Outbox,
        rollback_horizon_s: float,
        *,
        new_id: Callable[[], str],
        random_bytes: Callable[[int], bytes],
        limit: Callable[[bytes], int] = lambda partition: MAX_LEASES,
        start_keys: StartKeys | None = None,
        label: str = "",
        is_home: bool = True,
    ) -> None:
        """
        Args:
            new_id: returns a worker id that was never used before.
            random_bytes: returns the given number of random bytes.
            limit: see Leases.
            label: the beginning of this protocol's log lines.
            is_home: this frontier is home, which has the leases of start payloads.
        """
        self._crawl = crawl
        self._listener = listener
        self._new_id = new_id
        self._random_bytes = random_bytes
        self._start_keys = start_keys
        self.logger = LabelledLog(logger, label)
        self.log = ReplayLog(rollback_horizon_s, label, is_home=is_home)
        self._pending: Composed | Rejoin | None = None
        """The call that is not answered yet. It stays unchanged, so that a repeat has the same bytes."""
        self.id = new_id()
        self.epoch = ""
        self.run = 0
        self.seq = 1
        self._registered = 0
        self.seeding = Seeding.ACTIVE
        self.max_pages: int | None = None
        """See `Terms.max_pages`."""
        self.listening = False
        """Whether start payloads may come at any time, so that the run has to stay open."""
        self.census = Census()
        self.commands = Commands()
        self.outbox = outbox
        self.leases = Leases(limit)
        self.notes: list[Note] = []
        """Notes for the next exchange. They are sent again if Redis does not apply that exchange."""
        self.next_due_s: float | None = None
        """`Receipt.next_due_s` of the last exchange."""
        self._wrong_key = ""
        self.composed = 0
        self.applied = 0
        """The numbers of the last composed exchange, and of the last applied one."""
        self.finished = False
        """Whether the run is finished, as far as this worker knows. A put opens it again."""
        self.over = False
        """Whether the run has ended for this worker: it accepts no more puts."""
        self.lost = False
        """Whether the frontier is gone."""
        self.damage = ""
        """Keys that contradict the counts, as of the last exchange, so that an audit is due; empty: none."""
        self.leftover_puts: list[Put] = []
        """Puts without a parent that the ended run may not have completed. The next run may take them."""
        self.left_behind = False  # the run has ended, and may lack requests of this worker

    @property
    def under_way(self) -> bool:
        """Whether an exchange or a rejoin was sent and is not answered."""
        return self._pending is not None

    @property
    def is_rejoining(self) -> bool:
        """Whether the worker is registering again. The answer brings the logged puts back into the outbox."""
        return isinstance(self._pending, Rejoin)

    @property
    def has_unconfirmed(self) -> bool:
        """Whether there are moves or notes to send, or an answer is pending."""
        return bool(self.outbox or self.notes) or self.under_way

    @property
    def sendable(self) -> tuple[int, bool]:
        """How many moves of the outbox may be sent now; whether these moves fill an exchange."""
        return len(self.outbox), self.outbox.full

    @property
    def drops_puts(self) -> bool:
        """Whether the worker drops puts, because its run has ended. Then it must not ack their pages."""
        return self.over

    @property
    def on_hold(self) -> bool:
        """Whether the crawl is paused or draining, so that no worker gets a lease."""
        return self.commands.hold is not Hold.NONE

    @property
    def start_broken(self) -> bool:
        """Whether a start() failed or was interrupted. The run stays open; the next crawl repeats start()."""
        others_broken = self.seeding == Seeding.DONE and self.census.incomplete and not self.damage
        return self.seeding in (Seeding.FAILED, Seeding.AGAIN) or bool(others_broken)

    @property
    def retired(self) -> int:
        """The number of the last retired put: no roll-back within the horizon loses it or an earlier put."""
        return self.log.retired if self.log or self.outbox.puts else self.outbox.last_put

    @property
    def certain_at(self) -> float:
        """When an exchange is due because other shards wait for its answer; inf: no shard waits."""
        return inf

    @property
    def _unfinished(self) -> bool:
        """Whether this worker's run was not complete at the last exchange."""
        return self.seeding == Seeding.ACTIVE or bool(self.leases) or not self.census.empty

    def joined(self, joined: Joined, now: float) -> None:
        """Process the answer to `Frontier.join`, which the worker called with its present id."""
        self.epoch, self.run, self.census = joined.epoch, joined.run, joined.census
        self.commands = joined.commands
        self._registered = joined.registered
        self.finished = self.over = joined.status is Status.FINISHED
        if self.over:
            self.census = Census()  # this worker does not take part

    def compose(self, now: float, demand: Demand) -> Exchange | Rejoin | None:
        """Return the unanswered call, or else a new one. None: the outbox was lost; call this again.

        Args:
            now: monotonic seconds, by the same clock as `Put.due_at`.
        """
        if self._pending is None:
            try:
                self._pending = self._compose_exchange(now, demand, self._terms(demand))
            except SpillLost as error:
                self._give_up_outbox(error)
                return None
        return self._pending.call if isinstance(self._pending, Composed) else self._pending

    def _terms(self, demand: Demand) -> Terms:
        forget = b"".join(islice(self.log.forgettable, MAX_MOVES))
        here, claim = self.leases.here(demand.ahead), self._claim(demand.want)
        return Terms(demand.ahead_s, demand.most, here, self.notes, claim, forget, max_pages=self.max_pages)

    def refused(self) -> None:
        """Record that Redis refused the call. Its script may have been stopped midway."""
        if isinstance(self._pending, Composed):
            may_be_known(self._pending.prefix)

    def all_durable(self) -> None:
        """Record that all confirmed puts are on Redis's disk, so that no roll-back can lose them."""
        self.log.retire_all()

    def unanswered(self) -> None:
        """Record that the call got no usable answer."""

    def received(self, receipt: Receipt, now: float) -> tuple[int, int]:
        """Process the answer to an exchange; return the numbers of requested and granted leases.

        Both numbers are 0 if Redis applied nothing and the run continues.
        """
        sent = self._pending
        assert isinstance(sent, Composed)
        self._pending = None
        if receipt.status is Status.LOST:
            self._lose()
        elif receipt.status is Status.RESYNC:
            may_be_known(sent.prefix)  # an attempt whose reply was lost may have applied it
            self.logger.warning(
                "Worker %s is out of sync with the frontier: it was declared dead, or Redis has lost its "
                "newest data. It registers again, keeps the requests that it still owns, and stores its "
                "newest requests again",
                self.id,
            )
            self._begin_rejoin()
        elif receipt.applied:
            self._accept(sent, receipt, now)
            self._apply_commands(receipt.commands)
            if receipt.status is Status.FINISHED and not self.outbox:
                self._finish(over=self._only_listened(sent))
            return sent.call.want, len(receipt.leases)
        else:
            # Redis has stored this seq. With the same seq, Redis would take the next exchange for a repeat of
            # this one, or a late copy of this exchange for the next one.
            self.seq += 1
            if receipt.commands is not None:
                # The seq was the expected one, so nothing was rolled back.
                self.log.retire(sent.at)
            self._handle_run_end(sent, receipt)
            return sent.call.want, 0
        return 0, 0

    def _handle_run_end(self, sent: Composed, receipt: Receipt) -> None:
        # An answer without commands means that a later run has begun. Then it is unknown how this worker's
        # run ended: other workers may have declared this worker dead and done the rest, Redis may have
        # forgotten this worker, or the seq may be wrong.
        if sent.prefix or (receipt.commands is None and (self._unfinished or self._needs_open_run)):
            self._begin_rejoin()
        elif not self.outbox:
            self._note_run_ended(sent, receipt)

    def _note_run_ended(self, sent: Composed, receipt: Receipt) -> None:
        """Process the end of a run. Other workers have finished it, and they got the leases in our buffer."""
        self.leases.keep(())
        # If the next run has begun, the receipt does not describe this run, so keep the number of losses.
        self.census = replace(receipt.census, gone=max(self.census.gone, receipt.census.gone))
        self._finish(over=self._only_listened(sent))
        self._apply_commands(receipt.commands)

    @property
    def _needs_open_run(self) -> bool:
        """Whether something of this worker waits for an answer that an ended run does not give."""
        return False

    def _only_listened(self, sent: Composed) -> bool:
        """Tell whether this worker only listened, so that the end of the run is final for it."""
        # In a finished run, Redis takes no start payloads from their keys, so this worker would wait in vain.
        return sent.call.seeding == Seeding.LISTENING

    def _compose_exchange(self, now: float, demand: Demand, terms: Terms) -> Composed:
        prefix = self._prefix(demand.until)
        seeding = self._level(prefix)
        self.composed = self._next_number()
        call = Exchange(
            self.id, self.epoch, self.run, self.seq, demand.want, seeding, len(self.leases),
            pack_moves(prefix, now), pack_terms(terms, now), self._registered,
        )  # fmt: skip
        return Composed(call, prefix, len(terms.notes), len(terms.forget) // ENTRY_ID_BYTES, now)

    def _prefix(self, until: int | None) -> list[Move]:
        """Return the moves for the next exchange; *until*: see `Demand`."""
        return self.outbox.prefix(until)

    def _level(self, prefix: Sequence[Move]) -> Seeding:
        """Return the level of seeding that an exchange with these moves reports."""
        # Only this worker has the puts beyond the prefix, so it counts as seeding until they are stored.
        if self.seeding == Seeding.DONE and self.outbox.parentless > sum(map(is_parentless, prefix)):
            return Seeding.ACTIVE
        return Seeding.LISTENING if self.seeding == Seeding.DONE and self.listening else self.seeding

    def _next_number(self) -> int:
        """Return the number of the exchange that is composed now."""
        return self.composed + 1

    def _claim(self, want: int) -> Claim | None:
        keys = self._start_keys
        return Claim(keys.kind, keys.mark, self._random_bytes(8)) if keys and want else None

    def _accept(self, sent: Composed, receipt: Receipt, now: float) -> None:
        self.applied = self.composed
        self.finished = False
        gone = self.census.gone  # a roll-back of Redis may have lost this number since
        self.census = receipt.census if receipt.census.gone >= gone else replace(receipt.census, gone=gone)
        self.damage = receipt.damage
        self.next_due_s = receipt.next_due_s
        self.outbox.confirm(sent.prefix)
        del self.notes[: sent.notes]
        for _ in range(sent.forgotten):
            self.log.forgettable.popleft()
        seq = self.seq
        self.seq += 1
        self.log.retire(sent.at)
        for position in receipt.dropped:
            put = sent.prefix[position]
            if isinstance(put, Put) and put.fresh:
                self._listener.put_dropped(put)
        for kind, amount in Counter(map(type, sent.prefix)).items():
            self._listener.counted(kind, amount)
        self._listener.confirmed(sent.prefix)
        refused = set(receipt.refused)
        for position, move in enumerate(sent.prefix):
            if isinstance(move, Put) and position in refused:
                self._listener.put_refused(move)
            elif isinstance(move, Put):
                self.log.add(move, now, seq)
            elif isinstance(move, Defer):
                self.leases.cleared(move.entry_id)
            else:
                self.leases.confirmed(move.entry_id)
        for lease in receipt.leases:
            self.leases.grant(lease)
        # Redis may have granted leases before it got these blocks.
        unsent = (note.partition for note in self.notes if isinstance(note, Block))
        for partition in (*receipt.blocked, *unsent, *self.leases.stuck):
            self.withdraw(partition)
        if receipt.wrong_key and receipt.wrong_key != self._wrong_key:
            self.logger.error("A key cannot be used: %s", receipt.wrong_key)
        self._wrong_key = receipt.wrong_key
        if receipt.leases:
            self._listener.leases_arrived()

    def _apply_commands(self, commands: Commands | None) -> None:
        if commands is None:
            return
        before, self.commands = self.commands, commands
        # Buffered leases were granted under old limits, or a late answer brought leases to a paused worker.
        if commands.hold is Hold.PAUSED or commands.limit_changes != before.limit_changes:
            self.empty_buffer()
        if commands.forgets != before.forgets:
            self._renew_ids()
        if commands != before:
            self._listener.commanded(before, commands)

    def _renew_ids(self) -> None:
        """Give new ids to puts that may be stored already, because Redis may have dropped their tokens.

        Redis stores a repeat of such a put as a new entry. With the old id, two entries would have one id.
        Source: lua/transitions/forget.lua, lua/transitions/rejoin.lua
        """
        for put in (*self.log.puts(), *self.outbox.puts_in_memory()):
            if put.admission is not Admission.ID and not put.fresh:
                put.entry_id = self._random_bytes(ENTRY_ID_BYTES)

    def withdraw(self, partition: bytes) -> None:
        """Release the buffered leases of a partition."""
        self._give_back(self.leases.withdraw(partition))

    def empty_buffer(self) -> None:
        """Release all buffered leases."""
        self._give_back(self.leases.empty_buffer())

    def _give_back(self, entry_ids: Iterable[bytes]) -> None:
        for entry_id in entry_ids:
            if self.leases.settle(Release(entry_id)):
                self.outbox.append(Release(entry_id))

    def _finish(self, *, over: bool) -> None:
        """Record that the run is finished; *over*: this worker takes no further part in it."""
        self.notes.clear()  # in a finished run, no request is sent, and Redis applies no note
        self.finished, self.over = True, self.over or over

    def _give_up_outbox(self, error: SpillLost) -> None:
        """Release all leases: an ack of a parent would make the loss of its children permanent."""
        parentless = self.outbox.parentless > 0
        self.logger.error(
            "Requests that were moved to disk during an outage cannot be read back (%s). The pages on which "
            "they were found are released and crawled again%s",
            error,
            _RESTART_NOTE % "outbox_lost" if parentless else "",
        )
        if parentless:
            self._seed_again()
        self.outbox.clear()
        self._forfeit()
        self._listener.outbox_lost(parentless)
        self._begin_rejoin()

    def _seed_again(self) -> None:
        """Record that start() has to run again, so that the run must not finish."""
        self.seeding = Seeding.AGAIN

    def _forfeit(self) -> None:
        """Give up all leases, because some of their puts are lost: an ack would make this loss permanent."""
        self.leases.forfeit()

    def _begin_rejoin(self) -> None:
        """Register again with the next call."""
        seeding = Seeding.AGAIN if self.seeding == Seeding.AGAIN else Seeding.ACTIVE
        self._pending = Rejoin(
            self._new_id(), self.id, self.epoch, self.run, self.leases.held(), self._parentless, seeding,
            self._registered, tuple(reversed(self.log.former_ids)),
        )  # fmt: skip

    @property
    def _parentless(self) -> Parentless:
        """Where this worker has puts without a parent lease."""
        if self.outbox.parentless or self.seeding == Seeding.ACTIVE:
            return Parentless.WAITING
        return Parentless.LOGGED if self.log.parentless else Parentless.NONE

    def rejoined(self, answer: Rejoined) -> None:
        """Process the answer to a rejoin: continue under the new id, keep our leases, repeat logged puts."""
        rejoin = self._pending
        assert isinstance(rejoin, Rejoin)
        self._pending = None
        self._listener.counted(Count.REJOIN, 1)
        if answer.status is Status.LOST:
            self._lose()
            return
        unfinished = self._unfinished
        owned = self._still_owned(answer)
        self.leases.keep(owned)
        if answer.status is Status.OK:
            self._apply_commands(answer.commands)
            forgot, parentless = self.log.forgot(answer.last_seq)
            self.log.note_new_id(self.id)
            if forgot:
                self._continue_as(rejoin.new_id, answer)
                self._give_up_leases(parentless, for_good=self._must_restart(forgot, parentless))
                return
        if answer.status is Status.FINISHED:
            waiting = any(each.outbox.parentless for each in self._ending_protocols)
            if waiting and rejoin.parentless is not Parentless.WAITING:
                self._begin_rejoin()  # a put without a parent came during this rejoin
            else:
                self._close_run(answer.last_seq, unfinished)
            return
        self.logger.info("Worker %s continues as %s with %d leases", self.id, rejoin.new_id, len(owned))
        if answer.run != self.run:
            self.census = replace(self.census, gone=0)
        self._continue_as(rejoin.new_id, answer)
        self.outbox.replay(self.log.take(), self._parents(owned))

    def _continue_as(self, new_id: str, answer: Rejoined) -> None:
        self.id, self.run, self.seq, self._registered = new_id, answer.run, 1, answer.registered

    def _still_owned(self, answer: Rejoined) -> frozenset[bytes]:
        """Return the leases that this worker keeps, out of `answer.owned`."""
        return answer.owned

    def _parents(self, owned: frozenset[bytes]) -> Collection[bytes]:
        """Return the leases of this worker in all frontiers; see `Outbox.replay`."""
        return owned

    @property
    def _ending_protocols(self) -> tuple[WorkerProtocol, ...]:
        """The protocols that store no more puts when the run is over here."""
        return (self,)

    def _must_restart(self, forgot: bool, parentless: bool) -> bool:
        """Tell whether requests stay lost until start() runs again; arguments: see `ReplayLog.forgot`."""
        return parentless

    def _give_up_leases(self, parentless: bool, *, for_good: bool) -> None:
        """Release all leases of this worker, because Redis was rolled back further than the log reaches.

        Some earlier puts are lost, including puts of leases that are still running. An ack of such a lease
        would make the loss permanent.
        """
        self.logger.error(
            "Redis was rolled back further than DQ_ROLLBACK_HORIZON: some requests that worker %s had stored "
            "are gone. The pages that it holds are released, and crawled again%s",
            self.id,
            _RESTART_NOTE % "frontier_rolled_back" if for_good else "",
        )
        if parentless:
            self.seeding = Seeding.AGAIN  # the run must not finish
        self._forfeit()
        self._listener.rolled_back(for_good)
        self._begin_rejoin()

    def _close_run(self, last_seq: int | None, unfinished: bool) -> None:
        # If Redis has a record of this worker, it also has the logged puts, so no put needs a repeat. The
        # start() of this worker need not continue: other workers declared this worker dead, and could finish
        # the run because one of them had completed a start() with the same arguments. If the next run has
        # begun, it is unknown whether this was the case, and how this worker's run ended.
        unknown = unfinished and last_seq is not None and last_seq >= _NO_RECORDS
        if last_seq is None or last_seq < 0:
            unknown = self.seeding == Seeding.ACTIVE or any(
                each.log.parentless for each in self._ending_protocols
            )
        forgotten = unknown or self._must_restart(*self.log.forgot(last_seq))
        from_pages = self.outbox.puts - self.outbox.parentless
        if from_pages:
            text = "%s%d requests from its pages are dropped; others have crawled these pages again"
            self.logger.info(text, _ABSENT, from_pages)
        outboxes = [each.outbox for each in self._ending_protocols]
        dropped = sum(outbox.parentless for outbox in outboxes)
        if dropped:
            missing = f"{dropped} requests of start() or engine.crawl() that it could not store are dropped"
        elif forgotten:
            missing = "Redis has no record of this worker: some of its requests may be missing"
        if dropped or forgotten:
            self.left_behind = True
            self.logger.error(
                "%s%s. A spider closes with reason run_over; a Queue puts these items into the next run",
                _ABSENT, missing,
            )  # fmt: skip
        logged = chain.from_iterable(each.log.take() for each in self._ending_protocols) if forgotten else ()
        left = (*logged, *chain.from_iterable(outbox.puts_in_memory() for outbox in outboxes))
        self.leftover_puts = [put for put in left if put.parent is None]
        self.outbox.clear()
        self._finish(over=True)

    def _lose(self) -> None:
        self.lost = True
        logger.critical(
            "%s of crawl %r is gone, or was replaced by another one (`scrapy dq move`? FLUSHALL? an empty "
            "replica promoted? a Redis without persistence restarted?). This worker closes with reason "
            "frontier_lost. Unless the crawl was moved, its next run starts again from start()%s",
            self._name, self._crawl, self._restart_hint,
        )  # fmt: skip
        self._listener.frontier_lost()

    @property
    def _name(self) -> str:
        return "The frontier"

    _restart_hint = ""
