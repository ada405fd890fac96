"""Runs the systems of one workload in turns and reports medians. Knows nothing about what they do."""

import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Protocol

import orjson
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

OURS = "icedb"
SMALL = 100
"""Figures below this are shown with decimals."""


@dataclass(frozen=True, slots=True)
class Options:
    """Size of a benchmark: timed turns of each system, events in the input, commits it comes in."""

    repeat_count: int
    event_count: int
    batch_count: int


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value of one turn, e.g. ``Figure("output_files", "files", 7)``."""

    metric: str
    unit: str
    value: float


class System(Protocol):
    """One competitor."""

    name: str

    def prepare(self) -> None:
        """Make fresh inputs. Not timed."""
        ...

    def run(self) -> None:
        """Do the work. Timed."""
        ...

    def check(self) -> Sequence[Figure]:
        """Check the result and return further figures. Not timed. Raises if a row is missing."""
        ...


class Workload(Protocol):
    """Systems that do the same work on the same data."""

    name: str
    description: str
    row_count: int
    systems: Sequence[System]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a report."""

    workload: str
    system: str
    metric: str
    unit: str
    median: float
    min: float
    max: float
    ratio_to_ours: float | None


@dataclass(frozen=True, slots=True)
class Report:
    """What one run measured, where, with which versions and which command."""

    workload: str
    description: str
    command: str
    machine: str
    versions: Mapping[str, str]
    rows: tuple[Row, ...]


def run_workload(workload: Workload, options: Options) -> Report:
    """Run every system ``repeat_count`` times, alternating, after one turn each that does not count."""
    figures: dict[tuple[str, str, str], list[float]] = {}
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(workload.name)
        for turn in range(options.repeat_count + 1):
            for system in workload.systems:
                progress.update(
                    task, description=f"{workload.name}: turn {turn} of {options.repeat_count}, {system.name}"
                )
                system.prepare()
                start = perf_counter()
                system.run()
                elapsed_s = perf_counter() - start
                extra = system.check()
                if turn == 0:
                    continue  # warms sessions, caches and the page cache, for everybody
                rate = Figure("rows_per_second", "rows/s", workload.row_count / elapsed_s)
                for figure in (Figure("duration", "s", elapsed_s), rate, *extra):
                    figures.setdefault((system.name, figure.metric, figure.unit), []).append(figure.value)
    ours = {metric: statistics.median(v) for (system, metric, _), v in figures.items() if system == OURS}
    rows = tuple(
        Row(
            workload=workload.name,
            system=system,
            metric=metric,
            unit=unit,
            median=statistics.median(values),
            min=min(values),
            max=max(values),
            ratio_to_ours=statistics.median(values) / ours[metric] if ours.get(metric) else None,
        )
        for (system, metric, unit), values in figures.items()
    )
    command = (
        f"python -m bench {workload.name} --repeat {options.repeat_count} "
        f"--events {options.event_count} --batches {options.batch_count}"
    )
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    versions = {package: version(package) for package in ("pyspark", "duckdb", "deltalake", "pyarrow")}
    return Report(workload.name, workload.description, command, machine, versions, rows)


def write_report(report: Report, folder: Path) -> Path:
    """Write ``<folder>/<workload>.json`` and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{report.workload}.json"
    path.write_bytes(orjson.dumps(asdict(report), option=orjson.OPT_INDENT_2) + b"\n")
    return path


def print_report(report: Report) -> None:
    """Print one line a system: the median of each metric, and how long it took beside us."""
    metrics = list(dict.fromkeys((row.metric, row.unit) for row in report.rows))
    found = {(row.system, row.metric): row for row in report.rows}
    systems = sorted({row.system for row in report.rows}, key=lambda system: found[system, "duration"].median)
    table = Table(title=report.description, title_justify="left")
    table.add_column("system")
    for metric, unit in metrics:
        table.add_column(f"{metric.replace('_', ' ')}\n({unit})", justify="right")
    table.add_column("duration\nmin to max (s)", justify="right")
    table.add_column("duration\nby ours", justify="right")
    for system in systems:
        duration = found[system, "duration"]
        ratio = "" if duration.ratio_to_ours is None else f"{duration.ratio_to_ours:.2f}"
        medians = [_shown(found[system, metric].median) for metric, _ in metrics]
        table.add_row(system, *medians, f"{duration.min:.2f} to {duration.max:.2f}", ratio)
    Console().print(table)


def _shown(value: float) -> str:
    return f"{value:,.2f}" if value < SMALL else f"{value:,.0f}"
