"""Finds the place in the project's own code that raised an exception, because people look there first."""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import lru_cache
from traceback import walk_tb
from types import TracebackType

import scrapy
from twisted.python.failure import Failure

import scrapy_dq
from scrapy_dq.text import printable

LONGEST_PATH, LONGEST_NAME = 80, 40
"""Maximum numbers of characters of a file's path, and of a function's name."""
MAX_CAUSES = 5
_LIBRARIES = tuple(f"{os.path.dirname(str(module.__file__))}{os.sep}" for module in (scrapy, scrapy_dq))
_STANDARD = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib"))
_INSTALLED = ("site-packages", "dist-packages")


class OwnCode:
    """The code of a project: the package of its spider, and all other files that are not installed."""

    def __init__(self, module: str) -> None:
        """*module* is the spider class's module."""
        self._package = module.partition(".")[0]
        self._path = lru_cache(1_000)(self._find_path)

    def place_of(self, failure: Failure) -> str:
        """Return the last frame in this code, such as `spiders/books.py:31 in parse_product`; "": none."""
        error: BaseException | None = failure.value
        trace: TracebackType | None = failure.getTracebackObject()  # type: ignore[no-untyped-call]
        for _ in range(MAX_CAUSES):
            for frame, line in reversed(list(walk_tb(trace))):
                path = self._path(frame.f_code.co_filename)
                if path:
                    return f"{path}:{line} in {printable(frame.f_code.co_name, LONGEST_NAME)}"
            error = error and error.__cause__
            if error is None:
                break
            trace = error.__traceback__
        return ""

    def _find_path(self, file: str) -> str:
        """Return the path of a file as the project's developers know it; "": it is not the project's."""
        if file.startswith(("<", *_LIBRARIES)):
            return ""
        folders = (os.path.join(os.path.abspath(entry), "") for entry in sys.path)
        folder = max((each for each in folders if file.startswith(each)), key=len, default="")
        parts = (file[len(folder) :] if folder else os.path.basename(file)).split(os.sep)
        own = os.path.splitext(parts[0])[0] == self._package
        if not own and (file.startswith(_STANDARD) or set(_INSTALLED) & set(file.split(os.sep))):
            return ""
        # Within the spider's package, the name of the package is left out.
        return printable("/".join(parts[own and len(parts) > 1 :])[-LONGEST_PATH:], LONGEST_PATH)
