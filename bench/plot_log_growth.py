"""Draws ``docs/internals/log-growth.svg`` from lines that ``python -m icedb_sim.growth.log_growth`` printed.

``python -m bench.plot_log_growth``: bytes of log written for each append against the number of appends.
"""

from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
import orjson
from matplotlib.figure import Figure

from bench.harness import RESULTS
from bench.plots import LINES, STYLE, WIDTH_IN
from bench.processes import ROOT

LINES_FILE: Final = RESULTS / "log_growth.jsonl"
PLOT: Final = ROOT / "docs" / "internals" / "log-growth.svg"
USUAL_INTERVAL_MS: Final = 5000
TICKS_KB: Final = (5, 10, 20, 50, 100)
NAMES: Final = {
    ("days", "tiers"): "tiers, 10 partitions a day",
    ("users", "tiers"): "tiers, 10,000 partitions",
    ("days", "all_small"): "before, 10 partitions a day",
    ("users", "all_small"): "before, 10,000 partitions",
}


def draw(source: Path, path: Path) -> None:
    """Draw runs at the usual rate, a curve for each way and shape."""
    curves: dict[tuple[str, str], list[tuple[float, float]]] = {key: [] for key in NAMES}
    for line in source.read_bytes().splitlines():
        found: dict[str, Any] = orjson.loads(line)
        if found["interval_ms"] == USUAL_INTERVAL_MS:
            curves[found["shape"], found["policy"]].append((found["commits"], found["log_bytes_per_commit"] / 1000))
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_IN, 4.2), layout="constrained")
        panel = figure.subplots()
        for colour, (key, points) in zip(LINES, curves.items(), strict=False):
            appends, sizes = zip(*points, strict=True)
            panel.plot(appends, sizes, marker="o", markersize=3.5, color=colour, label=NAMES[key])
        panel.set(xscale="log", yscale="log", xlabel="appends (10 data files each)")
        panel.set_yticks(TICKS_KB, [str(size) for size in TICKS_KB])
        panel.minorticks_off()
        panel.set_title("log written for each append, by everybody, kB")
        panel.grid(color="#eeeeee")
        panel.legend(frameon=False)
        figure.savefig(path, metadata={"Date": None, "Title": "log growth"})


if __name__ == "__main__":
    draw(LINES_FILE, PLOT)
