"""Pictures as SVG, drawn by the server: columns that rise from a line and hang below it.

One form for all: a partition rises by its bytes and hangs by its small files, a commit rises by what it added and hangs
by what it removed, a row of a result by its number. Words stand outside in HTML, so that they stay readable on a
phone; colour is never alone: kinds differ in their pattern, too. Everything is escaped.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from markupsafe import Markup

WIDTH: Final = 1000
HEIGHT: Final = 120
"""Of the part above the line; below it there is half of it."""
_LEAST: Final = 1.5
"""What is not nothing is seen."""
_GAP_SHARE: Final = 0.2
_MAX_COLUMN: Final = 60


@dataclass(frozen=True, slots=True)
class Column:
    """One column.

    Attributes:
        up: What it rises by.
        down: What it hangs by.
        kind: Class of its upper part: ``solid``, ``hatch``, ``dots``, ``hollow``.
        title: What is said of it.
    """

    up: float
    down: float
    title: str
    kind: str = "solid"


def draw_columns(
    columns: Sequence[Column], *, label: str, is_one_scale: bool = False, least_depth: float = 0
) -> Markup:
    """Return a picture of columns.

    Args:
        columns: From the left to the right.
        label: What it shows, for who does not see it.
        is_one_scale: Whether up and down are the same thing, to one scale.
        least_depth: What fills the part below the line at least: less than that hangs less deep.
    """
    if not columns:
        return Markup("")
    highest = max((each.up for each in columns), default=0) or 1
    lowest = max((each.down for each in columns), default=0)
    lowest = max(lowest, least_depth) if lowest else 0
    depth = HEIGHT / 2 if lowest else 0.0
    up_scale, down_scale = HEIGHT / highest, depth / (lowest or 1)
    if is_one_scale and lowest:
        total = HEIGHT + depth
        scale = total / (highest + lowest)
        up_scale = down_scale = scale
        base = highest * scale
    else:
        base = float(HEIGHT)
    step = WIDTH / max(len(columns), WIDTH / _MAX_COLUMN)
    width = step * (1 - _GAP_SHARE)
    bars = Markup("").join(
        _draw(each, x=at * step + step * _GAP_SHARE / 2, width=width, base=base, scales=(up_scale, down_scale))
        for at, each in enumerate(columns)
    )
    total = HEIGHT + depth
    return Markup(
        '<svg class="columns" viewBox="0 0 {w} {h}" preserveAspectRatio="none" role="img" aria-label="{label}">'
        '{bars}<line class="base" x1="0" x2="{w}" y1="{b:.1f}" y2="{b:.1f}"/></svg>'
    ).format(w=WIDTH, h=round(total + 2), label=label, bars=bars, b=base + 0.5)


def draw_share(value: float, most: float) -> Markup:
    """Return a bar as long as a share of the most: in a cell of a table, beside its number."""
    width = max(2.0 if value else 0.0, 100 * value / most) if most else 0.0
    return Markup(
        '<svg class="share" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="solid" width="{:.1f}" height="8"/></svg>'
    ).format(width)


def _draw(column: Column, *, x: float, width: float, base: float, scales: tuple[float, float]) -> Markup:
    up, down = (
        max(_LEAST, part * scale) if part else 0.0 for part, scale in zip((column.up, column.down), scales, strict=True)
    )
    parts = [
        Markup("<title>{}</title>").format(column.title),
        _rect("hit", x, 0, width, HEIGHT),  # the whole height answers to the mouse
    ]
    if up:
        parts.append(_rect(column.kind, x, base - up, width, up))
    if down:
        parts.append(_rect("down", x, base + 1, width, down))
    return Markup("<g>{}</g>").format(Markup("").join(parts))


def _rect(kind: str, x: float, y: float, width: float, height: float) -> Markup:
    return Markup('<rect class="{}" x="{:.2f}" y="{:.2f}" width="{:.2f}" height="{:.2f}"/>').format(
        kind, x, y, width, height
    )
