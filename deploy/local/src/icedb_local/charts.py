"""Small charts made of characters: counts over time. Pure: numbers in, lines of text out."""

from collections.abc import Sequence
from typing import Final

EIGHTHS: Final = " ▁▂▃▄▅▆▇█"
MIN_WIDTH: Final = 20


def render_chart(
    points: Sequence[tuple[float, float]], *, width: int, height: int, is_ascii: bool = False
) -> list[str]:
    """Draw one series as columns over time.

    Args:
        points: Seconds since the beginning and what was counted then, ascending in time.
        width: Columns of text for everything, at least 20.
        height: Lines of the plot; the time axis takes two more.
        is_ascii: Use no character beyond ASCII.

    Returns:
        ``height + 2`` lines; none when there is nothing to draw.
    """
    if not points:
        return []
    top = max(1.0, *(value for _, value in points))
    label_width = len(f"{top:,.0f}")
    plot_width = max(width, MIN_WIDTH) - label_width - 2
    columns = _resample(points, plot_width)
    axis, corner, bar = ("|", "+", "-") if is_ascii else ("┤", "└", "─")
    lines = []
    for row in range(height, 0, -1):
        label = f"{top:,.0f}" if row == height else f"{top / 2:,.0f}" if row == height // 2 + 1 else ""
        cells = "".join(_cell(value / top * height - (row - 1), is_ascii=is_ascii) for value in columns)
        lines.append(f"{label:>{label_width}} {axis}{cells}".rstrip())
    end = f"{points[-1][0]:.0f} s"
    lines.append(f"{'0':>{label_width}} {corner}{bar * plot_width}")
    lines.append(f"{'':>{label_width}}  0 s{end:>{plot_width - 3}}")
    return lines


def _resample(points: Sequence[tuple[float, float]], width: int) -> list[float]:
    """Take the largest value of each column of time; a column without samples keeps the last known value."""
    begin_s, span_s = points[0][0], max(points[-1][0] - points[0][0], 1e-9)
    columns: list[float | None] = [None] * width
    for at_s, value in points:
        index = min(width - 1, int((at_s - begin_s) / span_s * width))
        known = columns[index]
        columns[index] = value if known is None else max(known, value)
    values: list[float] = []
    for known in columns:
        values.append(known if known is not None else values[-1] if values else points[0][1])
    return values


def _cell(level: float, *, is_ascii: bool) -> str:
    """Draw how much of one line a column fills; anything above zero is visible."""
    if level <= 0:
        return " "
    if is_ascii:
        return "#"
    return EIGHTHS[max(1, min(8, round(level * 8)))]
