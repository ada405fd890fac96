"""The same table for everybody: as many data files, with the same statistics, in as many commits.

Nobody's data files exist: whoever lists a table opens none. ``build_icedb`` and ``build_delta`` write logs as their
writers do; :mod:`bench.snapshot_iceberg` does it for Iceberg.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from deltalake import DeltaTable
from icedb_log.keys import TablePaths
from icedb_log.log.codec import encode_log_file
from icedb_log.model import FileMarker, LogFile, LogTombstone
from icedb_log.table.table_config import PartitionField, TableConfig

TABLE: Final = "events"
SCHEMA: Final = {"ts": "TIMESTAMP", "event": "VARCHAR", "user_id": "VARCHAR", "amount": "DOUBLE"}
DAYS: Final = 30
EVENTS: Final = 20
ROWS: Final = 5_000
MATURE_BYTES: Final = 128 * 1024 * 1024
FIRST_DAY: Final = datetime(2026, 10, 1, tzinfo=UTC)
FIRST_COMMIT_MS: Final = int(datetime(2026, 11, 1, tzinfo=UTC).timestamp() * 1000)
STEP_MS: Final = 1_000
DELTA_CHECKPOINT_EVERY: Final = 100
"""Commits between two checkpoints of a Delta table unless it is told otherwise."""


@dataclass(frozen=True, slots=True)
class File:
    """One data file: file ``number`` of a table, on one day, with one event."""

    number: int

    @property
    def day(self) -> str:
        """Its partition value."""
        return f"{FIRST_DAY + timedelta(days=self.number % DAYS):%Y-%m-%d}"

    @property
    def name(self) -> str:
        """Its path below the table's data."""
        return f"d={self.day}/{self.number * 0x9E3779B97F4A7C15 % 2**128:032x}.parquet"

    @property
    def size_bytes(self) -> int:
        """Its size."""
        return 200_000 + self.number % 70_000

    @property
    def bounds(self) -> dict[str, tuple[str, str]]:
        """First and last value of the columns that have statistics."""
        event = f"event-{self.number // DAYS % EVENTS:02d}"
        return {"ts": (f"{self.day}T00:00:00.000000Z", f"{self.day}T23:59:59.000000Z"), "event": (event, event)}


@dataclass(frozen=True, slots=True)
class Shape:
    """How many data files, in how many commits."""

    file_count: int
    commit_count: int

    def commits(self) -> Iterator[range]:
        """Yield the numbers of the files of each commit."""
        size = self.file_count // self.commit_count
        for commit in range(self.commit_count):
            yield range(commit * size, self.file_count if commit == self.commit_count - 1 else (commit + 1) * size)


def build_icedb(root: Path, shape: Shape, *, merge_every: int = 0) -> TablePaths:
    """Write a table of ours to a directory.

    Args:
        root: The warehouse; the table is ``events``.
        shape: Data files and commits.
        merge_every: So many commits each are one log file of a merge, of large data files, and the log files that it
            replaced are deleted; so many commits at the end are as ingest makes them. 0: all are.
    """
    paths = TablePaths(TABLE, TABLE)
    config = TableConfig.create(
        name=TABLE, partition=(PartitionField(name="d", transform="day", column="ts"),), sort=("event", "ts")
    )
    _write(root / paths.config_key, config.model_dump_json(exclude_none=True).encode())
    pending: list[FileMarker] = []
    last_merged = 0 if not merge_every else (shape.commit_count // merge_every - 1) * merge_every
    for commit, numbers in enumerate(shape.commits()):
        time_ms = FIRST_COMMIT_MS + commit * STEP_MS
        is_merged = merge_every > 0 and commit < last_merged
        markers = [marker(paths, number, time_ms, is_mature=is_merged) for number in numbers]
        if is_merged:
            pending += markers
            if (commit + 1) % merge_every == 0:
                _write_log(root, paths, commit, time_ms + 1, pending, is_merged=True)
                pending = []
        else:
            _write_log(root, paths, commit, time_ms, markers)
    return paths


def marker(paths: TablePaths, number: int, time_ms: int, *, is_mature: bool = False) -> FileMarker:
    """Return what a log file says of one data file; a mature one is large enough to be left alone by merges."""
    file = File(number)
    stats = {column: (low, high, 0) for column, (low, high) in file.bounds.items()}
    size_bytes = file.size_bytes + (MATURE_BYTES if is_mature else 0)
    return FileMarker(paths.data_prefix + file.name, size_bytes, time_ms, row_count=ROWS, stats=stats)


def log_file_of(paths: TablePaths, commit: int, time_ms: int, markers: Sequence[FileMarker]) -> tuple[str, bytes]:
    """Return key and content of the log file of an append."""
    commit_id = f"{commit:032x}"
    log = LogFile(time_ms, SCHEMA, tuple(markers), commit_id=commit_id, batch_ids=(f"{commit:032x}",))
    return paths.log_key(time_ms=time_ms, commit_id=commit_id, is_merged=False), encode_log_file(log)


def _write_log(
    root: Path, paths: TablePaths, commit: int, time_ms: int, markers: Sequence[FileMarker], *, is_merged: bool = False
) -> None:
    key, body = log_file_of(paths, commit, time_ms, markers)
    if is_merged:
        # What a merge says beside its data files: the log file that it replaced, and some files that died in it.
        dead = [
            FileMarker(f"{m.path}x", m.size_bytes, m.created_ms, time_ms, m.row_count, m.stats) for m in markers[::20]
        ]
        log = LogFile(
            time_ms,
            SCHEMA,
            (*markers, *dead),
            (LogTombstone(key, time_ms),),
            commit_id=f"{commit:032x}",
            horizon_ms=time_ms,
        )
        key = paths.log_key(time_ms=time_ms, commit_id=f"{commit:032x}", is_merged=True)
        body = encode_log_file(log)
    _write(root / key, body)


def build_delta(root: Path, shape: Shape, *, checkpoint_at: int | None) -> Path:
    """Write a Delta table: one JSON file for each commit, and a checkpoint as of commit ``checkpoint_at``."""
    log = root / "_delta_log"
    log.mkdir(parents=True)
    write_delta_commit(
        root, 0, [json.dumps({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}), _delta_metadata()]
    )
    for commit, numbers in enumerate(shape.commits(), 1):
        write_delta_commit(root, commit, delta_adds(numbers, FIRST_COMMIT_MS + commit * STEP_MS))
        if commit == checkpoint_at:
            DeltaTable(root).create_checkpoint()
    return root


def write_delta_commit(root: Path, version: int, lines: Sequence[str]) -> None:
    """Write one commit."""
    _write(root / "_delta_log" / f"{version:020d}.json", "\n".join(lines).encode())


def delta_adds(numbers: range, time_ms: int) -> list[str]:
    """Return the lines that add files."""
    return [json.dumps(_delta_add(File(number), time_ms)) for number in numbers]


def _delta_add(file: File, time_ms: int) -> dict[str, Any]:
    bounds = file.bounds
    stats = {
        "numRecords": ROWS,
        "minValues": {column: low for column, (low, _) in bounds.items()},
        "maxValues": {column: high for column, (_, high) in bounds.items()},
        "nullCount": dict.fromkeys(bounds, 0),
    }
    return {
        "add": {
            "path": file.name,
            "partitionValues": {"d": file.day},
            "size": file.size_bytes,
            "modificationTime": time_ms,
            "dataChange": True,
            "stats": json.dumps(stats),
        }
    }


def _delta_metadata() -> str:
    types = {"ts": "timestamp", "event": "string", "user_id": "string", "amount": "double", "d": "date"}
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in types.items()]
    schema = json.dumps({"type": "struct", "fields": fields})
    metadata = {"id": "bench", "format": {"provider": "parquet", "options": {}}, "schemaString": schema}
    more = {"partitionColumns": ["d"], "configuration": {}, "createdTime": FIRST_COMMIT_MS}
    return json.dumps({"metaData": metadata | more})


def _write(path: Path, body: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)
