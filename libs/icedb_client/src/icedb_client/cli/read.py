"""``icedb snapshot`` and ``icedb query``: read tables."""

from typing import Annotated, Any

import typer
from icedb_log.clock import parse_uuid7_ms
from icedb_log.table.partition_filter import parse_partition_filters
from rich.markup import escape

from icedb_client.cli.output import (
    JsonFlag,
    make_table,
    out,
    print_json,
    print_note,
)
from icedb_client.cli.parsing import parse_duration, parse_time
from icedb_client.cli.session import open_client
from icedb_client.cli.snapshot_formats import SnapshotFormat, show_snapshot
from icedb_client.client import QueryResult

DEFAULT_SHOWN_FILES = 20
DEFAULT_SHOWN_ROWS = 100
FETCH_ROWS = 10_000


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
    table: Annotated[str, typer.Argument(help="Name of the table.")],
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
    ] = SnapshotFormat.table,
    limit: Annotated[int, typer.Option("--limit", min=0, help="Files shown in a table.")] = DEFAULT_SHOWN_FILES,
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
    show_snapshot(found, shape=SnapshotFormat.json if as_json else output_format, limit=limit)


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
    most = limit if limit is not None else (None if as_json else DEFAULT_SHOWN_ROWS)
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
