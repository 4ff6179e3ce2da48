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
    """Less is better: the median may not be above *wanted*. Otherwise it may not be below."""
    samples: list[float]
    """One ratio or value per repetition; empty if it was not measured."""


class Part(ABC):
    """One part. A module of benchmarks/ has it as PART."""

    name: ClassVar[str]
    """Its key in docs/performance.json, and a word of --only."""
    title: ClassVar[str]
    """Its heading."""
    first_page: ClassVar[bool] = False
    """Whether its section is on the first page, not on the page of the details."""

    @abstractmethod
    def measure(self, tell: Callable[[str], None]) -> dict[str, Any]:
        """Measure, and return raw samples, JSON in lists by repetition; *tell* reports the progress."""

    @abstractmethod
    def bars(self, found: dict[str, Any]) -> list[Bar]:
        """Return the bars that this part measures."""

    @abstractmethod
    def section(self, found: dict[str, Any]) -> str:
        """Return the Markdown below its heading; each figure in it is computed from *found*."""

    @abstractmethod
    def plots(self, found: dict[str, Any], folder: Path) -> list[Path]:
        """Draw its PNGs into *folder* and return their paths."""
