"""The goals of the speed work, each about a figure of a workload, so that the report can say which are reached."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from bench.compare import kind_of, speed_ratio
from bench.figures import OURS
from bench.harness import Row

EACH: Final = "each"
BEST: Final = "the best peer"


@dataclass(frozen=True, slots=True)
class Goal:
    """What is wanted of one figure: to be so many times as good as a peer's, or so much, in its unit.

    Attributes:
        workload: Whose results.
        case: Of which cases: a name, or a pattern as shells have it.
        metric: The figure; :data:`EACH`: each in the unit of the first one of the case, of which the worst decides.
        at_least: How many times as good as ``against``, or the figure itself.
        at_most: The figure itself.
        against: The peer; :data:`BEST`: the best one.
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
        """The goal in words, without the unit."""
        who = "" if self.system == OURS else f"{self.system}: "
        beside = f" beside {self.against}" if self.against else ""
        limit = f"≤ {self.at_most:g}" if self.at_most else f"≥ {self.at_least:g}"
        return f"{who}{self.metric.replace('_', ' ')}{beside} {limit}"

    def is_reached_by(self, value: float) -> bool:
        """Return whether a figure, or a ratio, is good enough."""
        return value <= self.at_most if self.at_most else value >= self.at_least


@dataclass(frozen=True, slots=True)
class Verdict:
    """A goal beside what was measured: ``value`` is a ratio, or the figure; ``detail`` says of what, if of several."""

    goal: Goal
    case: str
    value: float
    unit: str
    is_reached: bool
    detail: str = ""


NO_QUERIES: Final = ("mean_query", "cpu_time")
"""Figures of scans in ms that are none of one query."""
_MERGE: Final = "40 files of 100,000 rows"
_IN_ORDER: Final = f"{_MERGE} that follow each other"
_MANY_IN_ORDER: Final = "400 files of 100,000 rows that follow each other"
_COLUMNAR: Final = "icedb-client, columnar"
_BYTES: Final = "icedb-bytes, columnar"
_SPARING: Final = f"{OURS}, 500 ms, a commit in 5 s"
"""The settings with which small batches cost least."""
GOALS: Final[tuple[Goal, ...]] = (
    Goal("scan", "[!s]*columns*", EACH, at_least=0.952, against=BEST),  # not of sizes
    Goal("scan", "size*level*", "size", at_least=1, against=BEST),
    Goal("nested", "queries", "mean_query", at_least=10, against=f"{OURS}, text"),
    Goal("nested", "queries", "mean_query", at_least=1 / 1.3, against="flattened Parquet"),
    Goal("nested", "size", "size", at_least=1 / 1.3, against="bound: zstd of the source"),
    Goal("nested", "50 keys, read", "count_by_kind", at_least=1 / 1.3, against=f"{OURS}, plain columns"),
    Goal("nested", "50 keys, read", "files_of_some", at_least=1, against=f"{OURS}, plain columns"),
    Goal("nested", "50 keys, [!r]*", "peak_memory", at_least=1 / 1.1, against=f"{OURS}, no rare keys"),
    Goal("nested", "50 keys, [!r]*", "columns", at_least=1, against=f"{OURS}, no rare keys"),
    Goal("nested", "backfill", "duration", at_least=1 / 3, against="bound: copy of the files"),
    Goal("nested", "ingest", "duration", at_least=1 / 1.1, against=OURS, system=f"{OURS}, 20 paths"),
    Goal("merge", _MANY_IN_ORDER, "duration", at_least=8, against="duckdb"),
    Goal("merge", _MANY_IN_ORDER, "duration", at_least=5, against="delta-rs"),
    Goal("merge", _IN_ORDER, "duration", at_least=4, against="duckdb"),
    Goal("merge", _IN_ORDER, "cpu_time", at_least=8, against="duckdb"),
    Goal("merge", _MERGE, "duration", at_least=1, against="duckdb"),
    Goal("merge", _MERGE, "duration", at_least=2, against="delta-rs z-order"),
    Goal("merge", "2,000 files of 500 rows", "duration", at_least=1, against="duckdb"),
    Goal("merge", "2,000 files of 500 rows", "duration", at_least=2, against="delta-rs z-order"),
    Goal("merge", "8 files of 10 rows", "duration", at_most=0.08),
    Goal("ingest", "*", "duration", at_least=0.95, against="duckdb"),
    Goal("ingest", "*", "duration", at_least=2, against="delta-rs"),
    Goal("tiny", "*", "visible", at_least=50, against="delta-rs"),
    Goal("tiny", "*", "visible", at_least=100, against="pyiceberg"),
    Goal("tiny", "a warm worker*", "p50", at_most=350),
    Goal("tiny", "a warm worker*", "p95", at_most=350),
    Goal("snapshot", "warm, 10,000 files, 1 caller", "p50", at_most=4, system=_COLUMNAR),
    Goal("snapshot", "warm, 10,000 files, 1 caller", "p99", at_most=8, system=_COLUMNAR),
    Goal("snapshot", "warm, 100,000 files, 1 caller", "p50", at_most=60, system=_COLUMNAR),
    Goal("snapshot", "warm, 10,000 files, 8 callers", "calls_per_second", at_least=1000, system=_BYTES),
    Goal("snapshot", "after a commit, 100,000 files, 1 caller", "p50", at_most=20, system="icedb-client, since"),
    Goal("snapshot", "after a commit, 100,000 files, 1 caller", "p50", at_most=5, system="icedb-client, since, known"),
    Goal("snapshot", "cold, 2,000 commits*S3*", "duration", at_least=1, against="delta-rs, no checkpoint"),
    Goal(
        "snapshot",
        "cold, 2,000 commits*S3*",
        "duration",
        at_least=1,
        against="delta-rs, checkpoint",
        system="icedb, log files folded",
    ),
    Goal("snapshot", "cold, 2,000 commits*S3*", "duration", at_most=0.15, system="icedb, log files folded"),
    Goal("snapshot", "cold, 950 commits*S3*", "duration", at_most=0.6),
    Goal("snapshot", "cold, 2,000 commits*a directory", "duration", at_least=0.8, against="sequential reader"),
    Goal("iceberg", "*plans*", "duration", at_least=1 / 1.1, against="native Iceberg"),
    Goal("iceberg", "a publication of 10 files into 100,000", "duration", at_most=0.15),
    Goal("iceberg", "a publication of 10 files into 100,000", "written", at_most=200),
    Goal("starting", "icedb --help", "duration", at_most=0.25),
    Goal("starting", "icedb version", "duration", at_most=0.25),
    Goal("starting", "icedb status of a directory", "duration", at_most=0.5),
    Goal("starting", "icedb query*", "duration", at_most=0.4),
    Goal("starting", "import icedb_client", "duration", at_most=0.2),
    Goal("starting", "snapshot service", "duration", at_most=1.2),
    Goal("many", "icedb status*snapshot service", "duration", at_most=0.5),
    Goal("many", "console*", "p99 of a page", at_most=500),
    Goal("many", "*at rest", "lists of a table a minute", at_most=2),
    Goal("starting", "make up", "duration", at_most=15),
    Goal("starting", "make up", "idle_memory", at_most=1843),
    Goal("doors", "100 batches a second, HTTP with ids", "a million events", at_most=0.10),
    Goal("doors", "100 batches a second, HTTP with ids", "requests of a batch", at_most=0.5),
    Goal("doors", "100 batches a second, HTTP with ids", "a million events", at_most=0.025, system=_SPARING),
    Goal("seen", "*16 senders*", "visible", at_least=1500),
    Goal("seen", "*16 senders*", "p50", at_most=150),
    Goal("seen", "*16 senders*", "p99", at_most=400),
    Goal("seen", "*, 300 batches*", "seen_p99", at_most=1500),
    Goal("seen", "*one sender", "p50", at_least=0.95, against=f"{OURS}, each batch alone"),
    Goal("seen", "*2,000 batches*", "front end's peak memory", at_most=512),
    Goal("nodes", "*", "duration", at_least=2.4, against=OURS, system=f"{OURS}, three machines"),
    Goal("vacuum", "*10,000 dead files", "duration", at_least=1.0, against="delta-rs"),
    Goal("vacuum", "a plan over 1,000,000 live*", "duration", at_most=6),
    Goal("vacuum", "a plan over 1,000,000 live*", "peak_memory", at_most=700),
    Goal("vacuum", "a plan over 1,000,000 live*", "plan_cpu", at_most=3, system=f"{OURS}, a merge"),
)


def judge(workload: str, rows: Sequence[Row], goals: Iterable[Goal] = GOALS) -> list[Verdict]:
    """Return each goal that these rows can tell of, for each case that it is about."""
    by_case: dict[str, list[Row]] = {}
    for row in rows:
        by_case.setdefault(row.case, []).append(row)
    found = (
        _judge_case(goal, case, of_case)
        for goal in goals
        for case, of_case in by_case.items()
        if goal.workload == workload and fnmatchcase(case, goal.case)
    )
    return [verdict for verdict in found if verdict is not None]


def _judge_case(goal: Goal, case: str, rows: Sequence[Row]) -> Verdict | None:
    """Return what is to be said of one case; ``None``: it lacks the figure."""
    ours = [row for row in rows if row.system == goal.system and goal.metric in (row.metric, EACH)]
    if goal.metric == EACH:
        ours = [row for row in ours if row.unit == rows[0].unit and row.metric not in NO_QUERIES]
    if not goal.against:
        return Verdict(goal, case, ours[0].median, ours[0].unit, goal.is_reached_by(ours[0].median)) if ours else None
    ratios = {row.metric: ratio for row in ours if (ratio := _find_ratio(goal, row, rows)) is not None}
    if not ratios:
        return None
    worst = min(ratios, key=lambda metric: ratios[metric])
    good_count = sum(map(goal.is_reached_by, ratios.values()))
    detail = f" ({worst}; {good_count} of {len(ratios)} reach it)" if goal.metric == EACH else ""
    return Verdict(goal, case, ratios[worst], "×", goal.is_reached_by(ratios[worst]), detail)


def _find_ratio(goal: Goal, ours: Row, rows: Iterable[Row]) -> float | None:
    others = [
        row
        for row in rows
        if row.metric == ours.metric
        and (kind_of(row.system) == "peer" if goal.against == BEST else row.system == goal.against)
    ]
    return min((speed_ratio(ours.median, row.median, unit=ours.unit) for row in others), default=None)
