"""Makes a call in a child process, which is killed with kill -9 before one of its Redis commands."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from itertools import count
from typing import Any

import redis.asyncio.connection
import redis.connection

MAX_COUNT = 200
"""A number of Redis commands that no command of scrapy_dq exceeds in these tests."""


def killed_before(number: int, call: Callable[[], object]) -> bool:
    """Run *call* in a child, which is killed before Redis command *number*. Return whether it was killed."""
    child = os.fork()
    if child == 0:
        try:
            sent = count(1)

            def counted(send: Callable[..., Any]) -> Callable[..., Any]:
                def send_or_die(*args: Any, **options: Any) -> Any:
                    if next(sent) == number:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return send(*args, **options)

                return send_or_die

            for module in (redis.connection, redis.asyncio.connection):
                cls: Any = module.AbstractConnection  # type: ignore[attr-defined]
                cls.send_packed_command = counted(cls.send_packed_command)
            call()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    status = os.waitpid(child, 0)[1]
    killed = os.WIFSIGNALED(status)
    assert killed or os.waitstatus_to_exitcode(status) == 0
    return killed
