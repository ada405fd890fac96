"""How ``icedb snapshot`` shows a snapshot: to people, to scripts, and as SQL or lists for other engines."""

import sys
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

from rich.markup import escape

from icedb_client.cli.output import (
    format_bytes,
    format_count,
    make_table,
    out,
    print_json,
    print_note,
    print_pairs,
)
from icedb_client.cli.parsing import format_time
from icedb_client.file_list import DataFile
from icedb_client.snapshots import Snapshot


class SnapshotFormat(StrEnum):
    """What `icedb snapshot` prints."""

    table = "table"
    paths = "paths"
    duckdb = "duckdb"
    clickhouse = "clickhouse"
    json = "json"


def show_snapshot(found: Snapshot, *, shape: SnapshotFormat, limit: int) -> None:
    """Print a snapshot.

    Args:
        found: What to print.
        shape: How.
        limit: Files shown to people.

    Raises:
        InvalidRequest: It cannot be said in the SQL that is asked for.
    """
    if shape is SnapshotFormat.json:
        print_json(_to_json(found))
    elif shape is SnapshotFormat.paths:
        _print_lines(found.files.uris)
    elif shape is SnapshotFormat.duckdb:
        from icedb_client.duck import select_from  # noqa: PLC0415 - DuckDB is loaded by those who need it

        _print_lines([f"{select_from(found)};"])
    elif shape is SnapshotFormat.clickhouse:
        from icedb_client.clickhouse import to_clickhouse  # noqa: PLC0415 - as above

        _print_lines([to_clickhouse(found)])
    else:
        _print_snapshot(found, limit=limit)


def _print_lines(lines: Iterable[str]) -> None:
    """Print lines in one go: there may be a hundred thousand."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def _print_snapshot(found: Snapshot, *, limit: int) -> None:
    pruned = f" of {format_count(found.total_file_count)}" if found.total_file_count != len(found.files) else ""
    print_pairs(
        {
            "table": found.table,
            "snapshot": found.snapshot_id,
            "data files": f"{format_count(len(found.files))}{pruned}",
            "rows": format_count(found.row_count),
            "size": format_bytes(found.size_bytes),
            "last commit": format_time(found.last_commit_ms) if found.last_commit_ms is not None else "none yet",
            **({"as of": format_time(found.as_of_ms)} if found.as_of_ms is not None else {}),
            **({} if found.as_of_ms is None else {"stable": "yes" if found.is_stable else "not yet"}),
            **({"oldest time": format_time(found.horizon_ms)} if found.horizon_ms is not None else {}),
        }
    )
    if not found.files or not limit:
        return
    out.print()
    table = make_table("partition", "rows", "size", "file", right=("rows", "size"))
    for file in found.files[:limit]:
        partition = "/".join(f"{name}={value}" for name, value in file.partition.items())
        table.add_row(
            escape(partition or "-"),
            format_count(file.row_count),
            format_bytes(file.size_bytes),
            escape(file.path.rpartition("/")[2]),
        )
    out.print(table)
    if len(found.files) > limit:
        print_note(f"{len(found.files) - limit} more files; --limit shows more, --format paths all")


def _to_json(found: Snapshot) -> dict[str, Any]:
    return {
        "table": found.table,
        "snapshot_id": found.snapshot_id,
        "schema": dict(found.schema),
        "file_count": len(found.files),
        "total_file_count": found.total_file_count,
        "row_count": found.row_count,
        "size_bytes": found.size_bytes,
        "as_of_ms": found.as_of_ms,
        "is_stable": found.is_stable,
        "last_commit_ms": found.last_commit_ms,
        "horizon_ms": found.horizon_ms,
        "files": [file_to_json(file) for file in found.files],
    }


def file_to_json(file: DataFile) -> dict[str, Any]:
    """Return a data file as `--json` prints it."""
    return {
        "path": file.path,
        "uri": file.uri,
        "size_bytes": file.size_bytes,
        "row_count": file.row_count,
        "partition": dict(file.partition),
        "created_ms": file.created_ms,
        **({} if file.presigned_url is None else {"presigned_url": file.presigned_url}),
    }
