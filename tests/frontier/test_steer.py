"""Commands reach all workers. While a crawl is on hold, no entry is leased."""

from __future__ import annotations

import pytest

from scrapy_dq.frontier.admin.control import Command, steer
from scrapy_dq.frontier.admin.overview import peek
from scrapy_dq.frontier.model import Claim, Commands, Hold, Seeding, StartKeys, Terms
from support.live_frontier import HandWorker, LiveFrontier, ack, numbers, put, puts

HOLDS = {Command.PAUSE: Hold.PAUSED, Command.DRAIN: Hold.DRAINING}


def say(live: LiveFrontier, word: Command) -> Hold | None:
    return steer(live.redis, live.crawl, word)


@pytest.mark.parametrize("word", HOLDS)
def test_nothing_is_leased_until_the_crawl_is_resumed(
    live: LiveFrontier, worker: HandWorker, word: Command
) -> None:
    """Puts and acks are still applied. Each exchange reports the hold."""
    worker.exchange(*puts(b"", 4), want=1)
    assert say(live, word) is HOLDS[word]
    held = worker.exchange(ack(0), put(4), want=9)
    assert (held.applied, held.leases, held.census.waiting, held.census.done) == (True, (), 4, 1)
    assert held.commands == Commands(1, hold=HOLDS[word])
    assert peek(live.redis, live.crawl).hold is HOLDS[word]
    assert say(live, Command.RESUME) is Hold.NONE
    resumed = worker.exchange(want=9)
    assert (numbers(resumed), resumed.commands) == ([1, 2, 3, 4], Commands(2))
    assert peek(live.redis, live.crawl).hold is Hold.NONE


def test_no_start_payload_is_claimed_on_hold(redis_server: object, live: LiveFrontier) -> None:
    """Start payloads stay in their key while the crawl is on hold."""
    fed = LiveFrontier(redis_server.url, live.crawl, start_keys=StartKeys("list", (live.key("fed"),), b"\0"))  # type: ignore[attr-defined]
    try:
        fed.redis.rpush(live.key("fed"), "http://localhost/1")
        worker = HandWorker(fed, "worker")
        say(fed, Command.PAUSE)
        terms = Terms(claim=Claim("list", b"\0", b"12345678"))
        assert worker.exchange(want=5, seeding=Seeding.LISTENING, terms=terms).leases == ()
        assert fed.redis.llen(live.key("fed")) == 1
        say(fed, Command.RESUME)
        assert len(worker.exchange(want=5, seeding=Seeding.LISTENING, terms=terms).leases) == 1
    finally:
        fed.close()


def test_a_heartbeat_returns_the_number_of_commands(live: LiveFrontier, worker: HandWorker) -> None:
    """The count grows with each command, so a worker that rarely exchanges notices commands in time."""
    counts = []
    for word in (None, Command.PAUSE, Command.RESUME, Command.STOP):
        if word:
            say(live, word)
        counts.append(live.call("beat", "worker", worker.epoch)[1])
    assert counts == [0, 1, 2, 3]


def test_a_command_does_not_create_a_crawl(live: LiveFrontier) -> None:
    assert say(live, Command.PAUSE) is None
    assert live.key_names() == set()
