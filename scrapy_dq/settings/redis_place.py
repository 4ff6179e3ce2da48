"""Where Redis is, and the arguments of its client.

How REDIS_HOST, REDIS_PORT and REDIS_DB combine with REDIS_URL and REDIS_PARAMS, and which types the arguments
in REDIS_PARAMS and in the query of REDIS_URL have.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import unquote_plus

from scrapy_dq.settings.setting import Setting, credentials, host, integer, number, socket_path, url

_SOCKETS = ("url", "unix_socket_path", "path")
_NAMES_REDIS = (*_SOCKETS, "host", "port", "db", "username", "password", "ssl")
"""Arguments that refer to a certain Redis, not to the embedded one."""
_CHECKS = {
    "url": url, "host": host, **dict.fromkeys(_SOCKETS[1:], socket_path), "credential_provider": credentials,
}  # fmt: skip
"""Of what is shown as the place of Redis: a password in it would be, too; and of what
redis-py only uses, with a traceback."""


_IN_PARAMS, _IN_QUERY = "REDIS_PARAMS", "the query of REDIS_URL"
_FLAGS = {"true": True, "1": True, "yes": True, "y": True, "t": True} | {
    "false": False, "0": False, "no": False, "n": False, "f": False, "": False,
}  # fmt: skip
"""As redis-py reads them in a URL."""


def _flag(setting: Setting, value: Any) -> bool:
    found = _FLAGS.get(str(value).lower())
    if found is None:
        raise setting.wrong(value, "True or False")
    return found


_TYPES: dict[str, tuple[Any, float | None, float | None]] = {
    "db": (integer, 0, 1_000_000), "port": (integer, 1, 65_535), "protocol": (integer, 2, 3),
    "max_connections": (integer, 1, None), "socket_read_size": (integer, 1, None),
    "health_check_interval": (integer, 0, None), "timeout": (number, 0, None),
    "socket_timeout": (number, 0.1, None), "socket_connect_timeout": (number, 0.1, None),
    **dict.fromkeys(
        ("ssl", "socket_keepalive", "ssl_check_hostname", "ssl_validate_ocsp", "ssl_validate_ocsp_stapled"),
        (_flag, None, None),
    ),
}  # fmt: skip
"""How arguments of redis-py are checked that are no text, with their range."""
_LEFT_AS_TEXT = ("protocol", "socket_read_size", "ssl", "ssl_validate_ocsp", "ssl_validate_ocsp_stapled")
"""Arguments whose text redis-py does not convert if they are in a URL."""


def typed(params: Mapping[str, Any], where: str = _IN_PARAMS) -> dict[str, Any]:
    """Return arguments of redis-py with the types that it expects: a number may be given as text.

    Raises:
        ConfigError: a value is wrong; it names the argument.
    """
    found = dict(params)
    for name, value in params.items():
        known = _TYPES.get(name.removeprefix("sentinel_") if isinstance(name, str) else name)
        if known is not None and value is not None:
            parse, low, high = known
            found[name] = parse(Setting(f"{name} in {where}", "", None, parse, "", low, high), value)
    return found


def split_arguments(address: str) -> tuple[str, dict[str, Any]]:
    """Return a URL of Redis without the arguments in its query that redis-py would leave as text; and these.

    Raises:
        ConfigError: the value of an argument is wrong; it names the argument.
    """
    place, mark, query = address.partition("?")
    pairs = [(pair, *map(unquote_plus, pair.partition("=")[::2])) for pair in query.split("&") if pair]
    values = typed({name: value for _, name, value in pairs}, _IN_QUERY)
    kept = "&".join(pair for pair, name, _ in pairs if name.removeprefix("sentinel_") not in _LEFT_AS_TEXT)
    own = {name: values[name] for name in values if name.removeprefix("sentinel_") in _LEFT_AS_TEXT}
    return f"{place}{mark if kept else ''}{kept}" if own else address, own


def names_redis(params: Mapping[str, Any]) -> bool:
    """Tell whether REDIS_PARAMS alone names a Redis to connect to."""
    return any(params.get(name) for name in _NAMES_REDIS)


def name_place(given: Mapping[str, Any], values: dict[str, Any], place: Setting) -> None:
    """Complete *values* with the place of Redis, as scrapy-redis does: a setting overrides REDIS_PARAMS.

    A port or a database without a host refers to this machine.

    Args:
        given: the project's settings.
        values: their parsed values, by the fields of Config; changed.
        place: how a host is checked.
    Raises:
        ConfigError: an argument in REDIS_PARAMS, or in the query of the URL, is wrong.
    """
    params = values["redis_params"] = typed(values["redis_params"])
    for name, check in _CHECKS.items():
        if params.get(name):
            check(replace(place, name=f"{name} in REDIS_PARAMS"), params[name])
    port_given = given.get("REDIS_PORT") is not None
    db_given = bool(given.get("REDIS_DB"))  # as in scrapy-redis: 0 counts as not set
    address = values["redis_url"] or params.get("url")
    if address:
        split_arguments(address)
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
        values["redis_port"] = params["port"]
