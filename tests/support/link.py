"""One connection through the proxy, which forwards, delays or drops commands and replies."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal

from support.resp import Framer, command_name

SET_UP = frozenset({"AUTH", "CLIENT", "HELLO", "SELECT"})
CHUNK_BYTES = 1 << 16

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

SCRIPTS = ("EVAL", "EVALSHA", "FCALL")


class Fault:
    """A planned fault, which affects only the first matching command."""

    def __init__(
        self, effect: Literal["cut", "hold"], command: str | None, containing: bytes | tuple[bytes, ...]
    ) -> None:
        self.effect = effect
        self._command = command.upper() if command else None
        self._containing = containing if isinstance(containing, tuple) else (containing,)
        self._fired = threading.Event()
        self._release: Callable[[], object] | None = None

    @property
    def fired(self) -> bool:
        """Whether the fault has happened. If so, the reply is dropped or the command is held."""
        return self._fired.is_set()

    def wait(self, timeout_s: float = 10.0) -> None:
        """Wait until the fault has happened. Raise TimeoutError after *timeout_s*."""
        if not self._fired.wait(timeout_s):
            raise TimeoutError(f"no command was hit by: {self.effect} {self._command or 'any'}")

    def release(self) -> None:
        """Send a held command to Redis now. No client gets the reply."""
        if self._release is None:
            raise RuntimeError("no command is held")
        self._release()

    def matches(self, name: str, message: bytes) -> bool:
        """Return whether the fault affects this command."""
        named = name == self._command if self._command else name not in SET_UP
        return named and any(each in message for each in self._containing)

    def fire(self, release: Callable[[], object] | None = None) -> None:
        """Record that the fault has happened."""
        self._release = release
        self._fired.set()


@dataclass
class Behaviour:
    """The shared state of a proxy's connections. Only the proxy's loop uses it."""

    delay_s: float = 0.0
    loss: float = 0.0
    spared: frozenset[str] = SET_UP
    silent: bool = False
    random: random.Random = field(default_factory=lambda: random.Random(0))
    faults: list[Fault] = field(default_factory=list)
    commands: Counter[str] = field(default_factory=Counter)
    script_error: str = ""
    lost: tuple[bytes, ...] = ()

    def fate_of(self, message: bytes) -> Fault | None:
        """Count a command and choose its fault, if any."""
        name = command_name(message)
        self.commands[name] += 1
        if any(each in message for each in self.lost):
            return Fault("hold", name, b"")
        for fault in self.faults:
            if fault.matches(name, message):
                self.faults.remove(fault)
                return fault
        if name not in self.spared and self.random.random() < self.loss:
            return Fault("cut", None, b"")
        return None

    def served(self, message: bytes) -> bytes:
        """Return the command for Redis. With `script_error`, a script call is replaced by this error."""
        if not self.script_error or command_name(message) not in SCRIPTS:
            return message
        words = (b"EVAL", b"return redis.error_reply(ARGV[1])", b"0", self.script_error.encode())
        return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


class Link:
    """A client's connection to the proxy, and the connection to Redis that the proxy makes for it."""

    def __init__(self, client: Streams, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self._commands, writer = client
        self._to_client = DelayLine(writer, behaviour)
        self._to_redis: DelayLine | None = None
        # The fault, or None, of each command that has no reply yet, oldest first.
        self._fates: deque[Fault | None] = deque()
        self.holding = False

    async def run(self, connect: Callable[[], Awaitable[Streams]]) -> None:
        """Forward bytes until both sides have closed. Raise OSError if a side was interrupted."""
        replies, writer = await connect()
        self._to_redis = DelayLine(writer, self._behaviour)
        await asyncio.gather(self._carry_commands(self._to_redis), self._carry_replies(replies))

    def abort(self) -> None:
        """Cut both connections. Bytes that the proxy has not forwarded are lost."""
        self._to_client.abort()
        if self._to_redis:
            self._to_redis.abort()

    async def _carry_commands(self, to_redis: DelayLine) -> None:
        framer = Framer()
        while chunk := await self._commands.read(CHUNK_BYTES):
            if self._behaviour.silent:
                continue
            passed: list[bytes] = []
            for message in framer.feed(chunk):
                fate = self._behaviour.fate_of(message)
                if fate and fate.effect == "hold":
                    to_redis.send(b"".join(passed))
                    self._hold(fate, message, to_redis)
                    return
                self._fates.append(fate)
                passed.append(self._behaviour.served(message))
            to_redis.send(b"".join(passed))
        to_redis.close()

    def _hold(self, fault: Fault, message: bytes, to_redis: DelayLine) -> None:
        self.holding = True
        self._to_client.close()
        loop = asyncio.get_running_loop()
        fault.fire(lambda: loop.call_soon_threadsafe(to_redis.send, message))

    async def _carry_replies(self, replies: asyncio.StreamReader) -> None:
        framer = Framer()
        while chunk := await replies.read(CHUNK_BYTES):
            if self.holding or self._behaviour.silent:
                continue
            passed: list[bytes] = []
            for message in framer.feed(chunk):
                # A push message (>) answers no command.
                fate = self._fates.popleft() if self._fates and not message.startswith(b">") else None
                if fate:
                    self._to_client.send(b"".join(passed))
                    self._to_client.close()
                    fate.fire()
                    return
                passed.append(message)
            self._to_client.send(b"".join(passed))
        self._to_client.close()


class DelayLine:
    """Writes each piece of data after its delay, in the order of the pieces."""

    def __init__(self, writer: asyncio.StreamWriter, behaviour: Behaviour) -> None:
        self._writer = writer
        self._behaviour = behaviour
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[tuple[float, bytes | None]] = deque()

    def send(self, data: bytes) -> None:
        """Write *data* after the present delay."""
        if data:
            self._put(data)

    def close(self) -> None:
        """Close the connection after all pieces are written."""
        self._put(None)

    def abort(self) -> None:
        """Close the connection now."""
        self._waiting.clear()
        self._writer.transport.abort()

    def _put(self, data: bytes | None) -> None:
        self._waiting.append((self._loop.time() + self._behaviour.delay_s, data))
        if len(self._waiting) == 1:
            self._write_due()

    def _write_due(self) -> None:
        now = self._loop.time()
        while self._waiting and self._waiting[0][0] <= now:
            data = self._waiting.popleft()[1]
            if self._writer.is_closing():
                continue
            if data is None:
                self._writer.close()
            else:
                self._writer.write(data)
        if self._waiting:
            self._loop.call_at(self._waiting[0][0], self._write_due)
