"""kill -9 ends a command before its first, second, ... Redis command. A second try completes the work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from commands.conftest import Dq
from commands.test_listing import end_badly
from commands.test_push import HOST, OWN, SPIDERS
from scrapy_dq.frontier import peek
from scrapy_dq.frontier.model import Admission, Order
from support.killed import MAX_COUNT, killed_before
from support.live_frontier import IDENTITY, HandWorker, LiveFrontier, put
from support.redis_server import RedisServer


@pytest.fixture
def each_moment(
    server: RedisServer, crawl_name: str, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Iterator[tuple[Dq, LiveFrontier]]]:
    """Return a function that kills a command before its first, second, ... Redis command, in new crawls.

    Its arguments are a function that fills the crawl of a `LiveFrontier`, and the words and settings of the
    command. It yields each crawl after the killed command has run again to its end.
    """

    def each(
        make: Callable[[LiveFrontier], object], *words: str, **settings: Any
    ) -> Iterator[tuple[Dq, LiveFrontier]]:
        for number in range(1, MAX_COUNT):
            with closing(LiveFrontier(server.url, f"{crawl_name}-{number}", Order.PRIORITY_LIFO)) as live:
                make(live)
                dq = Dq(server.url, live.crawl, capsys)
                killed = killed_before(number, lambda dq=dq: dq.text(*words, **settings))  # type: ignore[misc]
                if killed and live.key_names():  # a deleted crawl may leave no key
                    dq.text(*words, **settings)
                yield dq, live
                if not killed:
                    assert number > 2, "the command sent fewer than two Redis commands"
                    return
        raise AssertionError(f"the command sent {MAX_COUNT} Redis commands without an end: {words}")

    return each


Each = Callable[..., Iterator[tuple[Dq, LiveFrontier]]]


def test_a_killed_push_can_be_repeated(each_moment: Each) -> None:
    """Each request is pushed and waits exactly once."""
    urls = [f"{HOST}/{n}" for n in range(5)]
    pushed = each_moment(
        lambda live: HandWorker(live, "worker", OWN), "push", "pushed", *urls, "--no-wait", **SPIDERS
    )
    for dq, _ in pushed:
        assert sorted(each["request"]["url"] for each in dq.listed("search")) == urls


def test_a_killed_push_with_dont_filter_can_be_repeated(each_moment: Each) -> None:
    """With --dont-filter, the second push may store the same requests again, but no others."""
    urls = [f"{HOST}/{n}" for n in range(5)]
    words = ("push", "pushed", *urls, "--no-wait", "--dont-filter")
    for dq, _ in each_moment(lambda live: HandWorker(live, "worker", OWN), *words, **SPIDERS):
        found = [each["request"]["url"] for each in dq.listed("search", "-n", "100")]
        assert sorted(found) in (urls, sorted(urls * 2))


def test_a_killed_retry_can_be_repeated(each_moment: Each) -> None:
    """All failed and dead requests wait exactly once, and nothing else waits."""
    for _, live in each_moment(
        lambda live: end_badly(HandWorker(live, "worker"), 3), "retry", "--all", "--yes"
    ):
        census = peek(live.redis, live.crawl).census
        assert (census.waiting, census.failed, census.dead) == (6, 0, 0)


def test_a_killed_limit_can_be_repeated(each_moment: Each) -> None:
    """After the second command, the limit is set."""
    limited = each_moment(
        lambda live: HandWorker(live, "worker"), "limit", "--site", HOST, "--delay", "2", "--concurrency", "3"
    )
    for dq, _ in limited:
        found = dq.found("limit", "--site", HOST)
        assert (found["delay_s"], found["concurrency"]) == (2, 3)


def begun(live: LiveFrontier) -> None:
    worker = HandWorker(live, "worker", IDENTITY)
    worker.exchange(*(put(n, admission=Admission.SEEN) for n in range(3)))
    worker.leave()


def test_a_killed_clear_can_be_repeated(each_moment: Each) -> None:
    """After the second command, no key is left."""
    for _, live in each_moment(begun, "clear", "--all", "--yes"):
        assert not live.redis.keys(live.key("*"))
