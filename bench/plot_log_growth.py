"""Draws ``docs/internals/log-growth.svg`` from lines that ``python -m icedb_sim.growth.log_growth`` printed.

``python bench/plot_log_growth.py bench/results/log_growth.jsonl docs/internals/log-growth.svg``: bytes of log written
for each append against the number of appends, both axes logarithmic. Plain SVG, no library.
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

WIDTH, HEIGHT = 860, 470
LEFT, RIGHT, TOP, BOTTOM = 90, 250, 40, 60
X_RANGE = (2.0, 5.0)
Y_RANGE = (3.6, 5.4)
INK, FAINT, PAPER = "#222222", "#dddddd", "#ffffff"
COLOURS = {
    ("days", "tiers"): "#1b6ca8",
    ("users", "tiers"): "#2a9d5c",
    ("days", "all_small"): "#c0392b",
    ("users", "all_small"): "#e08e0b",
}
NAMES = {
    ("days", "tiers"): "tiers, 10 partitions a day",
    ("users", "tiers"): "tiers, 10,000 partitions",
    ("days", "all_small"): "before, 10 partitions a day",
    ("users", "all_small"): "before, 10,000 partitions",
}

Points = list[tuple[float, float]]


def place(commits: float, size: float) -> tuple[float, float]:
    """Return where a point lies in the picture."""
    across = (math.log10(commits) - X_RANGE[0]) / (X_RANGE[1] - X_RANGE[0])
    up = (math.log10(size) - Y_RANGE[0]) / (Y_RANGE[1] - Y_RANGE[0])
    return LEFT + across * (WIDTH - LEFT - RIGHT), HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM)


def text(x: float, y: float, words: str, *, anchor: str = "middle", colour: str = INK, size: int = 13) -> str:
    """Return a line of text."""
    return f'<text x="{x:.0f}" y="{y:.0f}" fill="{colour}" font-size="{size}" text-anchor="{anchor}">{words}</text>'


def axes() -> list[str]:
    """Return the grid and what stands at it."""
    lines = []
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    for power in range(math.ceil(X_RANGE[0]), math.floor(X_RANGE[1]) + 1):
        x, _ = place(10**power, 10 ** Y_RANGE[0])
        lines.append(f'<line x1="{x:.0f}" y1="{TOP}" x2="{x:.0f}" y2="{bottom}" stroke="{FAINT}"/>')
        lines.append(text(x, bottom + 20, f"{10**power:,}"))
    for power, label in ((4, "10 kB"), (5, "100 kB")):
        _, y = place(10 ** X_RANGE[0], 10**power)
        lines.append(f'<line x1="{LEFT}" y1="{y:.0f}" x2="{right}" y2="{y:.0f}" stroke="{FAINT}"/>')
        lines.append(text(LEFT - 8, y + 4, label, anchor="end"))
    lines.append(text((LEFT + right) / 2, HEIGHT - 15, "appends (10 data files each)"))
    lines.append(text(LEFT, TOP - 15, "log bytes written for each append, by everybody", anchor="start"))
    return lines


def draw(series: dict[tuple[str, str], Points]) -> str:
    """Return the picture."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="{PAPER}"/>',
        *axes(),
    ]
    taken: list[float] = []
    for key, points in sorted(series.items(), key=lambda item: -item[1][-1][1]):
        places = [place(*point) for point in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{COLOURS[key]}" stroke-width="2.5"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{COLOURS[key]}"/>' for x, y in places]
        y = max([places[-1][1] + 4, *(other + 18 for other in taken)])
        taken.append(y)
        parts.append(text(WIDTH - RIGHT + 12, y, NAMES[key], anchor="start", colour=COLOURS[key]))
    return "\n".join([*parts, "</svg>", ""])


def read(path: Path) -> dict[tuple[str, str], Points]:
    """Return the points of each curve: runs at the usual rate only."""
    series: dict[tuple[str, str], Points] = {}
    for line in path.read_text().splitlines():
        found: dict[str, Any] = json.loads(line)
        if found["interval_ms"] == 5000:
            key = (found["shape"], found["policy"])
            series.setdefault(key, []).append((found["commits"], found["log_bytes_per_commit"]))
    return series


if __name__ == "__main__":
    Path(sys.argv[2]).write_text(draw(read(Path(sys.argv[1]))))
