"""The address of Redis, and the arguments of its client.

This module decides how REDIS_HOST, REDIS_PORT and REDIS_DB combine with REDIS_URL and REDIS_PARAMS, which
URLs are allowed, and which types arguments have. Errors never quote a URL, because it may hold a password.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote, urlsplit

from scrapy_dq.settings.setting import ConfigError, Setting, integer, number, text
from scrapy_dq.text import has_login

PLAIN = ("redis", "rediss", "unix")
SENTINEL = ("redis+sentinel", "rediss+sentinel")
CLUSTER = ("redis+cluster", "rediss+cluster")
PORT, SENTINEL_PORT = 6379, 26379
Hosts = tuple[tuple[str, int], ...]
_DATABASE = re.compile(r"/*(?:[0-9]+/*)?")
_HOST = re.compile(r"(?:\[(?P<ipv6>[0-9a-fA-F:.%]+)\]|(?P<name>[^\s:,\[\]@/?#]+))(?::(?P<port>[0-9]{1,5}))?")


def names_cluster(url: str) -> bool:
    """Tell whether *url* belongs to a Redis Cluster."""
    return url.partition("://")[0] in CLUSTER


def names_sentinel(url: str) -> bool:
    """Tell whether *url* belongs to Redis Sentinel."""
    return url.partition("://")[0] in SENTINEL


def with_tls(url: str) -> str:
    """Return *url* with the scheme of TLS, or unchanged if it names a unix socket."""
    return re.sub(r"^redis(?!s)", "rediss", url)


def split_sentinel_url(url: str) -> tuple[Hosts, str, str]:
    """Return the hosts, the service's name, and a URL for redis-py with a placeholder for the master's host.

    Args:
        url: `redis+sentinel://[user:password@]host[:port][,host[:port]...]/service[/db][?option=value...]`.
    Raises:
        ValueError: the URL has another form.
    """
    scheme, _, rest = url.partition("://")
    # urlsplit() would take several hosts for one host with a wrong port.
    address, _, path = rest.partition("/")
    path, mark, query = path.partition("?")
    service, _, database = path.rstrip("/").partition("/")
    # The text after an unescaped / ? or # in a password would be taken for the service.
    is_password = set("@#") & set(path + query) or set("/?#") & set(address)
    if scheme not in SENTINEL or is_password or not service or not re.fullmatch(r"[0-9]*", database):
        raise ValueError("no URL of Redis Sentinel")
    login, hosts = _login_and_hosts(address, SENTINEL_PORT)
    master_url = f"{_plain(scheme)}://{login}localhost/{database}{mark}{query}"
    return hosts, unquote(service), master_url


def split_cluster_url(url: str) -> tuple[Hosts, str]:
    """Return the hosts, and a URL of the first one for redis-py.

    Args:
        url: `redis+cluster://[user:password@]host[:port][,host[:port]...][?option=value...]`.
    Raises:
        ValueError: the URL has another form.
    """
    scheme, _, rest = url.partition("://")
    address, mark, query = rest.partition("?")
    address, _, database = address.partition("/")  # a cluster has only database 0
    if scheme not in CLUSTER or database.strip("/") not in ("", "0") or set("@#") & set(query):
        raise ValueError("no URL of a Redis Cluster")
    login, hosts = _login_and_hosts(address, PORT)
    host, port = hosts[0]
    first = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return hosts, f"{_plain(scheme)}://{login}{first}/0{mark}{query}"


def _login_and_hosts(address: str, port: int) -> tuple[str, Hosts]:
    """Return the login, with its @, and each host with its port; *port* is the default."""
    login, at, names = address.rpartition("@")
    hosts = []
    for each in map(_HOST.fullmatch, names.split(",")):
        if each is None or not 0 < int(each["port"] or port) < 65_536:
            raise ValueError("no host of Redis")
        hosts.append((each["ipv6"] or each["name"], int(each["port"] or port)))
    if "#" in login:
        raise ValueError("a password that is not percent-encoded")
    return login + at, tuple(hosts)


def _plain(scheme: str) -> str:
    return "rediss" if scheme.startswith("rediss") else "redis"


def check_url(name: str, url: str) -> None:
    """Refuse a URL of Redis if a part of the password would be taken for something else, and shown.

    An unescaped / ? or # in a password ends the host there. Then the password's beginning would be printed as
    the host or the port, or its end as the path of a socket.

    Raises:
        ConfigError: the message quotes nothing from the URL.
    """
    try:
        if names_sentinel(url):
            split_sentinel_url(url)
        elif names_cluster(url):
            split_cluster_url(url)
        elif url:
            _check_plain(url)
    except ValueError:
        raise wrong_url(name) from None


def _check_plain(url: str) -> None:
    parts = urlsplit(url)
    parts.port  # noqa: B018  # raises if it is not a number
    # urlsplit() strips blanks and lowers the scheme. redis-py does not do all of this, so it would raise
    # later, and end a thread.
    known = parts.scheme in PLAIN and url.startswith(parts.scheme)
    # An @ after the host may be the end of a login. The path of a socket may have an @, but only in a URL
    # without a host.
    cut = "@" in parts.path + parts.query + parts.fragment and (parts.netloc or parts.scheme != "unix")
    # For a path that is no number, redis-py would use database 0. But the path may be the end of a password.
    odd = parts.scheme != "unix" and not _DATABASE.fullmatch(unquote(parts.path))
    if not known or cut or odd:
        raise ValueError


def wrong_url(name: str) -> ConfigError:
    """Return the error for a URL of Redis. It quotes nothing from the URL or from another error about it."""
    return ConfigError(
        f"{name} (not shown here): expected redis://user:password@host:6379/0, rediss:// with TLS, "
        f"unix:///path, redis+sentinel://host:26379/service/0 or redis+cluster://host:6379; with special "
        f"characters of user and password percent-encoded (/ is %2F, # is %23, @ is %40)"
    )


def host(setting: Setting, value: Any) -> str:
    """Check a host, or the path of a socket. Logs show the value, so it must not contain a login."""
    if "://" in text(setting, value) or has_login(value):
        raise setting.wrong(value, "the name of a host, or the path of a socket; a URL belongs in REDIS_URL")
    return str(value)


def url(setting: Setting, value: Any) -> str:
    check_url(setting.name, text(setting, value))
    return str(value)


_SOCKETS = ("url", "unix_socket_path", "path")
_NAMES_REDIS = (*_SOCKETS, "host", "port", "db", "username", "password", "ssl")
"""Arguments that name a certain Redis, not the embedded one."""
_CHECKS: dict[str, tuple[Any, float | None, float | None]] = {
    "url": (url, None, None), **dict.fromkeys(("host", *_SOCKETS[1:]), (host, None, None)),
    "port": (integer, 1, 65_535),
    **dict.fromkeys(("socket_timeout", "socket_connect_timeout"), (number, 0.1, None)),
}  # fmt: skip
"""Arguments in REDIS_PARAMS that are checked, with their range; redis-py checks the others."""


def names_redis(params: Mapping[str, Any]) -> bool:
    """Tell whether REDIS_PARAMS alone names a Redis to connect to."""
    return any(params.get(name) for name in _NAMES_REDIS)


def name_place(given: Mapping[str, Any], values: dict[str, Any]) -> None:
    """Complete *values* with the address of Redis. As in scrapy-redis, a setting overrides REDIS_PARAMS.

    A port or a database without a host refers to this machine.

    Args:
        given: the project's settings.
        values: their parsed values, by the fields of Config. This function changes the dict.
    Raises:
        ConfigError: an argument in REDIS_PARAMS is wrong.
    """
    params = values["redis_params"]
    for name, (parse, low, high) in _CHECKS.items():
        if params.get(name):
            setting = Setting(f"{name} in REDIS_PARAMS", "", None, parse, "", low, high, secret=True)
            params[name] = parse(setting, params[name])
    port_given = given.get("REDIS_PORT") is not None
    db_given = bool(given.get("REDIS_DB"))  # as in scrapy-redis: 0 counts as not set
    address = values["redis_url"] or params.get("url")
    if address:
        # A port and a database in the URL override these arguments.
        if port_given and not address.startswith("unix:"):
            params["port"] = values["redis_port"]
        if db_given:
            params["db"] = values["redis_db"]
        return
    if not values["redis_host"]:
        names_one = port_given or given.get("REDIS_DB") is not None or names_redis(params)
        if any(params.get(name) for name in _SOCKETS) or not names_one:
            return
        values["redis_host"] = params.get("host") or "localhost"
    if not port_given and params.get("port"):
        values["redis_port"] = params["port"]
