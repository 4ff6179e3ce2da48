"""Whether a worker has something to wait for, and why it closes: from the protocols of all its dialogues.

The first one is that with the home shard, which alone knows of start() methods and of the end of the run.
"""

from __future__ import annotations

from collections.abc import Sequence

from scrapy_dq.frontier.model import Seeding
from scrapy_dq.frontier.worker.protocol import WorkerProtocol


def works(protocols: Sequence[WorkerProtocol]) -> bool:
    """Tell whether this worker itself has something to do, or to send."""
    return any(each.outbox or each.leases for each in protocols)


def idle(protocols: Sequence[WorkerProtocol]) -> bool:
    """Tell whether nothing of the crawl is left, as of the last exchanges; start payloads may still come."""
    if protocols[0].seeding == Seeding.ACTIVE:
        return False
    return all(each.census.empty for each in protocols) and not works(protocols)


def pending(protocols: Sequence[WorkerProtocol], since: int) -> bool:
    """Tell whether something of the whole crawl is not done yet, as far as this worker knows.

    Args:
        since: number of exchanges that were composed when home said that the run is finished.
    """
    home = protocols[0]
    if not home.together.over:
        if home.start_broken and not works(protocols):
            return not all(each.census.empty for each in protocols)
        if not home.finished or home.seeding == Seeding.ACTIVE or home.outbox:
            return not outrun(protocols)
        # Another shard was rolled back after the end: what it has handed out again is settled first.
        if works(protocols[1:]):
            return True
    elif not home.finished:
        # Another shard is in a later run. What is missing, home may know, or others that were rolled back.
        since = home.together.over_at
        if home.applied <= since:
            return True
    # Another shard may have been rolled back before the end, further than the log reaches: only who had
    # stored what is gone can tell, from a later answer.
    return any(each.applied <= since and not each.finished for each in protocols[1:])


def outrun(protocols: Sequence[WorkerProtocol]) -> bool:
    """Tell whether nothing is left at home, and another shard has gone on without this worker.

    RACE: home was rolled back to before the end of the run, after the next one had begun in both. Who is no
    member there gets no answer that could end the run at home. One that home has taken into the next run
    follows it: see `WorkerProtocol`.
    """
    home = protocols[0]
    if home.finished or home.seeding == Seeding.ACTIVE or not home.census.empty or works(protocols):
        return False
    return any(
        each.outrun_at is not None and each.outrun_at < home.applied and home.run <= each.run
        for each in protocols[1:]
    )


def reason(protocols: Sequence[WorkerProtocol]) -> str:
    """Return why this worker closes when nothing is left to do: `finished`, unless something is missing."""
    home = protocols[0]
    if any(each.left_behind for each in protocols) or outrun(protocols):
        return "run_over"
    # Another shard is in a later run: what waits is dropped, and what is left at home, which was rolled back.
    unsaid = home.seeding == Seeding.ACTIVE or any(each.outbox.parentless for each in protocols)
    if home.together.over and not home.over and (unsaid or not home.finished):
        return "run_over"
    if any(each.census.gone for each in protocols):
        return "frontier_damaged"
    if home.census.incomplete:
        return "start_incomplete"
    return "unserved" if any(each.census.unserved for each in protocols) else "finished"
