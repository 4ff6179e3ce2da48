"""Who may read and who may change: a token, and by which names browsers reach the page."""

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
"""Characters: nothing limits how often a token is guessed."""
_LONGEST_TOKEN = 1_000


@dataclass(frozen=True)
class Access:
    """What whoever reaches the page may do."""

    token: str = field(default="", repr=False)
    """Empty: whoever reaches the page may read."""
    steering: bool = False
    hosts: frozenset[str] = frozenset()
    """Names of this server."""

    @classmethod
    def of(cls, token: str, steering: bool, hosts: Iterable[str]) -> Access:
        """
        Raises:
            ConfigError: the token is too short, has other characters than a header may have, or is missing.
        """
        if steering and not token:
            raise ConfigError(
                "steering needs a token: without one, whoever reaches the page could stop crawls"
            )
        if token and not (token.isascii() and token.isprintable() and " " not in token):
            raise ConfigError("the token may have only printable ASCII characters, and no spaces")
        if token and not SHORTEST_TOKEN <= len(token) <= _LONGEST_TOKEN:
            raise ConfigError(f"the token has {len(token)} characters: it needs {SHORTEST_TOKEN} or more")
        return cls(token, steering, frozenset(name.lower().rstrip(".") for name in hosts))

    def admits(self, authorization: str) -> bool:
        """Tell whether a request with this Authorization header may read."""
        if not self.token:
            return True
        scheme, _, token = authorization.partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(token.encode(), self.token.encode())

    def knows(self, host: str) -> bool:
        """Tell whether a Host header names this page.

        A page of another site can have its own name resolve to this address, and then read from here as if
        this were that site (DNS rebinding). It needs a name for that: an address is none.
        """
        name = host.lower()
        name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0].rstrip(".")
        return name == "localhost" or name in self.hosts or is_address(name)


def given_token(file: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the token in *file*, or in the environment; "": there is none.

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
    """Return a token that nobody can guess."""
    return secrets.token_urlsafe(24)
