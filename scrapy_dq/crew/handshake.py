"""What `scrapy dq crawl` tells a worker as it starts it: one environment variable, and two pipes."""

from __future__ import annotations

import json
import os
import stat
from contextlib import suppress
from dataclasses import asdict, dataclass

VARIABLE = "SCRAPY_DQ_CREW"


@dataclass(frozen=True)
class Handshake:
    """A worker's number, its two ends of pipes, and where its parts of feeds belong."""

    number: int
    lifeline: int
    """Ends (EOF) with the parent."""
    reports: int
    """What the worker counts goes there."""
    inodes: tuple[int, int]
    """Of the two pipes."""
    parts: dict[str, str]
    """Folder by the URI of a feed, as FEEDS has it."""

    @classmethod
    def write(cls, number: int, lifeline: int, reports: int, parts: dict[str, str]) -> str:
        """Return the variable's value."""
        inodes = (os.fstat(lifeline).st_ino, os.fstat(reports).st_ino)
        return json.dumps(asdict(cls(number, lifeline, reports, inodes, parts)))

    @classmethod
    def take(cls) -> Handshake | None:
        """Return the handshake of this process, once; the variable and the pipes go to no child of it."""
        text = os.environ.pop(VARIABLE, "")
        if not text:
            return None
        with suppress(ValueError, TypeError, OSError):
            found = cls(**json.loads(text))
            # A crawl that a worker's spider starts has the variable, but not the pipes: it is in no crew.
            if (_pipe(found.lifeline), _pipe(found.reports)) == tuple(found.inodes):
                # The embedded Redis outlives us: it must not keep the parent's ends busy.
                os.set_inheritable(found.lifeline, False)
                os.set_inheritable(found.reports, False)
                return found
        return None


def _pipe(descriptor: int) -> int:
    """Return the inode of a pipe, 0 of anything else."""
    found = os.fstat(descriptor)
    return found.st_ino if stat.S_ISFIFO(found.st_mode) else 0
