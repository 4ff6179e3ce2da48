"""What a subcommand of `scrapy dq` is."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from typing import ClassVar

from scrapy.settings import Settings

DONE, FAILED, USAGE = 0, 1, 2
"""Exit status: it is done; it could not be, and standard error says why; it was asked for wrongly."""


class CommandError(Exception):
    """The command cannot do what it is asked for; the message is all that is printed of it."""

    status: ClassVar[int] = FAILED


class WrongUsage(CommandError):
    """What was typed means nothing, whatever the crawl is like."""

    status = USAGE


class Subcommand(ABC):
    """One command: `scrapy dq <name>`."""

    name: ClassVar[str]
    arguments: ClassVar[str]
    """For the usage line."""
    words: ClassVar[str] = ""
    """The option that takes any number of words: also those that stand after others."""
    summary: ClassVar[str]
    description: ClassVar[str]

    own_status: ClassVar[bool] = False
    """Whether its exit status tells of what it did only, and not of whether that could be printed."""

    @abstractmethod
    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add what Scrapy's own options, and `--crawl`, do not cover."""

    @abstractmethod
    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        """Do it and return the exit status.

        Raises:
            CommandError, ConfigError, FrontierError: it cannot be done.
        """
