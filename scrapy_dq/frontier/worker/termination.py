"""How the workers of a crawl with several shards find out that nothing is left.

Asked one after the other, all shards may say that they are empty while a page moves from one to another. So
each of the others has to answer before and after home, with the same version: then nothing was put in
between, and at the moment of home's answer all were empty. docs/internals/shards.md has the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum

from scrapy_dq.frontier.model import UNFINISHED
from scrapy_dq.frontier.worker.closing import works
from scrapy_dq.frontier.worker.protocol import WorkerProtocol


class _Stage(IntEnum):
    WORKING = 0
    HOME = 1
    """Home was asked."""
    AGAIN = 2
    """The others were asked again."""
    FINISHING = 3
    """Home was asked to finish, if it has not changed."""


class TerminationDetector:
    """Of one worker. The questions are ordinary exchanges, after each of which a step costs O(1).

    Args:
        protocols: of all its dialogues; the first one is that with home.
        ask: makes the next exchange with a shard due at once.
    """

    def __init__(self, protocols: Sequence[WorkerProtocol], ask: Callable[[int], None]) -> None:
        self._protocols = protocols
        self._ask = ask
        self._stage = _Stage.WORKING
        self._versions: list[int] = []
        self._ids: list[str] = []
        """Under which this worker was registered in each shard when it began to ask."""
        self._left = set(range(len(protocols)))
        """The shards that are lost, or that were not empty when they answered last."""
        self._asked: dict[int, int] = {}
        """By shard that has not answered, the exchanges that were composed when it was asked."""

    def step(self, shard: int, quiet: bool) -> None:
        """Go on after an exchange with *shard*, or begin anew; *quiet*: nothing here keeps the run open."""
        home, of = self._protocols[0], self._protocols[shard]
        (self._left.add if of.lost or of.damage or not of.census.empty else self._left.discard)(shard)
        if of.applied > self._asked.get(shard, of.applied):
            del self._asked[shard]
        if self._left or not quiet or home.finished or self._has_changed(shard):
            self._begin_anew()
        elif self._asked:
            return
        elif works(self._protocols):
            self._begin_anew()
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
            self._begin_anew()  # home has changed meanwhile, or somebody listens

    def _has_changed(self, shard: int) -> bool:
        of = self._protocols[shard]
        if self._stage is _Stage.WORKING:
            return False
        # A rejoin may bring back the version that a roll-back has taken.
        return of.id != self._ids[shard] or (shard > 0 and of.census.version != self._versions[shard])

    def _begin_anew(self) -> None:
        self._stage, self._protocols[0].finish_at = _Stage.WORKING, UNFINISHED
        self._asked.clear()

    def _next(self, stage: _Stage, *shards: int) -> None:
        self._stage = stage
        for shard in shards:
            self._asked[shard] = self._protocols[shard].composed
            self._ask(shard)
