"""The exchange runs as a Redis function, or as a script if Redis has no functions or refuses them."""

from __future__ import annotations

import re
from contextlib import closing

import pytest
import redis

from scrapy_dq.frontier.model import FrontierUnavailable, Seen
from scrapy_dq.frontier.scripts import Function, lua_files, parts
from support.live_frontier import HandWorker, LiveFrontier, ack, numbers, puts
from support.redis_server import RedisServer

EXCHANGE = Function("exchange")


@pytest.fixture
def functions(live: LiveFrontier) -> None:
    """Skip a test on a Redis without functions."""
    try:
        live.redis.function_list()
    except redis.ResponseError:
        pytest.skip("this Redis has no functions")


def calls(live: LiveFrontier) -> dict[str, int]:
    """Return for each command how often it was called or refused."""
    found = live.redis.info("commandstats")
    return {
        name.removeprefix("cmdstat_"): each["calls"] + each.get("rejected_calls", 0)
        for name, each in found.items()
    }


@pytest.mark.usefixtures("functions", "sound")
def test_a_library_that_is_not_there_is_loaded(live: LiveFrontier, worker: HandWorker) -> None:
    """If a user deletes the library during the crawl, the next exchange loads it again."""
    worker.exchange(*puts(b"", 3))
    live.redis.function_delete(EXCHANGE.name)
    assert numbers(worker.exchange(want=1)) == [0]
    assert live.redis.function_list(library=EXCHANGE.name)
    before = calls(live)
    assert numbers(worker.exchange(ack(0), want=2)) == [1, 2]
    after = calls(live)
    assert after["fcall"] == before["fcall"] + 1
    assert after.get("function|load") == before.get("function|load")


@pytest.mark.usefixtures("functions")
def test_a_function_call_keeps_no_state_of_the_previous_one(
    live: LiveFrontier, worker: HandWorker, redis_server: RedisServer, crawl_name: str
) -> None:
    """The previous call may belong to another crawl, or an error may have stopped it."""
    with closing(LiveFrontier(redis_server.url, f"{crawl_name} 2", live.order, Seen.EXACT)) as second:
        theirs = HandWorker(second, "theirs")
        for n in range(0, 9, 3):
            assert numbers(worker.exchange(*puts(b"a", 3, n), want=3)) == [n, n + 1, n + 2]
            theirs.exchange(*puts(b"b", 1, n))
            second.redis.set(second.key("rotation"), "of another type")
            with pytest.raises(Exception, match="another type"):
                theirs.exchange(want=1)
            second.redis.delete(second.key("rotation"))
        assert len(worker.held) == 9
        live.state()


@pytest.mark.usefixtures("functions", "sound")
@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("fcall", "unknown command 'FCALL', with args beginning with: 'dq_exchange_1'"),
        ("fcall", "This command is not supported by this service"),
        ("fcall", "NOPERM this user has no permissions to run the 'fcall' command"),
        ("fcall", "Function not found"),  # a proxy has loaded the library into another server
        ("function_load", "Command is not available: 'FUNCTION'"),
        ("function_load", "Error compiling function"),
        ("function_load", "NOPERM this user has no permissions to run the 'function|load' command"),
    ],
)
def test_a_script_is_used_if_a_service_refuses_functions(
    live: LiveFrontier, worker: HandWorker, monkeypatch: pytest.MonkeyPatch, command: str, words: str
) -> None:
    """Only the first exchange tries the function. It may load the library, and try a second time."""
    live.redis.function_flush()
    asked = refusing(live, monkeypatch, command, words)
    for n in range(3):
        assert numbers(worker.exchange(*puts(b"", 1, n), want=1)) == [n]
    assert asked == [words] * (1 + (words == "Function not found"))


@pytest.mark.usefixtures("functions", "sound")
def test_an_outage_is_not_taken_for_a_refusal_of_functions(
    live: LiveFrontier, worker: HandWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the outage, functions are called again."""
    with monkeypatch.context() as patch:
        refusing(live, patch, "fcall", "LOADING Redis is loading the dataset in memory")
        with pytest.raises(FrontierUnavailable, match="loading"):
            worker.exchange(*puts(b"", 1))
    before = calls(live)["fcall"]
    assert worker.exchange(*puts(b"", 1)).applied
    assert calls(live)["fcall"] > before


@pytest.mark.usefixtures("functions")
def test_an_error_in_a_function_is_not_taken_for_a_refusal(live: LiveFrontier, worker: HandWorker) -> None:
    """The worker does not call the script instead, because the script would fail with the same error."""
    before = calls(live)
    with pytest.raises(FrontierUnavailable, match="on @user_function"):
        worker.exchange(moves=b"no msgpack")
    assert worker.exchange(*puts(b"", 1)).applied
    after = calls(live)
    assert after["fcall"] > before.get("fcall", 0) + 1
    assert after.get("evalsha", 0) <= before.get("evalsha", 0)


def refusing(live: LiveFrontier, patch: pytest.MonkeyPatch, command: str, words: str) -> list[str]:
    """Make Redis refuse a command with *words*. Return a list that collects the refusals."""
    asked: list[str] = []

    async def refuse(*_: object) -> None:
        asked.append(words)
        raise redis.ResponseError(words)

    patch.setattr(live.frontier.client, command, refuse)
    return asked


CONSTANT = {
    "key_types", "rare_types", "polite_types", "admit",
    # Functions, and locals that hold functions.
    "declined", "count_seen", "seen_count", "count_message", "of_message", "group_of",
    "read_stream", "serve",
}  # fmt: skip


def test_each_call_sets_the_variables_of_a_lua_file_again() -> None:
    """`each_call` sets each top-level local except functions, constants in capitals, and CONSTANT."""
    for name in parts("exchange")[:-1]:
        text = lua_files()[name]
        anew = " ".join(re.findall(r"^each_call\(function\(\)(.*?) = ", text, re.MULTILINE | re.DOTALL))
        for names in re.findall(r"^local (?!function )([\w, ]*\w)", text, re.MULTILINE):
            kept = {each for each in names.split(", ") if not each.isupper()} - CONSTANT
            assert kept <= set(re.findall(r"\w+", anew)), f"{name}.lua: {names}"
