"""Log lines of a worker, each with the label of its frontier."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any


class LabelledLog(logging.LoggerAdapter):  # type: ignore[type-arg]  # a class without arguments in 3.10
    """The logger of a module, whose lines begin with *label*."""

    def __init__(self, logger: logging.Logger, label: str) -> None:
        super().__init__(logger, {})
        self._label = label.replace("%", "%%")  # logging formats it with the message

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return f"{self._label}{msg}", kwargs
