"""Where Redis is, and the arguments of its client.

How REDIS_HOST, REDIS_PORT and REDIS_DB combine with REDIS_URL and REDIS_PARAMS, what a URL may be, and
which types arguments have. No error shows anything of a URL, because it may hold a password.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple
from urllib.parse import unquote, unquote_plus, urlsplit

from scrapy_dq.settings.setting import ConfigError, Setting, integer, number, text

PLAIN = ("redis", "rediss", "unix")
SENTINEL = ("redis+sentinel", "rediss+sentinel")
CLUSTER = ("redis+cluster", "rediss+cluster")
PORT, SENTINEL_PORT = 6379, 26379
_DATABASE = re.compile(r"/*(?:[0-9]+/*)?")
_HOST = re.compile(r"(?:\[(?P<ipv6>[0-9a-fA-F:.%]+)\]|(?P<name>[^\s:,\[\]@/?#]+))(?::(?P<port>[0-9]{1,5}))?")


class SentinelUrl(NamedTuple):
    """`redis+sentinel://[user:password@]host[:port][,host[:port]...]/service[/db][?option=value...]`."""

    hosts: tuple[tuple[str, int], ...]
    service: str
    """The name under which Sentinel knows the master and its replicas."""
    master_url: str
    """For redis-py: the user, password, database and options of the master; its host is a placeholder."""


class ClusterUrl(NamedTuple):
    """`redis+cluster://[user:password@]host[:port][,host[:port]...][?option=value...]`."""

    hosts: tuple[tuple[str, int], ...]
    node_url: str
    """For redis-py: the user, password and options of each node; its host is the first one."""


def names_cluster(url: str) -> bool:
    """Tell whether *url* is one of a Redis Cluster."""
    return url.partition("://")[0] in CLUSTER


def names_sentinel(url: str) -> bool:
    """Tell whether *url* is one of Redis Sentinel."""
    return url.partition("://")[0] in SENTINEL


def with_tls(url: str) -> str:
    """Return *url* with the scheme of TLS; a unix socket has none."""
    return re.sub(r"^redis(?!s)", "rediss", url)


def split_sentinel_url(url: str) -> SentinelUrl:
    """Return the parts of a URL of Redis Sentinel; raise ValueError for any other."""
    scheme, _, rest = url.partition("://")
    # Not urlsplit: it takes several hosts for one with a wrong port.
    where, _, path = rest.partition("/")
    path, mark, query = path.partition("?")
    service, _, database = path.rstrip("/").partition("/")
    # What follows an unescaped / ? or # of a password would be taken for the service.
    is_password = set("@#") & set(path + query) or set("/?#") & set(where)
    if scheme not in SENTINEL or is_password or not service or not re.fullmatch(r"[0-9]*", database):
        raise ValueError("no URL of Redis Sentinel")
    login, hosts = _login_and_hosts(where, SENTINEL_PORT)
    master_url = f"{_plain(scheme)}://{login}localhost/{database}{mark}{query}"
    return SentinelUrl(hosts, unquote(service), master_url)


def split_cluster_url(url: str) -> ClusterUrl:
    """Return the parts of a URL of a Redis Cluster; raise ValueError for any other."""
    scheme, _, rest = url.partition("://")
    where, mark, query = rest.partition("?")
    where, _, database = where.partition("/")  # a cluster has only one
    if scheme not in CLUSTER or database.strip("/") not in ("", "0") or set("@#") & set(query):
        raise ValueError("no URL of a Redis Cluster")
    login, hosts = _login_and_hosts(where, PORT)
    host, port = hosts[0]
    first = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return ClusterUrl(hosts, f"{_plain(scheme)}://{login}{first}/0{mark}{query}")


def _login_and_hosts(where: str, port: int) -> tuple[str, tuple[tuple[str, int], ...]]:
    """Return the login, with its @, and each host with its port, or *port*."""
    login, at, names = where.rpartition("@")
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
    """Refuse a URL of Redis from which a part of the password would be taken for something else, and shown.

    An unescaped / ? or # in a password ends the host there: its beginning would be printed as the host or the
    port, or its end as the path of a socket.

    Raises:
        ConfigError: it shows nothing of the URL.
    """
    try:
        if names_sentinel(url):
            split_sentinel_url(url)
            return
        if names_cluster(url):
            split_cluster_url(url)
            return
        parts = urlsplit(url)
        # urlsplit strips blanks and lowers the scheme, and not all of redis-py does: a thread would end.
        if parts.scheme and not url.startswith(parts.scheme):
            raise ValueError
        if parts.scheme in PLAIN:
            parts.port  # noqa: B018  # raises if it is no number
            # The path of a socket may have an @, if no login may have ended in it.
            if "@" in parts.path + parts.query + parts.fragment and (parts.netloc or parts.scheme != "unix"):
                raise ValueError
        elif url:
            raise ValueError
    except ValueError:
        raise wrong_url(name) from None
    if parts.scheme in ("redis", "rediss") and not _DATABASE.fullmatch(unquote(parts.path)):
        # redis-py would use database 0. What is there may be the end of a password.
        raise ConfigError(
            f"{name} (not shown here): expected the number of a database after the host, for example "
            f"redis://host:6379/0, and nothing else"
        )


def wrong_url(name: str) -> ConfigError:
    """Return the error for a URL of Redis: with nothing of it, and of no other error about it."""
    return ConfigError(
        f"{name} (not shown here): expected redis://, rediss:// or unix://, for example "
        f"redis://user:password@host:6379/0; redis+sentinel:// or rediss+sentinel://, for example "
        f"redis+sentinel://user:password@host:26379,host2:26379/service/0; redis+cluster:// or "
        f"rediss+cluster://, for example redis+cluster://user:password@host:6379,host2:6379; with special "
        f"characters of user and password percent-encoded (/ is %2F, # is %23, @ is %40)"
    )


def host(setting: Setting, value: Any) -> str:
    if set(name := text(setting, value)) & set("@/ \t\r\n"):
        raise setting.wrong(value, "the name or the address of a host; a URL belongs in REDIS_URL")
    return name


def url(setting: Setting, value: Any) -> str:
    check_url(setting.name, text(setting, value))
    return str(value)


def socket_path(setting: Setting, value: Any) -> Any:
    if "://" in str(value):
        raise setting.wrong(value, "the path of a unix socket; a URL belongs in REDIS_URL")
    return value


def credentials(setting: Setting, value: Any) -> Any:
    if not callable(getattr(value, "get_credentials", None)):
        raise setting.wrong(
            value, "an object of redis-py's CredentialProvider, or of your own with its methods"
        )
    return value


_SOCKETS = ("url", "unix_socket_path", "path")
_NAMES_REDIS = (*_SOCKETS, "host", "port", "db", "username", "password", "ssl")
"""Arguments that refer to a certain Redis, not to the embedded one."""
_CHECKS = {
    "url": url, "host": host, **dict.fromkeys(_SOCKETS[1:], socket_path), "credential_provider": credentials,
}  # fmt: skip
"""Log lines show the first four as the place of Redis, with a password that is in them. redis-py reports a
wrong provider by a traceback."""


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
