"""The group `scrapy dq`: find the subcommand, add Scrapy's options, report errors in one line."""

from __future__ import annotations

import argparse
import difflib
import logging
import re
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import IO, NoReturn

import scrapy.utils.log
from scrapy.commands import ScrapyCommand
from scrapy.settings import SETTINGS_PRIORITIES, Settings, SettingsAttribute
from scrapy.utils.log import configure_logging, get_scrapy_root_handler
from scrapy.utils.misc import load_object
from scrapy.utils.project import inside_project

from scrapy_dq.commands.input.crawlers import LOADER, NoSpiders
from scrapy_dq.commands.streams import lasting_streams
from scrapy_dq.commands.subcommand import FAILED, CommandError, Subcommand
from scrapy_dq.crew.errors import CrewError
from scrapy_dq.crew.own_files import open_own
from scrapy_dq.frontier.model import FrontierError
from scrapy_dq.settings import ConfigError
from scrapy_dq.text import printable

COMMANDS = {
    "crawl": "crawl.Crawl", "status": "status.Status", "workers": "status.Workers",
    "search": "listing.Search", "failed": "listing.FailedRequests", "dead": "listing.DeadLetters",
    "items": "items.Items", "events": "report.Events", "report": "report.Report", "doctor": "doctor.Doctor",
    "pause": "steering.Pause", "drain": "steering.Drain", "resume": "steering.Resume",
    "stop": "steering.Stop", "complete": "steering.Complete", "retry": "retry.Retry", "push": "push.Push",
    "limit": "steering.Limit", "clear": "clear.Clear", "adopt": "adopt.Adopt", "move": "transfer.Move",
    "export": "transfer.ExportCrawl", "import": "transfer.ImportCrawl", "web": "serving.Web",
    "metrics": "serving.PrometheusMetrics",
}  # fmt: skip
"""The module and class of each command in this package. Only the command that the user runs is imported."""
LONGEST_LINE = 4000


def subcommands(names: Iterable[str] = COMMANDS) -> list[Subcommand]:
    """Return the subcommands of these names."""
    return [load_object(f"{__package__}.{COMMANDS[name]}")() for name in names]


class Command(ScrapyCommand):
    """The entry point of the `scrapy dq` commands."""

    requires_project = True
    # The commands need no reactor. Scrapy 2.13 creates a crawler process nevertheless.
    requires_crawler_process = False

    def syntax(self) -> str:
        return "<command> [options]"

    def short_desc(self) -> str:
        return "Manage crawls in Redis (scrapy_dq)"

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add one parser per subcommand; Scrapy's own options come after the subcommand's name."""
        parser.prog = "scrapy dq"  # otherwise errors begin with __main__.py, or with the whole usage line
        commands = parser.add_subparsers(
            title="Commands", metavar="<command>", dest="subcommand", prog=parser.prog
        )
        # This reads the subcommand from sys.argv, because Scrapy parses the command line only later.
        wanted = [name for name in sys.argv[2:3] if sys.argv[1] == "dq" and name in COMMANDS]
        self._subcommands = {each.name: each for each in subcommands(wanted or COMMANDS)}
        for subcommand in self._subcommands.values():
            own = commands.add_parser(
                subcommand.name,
                help=subcommand.summary,
                description=subcommand.description,
                usage=f"{parser.prog} {subcommand.name} {subcommand.arguments} [options]",
                formatter_class=parser.formatter_class,
                conflict_handler="resolve",
            )
            subcommand.add_options(own)
            own.add_argument("--crawl", metavar="NAME", help="the name of the crawl (default: DQ_CRAWL)")
            super().add_options(own)
            names = [*own._option_string_actions]
            own.error = partial(_error, own.error, names)  # type: ignore[method-assign]
        # Scrapy reads these options even without a subcommand, so they need defaults.
        defaults = argparse.ArgumentParser()
        super().add_options(defaults)
        parser.set_defaults(**vars(defaults.parse_args([])))
        parser.error = partial(_error, parser.error, [*COMMANDS])  # type: ignore[method-assign]
        self._parser, self._parsers = parser, commands.choices

    def process_options(self, args: list[str], opts: argparse.Namespace) -> None:
        """Put the options into the settings."""
        super().process_options(args, opts)
        if hasattr(opts, "words") and not any(word.startswith("-") for word in args):
            # argparse accepts these words in one place only, and returns words in other places as *args*.
            opts.words += args
            args = []
        if args:
            parser = self._parsers.get(opts.subcommand, self._parser)
            parser.error(f"unrecognized arguments: {' '.join(args)}")
        assert self.settings is not None
        if not (opts.loglevel or opts.logfile):
            # The project's level is for crawls. Here, log lines would mix with the output.
            self.settings.set("LOG_LEVEL", "WARNING", priority="cmdline")
        if opts.subcommand and opts.crawl:
            self.settings.set("DQ_CRAWL", opts.crawl.replace("%", "%%"), priority="cmdline")

        # Scrapy 2.13 makes a crawler process before `run`. This process would open the log and load all
        # spiders, so a broken spider would abort commands that need no spider.
        self._log_file = self.settings.attributes.pop("LOG_FILE")
        self._loader = self.settings.attributes[LOADER]
        self.settings.attributes[LOADER] = SettingsAttribute(NoSpiders, self._loader.priority)

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Run the subcommand; without one, print the help."""
        if not opts.subcommand:
            self._parser.print_help()
            return
        subcommand = self._subcommands[opts.subcommand]
        assert self.settings is not None
        self.settings.attributes |= {LOADER: self._loader, "LOG_FILE": self._log_file}
        # Scrapy checks `requires_project` only for its own commands. Source: scrapy/cmdline.py
        if not inside_project() and not opts.crawl:
            self.exitcode = FAILED
            where = "run this in the folder that has scrapy.cfg"
            other = "name the crawl with --crawl, and its Redis with -s REDIS_URL=..., if no spider is needed"
            _say(subcommand, f"no Scrapy project here: {where}; or {other}")
            return
        with lasting_streams() as out:
            self._run(subcommand, opts)
        # A closed pipe is not an error: the reader needs no more output.
        if out and out.error and not isinstance(out.error, BrokenPipeError):
            if not subcommand.own_status:
                self.exitcode = self.exitcode or FAILED
            _say(subcommand, f"standard output cannot be written: {out.error.strerror}")

    def _run(self, subcommand: Subcommand, opts: argparse.Namespace) -> None:
        assert self.settings is not None
        try:
            _begin_to_log(self.settings)
            self.exitcode = subcommand.run(self.settings, opts)
        except (CommandError, ConfigError, CrewError, FrontierError) as error:
            self.exitcode = getattr(error, "status", FAILED)
            _say(subcommand, str(error))
        except KeyboardInterrupt:
            self.exitcode = FAILED
            _say(subcommand, "interrupted")


def _begin_to_log(settings: Settings) -> None:
    """Log as the settings say, but to a file only if the command line names one.

    A LOG_FILE of the project belongs to its crawls. With LOG_FILE_APPEND = False, a command would empty it.
    Each Crawler replaces Scrapy's log handler with one for its spider's settings, so this adds a handler that
    is not Scrapy's.

    Raises:
        CommandError: the file cannot be opened, or another user has created it.
    """
    if "LOG_INSTALL_ROOT_HANDLER" in settings:  # newer versions of Scrapy
        settings.set("LOG_INSTALL_ROOT_HANDLER", False, "cmdline")
        configure_logging(settings)
    else:
        configure_logging(settings, install_root_handler=False)
    if (installed := get_scrapy_root_handler()) is not None:  # Scrapy 2.13 installs one before `run`
        logging.root.removeHandler(installed)
        scrapy.utils.log._scrapy_root_handler = None
    logging.root.setLevel(logging.NOTSET)
    if settings.getbool("LOG_ENABLED"):
        handler = logging.StreamHandler(_log_file(settings))
        handler.setFormatter(logging.Formatter(settings.get("LOG_FORMAT"), settings.get("LOG_DATEFORMAT")))
        handler.setLevel(settings.get("LOG_LEVEL"))
        logging.root.addHandler(handler)


def _log_file(settings: Settings) -> IO[str] | None:
    name = settings.get("LOG_FILE")
    if not name or (settings.getpriority("LOG_FILE") or 0) < SETTINGS_PRIORITIES["cmdline"]:
        return None
    mode = "a" if settings.getbool("LOG_FILE_APPEND") else "w"
    try:
        return open(name, mode, encoding=settings.get("LOG_ENCODING"), opener=open_own)
    except (OSError, CrewError) as error:
        raise CommandError(f"the log cannot be written: {error}") from error


def _error(error: Callable[[str], NoReturn], names: list[str], message: str) -> NoReturn:
    """Report a usage error; for a mistyped command or option, suggest a similar one."""
    wrong = re.search(r"(?:unrecognized arguments: |invalid choice: ')([\w-]+)", message)
    near = difflib.get_close_matches(wrong[1], names, 1) if wrong else ()
    error(f"{message}. Did you mean {near[0]!r}?" if near else message)


def _say(subcommand: Subcommand, text: str) -> None:
    # The text may quote a URL of a page, so unprintable characters are replaced.
    with suppress(OSError):
        print(f"scrapy dq {subcommand.name}: {printable(text, LONGEST_LINE)}", file=sys.stderr)
