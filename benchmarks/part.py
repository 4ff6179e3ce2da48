"""What each part of `make bench` is: samples that it measures, and what the page says of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, NamedTuple


class Bar(NamedTuple):
    """A figure, and what is wanted of its median."""

    figure: str
    wanted: float
    at_most: bool
    """Less is better: the median may not be above *wanted*. Otherwise it may not be below."""
    samples: list[float]
    """One ratio or value per repetition; none: it was not measured."""


class Part(ABC):
    """One part: a module of benchmarks/ has it as PART."""

    name: ClassVar[str]
    """Its key in docs/performance.json, and a word of --only."""
    title: ClassVar[str]
    """Its heading."""
    first_page: ClassVar[bool] = False
    """Its section is in the first page, not in that of the details."""

    @abstractmethod
    def measure(self, tell: Callable[[str], None]) -> dict[str, Any]:
        """Measure, and return raw samples, JSON in lists by repetition; *tell* says how far it is."""

    @abstractmethod
    def bars(self, found: dict[str, Any]) -> list[Bar]:
        """Return the bars that this part measures."""

    @abstractmethod
    def section(self, found: dict[str, Any]) -> str:
        """Return the Markdown below its heading; each figure in it is computed from *found*."""

    @abstractmethod
    def plots(self, found: dict[str, Any], folder: Path) -> list[Path]:
        """Draw its PNGs into *folder* and return their paths."""
