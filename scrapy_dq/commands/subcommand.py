"""The base class of the subcommands of `scrapy dq`."""

from __future__ import annotations

import argparse
from abc import ABC, abstractmethod
from typing import ClassVar

from scrapy.settings import Settings

DONE, FAILED, USAGE = 0, 1, 2
"""Exit status: success; failure, with the reason on standard error; invalid command line."""


class CommandError(Exception):
    """The command failed; only the message is printed."""

    status: ClassVar[int] = FAILED


class WrongUsage(CommandError):
    """The command line is invalid in any state of the crawl."""

    status = USAGE


class Subcommand(ABC):
    """One command: `scrapy dq <name>`. The docstring of its class is its help."""

    name: str
    arguments: ClassVar[str] = "[<spider>]"
    """The arguments in the usage line."""
    operands: ClassVar[str] = ""
    """The meaning of the words after the spider, for `--help`. It is empty if the command takes no words."""
    flags: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Options without a value, each with its help."""

    own_status: ClassVar[bool] = False
    """Whether the exit status ignores a failure to print the output."""

    @property
    def summary(self) -> str:
        """The first line of the docstring, for the list of all commands."""
        first = (self.__doc__ or " ").partition("\n")[0].rstrip(".")
        return first[0].lower() + first[1:]

    @property
    def description(self) -> str:
        """The rest of the docstring, for `--help` and docs/cli.md, which get the options from the parser."""
        return " ".join((self.__doc__ or "").partition("\n")[2].split())

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments and options; `group.py` adds Scrapy's options and `--crawl`."""
        about = "the name of the spider"
        if self.operands:
            parser.add_argument("words", nargs="*", metavar="<spider>", help=f"{about}; then {self.operands}")
        elif self.arguments.startswith("<spider>"):
            parser.add_argument("spider", metavar="<spider>", help=about)
        else:
            parser.add_argument("spider", metavar="<spider>", nargs="?", default="", help=about)
        parser.add_argument(
            "-a", dest="spargs", action="append", default=[], metavar="NAME=VALUE",
            help="set spider argument (may be repeated), as with `scrapy crawl`",
        )  # fmt: skip
        parser.add_argument("--json", action="store_true", help="print JSON, for programs")
        self.add_arguments(parser)
        for name, about in self.flags:
            parser.add_argument(name, action="store_true", help=about)

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:  # noqa: B027 - some have none
        """Add further arguments, and options that take a value."""

    @abstractmethod
    def run(self, settings: Settings, options: argparse.Namespace) -> int:
        """Run the command and return the exit status.

        Raises:
            CommandError, ConfigError, CrewError, FrontierError: the command failed.
        """
