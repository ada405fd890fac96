"""``icedb snapshot``, ``query``, ``changes``, ``watch``: read tables, for people, scripts and other engines."""

import sys
from collections.abc import Iterable
from itertools import islice
from typing import Annotated, Any, Final, Literal

import orjson
import typer
from icedb_log.clock import parse_uuid7_ms
from icedb_log.table.partitions import parse_partition_filters
from rich.markup import escape

from icedb_client.cli.output import (
    format_bytes,
    format_count,
    make_table,
    out,
    pick,
    print_json,
    print_note,
    print_pairs,
)
from icedb_client.cli.parsing import format_time, parse_duration, parse_time
from icedb_client.cli.runner import JsonFlag, TableName, answer, open_client
from icedb_client.client import QueryResult
from icedb_client.file_list import FileList
from icedb_client.requests import Changes, SnapshotEvent
from icedb_client.snapshots import DataFile, Snapshot

SHOWN_FILES: Final = 20
SHOWN_ROWS: Final = 100
FETCH_ROWS: Final = 10_000
_NAME_WIDTH: Final = 20
_EVENT: Final = ("table", "snapshot_id", "file_count", "row_count", "size_bytes", "last_commit_ms", "problem")

SnapshotFormat = Literal["table", "paths", "duckdb", "clickhouse", "json"]

AsOf = Annotated[
    str | None,
    typer.Option("--as-of", help="Time travel: 2026-01-02T03:04:05Z, a date, or unix milliseconds."),
]
Pin = Annotated[
    str | None,
    typer.Option("--pin", help="What this pin has pinned, however long ago; see `icedb pins`."),
]
Where = Annotated[
    str | None,
    typer.Option(
        "--where",
        metavar="CONDITION",
        help="Only files that can hold a row for which this is true: SQL in DuckDB's dialect, "
        "e.g. \"event = 'signup' and amount >= 10\". The statements of duckdb and clickhouse apply it to rows, too.",
    ),
]
MaxStaleness = Annotated[
    str | None,
    typer.Option("--max-staleness", help="How old the snapshot service's knowledge may be, e.g. 5s; 0s reads now."),
]


def snapshot(
    *,
    context: typer.Context,
    table: TableName,
    as_of: AsOf = None,
    pin: Pin = None,
    partition: Annotated[
        list[str] | None,
        typer.Option(
            "--partition",
            help="Only these partitions: d=2026-01-02, d>=2026-01-01, 'd<2026-02-01', 'country is null'. "
            "Repeat = for several values.",
        ),
    ] = None,
    where: Where = None,
    max_staleness: MaxStaleness = None,
    min_commit: Annotated[
        str | None,
        typer.Option(
            "--min-commit", metavar="BATCH_ID", help="Wait for what this batch brought: the id that an ingest printed."
        ),
    ] = None,
    presign: Annotated[
        str | None,
        typer.Option("--presign", metavar="DURATION", help="Give URLs that need no credentials for so long, e.g. 1h."),
    ] = None,
    output_format: Annotated[
        SnapshotFormat,
        typer.Option("--format", help="table; paths: one URI a line; duckdb, clickhouse: SQL to paste; json."),
    ] = "table",
    limit: Annotated[int, typer.Option("--limit", min=0, help="Files shown in a table.")] = SHOWN_FILES,
    as_json: JsonFlag = False,
) -> None:
    """Name the live data files of a table: now, at an earlier time, or as they were pinned.

    Example: icedb snapshot events --partition d=2026-01-02 --format paths
    """
    filters = parse_partition_filters(partition or ())
    if min_commit is not None:
        parse_uuid7_ms(min_commit)  # a typing error must not wait until it times out
    with open_client(context, table=table) as client:
        found = client.snapshot(
            table,
            as_of=parse_time(as_of, option="--as-of") if as_of is not None else None,
            pin=pin,
            partitions=filters,
            where=where,
            max_staleness_ms=_staleness(max_staleness),
            min_commit=min_commit,
            presign_ms=None if presign is None else parse_duration(presign, option="--presign", floor_ms=1),
        )
    _print_as(found, "json" if as_json else output_format, limit=limit)


def _print_as(found: Snapshot, shape: SnapshotFormat, *, limit: int) -> None:
    """Print a snapshot. Raises InvalidRequest if it cannot be said in the SQL that is asked for."""
    if shape == "json":
        print_json(_snapshot_to_json(found))
    elif shape == "paths":
        _print_lines(found.files.uris)
    elif shape == "duckdb":
        from icedb_client.duck import select_from  # noqa: PLC0415 - DuckDB is loaded by those who need it

        _print_lines([f"{select_from(found)};"])
    elif shape == "clickhouse":
        from icedb_client.clickhouse import to_clickhouse  # noqa: PLC0415 - as above

        _print_lines([to_clickhouse(found)])
    else:
        _show_snapshot(found, limit=limit)


def _print_lines(lines: Iterable[str]) -> None:
    """Print lines in one go: there may be a hundred thousand."""
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def _show_snapshot(found: Snapshot, *, limit: int) -> None:
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
        table.add_row(*_describe_file(file))
    out.print(table)
    if len(found.files) > limit:
        print_note(f"{len(found.files) - limit} more files; --limit shows more, --format paths all")


def _describe_file(file: DataFile) -> tuple[str, str, str, str]:
    """Return the cells of a file: partition, rows, size, name."""
    partition = "/".join(f"{name}={value}" for name, value in file.partition.items())
    name = file.path.rpartition("/")[2]
    return escape(partition or "-"), format_count(file.row_count), format_bytes(file.size_bytes), escape(name)


def _snapshot_to_json(found: Snapshot) -> dict[str, Any]:
    figures = ("row_count", "size_bytes", "as_of_ms", "is_stable", "last_commit_ms", "horizon_ms")
    return {
        **pick(found, "table", "snapshot_id", "total_file_count", *figures),
        "schema": dict(found.schema),
        "file_count": len(found.files),
        "files": [_file_to_json(file) for file in found.files],
    }


def _file_to_json(file: DataFile) -> dict[str, Any]:
    return {
        **pick(file, "path", "uri", "size_bytes", "row_count", "created_ms"),
        "partition": dict(file.partition),
        **({} if file.presigned_url is None else {"presigned_url": file.presigned_url}),
    }


def query(
    *,
    context: typer.Context,
    sql: Annotated[str, typer.Argument(help="One reading statement; tables are named as they are.")],
    as_of: AsOf = None,
    pin: Pin = None,
    max_staleness: MaxStaleness = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=0, help="Most rows printed (100 on a terminal, all with --json).")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Run a query with DuckDB over consistent snapshots of the tables it names.

    Example: icedb query "select event, count(*) from events group by all order by 2 desc"
    """
    with open_client(context) as client:
        result = client.query(
            sql,
            as_of=parse_time(as_of, option="--as-of") if as_of is not None else None,
            pin=pin,
            max_staleness_ms=_staleness(max_staleness),
        )
        try:
            _print_result(result, limit=limit, as_json=as_json)
        finally:
            result.connection.close()


def _print_result(result: QueryResult, *, limit: int | None, as_json: bool) -> None:
    columns = list(result.relation.columns)
    most = limit if limit is not None else (None if as_json else SHOWN_ROWS)
    rows, has_more = _fetch(result, most)
    if as_json:
        print_json(
            {
                "columns": [
                    {"name": name, "type": str(sql_type)}
                    for name, sql_type in zip(columns, result.relation.types, strict=True)
                ],
                "rows": [dict(zip(columns, row, strict=True)) for row in rows],
                "row_count": len(rows),
                "has_more": has_more,
                "snapshots": {name: found.snapshot_id for name, found in result.snapshots.items()},
            }
        )
        return
    numeric = tuple(
        name for name, sql_type in zip(columns, result.relation.types, strict=True) if _is_numeric(str(sql_type))
    )
    table = make_table(*(escape(name) for name in columns), right=numeric)
    for row in rows:
        table.add_row(*("[dim]null[/]" if value is None else escape(str(value)) for value in row))
    out.print(table)
    if has_more:
        print_note(f"the first {most} rows; --limit shows more")


def _fetch(result: QueryResult, most: int | None) -> tuple[list[tuple[Any, ...]], bool]:
    from icedb_client.duck import UNREADABLE, unreadable  # noqa: PLC0415 - DuckDB is loaded by those who need it

    rows: list[tuple[Any, ...]] = []
    try:
        while most is None or len(rows) <= most:
            wanted = FETCH_ROWS if most is None else min(FETCH_ROWS, most + 1 - len(rows))
            found = result.relation.fetchmany(wanted)
            if not found:
                break
            rows.extend(found)
    except UNREADABLE as error:
        raise unreadable(error) from error
    has_more = most is not None and len(rows) > most
    return (rows[:most] if has_more else rows), has_more


def _is_numeric(sql_type: str) -> bool:
    return sql_type.startswith(("BIGINT", "INTEGER", "HUGEINT", "DOUBLE", "FLOAT", "DECIMAL", "UBIGINT", "SMALLINT"))


def _staleness(text: str | None) -> int | None:
    return None if text is None else parse_duration(text, option="--max-staleness")


def changes(
    *,
    context: typer.Context,
    table: TableName,
    from_time: Annotated[
        str,
        typer.Option("--from", metavar="TIME", help="The earlier time: 2026-01-02T03:04:05Z, a date, or unix ms."),
    ],
    to_time: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="The later time; without it the newest state.")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Files shown.")] = SHOWN_FILES,
    as_json: JsonFlag = False,
) -> None:
    """Show which data files came and went between two times. A merge changes files, and no row.

    Example: icedb changes events --from 2026-01-02T03:00:00Z --to 2026-01-02T03:05:00Z
    """
    from_ms = parse_time(from_time, option="--from")
    to_ms = None if to_time is None else parse_time(to_time, option="--to")
    with open_client(context, table=table) as client:
        found = client.changes(table, from_=from_ms, to=to_ms)
    document = {
        **pick(found, "table", "from_snapshot_id", "to_snapshot_id", "is_stable"),
        "from_ms": from_ms,
        "to_ms": to_ms,
        "changed_columns": dict(found.changed_columns),
        "added": [_file_to_json(file) for file in found.added],
        "removed": [_file_to_json(file) for file in found.removed],
    }
    answer(document, as_json=as_json, show=lambda: _show_changes(found, limit=limit))


def _show_changes(found: Changes, *, limit: int) -> None:
    columns = ", ".join(f"{name} {sql_type}" for name, sql_type in found.changed_columns.items())
    print_pairs(
        {
            "table": found.table,
            "from": found.from_snapshot_id,
            "to": found.to_snapshot_id,
            "added": _describe_files(found.added),
            "removed": _describe_files(found.removed),
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
        table.add_row(sign, *_describe_file(file))
    out.print(table)
    if total > limit:
        print_note(f"{total - limit} more files; --limit shows more, --json all")


def _describe_files(files: FileList) -> str:
    return f"{format_count(len(files))} files, {format_count(files.row_count)} rows, {format_bytes(files.size_bytes)}"


def watch(
    *,
    context: typer.Context,
    tables: Annotated[
        list[str] | None, typer.Argument(metavar="[TABLE]...", help="Names of tables; none: all, also new ones.")
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", min=1, help="End after this many lines; without it Ctrl-C ends.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document a line and nothing else.")] = False,
) -> None:
    """Print a line for each table at once, then one after each change that is seen. Ctrl-C ends it.

    Example: icedb watch events --json
    """
    names = tuple(dict.fromkeys(tables or ()))
    shown = 0
    with open_client(context, table=names[0] if len(names) == 1 else None) as client:
        for event in client.watch(names):
            _print_lines([orjson.dumps(pick(event, *_EVENT)).decode() if as_json else _to_line(event)])
            shown += 1
            if shown == count:
                break


def _to_line(event: SnapshotEvent) -> str:
    name = f"{event.table:{_NAME_WIDTH}}"
    if event.problem is not None:
        return f"{'-':24}  {name}  cannot be read: {' '.join(event.problem.split())}"
    if event.snapshot_id is None:
        return f"{'-':24}  {name}  gone"
    time = "-" if event.last_commit_ms is None else format_time(event.last_commit_ms)
    return (
        f"{time:24}  {name}  {format_count(event.file_count)} files  {format_count(event.row_count)} rows  "
        f"{format_bytes(event.size_bytes)}  snapshot {event.snapshot_id}"
    )
