"""From a spider and its settings to the parts that a worker and a command need, the same for both."""

from __future__ import annotations

import json
import logging
import os
import sys
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scrapy.utils.project import data_path
from scrapy.utils.python import global_object_name

from scrapy_dq.codec import BadSerializer, Codec, Serializer
from scrapy_dq.frontier.frontier import Frontier, Identity
from scrapy_dq.frontier.model import Seen, StartKeys
from scrapy_dq.settings import Config, ConfigError

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.settings import BaseSettings

logger = logging.getLogger(__name__)


def config_of(settings: BaseSettings, spider: Spider) -> Config:
    """Return the checked Config of a spider's crawl.

    Raises:
        ConfigError: at the first setting that is unknown or wrong.
    """
    return Config.read(settings, _names(settings, spider))


def codec_of(config: Config, settings: BaseSettings, spider: Spider) -> Codec:
    """Return the codec for requests of *spider*.

    Raises:
        ConfigError: the SCHEDULER_SERIALIZER does not work, or unpickles and is not trusted.
    """
    return Codec(
        spider,
        types=config.types,
        spider_modules=settings.getlist("SPIDER_MODULES"),
        schemes=config.url_schemes,
        max_bytes=config.max_entry_bytes,
        serializer=_serializer(config),
    )


def frontier_of(config: Config, client: Any, start_keys: StartKeys | None = None) -> Frontier:
    """Return the frontier of the crawl that *config* names."""
    seen = Seen.EXPIRING if config.seen_ttl_s else Seen.EXACT
    return Frontier(client, config.crawl, config.order, config.keep_failed, seen, start_keys)


def identity_of(config: Config, spider: Spider, fingerprinter: Any) -> Identity:
    """Return what must agree between all workers of the crawl."""
    return Identity(
        fingerprinter=global_object_name(type(fingerprinter)),
        spider=global_object_name(type(spider)),
        spider_args=json.dumps(_spider_args(), sort_keys=True),
        run_name=config.run_name,
        keep_seen=config.persist,
        partition_by=config.partition_by,
        seen_ttl_s=config.seen_ttl_s,
        limits=config.limits,
    )


def data_dir() -> Path:
    """Return the folder of the embedded Redis, in Scrapy's data directory."""
    try:
        return Path(data_path("dq"))
    except FileExistsError:
        # Scrapy makes .scrapy without expecting that a worker beside us makes it at the same moment.
        return Path(data_path("dq"))


def _serializer(config: Config) -> Serializer | None:
    if config.serializer is None:
        return None
    name = getattr(config.serializer, "__name__", None) or type(config.serializer).__name__
    try:
        serializer = Serializer(config.serializer)
    except BadSerializer as error:
        raise ConfigError(f"SCHEDULER_SERIALIZER = {name}: {error}") from error
    danger = serializer.runs_code
    if danger and not config.trust_pickle:
        raise ConfigError(
            f"SCHEDULER_SERIALIZER = {name}: {danger}, so whoever can write to this Redis could run code in "
            f"every worker. Leave the setting out: scrapy_dq stores requests without it. Or, if you trust "
            f"all who can write there, set DQ_TRUST_PICKLE = True"
        )
    if danger:
        logger.warning(
            "SCHEDULER_SERIALIZER = %s: %s. DQ_TRUST_PICKLE is set: whoever can write to this Redis can run "
            "code in this worker",
            name,
            danger,
        )
    return serializer


def _names(settings: BaseSettings, spider: Spider) -> dict[str, str]:
    """What DQ_CRAWL may refer to: spider, project, Scrapyd's job, and the spider's arguments."""
    names = {key: str(value) for key, value in vars(spider).items() if isinstance(value, (str, int))}
    names |= {"spider": spider.name, "project": settings["BOT_NAME"]}
    if "SCRAPY_JOB" in os.environ:
        names["job"] = os.environ["SCRAPY_JOB"]
    return names


def _spider_args() -> dict[str, str]:
    """Return the `-a NAME=VALUE` arguments of the command line, each value as a digest: it may be secret."""
    given = [value for flag, value in pairwise(sys.argv) if flag == "-a"]
    given += [value[2:] for value in sys.argv if value.startswith("-a") and "=" in value[2:]]
    pairs = (pair.split("=", 1) for pair in given if "=" in pair)
    return {name: _digest(value) for name, value in pairs}


def _digest(text: str) -> str:
    # The command line may hold bytes that are not UTF-8; Python has surrogates for them.
    return blake2b(text.encode(errors="surrogatepass"), digest_size=6).hexdigest()
