"""Makes the parts of a worker or a command from a spider and its settings, in the same way for both."""

from __future__ import annotations

import json
import logging
import os
from typing import Any

from scrapy.crawler import Crawler
from scrapy.utils.python import global_object_name

from scrapy_dq.backend.connection import Connection
from scrapy_dq.codec import BadSerializer, BadType, Codec, Serializer
from scrapy_dq.codec.serializer import SAFE_MODULES
from scrapy_dq.environment import are_comparable, names_of, spider_args
from scrapy_dq.frontier.admin.flush import PURGE_S, flush, flush_all
from scrapy_dq.frontier.answers import Flushed
from scrapy_dq.frontier.frontier import Frontier
from scrapy_dq.frontier.model import MAX_LEASES, Census, Identity, StartKeys
from scrapy_dq.frontier.worker.options import WorkerOptions
from scrapy_dq.settings import Config, ConfigError
from scrapy_dq.start_urls.keys import start_keys_of

logger = logging.getLogger(__name__)
RESTART_WINDOW_S = 60.0
"""For this many seconds after the end of a run, a new worker counts as one that a supervisor has restarted
(Kubernetes does so after 10, 20 and 40 s), and begins no new run. With another DQ_RUN_NAME, a worker begins a
run at once."""


def config_of(crawler: Crawler) -> Config:
    """Return the checked Config of a crawler that has its spider.

    Raises:
        ConfigError: at the first setting that is unknown or wrong.
    """
    assert crawler.spider is not None
    return Config.read(crawler.settings, names_of(crawler, crawler.spider))


def codec_of(config: Config, crawler: Crawler) -> Codec:
    """Return the codec for requests of a crawler's spider.

    Raises:
        ConfigError: SCHEDULER_SERIALIZER does not work, or may read pickles and is not trusted; or DQ_TYPES
            lists a class that cannot be stored.
    """
    assert crawler.spider is not None
    try:
        return Codec(
            crawler.spider,
            types=config.types,
            spider_modules=crawler.settings.getlist("SPIDER_MODULES"),
            schemes=config.url_schemes,
            max_bytes=config.max_entry_bytes,
            serializer=_serializer(config),
        )
    except BadType as error:
        raise ConfigError(f"DQ_TYPES: {error}") from error


def frontier_of(config: Config, client: Any, start_keys: StartKeys | None = None, shard: int = 0) -> Frontier:
    """Return the frontier of one shard of the crawl that *config* names, by default of home."""
    # Only home has start keys, and claimed start payloads stay there.
    return Frontier(
        client, config.crawl, config.order, config.seen_kind, None if shard else start_keys,
        config.wait_replicas, config.redis_timeout_s / 2, shard=shard,
    )  # fmt: skip


async def frontiers_of(
    config: Config, connection: Connection, start_keys: StartKeys | None = None
) -> list[Frontier]:
    """Return the frontiers of all shards of the crawl, home first. The connection must be open."""
    return [
        frontier_of(config, await connection.client_of(shard), start_keys, shard)
        for shard in range(config.shards)
    ]


async def flush_crawl(config: Config, connection: Connection) -> Census:
    """Delete the crawl in all its shards, and return the deleted counts. The connection must be open.

    Raises:
        FrontierRefused: a worker is live; nothing was deleted.
    """

    async def of_shard(number: int) -> Frontier:
        return frontier_of(config, await connection.client_of(number), shard=number)

    async def delete(home: Frontier) -> Flushed:
        return await flush(home, config.worker_ttl_s)

    first, *others = await flush_all(delete, of_shard, config.shards, PURGE_S)
    return sum((each.deleted for each in others), first.deleted)


def options_of(config: Config, max_per_partition: int = MAX_LEASES) -> WorkerOptions:
    """Return the options of a worker; see `WorkerOptions`."""
    return WorkerOptions(
        ttl_s=config.worker_ttl_s,
        rollback_horizon_s=config.rollback_horizon_s,
        max_attempts=config.max_attempts,
        max_pages=config.max_pages or None,
        spill_dir=os.path.expanduser(config.data_dir),
        max_per_partition=max_per_partition,
    )


def identity_of(config: Config, crawler: Crawler) -> Identity:
    """Return the values that all workers of the crawl must agree on."""
    assert crawler.spider is not None
    named = spider_args(crawler)
    args, own = json.dumps(named, sort_keys=True), not are_comparable(named)
    listens = start_keys_of(crawler.spider, config) is not None
    return Identity(
        fingerprinter=global_object_name(type(crawler.request_fingerprinter)),
        spider=global_object_name(type(crawler.spider)),
        spider_args=args,
        run_name=config.run_name,
        keep_seen=config.persist,
        partition_by=config.partition_by,
        shards=config.shards,
        seen_ttl_s=config.seen_ttl_s,
        limits=config.limits,
        # The star means that start() methods of this name may yield different requests: DQ_SEED_ONCE is
        # False, or the digests do not identify the arguments.
        starts=("" if config.seed_once and not own else "*") + args,
        # If a spider reads start keys, its user may start it again soon, so that it reads more payloads.
        restart_window_s=0.0 if listens or own else RESTART_WINDOW_S,
    )


def identity_without_spider(config: Config, *, order_given: bool) -> Identity:
    """Return the identity of a program that has no spider. The program accepts the stored values."""
    return Identity(
        "", "", "", keep_seen=None, partition_by="", limits=None, shards=config.shards,
        order_given=order_given, seen_given=False,
    )  # fmt: skip


def _serializer(config: Config) -> Serializer | None:
    if config.serializer is None:
        return None
    name = getattr(config.serializer, "__name__", None) or type(config.serializer).__name__
    try:
        serializer = Serializer(config.serializer)
    except BadSerializer as error:
        raise ConfigError(f"SCHEDULER_SERIALIZER = {name}: {error}") from error
    if not serializer.safe and not config.trust_pickle:
        raise ConfigError(
            f"SCHEDULER_SERIALIZER = {name}: its loads() is not among the functions that are known to run no "
            f"code ({', '.join(SAFE_MODULES)}). If it reads pickles, any program that writes to this "
            f"Redis could run code in every worker. Leave the setting out: scrapy_dq stores requests without "
            f"it. Or, if you know what it does, or trust all who can write there, set DQ_TRUST_PICKLE = True"
        )
    if not serializer.safe:
        logger.warning(
            "SCHEDULER_SERIALIZER = %s: DQ_TRUST_PICKLE is set. If its loads() reads pickles, any program "
            "that can write to this Redis can run code in this worker",
            name,
        )
    return serializer
