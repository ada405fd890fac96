"""Prints the results of a workload as tables."""

import sys
from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.table import Table

from bench.compare import describe_growth
from bench.goals import judge
from bench.harness import Report, Row

SMALL: Final = 100
"""Figures below this are shown with decimals."""
REPORT_WIDTH: Final = 160
"""Columns of a report that goes into a file."""


def print_report(report: Report) -> None:
    """Print a table for each case, one line a system: the median of each metric, and how long it took beside us."""
    console = Console(width=None if sys.stdout.isatty() else REPORT_WIDTH)
    console.print(report.description)
    for line in describe_growth(report.rows):
        console.print(line)
    for case in dict.fromkeys(row.case for row in report.rows if not row.axis):
        _print_case(console, case, [row for row in report.rows if row.case == case])
    for verdict in judge(report.workload, report.rows):
        outcome = "reached" if verdict.is_reached else "NOT reached"
        what = f"{verdict.case}: {verdict.goal.text} {verdict.unit}"
        console.print(f"goal {outcome}: {what}: {_shown(verdict.value)}{verdict.detail}", markup=False)


def _print_case(console: Console, case: str, rows: Sequence[Row]) -> None:
    metrics = list(dict.fromkeys((row.metric, row.unit) for row in rows))
    found = {(row.system, row.metric): row for row in rows}
    lead, unit = metrics[0]
    systems = sorted({row.system for row in rows}, key=lambda system: found[system, lead].median)
    table = Table(title=case, title_justify="left")
    table.add_column("system")
    for metric, its_unit in metrics:
        table.add_column(f"{metric.replace('_', ' ')}\n({its_unit})", justify="right")
    table.add_column(f"{lead}\nmin to max ({unit})", justify="right")
    table.add_column(f"{lead}\nby ours", justify="right")
    for system in systems:
        compared = found[system, lead]
        ratio = "" if compared.ratio_to_ours is None else f"{compared.ratio_to_ours:.2f}"
        medians = [_shown(found[system, metric].median) if (system, metric) in found else "" for metric, _ in metrics]
        table.add_row(system, *medians, f"{compared.min:.2f} to {compared.max:.2f}", ratio)
    console.print(table)


def _shown(value: float) -> str:
    return f"{value:,.2f}" if value < SMALL else f"{value:,.0f}"
