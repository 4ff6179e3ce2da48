"""Finds the smallest plan in which the same promise is still broken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from simulation.plan import Plan, altered

Options = dict[str, Any]
Fails = Callable[[Plan], str]


def shrink(plan: Plan, fails: Fails) -> Options:
    """Return the options of `altered` that make *plan* smallest.

    Args:
        fails: runs a plan; returns which promise is broken, or "".
    """
    kind = _kind(fails(plan))
    options: Options = {}

    def holds(more: Options) -> bool:
        return _kind(fails(altered(plan, {**options, **more}))) == kind

    for each in ({"uncommanded": True}, {"quiet": True}):
        if holds(each):
            options |= each
    kept = list(range(len(plan.strikes)))
    for strike in list(kept):
        fewer = [each for each in kept if each != strike]
        if holds({"keep": fewer}):
            kept = fewer
            options["keep"] = kept
    for name, values in (("workers", range(1, plan.setup.workers)), ("pages", range(1, len(plan.pages)))):
        for value in values:
            if holds({name: value}):
                options[name] = value
                break
    return options


def _kind(message: str) -> str:
    """Return what two violations of the same promise have in common."""
    return " ".join(word for word in message.split() if word.isalpha())[:40] if message else ""
