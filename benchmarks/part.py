"""A part of `make bench`: the samples that it measures, and its section of the page."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple


class Bar(NamedTuple):
    """A figure, and the value that its median should reach."""

    figure: str
    wanted: float
    at_most: bool
    """Whether *wanted* is a maximum. Otherwise it is a minimum."""
    samples: list[float]
    """One ratio or value per repetition. The list is empty if the figure was not measured."""


class Part(ABC):
    """One part. Its object is called PART in a module of benchmarks/."""

    name: ClassVar[str]
    """The key of the part in docs/performance.json, and a value of --only."""
    title: ClassVar[str]
    """The heading of its section."""
    first_page: ClassVar[bool] = False
    """Whether the section is on the first page, not on the page of the details."""

    @abstractmethod
    def measure(self, tell: Callable[[str], None]) -> dict[str, Any]:
        """Measure, and return the samples as JSON, in lists by repetition. *tell* reports the progress."""

    @abstractmethod
    def bars(self, found: dict[str, Any]) -> list[Bar]:
        """Return the figures of this part that have a target."""

    @abstractmethod
    def section(self, found: dict[str, Any]) -> str:
        """Return the Markdown below the heading, with figures that are computed from *found*."""

    @abstractmethod
    def plots(self, found: dict[str, Any], folder: Path) -> list[Path]:
        """Draw the PNGs of this part into *folder*, and return their paths."""
