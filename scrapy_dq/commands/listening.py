"""Shared by the commands that serve something: their address, and the token that they ask for."""

from __future__ import annotations

import argparse
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from scrapy_dq.commands import looking
from scrapy_dq.commands.streams import ended_quietly
from scrapy_dq.commands.subcommand import CommandError, WrongUsage
from scrapy_dq.extras import pip_install
from scrapy_dq.web.access import TOKEN_VARIABLE, given_token, is_loopback

HOST = "127.0.0.1"
MOST_REQUESTS = 400
GRACE_S = 3
"""How long requests in progress may take when the server ends."""


def add_options(parser: argparse.ArgumentParser, port: int | None, port_help: str, readers: str) -> None:
    """Add the options for address and token; *readers*: who needs the token, and for what."""
    parser.add_argument("--host", default=HOST, help=f"the address to listen on (default: {HOST})")
    parser.add_argument("--port", type=looking.whole(0, 65_535), default=port, help=port_help)
    parser.add_argument(
        "--token-file", default="", metavar="FILE",
        help=f"a file with the token that {readers} (default: DQ_WEB_TOKEN)",
    )  # fmt: skip


def token_of(options: argparse.Namespace, what: str) -> str:
    """Return the token that the user has given; empty: none is needed.

    Args:
        what: what the command lets others read.
    Raises:
        WrongUsage: other machines could read it without a token.
        ConfigError: the token file cannot be read, or is empty.
    """
    token = given_token(options.token_file)
    if not (token or is_loopback(options.host)):
        raise WrongUsage(
            f"--host {options.host} lets other machines read the {what}: give a token with --token-file, or "
            f"in {TOKEN_VARIABLE}"
        )
    return token


@contextmanager
def needing(extra: str, what: str) -> Iterator[None]:
    """Name the packages to install, if one that the block imports is missing.

    Args:
        what: needs them, in words.
    """
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("starlette", "uvicorn", "prometheus_client"):
            raise
        raise CommandError(f"{what}: {pip_install(extra)}") from None


def server_of(app: Any) -> Any:
    """Return what serves an ASGI app, once it gets a socket."""
    import uvicorn

    return uvicorn.Server(
        uvicorn.Config(
            app, log_config=None, access_log=False, server_header=False, lifespan="off", ws="none",
            loop="asyncio", http="h11", proxy_headers=False, limit_concurrency=MOST_REQUESTS,
            timeout_graceful_shutdown=GRACE_S,
        )
    )  # fmt: skip


def announce(options: argparse.Namespace, address: str, redis: str, what: str) -> None:
    """Print where something is served, and *what*; with `--json`, one object."""
    if options.json:
        print(json.dumps({"address": address, "redis": redis}), flush=True)
    else:
        print(f"{what} at {redis}: {address}", "Ctrl-C ends it.", sep="\n", flush=True)


@contextmanager
def serving(options: argparse.Namespace) -> Iterator[tuple[socket.socket, str]]:
    """Yield a socket that listens, and its URL; Ctrl-C and SIGTERM end the block.

    Raises:
        CommandError: it cannot listen.
    """
    with ended_quietly(), listening(options.host, options.port) as listener:
        yield listener, address_of(options.host, listener)


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        CommandError: it cannot.
    """
    try:
        (family, *_, address), *_ = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        # Python appends the address to some; getaddrinfo has numbers of its own.
        reason = str(error.strerror or error).partition(" (while")[0]
        why = f"{host}:{port} cannot be listened on: {reason}"
        raise CommandError(f"{why}. --port names another port") from error


def address_of(host: str, listener: socket.socket) -> str:
    """Return the URL of what listens; for all addresses of this machine, by its name."""
    port, name = listener.getsockname()[1], name_of(host)
    return f"http://[{name}]:{port}/" if ":" in name else f"http://{name}:{port}/"


def name_of(host: str) -> str:
    """Return the name under which others reach what listens on *host*."""
    return socket.gethostname() if host in ("0.0.0.0", "::", "") else host
