"""Run a command in a terminal of its own, and draw as an SVG what stands on its screen.

A pseudo-terminal runs the command, pyte (`pip install pyte`; nothing else needs it) keeps the screen that a
person would see. The picture is taken once --until is on the screen and --after has passed since; then the
command gets Ctrl-C, and its exit status is printed. For example, beside a crawl of the bookshop:

    cd example_project
    python ../docs/pictures/make.py ../docs/pictures/status-watch.svg --until pages/s --after 3 \\
        -- scrapy dq status books --watch
"""

from __future__ import annotations

import argparse
import codecs
import fcntl
import os
import pty
import re
import select
import shlex
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator
from html import escape
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import pyte

ENDS_WITHIN_S = 15.0
CELL_W, CELL_H, FONT_SIZE = 8.4, 18.0, 14
MARGIN, BAR_H = 14.0, 30.0
PAPER, FRAME, INK = "#16181d", "#2b2f38", "#d5d9e0"
# pyte's names: brown is yellow.
COLOURS = {
    "black": "#3b4048", "red": "#e5616c", "green": "#7fbf6a", "brown": "#e0b35a", "blue": "#6aa5ec",
    "magenta": "#c883d8", "cyan": "#55b8c4", "white": "#d5d9e0",
    "brightblack": "#6f7682", "brightred": "#f28189", "brightgreen": "#9bd487", "brightbrown": "#efca7c",
    "brightblue": "#8cbcf5", "brightmagenta": "#dba3e8", "brightcyan": "#7fd0da", "brightwhite": "#ffffff",
}  # fmt: skip


class Look(NamedTuple):
    """How a cell looks."""

    ink: str
    paper: str
    bold: bool
    dim: bool
    italics: bool
    underscore: bool


class Screen(pyte.Screen):
    """pyte's screen, which knows no dim: kept as a blink, which is not drawn."""

    def select_graphic_rendition(self, *attrs: int) -> None:
        """Change how the next characters look."""
        super().select_graphic_rendition(*attrs)
        for attr in attrs if 38 not in attrs and 48 not in attrs else ():
            if attr in (2, 22):
                self.cursor.attrs = self.cursor.attrs._replace(blink=attr == 2)


def picture_of(command: list[str], options: argparse.Namespace) -> str:
    """Run *command* in a terminal and return an SVG of its screen, as it was at the time.

    Raises:
        TimeoutError: what is waited for was not there in time; the message holds the screen.
    """
    (columns, lines), until = options.size, options.until
    screen = Screen(columns, lines)
    stream = pyte.Stream(screen)
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pid, terminal = pty.fork()
    if pid == 0:
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        unset = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
        env = {name: value for name, value in os.environ.items() if name not in unset}
        os.execvpe(command[0], command, env | {"TERM": "xterm-256color", "COLORTERM": "truecolor"})

    def read(deadline: float) -> bool:
        """Take in what comes until *deadline*; False: the command has ended."""
        while (rest := deadline - time.monotonic()) > 0:
            if not select.select([terminal], [], [], rest)[0]:
                return True
            try:
                found = os.read(terminal, 65536)
            except OSError:  # so ends a terminal whose last process is gone
                return False
            if not found:
                return False
            stream.feed(decoder.decode(found))
            if until and deadline == give_up and until in "\n".join(screen.display):
                return True
        return True

    give_up = time.monotonic() + options.within
    try:
        running = read(give_up) if until else True
        if until and until not in "\n".join(screen.display):
            raise TimeoutError(f"{until!r} is not on the screen:\n" + "\n".join(screen.display))
        running = running and read(time.monotonic() + options.after)
        picture = drawn(screen, options.title or shlex.join(command))
        if running:
            os.write(terminal, b"\x03")
            read(time.monotonic() + ENDS_WITHIN_S)
        return picture
    finally:
        _end(pid)
        os.close(terminal)


def _end(pid: int) -> None:
    until = time.monotonic() + 1.0
    while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    print(f"exit status {os.waitstatus_to_exitcode(ended[1])}", file=sys.stderr)


def drawn(screen: Screen, title: str) -> str:
    """Return the SVG."""
    last = max((y for y, line in enumerate(screen.display) if line.strip()), default=0)
    width, height = screen.columns * CELL_W + 2 * MARGIN, (last + 1) * CELL_H + BAR_H + MARGIN
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'role="img" aria-label="{escape(title)}">',
        f"<style>text {{ font: {FONT_SIZE}px ui-monospace, SFMono-Regular, Menlo, Consolas, "
        f'"DejaVu Sans Mono", "Liberation Mono", monospace; white-space: pre; }}</style>',
        f'<rect width="100%" height="100%" rx="8" fill="{PAPER}"/>',
        f'<path d="M0 {BAR_H - 6:g} V8 a8 8 0 0 1 8 -8 H{width - 8:g} a8 8 0 0 1 8 8 V{BAR_H - 6:g} z" '
        f'fill="{FRAME}"/>',
        f'<text x="{width / 2:g}" y="17" text-anchor="middle" fill="{COLOURS["brightblack"]}" '
        f'style="font-size: 12px">{escape(title)}</text>',
        *(part for y in range(last + 1) for part in _line(screen, y)),
        "</svg>\n",
    ])  # fmt: skip


def _line(screen: Screen, y: int) -> Iterator[str]:
    """Yield the parts of a line: cells that look the same are one."""
    top, x = BAR_H + y * CELL_H, 0
    cells = [screen.buffer[y][column] for column in range(screen.columns)]
    for look, group in groupby(cells, key=_look):
        chars = [cell.data for cell in group]
        text, left, wide = "".join(chars), MARGIN + x * CELL_W, len(chars) * CELL_W
        x += len(chars)
        if look.paper != PAPER:
            yield (
                f'<rect x="{left:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{CELL_H}" '
                f'fill="{look.paper}"/>'
            )
        style = "".join((
            ' font-weight="bold"' if look.bold else "", ' opacity="0.6"' if look.dim else "",
            ' font-style="italic"' if look.italics else "",
            ' text-decoration="underline"' if look.underscore else "",
        ))  # fmt: skip
        for words in re.finditer(r"\S+( \S+)*", text):
            # As wide as its cells, whatever font is there.
            fit = f'lengthAdjust="spacingAndGlyphs" textLength="{len(words[0]) * CELL_W:.1f}"'
            place = f'x="{left + words.start() * CELL_W:.1f}" y="{top + 13.5:.1f}"'
            yield f'<text {place} fill="{look.ink}"{style} {fit}>{escape(words[0])}</text>'


def _look(cell: pyte.screens.Char) -> Look:
    ink, paper = _colour(cell.fg, INK), _colour(cell.bg, PAPER)
    if cell.reverse:
        ink, paper = paper, ink
    return Look(ink, paper, cell.bold, cell.blink, cell.italics, cell.underscore)


def _colour(name: str, default: str) -> str:
    return default if name == "default" else COLOURS.get(name, f"#{name}")


def _size(text: str) -> tuple[int, int]:
    columns, lines = text.split("x")
    return int(columns), int(lines)


def main() -> None:
    """Do it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("picture", type=Path, help="the SVG to write")
    parser.add_argument("--size", type=_size, default=(80, 24), metavar="80x24", help="of the terminal")
    parser.add_argument("--until", default="", metavar="TEXT", help="wait until this is on the screen")
    parser.add_argument("--after", type=float, default=3.0, metavar="SECONDS", help="then wait so long (3)")
    parser.add_argument("--within", type=float, default=60.0, metavar="SECONDS", help="--until, at most (60)")
    parser.add_argument("--title", help="what stands above the screen (default: the command)")
    parser.add_argument("command", nargs="+", help="after --: what to run")
    options = parser.parse_args()
    options.picture.write_text(picture_of(options.command, options), encoding="utf-8")


if __name__ == "__main__":
    main()
