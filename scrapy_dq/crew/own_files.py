"""Files and folders that only this user decides about, although others may have been there first."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from scrapy_dq.crew.errors import CrewError


def real_path(target: Path) -> Path:
    """Return where *target* leads.

    Raises:
        CrewError: it is a link of another user, and may lead to any file of this one.
    """
    if target.is_symlink() and hasattr(os, "geteuid") and target.lstat().st_uid not in (0, os.geteuid()):
        raise CrewError(
            f"{target} is a link of another user, and may lead to any file (now to {os.readlink(target)!r}): "
            f"remove it, or choose another file"
        )
    return Path(os.path.realpath(target))


def open_own(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file, as an *opener*, but through no link of another user.

    Raises:
        CrewError: it is one.
        OSError: it cannot be opened; or it became a link just now.
    """
    was_link = os.path.islink(path)
    real_path(Path(path))
    return os.open(path, flags | (0 if was_link else getattr(os, "O_NOFOLLOW", 0)), 0o666)


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
