"""Makes a crawl forget requests that a person or a program has written as text."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from scrapy import Request

from scrapy_dq import scrapy_redis
from scrapy_dq.frontier.admin.forget import MAX_FINGERPRINTS, forget
from scrapy_dq.frontier.admin.shards import Shards
from scrapy_dq.pushing.lines import Line
from scrapy_dq.pushing.written import BadLine, Written


@dataclass
class Forgotten:
    """The results of one call."""

    requests: int = 0
    known: int = 0
    bad: int = 0


async def forget_lines(
    shards: Shards,
    crawl: str,
    written: Written,
    fingerprint: Callable[[Request], bytes],
    batches: AsyncIterator[Sequence[Line]],
    *,
    bad: Callable[[str, str], object],
    strict: bool = False,
    by: str = "",
) -> Forgotten:
    """Forget the requests of all lines, and return how many there were; blocks while Redis does it.

    Args:
        bad: called with the name of each line that is not a request, and the reason.
        strict: stop at the first such line.
        by: who has them forgotten, for the journal of the crawl.
    Raises:
        redis.exceptions.RedisError: no reply.
        FrontierRefused: a key of the crawl has the wrong type.
    """
    found, waiting = Forgotten(), list[tuple[bytes, bytes]]()

    def hand_in() -> None:
        for start in range(0, len(waiting), MAX_FINGERPRINTS):
            part = waiting[start : start + MAX_FINGERPRINTS]
            found.known += forget(shards, crawl, part, by) or 0
            found.requests += len(part)
        waiting.clear()

    async for batch in batches:
        for line in batch:
            try:
                request = written.request(line)
            except BadLine as error:
                found.bad += 1
                bad(line.name, str(error))
                if strict:
                    hand_in()
                    return found
                continue
            if request is not None:
                waiting.append((fingerprint(request), scrapy_redis.fingerprint(request)))
        hand_in()
    return found
