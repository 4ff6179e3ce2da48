"""Makes the command line and the log file of each worker that `scrapy dq crawl` starts."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from scrapy_dq.crew.errors import CrewError, NoLogs
from scrapy_dq.crew.own_files import make_private, open_own

MAX_LOGS = 10_000
"""Maximum number of logs in one folder, of all crews that use the folder."""


def command_of(
    spider: str, options: Any, settings: Mapping[str, Any], words: Sequence[str] = ("crawl",)
) -> list[str]:
    """Return the command line of a child, with the options of `scrapy dq crawl` that `scrapy crawl` also has.

    Args:
        options: the parsed command line of `scrapy dq crawl`.
        settings: more settings, passed as `-s`; they override *options*.
        words: Scrapy's command: `crawl` for a worker, `dq crawl` for a process that exports a feed.
    """
    # With -m, Python would search the current folder first, where another user may have put modules.
    program = str(Path(__file__).with_name("__main__.py"))
    return [sys.executable, program, sys.path[0], *words, spider, *_passed_on(options), *_set(settings)]


def _passed_on(options: Any) -> Iterator[str]:
    for flag, values in (
        ("-a", options.spargs),
        ("-s", options.set),
        ("-o", options.output),
        ("-O", options.overwrite_output),
        ("-L", [options.loglevel] if options.loglevel else []),
    ):
        for value in values or ():
            yield from (flag, value)
    if options.nolog:
        yield "--nolog"
    if options.crawl:
        yield from _set({"DQ_CRAWL": options.crawl.replace("%", "%%")})


def _set(settings: Mapping[str, Any]) -> Iterator[str]:
    for name, value in settings.items():
        yield from ("-s", f"{name}={value if isinstance(value, str) else json.dumps(value)}")


def log_paths(count: int, log_dir: Path | None, log_file: str | None, crawl: str, home: Path) -> list[Path]:
    """Return the paths of *count* logs, one per worker, and create their folders.

    Args:
        log_dir: if there is no *log_file*, the logs are in a subfolder of this folder that is named after the
            crawl. A previous log stays as `worker-N.log.1`.
        log_file: the setting LOG_FILE. The name of each log is this file's name with the worker's number.
        home: the data directory. It holds the logs if there is neither *log_file* nor *log_dir*.
    Raises:
        NoLogs: the logs cannot be written.
        CrewError: other users can write to the folder, a log is a link of another user, or another process
            holds all locks.
    """
    try:
        if log_file:
            named = Path(log_file).absolute()
            logs = [named.with_name(f"{named.stem}-{n}{named.suffix}") for n in range(1, count + 1)]
            for log in logs:
                log.parent.mkdir(parents=True, exist_ok=True)
                os.close(open_own(log, os.O_WRONLY | os.O_CREAT))
            return logs
        if log_dir is None:
            log_dir = home / "logs"
            make_private(home, may_be_link=True)
            make_private(log_dir)
        folder = log_dir.absolute() / (quote(crawl, safe="") if crawl.strip(".") else "crawl")
        make_private(folder)
        return _taken(folder, count)
    except OSError as error:
        way = "choose another LOG_FILE" if log_file else "choose another folder with --log-dir"
        raise NoLogs(f"the workers' logs cannot be written: {error}: {way}") from error


def _taken(folder: Path, count: int) -> list[Path]:
    """Return *count* logs that no other crew uses, and lock them for the life of this process."""
    # Each byte of this file is the lock of one log. The kernel releases the locks of a process that dies.
    lock = os.open(folder / "in-use.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    logs: list[Path] = []
    for number in range(1, MAX_LOGS + 1):
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
        except (BlockingIOError, PermissionError):  # POSIX allows both errors
            continue
        logs.append(folder / f"worker-{number}.log")
        with suppress(FileNotFoundError):
            logs[-1].replace(logs[-1].with_suffix(".log.1"))
        if len(logs) == count:
            return logs
    # A crew holds few locks. But any process that can read the file can lock all of it.
    raise CrewError(f"{folder / 'in-use.lock'} is locked by another process: choose another --log-dir")
