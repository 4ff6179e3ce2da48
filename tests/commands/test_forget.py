"""`scrapy dq forget`: by URL or by file, through the project's own fingerprinter."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request

from commands.test_push import HOST, OWN, SPIDERS, Push
from scrapy_dq.commands.subcommand import CommandError
from scrapy_dq.frontier.model import Seen
from scrapy_dq.scrapy_redis import fingerprint
from support.live_frontier import HandWorker, LiveFrontier


@pytest.fixture
def worker(live: LiveFrontier) -> HandWorker:
    return HandWorker(live, "worker", OWN)


def test_what_is_forgotten_can_be_pushed_again(dq: Any, tmp_path: Path, worker: HandWorker) -> None:
    """However the URL is written; how many had been seen is reported."""
    push = Push(dq, tmp_path)
    push(f"{HOST}/1?a=1&b=2", f"{HOST}/2")
    found = dq.found("forget", "pushed", f"{HOST}/1?b=2&a=1", f"{HOST}/9", **SPIDERS)
    assert (found["forgotten"], found["not_seen"], found["bad"], dq.status) == (1, 1, 0, 0)
    assert push(f"{HOST}/1?a=1&b=2", f"{HOST}/2")["pushed"] == 1
    text = dq.text("forget", "pushed", f"{HOST}/2", **SPIDERS)
    assert "forgotten        1\nnot seen before  0" in text


def test_a_file_says_which_requests(dq: Any, tmp_path: Path, worker: HandWorker) -> None:
    """One with a body differs from one without; bad lines are reported, and the rest continues."""
    push, file = Push(dq, tmp_path), tmp_path / "forget.jsonl"
    slot = json.dumps({"url": f"{HOST}/1", "method": "POST", "body": "x"})
    push.file(f"{HOST}/1", slot, f"{HOST}/2")
    file.write_text(f"{slot}\nnonsense\n# no line\n{HOST}/2\n")
    found = dq.found("forget", "pushed", "--file", str(file), **SPIDERS)
    assert (found["forgotten"], found["not_seen"], found["bad"], dq.status) == (2, 0, 1, 1)
    assert dq.said == ["scrapy dq forget: line 2: ValueError: Missing scheme in request url: nonsense"]
    assert push.file(f"{HOST}/1", slot, f"{HOST}/2")["known"] == 1
    found = dq.found("forget", "pushed", "--file", str(file), "--strict", **SPIDERS)
    assert (found["forgotten"], found["bad"]) == (1, 1)
    assert "invalid  1" in dq.text("forget", "pushed", "--file", str(file), **SPIDERS)


def test_more_than_one_call_takes(dq: Any, tmp_path: Path, worker: HandWorker) -> None:
    """A part of a file may have thousands of lines."""
    push = Push(dq, tmp_path)
    lines = [f"http://a/{n}" for n in range(4000)]
    push.file(*lines)
    found = dq.found("forget", "pushed", "--file", str(tmp_path / "requests.jsonl"), **SPIDERS)
    assert found["forgotten"] == 4000


def test_what_scrapy_redis_had_seen_is_forgotten(dq: Any, live: LiveFrontier, worker: HandWorker) -> None:
    """By its own fingerprint."""
    live.call("adopt", worker.epoch, 0, "", 1, [fingerprint(Request(f"{HOST}/1"))])
    assert dq.found("forget", "pushed", f"{HOST}/1", **SPIDERS)["forgotten"] == 1


def test_a_seen_with_times_forgets_too(dq: Any, tmp_path: Path, live: LiveFrontier) -> None:
    """Of a crawl with DQ_SEEN_TTL."""
    push, expiring = Push(dq, tmp_path), {"DQ_SEEN_TTL": 1000, "SCHEDULER_PERSIST": True}
    push.text(f"{HOST}/1", "--crawl", "", DQ_CRAWL=live.crawl, **expiring)
    assert live.redis.type(live.key("seen")) == b"zset"
    assert dq.found("forget", "pushed", f"{HOST}/1", **SPIDERS, **expiring)["forgotten"] == 1
    assert live.redis.hget(live.key("meta"), "seen_kind").decode() == Seen.EXPIRING.value


def test_fingerprints_of_another_kind_are_refused(dq: Any, live: LiveFrontier) -> None:
    """They would be those of nothing."""
    HandWorker(live, "worker", replace(OWN, fingerprinter="another"))
    with pytest.raises(CommandError, match="REQUEST_FINGERPRINTER_CLASS 'another'"):
        dq.found("forget", "pushed", f"{HOST}/1", **SPIDERS)


def test_a_crawl_that_does_not_exist_is_reported(dq: Any, live: LiveFrontier) -> None:
    """Nothing is made of it."""
    with pytest.raises(CommandError, match="there is no crawl"):
        dq.found("forget", "pushed", f"{HOST}/1", **SPIDERS)
    assert live.dump() == {}
