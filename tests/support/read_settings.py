"""Reads settings for one crawl, as tests of settings need it."""

from __future__ import annotations

from typing import Any

from scrapy_dq.settings import SETTINGS, Config

NAMES = {"spider": "books", "project": "shop", "job": "j1", "category": "poetry"}
BY_NAME = {setting.name: setting for setting in SETTINGS}


def read(**settings: Any) -> Config:
    return Config.read(settings, NAMES)
