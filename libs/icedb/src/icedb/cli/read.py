"""``icedb snapshot``, ``query``, ``changes``, ``watch``, pins: read tables, for people, scripts and other engines."""

from itertools import islice
from typing import Annotated, Any, Final, Literal

import orjson
import typer
from icedb_client.file_list import DataFile, FileList
from icedb_client.requests import Changes, SnapshotEvent, to_ms
from icedb_client.snapshots import Snapshot
from icedb_log.clean.drop import read_kept_config
from icedb_log.clean.pins import Pin, PinStatus, create_pin, is_lasting, list_pins
from icedb_log.clean.pins import unpin as end_pin
from icedb_log.clock import parse_uuid7_ms
from icedb_log.keys import pin_name_of
from icedb_log.table.partitions import parse_partition_filters
from icedb_log.table.table_config import TableConfig
from rich.markup import escape

from icedb.cli.output import (
    format_bytes,
    format_count,
    format_span,
    format_time,
    out,
    pick,
    print_json,
    print_lines,
    print_note,
    print_pairs,
    print_table,
)
from icedb.cli.rows import FormatOption, NoPager, OutputOption, answer_rows
from icedb.cli.runner import Run, TableName, argument, command, maybe_duration, open_client, option
from icedb.cli.table_settings import read_query

SHOWN_FILES: Final = 20
_NAME_WIDTH: Final = 20
_EVENT: Final = ("table", "snapshot_id", "file_count", "row_count", "size_bytes", "last_commit_ms", "problem")

SnapshotFormat = Literal["table", "paths", "duckdb", "clickhouse", "json"]
AsOf = Annotated[
    str | None, typer.Option("--as-of", help="Time travel: 2026-01-02T03:04:05Z, a date, or unix milliseconds.")
]
PinOption = Annotated[
    str | None, typer.Option("--pin", help="What this pin has pinned, however long ago; see `icedb pins`.")
]
PinName = Annotated[str, typer.Argument(help="Name of the pin: a to z, 0 to 9, _ and -.")]
MaxStaleness = Annotated[
    str | None,
    typer.Option("--max-staleness", help="How old the snapshot service's knowledge may be, e.g. 5s; 0s reads now."),
]


def maybe_time(text: str | None, *, option: str) -> int | None:
    """Return unix milliseconds from ISO 8601 (UTC if it names no zone) or from digits. Raises InvalidRequest."""
    return None if text is None else to_ms(text, what=option)


@command()
def snapshot(
    run: Run,
    *,
    table: TableName,
    as_of: AsOf = None,
    pin: PinOption = None,
    partition: list[str] | None = option(
        "--partition",
        "Only these partitions: d=2026-01-02, d>=2026-01-01, 'd<2026-02-01', 'country is null'. "
        "Repeat = for several values.",
    ),
    where: str | None = option(
        "--where",
        "Only files that can hold a row for which this is true: SQL in DuckDB's dialect, "
        "e.g. \"event = 'signup' and amount >= 10\". The statements of duckdb and clickhouse apply it to rows, too.",
        metavar="CONDITION",
    ),
    max_staleness: MaxStaleness = None,
    min_commit: str | None = option(
        "--min-commit", "Wait for what this batch brought: the id that an ingest printed.", metavar="BATCH_ID"
    ),
    presign: str | None = option(
        "--presign", "Give URLs that need no credentials for so long, e.g. 1h.", metavar="DURATION"
    ),
    output_format: SnapshotFormat = option(
        "--format", "table; paths: one URI a line; duckdb, clickhouse: SQL to paste; json.", "table"
    ),
    limit: int = option("--limit", "Files shown in a table.", SHOWN_FILES, min=0),
) -> None:
    """Name the live data files of a table: now, at an earlier time, or as they were pinned.

    Example: icedb snapshot events --partition d=2026-01-02 --format paths
    """
    if min_commit is not None:
        parse_uuid7_ms(min_commit)  # a typing error must not wait until it times out
    found = run.client.snapshot(
        table,
        as_of=maybe_time(as_of, option="--as-of"),
        pin=pin,
        partitions=parse_partition_filters(partition or ()),
        where=where,
        max_staleness_ms=maybe_duration(max_staleness, option="--max-staleness"),
        min_commit=min_commit,
        presign_ms=maybe_duration(presign, option="--presign", floor_ms=1),
    )
    if run.as_json or output_format == "json":
        print_json(_snapshot_to_json(found))
    elif output_format == "paths":
        print_lines(found.files.uris)
    elif output_format == "duckdb":
        from icedb_client.duck import select_from  # noqa: PLC0415 - DuckDB is loaded by those who need it

        print_lines([f"{select_from(found)};"])
    elif output_format == "clickhouse":
        from icedb_client.clickhouse import to_clickhouse  # noqa: PLC0415 - as above

        print_lines([to_clickhouse(found)])
    else:
        _show_snapshot(found, limit=limit)


def _show_snapshot(found: Snapshot, *, limit: int) -> None:
    pruned = f" of {format_count(found.total_file_count)}" if found.total_file_count != len(found.files) else ""
    print_pairs(
        {
            "table": found.table,
            "snapshot": found.snapshot_id,
            "data files": f"{format_count(len(found.files))}{pruned}",
            "rows": format_count(found.row_count),
            "size": format_bytes(found.size_bytes),
            "last commit": "none yet" if found.last_commit_ms is None else format_time(found.last_commit_ms),
            "as of": None if found.as_of_ms is None else format_time(found.as_of_ms),
            "stable": None if found.as_of_ms is None else "yes" if found.is_stable else "not yet",
            "oldest time": None if found.horizon_ms is None else format_time(found.horizon_ms),
        }
    )
    if found.files and limit:
        out.print()
        print_table(("partition", ">rows", ">size", "file"), map(_describe_file, found.files[:limit]))
        if len(found.files) > limit:
            print_note(f"{len(found.files) - limit} more files; --limit shows more, --format paths all")


def _describe_file(file: DataFile) -> tuple[str | None, str, str, str]:
    """Return the cells of a file: partition, rows, size, name."""
    partition = "/".join(f"{name}={value}" for name, value in file.partition.items())
    name = file.path.rpartition("/")[2]
    return partition or None, format_count(file.row_count), format_bytes(file.size_bytes), name


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


@command()
def query(
    run: Run,
    *,
    sql: str = argument("One reading statement; tables are named as they are. Or @FILE."),
    as_of: AsOf = None,
    pin: PinOption = None,
    max_staleness: MaxStaleness = None,
    limit: int | None = option("--limit", "Most rows (100 in a table, all in any other format).", min=0),
    row_format: FormatOption = None,
    output: OutputOption = None,
    no_pager: NoPager = False,
) -> None:
    """Run a query with DuckDB over consistent snapshots of the tables it names.

    Example: icedb query "select event, count(*) from events group by all order by 2 desc"
    """
    result = run.client.query(
        read_query(sql, option="SQL"),
        as_of=maybe_time(as_of, option="--as-of"),
        pin=pin,
        max_staleness_ms=maybe_duration(max_staleness, option="--max-staleness"),
    )
    with result.relation as rows:
        answer_rows(run, rows, result.snapshots, row_format=row_format, output=output, most=limit, no_pager=no_pager)


@command()
def changes(
    run: Run,
    *,
    table: TableName,
    from_time: str = option(
        "--from", "The earlier time: 2026-01-02T03:04:05Z, a date, or unix ms.", ..., metavar="TIME"
    ),
    to_time: str | None = option("--to", "The later time; without it the newest state.", metavar="TIME"),
    limit: int = option("--limit", "Files shown.", SHOWN_FILES, min=0),
) -> None:
    """Show which data files came and went between two times. A merge changes files, and no row.

    Example: icedb changes events --from 2026-01-02T03:00:00Z --to 2026-01-02T03:05:00Z
    """
    from_ms, to_ms_ = to_ms(from_time, what="--from"), maybe_time(to_time, option="--to")
    found = run.client.changes(table, from_=from_ms, to=to_ms_)
    document = {
        **pick(found, "table", "from_snapshot_id", "to_snapshot_id", "is_stable"),
        "from_ms": from_ms,
        "to_ms": to_ms_,
        "changed_columns": dict(found.changed_columns),
        "added": [_file_to_json(file) for file in found.added],
        "removed": [_file_to_json(file) for file in found.removed],
    }
    run.answer(document, lambda: _show_changes(found, limit=limit))


def _show_changes(found: Changes, *, limit: int) -> None:
    print_pairs(
        {
            "table": found.table,
            "from": found.from_snapshot_id,
            "to": found.to_snapshot_id,
            "added": _describe_files(found.added),
            "removed": _describe_files(found.removed),
            "columns": ", ".join(f"{name} {sql_type}" for name, sql_type in found.changed_columns.items()) or None,
            "stable": "yes" if found.is_stable else "not yet",
        }
    )
    total = len(found.added) + len(found.removed)
    if total and limit:
        out.print()
        files = (*(("+", file) for file in found.added), *(("-", file) for file in found.removed))
        rows = ((sign, *_describe_file(file)) for sign, file in islice(files, limit))
        print_table(("", "partition", ">rows", ">size", "file"), rows)
        if total > limit:
            print_note(f"{total - limit} more files; --limit shows more, --json all")


def _describe_files(files: FileList) -> str:
    return f"{format_count(len(files))} files, {format_count(files.row_count)} rows, {format_bytes(files.size_bytes)}"


def watch(
    *,
    context: typer.Context,
    tables: list[str] | None = argument("Names of tables; none: all, also new ones.", None, metavar="[TABLE]..."),
    count: int | None = option("--count", "End after this many lines; without it Ctrl-C ends.", min=1),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document a line and nothing else.")] = False,
) -> None:
    """Print a line for each table at once, then one after each change that is seen. Ctrl-C ends it.

    Example: icedb watch events --json
    """
    names = tuple(dict.fromkeys(tables or ()))
    with open_client(context) as client:
        for event in islice(client.watch(names), count):
            print_lines([orjson.dumps(pick(event, *_EVENT)).decode() if as_json else _to_line(event)])


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


_PIN_HELP: Final = {
    "pending": "is being made, or its maker died; holds every dead data file meanwhile",
    "late": "took too long to be made: some of its files may be gone; unpin it and pin again",
    "unreadable": "cannot be understood and holds every dead data file; unpin it",
    "no pin": "is no pin by its name and holds every dead data file; move the object out of _icedb/pins/",
}


@command()
def pin(
    run: Run,
    *,
    table: TableName,
    name: PinName,
    at: str | None = option("--at", "A past time: 2026-01-02T03:04:05Z, a date, or unix milliseconds. Now by default."),
    ttl: str | None = option("--ttl", "How long it lasts, e.g. 30d; until `icedb unpin` by default."),
    note: str = option("--note", "Why, for people.", ""),
) -> None:
    """Pin a table's state under a name: its data files stay, and it can be read, until the pin ends.

    Example: icedb pin events q3 --ttl 30d --note "figures of the third quarter"
    """
    at_ms, ttl_ms = maybe_time(at, option="--at"), maybe_duration(ttl, option="--ttl")
    opened = run.open(table)
    made = create_pin(opened, name, at_ms=at_ms, ttl_ms=ttl_ms, note=note)
    document = {"table": table, **pin_to_json(made, "active", opened.config)}
    run.answer(document, lambda: _show_pin(table, made))


def _show_pin(table: str, made: Pin) -> None:
    print_pairs(
        {
            "table": table,
            "pin": made.name,
            "time": format_time(made.at_ms),
            "data files": made.file_count,
            "rows": format_count(made.row_count),
            "size": format_bytes(made.size_bytes),
            "lasts until": _until(made),
        }
    )
    print_note(f"read it: icedb query --pin {made.name} ..., or icedb snapshot {table} --pin {made.name}")


@command()
def pins(run: Run, *, table: TableName) -> None:
    """List the pins of a table, what they hold and until when. Ended ones stay as long as they hold files.

    Example: icedb pins events
    """
    config = read_kept_config(run.place(table))
    listed = list_pins(run.place(table))
    found = [(each, each.status(listed.store_now_ms)) for each in listed.pins]
    document = {"table": table, "pins": [pin_to_json(each, status, config) for each, status in found]}
    run.answer(document, lambda: _show_pins(table, found))


def _show_pins(table: str, found: list[tuple[Pin, PinStatus]]) -> None:
    if not found:
        print_note(f"table {table} has no pins")
        return
    print_table(
        ("name", "state", "time", ">files", ">rows", ">size", "lasts until", "note"),
        (
            (
                each.name,
                status,
                format_time(each.at_ms) if each.file_count or status == "active" else None,
                each.file_count,
                format_count(each.row_count),
                format_bytes(each.size_bytes),
                _until(each),
                each.note,
            )
            for each, status in found
        ),
    )
    for each, status in found:
        if status in _PIN_HELP:
            print_note(f"{each.name}: {_PIN_HELP[status if pin_name_of(each.key) else 'no pin']}")


@command()
def unpin(run: Run, *, table: TableName, name: PinName) -> None:
    """End a pin. Its data files stay for one more grace period, for queries that have begun.

    Example: icedb unpin events q3
    """
    config = read_kept_config(run.place(table))
    has_ended = end_pin(run.place(table), name)

    def show() -> None:
        if not has_ended:
            print_note(f"pin {name} of table {table} had ended before")
            return
        out.print(
            f"pin [bold]{escape(name)}[/] of table [bold]{escape(table)}[/] has ended; what only it held may be "
            f"deleted in {format_span(config.data_grace_ms)}"
        )

    run.answer({"table": table, "name": name, "unpinned": has_ended, "data_grace_ms": config.data_grace_ms}, show)


def _until(made: Pin) -> str:
    return "unpinned" if made.ends_ms is None else format_time(made.ends_ms)


def pin_to_json(made: Pin, status: PinStatus, config: TableConfig) -> dict[str, Any]:
    """Return a pin for a document."""
    fields = ("name", "at_ms", "ttl_ms", "ends_ms", "file_count", "row_count", "size_bytes", "note", "key")
    return {
        **pick(made, *fields),
        "status": status,
        "is_lasting": is_lasting(status),
        "held_until_ms": made.held_until_ms(config.data_grace_ms),
        "last_commit_ms": made.last_commit_ms or None,
    }
