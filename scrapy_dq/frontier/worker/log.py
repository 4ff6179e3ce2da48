"""Log lines about one shard: those about another one than home name it."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

from scrapy_dq.frontier.keys import HOME, Shard


def label_of(shard: Shard) -> str:
    """Return what the lines about a shard begin with; of home: empty."""
    return "" if shard.number == HOME else f"Shard {shard.number} of crawl {shard.crawl!r}: "


class ShardLog(logging.LoggerAdapter):  # type: ignore[type-arg]  # a class without arguments in 3.10
    """The logger of a module for its work in one shard."""

    def __init__(self, logger: logging.Logger, shard: Shard) -> None:
        super().__init__(logger, {})
        self._label = label_of(shard).replace("%", "%%")  # logging formats it with the message

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return f"{self._label}{msg}", kwargs
