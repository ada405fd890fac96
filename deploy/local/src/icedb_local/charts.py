"""Small charts made of characters: counts over time. Pure: numbers in, lines of text out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

EIGHTHS: Final = " ▁▂▃▄▅▆▇█"
MIN_WIDTH: Final = 20


@dataclass(frozen=True, slots=True)
class Point:
    """One sample.

    Attributes:
        at_s: Seconds since the beginning.
        value: What was counted.
    """

    at_s: float
    value: float


def render_chart(points: Sequence[Point], *, width: int, height: int, is_ascii: bool = False) -> list[str]:
    """Draw one series as columns over time.

    Args:
        points: Ascending in time.
        width: Columns of text for everything, at least 20.
        height: Lines of the plot; the time axis takes two more.
        is_ascii: Use no character beyond ASCII.

    Returns:
        ``height + 2`` lines; none when there is nothing to draw.
    """
    if not points:
        return []
    top = max(1.0, *(point.value for point in points))
    label_width = len(f"{top:,.0f}")
    plot_width = max(width, MIN_WIDTH) - label_width - 2
    columns = _resample(points, plot_width)
    axis, corner, bar = ("|", "+", "-") if is_ascii else ("┤", "└", "─")
    lines = []
    for row in range(height, 0, -1):
        label = f"{top:,.0f}" if row == height else f"{top / 2:,.0f}" if row == height // 2 + 1 else ""
        cells = "".join(_cell(value / top * height - (row - 1), is_ascii=is_ascii) for value in columns)
        lines.append(f"{label:>{label_width}} {axis}{cells}".rstrip())
    end = f"{points[-1].at_s:.0f} s"
    lines.append(f"{'0':>{label_width}} {corner}{bar * plot_width}")
    lines.append(f"{'':>{label_width}}  0 s{end:>{plot_width - 3}}")
    return lines


def _resample(points: Sequence[Point], width: int) -> list[float]:
    """Take the largest value of each column of time; a column without samples keeps the last known value."""
    begin_s, span_s = points[0].at_s, max(points[-1].at_s - points[0].at_s, 1e-9)
    columns: list[float | None] = [None] * width
    for point in points:
        index = min(width - 1, int((point.at_s - begin_s) / span_s * width))
        known = columns[index]
        columns[index] = point.value if known is None else max(known, point.value)
    values: list[float] = []
    for value in columns:
        values.append(value if value is not None else values[-1] if values else points[0].value)
    return values


def _cell(level: float, *, is_ascii: bool) -> str:
    """Draw how much of one line a column fills; anything above zero is visible."""
    if level <= 0:
        return " "
    if is_ascii:
        return "#"
    return EIGHTHS[max(1, min(8, round(level * 8)))]
