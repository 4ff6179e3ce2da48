"""A worker's alarm, which ends the waits that have begun."""

from __future__ import annotations

import asyncio

from scrapy_dq.frontier.worker.pace import Alarm

LONG_S = 3600.0


async def test_a_ring_before_a_wait_does_not_end_the_wait() -> None:
    """The caller has looked for work since that ring, so it may wait."""
    alarm = Alarm()
    alarm.ring()
    waits = asyncio.create_task(alarm.wait(LONG_S))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not waits.done()
    waits.cancel()
    await asyncio.gather(waits, return_exceptions=True)
    waits = asyncio.create_task(alarm.wait(LONG_S))
    await asyncio.sleep(0)
    alarm.ring()  # the cancelled wait has left nothing behind
    await waits
