"""Joins the shards other than home, and asks home for its state before a worker leaves these shards."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from scrapy_dq.frontier.answers import Joined, RunState
from scrapy_dq.frontier.model import FrontierError, RunOver, Status
from scrapy_dq.sharding.membership import Home
from scrapy_dq.sharding.part import Part
from scrapy_dq.sharding.protocol import ShardProtocol


async def join_others(parts: Sequence[Part], joined: Joined) -> Joined:
    """Join all shards except home; *joined*: the answer of home, which is the first of *parts*.

    Returns:
        The answer of home. If its status is FINISHED, the run has ended during the call, and the worker has
        to leave the shards that it joined.
    Raises:
        FrontierUnavailable, FrontierRefused: the worker has left all shards, also home.
    """
    home, others = parts[0], [each.membership for each in parts[1:]]
    at_home = home.frontier
    try:
        home_state = Home(joined.epoch, joined.run, joined.shards_exist, at_home.run_state)
        for each in others:
            each.home = home_state
        joins = await asyncio.gather(*(each.join("") for each in others), return_exceptions=True)
        for answer in joins:
            if isinstance(answer, BaseException):
                raise answer
        if not joined.shards_exist:
            await home.membership.with_retries(partial(at_home.note_shards, home.epoch, home.run))
    except RunOver:
        joined = replace(joined, status=Status.FINISHED)
        home.protocol.joined(joined, time.monotonic())
    except FrontierError:
        await asyncio.gather(*(each.undo_join() for each in others))
        await home.membership.undo_join()
        raise
    return joined


async def run_state_of(home: Part) -> RunState | None:
    """Return home's run and phase, even if home accepts no exchanges of this worker now; None: unknown."""
    try:
        return await home.frontier.run_state()
    except FrontierError:
        return None


def version_of(shard: ShardProtocol, home: RunState | None) -> int:
    """Return the version that *shard* must still have so that the last worker to leave clears it.

    -1: no worker may clear it, because its run may not be over. RACE: the shard was rolled back, and another
    worker has taken it into the next run, with this worker as a member. Or a retry has reopened the run since
    home reported its end.
    """
    if home is None or home.epoch != shard.epoch:
        return -1
    over = home.run > shard.run or (home.run == shard.run and not home.open)
    return shard.census.version if over else -1
