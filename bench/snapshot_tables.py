"""The table of the snapshot benchmark as our writers leave it. Whoever lists it opens no data file: there are none."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from icedb_log.keys import TablePaths
from icedb_log.log.codec import encode_log_file
from icedb_log.model import FileMarker, LogFile, LogTombstone
from icedb_log.table.table_config import PartitionField, TableConfig

from bench.snapshot_work import FIRST_COMMIT_MS, ROWS, STEP_MS, File, Shape, write_file

TABLE: Final = "events"
SCHEMA: Final = {"ts": "TIMESTAMP", "event": "VARCHAR", "user_id": "VARCHAR", "amount": "DOUBLE"}
MATURE_BYTES: Final = 128 * 1024 * 1024


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
    write_file(root / paths.config_key, config.model_dump_json(exclude_none=True).encode())
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
    log = LogFile(time_ms, SCHEMA, tuple(markers), commit_id=commit_id, batch_ids=(f"{commit:032x}",), change="append")
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
    write_file(root / key, body)
