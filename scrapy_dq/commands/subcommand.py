"""The base class of the subcommands of `scrapy dq`."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from typing import ClassVar

from scrapy.settings import Settings

DONE, FAILED, USAGE = 0, 1, 2
"""Exit status: it was done; it failed, and standard error says why; the command line is invalid."""


class CommandError(Exception):
    """The command failed; only the message is printed."""

    status: ClassVar[int] = FAILED


class WrongUsage(CommandError):
    """The command line is invalid, whatever the state of the crawl."""

    status = USAGE


class Subcommand(ABC):
    """One command: `scrapy dq <name>`."""

    name: str
    arguments: str
    """For the usage line."""
    words: ClassVar[str] = ""
    """The argument that takes any number of words, also those after other options."""
    summary: str
    """For the list of all commands."""
    description: str
    """For `--help` and docs/cli.md, which have its options from the parser."""

    own_status: ClassVar[bool] = False
    """Whether its exit status ignores that its output could not be printed."""

    needs_project: ClassVar[bool] = False
    """Whether it needs a spider, so that `--crawl` is not enough."""

    @property
    def usage(self) -> str:
        """The usage line."""
        return f"scrapy dq {self.name} {self.arguments} [options]"

    @abstractmethod
    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add its options, in addition to those of Scrapy and `--crawl`."""

    @abstractmethod
    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        """Run the command and return the exit status.

        Raises:
            CommandError, ConfigError, CrewError, FrontierError: it failed.
        """
