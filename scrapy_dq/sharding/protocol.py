"""The protocol of a worker in a crawl with several shards: docs/internals/shards.md has the rules."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from scrapy_dq.frontier.answers import Joined, Receipt, Rejoined
from scrapy_dq.frontier.calls import Composed, Demand, Exchange, Rejoin
from scrapy_dq.frontier.model import ELSEWHERE, UNFINISHED, Census, Hold, Parentless, Seeding, Status, Terms
from scrapy_dq.frontier.moves import Move, is_parentless
from scrapy_dq.frontier.worker.protocol import WorkerProtocol

_LOWERED = (Seeding.DONE, Seeding.LISTENING)
"""If a worker dies at one of these levels of seeding, its start() does not count as incomplete."""


class CommonState:
    """The state that one worker's protocols share; there is one protocol per shard."""

    def __init__(self) -> None:
        self.over = False
        """The run is over in at least one shard. Then this worker drops its puts, so it may ack no page.

        RACE: the shard of a page was rolled back and is in the next run already. If this worker acked the
        page there, no other worker would find the links of the page in the next run.
        """
        self.lost = False
        """The frontier of one shard is gone."""
        self.over_at = -1
        """Number of exchanges composed before the run was `over`."""
        self.composed = 0
        """Number of exchanges composed by all protocols."""
        self.run = 0
        """The latest run in which any protocol has registered."""
        self.run_at = 0
        """Number of exchanges composed before a protocol registered in `run`."""
        self.give_up_deferred: Callable[[], object] = lambda: None
        """Forgets the leases whose ends wait for puts in other shards."""
        self.suspects: set[ShardProtocol] = set()
        """Protocols that may have a suspect, or may lease one."""

    def registered_in(self, run: int) -> None:
        """Record that a protocol has registered in a run."""
        if run > self.run:
            self.run, self.run_at = run, self.composed

    def end(self) -> None:
        """Record that the run is over."""
        if not self.over:
            self.over, self.over_at = True, self.composed


class ShardProtocol(WorkerProtocol):
    """The protocol of one worker in one shard. For the arguments, see `WorkerProtocol`.

    The exchanges of all protocols of a worker are numbered in one sequence (`composed`).
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.number = 0
        """The number of the shard; 0: home."""
        self.home = self
        """The protocol with home."""
        self.others: Sequence[ShardProtocol] = ()
        """This worker's protocols in the other shards."""
        self.common = CommonState()
        self.raised_at: float | None = None
        """The time at which Redis confirmed a level of seeding that keeps the run open. None: it has
        confirmed none, or may have lowered the level since."""
        self.raise_retired = False
        """The raise of the level is retired: no roll-back within the horizon can lower the level."""
        self.stays_raised: Callable[[], bool] = lambda: False
        """Returns whether another shard has, or will get, puts that need the level; see `closing.Level`."""
        self.may_seed: Callable[[], bool] = lambda: True
        """Returns whether puts without a parent may be sent now."""
        self.held_back = False
        """The last exchange had no moves, because puts without a parent may not be sent yet."""
        self.finish_at = UNFINISHED
        """See `Terms.finish_at`."""
        self.overtaken_at: int | None = None
        """Number of exchanges composed before the shard reported that a later run has begun there, in which
        this worker is not registered. None: it has reported no such run."""
        self.rolled_back = False
        """Redis has lost puts of this run that the log had retired."""
        self._forfeited = False
        self._may_lease = 0
        """Maximum number of leases that the exchange under way can bring."""
        self.asks_for_suspects = False
        """The exchange under way may bring a suspect."""

    @property
    def has_unconfirmed(self) -> bool:
        """As with one shard; also True if home has to confirm the level, or this shard has to `_catch_up`."""
        if self.raised_at is None and self.stays_raised():
            return True
        if self.run < self.common.run and not (self.finished or self.common.over):
            return True
        if self is self.home and any(each.waits_to_seed for each in self.others):
            return True
        return super().has_unconfirmed

    @property
    def waits_to_seed(self) -> bool:
        """The outbox has puts without a parent, and home has not confirmed the level that they need."""
        return self.outbox.parentless > 0 and not self.may_seed()

    @property
    def sendable(self) -> tuple[int, bool]:
        # More exchanges with this shard would not speed up moves that wait for home.
        return (0, False) if self.held_back and self.waits_to_seed else super().sendable

    @property
    def drops_puts(self) -> bool:
        return self.common.over

    @property
    def on_hold(self) -> bool:
        """The crawl is paused or draining; only home gets such commands."""
        return self.home.commands.hold is not Hold.NONE

    @property
    def pages(self) -> int:
        """Number of this run's requests in this shard that were sent, are in flight, or may be leased now."""
        under_way = self._may_lease if isinstance(self._pending, Composed) else 0
        return self.census.pages + self.census.in_flight + under_way

    @property
    def certain_at(self) -> float:
        """When an exchange can make certain what other shards wait for: puts, or a level; inf: none waits."""
        if self.raised_at is not None and not self.raise_retired and self.stays_raised():
            return min(self.log.certain_at, self.log.certain_after(self.raised_at))
        return self.log.certain_at

    def joined(self, joined: Joined, now: float) -> None:
        super().joined(joined, now)
        self.raised_at = now
        self.common.registered_in(self.run)
        if self.over:
            self.common.end()

    def compose(self, now: float, demand: Demand) -> Exchange | Rejoin | None:
        if self._pending is None and self._forfeited:
            self._begin_rejoin()
        return super().compose(now, demand)

    def _terms(self, demand: Demand) -> Terms:
        most = self._pages_left()
        self._may_lease = demand.want if most is None else max(0, min(demand.want, most))
        return replace(
            super()._terms(demand), no_suspects=not self._may_lease_suspect(demand.want), max_pages=most,
            busy_elsewhere=self._busy_elsewhere, finish_at=self.finish_at,
        )  # fmt: skip

    @property
    def _busy_elsewhere(self) -> bool:
        counts = (each.census for each in self.others)
        return self.home.seeding == Seeding.ACTIVE or any(
            each.waiting > each.declined or each.in_flight or each.delayed for each in counts
        )

    def _pages_left(self) -> int | None:
        """Return how much of `max_pages` the other shards leave to this one, as far as this worker knows."""
        if self.max_pages is None:
            return None
        return self.max_pages - sum(other.pages for other in self.others)

    def _may_lease_suspect(self, want: int) -> bool:
        """Tell whether this shard may lease a suspect from now on, and record the answer.

        A worker has at most one suspect in all shards, because a worker's death charges each of its suspects
        an attempt.
        False: another shard may have the suspect, or lease one.
        """
        self.asks_for_suspects = False
        found = {each for each in self.common.suspects if each.asks_for_suspects or each.leases.suspect}
        may = not found - {self}
        self.common.suspects = {self} if may else found
        self.asks_for_suspects = want > 0 and may
        return may

    def _prefix(self, until: int | None) -> list[Move]:
        prefix = super()._prefix(until)
        self.held_back = False
        if self.waits_to_seed and prefix:
            prefix = list(takewhile(lambda move: not is_parentless(move), prefix))
            self.held_back = not prefix
        return prefix

    def _level(self, prefix: Sequence[Move]) -> Seeding:
        level = super()._level(prefix)
        if self.seeding == Seeding.DONE and self.stays_raised():
            level = Seeding.ACTIVE
        if level in _LOWERED:
            self._lower()  # from now on the lower level may arrive
        return level

    def _next_number(self) -> int:
        self.common.composed += 1
        return self.common.composed

    def all_durable(self) -> None:
        super().all_durable()
        self.raise_retired = self.raised_at is not None

    def unanswered(self) -> None:
        # The other shards need not wait, because a suspect that has not arrived does not run.
        self.asks_for_suspects = False

    def received(self, receipt: Receipt, now: float) -> tuple[int, int]:
        self.asks_for_suspects = False
        if not (receipt.applied or receipt.status in (Status.LOST, Status.RESYNC)):
            self._lower()
        numbers = super().received(receipt, now)
        if receipt.applied and receipt.status is Status.OK:
            self._catch_up()
        return numbers

    def _accept(self, sent: Composed, receipt: Receipt, now: float) -> None:
        self.overtaken_at = None
        self._note_level(sent, now)
        super()._accept(sent, receipt, now)
        if self.leases.suspect:
            self.common.suspects.add(self)

    def _note_level(self, sent: Composed, now: float) -> None:
        if sent.call.seeding in _LOWERED:
            return
        if self.raised_at is None:
            self.raised_at = now
        elif self.log.covers(self.raised_at, sent.at):
            self.raise_retired = True

    def _lower(self) -> None:
        self.raised_at, self.raise_retired = None, False

    @property
    def _needs_open_run(self) -> bool:
        """Whether something of this worker waits for an answer that an ended run does not give.

        This is so if a put waits until home has confirmed a level of seeding, if a put needs this level until
        the put is retired, or if the log has puts.
        """
        waits = self.stays_raised() or any(each.waits_to_seed for each in (self, *self.others))
        return waits or bool(self.log)

    def _only_listened(self, sent: Composed) -> bool:
        # RACE: the worker was declared dead. After *sent* was composed, the worker got a put for another
        # shard, and this put needs the level.
        return super()._only_listened(sent) and not self.stays_raised()

    def _note_run_ended(self, sent: Composed, receipt: Receipt) -> None:
        super()._note_run_ended(sent, receipt)
        if receipt.commands is None and self.home.run > self.run:
            self._follow_home()
        elif receipt.commands is None and self.overtaken_at is None:
            self.overtaken_at = self.common.composed

    def _follow_home(self) -> None:
        """Register in this shard again, in home's run, because nothing of the previous run is left.

        RACE: home was rolled back to before the end of the previous run, or applied a late copy of a join.
        Then another worker took the home shard into the next run, with this worker as a member. In this
        shard, this worker is no member, and cannot find out that the run has ended.
        """
        self.log.begin_run()
        self.run, self.census, self.rolled_back = self.home.run, Census(), False
        self.overtaken_at = None
        self._begin_rejoin()

    def _catch_up(self) -> None:
        """Take this shard and its entries into the later run in which this worker has registered elsewhere.

        RACE: all shards were rolled back to the previous run. A worker took another shard into the later
        run, and was killed before it reached this shard. The next worker to join would delete this shard's
        entries.
        """
        newest = self.common
        if self.run < newest.run and newest.run_at < self.composed and not newest.over:
            self._begin_rejoin()
            assert isinstance(self._pending, Rejoin)
            self._pending = self._pending._replace(run=newest.run)

    def _finish(self, *, over: bool) -> None:
        super()._finish(over=over)
        if over:
            self.common.end()

    def _seed_again(self) -> None:
        super()._seed_again()
        self.home.seeding = Seeding.AGAIN

    def _forfeit(self) -> None:
        """Give up the leases of all shards, so that no page is acked whose puts in this shard were lost."""
        super()._forfeit()
        self.common.give_up_deferred()
        for other in self.others:
            other.forfeit()

    def forfeit(self) -> None:
        """Give up all leases as soon as the call under way is answered."""
        self._forfeited = self._forfeited or bool(self.leases)
        self.leases.forfeit()

    def _begin_rejoin(self) -> None:
        self._lower()
        self._forfeited = False
        super()._begin_rejoin()

    @property
    def _parentless(self) -> Parentless:
        protocols = (self, *self.others)
        if any(each.outbox.parentless or each.seeding == Seeding.ACTIVE for each in protocols):
            return Parentless.WAITING
        # Only home decides that a run is finished, because a retry may reopen the run after another shard
        # ended it.
        is_open = self is not self.home and not self.home.finished
        logged = is_open or any(each.log.parentless for each in protocols)
        return Parentless.LOGGED if logged else Parentless.NONE

    def _still_owned(self, answer: Rejoined) -> frozenset[bytes]:
        # If the leases were given up after this rejoin had asked to keep them, the next rejoin releases them.
        return frozenset() if self._forfeited else super()._still_owned(answer)

    def _parents(self, owned: frozenset[bytes]) -> Collection[bytes]:
        # The parent of a put may be leased from another shard.
        return owned.union(*(each.leases.owned for each in self.others))

    def _continue_as(self, new_id: str, answer: Rejoined) -> None:
        if answer.run != self.run:
            self.rolled_back = False
        super()._continue_as(new_id, answer)
        self.overtaken_at = None
        self.common.registered_in(self.run)

    @property
    def _ending_protocols(self) -> tuple[ShardProtocol, ...]:
        """The protocols that store no more puts once the run is over here.

        At home, these are all protocols: puts to other shards need a level that home no longer confirms.
        """
        return (self, *(self.others if self is self.home else ()))

    def _must_restart(self, forgot: bool, parentless: bool) -> bool:
        # Pages of other shards whose links are lost here may be acked already, so no page yields these links
        # again.
        return forgot

    def _give_up_leases(self, parentless: bool, *, for_good: bool) -> None:
        self.home.seeding = Seeding.AGAIN  # the run must not finish
        self.rolled_back = True
        super()._give_up_leases(parentless, for_good=for_good)

    def _lose(self) -> None:
        self.common.lost = True
        super()._lose()

    @property
    def _name(self) -> str:
        return "The frontier" if self is self.home else f"Shard {self.number}"

    _restart_hint = "; if one of several shards is gone, run `scrapy dq clear --all` first"


def connect_protocols(protocols: Iterable[ShardProtocol]) -> None:
    """Connect one worker's protocols to each other; the first one is with home."""
    found = list(protocols)
    for number, each in enumerate(found):
        each.others, each.common = [other for other in found if other is not each], found[0].common
        each.home, each.number = found[0], number
    for each in found[1:]:
        # Only home knows which workers are seeding, and decides that the run is finished.
        each.seeding, each.finish_at = Seeding.DONE, ELSEWHERE
