"""Keys, arguments and lengths of the Lua files match their headers and callers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import pytest
import redis

from scrapy_dq.frontier import Overview, forget, keys, limit
from scrapy_dq.frontier.admin.backlog import sizes, upcoming
from scrapy_dq.frontier.admin.control import Command, steer
from scrapy_dq.frontier.admin.drop import drop
from scrapy_dq.frontier.admin.retry import retry_records
from scrapy_dq.frontier.admin.seen import is_seen
from scrapy_dq.frontier.answers import Figures
from scrapy_dq.frontier.archive.move import _freeze
from scrapy_dq.frontier.archive.new_crawl import NewCrawl
from scrapy_dq.frontier.calls import Exchange, Rejoin
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.model import Census, FrontierUnavailable, Identity, Order, Parentless, Seeding
from scrapy_dq.frontier.scan import Found
from scrapy_dq.frontier.scripts import library, lua_files, parts, source
from support.redis_server import RedisServer

LUA = lua_files()
CODE = {name: re.sub(r"--.*", "", text) for name, text in LUA.items()}
DEFINED = {
    name: {
        each
        for names in re.findall(r"^local (?:function )?([\w, ]*\w)", text, re.M)
        for each in names.split(", ")
    }
    for name, text in CODE.items()
}
"""The locals of the top level of each file."""
SCRIPTS = sorted(lua_files("transitions"))
READ_ONLY = ["known", "sizes", "upcoming"]
"""Scripts that only read. Commands call them."""
MOVES = (
    "put", "ack", "release", "decline", "bury", "fail", "again", "defer", "settle", "sent", "block", "gone",
    "lease", "offer", "claim", "abandon",
)  # fmt: skip


CALLS: dict[str, tuple[Any, ...]] = {
    "join": ("id", {}, "epoch", Identity("", "", "")),
    "rejoin": (
        Rejoin("new", "old", "epoch", 0, [], Parentless.NONE, Seeding.ACTIVE),
        {},
        Identity("", "", ""),
    ),
    "exchange": (Exchange("id", "epoch", 0, 1, 0, Seeding.DONE, 0, b"\x90"),),
    "fence": ("id", "epoch", 0),
    "drain": ("id", "epoch", 0, 1, 1),
    "note_shards": ("epoch", 0),
    "leave": ("id", "epoch", 0, False),
    "beats": ("id", "epoch"),
    "beat": ("id", "epoch"),
    "report": ("id", "epoch", True, Figures(), 0.0),
    "adopt": ("epoch", 0, "a", 1, []),
    "flush": ([], False, b""),
    "members": (),
    "notices": (),
    "tally": ("source", "epoch", 0, 1, b"\x90"),
    "sweep": (1.0,),
    "purge": (Found([], [], []),),
    "audit": ("epoch", 0, [], []),
}
SCRIPT_OF = {"beats": "beat", "members": "overview", "note_shards": "shards"}


SAID = "and the arguments of described.lua"
"""In a header, this stands for the arguments that `described(n)` in `described.lua` reads from ARGV[n] on."""


def header_of(name: str) -> str:
    """Return the comment that states the contract of a transition or a move."""
    found = re.search(
        rf"^-- {name}: (?:(?!-- [a-z]+: |-- @).*\n)*?-- ARGS .*(?:\n--.*)*",
        "\n".join(LUA.values()),
        re.MULTILINE,
    )
    assert found, f"{name} states no ARGS"
    return found[0]


def stated_args(name: str) -> list[str]:
    """Return the names after ARGS in the header of a transition or move, without remarks in brackets."""
    _, _, rest = header_of(name).partition("\n-- ARGS")
    text = re.sub(r"\n-- +", " ", rest.partition("\n-- RETURNS")[0])
    while "(" in text:
        text = re.sub(r"\([^()]*\)", "", text)
    if text.strip().endswith(SAID):
        said = re.search(r"local FIELDS = {([^}]*)}", LUA["described"])
        assert said
        text = text.replace(SAID, ", ".join(re.findall(r"\w+", said[1])))
    return [] if text.strip() == "none" else [part.strip() for part in text.split(",")]


def test_only_one_lua_file_makes_key_names() -> None:
    """Only keys.lua reads KEYS and makes names with the prefix."""
    for name, text in LUA.items():
        if name != "keys":
            assert "KEYS[" not in text
            assert "prefix" not in re.sub(r"--.*", "", text)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_transition_uses_the_arguments_that_it_states(name: str) -> None:
    """A script uses each ARGV that ARGS names, and no other. The locals have the same names."""
    code = re.sub(r"--.*", "", LUA[name])
    used = {int(i) for i in re.findall(r"ARGV\[(\d+)\]", code)}
    args = stated_args(name)
    for first in re.findall(r"described\((\d+)\)", code):
        used |= set(range(int(first), len(args) + 1))
    assert used == set(range(1, len(args) + 1))
    for names, values in re.findall(r"^local ([\w, ]+) = ((?:[^=\n]*ARGV\[\d+\][^=\n]*,?\n?)+)", code, re.M):
        numbers = [int(i) for i in re.findall(r"ARGV\[(\d+)\]", values)]
        if len(numbers) == len(names.split(",")):
            assert [args[i - 1] for i in numbers] == [n.strip() for n in names.split(",")]


@pytest.mark.parametrize("name", MOVES)
def test_a_move_takes_the_arguments_that_it_states(name: str) -> None:
    """ARGS names the parameters of the function that makes the move, in order."""
    signature = re.search(rf"^local function {name}\((.*)\)", "\n".join(LUA.values()), re.MULTILINE)
    assert signature
    assert stated_args(name) == signature[1].split(", ")


def test_one_file_defines_the_position_of_each_field_of_a_move() -> None:
    """All other files use the fields by name."""
    assert [name for name, text in LUA.items() if re.search(r"\bmove\[", text)] == ["endings"]


class _NoReply:
    """A client that loses every reply and records the calls."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []

    def evalsha(self, *args: Any) -> None:
        self.sent.append(args)
        raise redis.ConnectionError("the reply is lost")

    fcall = evalsha

    def hmget(self, *_: Any) -> list[bytes | None]:
        return [b"epoch", None]


HOME = keys.Shard("a crawl", keys.HOME)
COMMANDS: dict[str, Callable[[Any], Any]] = {
    "sizes": lambda client: sizes(client, "a crawl", 10),
    "upcoming": lambda client: upcoming(client, "a crawl", 10),
    "limit": lambda client: limit(client, "a crawl", "a.example"),
    "known": lambda client: is_seen(client, "a crawl", b"token", b"", b""),
    "steer": lambda client: steer(client, "a crawl", Command.PAUSE),
    "retry": lambda client: retry_records(client, HOME, Overview("open", "epoch", 0, Census(), [])),
    "forget": lambda client: forget(client, "a crawl", []),
    "drop": lambda client: drop(client, "a crawl", "a.example"),
    "load": lambda client: asyncio.run(NewCrawl([frontier_of(client)], b"epoch").store(0, "seen", [])),
    "freeze": lambda client: asyncio.run(_freeze(frontier_of(client), "epoch", 1)),
}


def frontier_of(client: Any) -> Frontier:
    return Frontier(client, "a crawl", Order.FIFO)


def call(client: Any, name: str) -> None:
    if name in COMMANDS:
        COMMANDS[name](client)
    else:
        asyncio.run(getattr(frontier_of(client), name)(*CALLS[name]))


@pytest.mark.parametrize("name", [*CALLS, *COMMANDS])
def test_a_call_passes_the_arguments_that_its_script_states(name: str) -> None:
    """A call passes all fixed keys, and as many arguments as the header of its Lua file names."""
    client = _NoReply()
    with pytest.raises((FrontierUnavailable, redis.ConnectionError)):
        call(client, name)
    ((_, count, *rest),) = client.sent
    declared, args = rest[:count], rest[count:]
    assert declared == [*keys.fixed("a crawl")]
    assert len(args) == len(stated_args(SCRIPT_OF.get(name, name)))


def test_every_transition_has_a_typed_call() -> None:
    """Each script has a method or a command that calls it, and each method and command has a script."""
    called = {*(SCRIPT_OF.get(method, method) for method in CALLS), *COMMANDS, "probe"}
    assert called == set(SCRIPTS)


@pytest.mark.parametrize("name", sorted(LUA))
def test_a_lua_file_is_short_and_opens_with_its_name(name: str) -> None:
    """A Lua file has at most 240 lines of at most 120 characters. Its first line begins with its name."""
    lines = LUA[name].splitlines()
    assert len(lines) <= 240
    assert max(map(len, lines)) <= 120
    opening = name.replace("_", " ").replace("seen", "seen kind")
    assert re.sub(r"\W+", " ", lines[0]).startswith(f" {opening} ")


@pytest.mark.parametrize("name", [*(each for each in SCRIPTS if each not in READ_ONLY), *MOVES, "finish"])
def test_a_transition_states_its_cost_and_what_a_crash_leaves(name: str) -> None:
    """The header of a move, or of a script that changes something, has RETURNS, COST and CRASH."""
    for word in ("RETURNS", "COST", "CRASH"):
        assert re.search(rf"^-- {word} +\S", header_of(name), re.MULTILINE), word


@pytest.mark.parametrize("name", sorted(LUA))
def test_a_lua_file_includes_what_it_calls(name: str) -> None:
    """A file that calls a function of another file includes that file, directly or indirectly."""
    functions = {
        each
        for file in set(LUA) - set(SCRIPTS)
        for each in re.findall(r"^local function (\w+)", CODE[file], re.M)
    }
    own = set(re.findall(r"local function (\w+)", CODE[name]))
    called = functions & set(re.findall(r"(?<![\w.])(\w+)\(", CODE[name])) - own
    assert not called.difference(*(DEFINED[part] for part in parts(name)))


@pytest.mark.parametrize("name", sorted(LUA))
def test_a_lua_file_includes_only_what_it_uses(name: str) -> None:
    """Each call of a script creates its functions, so unused functions cost time.

    Two files are exempt: scripts use the kinds of seen in `base` through a table, and each script calls
    `stopped`.
    """
    included = re.search("^-- @include (.*)$", LUA[name], re.MULTILINE)
    for file in included[1].split() if included and name != "base" else ():
        others = {part for other in included[1].split() if other != file for part in parts(other)}
        only_here = {each for part in parts(file) if part not in others for each in DEFINED[part]}
        assert only_here & set(re.findall(r"\w+", CODE[name])) or file in ("base", "stopped"), file


@pytest.mark.parametrize("script", SCRIPTS)
def test_no_two_files_of_a_script_define_the_same_name(script: str) -> None:
    """If two files defined the same name, their order would decide which definition a third file uses."""
    names = [name for part in parts(script)[:-1] for name in DEFINED[part]]
    assert len(names) == len(set(names))


def test_every_lua_file_is_part_of_a_script() -> None:
    """No Lua file is unused."""
    assert {part for name in SCRIPTS for part in parts(name)} == set(LUA)


def test_every_script_compiles(redis_server: RedisServer) -> None:
    """The exchange must also compile as a script, in which at most 200 locals are allowed."""
    with redis_server.client() as client:
        for name in SCRIPTS:
            client.script_load(source(name))


def test_scripts_begin_with_the_flag_that_dragonfly_reads() -> None:
    """Dragonfly looks for the flag at the start of a script. A library must begin with its name instead."""
    assert {source(name).partition("\n")[0] for name in SCRIPTS} == {"--!df flags=allow-undeclared-keys"}
    name, text = library("exchange")
    assert text.partition("\n")[0] == f"#!lua name={name}"
