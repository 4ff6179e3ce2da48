"""The Lua files keep their word: keys, arguments and length are what headers and callers say."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
import redis

from scrapy_dq.frontier import Overview, forget, keys
from scrapy_dq.frontier.admin.backlog import names_beside, sizes, upcoming
from scrapy_dq.frontier.admin.control import Word, steer
from scrapy_dq.frontier.admin.drop import drop
from scrapy_dq.frontier.admin.retry import retry_records
from scrapy_dq.frontier.admin.seen import is_seen
from scrapy_dq.frontier.archive.move import _freeze
from scrapy_dq.frontier.archive.new_crawl import NewCrawl
from scrapy_dq.frontier.calls import Exchange, Rejoin
from scrapy_dq.frontier.frontier import Frontier, Identity
from scrapy_dq.frontier.model import Census, Figures, FrontierUnavailable, Order, Parentless, Seeding
from scrapy_dq.frontier.scan import Found
from scrapy_dq.frontier.scripts import library, lua_files, parts, source
from support.lua_names import names_of
from support.redis_server import RedisServer

LUA = lua_files()
NAMES = {name: names_of(text) for name, text in LUA.items()}
SCRIPTS = sorted(lua_files("transitions"))
LOOKS = ["known", "present", "sizes", "upcoming"]
"""Read-only scripts, for commands."""
BY_HAND = ["drop", "forget", "retry", "steer"]
"""Scripts that write, for commands only."""
GIVEN = {"each_call", "stopped"}
"""What scripts.py defines for each script."""
MOVES = ("put", "ack", "release", "bury", "fail", "again", "defer", "sent", "block", "lease", "claim")


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
    "flush": ([],),
    "limit": (b"partition",),
    "members": (),
    "notices": (),
    "tally": ("source", "epoch", 0, 1, b"\x90"),
    "sweep": (1.0,),
    "purge": (Found([], [], []),),
    "audit": ("epoch", 0, [], []),
}
SCRIPT_OF = {"beats": "beat", "members": "overview", "note_shards": "shards"}


SAID = "and those of described.lua"
"""In a header: what `described.lua` reads from ARGV[n] on, as `described(n)`."""


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
        said = re.search(r"local SAID = {([^}]*)}", LUA["described"])
        assert said
        text = text.replace(SAID, ", ".join(re.findall(r"\w+", said[1])))
    return [] if text.strip() == "none" else [part.strip() for part in text.split(",")]


def test_keys_have_the_same_names_in_lua_and_python(redis_server: RedisServer) -> None:
    """keys.lua and keys.py state the same keys."""
    families = (
        "local names = {} for _, each in pairs(key) do names[#names + 1] = each end"
        " return {names, {backlog_key('<rank>', '<partition>'), worker_key('<id>'), in_flight_key('<id>'),"
        " bucket_key('<generation>', '<n>')}}"
    )
    script = "\n".join(("local function each_call(set) set() end", LUA["keys"], families))
    with redis_server.client() as client:
        fixed, made = client.eval(script, len(keys.FIXED), *keys.fixed("a crawl"))
    prefix = keys.prefix("a crawl")
    assert sorted(name.decode() for name in fixed) == sorted(keys.fixed("a crawl"))
    stated = [key.name for key in keys.KEYS if "<" in key.name]
    assert [name.decode().removeprefix(prefix) for name in made] == stated


def test_the_only_key_names_in_lua_are_made_in_one_file() -> None:
    """No other file knows what a key is called."""
    for name, text in LUA.items():
        if name != "keys":
            assert "KEYS[" not in text
            assert "prefix" not in re.sub(r"--.*", "", text)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_transition_uses_the_arguments_that_it_states(name: str) -> None:
    """ARGV[1] to ARGV[n] are all used, where n names stand after ARGS; names of locals agree."""
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
    """All others have them by name."""
    assert [name for name, text in LUA.items() if re.search(r"\bmove\[", text)] == ["endings"]


class _NoReply:
    """A client whose every reply is lost; it keeps what was sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []

    async def hget(self, *args: Any) -> None:
        """Have nothing."""

    async def evalsha(self, *args: Any) -> None:
        self.sent.append(args)
        raise redis.ConnectionError("the reply is lost")

    fcall = evalsha


@pytest.mark.parametrize("method", CALLS)
def test_a_typed_call_passes_the_arguments_that_its_script_states(method: str) -> None:
    """All fixed keys, and as many arguments as the header of the Lua file names."""
    client = _NoReply()
    frontier = Frontier(client, "a crawl", Order.FIFO)
    with pytest.raises(FrontierUnavailable):
        asyncio.run(getattr(frontier, method)(*CALLS[method]))
    ((_, count, *rest),) = client.sent
    declared, args = rest[:count], rest[count:]
    assert declared == [*keys.fixed("a crawl")]
    assert len(args) == len(stated_args(SCRIPT_OF.get(method, method)))


HOME = keys.Shard("a crawl", keys.HOME)
BLOCKING_CALLS: dict[str, Any] = {
    "sizes": lambda client: sizes(client, "a crawl", 10),
    "upcoming": lambda client: upcoming(client, "a crawl", 10),
    "present": lambda client: names_beside(client, "a crawl", "a.example"),
    "known": lambda client: is_seen(client, "a crawl", b"token", b"", b""),
    "steer": lambda client: steer(client, "a crawl", Word.PAUSE),
    "retry": lambda client: retry_records(client, HOME, Overview("open", "epoch", 0, Census(), [])),
    "forget": lambda client: forget(client, "a crawl", []),
    "drop": lambda client: drop(client, "a crawl", "a.example"),
}


MOVING_CALLS: dict[str, Any] = {
    "load": lambda frontier: NewCrawl([frontier], b"epoch").store(0, "seen", []),
    "freeze": lambda frontier: _freeze(frontier, "epoch", 1),
}


@pytest.mark.parametrize("name", MOVING_CALLS)
def test_a_call_of_a_move_passes_the_arguments_that_its_script_states(name: str) -> None:
    """As a transition does."""
    client = _NoReply()
    with pytest.raises(FrontierUnavailable):
        asyncio.run(MOVING_CALLS[name](Frontier(client, "a crawl", Order.FIFO)))
    ((_, number, *rest),) = client.sent
    declared, args = rest[:number], rest[number:]
    assert declared == [*keys.fixed("a crawl")]
    assert len(args) == len(stated_args(name))


class _NoReplyToLooks(_NoReply):
    """The same for blocking calls."""

    def evalsha(self, *args: Any) -> None:  # type: ignore[override]
        self.sent.append(args)
        raise redis.ConnectionError("the reply is lost")

    def hget(self, *_: Any) -> bytes:
        return b"fifo"

    def hmget(self, *_: Any) -> list[bytes | None]:
        return [b"epoch", None]


@pytest.mark.parametrize("name", [*LOOKS, *BY_HAND])
def test_a_blocking_call_passes_the_arguments_that_its_script_states(name: str) -> None:
    """As a transition does."""
    client = _NoReplyToLooks()
    with pytest.raises(redis.ConnectionError):
        BLOCKING_CALLS[name](client)
    ((_, count, *rest),) = client.sent
    declared, args = rest[:count], rest[count:]
    assert declared == [*keys.fixed("a crawl")]
    assert len(args) == len(stated_args(name))


def test_every_transition_has_a_typed_call() -> None:
    """No script without a method, no method without a script."""
    called = {*(SCRIPT_OF.get(method, method) for method in CALLS), *MOVING_CALLS, *BLOCKING_CALLS, "probe"}
    assert called == set(SCRIPTS)


@pytest.mark.parametrize("name", sorted(LUA))
def test_a_lua_file_is_short_and_opens_with_its_name(name: str) -> None:
    """At most 240 lines of at most 120 characters; the first says what it is."""
    lines = LUA[name].splitlines()
    assert len(lines) <= 240
    assert max(map(len, lines)) <= 120
    opening = name.replace("_", " ").replace("seen", "seen kind")
    assert re.sub(r"\W+", " ", lines[0]).startswith(f" {opening} ")


@pytest.mark.parametrize("name", [*(each for each in SCRIPTS if each not in LOOKS), *MOVES, "finish"])
def test_a_transition_says_what_it_costs_and_what_a_crash_leaves(name: str) -> None:
    """Each file that moves something states its promise."""
    for word in ("RETURNS", "COST", "CRASH"):
        assert re.search(rf"^-- {word} +\S", header_of(name), re.MULTILINE), word


@pytest.mark.parametrize("name", sorted(LUA))
def test_a_lua_file_takes_only_what_its_scripts_define_before_it(name: str) -> None:
    """Every name is local to a file that it includes, or that one of these includes."""
    assert not NAMES[name][1].difference(GIVEN, *(NAMES[part][0] for part in parts(name)[:-1]))


@pytest.mark.parametrize("name", sorted(LUA))
def test_a_lua_file_includes_what_it_uses(name: str) -> None:
    """Each call of a script creates its functions, so unused ones cost time.

    `base` brings the kinds of seen, which other files use by a table, and `stopped` is called by each script.
    """
    included = re.search("^-- @include (.*)$", LUA[name], re.MULTILINE)
    for file in included[1].split() if included and name != "base" else ():
        others = {part for other in included[1].split() if other != file for part in parts(other)}
        only_here = {each for part in parts(file) if part not in others for each in NAMES[part][0]}
        assert only_here & NAMES[name][1] or file in ("base", "stopped"), file


@pytest.mark.parametrize("script", SCRIPTS)
def test_no_two_files_of_a_script_define_the_same_name(script: str) -> None:
    """Which one a third file means would depend on the order of the files."""
    names = [name for part in parts(script)[:-1] for name in NAMES[part][0]]
    assert len(names) == len(set(names))


LUA_TEXTS = {
    "local a = a; b(a)": ("a", "a b"),
    "local a, b c(a)": ("a b", "c"),
    "local a, b = f(a, function() return b end), b c(a)": ("a b", "a b c f"),
    "local function f(x, ...) return f(x, y) end": ("f", "y"),
    "function t.f(x) u = x end": ("", "t u"),
    "local t = { k = v, ['w'] = { k, l = 'it' } } -- z": ("t", "k v"),
    "for i, v in pairs(i) do v = i end v()": ("", "i v"),
    "for i = 1, n do local m = i end m.x:y(z)": ("", "m n z"),
    "repeat local x = 1 until x > y x()": ("", "x y"),
    "if a then local b = 1 elseif b then c = b else b = c end": ("", "a b c"),
    "while a do local a = a end do local d end d = nil": ("", "a d"),
}


@pytest.mark.parametrize("text", LUA_TEXTS)
def test_names_are_found_by_scope(text: str) -> None:
    """A local is visible after its statement, up to the end of its block."""
    assert names_of(text) == tuple(set(names.split()) for names in LUA_TEXTS[text])


def test_every_lua_file_is_part_of_a_script() -> None:
    """No dead Lua."""
    assert {part for name in SCRIPTS for part in parts(name)} == set(LUA)


def test_every_script_compiles(redis_server: RedisServer) -> None:
    """Also the exchange, which is a function where Redis has these: a script may have 200 locals."""
    with redis_server.client() as client:
        for name in SCRIPTS:
            client.script_load(source(name))


def test_scripts_begin_with_the_flag_that_dragonfly_reads() -> None:
    """Dragonfly searches the beginning of a script for it; a library has to begin with its name."""
    assert {source(name).partition("\n")[0] for name in SCRIPTS} == {"--!df flags=allow-undeclared-keys"}
    name, text = library("exchange")
    assert text.partition("\n")[0] == f"#!lua name={name}"
