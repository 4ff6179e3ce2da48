"""Reads settings for one crawl, for tests of settings."""

from __future__ import annotations

from typing import Any

from scrapy_dq.settings import SETTINGS, Config

NAMES = {"spider": "books", "project": "shop", "job": "j1", "category": "poetry"}
BY_NAME = {setting.name: setting for setting in SETTINGS}


def read(**settings: Any) -> Config:
    return Config.read(settings, NAMES)
