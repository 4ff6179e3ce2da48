"""kill -9 of a command before each of the commands that it sends to Redis; run again, the crawl is whole."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import count
from typing import Any

import pytest
import redis.asyncio.connection
import redis.connection

from commands.conftest import Dq
from commands.test_failures import end_badly
from commands.test_push import HOST, OWN, SPIDERS
from scrapy_dq.frontier import peek
from scrapy_dq.frontier.model import Admission, Order
from support.live_frontier import IDENTITY, HandWorker, LiveFrontier, put
from support.redis_server import RedisServer

MOST = 200
"""Commands that no command of ours sends."""


def killed_before(number: int, call: Callable[[], object]) -> bool:
    """Make *call* in a child that is killed before it sends command *number*; tell whether it was."""
    child = os.fork()
    if child == 0:
        try:
            sent = count(1)

            def counted(send: Callable[..., Any]) -> Callable[..., Any]:
                def send_or_die(*args: Any, **options: Any) -> Any:
                    if next(sent) == number:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return send(*args, **options)

                return send_or_die

            for module in (redis.connection, redis.asyncio.connection):
                cls: Any = module.AbstractConnection  # type: ignore[attr-defined]
                cls.send_packed_command = counted(cls.send_packed_command)
            call()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    killed = os.WIFSIGNALED(status)
    assert killed or os.waitstatus_to_exitcode(status) == 0
    return killed


@pytest.fixture
def each_moment(
    server: RedisServer, crawl_name: str, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Iterator[tuple[Dq, LiveFrontier]]]:
    """Return a function that kills a command at one moment after the other, each time in a crawl of its own.

    Its arguments: what makes the crawl, from a `LiveFrontier`, and the command's words and settings. What it
    yields is a crawl in which the command was killed, and then run again to its end.
    """

    def each(
        make: Callable[[LiveFrontier], object], *words: str, **settings: Any
    ) -> Iterator[tuple[Dq, LiveFrontier]]:
        for number in range(1, MOST):
            with closing(LiveFrontier(server.url, f"{crawl_name}-{number}", Order.PRIORITY_LIFO)) as live:
                make(live)
                dq = Dq(server.url, live.crawl, capsys)
                killed = killed_before(number, lambda dq=dq: dq.text(*words, **settings))  # type: ignore[misc]
                if killed and live.key_names():  # of a crawl that is deleted nothing may be left
                    dq.text(*words, **settings)
                yield dq, live
                if not killed:
                    assert number > 2, "nothing was ever sent"
                    return
        raise AssertionError(f"it is never through: {words}")

    return each


Each = Callable[..., Iterator[tuple[Dq, LiveFrontier]]]


def test_push(each_moment: Each) -> None:
    """Each request waits once."""
    urls = [f"{HOST}/{n}" for n in range(5)]
    pushed = each_moment(
        lambda live: HandWorker(live, "worker", OWN), "push", "pushed", *urls, "--no-wait", **SPIDERS
    )
    for dq, _ in pushed:
        assert sorted(each["request"]["url"] for each in dq.listed("peek")) == urls


def test_push_of_what_was_already_seen(each_moment: Each) -> None:
    """With --dont-filter what the first one has handed in is pushed a second time, and no more than that."""
    urls = [f"{HOST}/{n}" for n in range(5)]
    words = ("push", "pushed", *urls, "--no-wait", "--dont-filter")
    for dq, _ in each_moment(lambda live: HandWorker(live, "worker", OWN), *words, **SPIDERS):
        found = [each["request"]["url"] for each in dq.listed("peek", "-n", "100")]
        assert sorted(found) in (urls, sorted(urls * 2))


def test_retry(each_moment: Each) -> None:
    """What had failed waits, once, and nothing else does."""
    for _, live in each_moment(
        lambda live: end_badly(HandWorker(live, "worker"), 3), "retry", "--all", "--yes"
    ):
        census = peek(live.redis, live.crawl).census
        assert (census.waiting, census.failed, census.dead) == (6, 0, 0)


def test_limit(each_moment: Each) -> None:
    """It holds."""
    limited = each_moment(
        lambda live: HandWorker(live, "worker"), "limit", HOST, "--delay", "2", "--concurrency", "3"
    )
    for dq, _ in limited:
        found = dq.found("limit", HOST)
        assert (found["delay_s"], found["concurrency"]) == (2, 3)


def begun(live: LiveFrontier) -> None:
    worker = HandWorker(live, "worker", IDENTITY)
    worker.exchange(*(put(n, admission=Admission.SEEN) for n in range(3)))
    worker.leave()


def test_clear(each_moment: Each) -> None:
    """No key is left."""
    for _, live in each_moment(begun, "clear", "--yes"):
        assert not live.redis.keys(live.key("*"))
