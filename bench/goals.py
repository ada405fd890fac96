"""The goals of the speed work, each about a figure of a workload, so that the report can say which are reached."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from bench.compare import speed_ratio
from bench.figures import OURS
from bench.harness import Row


@dataclass(frozen=True, slots=True)
class Goal:
    """What is wanted of one figure.

    Attributes:
        workload: Whose results.
        case: Cases whose name contains this.
        metric: The figure.
        at_least: How many times as fast as ``against``; with ``against`` only.
        at_most: The figure itself, in its unit.
        against: The peer.
        system: Which of ours.
    """

    workload: str
    case: str
    metric: str
    at_least: float = 0.0
    at_most: float = 0.0
    against: str = ""
    system: str = OURS

    @property
    def text(self) -> str:
        """The goal in words."""
        who = "" if self.system == OURS else f"{self.system}: "
        if self.against:
            return f"{who}{self.metric.replace('_', ' ')} beside {self.against} ≥ {self.at_least:g}"
        return f"{who}{self.metric.replace('_', ' ')} ≤ {self.at_most:g}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """A goal beside what was measured: ``value`` is a ratio or the figure; ``None``: it was not measured."""

    goal: Goal
    case: str
    value: float
    unit: str
    is_reached: bool


GOALS: Final[tuple[Goal, ...]] = (
    Goal("merge", "follow each other", "duration", at_least=4, against="duckdb"),
    Goal("merge", "follow each other", "cpu_time", at_least=8, against="duckdb"),
    Goal("merge", "400 files", "duration", at_least=8, against="duckdb"),
    Goal("merge", "400 files", "duration", at_least=5, against="delta-rs"),
    Goal("merge", "40 files of 100,000 rows", "duration", at_least=1, against="duckdb"),
    Goal("merge", "2,000 files of 500 rows", "duration", at_least=1, against="duckdb"),
    Goal("merge", "rows", "duration", at_least=2, against="delta-rs z-order"),
    Goal("merge", "8 files of 10 rows", "duration", at_most=0.3),
    Goal("ingest", "columns", "duration", at_least=0.95, against="duckdb"),
    Goal("ingest", "columns", "duration", at_least=2, against="delta-rs"),
    Goal("tiny", "", "visible", at_least=50, against="delta-rs"),
    Goal("tiny", "", "visible", at_least=100, against="pyiceberg"),
    Goal("snapshot", "warm, 10,000 files, 1 caller", "p50", at_most=4),
    Goal("snapshot", "warm, 10,000 files, 1 caller", "p99", at_most=8),
    Goal("snapshot", "warm, 100,000 files, 1 caller", "p50", at_most=60),
    Goal("snapshot", "S3 with 15 ms", "duration", at_least=1, against="delta-rs, no checkpoint"),
    Goal("snapshot", "S3 with 15 ms", "duration", at_most=0.15, system="icedb, log files folded"),
    Goal("snapshot", "a directory", "duration", at_least=0.5, against="sequential reader"),
    Goal("snapshot", "after a commit, 100,000 files", "p50", at_most=20),
    Goal("vacuum", "dead files", "duration", at_least=0.9, against="delta-rs"),
    Goal("vacuum", "a plan over", "duration", at_most=6),
    Goal("vacuum", "a plan over", "peak_memory", at_most=700),
)


def judge(workload: str, rows: Sequence[Row], goals: Iterable[Goal] = GOALS) -> list[Verdict]:
    """Return each goal that these rows can tell of, for each case that it is about."""
    found = {(row.case, row.system, row.metric): row for row in rows}
    verdicts = []
    for goal in goals:
        for case in dict.fromkeys(row.case for row in rows):
            ours = found.get((case, goal.system, goal.metric))
            other = found.get((case, goal.against, goal.metric))
            if goal.workload != workload or goal.case not in case or ours is None or (goal.against and other is None):
                continue
            if other is not None:
                ratio = speed_ratio(ours.median, other.median, unit=ours.unit)
                verdicts.append(Verdict(goal, case, ratio, "×", ratio >= goal.at_least))
            else:
                verdicts.append(Verdict(goal, case, ours.median, ours.unit, ours.median <= goal.at_most))
    return verdicts
