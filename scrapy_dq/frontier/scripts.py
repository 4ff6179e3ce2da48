"""Builds the Lua scripts: one per file in lua/transitions/, together with the files that it includes.

With the line `-- @include keys state`, a Lua file uses the top-level names of keys.lua and state.lua. A
script contains each file once, after the files that it includes. No two files have the same name, even in
different folders.

The same text serves as a script and, where the server has functions (Redis 7 and later, Valkey), as a
function. A function keeps the locals of a file from one call to the next. So a file whose locals change
resets them in `each_call(function() ... end)`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Any

from redis.exceptions import NoScriptError, OutOfMemoryError, ResponseError

from scrapy_dq.frontier.blocking import at_once, reply_of
from scrapy_dq.frontier.errors import is_transient, moved_to
from scrapy_dq.frontier.keys import FIXED

_MAX_REDIRECTS = 4
"""How many MOVED answers a call follows."""
UNDECLARED_KEYS = "--!df flags=allow-undeclared-keys"
"""The first line of a script. Dragonfly needs it, because partitions have keys that no client can declare.

Redis takes this line for a comment.
"""
_OUTER = "base"
"""This file and the files that it includes form the outer scope of a script. The other files form the inner
scope.

To create a closure, Lua searches all captured locals of the enclosing function. With two scopes, each
enclosing function has fewer captured locals, which saves a tenth of the time of an exchange.
"""
_SCRIPT = """\
{first}
local function stopped(reply) error(reply, 0) end
local function each_call(set) set() end
{outer}
local done, reply = pcall(function()
{inner}
{main}
end)
if done then return reply end
stopped(reply)
"""
_LIBRARY = """\
{first}
local KEYS, ARGV, calls, main
local function stopped(reply) error(reply, 0) end
local function each_call(set) calls[#calls + 1] = set end
local function define()
  calls = {{}}
{outer}
local function define_others()
{inner}
main = function()
{main}
end
end
define_others()
end
redis.register_function('{name}', function(keys, args)
  KEYS, ARGV = keys, args
  if not main then define() end
  for _, set in ipairs(calls) do set() end
  local done, reply = pcall(main)
  if done then return reply end
  stopped(reply)
end)
"""


@cache
def lua_files(folder: str = "") -> dict[str, str]:
    """Return the texts of the Lua files in one *folder* of lua/, or in all, by their names without `.lua`."""
    names = ",\n".join(f"{name} = KEYS[{number}]" for number, name in enumerate(FIXED, 1))
    return {
        file.name.removesuffix(".lua"): file.read_text("utf-8")
        .replace("FIXED_KEYS", names)
        .replace("FIRST_START_KEY", str(len(FIXED) + 1))
        for each in files("scrapy_dq.frontier").joinpath("lua").iterdir()
        if folder in ("", each.name)
        for file in each.iterdir()
    }


@cache
def parts(name: str) -> tuple[str, ...]:
    """Return the names of a Lua file and of all included files, each once, after the files that it needs."""
    included = re.search("^-- @include (.*)$", lua_files()[name], re.MULTILINE)
    found = [part for each in (included[1].split() if included else ()) for part in parts(each)]
    return (*dict.fromkeys(found), name)


def _fill(template: str, transition: str, **texts: str) -> str:
    *names, main = parts(transition)
    outer = [name for name in names if name in parts(_OUTER)]
    inner = [name for name in names if name not in outer]
    scopes = {"outer": outer, "inner": inner, "main": [main]}
    filled = {scope: "\n".join(lua_files()[name] for name in scopes[scope]) for scope in scopes}
    return template.format(**filled, **texts)


@cache
def source(transition: str) -> str:
    """Return the script of *transition*. If it includes lib/stopped.lua, `stopped` handles its errors."""
    return _fill(_SCRIPT, transition, first=UNDECLARED_KEYS)


@cache
def library(transition: str) -> tuple[str, str]:
    """Return the name and the source of a library with one function of the same name.

    The function does the same as the script from `source`. It creates all inner Lua functions in its first
    call, and keeps them.
    """
    name = f"dq_{transition}_{sha1(_fill(_LIBRARY, transition, first='', name='').encode()).hexdigest()[:16]}"
    return name, _fill(_LIBRARY, transition, first=f"#!lua name={name}", name=name)


class Script:
    """One transition, called by its digest. The client sends the source only if Redis does not have it yet.

    The keys of each call come from `keys.fixed`; in a join and an exchange, the start keys follow.
    """

    def __init__(self, transition: str) -> None:
        self.source = source(transition)
        self.sha = sha1(self.source.encode()).hexdigest()

    async def call(self, client: Any, keys: Sequence[str], *args: Any) -> Any:
        """Run the script with a client of `redis.asyncio` or `redis`; raise errors of redis-py unchanged."""
        return await at_node(client, lambda: self._run(client, keys, args))

    async def _run(self, client: Any, keys: Sequence[str], args: Sequence[Any]) -> Any:
        try:
            return await reply_of(client.evalsha(self.sha, len(keys), *keys, *args))
        except NoScriptError:
            return await reply_of(client.eval(self.source, len(keys), *keys, *args))

    def call_blocking(self, client: Any, keys: Sequence[str], *args: Any) -> Any:
        """Run the script with a `redis` client, in a thread or a command, but never on the event loop."""
        return at_once(self.call(client, keys, *args))


class Function(Script):
    """A transition that is called as a function of a library or, if Redis refuses that, as a script.

    A script creates all its Lua functions in each call, which takes a fifth of the time of an exchange.
    """

    def __init__(self, transition: str) -> None:
        super().__init__(transition)
        self.name, self.library = library(transition)
        self._refused = False

    async def _run(self, client: Any, keys: Sequence[str], args: Sequence[Any]) -> Any:
        if self._refused:
            return await super()._run(client, keys, args)
        try:
            return await self._call_function(client, keys, args)
        except OutOfMemoryError:
            # A full Redis refuses every function, but refuses a script only at a command that needs memory.
            return await super()._run(client, keys, args)
        except ResponseError as error:
            if is_transient(error) or "on @user_function:" in str(
                error
            ):  # an outage, or an error in the function
                raise
        # Redis has no functions, or refuses them to this user. Each version and service has its own message
        # for this. Any other error will also occur in the script.
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


async def at_node(client: Any, call: Callable[[], Awaitable[Any]]) -> Any:
    """Return the result of *call*; repeat the call while the node answers with MOVED.

    After MOVED, the client's route leads to the node that MOVED names (backend/cluster.py).
    """
    for _ in range(_MAX_REDIRECTS):
        try:
            return await call()
        except ResponseError as error:
            if moved_to(error) is None or not hasattr(client.connection_pool, "route"):
                raise
    return await call()
