"""How a table's log grows: the real planners on modelled log files, up to 100,000 commits.

No rows, no store and no codec: data files are sizes, log files are markers whose bytes are counted by
:data:`MARKER_BYTES` and its like. Everything that decides is the code that services run: ``plan_merge``,
``build_merge_log``, ``plan_vacuum``, ``strip_log_file``, ``measure_pressure``. Deterministic for a seed.

``python -m icedb_sim.growth.log_growth --help`` measures what ``docs/internals/log-growth.md`` reports.
"""

import argparse
import gc
import json
import random  # noqa: TID251 - a seeded generator is what the model is made of
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Final, Literal, get_args

from icedb_log.clean.vacuum_plan import plan_vacuum, strip_log_file
from icedb_log.commit.invariants import MAX_LOG_FILES
from icedb_log.commit.merge_log import build_merge_log
from icedb_log.ingest.pressure import measure_pressure
from icedb_log.jobs import MergedGroup, MergeGroup
from icedb_log.keys import TablePaths
from icedb_log.merge.merge_plan import Lane, MergeIndex, MergeOptions, plan_merge
from icedb_log.model import FileMarker, ListedLogFile, LogFile, LogView
from icedb_log.table.table_config import TableConfig
from icedb_log.units import HOUR_MS, MINUTE_MS, SECOND_MS

PATHS: Final = TablePaths("t", "wh/t")
START_MS: Final = 1_700_000_000_000

HEAD_BYTES: Final = 400
MARKER_BYTES: Final = 230
DEAD_BYTES: Final = 35
LOG_TOMBSTONE_BYTES: Final = 110
"""Measured on log files of the integration tests: two statistics a marker, a schema of ten columns."""

LOOK_EVERY_COMMITS: Final = 10
"""How often live files are counted, which takes a look at every partition."""

Shape = Literal["days", "users"]


@dataclass(frozen=True, slots=True)
class Scenario:
    """What comes in, and who works on it.

    Attributes:
        shape: ``days``: each commit has one file for each of ``files_per_commit`` buckets of the current day;
            ``users``: as many files in partitions drawn from ``partitions``.
        files_per_commit: Data files of one append.
        partitions: Of shape ``users``.
        file_bytes: Mean size of an appended data file; sizes vary from half of it to one and a half.
        interval_ms: Time between two appends, before back-pressure.
        merge_every_ms: Time between two runs of the hot lane.
        cold_every_ms: Time between two runs of the cold lane.
        vacuum_every_ms: Time between two vacuums.
        seed: Of the generator.
    """

    shape: Shape = "days"
    files_per_commit: int = 10
    partitions: int = 10_000
    file_bytes: int = 40_000
    interval_ms: int = 5 * SECOND_MS
    merge_every_ms: int = 10 * SECOND_MS
    cold_every_ms: int = 10 * MINUTE_MS
    vacuum_every_ms: int = 10 * MINUTE_MS
    seed: int = 1


@dataclass(slots=True)
class Growth:
    """What has happened so far.

    Attributes:
        commits: Appends.
        data_files: Data files that they brought.
        max_log_files: Most objects below ``_log`` at any time.
        live_files: Live data files now.
        max_live_files: Most at any time.
        log_bytes: Bytes of ``_log`` now.
        append_log_bytes: Bytes of log that appends wrote.
        merge_log_bytes: Bytes of log that merges and folds wrote.
        strip_log_bytes: Bytes of log that the janitor wrote.
        merges: Commits of merges and folds.
        appended_bytes: Bytes of data that came.
        rewritten_bytes: Bytes of data that merges wrote.
        elapsed_ms: Modelled time.
    """

    commits: int = 0
    data_files: int = 0
    max_log_files: int = 0
    live_files: int = 0
    max_live_files: int = 0
    log_bytes: int = 0
    append_log_bytes: int = 0
    merge_log_bytes: int = 0
    strip_log_bytes: int = 0
    merges: int = 0
    appended_bytes: int = 0
    rewritten_bytes: int = 0
    elapsed_ms: int = 0

    @property
    def log_bytes_per_commit(self) -> float:
        """Bytes of log written for each append, by whomever."""
        return (self.append_log_bytes + self.merge_log_bytes + self.strip_log_bytes) / max(self.commits, 1)

    @property
    def rewrite_factor(self) -> float:
        """How often a byte of data was written again."""
        return self.rewritten_bytes / max(self.appended_bytes, 1)


@dataclass(slots=True)
class GrowingTable:
    """A table whose log grows.

    Attributes:
        scenario: What comes in.
        config: Of the table.
        growth: What has happened.
    """

    scenario: Scenario
    config: TableConfig = field(default_factory=lambda: TableConfig.create(name="t"))
    growth: Growth = field(default_factory=Growth)
    _now_ms: int = START_MS
    _files: dict[str, ListedLogFile] = field(default_factory=dict)
    _count: int = 0
    _due: dict[str, int] = field(default_factory=dict)
    _index: MergeIndex = field(init=False)
    _rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._index = MergeIndex(PATHS, self.config)
        self._rng = random.Random(self.scenario.seed)

    def run(self, commits: int, *, report: Callable[[Growth], None] = lambda _: None, at: Iterable[int] = ()) -> Growth:
        """Append until there were so many commits; report when there were as many as ``at`` says."""
        marks = set(at)
        while self.growth.commits < commits:
            self._append()
            self._work()
            if self.growth.commits in marks:
                self._look()
                report(self.growth)
        return self.growth

    def view(self) -> LogView:
        """Return the log."""
        return LogView("t", tuple(self._files[key] for key in sorted(self._files)), self._now_ms)

    def _append(self) -> None:
        pressure = measure_pressure(log_files=len(self._files), backlog_files=0)
        self._now_ms += int(self.scenario.interval_ms * pressure.stretch)
        self.growth.elapsed_ms = self._now_ms - START_MS
        if len(self._files) >= MAX_LOG_FILES:
            return
        size = self.scenario.file_bytes
        markers = tuple(
            self._marker(partition, self._rng.randint(size // 2, size * 3 // 2)) for partition in self._partitions()
        )
        self.growth.commits += 1
        self.growth.data_files += len(markers)
        self.growth.appended_bytes += sum(marker.size_bytes for marker in markers)
        self.growth.append_log_bytes += self._put(LogFile(self._now_ms, markers=markers), is_merged=False)

    def _partitions(self) -> list[str]:
        count = self.scenario.files_per_commit
        if self.scenario.shape == "days":
            day = self.growth.elapsed_ms // (24 * HOUR_MS)
            return [f"d={day:04}/u={number}" for number in range(count)]
        return [f"u={number:06}" for number in self._rng.sample(range(self.scenario.partitions), count)]

    def _work(self) -> None:
        if self._is_due("vacuum", self.scenario.vacuum_every_ms):
            self._vacuum()
        if self._is_due("hot", self.scenario.merge_every_ms):
            self._merge("hot")
        if self._is_due("cold", self.scenario.cold_every_ms):
            self._merge("cold")
        self.growth.max_log_files = max(self.growth.max_log_files, len(self._files))

    def _look(self) -> None:
        self.growth.live_files = len(self._index.log.live)
        self.growth.max_live_files = max(self.growth.max_live_files, self.growth.live_files)
        self.growth.log_bytes = sum(file.size_bytes for file in self._files.values())

    def _is_due(self, what: str, every_ms: int) -> bool:
        if self._now_ms < self._due.setdefault(what, self._now_ms + every_ms):
            return False
        self._due[what] = self._now_ms + every_ms
        return True

    def _merge(self, lane: Lane) -> None:
        while True:
            view = self.view()
            plan = plan_merge(self._index, view, MergeOptions(lane))
            if not plan.commits and not plan.folded_log_keys:
                break
            for number, groups in enumerate(plan.commits or ((),)):
                self._commit_merge(groups, self._index.find_due_logs(groups) if number else plan.folded_log_keys)
            self._now_ms += 1
        if self.growth.commits % LOOK_EVERY_COMMITS == 0:
            self._look()

    def _commit_merge(self, groups: Iterable[MergeGroup], folded: Iterable[str]) -> None:
        merged = [
            MergedGroup(group, (self._marker(group.partition, group.size_bytes),), len(group.inputs))
            for group in groups
        ]
        view = self.view()
        self._index.update(view)
        self._now_ms += 1
        log = build_merge_log(
            self._index.log,
            merged=merged,
            folded_log_keys=folded,
            commit_id=f"{self._count:08x}",
            now_ms=self._now_ms,
        )
        self._now_ms = max(self._now_ms, log.time_ms)
        self.growth.merges += 1
        self.growth.rewritten_bytes += sum(group.group.size_bytes for group in merged)
        self.growth.merge_log_bytes += self._put(log, is_merged=True)
        self._index.update(self.view())

    def _vacuum(self) -> None:
        view = self.view()
        plan = plan_vacuum(view, config=self.config)
        gone = set(plan.log_keys)
        gone_data = set(plan.data_paths)
        dead = {tombstone.path for file in view.files for tombstone in file.log.log_tombstones}
        for key in gone:
            del self._files[key]
        for file in [file for key, file in self._files.items() if key not in dead]:
            log = strip_log_file(file, view, gone_logs=gone, gone_data=gone_data)
            if log is not None:
                self._count += 1
                size = size_of(log)
                self._files[file.key] = replace(
                    file, log=log, etag=f"{self._count}", size_bytes=size, modified_ms=self._now_ms
                )
                self.growth.strip_log_bytes += size

    def _marker(self, partition: str, size_bytes: int) -> FileMarker:
        self._count += 1
        path = PATHS.data_key(partition=partition, file_id=f"{self._count:032x}")
        return FileMarker(path, size_bytes, self._now_ms, row_count=1)

    def _put(self, log: LogFile, *, is_merged: bool) -> int:
        self._count += 1
        key = PATHS.log_key(time_ms=log.time_ms, commit_id=f"{self._count:016x}", is_merged=is_merged)
        size = size_of(log)
        self._files[key] = ListedLogFile(key, f"{self._count}", self._now_ms, size, log)
        return size


def size_of(log: LogFile) -> int:
    """Return about how many bytes a log file takes."""
    dead = sum(1 for marker in log.markers if marker.tombstoned_ms is not None)
    return (
        HEAD_BYTES + MARKER_BYTES * len(log.markers) + DEAD_BYTES * dead + LOG_TOMBSTONE_BYTES * len(log.log_tombstones)
    )


def main(arguments: list[str] | None = None) -> int:
    """Run one scenario and print a JSON line at 1,000, 10,000, … commits."""
    parser = argparse.ArgumentParser(prog="python -m icedb_sim.growth.log_growth", description=__doc__)
    parser.add_argument("--commits", type=int, default=10_000)
    parser.add_argument("--shape", choices=get_args(Shape), default="days")
    parser.add_argument("--interval-ms", type=int, default=5 * SECOND_MS)
    parser.add_argument("--data-grace-minutes", type=int, default=60)
    chosen = parser.parse_args(arguments)
    scenario = Scenario(shape=chosen.shape, interval_ms=chosen.interval_ms)
    config = TableConfig.create(name="t", data_grace_ms=chosen.data_grace_minutes * MINUTE_MS)

    def report(growth: Growth) -> None:
        line = {
            "shape": scenario.shape,
            "interval_ms": scenario.interval_ms,
            "data_grace_minutes": chosen.data_grace_minutes,
            **asdict(growth),
            "log_bytes_per_commit": round(growth.log_bytes_per_commit),
            "rewrite_factor": round(growth.rewrite_factor, 2),
        }
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()

    gc.disable()  # a hundred thousand markers and no cycle among them: collections would take half of the time
    steps = {10**power * first for power in range(2, 7) for first in (1, 2, 5)}
    GrowingTable(scenario, config).run(chosen.commits, report=report, at={*steps, chosen.commits})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
