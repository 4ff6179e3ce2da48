"""Notices that arrive while the worker leaves, and the text of a notice."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from scrapy_dq.frontier.answers import Notices
from scrapy_dq.frontier.model import Census
from scrapy_dq.scheduling import notices


class Frontier:
    """Gives each notice once, as Redis does, and answers only when the test allows it."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.through = asyncio.Event()

    async def notices(self) -> Notices:
        given = self.asked.is_set()
        self.asked.set()
        await self.through.wait()
        return Notices(0, Census(), [] if given else ["dead"])


@pytest.mark.parametrize("failing", [False, True])
def test_an_answer_that_is_on_its_way_at_the_end_is_not_lost(
    monkeypatch: pytest.MonkeyPatch, failing: bool
) -> None:
    """Redis gives a notice to one worker only. Even after an error in the last call, the worker must end."""
    told: list[bytes] = []

    async def posted(url: str, body: bytes) -> str:
        told.append(body)
        return ""

    monkeypatch.setattr(notices, "_posted", posted)
    monkeypatch.setattr(notices, "EVERY_S", 0.0)

    async def main() -> None:
        frontier: Any = Frontier()
        worker: Any = SimpleNamespace(id="worker", notices=frontier.notices)
        telling = notices.Notices("http://a.example/", "books", worker)
        await frontier.asked.wait()
        if failing:
            monkeypatch.setattr(notices, "notice_of", lambda *args: 1 / 0)
        ending = asyncio.create_task(telling.end())
        await asyncio.sleep(0)  # ending has begun
        frontier.through.set()
        await ending

    asyncio.run(main())
    assert [json.loads(body)["counts"]["dead"] for body in told] == ([] if failing else [0])


def test_the_notice_of_a_run_with_failures_names_the_retry_command() -> None:
    """A chat service shows the text, which contains the command. Programs read the counts."""
    for census, more in (
        (Census(done=7), ""),
        (Census(done=7, failed=2), "retry --crawl 'my books' --all` "),
    ):
        told = json.loads(notices.notice_of("finished", "my books", 0, census, "w"))
        assert f"7 done, {census.failed} failed, 0 dead letters" in told["text"]
        assert told["counts"]["failed"] == census.failed
        assert ("runs them again" in told["text"]) == bool(more)
        assert more in told["text"]
