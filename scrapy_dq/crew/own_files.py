"""Files and folders that only this user may control, although another user may have created them first."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from scrapy_dq.crew.errors import CrewError


def real_path(target: Path) -> Path:
    """Return the path that *target* leads to.

    Raises:
        CrewError: *target* is a link that belongs to another user (not root). It may lead to any file of this
            user.
    """
    if target.is_symlink() and hasattr(os, "geteuid") and target.lstat().st_uid not in (0, os.geteuid()):
        raise CrewError(
            f"{target} is a link of another user, and may lead to any file (now to {os.readlink(target)!r}): "
            f"remove it, or choose another file"
        )
    return Path(os.path.realpath(target))


def open_own(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file, as the *opener* of `open()`, but never through a link of another user.

    Raises:
        CrewError: *path* is such a link.
        OSError: the file cannot be opened, or has become a link since the check.
    """
    was_link = os.path.islink(path)
    real_path(Path(path))
    return os.open(path, flags | (0 if was_link else getattr(os, "O_NOFOLLOW", 0)), 0o666)


def make_private(folder: Path, *, may_be_link: bool = False) -> None:
    """Create *folder* and its parents, or refuse an existing one that other users can write to.

    Another user could have created *folder* first, with links to this user's files in it. The umask decides
    the mode of the parents. If other users could then replace *folder*, make its parent private first.

    Args:
        may_be_link: allow a link, because the user may have moved the data directory to another disk.
    Raises:
        CrewError: *folder* is a forbidden link, belongs to another user, or others can write to it.
        OSError: *folder* cannot be created.
    """
    if not hasattr(os, "getuid"):  # Windows has no such shared folders
        folder.mkdir(parents=True, exist_ok=True)
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.stat() if may_be_link else folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise CrewError(
            f"{folder} is not a folder that only you can write to. Remove it, or choose another folder. If "
            f"all files in it are yours, `chmod 700` is enough"
        )
