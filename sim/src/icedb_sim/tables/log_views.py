"""Short forms of log files and views for tests of the pure parts. All paths lie in table ``t`` below ``wh/t``."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from icedb_log.keys import TablePaths
from icedb_log.model import FileMarker, ListedLogFile, LogFile, LogTombstone, LogView

PATHS: Final = TablePaths("t", "wh/t")


def data(name: str, partition: str = "p=a") -> str:
    """Return the key of a data file."""
    return PATHS.data_key(partition=partition, file_id=name)


def log_key(time_ms: int, *, merged: bool = False, commit_id: str = "00") -> str:
    """Return the key of a log file."""
    return PATHS.log_key(time_ms=time_ms, commit_id=commit_id, is_merged=merged)


def live(name: str, *, size: int = 10, rows: int | None = 1, partition: str = "p=a", **fields: Any) -> FileMarker:
    """Return the marker of a live data file."""
    return FileMarker(data(name, partition), size, fields.pop("created_ms", 1), row_count=rows, **fields)


def dead(name: str, at: int, *, landed: int | None = None, **fields: Any) -> FileMarker:
    """Return the marker of a data file that was tombstoned at a time."""
    return live(name, tombstoned_ms=at, landed_ms=landed, **fields)


def kill(time_ms: int, at: int, *, merged: bool = False, landed: int | None = None) -> LogTombstone:
    """Return the tombstone of the log file of ``time_ms``."""
    return LogTombstone(log_key(time_ms, merged=merged), at, landed)


def listed(
    time_ms: int,
    *markers: FileMarker,
    merged: bool = False,
    kills: Sequence[LogTombstone] = (),
    schema: Mapping[str, str] | None = None,
    modified_ms: int | None = None,
    size_bytes: int = 100,
    **fields: Any,
) -> ListedLogFile:
    """Return a log file as it was listed; it landed at its own time unless ``modified_ms`` says otherwise."""
    fields.setdefault("commit_id", "00")
    log = LogFile(time_ms, schema or {}, tuple(markers), tuple(kills), **fields)
    landed_ms = time_ms if modified_ms is None else modified_ms
    return ListedLogFile(log_key(time_ms, merged=merged), f"etag{time_ms}", landed_ms, size_bytes, log)


def view(*files: ListedLogFile, now: int = 1_000_000) -> LogView:
    """Return a view of log files, ascending by key."""
    return LogView("t", tuple(sorted(files, key=lambda file: file.key)), now)
