"""The end of a crawl, as one worker sees it, from its protocols in all shards, home first.

Only home knows of start() methods and of the end of the run. docs/internals/shards.md has the rules.

- `pending`, `reason`: whether the worker has something to wait for, and why it closes.
- `Level`: the level of seeding at home. A put without a parent goes to another shard only when home has
  confirmed the level. The level stays until the put is retired in its shard, and the raise of the level is
  retired at home (no roll-back within the horizon can undo it). Otherwise home could finish the run after
  a roll-back, although the put still waits.
- `TerminationDetector`: how the workers find out that nothing is left. If a worker asks one shard after the
  other, all may answer "empty" while a page moves between them. So each other shard has to answer before and
  after home, with the same version (`Census.version`, which grows with each put). Then nothing was put in
  between, and all shards were empty at the moment of home's answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum

from scrapy_dq.frontier.model import UNFINISHED, Seeding
from scrapy_dq.sharding.protocol import CommonState, ShardProtocol


def has_work(protocols: Sequence[ShardProtocol]) -> bool:
    """Tell whether this worker itself has leases, or moves to send."""
    return any(each.outbox or each.leases for each in protocols)


def idle(protocols: Sequence[ShardProtocol]) -> bool:
    """Tell whether the crawl had no work left at the last exchanges; start payloads may still come."""
    if protocols[0].seeding == Seeding.ACTIVE:
        return False
    return all(each.census.empty for each in protocols) and not has_work(protocols)


def pending(protocols: Sequence[ShardProtocol], since: int) -> bool:
    """Tell whether any work of the whole crawl is not done yet, as far as this worker knows.

    Args:
        since: number of exchanges composed before home reported the end of the run.
    """
    home = protocols[0]
    if not home.common.over:
        if home.start_broken and not has_work(protocols):
            return not all(each.census.empty for each in protocols)
        if not home.finished or home.seeding == Seeding.ACTIVE or home.outbox:
            return not overtaken(protocols)
        # Another shard was rolled back after the end of the run, and has leased finished pages to this worker
        # again. Settle these first.
        if has_work(protocols[1:]):
            return True
    elif not home.finished:
        # Another shard is in a later run. Wait for new answers, because home, or other shards after a
        # roll-back, may know of missing work.
        since = home.common.over_at
        if home.applied <= since:
            return True
    # Another shard may have been rolled back before the end, further than the log reaches. Only the worker
    # that had stored the lost puts can notice this, from a later answer.
    return any(each.applied <= since and not each.finished for each in protocols[1:])


def overtaken(protocols: Sequence[ShardProtocol]) -> bool:
    """Tell whether nothing is left at home, and another shard is in a later run without this worker.

    RACE: the next run had begun in both shards. Then home was rolled back to before the end of this run. If
    this worker is no member of the other shard, it gets no answer there that could end the run at home. (A
    worker that home has taken into the next run follows home: `ShardProtocol._follow_home`.)
    """
    home = protocols[0]
    if home.finished or home.seeding == Seeding.ACTIVE or not home.census.empty or has_work(protocols):
        return False
    return any(
        each.overtaken_at is not None and each.overtaken_at < home.applied and home.run <= each.run
        for each in protocols[1:]
    )


def reason(protocols: Sequence[ShardProtocol]) -> str:
    """Return why this worker closes when nothing is left to do: `finished`, unless something is missing."""
    home = protocols[0]
    if any(each.left_behind for each in protocols) or overtaken(protocols):
        return "run_over"
    # If another shard is in a later run, this worker drops its waiting puts. It also drops the work that home
    # has again after a roll-back.
    unfinished = home.seeding == Seeding.ACTIVE or any(each.outbox.parentless for each in protocols)
    if home.common.over and not home.over and (unfinished or not home.finished):
        return "run_over"
    if any(each.census.gone for each in protocols):
        return "frontier_damaged"
    if home.census.incomplete:
        return "start_incomplete"
    return "unserved" if any(each.census.unserved for each in protocols) else "finished"


class SimultaneousCheck:
    """Tells whether a condition was true in all shards at the same moment.

    This takes two answers from each shard, with nothing new between them (see `TerminationDetector`). Use an
    object for one condition only.
    """

    def __init__(self, protocols: Sequence[ShardProtocol], common: CommonState) -> None:
        self._protocols = protocols
        self._common = common
        self._first: tuple[int, list[int]] | None = None
        """Number of composed exchanges, and the shards' versions, when all last answers first met the
        condition."""

    def confirms(self, all_agree: bool) -> bool:
        """Return whether the condition was true in all shards at the same moment.

        Args:
            all_agree: the last answer of each shard meets the condition.
        """
        if not all_agree:
            self._first = None
            return False
        versions = [each.census.version for each in self._protocols]
        if self._first and self._first[0] < min(each.applied for each in self._protocols):
            before, self._first = self._first, None
            if before[1] == versions:
                return True
        self._first = self._first or (self._common.composed, versions)
        return False


class Level:
    """The level of seeding that one worker has at home.

    Args:
        protocols: the protocols of all parts of the worker; the first one is with home.
        home_answers: returns whether home has answered the last call. If not, other workers may have declared
            this worker dead at home and finished the run, while another shard still accepts its puts.
    """

    def __init__(
        self, protocols: Sequence[ShardProtocol], home_answers: Callable[[], bool] = lambda: True
    ) -> None:
        self._protocols = protocols
        self._home_answers = home_answers
        self._last: dict[int, int] = {}
        """By shard: the number of the last put without a parent, which needs the level."""
        protocols[0].stays_raised = self.needed
        for each in protocols[1:]:
            each.may_seed = self.is_raised

    def put(self, shard: int, number: int) -> None:
        """Record a put without a parent in the outbox of a shard other than home."""
        self._last[shard] = number

    @property
    def shards(self) -> Iterable[int]:
        """The shards with puts that need the level."""
        return self._last

    def is_raised(self) -> bool:
        """Tell whether home has confirmed the level and answers, and no exchange since then lowers it."""
        return self._protocols[0].raised_at is not None and self._home_answers()

    def needed(self) -> bool:
        """Tell whether the level has to stay raised, even if start() is complete."""
        while self._last and self._protocols[0].raise_retired:
            shard, number = next(iter(self._last.items()))
            if self._protocols[shard].retired < number:
                break
            del self._last[shard]
        return bool(self._last)


class _Stage(IntEnum):
    WORKING = 0
    HOME = 1
    """Home was asked."""
    AGAIN = 2
    """The other shards were asked again."""
    FINISHING = 3
    """Home was asked to finish the run if home has not changed."""


class TerminationDetector:
    """Finds out for one worker that nothing is left in the crawl, with ordinary exchanges as questions.

    Each step costs O(1).

    Args:
        protocols: the protocols of all parts of the worker; the first one is with home.
        ask: makes the next exchange with a shard due at once.
    """

    def __init__(self, protocols: Sequence[ShardProtocol], ask: Callable[[int], None]) -> None:
        self._protocols = protocols
        self._ask = ask
        self._stage = _Stage.WORKING
        self._versions: list[int] = []
        self._ids: list[str] = []
        """The worker's id in each shard when it began to ask."""
        self._left = set(range(len(protocols)))
        """Shards that are lost or damaged, or were not empty at their last answer."""
        self._awaiting: dict[int, int] = {}
        """For each shard that has not answered, the number of exchanges composed before the question."""

    def step(self, shard: int, quiet: bool) -> None:
        """Take a step after an exchange with *shard*; *quiet*: this worker does not keep the run open."""
        home, part = self._protocols[0], self._protocols[shard]
        (self._left.add if part.lost or part.damage or not part.census.empty else self._left.discard)(shard)
        if part.applied > self._awaiting.get(shard, part.applied):
            del self._awaiting[shard]
        if self._left or not quiet or home.finished or self._has_changed(shard):
            self._restart()
        elif self._awaiting:
            return
        elif has_work(self._protocols):
            self._restart()
        elif self._stage is _Stage.WORKING:
            self._versions = [each.census.version for each in self._protocols]
            self._ids = [each.id for each in self._protocols]
            self._next(_Stage.HOME, 0)
        elif self._stage is _Stage.HOME:
            self._versions[0] = home.census.version
            self._next(_Stage.AGAIN, *range(1, len(self._protocols)))
        elif self._stage is _Stage.AGAIN:
            home.finish_at = self._versions[0]
            self._next(_Stage.FINISHING, 0)
        else:
            self._restart()  # home has changed since, or a worker listens

    def _has_changed(self, shard: int) -> bool:
        part = self._protocols[shard]
        if self._stage is _Stage.WORKING:
            return False
        # A rejoin may bring back a version that was lost in a roll-back.
        return part.id != self._ids[shard] or (shard > 0 and part.census.version != self._versions[shard])

    def _restart(self) -> None:
        self._stage, self._protocols[0].finish_at = _Stage.WORKING, UNFINISHED
        self._awaiting.clear()

    def _next(self, stage: _Stage, *shards: int) -> None:
        self._stage = stage
        for shard in shards:
            self._awaiting[shard] = self._protocols[shard].composed
            self._ask(shard)
