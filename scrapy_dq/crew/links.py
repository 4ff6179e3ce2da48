"""Links on the way to files that a project names: another user may have made them first, as in /tmp."""

from __future__ import annotations

import os
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
