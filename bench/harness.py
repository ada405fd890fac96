"""Runs the systems of one workload in turns and reports medians. Knows nothing about what they do."""

import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Protocol

import orjson
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from bench.figures import OURS, Figure
from bench.processes import PEERS_PYTHON

SMALL = 100
"""Figures below this are shown with decimals."""
REPORT_WIDTH = 160
"""Columns of a report that goes into a file."""
OUR_PACKAGES = ("pyspark", "duckdb", "pyarrow")
PEER_PACKAGES = ("deltalake", "pyiceberg", "polars", "duckdb")
_VERSIONS = """
import sys
from importlib.metadata import PackageNotFoundError, version
for package in sys.argv[1:]:
    try:
        print(f"{package}=={version(package)}")
    except PackageNotFoundError:
        pass
"""


@dataclass(frozen=True, slots=True)
class Options:
    """Size of a benchmark.

    Attributes:
        repeat_count: Timed turns of each system.
        event_count: Events in the input.
        batch_count: Batches that it comes in.
        size_gb: Bytes of the input, where a workload is asked for these and not for events; units of 10^9.
        only: Run only the cases whose name contains this.
        object_count: Objects to delete, where a workload deletes.
        marker_count: Data files that a log names, where a workload plans.
        is_quick: Small sizes and short turns, where a workload has them: to see that all of it works.
    """

    repeat_count: int
    event_count: int
    batch_count: int
    size_gb: float = 5.0
    only: str = ""
    object_count: int = 10_000
    marker_count: int = 1_000_000
    is_quick: bool = False


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


@dataclass(frozen=True, slots=True)
class Case:
    """Systems that do the same work on the same data.

    Attributes:
        name: Distinguishes the cases of one workload; empty if there is one.
        row_count: Rows that each system handles in one turn, unless it has a ``row_count`` of its own.
        systems: In the order in which they take turns.
        warm_turn_count: Turns before the timed ones, which do not count.
        size_bytes: Bytes that each system handles in one turn; 0: of no interest.
        unit: What ``row_count`` counts.
        is_timed: Whether the time of a turn says anything. Where a turn takes as long as it is given, systems are
            compared by the first figure of their check.
        patience_s: A system whose timed turns have taken so long has had enough of them; ``None``: no limit.
    """

    name: str
    row_count: int
    systems: Sequence[System]
    warm_turn_count: int = 1
    size_bytes: int = 0
    unit: str = "rows"
    is_timed: bool = True
    patience_s: float | None = None


class Workload(Protocol):
    """One question, asked in one or more cases."""

    name: str
    description: str

    def cases(self) -> Iterable[Case]:
        """Make one case after the other ready; what a case needs may be gone when the next is asked for."""
        ...


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a report."""

    workload: str
    case: str
    system: str
    metric: str
    unit: str
    median: float
    min: float
    max: float
    ratio_to_ours: float | None
    turn_count: int


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
    """Run every system of every case ``repeat_count`` times, alternating, after a turn each that does not count."""
    rows: list[Row] = []
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(workload.name)
        for case in workload.cases():
            rows += _run_case(
                workload.name, case, options, lambda text: progress.update(task, description=f"{workload.name}: {text}")
            )
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    versions = read_versions(OUR_PACKAGES) | read_versions(PEER_PACKAGES, python=PEERS_PYTHON)
    command = _command(workload.name, options)
    return Report(workload.name, workload.description, command, machine, versions, tuple(rows))


def read_versions(packages: Sequence[str], *, python: Path | None = None) -> dict[str, str]:
    """Return the versions of installed packages, of this Python's environment or another's, but for missing ones."""
    if python is not None and not python.exists():
        return {}
    said = subprocess.run(
        [str(python or sys.executable), "-c", _VERSIONS, *packages], check=True, capture_output=True, text=True
    ).stdout
    return dict(line.split("==") for line in said.split())


def _command(name: str, options: Options) -> str:
    words = [f"python -m bench {name} --repeat {options.repeat_count}"]
    words += [f"--events {options.event_count} --batches {options.batch_count} --size-gb {options.size_gb:g}"]
    words += [f"--objects {options.object_count} --markers {options.marker_count}"]
    words += ["--quick"] if options.is_quick else []
    words += [f"--only {options.only!r}"] if options.only else []
    return " ".join(words)


def _run_case(workload: str, case: Case, options: Options, tell: Callable[[str], None]) -> list[Row]:
    figures: dict[tuple[str, str, str], list[float]] = {}
    spent_s: dict[str, float] = {}
    for turn in range(1 - case.warm_turn_count, options.repeat_count + 1):
        for system in case.systems:
            if case.patience_s is not None and spent_s.get(system.name, 0.0) >= case.patience_s:
                continue
            tell(f"{case.name} turn {turn} of {options.repeat_count}, {system.name}")
            system.prepare()
            start = perf_counter()
            system.run()
            elapsed_s = perf_counter() - start
            extra = system.check()
            if turn < 1:
                continue  # warms sessions, caches and the page cache, for everybody
            spent_s[system.name] = spent_s.get(system.name, 0.0) + elapsed_s
            for figure in (*_timed_figures(case, system, elapsed_s), *extra):
                figures.setdefault((system.name, figure.metric, figure.unit), []).append(figure.value)
    ours = {metric: statistics.median(v) for (system, metric, _), v in figures.items() if system == OURS}
    return [
        Row(
            workload=workload,
            case=case.name,
            system=system,
            metric=metric,
            unit=unit,
            median=statistics.median(values),
            min=min(values),
            max=max(values),
            ratio_to_ours=statistics.median(values) / ours[metric] if ours.get(metric) else None,
            turn_count=len(values),
        )
        for (system, metric, unit), values in figures.items()
    ]


def _timed_figures(case: Case, system: System, elapsed_s: float) -> list[Figure]:
    if not case.is_timed:
        return []
    row_count = getattr(system, "row_count", case.row_count)
    rates = [Figure(f"{case.unit}_per_second", f"{case.unit}/s", row_count / elapsed_s)]
    if case.size_bytes:
        rates.append(Figure("input_rate", "MB/s", case.size_bytes / elapsed_s / 1e6))
    return [Figure("duration", "s", elapsed_s), *rates]


def write_report(report: Report, folder: Path) -> Path:
    """Write ``<folder>/<workload>.json`` and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{report.workload}.json"
    path.write_bytes(orjson.dumps(asdict(report), option=orjson.OPT_INDENT_2) + b"\n")
    return path


def print_report(report: Report) -> None:
    """Print a table for each case, one line a system: the median of each metric, and how long it took beside us."""
    console = Console(width=None if sys.stdout.isatty() else REPORT_WIDTH)
    console.print(report.description)
    for case in dict.fromkeys(row.case for row in report.rows):
        _print_case(console, case, [row for row in report.rows if row.case == case])


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
