"""Why a value, or an entry, is refused."""

from __future__ import annotations


class Unfit(Exception):
    """A value cannot be stored, or is invalid in an entry; *path* says where, innermost first."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []

    def __str__(self) -> str:
        return f"{''.join(reversed(self.path))}: {self.reason}" if self.path else self.reason


class NotHere(Unfit):
    """This process lacks what an entry needs: a callback, a class, a setting. Other workers may have it."""


class UnknownClass(NotHere):
    """The class of a value may not be used in this process."""
