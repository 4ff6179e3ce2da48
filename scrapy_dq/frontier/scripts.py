"""Loads the Lua: one script per transition, built from the files in lua/ by plain concatenation.

The name of a Lua file is unique, whatever its folder. Where Redis has functions (since 7; Valkey), the
exchange is one: then, of the top level of a file, each call runs only lines that are marked with EACH CALL.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Any

from redis.exceptions import NoScriptError, OutOfMemoryError, ResponseError

from scrapy_dq.frontier.errors import moved_to, passes
from scrapy_dq.frontier.model import Seen

_BASE = (
    "keys", "held", "state", "orders", "key_sizes", "discarded", "kinds", "words",
)  # fmt: skip
_COMMON = ("politeness", "budgets", "entry", "bands", "partition")
_SEEN = {
    Seen.EXACT: ("seen_exact",),
    Seen.EXPIRING: ("seen_expiring",),
    Seen.COMPACT: ("buckets", "seen_compact"),
}
_PARTS: dict[str, tuple[str, ...]] = {
    "join": (
        "shared", "starts", "member", "unserved", "limits", "described", "follow", "rights", "journal",
        "replace_limits",
    ),
    "shards": (),
    "rejoin": ("declined", "release", "shared", "starts", "member", "limits", "described", "journal"),
    "exchange": (
        "damage", "moves", "messages", "put", "delayed", "journal", "sent", "block", "notes", "declined",
        "ack", "release", "decline", "bury", "fail", "again", "defer", "settle", "grants", "answer",
        "serve", "in_turn", "lease", "offer", "streams", "claim", "starts", "abandon", "finish",
    ),
    "adopt": (),
    "fence": ("shared", "starts", "journal"),
    "drain": ("messages", "declined", "bury", "starts", "member"),
    "leave": ("declined", "release", "starts", "member", "journal", "samples"),
    "flush": ("starts", "member"),
    "purge": (),
    "limit": ("limits", "block", "journal", "half_moved"),
    "notices": ("journal",),
    "steer": (
        "damage", "messages", "starts", "journal", "declined", "abandon", "finish", "half_moved",
    ),
    "retry": ("messages", "journal", "half_moved"),
    "forget": ("journal", "half_moved"),
    "drop": ("messages", "journal", "half_moved"),
    "freeze": ("messages", "shared"),
    "load": ("messages", "shared", "starts", "member", "limits", "loading"),
    "sweep": (),
    "audit": ("starts", "limits", "recount", "journal"),
    "overview": ("starts",),
    "sizes": (),
    "upcoming": (),
    "present": (),
    "tally": ("rights", "sums"),
    "probe": ("rights",),
}  # fmt: skip
_LEAN = {
    "beat": ("keys", "beats"),
    "report": ("keys", "state", "beats", "journal", "samples"),
}
"""All parts of these: to create the functions of the others takes longer than a beat does itself."""
LOOKS = ("sizes", "upcoming", "present")
"""Read-only scripts, for the command line."""
BY_HAND = ("steer", "retry", "forget", "drop", "freeze", "load")
"""Scripts that write, for the command line only."""
AFTERWARDS = ("probe",)
"""Scripts that run after one that was denied a command."""
TRANSITIONS = (*_LEAN, *(name for name in _PARTS if name not in (*LOOKS, *BY_HAND, *AFTERWARDS)))
_COUNTING = (
    "join", "rejoin", "exchange", "drain", "leave", "steer", "retry", "drop", "load",
)  # fmt: skip
"""Scripts that move entries or members: after an error lib/stopped.lua runs. Others are just repeated."""
_MOST_MOVES = 4
"""How often a call follows MOVED."""
UNDECLARED_KEYS = "--!df flags=allow-undeclared-keys"
"""The first line of a script. Dragonfly needs it, because partitions have keys that no client can declare.

For Redis it is a comment.
"""


@cache
def lua_files() -> dict[str, str]:
    """Return the text of every Lua file, by its name without `.lua`."""
    return {
        file.name.removesuffix(".lua"): file.read_text("utf-8")
        for folder in files("scrapy_dq.frontier").joinpath("lua").iterdir()
        for file in folder.iterdir()
    }


def parts(transition: str, seen: Seen = Seen.EXACT) -> list[str]:
    """Return the names of the Lua files that make up *transition*, in order; see `source`."""
    kinds = (seen,) if transition == "exchange" else Seen
    if transition in _LEAN:
        return [*_LEAN[transition], transition]
    seen_by = [name for kind in kinds for name in _SEEN[kind]]
    tail = ["stopped"] if transition in _COUNTING else []
    return [*_BASE, *_COMMON, *seen_by, *_PARTS[transition], transition, *tail]


@cache
def source(transition: str, seen: Seen = Seen.EXACT) -> str:
    """Return the whole script of *transition*.

    Args:
        seen: the only kind of seen that an exchange supports; all other scripts use the stored kind.
    """
    outer, inner = _scopes(transition, seen)
    if transition not in _COUNTING:
        return "\n".join((UNDECLARED_KEYS, *outer, "return (function()", *inner, "end)()"))
    *inner, main, stopped = inner
    return "\n".join((
        UNDECLARED_KEYS, *outer,
        "local stopped", "local done, reply = pcall(function()", *inner,
        "stopped = function(reply)", stopped, "end", main, "end)",
        "if done then return reply end", "stopped(reply)",
    ))  # fmt: skip


@cache
def library(transition: str, seen: Seen) -> tuple[str, str]:
    """Return the name of a library with one function, which has the same name, and its source.

    The function does what the script does that `source` returns. It creates all Lua functions in its first
    call, and keeps them.
    """
    outer, (*inner, main, stopped) = _scopes(transition, seen)
    text = "\n".join((
        "local KEYS, ARGV, each_call, main, stopped",
        "local function define()", *outer,
        "local function define_others()", *inner,
        "main = function()", main, "end", "stopped = function(reply)", stopped, "end", "end",
        "define_others()", "end",
    ))  # fmt: skip
    text = re.sub(
        "^local (.*?) = (.*) -- EACH CALL.*",
        r"local \1 each_call[#each_call + 1] = function() \1 = \2 end",
        text,
        flags=re.MULTILINE,
    )
    name = f"dq_{transition}_{sha1(text.encode()).hexdigest()[:16]}"
    return name, _LIBRARY.format(name=name, text=text)


_LIBRARY = """\
#!lua name={name}
{text}
redis.register_function('{name}', function(keys, args)
  KEYS, ARGV = keys, args
  if not main then
    each_call = {{}}
    define()
  end
  for _, begin in ipairs(each_call) do begin() end
  local done, reply = pcall(main)
  if done then return reply end
  return stopped(reply)
end)
"""


def _scopes(transition: str, seen: Seen) -> tuple[list[str], list[str]]:
    """Return the texts of a script that come first, and the others.

    To create a closure, Lua searches all captured locals of the enclosing function: those that every function
    needs are in an outer scope. That saves a tenth of the time of an exchange.
    """
    names = parts(transition, seen)
    outer = [lua_files()[name] for name in names if name in _BASE]
    return outer, [lua_files()[name] for name in names if name not in _BASE]


class Script:
    """One transition, called by its digest; its source is sent only if Redis does not have it yet.

    Its keys are those of `keys.fixed`; a join and an exchange have start keys after them.
    """

    def __init__(self, transition: str, seen: Seen = Seen.EXACT) -> None:
        self.source = source(transition, seen)
        self.sha = sha1(self.source.encode()).hexdigest()

    async def call(self, client: Any, keys: Sequence[str], *args: Any) -> Any:
        """Run on a `redis.asyncio` client; errors of redis-py are raised unchanged."""
        for _ in range(_MOST_MOVES):
            try:
                return await self._run(client, keys, args)
            except ResponseError as error:
                if not _leads_elsewhere(error, client):
                    raise
        return await self._run(client, keys, args)

    async def _run(self, client: Any, keys: Sequence[str], args: Sequence[Any]) -> Any:
        try:
            return await client.evalsha(self.sha, len(keys), *keys, *args)
        except NoScriptError:
            return await client.eval(self.source, len(keys), *keys, *args)

    def call_blocking(self, client: Any, keys: Sequence[str], *args: Any) -> Any:
        """Run on a `redis` client; for threads and command lines, never for the event loop."""
        for _ in range(_MOST_MOVES):
            try:
                return self._run_blocking(client, keys, args)
            except ResponseError as error:
                if not _leads_elsewhere(error, client):
                    raise
        return self._run_blocking(client, keys, args)

    def _run_blocking(self, client: Any, keys: Sequence[str], args: Sequence[Any]) -> Any:
        try:
            return client.evalsha(self.sha, len(keys), *keys, *args)
        except NoScriptError:
            return client.eval(self.source, len(keys), *keys, *args)


class Function(Script):
    """A transition that is called as a function of a library, or else as a script.

    A script creates all its Lua functions in each call, which takes a fifth of an exchange.
    """

    def __init__(self, transition: str, seen: Seen = Seen.EXACT) -> None:
        super().__init__(transition, seen)
        self.name, self.library = library(transition, seen)
        self._refused = False

    async def _run(self, client: Any, keys: Sequence[str], args: Sequence[Any]) -> Any:
        if self._refused:
            return await super()._run(client, keys, args)
        try:
            return await self._call_function(client, keys, args)
        except OutOfMemoryError:
            # A function is refused as a whole, a script only at a command that needs memory.
            return await super()._run(client, keys, args)
        except ResponseError as error:
            if passes(error) or "on @user_function:" in str(error):  # an outage, or an error inside it
                raise
        # Redis has no functions, or refuses them to this user: each version and service words that in another
        # way. If it is anything else, the script meets it, too.
        reply = await super()._run(client, keys, args)
        self._refused = True
        return reply

    async def _call_function(self, client: Any, keys: Sequence[str], args: Sequence[Any]) -> Any:
        try:
            return await client.fcall(self.name, len(keys), *keys, *args)
        except ResponseError as error:
            if "Function not found" not in str(error):
                raise
        try:
            await client.function_load(self.library)
        except ResponseError as error:
            if "already exists" not in str(error):  # another worker has just loaded it
                raise
        return await client.fcall(self.name, len(keys), *keys, *args)


def _leads_elsewhere(error: ResponseError, client: Any) -> bool:
    """Tell whether the route of a client now leads to the node that MOVED names (backend/cluster.py)."""
    return moved_to(error) is not None and hasattr(client.connection_pool, "route")
