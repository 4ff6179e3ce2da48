"""Folders that only their owner can write to: what is in them decides which files of ours are written."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from scrapy_dq.crew.errors import CrewError


def make_private(folder: Path, *, may_be_link: bool = False) -> None:
    """Create *folder* and its parents, or refuse an existing one that other users can write to.

    Another user could have created it first, with links in it to files of ours. Parents have the mode of the
    umask: if others could then replace *folder*, make the parent private first.

    Args:
        may_be_link: it is the data directory, which somebody may have moved to another disk.
    Raises:
        CrewError: the folder is a link, belongs to another user, or others can write to it.
        OSError: it cannot be created.
    """
    if not hasattr(os, "getuid"):  # Windows, where no folder is shared in this way
        folder.mkdir(parents=True, exist_ok=True)
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.stat() if may_be_link else folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise CrewError(
            f"{folder} is not a folder that only you can write to. Look what is in it, and remove it or, if "
            f"all of it is yours, chmod 700 it; or choose another folder"
        )
