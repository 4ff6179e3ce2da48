"""A Redis too old for us, as far as a client can tell: it answers what a connection begins with, and INFO."""

from __future__ import annotations

import socketserver
import threading
from collections import Counter
from types import TracebackType

from support.resp import Framer, command_name

INFO = b"# Server\r\nredis_version:5.0.14\r\n# Memory\r\nmaxmemory_policy:noeviction\r\n"
UNKNOWN = b"-ERR unknown command\r\n"  # HELLO among them: it came with 6.0
ANSWERS = {"PING": b"+PONG\r\n", "INFO": b"$%d\r\n%s\r\n" % (len(INFO), INFO), "SELECT": b"+OK\r\n"}


class _Handler(socketserver.BaseRequestHandler):
    server: OldRedis

    def handle(self) -> None:
        framer = Framer()
        while chunk := self.request.recv(65536):
            for message in framer.feed(chunk):
                name = command_name(message)
                self.server.commands[name] += 1
                self.request.sendall(ANSWERS.get(name, UNKNOWN))


class OldRedis(socketserver.ThreadingTCPServer):
    """Serves on a free loopback port while it is entered; counts the commands that came."""

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.commands: Counter[str] = Counter()
        self.url = f"redis://127.0.0.1:{self.server_address[1]}/0"

    def __enter__(self) -> OldRedis:
        threading.Thread(target=self.serve_forever, args=(0.02,), name="old-redis", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()
        self.server_close()
