"""The worker's side of the protocol: what it sends, and what each answer changes.

It has no I/O, clock, randomness or tasks: `dialogue.py` sends its calls to Redis. The other side is
lua/transitions/exchange.lua and lua/transitions/rejoin.lua; docs/design.md describes the protocol.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import chain, islice, takewhile
from math import inf
from typing import TYPE_CHECKING, NamedTuple

from scrapy_dq.frontier.calls import Asks, Exchange, Rejoin
from scrapy_dq.frontier.keys import HOME, Shard
from scrapy_dq.frontier.model import (
    ENTRY_ID_BYTES,
    MAX_LEASES,
    MAX_MOVES,
    Admission,
    Block,
    Census,
    Claim,
    Hold,
    Joined,
    Note,
    Parentless,
    Receipt,
    Rejoined,
    Seeding,
    SpillLost,
    StartKeys,
    Status,
    Terms,
    Words,
)
from scrapy_dq.frontier.moves import Defer, Move, Put, Release
from scrapy_dq.frontier.wire import pack_moves, pack_terms
from scrapy_dq.frontier.worker.leases import Leases
from scrapy_dq.frontier.worker.listener import Count, Listener
from scrapy_dq.frontier.worker.log import ShardLog
from scrapy_dq.frontier.worker.replay_log import ReplayLog

if TYPE_CHECKING:
    # Its part on disk is I/O: the caller passes one in.
    from scrapy_dq.frontier.worker.outbox import Outbox

logger = logging.getLogger(__name__)
_LOWERED = (Seeding.DONE, Seeding.LISTENING)
"""With these levels only, nothing of this worker's start() is incomplete if it dies."""
_NO_RECORDS = 2**52
"""The answer to a rejoin whose run is an older one: its records are gone (rejoin.lua)."""
_ABSENT = "The run is over: other workers finished it while this worker was absent. "
_START_AGAIN = (
    ". What no page yields again is missing, and start() has to run again: a crawl closes with reason %s, "
    "and the same command continues it; a program has to put its items again"
)


class _Sent(NamedTuple):
    """An exchange, and what is needed to read its answer."""

    call: Exchange
    prefix: list[Move]
    """The moves that are packed in `call.moves`."""
    notes: int
    """Number of notes in `call.terms`."""
    forgotten: int
    """Number of ids to forget in `call.terms`."""
    at: float
    """When it was composed; a repeat has the same time."""


def _may_be_known(moves: Iterable[Move]) -> None:
    """Mark puts as possibly applied before, so that none of them is counted as a duplicate."""
    for move in moves:
        if isinstance(move, Put):
            move.fresh = False


def _is_parentless(move: Move) -> bool:
    return isinstance(move, Put) and move.parent is None


class Together:
    """What the protocols of one worker, one for each shard, have in common."""

    def __init__(self) -> None:
        self.over = False
        """The run is finished for good in one of them: puts are dropped, so that no page is acked.

        RACE: the shard of a page was rolled back, and is in the next run by now, where nobody else finds what
        it leads to.
        """
        self.lost = False
        """The frontier of one of them is gone."""
        self.over_at = -1
        """Number of exchanges that were composed when that was found."""
        self.composed = 0
        """Number of exchanges that were composed."""
        self.run = 0
        """The latest run in which any of them has registered."""
        self.run_at = 0
        """Number of exchanges that were composed by then."""
        self.give_up_deferred: Callable[[], object] = lambda: None
        """Forgets the leases whose ends wait for puts in other shards."""
        self.suspects: set[WorkerProtocol] = set()
        """Those that may have a suspect, or meet one."""

    def registered_in(self, run: int) -> None:
        """Note that one of them has registered in a run."""
        if run > self.run:
            self.run, self.run_at = run, self.composed

    def end(self) -> None:
        """Note that the run is finished for good."""
        if not self.over:
            self.over, self.over_at = True, self.composed


class WorkerProtocol:
    """The protocol state of one worker; at most one exchange or rejoin is pending.

    `compose` returns the next call. Pass its answer to `received` or `rejoined`, a refusal to `refused`.
    Without a usable answer the call may or may not have been applied: `compose` returns the same one again.
    """

    def __init__(
        self,
        shard: Shard,
        listener: Listener,
        outbox: Outbox,
        rollback_horizon_s: float,
        *,
        new_id: Callable[[], str],
        random_bytes: Callable[[int], bytes],
        limit: Callable[[bytes], int] = lambda partition: MAX_LEASES,
        start_keys: StartKeys | None = None,
    ) -> None:
        """
        Args:
            new_id: returns a worker id that was never used before.
            random_bytes: returns the given number of random bytes.
            limit: see Leases.
        """
        self._shard = shard
        self._listener = listener
        self._new_id = new_id
        self._random_bytes = random_bytes
        self._start_keys = start_keys
        self.logger = ShardLog(logger, shard)
        self.log = ReplayLog(rollback_horizon_s, shard)
        self._pending: _Sent | Rejoin | None = None
        """Unchanged until it is answered, so that a repeat has the same bytes."""
        self.id = new_id()
        self.epoch = ""
        self.run = 0
        self.seq = 1
        self._registered = 0
        self.seeding = Seeding.ACTIVE
        self.raised_at: float | None = None
        """When Redis has confirmed a level of seeding that keeps the run open; None: it may be lowered."""
        self.raise_retired = False
        """No roll-back within the horizon takes that back."""
        self.stays_raised: Callable[[], bool] = lambda: False
        """Whether another shard has, or is to get, puts that this level is needed for; see `Level`."""
        self.may_seed: Callable[[], bool] = lambda: True
        """Whether puts without a parent may be sent now."""
        self.held_back = False
        """Because they may not, the last exchange had no moves."""
        self.home = self
        """That of the dialogue with home."""
        self.others: Sequence[WorkerProtocol] = ()
        """Those of this worker's other dialogues."""
        self.finish_at: int | None = None
        """See `Terms.finish_at`."""
        self.max_pages: int | None = None
        """See `Terms.max_pages`; in all shards together."""
        self._may_lease = 0
        """How many leases the exchange that is under way may bring."""
        self.listening = False
        """Start payloads may come at any time: the run must stay open, even if nothing is left."""
        self.census = Census()
        self.words = Words()
        self.outbox = outbox
        self.leases = Leases(limit)
        self.notes: list[Note] = []
        """Sent with the next exchange; sent again if that is not applied."""
        self.next_due_s: float | None = None
        """`Receipt.next_due_s` of the last exchange."""
        self._wrong_key = ""
        self.together = Together()
        self.composed = 0
        self.applied = 0
        """The numbers of the last exchange that was composed, and that was applied; all of a worker count."""
        self.finished = False
        """The run is finished, as far as this worker knows; a put opens it again."""
        self.over = False
        """The run is finished for good: no more puts are accepted."""
        self.outrun_at: int | None = None
        """Number of exchanges composed when its shard said that it is in a later run, without this worker."""
        self.lost = False
        """The frontier is gone."""
        self.damage = ""
        """Keys that contradict the counts, as of the last exchange: an audit is due; empty: none."""
        self.left_over: list[Put] = []
        """Puts without a parent that the run, now over, may not have completed: the next may take them."""
        self.left_behind = False
        self.rolled_back = False
        """Redis has lost puts of this run that the log had retired."""
        self._forfeited = False
        self.asks_for_suspects = False
        """The exchange that is under way may bring a suspect."""

    @property
    def under_way(self) -> bool:
        """An exchange or a rejoin was sent and is not answered."""
        return self._pending is not None

    @property
    def rejoins(self) -> bool:
        """It is registering again: what Redis has lost is put into the outbox with the answer."""
        return isinstance(self._pending, Rejoin)

    @property
    def unsaid(self) -> bool:
        """There are moves or notes to send, or an answer is pending; or this shard has to be asked first.

        Home has to confirm the level, or a shard has to come into the run of another one (`_catch_up`).
        """
        if self.raised_at is None and self.stays_raised():
            return True
        if self.run < self.together.run and not (self.finished or self.together.over):
            return True
        if self._shard.number == HOME and any(each.waits_to_seed for each in self.others):
            return True
        return bool(self.outbox or self.notes) or self.under_way

    @property
    def waits_to_seed(self) -> bool:
        """It has puts without a parent, and home has not confirmed the level that they need."""
        return self.outbox.parentless > 0 and not self.may_seed()

    @property
    def on_hold(self) -> bool:
        """The crawl is paused or draining: no worker gets a lease."""
        return self.words.hold is not Hold.NONE

    @property
    def pages(self) -> int:
        """How many requests of this run this worker sent, counting the leases under way."""
        under_way = self._may_lease if isinstance(self._pending, _Sent) else 0
        return self.census.pages + self.census.in_flight + under_way

    @property
    def start_broken(self) -> bool:
        """A start() failed or was interrupted: the run stays open, so that the next crawl repeats it."""
        others_broken = self.seeding == Seeding.DONE and self.census.incomplete and not self.damage
        return self.seeding in (Seeding.FAILED, Seeding.AGAIN) or bool(others_broken)

    @property
    def retired(self) -> int:
        """Number of the last put up to which no roll-back within the horizon can lose any."""
        return self.log.retired if self.log or self.outbox.puts else self.outbox.last_put

    @property
    def certain_at(self) -> float:
        """From when on an exchange makes certain what other shards wait for; inf: they wait for nothing."""
        if not self.others:
            return inf
        if self.raised_at is not None and not self.raise_retired and self.stays_raised():
            return min(self.log.certain_at, self.log.certain_after(self.raised_at))
        return self.log.certain_at

    @property
    def _unfinished(self) -> bool:
        """Something was left of this worker's run, as of the last exchange."""
        return self.seeding == Seeding.ACTIVE or bool(self.leases) or not self.census.empty

    def joined(self, joined: Joined, now: float) -> None:
        """Process the answer to `Frontier.join` under this id."""
        self.epoch, self.run, self.census = joined.epoch, joined.run, joined.census
        self.words = joined.words
        self._registered = joined.registered
        self.finished = self.over = joined.status is Status.FINISHED
        self.raised_at = now
        self.together.registered_in(self.run)
        if self.over:
            self.together.end()
            self.census = Census()  # this worker does not take part

    def compose(self, now: float, asks: Asks) -> Exchange | Rejoin | None:
        """Return the unanswered call, else a new one; None if the outbox was lost: call again.

        Args:
            now: monotonic seconds, by the same clock as `Put.due_at`.
        """
        if self._pending is None and self._forfeited:
            self._begin_rejoin()
        if self._pending is None:
            try:
                forget = b"".join(islice(self.log.forgettable, MAX_MOVES))
                here = self.leases.here(asks.ahead)
                # One at a time, over all dialogues: else a death would charge several.
                no_suspects = bool(self.others) and not self._may_meet_suspects(asks.want)
                max_pages = self._pages_left()
                self._may_lease = asks.want if max_pages is None else max(0, min(asks.want, max_pages))
                terms = Terms(
                    asks.ahead_s, asks.most, here, self.notes, self._claim(asks.want), forget, no_suspects,
                    max_pages, self._busy_elsewhere, self.finish_at,
                )  # fmt: skip
                self._pending = self._freeze(now, asks, terms)
            except SpillLost as error:
                self._give_up_outbox(error)
                return None
        return self._pending.call if isinstance(self._pending, _Sent) else self._pending

    def refused(self) -> None:
        """Note that the call was refused; its script may have been stopped midway."""
        if isinstance(self._pending, _Sent):
            _may_be_known(self._pending.prefix)

    def received(self, receipt: Receipt, now: float) -> tuple[int, int]:
        """Process the answer to an exchange; return the numbers of requested and of granted leases.

        Both are 0 if nothing was applied and the run continues.
        """
        sent = self._pending
        assert isinstance(sent, _Sent)
        self._pending = None
        self.asks_for_suspects = False
        if receipt.status is Status.LOST:
            self._lose()
        elif receipt.status is Status.RESYNC:
            _may_be_known(sent.prefix)  # applied by an attempt whose reply was lost
            self.logger.warning(
                "Worker %s is out of sync with the frontier: it was declared dead, or Redis has lost its "
                "newest data. It registers again, keeps the requests that it still owns, and stores its "
                "newest requests again",
                self.id,
            )
            self._begin_rejoin()
        elif receipt.applied:
            self._accept(sent, receipt, now)
            self._hear(receipt.words)
            if receipt.status is Status.FINISHED and not self.outbox:
                self._finish(over=self._ended_listening(sent))
            elif receipt.status is Status.OK:
                self._catch_up()
            return sent.call.want, len(receipt.leases)
        else:
            # Redis has stored this seq: the next exchange is not a repeat, and a late copy not the next one.
            self.seq += 1
            self._lower()
            if receipt.words is not None:
                # The number fits, so nothing was rolled back. An ack in another shard may wait for this.
                self.log.retire(sent.at)
            self._learn_of_the_end(sent, receipt)
            return sent.call.want, 0
        return 0, 0

    def _learn_of_the_end(self, sent: _Sent, receipt: Receipt) -> None:
        # Without words, this worker's run is an older one, and how it ended is not known: others may have
        # declared this worker dead and done the rest, Redis may have forgotten it, or the number is wrong.
        # Nor will home ever confirm the level that puts without a parent need, or this shard that no
        # roll-back takes back the puts in its log, for which leases in other shards wait.
        waits = self.stays_raised() or any(of.waits_to_seed for of in (self, *self.others))
        waits = waits or bool(self.others and self.log)
        if sent.prefix or (receipt.words is None and (self._unfinished or waits)):
            self._begin_rejoin()
        elif not self.outbox:
            # The run ended without this worker: its buffered leases were reclaimed and completed by others.
            self.leases.keep(())
            # If the next run has started, the receipt does not describe this one: keep what is gone.
            self.census = replace(receipt.census, gone=max(self.census.gone, receipt.census.gone))
            self._finish(over=self._ended_listening(sent))
            self._hear(receipt.words)
            if receipt.words is None and self.home.run > self.run:
                self._follow_home()
            elif receipt.words is None and self.outrun_at is None:
                self.outrun_at = self.together.composed

    def _ended_listening(self, sent: _Sent) -> bool:
        """Tell whether this worker only listened: then it has no part in what comes after the end.

        RACE: it was declared dead, and a put for another shard came after *sent*, and waits for the level.
        """
        # In a run that others have finished it would wait for nothing.
        return sent.call.seeding == Seeding.LISTENING and not self.stays_raised()

    def _follow_home(self) -> None:
        """Register in the run in which this worker is a member at home: nothing of the one before is left.

        RACE: home was rolled back to before the end of that run, or has applied a late copy of a join, and
        was brought into the next one with this worker. While that is no member here, it cannot find the end.
        """
        self.log.begin_run()
        self.run, self.census, self.rolled_back = self.home.run, Census(), False
        self.outrun_at = None
        self._begin_rejoin()

    def _catch_up(self) -> None:
        """Take this shard, with what it has, into the run of another one where this worker has registered.

        RACE: all were rolled back to the run before, and who has taken the other one into its run was killed
        before it came here. The next worker to join would delete what this shard has.
        """
        newest = self.together
        if self.run < newest.run and newest.run_at < self.composed and not newest.over:
            self._begin_rejoin(newest.run)

    def _freeze(self, now: float, asks: Asks, terms: Terms) -> _Sent:
        prefix = self.outbox.prefix(asks.until)
        self.held_back = False
        if self.waits_to_seed and prefix:
            prefix = list(takewhile(lambda move: not _is_parentless(move), prefix))
            self.held_back = not prefix
        seeding = self.seeding
        if seeding == Seeding.DONE:
            # Only this worker has those beyond the prefix: it counts as seeding until they are stored.
            if self.outbox.parentless > sum(map(_is_parentless, prefix)) or self.stays_raised():
                seeding = Seeding.ACTIVE
            elif self.listening:
                seeding = Seeding.LISTENING
        if seeding in _LOWERED:
            self._lower()  # from now on it may arrive
        self.composed = self.together.composed = self.together.composed + 1
        call = Exchange(
            self.id, self.epoch, self.run, self.seq, asks.want, seeding, len(self.leases),
            pack_moves(prefix, now), pack_terms(terms, now), self._registered,
        )  # fmt: skip
        return _Sent(call, prefix, len(terms.notes), len(terms.forget) // ENTRY_ID_BYTES, now)

    @property
    def _busy_elsewhere(self) -> bool:
        seeds = bool(self.others) and self.home.seeding == Seeding.ACTIVE
        counts = (of.census for of in self.others)
        return seeds or any(of.waiting > of.declined or of.in_flight or of.delayed for of in counts)

    def _pages_left(self) -> int | None:
        """Return what the other shards leave of `max_pages` for this one, as far as this worker knows."""
        if self.max_pages is None:
            return None
        return self.max_pages - sum(other.pages for other in self.others)

    def _may_meet_suspects(self, want: int) -> bool:
        """Note that this one may meet a suspect from now on; return False, and do not, if another one may."""
        self.asks_for_suspects = False
        found = {of for of in self.together.suspects if of.asks_for_suspects or of.leases.suspect}
        may = not found - {self}
        self.together.suspects = {self} if may else found
        self.asks_for_suspects = want > 0 and may
        return may

    def _lower(self) -> None:
        self.raised_at, self.raise_retired = None, False

    def _note_level(self, sent: _Sent, now: float) -> None:
        if sent.call.seeding in _LOWERED:
            return
        if self.raised_at is None:
            self.raised_at = now
        elif self.log.covers(self.raised_at, sent.at):
            self.raise_retired = True

    def _claim(self, want: int) -> Claim | None:
        keys = self._start_keys
        return Claim(keys.kind, keys.mark, self._random_bytes(8)) if keys and want else None

    def _accept(self, sent: _Sent, receipt: Receipt, now: float) -> None:
        self.applied = self.composed
        self.finished = False
        self.outrun_at = None
        gone = self.census.gone  # a roll-back of Redis may have lost it since
        self.census = receipt.census if receipt.census.gone >= gone else replace(receipt.census, gone=gone)
        self.damage = receipt.damage
        self._note_level(sent, now)
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
        if self.leases.suspect:
            self.together.suspects.add(self)
        # Some leases were granted before these blocks were sent.
        unsent = (note.partition for note in self.notes if isinstance(note, Block))
        for partition in (*receipt.blocked, *unsent, *self.leases.stuck):
            self.withdraw(partition)
        if receipt.wrong_key and receipt.wrong_key != self._wrong_key:
            self.logger.error("A key cannot be used: %s", receipt.wrong_key)
        self._wrong_key = receipt.wrong_key
        if receipt.leases:
            self._listener.leases_arrived()

    def _hear(self, words: Words | None) -> None:
        if words is None:
            return
        before, self.words = self.words, words
        # Buffered leases were taken under the old limits; a late answer may bring leases to a paused worker.
        if words.hold is Hold.PAUSED or words.limitings != before.limitings:
            self.empty_buffer()
        if words.forgets != before.forgets:
            self._renew_ids()
        if words != before:
            self._listener.told(before, words)

    def _renew_ids(self) -> None:
        """Give new ids to puts that may be stored already, because Redis may have dropped their tokens.

        A repeat of such a put is stored once more: under its old id it would be in two places.
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
        """Note that the run is finished; *over*: for good, for this worker."""
        self.notes.clear()  # in a finished run no request is sent, and no note is applied
        self.finished, self.over = True, self.over or over
        if over:
            self.together.end()

    def _give_up_outbox(self, error: SpillLost) -> None:
        """Release every lease: an ack of a parent whose children were lost would lose them for good."""
        parentless = self.outbox.parentless > 0
        self.logger.error(
            "Requests that were moved to disk during an outage cannot be read back (%s). The pages on which "
            "they were found are released and crawled again%s",
            error,
            _START_AGAIN % "outbox_lost" if parentless else "",
        )
        if parentless:
            self.seeding = self.home.seeding = Seeding.AGAIN  # the run must not finish
        self.outbox.clear()
        self.leases.forfeit()
        self._forfeit_elsewhere()
        self._listener.outbox_lost(parentless)
        self._begin_rejoin()

    def _forfeit_elsewhere(self) -> None:
        """Let no page be acked on which lost puts of this shard were found, wherever it lives."""
        self.together.give_up_deferred()
        for other in self.others:
            other.forfeit()

    def forfeit(self) -> None:
        """Give up all leases, as soon as the call that is under way is answered."""
        self._forfeited = self._forfeited or bool(self.leases)
        self.leases.forfeit()

    def _begin_rejoin(self, run: int | None = None) -> None:
        """Register again with the next call, in a run if the shard is in an earlier one."""
        self._lower()
        self._forfeited = False
        parentless, everywhere = Parentless.NONE, (self, *self.others)
        # That a run is finished is home's word alone: a retry may have opened it since another shard ended.
        is_open = self is not self.home and not self.home.finished
        if any(of.outbox.parentless or of.seeding == Seeding.ACTIVE for of in everywhere):
            parentless = Parentless.WAITING
        elif is_open or any(of.log.parentless for of in everywhere):
            parentless = Parentless.LOGGED
        seeding = Seeding.AGAIN if self.seeding == Seeding.AGAIN else Seeding.ACTIVE
        self._pending = Rejoin(
            self._new_id(), self.id, self.epoch, self.run if run is None else run, self.leases.held(),
            parentless, seeding, self._registered,
        )  # fmt: skip

    def rejoined(self, answer: Rejoined) -> None:
        """Process the answer to a rejoin: continue under the new id, keep our leases, put the log again."""
        rejoin = self._pending
        assert isinstance(rejoin, Rejoin)
        self._pending = None
        self._listener.counted(Count.REJOIN, 1)
        if answer.status is Status.LOST:
            self._lose()
            return
        unfinished = self._unfinished
        # It was asked to keep them before they were given up: the next rejoin releases them.
        owned = frozenset() if self._forfeited else answer.owned
        self.leases.keep(owned)
        if answer.status is Status.OK:
            self._hear(answer.words)
            forgot, parentless = self.log.forgot(answer.last_seq)
            self.log.begin_anew()
            if forgot:
                self._continue_as(rejoin.new_id, answer)
                self._give_up_leases(parentless)
                return
        if answer.status is Status.FINISHED:
            waiting = any(of.outbox.parentless for of in self._closes)
            if waiting and rejoin.parentless is not Parentless.WAITING:
                self._begin_rejoin()  # that put was added during this rejoin
            else:
                self._close_run(answer.last_seq, unfinished)
            return
        self.logger.info("Worker %s continues as %s with %d leases", self.id, rejoin.new_id, len(owned))
        if answer.run != self.run:
            self.census, self.rolled_back = replace(self.census, gone=0), False
        self._continue_as(rejoin.new_id, answer)
        # A page of another shard may have the parent of a put.
        elsewhere = (of.leases.owned for of in self.others)
        self.outbox.replay(self.log.take(), owned.union(*elsewhere))

    def _continue_as(self, new_id: str, answer: Rejoined) -> None:
        self.id, self.run, self.seq, self._registered = new_id, answer.run, 1, answer.registered
        self.outrun_at = None
        self.together.registered_in(self.run)

    @property
    def _closes(self) -> tuple[WorkerProtocol, ...]:
        """Those whose puts are not stored any more when the run is over here: at home, all."""
        return (self, *(self.others if self._shard.number == HOME else ()))

    def _give_up_leases(self, parentless: bool) -> None:
        """Release everything that this worker holds: Redis was rolled back further than the log reaches.

        Some of its earlier puts are lost, including puts of leases that are still running: an ack of these
        leases would lose them for good.
        """
        # Pages of other shards may be acked whose links are gone, and no start() brings these back.
        for_good = parentless or bool(self.others)
        self.logger.error(
            "Redis was rolled back further than DQ_ROLLBACK_HORIZON: what worker %s had stored is gone. The "
            "pages that it holds are released, and what Redis has lost is crawled again%s",
            self.id,
            _START_AGAIN % "frontier_rolled_back" if for_good else "",
        )
        if parentless:
            self.seeding = Seeding.AGAIN
        if for_good:
            self.home.seeding = Seeding.AGAIN  # the run must not finish
        self.rolled_back = True
        self.leases.forfeit()
        self._forfeit_elsewhere()
        self._listener.rolled_back(for_good)
        self._begin_rejoin()

    def _close_run(self, last_seq: int | None, unfinished: bool) -> None:
        # If Redis has a record of this worker, its logged puts need no repeat. Nor has its start() to go on:
        # it was declared dead, and the run has finished because an equal one is complete.
        # If the next run has begun, nothing shows whether that was so, or how its run has ended.
        unknown = unfinished and last_seq is not None and last_seq >= _NO_RECORDS
        if last_seq is None:
            unknown = self.seeding == Seeding.ACTIVE or any(of.log.parentless for of in self._closes)
        forgot, parentless = self.log.forgot(last_seq)
        # A put whose parent lived in another shard is lost with this one: the parent is done.
        forgotten = parentless or unknown or (forgot and bool(self.others))
        from_pages = self.outbox.puts - self.outbox.parentless
        if from_pages:
            text = "%s%d requests from its pages are dropped; others have crawled these pages again"
            self.logger.info(text, _ABSENT, from_pages)
        # Those for other shards wait for a level that home will not confirm any more.
        outboxes = [of.outbox for of in self._closes]
        dropped = sum(outbox.parentless for outbox in outboxes)
        if dropped:
            missing = f"{dropped} requests of start() or engine.crawl() that it could not store are dropped"
        elif forgotten:
            missing = "Redis has no record of what it had stored: some of that may be missing"
        if dropped or forgotten:
            self.left_behind = True
            self.logger.error(
                "%s%s; a crawl closes with reason run_over, a Queue puts its items into the next run",
                _ABSENT, missing,
            )  # fmt: skip
        logged = chain.from_iterable(of.log.take() for of in self._closes) if forgotten else ()
        left = (*logged, *chain.from_iterable(outbox.puts_in_memory() for outbox in outboxes))
        self.left_over = [put for put in left if put.parent is None]
        self.outbox.clear()
        self._finish(over=True)

    def _lose(self) -> None:
        self.lost = self.together.lost = True
        logger.critical(
            "%s of crawl %r is gone, or was replaced by another one (`scrapy dq move`? FLUSHALL? an empty "
            "replica promoted? a Redis without persistence restarted?). This worker closes with reason "
            "frontier_lost. Unless it was moved, the next crawl starts again from start(); if one of "
            "several shards is gone, after `scrapy dq clear --all`",
            "The frontier" if self._shard.number == HOME else f"Shard {self._shard.number}",
            self._shard.crawl,
        )
        self._listener.frontier_lost()
