"""Errors for requests that cannot be stored, decoded or served."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from scrapy_dq.codec.unfit import NotHere, Unfit
from scrapy_dq.text import printable, url_error


class CannotEncode(Exception):
    """The request cannot be stored; the message says why."""


class CannotDecode(Exception):
    """The entry is not a request that may run here; the message is the reason of its dead letter."""


class CannotServe(CannotDecode):
    """This worker lacks what the entry needs: its code or settings differ from the storing worker's."""


@contextmanager
def refusing(
    not_here: type[Exception] = CannotDecode, other: type[Exception] = CannotDecode,
    lacking: type[NotHere] = NotHere,
) -> Iterator[None]:  # fmt: skip
    """Raise *not_here* for an error of class *lacking*, and *other* for any other error.

    After an error of class *lacking*, another process may still be able to use the entry.
    """
    try:
        yield
    except lacking as error:
        raise not_here(reason_of(error)) from error
    except Exception as error:  # also MemoryError, RecursionError and any error of a constructor
        raise other(reason_of(error)) from error


def reason_of(error: Exception) -> str:
    """Return why a value or an entry is refused, for logs."""
    if isinstance(error, (CannotEncode, Unfit)):
        return printable(str(error))
    return printable(url_error(error) or traceback.format_exception_only(type(error), error)[-1])
