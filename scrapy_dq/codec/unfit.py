"""Errors for refused values and entries."""

from __future__ import annotations

from typing import Any


class Unfit(Exception):
    """A value cannot be stored, or is invalid in an entry; *path* locates it, innermost part first."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []

    def __str__(self) -> str:
        return f"{''.join(reversed(self.path))}: {self.reason}" if self.path else self.reason


class NotHere(Unfit):
    """This process lacks what an entry needs: a callback, a class, a setting. Other workers may have it."""


class Unknown(NotHere):
    """This process may not use the class of a value, or has no serializer."""


def exactly(value: Any, *kinds: type) -> Any:
    """Return *value* if it is of one of these types; raise Unfit for any other, subclasses included.

    With an instance of a project's subclass, the caller would run methods of the project.
    """
    if type(value) not in kinds:
        names = " or ".join(kind.__name__ for kind in kinds)
        raise Unfit(f"expected {names}, not {type(value).__name__}")
    return value
