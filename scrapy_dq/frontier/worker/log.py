"""Log lines about one shard, which name it if the crawl has several."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

from scrapy_dq.frontier.keys import Shard

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter


def label_of(shard: Shard, shards: int) -> str:
    """Return what the lines about a shard of a crawl with so many begin with; of one alone: empty."""
    return f"Shard {shard.number} of crawl {shard.crawl!r}: " if shards > 1 else ""


class ShardLog(_Adapter):
    """The logger of a module, for what it does in one shard; *label*: see `label_of`."""

    def __init__(self, logger: logging.Logger, label: str) -> None:
        super().__init__(logger, {})
        self._label = label.replace("%", "%%")  # logging formats it with the message

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return f"{self._label}{msg}", kwargs
