"""Draws a workload's results as SVG: bars where systems did the same work, lines where the work grew."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from bench.compare import Growth, Kind, by_axis, fit_growth, kind_of, lead_rows
from bench.figures import OURS
from bench.harness import Report, Row

COLOURS: Final[dict[Kind, str]] = {"ours": "#1b6ca8", "peer": "#9aa3ab", "bound": "#e3c77b"}
DASHES: Final = ("-", "--", ":", "-.")
LINES: Final = ("#1b6ca8", "#c0392b", "#2a9d5c", "#8e5aa8", "#e08e0b", "#555555")
STYLE: Final[Any] = {
    "svg.fonttype": "none",  # text stays text: small, and to be found
    "svg.hashsalt": "icedb",  # the same results draw the same file
    "font.size": 9,
    "font.family": ["DejaVu Sans", "sans-serif"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
}
WIDTH_IN: Final = 8.6
BAR_IN: Final = 0.25
CASE_IN: Final = 0.9
PANEL_IN: Final = 2.3
LOG_FROM: Final = 12.0
"""Bars of figures that lie further apart are drawn on a logarithmic axis."""
PANELS_A_ROW: Final = 3
ONE_COLUMN: Final = 6
"""Cases that stand below each other; more stand in two columns."""


def draw(report: Report, path: Path) -> None:
    """Draw a report's results; the file is the same whenever the results are."""
    with mpl.rc_context(STYLE):
        growth = fit_growth(report.rows)
        figure = _lines(growth) if growth else _bars(report.rows)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None, "Title": f"benchmark: {report.workload}"})


def _layout() -> ConstrainedLayoutEngine:
    return ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.06)  # inches: whoever shows it may have wider letters


def _bars(rows: Sequence[Row]) -> Any:
    cases = [lead_rows([row for row in rows if row.case == case]) for case in dict.fromkeys(row.case for row in rows)]
    columns = 1 if len(cases) <= ONE_COLUMN else 2
    bar_counts = [max(map(len, cases[first : first + columns])) for first in range(0, len(cases), columns)]
    heights = [CASE_IN + BAR_IN * count for count in bar_counts]
    figure = Figure(figsize=(WIDTH_IN * (1 + 0.5 * (columns - 1)), sum(heights)), layout=_layout())
    panels = figure.subplots(len(heights), columns, squeeze=False, height_ratios=heights)
    for number, (case, panel) in enumerate(zip(cases, panels.flat, strict=False)):
        _draw_case(panel, case, bar_count=bar_counts[number // columns])
    for panel in panels.flat[len(cases) :]:
        panel.set_visible(False)
    return figure


def _draw_case(panel: Any, rows: Sequence[Row], *, bar_count: int) -> None:
    values = [row.median for row in rows]
    spread = [[row.median - row.min for row in rows], [row.max - row.median for row in rows]]
    most, least = max(row.max for row in rows), min(values)
    is_log = least > 0 and most / least > LOG_FROM
    panel.barh(
        range(len(rows)),
        values,
        height=0.72,
        xerr=spread,
        color=[COLOURS[kind_of(row.system)] for row in rows],
        error_kw={"elinewidth": 0.9, "capsize": 2, "ecolor": "#333333"},
    )
    panel.set_yticks(range(len(rows)), [row.system for row in rows])
    panel.set_ylim(bar_count - 0.5, -0.5)  # as many for all beside each other, so that bars are as thick
    if is_log:
        panel.set_xscale("log")
        panel.set_xlim(least / 2, most * 4)
    else:
        panel.set_xlim(0, most * 1.14 or 1)
    for number, row in enumerate(rows):
        panel.annotate(
            shown(row.median), (row.max, number), (5, 0), textcoords="offset points", va="center", fontsize=8
        )
    unit = rows[0].unit
    panel.set_title(f"{rows[0].case}\n{rows[0].metric.replace('_', ' ')}, {unit}{' (log)' if is_log else ''}")
    panel.tick_params(axis="y", length=0)
    panel.minorticks_off()
    panel.grid(axis="x", color="#eeeeee", zorder=0)
    panel.set_axisbelow(True)


def _lines(growth: Sequence[Growth]) -> Any:
    axes = by_axis(growth)
    plans = [(axis, metric) for axis, found in axes.items() for metric in dict.fromkeys(each.metric for each in found)]
    row_count = -(-len(plans) // PANELS_A_ROW)
    figure = Figure(figsize=(WIDTH_IN * 1.15, PANEL_IN * row_count), layout=_layout())
    panels = figure.subplots(row_count, PANELS_A_ROW, squeeze=False)
    systems = sorted({each.system for each in growth}, key=lambda name: (name != OURS, name))
    looks: dict[str, dict[str, Any]] = {
        system: {"color": LINES[number % len(LINES)], "linestyle": DASHES[number % len(DASHES)], "marker": "o"}
        for number, system in enumerate(systems)
    }
    for panel, (axis, metric) in zip(panels.flat, plans, strict=False):
        _draw_growth(panel, [each for each in axes[axis] if each.metric == metric], looks)
    for panel in panels.flat[len(plans) :]:
        panel.set_visible(False)
    handles = [Line2D([], [], markersize=4, label=system, **looks[system]) for system in systems]
    figure.legend(handles=handles, loc="outside upper left", ncols=len(systems), frameon=False)
    return figure


def _draw_growth(panel: Any, found: Sequence[Growth], looks: Mapping[str, Any]) -> None:
    for each in found:
        sizes, costs = zip(*each.points, strict=True)
        panel.plot(sizes, costs, markersize=3.5, **looks[each.system])
    panel.set_xscale("log")
    all_costs = [cost for each in found for _, cost in each.points]
    if min(all_costs) > 0:
        panel.set_yscale("log")  # whole powers of ten, so that what hardly grows looks so
        panel.set_ylim(
            10 ** math.floor(math.log10(min(all_costs) / 1.05)), 10 ** math.ceil(math.log10(max(all_costs) * 1.05))
        )
    panel.set_xlabel(found[0].axis)
    panel.set_title(with_unit(found[0].metric, found[0].unit), fontsize=8.5)
    panel.minorticks_off()
    panel.grid(color="#eeeeee")


def with_unit(metric: str, unit: str) -> str:
    """Return a figure's name with its unit, unless the name ends with it."""
    name = metric.replace("_", " ")
    return name if name.endswith(unit) else f"{name}, {unit}"


def shown(value: float) -> str:
    """Return a figure with three digits that count."""
    if value >= 100 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 0.095 else f"{value:.2g}"
