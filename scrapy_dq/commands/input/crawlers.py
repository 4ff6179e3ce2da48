"""Make a crawler with the spider and settings of `scrapy crawl`, but without an engine."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

from scrapy.addons import AddonManager
from scrapy.crawler import Crawler
from scrapy.settings import Settings
from scrapy.spiderloader import SpiderLoader
from scrapy.utils.misc import build_from_crawler, load_object

from scrapy_dq.commands.subcommand import CommandError
from scrapy_dq.text import suggestion

LOADER = "SPIDER_LOADER_CLASS"


class NoSpiders(SpiderLoader):
    """Loads no spiders."""

    @classmethod
    def from_settings(cls, settings: Any) -> NoSpiders:
        return super().from_settings(Settings())


def spider_names(settings: Settings) -> list[str]:
    """Return the names of the project's spiders.

    Raises:
        CommandError: the spiders cannot be loaded.
    """
    settings = settings.copy()
    AddonManager.load_pre_crawler_settings(settings)
    return sorted(_loader(settings).list())


def _loader(settings: Settings) -> Any:
    try:
        return load_object(settings["SPIDER_LOADER_CLASS"]).from_settings(settings.frozencopy())
    except Exception as error:  # the modules of the project may raise anything
        raise CommandError(
            f"the project's spiders cannot be loaded: {_place_of(error)}: {type(error).__name__}: "
            f"{getattr(error, 'msg', error)} (most commands need no spider with --crawl NAME)"
        ) from error


def _place_of(error: Exception) -> str:
    """Return file and line of the project's code that raised *error*."""
    from scrapy_dq.commands.output.display import short

    frames = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        frames.append((error.filename, error.lineno))
    files = [(Path(name), line) for name, line in frames if not name.startswith("<")]
    own = [each for each in files if Path.cwd() in each[0].parents and "site-packages" not in each[0].parts]
    name, line = (own or files)[-1]
    return f"{short(name)}:{line}"


def prepared_crawler(settings: Settings, spider_name: str, spider_args: dict[str, str]) -> Crawler:
    """Return a crawler with its spider, its add-ons' settings and its fingerprinter.

    Raises:
        CommandError: the spiders cannot be loaded, or the spider does not exist or cannot be created.
    """
    AddonManager.load_pre_crawler_settings(settings)
    loader = _loader(settings)
    try:
        spidercls = loader.load(spider_name)
    except KeyError:
        hint = suggestion(spider_name, sorted(loader.list()), "spiders")
        raise CommandError(f"there is no spider {spider_name!r} in this project: {hint}") from None
    crawler = Crawler(spidercls, settings)
    try:
        # The order matters. Source: scrapy/crawler.py::Crawler.crawl
        crawler.spider = spidercls.from_crawler(crawler, **spider_args)
        crawler.addons.load_settings(crawler.settings)
        fingerprinter = load_object(crawler.settings["REQUEST_FINGERPRINTER_CLASS"])
        crawler.request_fingerprinter = build_from_crawler(fingerprinter, crawler)
    except Exception as error:
        raise CommandError(
            f"the spider {spider_name!r} cannot be created: {type(error).__name__}: {error}"
        ) from error
    return crawler
