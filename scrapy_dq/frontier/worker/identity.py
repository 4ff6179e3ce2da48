"""Identifies the process of a worker, and tells whether a worker on this machine is certainly dead."""

from __future__ import annotations

import getpass
import os
import socket
import uuid
from pathlib import Path
from typing import Any


def own_identity() -> dict[str, Any]:
    """Return values that distinguish this process from every other one, even from one before a reboot.

    Host, boot id and PID namespace together identify the space in which a pid is unique. The PID namespace is
    necessary because several containers may have the same host name and boot id. Outside Linux, `boot`,
    `pid_namespace` and `pid_start` are empty, and only the heartbeat detects a death.
    """
    pid = os.getpid()
    return {
        "host": socket.gethostname(),
        "boot": _read("/proc/sys/kernel/random/boot_id"),
        "pid_namespace": _namespace(),
        "pid": pid,
        "pid_start": _start_time(pid),
    }


def new_worker_id(identity: dict[str, Any]) -> str:
    """Return a new unique id that is readable in logs."""
    host = str(identity["host"])[:40]
    return f"{host}-{identity['pid']}-{uuid.uuid4().hex[:12]}"


def own_name() -> str:
    """Return user@host of this process, the form in which a crawl's journal names the sender of a command."""
    try:
        user = getpass.getuser()
    except Exception:  # a uid without a name: the type of the error depends on the version of Python
        user = str(os.getuid()) if hasattr(os, "getuid") else "?"
    return f"{user[:32]}@{socket.gethostname()[:40]}"


def on_this_machine(other: dict[str, Any], own: dict[str, Any]) -> bool:
    """Tell whether *other* ran in this PID namespace since this machine was booted."""
    space = ("host", "boot", "pid_namespace")
    return bool(own["boot"] and own["pid_namespace"]) and all(other.get(k) == own[k] for k in space)


def certainly_dead(other: dict[str, Any], own: dict[str, Any]) -> bool:
    """Tell whether *other* has run on this machine, in this PID namespace, and its process is gone."""
    if not on_this_machine(other, own):
        return False
    pid = other.get("pid")
    if not isinstance(pid, int) or pid <= 0:
        return False
    start = _start_time(pid)
    if not start:  # the process is gone, or hidden from us (hidepid)
        return not _exists(pid)
    return start != other.get("pid_start") or _is_zombie(pid)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


def _read(path: str) -> str:
    try:
        return Path(path).read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _namespace() -> str:
    try:
        return str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return ""


def _stat(pid: int) -> list[str]:
    # The command name, in parentheses, may contain spaces, so fields are counted from its end.
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].split()


def _start_time(pid: int) -> str:
    fields = _stat(pid)
    return fields[19] if len(fields) > 19 else ""


def _is_zombie(pid: int) -> bool:
    return _stat(pid)[:1] == ["Z"]
