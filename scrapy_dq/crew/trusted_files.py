"""Files that a project names are opened; what other users have put on the way to them is not."""

from __future__ import annotations

import os
import re
import stat
from collections import deque
from contextlib import suppress
from pathlib import Path

from scrapy_dq.crew.errors import CrewError

MOST_LINKS = 40
"""On the way to a file; the kernel follows no more."""
_is_of_the_system = re.compile(r"/dev/(?:stdout|stderr|null|tty|fd/\d+)|/proc/self/fd/\d+").fullmatch


def resolved(target: Path) -> Path:
    """Return where a path leads to, through links of this user and of root.

    The kernel follows no link of another user in a folder such as /tmp (protected_symlinks): it may lead to
    any file of ours. But it lets everybody read where a link leads, and os.path.realpath does only that. Nor
    is a folder of theirs in such a folder ours to write to: they put into it what they like.

    Raises:
        CrewError: a link on the way is another user's; or a folder is, in one with a sticky bit; or `..`
            follows what does not exist. A link in a folder of the same user without a sticky bit is followed,
            but for the last component: of a project of theirs, they have the code, too, as a container's root
            in a project of its host's user.
    """
    target = target.absolute()
    path, left, links = Path(target.anchor), deque(target.parts[1:]), 0
    while left:
        name = left.popleft()
        if name == "..":
            path = path.parent
            continue
        try:
            above, found = path.lstat(), (path / name).lstat()
            leads_to = os.readlink(path / name) if stat.S_ISLNK(found.st_mode) else ""
        except OSError:  # there is none yet, or opening it will say why not
            if ".." in left:
                raise CrewError(f"{target}: {path / name} does not exist, and .. follows it") from None
            return path.joinpath(name, *left)
        last = not left
        if leads_to and _is_foreign(found, above, last=last or _is_shared(above)):
            raise CrewError(
                f"{path / name} is a link of another user, and may lead to any file (now to {leads_to!r}): "
                f"remove it, or choose another file"
            )
        if not leads_to and not last and _is_shared(above) and _is_foreign(found, above, last=True):
            raise CrewError(
                f"{path / name} belongs to another user, who could put anything there, in a folder in which "
                f"everybody may be first: choose another one"
            )
        if not leads_to or (links := links + 1) > MOST_LINKS:
            path /= name
            continue
        if os.path.isabs(leads_to):
            path = Path(path.anchor)
        left.extendleft(part for part in reversed(Path(leads_to).parts) if part != path.anchor)
    return path


def need_trusted(place: Path, found: os.stat_result) -> None:
    """Refuse what others may have put in a file's place: a file or pipe of theirs, another name of ours.

    Only in a folder with a sticky bit, such as /tmp: there nobody can replace what is ours, but everybody can
    be there first. Where others may write without one, they can replace anything.

    Args:
        place: its path, without links.
        found: what stat says of it.
    Raises:
        CrewError: it is not trusted.
    """
    above = place.parent.stat()
    one_name = found.st_nlink == 1 or not stat.S_ISREG(found.st_mode)
    if _is_shared(above) and (_is_foreign(found, above, last=True) or not one_name):
        raise CrewError(
            f"{place} may have been put there by another user, as everybody can in {place.parent}: remove "
            f"it, or choose another file"
        )


def open_trusted(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file, as an *opener*: through no link of another user, and nothing that they put in its place.

    They may exchange it at any time: so what was opened is examined, and only then emptied.

    Raises:
        CrewError: it is not trusted.
        OSError: it cannot be opened; or its last component became a link just now.
    """
    if _is_of_the_system(os.fspath(path)):  # its links lead to a pipe or a terminal
        return os.open(path, flags, 0o666)
    place = resolved(Path(path))
    # A pipe that was put there just now would be waited for.
    at_once = getattr(os, "O_NONBLOCK", 0)
    with suppress(FileNotFoundError):
        need_trusted(place, there := place.lstat())
        at_once = at_once if stat.S_ISREG(there.st_mode) else 0
    descriptor = os.open(place, flags & ~os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0) | at_once, 0o666)
    try:
        found = os.fstat(descriptor)
        need_trusted(place, found)
        if flags & os.O_TRUNC and stat.S_ISREG(found.st_mode):
            os.ftruncate(descriptor, 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _is_shared(folder: os.stat_result) -> bool:
    return bool(folder.st_mode & stat.S_ISVTX and folder.st_mode & 0o022)


def _is_foreign(found: os.stat_result, above: os.stat_result, *, last: bool) -> bool:
    """Tell whether it is another user's; and, unless it is the *last* component, not its folder's user's."""
    if not hasattr(os, "geteuid"):  # Windows
        return False
    return found.st_uid not in {0, os.geteuid(), 0 if last else above.st_uid}
