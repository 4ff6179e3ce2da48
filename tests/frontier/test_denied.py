"""A Redis user lacks the right to some commands. A join fails, and its error names these commands.

If a right is taken away during a crawl, at most one exchange stops midway. Later exchanges are refused before
they write.
"""

from __future__ import annotations

import re
from contextlib import closing

import pytest

from scrapy_dq.frontier import scripts
from scrapy_dq.frontier.model import FrontierRefused, Order, StartKeys
from support.live_frontier import HandWorker, LiveFrontier, ack, fail, limited, numbers, put, release
from support.redis_server import RedisServer
from support.torn import crawl_on, filled, repeat

OPTIONS = {"CREATE", "COUNT", "GROUP", "STREAMS", "NOGROUP"}
"""Words in the Lua files that look like commands, but are options of stream commands, or an error."""


def commands_in_lua() -> set[str]:
    """Return all Redis commands that the Lua files name."""
    found: set[str] = set()
    for name, lua in scripts.lua_files().items():
        text = re.sub(r"--.*", "", lua)
        if name != "rights":
            found |= set(re.findall(r"'([A-Z]{3,})'", text))
    no_commands = {
        "LOST", "RESYNC", "FINISHED", "ABSENT", "LIVE", "DIFFERS", "KIND", "DENIED",
        "STRANGE", "WRONGTYPE", "ERR", "LIMIT", "AGGREGATE", "MAX", "WITHSCORES", "WITHVALUES", "COUNT",
        "OTHER", "CHANGED", "GAP", "LATER", "MOVING",
    }  # fmt: skip
    return found - no_commands - OPTIONS - {"INFO"}  # without INFO, the history has no memory usage


def test_every_command_of_the_scripts_is_tried(live: LiveFrontier) -> None:
    """The probe of a Redis user's rights tries exactly the commands that the scripts use.

    A script could stop midway at a command that the probe does not try.
    """
    rights = scripts.lua_files()["rights"]
    assert commands_in_lua() == set(re.findall(r"'([A-Z]{3,})'", rights)) - OPTIONS - {"NOPERM"}


@pytest.mark.parametrize("command", sorted(commands_in_lua()))
def test_a_command_that_is_refused_is_named_before_anything_is_written(
    redis_server: RedisServer, crawl_name: str, command: str
) -> None:
    """The error of the join names the command, and Redis then holds no key of the crawl."""
    fed = StartKeys("stream", (f"{crawl_name}:fed",), b"m")
    with redis_server.client() as admin:
        name = re.sub(r"\W", "_", crawl_name)
        rights = ["~*", "+@all", f"-{command.lower()}"]
        admin.execute_command("ACL", "SETUSER", name, "on", ">password", *rights)
        url = redis_server.url.replace("redis://", f"redis://{name}:password@")
        try:
            with closing(LiveFrontier(redis_server.url, crawl_name)) as cleaner:
                refused = LiveFrontier(url, crawl_name, start_keys=fed)
                with pytest.raises(FrontierRefused, match=rf"\b{command}\b.*ACL SETUSER"):
                    HandWorker(refused, "worker")
                assert cleaner.key_names() == set()
                admin.execute_command("ACL", "SETUSER", name, f"+{command.lower()}")
                HandWorker(refused, "worker").leave()
        finally:
            admin.execute_command("ACL", "DELUSER", name)


def test_stream_commands_are_needed_only_if_a_stream_feeds_the_crawl(
    redis_server: RedisServer, crawl_name: str
) -> None:
    """A Redis user without stream commands can still run a crawl without streams."""
    name = re.sub(r"\W", "_", crawl_name)
    with redis_server.client() as admin:
        admin.execute_command("ACL", "SETUSER", name, "on", ">password", "~*", "+@all", "-@stream")
        url = redis_server.url.replace("redis://", f"redis://{name}:password@")
        try:
            for start_keys in (None, StartKeys("list", (f"{crawl_name}:fed",), b"m")):
                with closing(LiveFrontier(url, crawl_name, start_keys=start_keys)) as live:
                    worker = HandWorker(live, "worker")
                    assert numbers(worker.exchange(put(1), want=1)) == [1]
                    live.frontier._denied = True  # so that all commands are probed
                    assert worker.exchange(ack(1)).census.done == 1
        finally:
            admin.execute_command("ACL", "DELUSER", name)


TAKEN_AWAY = ("rpush", "zadd", "hset", "lpush", "hdel", "sadd", "ltrim", "zrem", "hincrby")


@pytest.mark.parametrize("command", TAKEN_AWAY)
def test_at_most_one_exchange_stops_midway_after_a_right_is_taken_away(
    redis_server: RedisServer, crawl_name: str, command: str
) -> None:
    """Until the user has the right again, repeats of the refused exchange write nothing."""
    with redis_server.client() as admin:
        name = re.sub(r"\W", "_", crawl_name)
        admin.execute_command("ACL", "SETUSER", name, "on", ">password", "~*", "+@all")
        url = redis_server.url.replace("redis://", f"redis://{name}:password@")
        try:
            with closing(LiveFrontier(url, crawl_name, Order.FIFO)) as live:
                worker, held = filled(live, limited(0.0, 10))
                worker.exchange(release(held[0]))
                moves = [put(50, partition=b"new"), put(51, due_in=5), fail(held[1]), ack(held[2])]
                admin.execute_command("ACL", "SETUSER", name, f"-{command}")
                with pytest.raises(FrontierRefused):
                    worker.exchange(*moves, want=4)
                before = live.dump()
                for _ in range(3):
                    with pytest.raises(FrontierRefused, match=command.upper()):
                        worker.send(worker.last)
                assert live.dump() == before
                admin.execute_command("ACL", "SETUSER", name, f"+{command}")
                repeat(worker, moves)
                crawl_on(live, worker, [*range(12), 50, 51], held)
        finally:
            admin.execute_command("ACL", "DELUSER", name)
