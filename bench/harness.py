"""Runs the systems of one workload in turns and reports medians. Knows nothing about what they do."""

import math
import os
import statistics
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Final, Literal, Protocol

import orjson
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from bench.figures import OURS, Figure
from bench.machine import Load, describe_machine, look_at_others
from bench.processes import PEERS_PYTHON, ROOT

Size = Literal["small", "middle", "full"]
RESULTS = ROOT / "bench" / "results"
ONE_TURN_S: Final = 1e-9
"""The patience of a case whose systems take one timed turn, however many others take."""
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
        repeat_count: Timed turns of each system, at most.
        event_count: Events in the input.
        batch_count: Batches that it comes in.
        size_gb: Bytes of the input, where a workload is asked for these and not for events; units of 10^9.
        only: Run only the cases whose name contains this.
        object_count: Objects to delete, where a workload deletes.
        marker_count: Data files that a log names, where a workload plans.
        size: ``small``: to see that all of it works; ``middle``; ``full``: everything, the largest sizes included.
        case_limit_s: No new round of turns begins in a case after so many seconds; one timed round always is.
        load_average: Of the minute before the whole run began.
    """

    repeat_count: int
    event_count: int
    batch_count: int
    size_gb: float = 5.0
    only: str = ""
    object_count: int = 10_000
    marker_count: int = 1_000_000
    size: Size = "middle"
    case_limit_s: float = math.inf
    load_average: float = 0.0

    @property
    def is_quick(self) -> bool:
        """Whether small sizes and short turns are wanted."""
        return self.size == "small"


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
        warm_turn_count: Turns before the timed ones, which do not count. Two: Spark gives single tasks to its two
            worker processes in turn, and each has a first time.
        size_bytes: Bytes that each system handles in one turn; 0: of no interest.
        unit: What ``row_count`` counts.
        is_timed: Whether the time of a turn says anything. Where a turn takes as long as it is given, systems are
            compared by the first figure of their check.
        patience_s: A system whose timed turns have taken so long has had enough of them; ``None``: no limit.
        axis: What grows from case to case, e.g. ``data files``; empty: nothing. Then exponents are fitted.
        at: Where on the axis this case is.
    """

    name: str
    row_count: int
    systems: Sequence[System]
    warm_turn_count: int = 2
    size_bytes: int = 0
    unit: str = "rows"
    is_timed: bool = True
    patience_s: float | None = None
    axis: str = ""
    at: float = 0.0


class Workload(ABC):
    """One question, asked in one or more cases; called after its module.

    Args:
        folder: For what it needs; removed at the end.
        options: Sizes, and which cases.
    """

    description: str

    def __init__(self, folder: Path, options: Options) -> None:
        self.name = type(self).__module__.rpartition(".")[2]
        self.folder = folder
        self.options = options

    @abstractmethod
    def cases(self) -> Iterable[Case]:
        """Make one case after the other ready; what a case needs may be gone when the next is asked for."""

    def wants(self, name: str) -> bool:
        """Whether a case is to be run."""
        return self.options.only in name


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
    turn_count: int = 1
    axis: str = ""
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Report:
    """What one run measured, when, where, beside what else, with which versions and which command."""

    workload: str
    description: str
    command: str
    machine: str
    versions: Mapping[str, str]
    rows: tuple[Row, ...]
    began: str = ""
    elapsed_s: float = 0.0
    size: str = ""
    load: Load | None = None


def run_workload(workload: Workload, options: Options) -> Report:
    """Run every system of every case ``repeat_count`` times, alternating, after a turn each that does not count."""
    began, began_s = datetime.now(UTC), perf_counter()
    rows: list[Row] = []
    busy_shares: list[float] = []
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(workload.name)
        for case in workload.cases():
            run = _CaseRun(case, options, busy_shares)
            run.all_turns(lambda text: progress.update(task, description=f"{workload.name}: {text}"))
            rows += run.rows(workload.name)
    load = Load(options.load_average, os.cpu_count() or 1, statistics.fmean(busy_shares or [0.0]))
    peers = read_versions(PEER_PACKAGES, python=PEERS_PYTHON)
    return Report(
        workload=workload.name,
        description=workload.description,
        command=_command(workload.name, options),
        machine=describe_machine(),
        versions=read_versions(OUR_PACKAGES) | {f"{name} (peer)": version for name, version in peers.items()},
        rows=tuple(rows),
        began=f"{began:%Y-%m-%d %H:%M} UTC",
        elapsed_s=perf_counter() - began_s,
        size=options.size,
        load=load,
    )


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
    words += [f"--size {options.size} --case-limit {options.case_limit_s:g}"]
    words += [f"--only {options.only!r}"] if options.only else []
    return " ".join(words)


class _CaseRun:
    """The turns of one case."""

    def __init__(self, case: Case, options: Options, busy_shares: list[float]) -> None:
        self._case = case
        self._options = options
        self._busy_shares = busy_shares
        self._figures: dict[tuple[str, str, str], list[float]] = {}
        self._spent_s: dict[str, float] = {}

    def all_turns(self, tell: Callable[[str], None]) -> None:
        """Let all systems take their turns, until there were enough or the time is over."""
        began_s = perf_counter()
        for turn in range(1 - self._case.warm_turn_count, self._options.repeat_count + 1):
            if turn > 1 and perf_counter() - began_s > self._options.case_limit_s:
                return
            self._busy_shares.append(look_at_others())
            for system in self._case.systems:
                patience_s = self._case.patience_s
                if patience_s is None or self._spent_s.get(system.name, 0.0) < patience_s:
                    tell(f"{self._case.name} turn {turn} of {self._options.repeat_count}, {system.name}")
                    self._one_turn(system, is_timed=turn > 0)

    def _one_turn(self, system: System, *, is_timed: bool) -> None:
        system.prepare()
        start = perf_counter()
        system.run()
        elapsed_s = perf_counter() - start
        extra = system.check()
        if not is_timed:
            return  # it warmed sessions, caches and the page cache
        self._spent_s[system.name] = self._spent_s.get(system.name, 0.0) + elapsed_s
        for figure in (*_timed_figures(self._case, system, elapsed_s), *extra):
            self._figures.setdefault((system.name, figure.metric, figure.unit), []).append(figure.value)

    def rows(self, workload: str) -> list[Row]:
        """Return what was measured."""
        ours = {metric: statistics.median(v) for (system, metric, _), v in self._figures.items() if system == OURS}
        return [
            Row(
                workload=workload,
                case=self._case.name,
                system=system,
                metric=metric,
                unit=unit,
                median=statistics.median(values),
                min=min(values),
                max=max(values),
                ratio_to_ours=statistics.median(values) / ours[metric] if ours.get(metric) else None,
                turn_count=len(values),
                axis=self._case.axis,
                at=self._case.at,
            )
            for (system, metric, unit), values in self._figures.items()
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


def read_report(path: Path) -> Report:
    """Read what :func:`write_report` wrote."""
    stored = orjson.loads(path.read_bytes())
    load = stored.pop("load", None)
    rows = tuple(Row(**row) for row in stored.pop("rows"))
    return Report(**stored, rows=rows, load=None if load is None else Load(**load))
