"""Where Redis is: how REDIS_HOST, REDIS_PORT and REDIS_DB combine with REDIS_URL and REDIS_PARAMS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from scrapy_dq.settings.setting import Setting, credentials, host, integer, socket_path, url

_SOCKETS = ("url", "unix_socket_path", "path")
_NAMES_REDIS = (*_SOCKETS, "host", "port", "db", "username", "password", "ssl")
"""Arguments that refer to a certain Redis, not to the embedded one."""
_CHECKS = {
    "url": url, "host": host, **dict.fromkeys(_SOCKETS[1:], socket_path), "credential_provider": credentials,
}  # fmt: skip
"""Of what is shown as the place of Redis: a password in it would be, too; and of what
redis-py only uses, with a traceback."""


def names_redis(params: Mapping[str, Any]) -> bool:
    """Tell whether REDIS_PARAMS alone names a Redis to connect to."""
    return any(params.get(name) for name in _NAMES_REDIS)


def name_place(given: Mapping[str, Any], values: dict[str, Any], place: Setting, port: Setting) -> None:
    """Complete *values* with the place of Redis, as scrapy-redis does: a setting overrides REDIS_PARAMS.

    A port or a database without a host refers to this machine.

    Args:
        given: the project's settings.
        values: their parsed values, by the fields of Config; changed.
        place, port: how a host and a port are checked.
    Raises:
        ConfigError: a place in REDIS_PARAMS is none.
    """
    params = values["redis_params"]
    for name, check in _CHECKS.items():
        if params.get(name):
            check(replace(place, name=f"{name} in REDIS_PARAMS"), params[name])
    port_given = given.get("REDIS_PORT") is not None
    db_given = bool(given.get("REDIS_DB"))  # as in scrapy-redis: 0 counts as not set
    address = values["redis_url"] or params.get("url")
    if address:
        # The URL itself overrides both.
        own_port = port_given and not address.startswith("unix:")
        more = ({"port": values["redis_port"]} if own_port else {}) | (
            {"db": values["redis_db"]} if db_given else {}
        )
        values["redis_params"] = params | more
        return
    if not values["redis_host"]:
        names_one = port_given or given.get("REDIS_DB") is not None or names_redis(params)
        if any(params.get(name) for name in _SOCKETS) or not names_one:
            return
        values["redis_host"] = params.get("host") or "localhost"
    if not port_given and params.get("port"):
        values["redis_port"] = integer(replace(port, name="port in REDIS_PARAMS"), params["port"])
