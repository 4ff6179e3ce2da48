"""The URLs of Redis: what they may be. An error shows nothing of them, because they may hold a password."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from scrapy_dq.settings.errors import ConfigError

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
    """Return the parts of a URL of Redis Sentinel; raise ValueError if it is none."""
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
    """Return the parts of a URL of a Redis Cluster; raise ValueError if it is none."""
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
