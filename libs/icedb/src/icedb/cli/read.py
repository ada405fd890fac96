"""``icedb snapshot``, ``query``, ``changes``, ``watch``: read tables, for people, scripts and other engines."""

from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from typing import Any, Final

from icedb_client.file_list import DataFile, FileList
from icedb_client.requests import Changes, SnapshotEvent
from icedb_client.snapshots import Snapshot
from icedb_log.batch_ids import parse_batch_id_ms
from icedb_log.errors import IceDBError, InvalidRequest
from icedb_log.table.partitions import parse_partition_filters

from icedb.cli.output import (
    count_of,
    format_bytes,
    format_count,
    format_time,
    out,
    pick,
    print_lines,
    print_note,
    print_pairs,
    print_table,
    to_json,
)
from icedb.cli.read_times import AsOf, MaxStaleness, TagOption, maybe_time, parse_time
from icedb.cli.rows import ROW_FORMATS, ToOption, answer_rows
from icedb.cli.runner import LIST, Run, TableName, argument, command, maybe_duration, option, read_query

SHOWN_FILES: Final = 20
_NAME_WIDTH: Final = 20
_EVENT: Final = ("table", "snapshot_id", "file_count", "row_count", "size_bytes", "last_commit_ms", "problem")


@command(gives=(*LIST, "paths", "duckdb", "clickhouse"))
def snapshot(
    run: Run,
    *,
    table: TableName,
    as_of: AsOf = None,
    tag: TagOption = None,
    partition: list[str] | None = option(
        "--partition",
        "Only these partitions: d=2026-01-02, d>=2026-01-01, 'd<2026-02-01', 'country is null'. "
        "Repeat = for several values.",
    ),
    where: str | None = option(
        "--where",
        "Only files that can hold a row for which this is true: SQL in DuckDB's dialect, "
        "e.g. \"event = 'signup' and amount >= 10\". "
        "The statement of duckdb applies it to rows, too; clickhouse takes none.",
        metavar="CONDITION",
    ),
    max_staleness: MaxStaleness = None,
    min_commit: str | None = option(
        "--min-commit", "Wait until this batch is committed: the id that an ingest printed.", metavar="BATCH_ID"
    ),
    presign: str | None = option(
        "--presign", "Give URLs that need no credentials, valid for this time, e.g. 1h.", metavar="DURATION"
    ),
) -> None:
    """List the live data files of a table: now, at an earlier time, or at a tag.

    `-o paths` prints one URI a line, `-o duckdb` and `-o clickhouse` print SQL to paste.
    """
    if min_commit is not None:
        parse_batch_id_ms(min_commit)  # a typing error must not wait until it times out
    found = run.client.snapshot(
        table,
        as_of=maybe_time(as_of, option="--as-of", now_ms=run.clock.now_ms()),
        tag=tag,
        partitions=parse_partition_filters(partition or ()),
        where=where,
        max_staleness_ms=maybe_duration(max_staleness, option="--max-staleness"),
        min_commit=min_commit,
        presign_ms=maybe_duration(presign, option="--presign", floor_ms=1),
    )
    if run.output == "paths":
        print_lines(found.files.uris)
    elif run.output == "duckdb":
        from icedb_client.duck import select_from  # noqa: PLC0415 - DuckDB is loaded by those who need it

        print_lines([f"{select_from(found)};"])
    elif run.output == "clickhouse":
        from icedb_client.clickhouse import to_clickhouse  # noqa: PLC0415 - as above

        print_lines([to_clickhouse(found)])
    else:
        run.answer(_snapshot_to_json(found), lambda: _show_snapshot(found), records="files")


def _show_snapshot(found: Snapshot) -> None:
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
    if found.files:
        out.print()
        print_table(("partition", ">rows", ">size", "file"), map(_describe_file, found.files[:SHOWN_FILES]))
        if len(found.files) > SHOWN_FILES:
            print_note(f"{len(found.files) - SHOWN_FILES} more files; -o csv and -o paths print all")


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


@command(gives=ROW_FORMATS)
def query(
    run: Run,
    *,
    sql: str | None = argument("One reading statement over tables by their names. Or @FILE.", None, metavar="[SQL]"),
    as_of: AsOf = None,
    tag: TagOption = None,
    max_staleness: MaxStaleness = None,
    limit: int | None = option("--limit", "Most rows (100 in a table, all in any other format).", min=0),
    to: ToOption = None,
) -> None:
    """Run a query with DuckDB over consistent snapshots of the tables it names; without SQL, open a shell.

    The shell reads statement by statement, on snapshots that stand still until it is told to read them anew; in a pipe
    it reads statements from standard input, and the first that fails ends it.
    """
    if sql is None:
        from icedb.cli.shell import run_shell  # noqa: PLC0415 - for those who have no query yet

        if to is not None:
            raise InvalidRequest("--to goes with a query: give it as SQL or @FILE")
        run_shell(run, as_of=as_of, tag=tag, max_staleness=max_staleness, limit=limit)
        return
    with run.client.query(
        read_query(sql, option="SQL"),
        as_of=maybe_time(as_of, option="--as-of", now_ms=run.clock.now_ms()),
        tag=tag,
        max_staleness_ms=maybe_duration(max_staleness, option="--max-staleness"),
    ) as rows:
        answer_rows(run, rows, to=to, most=limit)
    _warn_of_lost_commits(run, rows.snapshots)


def _warn_of_lost_commits(run: Run, tables: Iterable[str]) -> None:
    """Say that rows are missing where the log lacks commits. A snapshot service does not tell of it."""
    from icedb_client.store_reads import StoreReads  # noqa: PLC0415 - as the client that has it

    reads = run.client.answerer
    if not isinstance(reads, StoreReads):
        return
    for name in tables:
        with suppress(IceDBError):  # the rows are here
            if lost := reads.find_lost_commits(name):
                print_note(
                    f"table {name}: {count_of(len(lost), 'commit')} lost, so rows are missing; the first is {lost[0]}: "
                    f"`icedb fsck {name}` says what to do"
                )


@command(records="changes")
def changes(
    run: Run,
    *,
    table: TableName,
    since: str = option(
        "--since",
        "The earlier time, or a duration: 2026-01-02T03:04:05Z, a date, unix ms, 5m.",
        ...,
        metavar="TIME",
    ),
    until: str | None = option("--until", "The later time; without it the newest state.", metavar="TIME"),
) -> None:
    """Show the data files that were added and removed between two times. A merge changes files, and no row."""
    from_ms = parse_time(since, option="--since", now_ms=run.clock.now_ms())
    to_ms_ = maybe_time(until, option="--until", now_ms=run.clock.now_ms())
    found = run.client.changes(table, from_=from_ms, to=to_ms_)
    document = {
        **pick(found, "table", "from_snapshot_id", "to_snapshot_id", "is_stable"),
        "from_ms": from_ms,
        "to_ms": to_ms_,
        "changed_columns": dict(found.changed_columns),
        "added": [_file_to_json(file) for file in found.added],
        "removed": [_file_to_json(file) for file in found.removed],
    }
    if run.as_records:
        files = (("added", found.added), ("removed", found.removed))
        document["changes"] = [{"change": word, **_file_to_json(file)} for word, those in files for file in those]
    run.answer(document, lambda: _show_changes(found))


def _show_changes(found: Changes) -> None:
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
    if total:
        out.print()
        files = (*(("+", file) for file in found.added), *(("-", file) for file in found.removed))
        rows = ((sign, *_describe_file(file)) for sign, file in islice(files, SHOWN_FILES))
        print_table(("", "partition", ">rows", ">size", "file"), rows)
        if total > SHOWN_FILES:
            print_note(f"{total - SHOWN_FILES} more files; -o csv and -o json print all")


def _describe_files(files: FileList) -> str:
    return f"{format_count(len(files))} files, {format_count(files.row_count)} rows, {format_bytes(files.size_bytes)}"


@command(gives=("table", "ndjson"))
def watch(
    run: Run,
    *,
    tables: list[str] | None = argument("Names of tables; default: all, also new ones.", None, metavar="[TABLE]..."),
    count: int | None = option("--count", "End after this many lines; by default at Ctrl-C.", min=1),
) -> None:
    """Print a line for each table at once, then one for each change, until Ctrl-C."""
    names = tuple(dict.fromkeys(tables or ()))
    for event in islice(run.client.watch(names), count):
        print_lines([to_json(pick(event, *_EVENT)) if run.as_data else _to_line(event)])


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
