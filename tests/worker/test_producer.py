"""A member that only puts, and its reaction to Ctrl-C."""

from __future__ import annotations

import asyncio
import sys

import pytest

from scrapy_dq.pushing.producer import Producer


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Ctrl-C cancels nothing: it is raised at once")
async def test_a_ctrl_c_just_after_a_command_was_sent_is_not_lost() -> None:
    """redis-py sends in asyncio.wait_for, which can swallow a cancellation before Python 3.12."""
    main = asyncio.current_task()
    assert main is not None

    async def send() -> str:
        main.cancel()
        return "sent"

    visitor = Producer.__new__(Producer)  # its crawl does not matter
    with pytest.raises(asyncio.CancelledError):
        await visitor.with_retries(lambda: asyncio.wait_for(send(), 10))
    await asyncio.sleep(0)  # the cancellation was raised, so a later leave is not cancelled
    getattr(main, "uncancel", int)()
