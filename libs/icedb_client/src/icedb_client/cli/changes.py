"""``icedb changes``: which data files of a table came and went between two times."""

from itertools import islice
from typing import Annotated, Any, Final

import typer
from rich.markup import escape

from icedb_client.cli.output import (
    JsonFlag,
    format_bytes,
    format_count,
    make_table,
    out,
    print_json,
    print_note,
    print_pairs,
)
from icedb_client.cli.parsing import parse_time
from icedb_client.cli.session import open_client
from icedb_client.cli.snapshot_formats import file_to_json
from icedb_client.file_list import FileList
from icedb_client.read_requests import Changes

DEFAULT_SHOWN_FILES: Final = 20


def changes(
    *,
    context: typer.Context,
    table: Annotated[str, typer.Argument(help="Name of the table.")],
    from_time: Annotated[
        str,
        typer.Option("--from", metavar="TIME", help="The earlier time: 2026-01-02T03:04:05Z, a date, or unix ms."),
    ],
    to_time: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="The later time; without it the newest state.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Files shown.")] = DEFAULT_SHOWN_FILES,
    as_json: JsonFlag = False,
) -> None:
    """Show which data files came and went between two times. A merge changes files, and no row.

    Example: icedb changes events --from 2026-01-02T03:00:00Z --to 2026-01-02T03:05:00Z
    """
    from_ms = parse_time(from_time, option="--from")
    to_ms = None if to_time is None else parse_time(to_time, option="--to")
    with open_client(context, table=table) as client:
        found = client.changes(table, from_=from_ms, to=to_ms)
    if as_json:
        print_json(_to_json(found, from_ms=from_ms, to_ms=to_ms))
    else:
        _print_changes(found, limit=limit)


def _print_changes(found: Changes, *, limit: int) -> None:
    columns = ", ".join(f"{name} {sql_type}" for name, sql_type in found.changed_columns.items())
    print_pairs(
        {
            "table": found.table,
            "from": found.from_snapshot_id,
            "to": found.to_snapshot_id,
            "added": _describe(found.added),
            "removed": _describe(found.removed),
            **({"columns": columns} if columns else {}),
            "stable": "yes" if found.is_stable else "not yet",
        }
    )
    total = len(found.added) + len(found.removed)
    if not total or not limit:
        return
    out.print()
    table = make_table("", "partition", "rows", "size", "file", right=("rows", "size"))
    files = (*(("+", file) for file in found.added), *(("-", file) for file in found.removed))
    for sign, file in islice(files, limit):
        partition = "/".join(f"{name}={value}" for name, value in file.partition.items())
        name = file.path.rpartition("/")[2]
        table.add_row(
            sign, escape(partition or "-"), format_count(file.row_count), format_bytes(file.size_bytes), escape(name)
        )
    out.print(table)
    if total > limit:
        print_note(f"{total - limit} more files; --limit shows more, --json all")


def _describe(files: FileList) -> str:
    return f"{format_count(len(files))} files, {format_count(files.row_count)} rows, {format_bytes(files.size_bytes)}"


def _to_json(found: Changes, *, from_ms: int, to_ms: int | None) -> dict[str, Any]:
    return {
        "table": found.table,
        "from_ms": from_ms,
        "to_ms": to_ms,
        "from_snapshot_id": found.from_snapshot_id,
        "to_snapshot_id": found.to_snapshot_id,
        "is_stable": found.is_stable,
        "changed_columns": dict(found.changed_columns),
        "added": [file_to_json(file) for file in found.added],
        "removed": [file_to_json(file) for file in found.removed],
    }
