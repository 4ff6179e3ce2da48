"""Draw docs/pictures/request.svg, the path of a request; docs/generate.py calls it."""

from __future__ import annotations

from html import escape
from typing import NamedTuple

INK, DIM, LINE, PAPER = "#1f2933", "#5b6770", "#7b8794", "#ffffff"
FILLS = {"scrapy": "#fdf1d8", "worker": "#e3edfb", "redis": "#fbe3e0"}
COLUMNS = {"scrapy": (20, 215), "worker": (270, 340), "redis": (670, 250)}  # left edge, width
TITLES = {"scrapy": "Scrapy's engine", "worker": "scrapy_dq, in the worker's process", "redis": "Redis"}
TOP, LEADING, PADDING = 64, 17, 12


class Step(NamedTuple):
    """A box: its column, its top, what happens, and in which files."""

    column: str
    top: int
    what: str
    files: tuple[str, ...] = ()
    fill: str = ""

    @property
    def height(self) -> int:
        return 2 * PADDING + LEADING * (1 + len(self.files))


STEPS = {
    "yield": Step("scrapy", 70, "a callback yields a request"),
    "classify": Step(
        "worker", 70, "1  store: is it new, from where, where to",
        ("scheduling/scheduler.py  enqueue_request()", "scheduling/storing.py",
         "scheduling/admission.py, origins.py",
         "scheduling/partitions.py, due_times.py", "scheduling/stored_form.py, codec/requests.py"),
    ),
    "local": Step("scrapy", 150, "not storable: stays local", ("scheduling/local_queue.py",), "worker"),
    "outbox": Step(
        "worker", 240, "2  append a put to the outbox", ("frontier/worker/outbox.py, on disk: spill.py",)
    ),
    "compose": Step(
        "worker", 345, "3  make one exchange at a time",
        ("frontier/worker/dialogue.py", "frontier/worker/protocol.py, frontier/wire.py"),
    ),
    "script": Step(
        "redis", 315, "4  apply it in one script",
        ("lua/transitions/exchange.lua", "lua/moves/put.lua: seen, backlog", "lua/moves/lease.lua: in flight",
         "lua/moves/endings.lua: gone"),
    ),
    "buffer": Step("worker", 465, "5  keep the leases in the buffer", ("frontier/worker/leases.py",)),
    "take": Step(
        "worker", 560, "6  serve the next request",
        ("scheduling/serving.py, in_progress.py", "codec/requests.py"),
    ),
    "download": Step("scrapy", 560, "the downloader sends it", ("scheduling/download_hooks.py",)),
    "callback": Step("scrapy", 655, "callback and pipelines", ("items/pipeline.py",)),
    "settle": Step(
        "worker", 655, "7  end the lease: ack, fail, release", ("scheduling/engine_hooks.py, ends.py",)
    ),
}  # fmt: skip
# From box to box, by the sides where an arrow leaves and arrives; and what it carries.
ARROWS = (
    ("yield", "right", "classify", "left", ""),
    ("classify", "low left", "local", "right", ""),
    ("classify", "bottom", "outbox", "top", ""),
    ("outbox", "bottom", "compose", "top", "a prefix of the outbox"),
    ("compose", "right", "script", "left", "moves"),
    ("script", "low left", "buffer", "right", "leases"),
    ("buffer", "bottom", "take", "top", ""),
    ("take", "left", "download", "right", ""),
    ("download", "bottom", "callback", "top", ""),
    ("callback", "right", "settle", "left", ""),
    ("settle", "right", "outbox", "right", "an ack, behind the children's puts"),
)


def picture() -> str:
    """Return the picture as an SVG."""
    height = max(step.top + step.height for step in STEPS.values()) + 20
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 940 {height}" width="940" height="{height}" '
        'font-family="sans-serif" font-size="13" role="img">',
        "<title>The path of a request through scrapy_dq</title>",
        f'<defs><marker id="head" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" '
        f'orient="auto"><path d="M0 0L8 4L0 8z" fill="{LINE}"/></marker></defs>',
        f'<rect width="940" height="{height}" fill="{PAPER}"/>',
    ]
    for column, (left, width) in COLUMNS.items():
        parts.append(f'<text x="{left + width / 2:g}" y="36" text-anchor="middle" font-weight="bold" '
                     f'fill="{INK}">{escape(TITLES[column])}</text>')  # fmt: skip
    parts += [_box(step) for step in STEPS.values()]
    parts += [_arrow(*arrow) for arrow in ARROWS]
    return "\n".join([*parts, "</svg>"]) + "\n"


def _box(step: Step) -> str:
    left, width = COLUMNS[step.column]
    lines = [
        f'<rect x="{left}" y="{step.top}" width="{width}" height="{step.height}" rx="6" '
        f'fill="{FILLS[step.fill or step.column]}" stroke="{LINE}"/>',
        f'<text x="{left + PADDING}" y="{step.top + PADDING + 12}" fill="{INK}">{escape(step.what)}</text>',
    ]
    for number, files in enumerate(step.files, 1):
        y = step.top + PADDING + 12 + number * LEADING
        lines.append(f'<text x="{left + PADDING}" y="{y}" font-family="monospace" font-size="11" '
                     f'fill="{DIM}">{escape(files)}</text>')  # fmt: skip
    return "\n".join(lines)


def _arrow(start: str, leaves: str, end: str, arrives: str, label: str) -> str:
    (x1, y1), (x2, y2) = _side(STEPS[start], leaves), _side(STEPS[end], arrives)
    if leaves == arrives == "right":  # around the boxes between
        path, middle = f"M{x1} {y1}H930V{y2}H{x2}", (925, y1 - 8)
    elif leaves == "bottom":
        path, middle = f"M{x1} {y1}V{y2}", (x1 + 8, (y1 + y2) / 2 + 4)
    else:
        bend = (x1 + x2) / 2
        path, middle = f"M{x1} {y1}H{bend:g}V{y2}H{x2}", (bend, min(y1, y2) - 6)
    anchor = "start" if leaves == "bottom" else "end" if leaves == arrives else "middle"
    place = f'x="{middle[0]:g}" y="{middle[1]:g}" text-anchor="{anchor}"'
    text = f'<text {place} font-size="12" fill="{DIM}">{label}</text>'
    return f'<path d="{path}" fill="none" stroke="{LINE}" marker-end="url(#head)"/>' + (text if label else "")


def _side(step: Step, side: str) -> tuple[float, float]:
    left, width = COLUMNS[step.column]
    if side in ("top", "bottom"):
        return left + width // 2, step.top if side == "top" else step.top + step.height
    y = min(step.height // 2, 29)
    return left + width * (side == "right"), step.top + (step.height - y if side == "low left" else y)
