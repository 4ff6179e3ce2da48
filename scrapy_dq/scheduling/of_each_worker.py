"""Settings of Scrapy that apply to each worker separately, and what applies to all workers together."""

from __future__ import annotations

from collections.abc import Iterator

from scrapy.crawler import Crawler

from scrapy_dq.settings import Config

CLOSING_COUNTS = (
    "CLOSESPIDER_ITEMCOUNT", "CLOSESPIDER_PAGECOUNT", "CLOSESPIDER_PAGECOUNT_NO_ITEM",
    "CLOSESPIDER_ERRORCOUNT",
)  # fmt: skip


def warnings_of_each_worker(crawler: Crawler, config: Config) -> Iterator[str]:
    """Yield a warning for each setting of the project that several workers multiply."""
    settings = crawler.settings
    delay_s = getattr(crawler.spider, "download_delay", None) or settings.getfloat("DOWNLOAD_DELAY")
    pace = [f"DOWNLOAD_DELAY = {delay_s:g}"] if delay_s else []
    if settings.getbool("AUTOTHROTTLE_ENABLED") and not config.domain_concurrency:
        pace.append("AUTOTHROTTLE_ENABLED = True")
    if pace and not (config.partition_by == "none" or config.domain_delay_s or config.domain_limits):
        yield (
            f"{', '.join(pace)}: each worker keeps its own pace, and together they send a site more "
            f"requests. DQ_DOMAIN_DELAY and DQ_DOMAIN_CONCURRENCY apply to all workers together"
        )
    counts = [f"{name} = {count}" for name in CLOSING_COUNTS if (count := settings.getint(name))]
    if counts and not config.max_pages:
        yield (
            f"{', '.join(counts)}: each worker counts separately, and closes only itself. DQ_MAX_PAGES "
            f"limits the pages of all workers together"
        )
