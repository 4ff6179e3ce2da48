"""Decide who may read and who may change crawls: by token, and by the page's host names."""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scrapy_dq.hostnames import is_address
from scrapy_dq.hostnames import is_loopback as is_loopback
from scrapy_dq.settings import ConfigError

TOKEN_VARIABLE = "DQ_WEB_TOKEN"
SHORTEST_TOKEN = 16
"""Minimum number of characters of a token. It is high, because nothing limits the number of guesses."""
_LONGEST_TOKEN = 1_000


@dataclass(frozen=True)
class Access:
    """The rights of a user who reaches the page."""

    token: str = field(default="", repr=False)
    """The token that each reader needs. If it is empty, anyone who reaches the page may read."""
    steering: bool = False
    hosts: frozenset[str] = frozenset()
    """Names under which browsers may reach this server, in lower case."""

    @classmethod
    def of(cls, token: str, steering: bool, hosts: Iterable[str]) -> Access:
        """Check the token, and normalize the names of hosts.

        Raises:
            ConfigError: the token is too short or too long, has characters that a header may not have, or is
                missing although *steering* needs it.
        """
        if steering and not token:
            raise ConfigError(
                "steering needs a token: without one, anyone who reaches the page could stop crawls"
            )
        if token and not (token.isascii() and token.isprintable() and " " not in token):
            raise ConfigError("the token may have only printable ASCII characters, and no spaces")
        if token and not SHORTEST_TOKEN <= len(token) <= _LONGEST_TOKEN:
            raise ConfigError(
                f"the token has {len(token)} characters: it needs {SHORTEST_TOKEN} to {_LONGEST_TOKEN:,}"
            )
        return cls(token, steering, frozenset(name.lower().rstrip(".") for name in hosts))

    def admits(self, authorization: str) -> bool:
        """Return whether a request with this Authorization header may read."""
        if not self.token:
            return True
        scheme, _, token = authorization.partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(token.encode(), self.token.encode())

    def knows(self, host: str) -> bool:
        """Return whether a Host header names this page.

        Another site can resolve its own name to this server's address. Browsers then let that site's page
        read from here as from its own site (DNS rebinding). This attack needs a host name, so a Host header
        with an IP address is safe.
        """
        name = host.lower()
        name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0].rstrip(".")
        return name == "localhost" or name in self.hosts or is_address(name)


def given_token(file: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the token in *file* or in the environment; "" if there is no token.

    Raises:
        ConfigError: the file cannot be read, or is empty.
    """
    if not file:
        return environ.get(TOKEN_VARIABLE, "").strip()
    try:
        token = Path(file).read_text("utf-8")[: 10 * _LONGEST_TOKEN].strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the token file {file!r} cannot be read: {error}") from error
    if not token:
        raise ConfigError(f"the token file {file!r} is empty")
    return token


def new_token() -> str:
    """Return a random token that cannot be guessed."""
    return secrets.token_urlsafe(24)
