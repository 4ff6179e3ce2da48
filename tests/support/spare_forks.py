"""Spare forks of a `scrapy dq crawl`, which become its workers and exporting processes.

A spare is a child of the crew's parent, and has already imported Scrapy. It becomes the worker instead of
starting one, so the parent waits for it and signals it as usual.
"""

from __future__ import annotations

import fcntl
import inspect
import json
import os
import runpy
import socket
import sys
from contextlib import suppress
from typing import Any

from scrapy_dq.crew.pipes import Child

SPARES = 4
"""Spares in addition to the workers, for restarts and exports. Later children start a new Python."""
PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
"""The parameters of Popen for both ends of a child's standard input, output and error; -1 without a pipe."""
FREE = 100
"""Descriptors from this number on are free in a new process."""


def prepare(workers: int) -> None:
    """Fork the spares of this process, which becomes a crew's parent; its next children are these spares."""
    spares: list[tuple[int, socket.socket]] = []
    for _ in range(workers + SPARES):
        own_end, child_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pid = os.fork()
        if not pid:
            for _, other in spares:
                other.close()  # so that the other spares notice the end of their parent
            own_end.close()
            _wait_and_become(child_end)
        child_end.close()
        spares.append((pid, own_end))
    execute = Child._execute_child  # type: ignore[attr-defined]

    def use_spare(child: Any, *args: Any) -> None:
        if not spares:
            execute(child, *args)
            return
        asked = inspect.signature(execute).bind(child, *args).arguments
        pipes = [asked[name] for name in PIPES]
        given = [asked["p2cread"], asked["c2pwrite"], asked["errwrite"]]
        given = [number if end == -1 else end for number, end in enumerate(given)]
        passed = list(asked["pass_fds"])
        child.pid, connection = spares.pop(0)
        child._child_created = True
        with connection:
            request = json.dumps([asked["args"], asked["env"], [0, 1, 2, *passed]]).encode()
            socket.send_fds(connection, [request], [*given, *passed])
        child._close_pipe_fds(*pipes)

    Child._execute_child = use_spare  # type: ignore[attr-defined]


def _wait_and_become(connection: socket.socket) -> None:
    """Wait for a command and run it as a new Python would. Without a command, end with the parent."""
    request, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 16)
    if not request:
        os._exit(0)
    command, environ, places = json.loads(request)
    os.setsid()
    # One after the other could overwrite a descriptor that is not yet in its place.
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, FREE) for descriptor in descriptors]
    for place, descriptor in zip(places, moved, strict=True):
        os.dup2(descriptor, place)
    for descriptor in range(3, FREE + len(moved)):
        if descriptor not in places:
            with suppress(OSError):
                os.close(descriptor)
    os.environ.clear()
    os.environ.update(environ)
    sys.argv[:] = command[1:]
    runpy.run_path(command[1], run_name="__main__")
    sys.exit()
