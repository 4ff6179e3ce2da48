"""Shared by the commands that serve something: the address on which they listen."""

from __future__ import annotations

import argparse
import socket

from scrapy_dq.commands.subcommand import CommandError

HOST = "127.0.0.1"


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


def port(text: str) -> int:
    """Return the port that an option names; 0: any that is free."""
    if not (text.isascii() and text.isdigit() and len(text) < 6 and int(text) < 65_536):
        raise argparse.ArgumentTypeError(f"expected a port, 0 to 65535, not {text!r}")
    return int(text)
