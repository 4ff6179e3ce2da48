"""How the workers of a crawl with several shards find out that nothing is left.

Asked one after the other, all shards may say that they are empty while a page moves from one to another. So
each of the others has to answer before and after home, with the same version: then nothing was put in
between, and at the moment of home's answer all were empty. docs/internals/shards.md has the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum

from scrapy_dq.frontier.model import UNFINISHED
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
    """Of one worker. The questions are ordinary exchanges.

    Args:
        protocols: of all its dialogues; the first one is that with home.
        ask: makes the next exchange with a shard due at once.
    """

    def __init__(self, protocols: Sequence[WorkerProtocol], ask: Callable[[int], None]) -> None:
        self._protocols = protocols
        self._ask = ask
        self._stage = _Stage.WORKING
        self._versions: list[int] = []
        self._asked: list[int] = [0] * len(protocols)
        """By shard, the exchanges that were composed when it was asked: a later one answers."""

    def step(self, quiet: bool) -> None:
        """Go on after an exchange, or begin anew; *quiet*: this worker has nothing to do or to seed."""
        home, *others = self._protocols
        left = any(each.lost or not each.census.empty for each in self._protocols)
        if left or not quiet or home.finished:
            self._begin_anew()
        elif self._stage is _Stage.WORKING:
            self._versions = [each.census.version for each in self._protocols]
            self._next(_Stage.HOME, 0)
        elif any(each.census.version != was for each, was in zip(others, self._versions[1:], strict=True)):
            self._begin_anew()
        elif self._stage is _Stage.HOME and self._answered(0):
            self._versions[0] = home.census.version
            self._next(_Stage.AGAIN, *range(1, len(self._protocols)))
        elif self._stage is _Stage.AGAIN and all(map(self._answered, range(1, len(self._protocols)))):
            home.finish_at = self._versions[0]
            self._next(_Stage.FINISHING, 0)
        elif self._stage is _Stage.FINISHING and self._answered(0):
            self._begin_anew()  # home has changed meanwhile, or somebody listens

    def _begin_anew(self) -> None:
        self._stage, self._protocols[0].finish_at = _Stage.WORKING, UNFINISHED

    def _next(self, stage: _Stage, *shards: int) -> None:
        self._stage = stage
        for shard in shards:
            self._asked[shard] = self._protocols[shard].composed
            self._ask(shard)

    def _answered(self, shard: int) -> bool:
        return self._protocols[shard].applied > self._asked[shard]
