"""The names that a Lua file defines at its top level or only uses; parses as much of Lua as ours needs."""

from __future__ import annotations

import re
from collections.abc import Collection

_TOKEN = re.compile(r"""--[^\n]*|'[^'\n]*'|"[^"\n]*"|\d[\w.]*|[A-Za-z_]\w*|\.{2,3}|[=~<>]=|\S""")
_NAME = re.compile(r"[A-Za-z_]\w*")
_STATEMENTS = {
    "break", "do", "else", "elseif", "end", "for", "function", "if", "local", "repeat", "return", "until",
    "while", ";",
}  # fmt: skip
_KEYWORDS = {*_STATEMENTS, "and", "false", "in", "nil", "not", "or", "then", "true"}
_OPERAND_END = re.compile(r"""[\w'")\]}]|\.\.\.""")
BUILT_IN = {
    "ARGV", "KEYS", "cjson", "cmsgpack", "error", "ipairs", "math", "next", "pairs", "pcall", "redis",
    "select", "string", "struct", "table", "tonumber", "tostring", "type", "unpack",
}  # fmt: skip
"""The names that Lua and Redis provide to each script."""


def names_of(text: str) -> tuple[set[str], set[str]]:
    """Return the names that are local to the top level of *text*, and those that it only uses."""
    tokens = [token for token in _TOKEN.findall(text) if not token.startswith("--")] + [";"]
    used: set[str] = set()
    # Each open block with its names, and each open bracket.
    stack: list[tuple[str, set[str]]] = [("do", set())]
    # Depth of expressions, and names that are visible once these have ended; none: `until` ends its block.
    waiting: list[tuple[int, Collection[str]]] = []
    loop: Collection[str] = ()
    i = 0

    def listed(at: int) -> tuple[list[str], int]:
        """Return the names of a list that begins at *at*, and where it ends."""
        found = []
        while _is_name(tokens[at]) or tokens[at] == "...":
            found += [tokens[at]] * _is_name(tokens[at])
            at += 1
            if tokens[at] != ",":
                break
            at += 1
        return found, at

    while i < len(tokens):
        token, before = tokens[i], tokens[i - 1] if i else ";"
        starts = token in _STATEMENTS or _is_name(token)
        while waiting and starts and waiting[-1][0] == len(stack) and _ends_operand(before):
            _, bound = waiting.pop()
            if bound:
                stack[-1][1].update(bound)
            else:
                stack.pop()
        i += 1
        if token == "local" and tokens[i] != "function":
            bound, i = listed(i)
            if tokens[i] == "=":
                waiting.append((len(stack), bound))
            else:
                stack[-1][1].update(bound)
        elif token == "function":
            if before == "local":
                stack[-1][1].add(tokens[i])
            while tokens[i] != "(":
                _use(tokens, i, stack, used)
                i += 1
            bound, i = listed(i + 1)
            stack.append(("function", set(bound)))
            i += 1
        elif token == "for":
            loop, i = listed(i)
        elif token in ("do", "then", "repeat", "else"):
            if token == "else":
                stack.pop()
            stack.append((token, set(loop) if token == "do" else set()))
            loop = () if token == "do" else loop
        elif token == "until":
            waiting.append((len(stack), ()))
        elif token in ("end", "elseif", ")", "]", "}"):
            stack.pop()
        elif token in ("(", "[", "{"):
            stack.append((token, set()))
        else:
            _use(tokens, i - 1, stack, used)
    assert len(stack) == 1, "a block that does not end"
    return stack[0][1], used - BUILT_IN


def _use(tokens: list[str], at: int, stack: list[tuple[str, set[str]]], used: set[str]) -> None:
    token = tokens[at]
    is_field = tokens[at - 1] in (".", ":") or (stack[-1][0] == "{" and tokens[at + 1] == "=")
    if _is_name(token) and not is_field and not any(token in names for _, names in stack):
        used.add(token)


def _is_name(token: str) -> bool:
    return bool(_NAME.fullmatch(token)) and token not in _KEYWORDS


def _ends_operand(token: str) -> bool:
    if token in _KEYWORDS:
        return token in ("end", "false", "nil", "true")
    return bool(_OPERAND_END.match(token))
