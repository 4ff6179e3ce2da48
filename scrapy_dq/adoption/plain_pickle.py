"""Reads pickles that hold only plain data, without `pickle`: nothing that a pickle names is looked up.

A pickle is a program for a small stack machine. This is that machine without the instructions that import or
call: untrusted bytes can build data, and are refused at the first name of a class or function.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import Any

from scrapy_dq.codec.hashes import Hashes
from scrapy_dq.codec.unfit import Unfit
from scrapy_dq.text import printable

MAX_DEPTH = 64
MOST_GROWTH, SMALL = 8, 1_024
"""A value takes at most as many times the bytes of its pickle, and some more."""
_TOO_LARGE = (
    f"its value is larger than DQ_MAX_ENTRY_BYTES, or {MOST_GROWTH} times as large as the pickle, which "
    f"repeats parts of it"
)
MAX_STEPS = 200_000
"""Instructions of one pickle, a tenth of a second; a request takes about a hundred."""


class NotPlain(Exception):
    """The bytes are not a pickle, or not one of plain data; the message says why."""


class _Name:
    """A global that the pickle names; its value is built here from plain values, without calling it."""

    def __init__(self, name: str) -> None:
        self.name = name


def loads(pickled: bytes, max_bytes: int) -> Any:
    """Return what *pickled* holds: None, bools, numbers, text, bytes, lists, tuples, dicts, sets.

    Args:
        max_bytes: the largest size of the value, shared parts counted each time they occur.
    Raises:
        NotPlain: for any other bytes; nothing else is raised.
    """
    try:
        # Parts of it may be shared: our own entry, which has none, would be thousands of times as large.
        room = min(max_bytes, MOST_GROWTH * len(pickled) + SMALL)
        value = _run(pickled, max_bytes, room)
        _measure(value, room)
    except NotPlain:
        raise
    except Unfit as unfit:
        raise NotPlain(str(unfit)) from unfit
    except Exception as error:  # MemoryError included
        reason = printable(f"{type(error).__name__}: {error}", 200)
        raise NotPlain(f"it is not a complete pickle ({reason})") from error
    return value


def _run(pickled: bytes, max_bytes: int, room: int) -> Any:
    if len(pickled) > max_bytes:
        raise NotPlain(f"its {len(pickled):,} bytes are more than DQ_MAX_ENTRY_BYTES = {max_bytes:,}")
    machine = _Machine(room)
    for steps, (opcode, argument, position) in enumerate(pickletools.genops(pickled)):
        if steps == MAX_STEPS:
            raise NotPlain(f"it has more than {MAX_STEPS:,} instructions")
        if opcode.name == "STOP":
            if position != len(pickled) - 1:
                raise NotPlain("more bytes follow the pickle")
            return machine.result()
        step = _STEPS.get(opcode.name)
        if step is None:
            raise NotPlain(f"it has the instruction {opcode.name}, which plain data does not need")
        step(machine, argument)
    raise NotPlain("it does not end with STOP")


def _measure(value: Any, room: int) -> None:
    """Raise NotPlain if *value*, written out, is larger than *room*, nested too deep, or not plain data.

    Not recursive, and not by its size in memory: a part may occur a million times.
    """
    pending = [(value, MAX_DEPTH)]
    while pending:
        value, depth = pending.pop()
        if isinstance(value, (str, bytes, bytearray)):
            room -= len(value)
        elif isinstance(value, int):
            room -= value.bit_length() // 8
        elif isinstance(value, (list, tuple, set, frozenset, dict)):
            if not depth:
                raise NotPlain(f"it is nested deeper than {MAX_DEPTH} levels, or contains itself")
            parts = [*value, *value.values()] if isinstance(value, dict) else value
            room -= len(parts)
            if room >= 0:
                pending += [(part, depth - 1) for part in parts]
        elif isinstance(value, _Name):
            raise NotPlain(f"it names {value.name}")
        if room < 0:
            raise NotPlain(_TOO_LARGE)


class _Machine:
    """The stack, the marks in it, and the memo of one pickle."""

    def __init__(self, room: int) -> None:
        self.stack: list[Any] = []
        self._room = room
        self._marks: list[int] = []
        self._hashes: dict[int, tuple[Any, Hashes]] = {}
        self.memo: dict[int, Any] = {}

    def result(self) -> Any:
        if len(self.stack) != 1 or self._marks:
            raise NotPlain("its end leaves more or less than one value")
        return self.stack[0]

    def mark(self) -> None:
        self._marks.append(len(self.stack))

    def to_mark(self) -> list[Any]:
        start = self._marks.pop()
        parts = self.stack[start:]
        del self.stack[start:]
        return parts

    def pop(self) -> Any:
        if self._marks and self._marks[-1] == len(self.stack):
            raise NotPlain("it takes more values from its stack than there are")
        return self.stack.pop()

    def pop_mark_or_value(self) -> None:
        if self._marks and self._marks[-1] == len(self.stack):
            self._marks.pop()
        else:
            self.stack.pop()

    def top(self, *kinds: type) -> Any:
        if type(self.stack[-1]) not in kinds:
            raise NotPlain("it adds items to a value of another type")
        return self.stack[-1]

    def set_items(self, flat: list[Any]) -> None:
        if len(flat) % 2:
            raise NotPlain("a key has no value")
        target = self.top(dict)
        target.update(zip(self.hashed(flat[::2], target), flat[1::2], strict=True))

    def make_dict(self) -> None:
        flat = self.to_mark()
        self.stack.append({})
        self.set_items(flat)

    def set_item(self) -> None:
        value, key = self.pop(), self.pop()
        self.set_items([key, value])

    def append(self) -> None:
        value = self.pop()
        self.top(list).append(value)

    def extend(self, parts: list[Any]) -> None:
        self.top(list).extend(parts)

    def add(self, parts: list[Any]) -> None:
        target = self.top(set)
        target.update(self.hashed(parts, target))

    def hashed(self, keys: list[Any], target: Any = None) -> list[Any]:
        """Check and return *keys*, the future keys of *target* or members of a new set."""
        self.take(_cost_of_keys(keys))
        # Keeps the target, so that no other object gets its id meanwhile.
        _, hashes = (
            self._hashes.setdefault(id(target), (target, Hashes())) if target is not None else (0, Hashes())
        )
        hashes.add(keys)
        return keys

    def take(self, room: int) -> None:
        """Count what a few bytes can refer to again, and what is copied or hashed each time."""
        self._room -= room
        if self._room < 0:
            raise NotPlain(_TOO_LARGE)

    def last(self, count: int) -> None:
        parts = [self.pop() for _ in range(count)]
        self.stack.append(tuple(reversed(parts)))

    def name(self, module: Any, name: Any) -> None:
        full = f"{module}.{name}"
        if full not in _REBUILT:
            raise NotPlain(f"it names {printable(full, 200)}, and names in a pickle are not used")
        self.stack.append(_Name(full))

    def stack_name(self) -> None:
        name, module = self.pop(), self.pop()
        self.name(module, name)

    def call(self) -> None:
        arguments, name = self.pop(), self.pop()
        if type(name) is not _Name or type(arguments) is not tuple:
            raise NotPlain("it calls a value")
        self.stack.append(_REBUILT[name.name](self, *arguments))


_SCALARS = frozenset({type(None), bool, int, float, str, bytes})


def _cost_of_keys(keys: list[Any]) -> int:
    # Python hashes nested tuples on the C stack, without a bound; it hashes long tuples, and wide ints, again
    # each time; and it compares equal texts to the end if they are different objects.
    cost = 0
    for key in keys:
        parts = key if type(key) is tuple else (key,)
        if not _SCALARS.issuperset(map(type, parts)):
            raise NotPlain("a key, or a member of a set, is neither a plain value nor a tuple of those")
        cost += len(parts) + sum(map(_length, parts))
    return cost


def _length(part: Any) -> int:
    if isinstance(part, (str, bytes)):
        return len(part)
    return part.bit_length() // 8 if type(part) is int else 0


def _checked(kind: type, value: Any) -> Any:
    if type(value) is not kind:
        raise NotPlain(f"expected {kind.__name__}, not {type(value).__name__}")
    return value


def _latin_bytes(machine: _Machine, text: Any, encoding: Any) -> bytes:
    machine.take(len(_checked(str, text)))
    if encoding not in ("latin1", "latin-1"):
        raise NotPlain("it encodes text")
    return bytes(text, "latin-1")


# How older protocols write bytes and sets; and link texts of CrawlSpider, whose class is a str that refers to
# its element. Each takes an existing value: none can allocate memory by a number.
_REBUILT: dict[str, Callable[..., Any]] = {
    "builtins.set": lambda m, values: set(m.hashed(_checked(list, values))),
    "builtins.frozenset": lambda m, values: frozenset(m.hashed(_checked(list, values))),
    "builtins.bytes": lambda m: b"",
    "_codecs.encode": _latin_bytes,
    "lxml.etree._ElementUnicodeResult": lambda m, text: _checked(str, text),
}
_REBUILT |= {f"__builtin__.{name}": _REBUILT[f"builtins.{name}"] for name in ("set", "frozenset", "bytes")}


def _push(machine: _Machine, value: Any) -> None:
    machine.stack.append(value)


def _remember(machine: _Machine, index: Any) -> None:
    machine.memo[len(machine.memo) if index is None else index] = machine.stack[-1]


_STEPS: dict[str, Callable[[_Machine, Any], None]] = {
    "PROTO": lambda m, _: None,
    "FRAME": lambda m, _: None,
    "MARK": lambda m, _: m.mark(),
    "POP": lambda m, _: m.pop_mark_or_value(),
    "POP_MARK": lambda m, _: m.to_mark().clear(),
    "DUP": lambda m, _: m.stack.append(m.stack[-1]),
    "NONE": _push,
    "NEWTRUE": lambda m, _: m.stack.append(True),
    "NEWFALSE": lambda m, _: m.stack.append(False),
    "EMPTY_LIST": lambda m, _: m.stack.append([]),
    "EMPTY_TUPLE": lambda m, _: m.stack.append(()),
    "EMPTY_DICT": lambda m, _: m.stack.append({}),
    "EMPTY_SET": lambda m, _: m.stack.append(set()),
    "LIST": lambda m, _: m.stack.append(m.to_mark()),
    "DICT": lambda m, _: m.make_dict(),
    "TUPLE": lambda m, _: m.stack.append(tuple(m.to_mark())),
    "FROZENSET": lambda m, _: m.stack.append(frozenset(m.hashed(m.to_mark()))),
    "TUPLE1": lambda m, _: m.last(1),
    "TUPLE2": lambda m, _: m.last(2),
    "TUPLE3": lambda m, _: m.last(3),
    "APPEND": lambda m, _: m.append(),
    "APPENDS": lambda m, _: m.extend(m.to_mark()),
    "ADDITEMS": lambda m, _: m.add(m.to_mark()),
    "SETITEM": lambda m, _: m.set_item(),
    "SETITEMS": lambda m, _: m.set_items(m.to_mark()),
    "MEMOIZE": _remember,
    "GLOBAL": lambda m, argument: m.name(*argument.split(" ", 1)),
    "STACK_GLOBAL": lambda m, _: m.stack_name(),
    "REDUCE": lambda m, _: m.call(),
    "NEWOBJ": lambda m, _: m.call(),
}
_STEPS |= dict.fromkeys(
    (
        "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
        "UNICODE", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8",
        "STRING", "BINSTRING", "SHORT_BINSTRING",
        "SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8",
    ),
    _push,
)  # fmt: skip
_STEPS |= dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), _remember)
_STEPS |= dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda m, index: m.stack.append(m.memo[index]))
