"""Stats: their names, and their sums over all workers."""

from typing import Any

from scrapy_dq.settings import ConfigError, peers


def __getattr__(name: str) -> Any:
    if name == peers.STATS_COLLECTOR:
        # As settings name it in which scrapy_redis was replaced by scrapy_dq. Not an AttributeError: of that,
        # Scrapy's load_object would hide the text.
        raise ConfigError(peers.wrong_stats_class(f"{__name__}.{name}"))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
