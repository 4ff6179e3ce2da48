"""The settings in a Config, for people: without passwords, secret keys and other credentials."""

from __future__ import annotations

from typing import Any

from scrapy_dq.settings import Config, Setting
from scrapy_dq.settings.config import SETTINGS
from scrapy_dq.text import printable, prose_without_logins, without_login

_LONGEST = 500


def settings_of(config: Config) -> list[dict[str, Any]]:
    """Return each setting with its value, and whether it is the default."""
    rows = []
    for setting in SETTINGS:
        value = getattr(config, setting.field)
        rows.append(
            {
                "name": setting.name,
                "value": printable(prose_without_logins(_text(setting, value), limit=_LONGEST), _LONGEST),
                "unit": setting.unit,
                "about": setting.doc,
                "default": value == setting.parsed_default,
            }
        )
    return rows


def _text(setting: Setting, value: Any) -> str:
    if setting.field == "redis_url":
        # The query may hold any argument of redis-py, as REDIS_PARAMS does. Some are secret.
        address, query, _ = without_login(value).partition("?")
        return f"{address}{query and '?...'}"
    if isinstance(value, dict) and setting.secret:  # any of the values may be secret
        return ", ".join(f"{name} = ..." for name in value)
    if setting.secret:
        return "..." if value else ""
    if isinstance(value, str):
        return str(getattr(value, "value", value))
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (bool, int)):
        return str(value)
    if value is None or isinstance(value, (tuple, dict)):
        return str(value or "")
    return f"{type(value).__module__}.{type(value).__qualname__}"
