"""The level of seeding at home, of a worker whose puts without a parent go to other shards, too.

Only home knows who is seeding. So such a put is sent when home has confirmed the level, and the level stays
until the put is certain in its shard, and that it was raised is certain at home: else a roll-back of home
could finish the run over it. docs/internals/shards.md has the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from scrapy_dq.frontier.model import ELSEWHERE, UNFINISHED, Seeding
from scrapy_dq.frontier.worker.protocol import WorkerProtocol


def spread(protocols: Iterable[WorkerProtocol]) -> None:
    """Make these, the first one with home, those of one process in all shards of a crawl."""
    found = list(protocols)
    for each in found:
        each.others, each.together = [other for other in found if other is not each], found[0].together
        each.home = found[0]
    if len(found) > 1:
        found[0].finish_at = UNFINISHED
    for each in found[1:]:
        # Only home knows who is seeding, and says when the run is finished.
        each.seeding, each.finish_at = Seeding.DONE, ELSEWHERE


class Level:
    """Of one worker.

    Args:
        protocols: of all its dialogues; the first one is that with home.
        home_answers: whether home has answered the last call. Otherwise others may have declared this worker
            dead there and finished the run, while its puts are still accepted in another shard.
    """

    def __init__(
        self, protocols: Sequence[WorkerProtocol], home_answers: Callable[[], bool] = lambda: True
    ) -> None:
        self._protocols = protocols
        self._home_answers = home_answers
        self._last: dict[int, int] = {}
        """By shard, the number of the last put without a parent for which the level is needed."""
        protocols[0].stays_raised = self.needed
        for each in protocols[1:]:
            each.may_seed = self.is_raised

    def put(self, shard: int, number: int) -> None:
        """Note that a put without a parent was appended to the outbox of another shard than home."""
        self._last[shard] = number

    @property
    def shards(self) -> Iterable[int]:
        """Those with puts for which it is needed."""
        return self._last

    def is_raised(self) -> bool:
        """Tell whether home has confirmed it and answers, and nothing that lowers it was sent since."""
        return self._protocols[0].raised_at is not None and self._home_answers()

    def needed(self) -> bool:
        """Tell whether it has to stay raised, even if start() is complete."""
        while self._last and self._protocols[0].raise_retired:
            shard, number = next(iter(self._last.items()))
            if self._protocols[shard].retired < number:
                break
            del self._last[shard]
        return bool(self._last)
