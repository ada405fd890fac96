"""``icedb delete`` and ``icedb rewrite``: change rows that are in a table already."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer
from icedb_log.clock import new_batch_id
from icedb_log.errors import IceDBError, InvalidRequest
from icedb_log.names import MERGE_CHANGE
from icedb_log.table.partitions import PartitionMatcher, parse_partition_filters

from icedb.cli.output import format_bytes, format_count, print_line, print_note, print_pairs, print_table
from icedb.cli.runner import (
    INVALID,
    OK,
    Run,
    TableName,
    YesFlag,
    command,
    confirm,
    flag,
    option,
    outcome_exit_code,
    read_query,
    require_terminal,
)

SHOWN_PARTITIONS: Final = 20
"""Partitions that are named; ``-o json`` has up to 1,000."""
BUSY_PAUSE_MS: Final = 500
UNASKED: Final[Mapping[str, str]] = {
    "delete": "give --yes to delete rows for good, or --dry-run",
    "rewrite": "give --yes to replace these rows for good, or --dry-run",
}

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be changed; a worker reads, nothing is written.")
]


RequestId = Annotated[
    str | None,
    typer.Option(
        "--id",
        metavar="ID",
        help="The id that an earlier run of this command named: if that one changed the rows, its result is shown.",
    ),
]


@command(timeout="30m")
def delete(
    run: Run,
    *,
    table: TableName,
    where: str = option("--where", "SQL: rows for which it is true are deleted. Or @FILE.", ..., metavar="CONDITION"),
    dry_run: DryRun = False,
    request_id: RequestId = None,
    yes: YesFlag = False,
) -> None:
    """Delete rows by a condition, in all partitions, in one commit. Rows for which it is NULL stay.

    Only data files that hold such rows are rewritten. The rows are gone for readers at once; the files that held them
    stay for the grace period (`icedb erasure create` deletes these, too, and proves it).
    """
    arguments = {"kind": "delete", "sql": read_query(where, option="--where")}
    run.client.table_config(table)
    _change(run, table, arguments, dry_run=dry_run, request_id=request_id, yes=yes)


@command(timeout="30m")
def rewrite(
    run: Run,
    *,
    table: TableName,
    query: str = option("--query", "SQL over _rows, the rows of a partition. Or @FILE.", ..., metavar="SQL"),
    partition: list[str] | None = option(
        "--partition",
        "Which partitions, e.g. d=2023-06-01 or 'd<2023-06-01'. Repeat: all fields must match.",
        metavar="FILTER",
    ),
    all_partitions: bool = flag("--all", "Every partition of the table, instead of --partition."),
    dry_run: DryRun = False,
    request_id: RequestId = None,
    yes: YesFlag = False,
) -> None:
    """Replace the rows of partitions by the result of a query over them, in one commit.

    The query runs for each partition on its own, and must leave its rows there. Columns that it leaves out are NULL.
    A command that got no answer is repeated with the --id that it named: so the query never runs on its own result.
    """
    texts = partition or []
    if bool(texts) == all_partitions:
        raise InvalidRequest("say which partitions: --partition FILTER (repeat it), or --all for every one")
    arguments: dict[str, Any] = {"kind": "rewrite", "sql": read_query(query, option="--query"), "partitions": texts}
    PartitionMatcher(parse_partition_filters(texts), run.client.table_config(table))
    _change(run, table, arguments, dry_run=dry_run, request_id=request_id, yes=yes)


def _change(
    run: Run, table: str, arguments: Mapping[str, Any], *, dry_run: bool, request_id: str | None, yes: bool
) -> None:
    """Change rows once the user has agreed to what a dry run found, and show the result."""
    unasked = UNASKED[arguments["kind"]]
    if not yes and not dry_run:
        require_terminal(unasked, can_ask=not run.as_data)
    result: dict[str, Any] = {}
    if not yes or dry_run:
        result = _ask(run, table, {**arguments, "dry_run": True})
    if not dry_run and (yes or result["files_rewritten"]):
        if not yes:
            _show_figures(result)
            confirm(_describe_question(result), unasked=unasked, declined="nothing was changed")
        result = _ask(run, table, arguments, request_id=request_id)
    run.answer(result, lambda: _show(result))


def _ask(run: Run, table: str, arguments: Mapping[str, Any], *, request_id: str | None = None) -> dict[str, Any]:
    """Return the worker's result. While another run holds the table it is asked again.

    What changes rows is asked for under an id, a fresh one if not given, so that whoever gets no answer can ask again.

    Raises:
        TimedOut: No result in time.
        Unavailable: Redis does not answer.
        typer.Exit: The task ended badly; the error is printed.
    """
    clock = run.clock
    words: dict[str, str] = {"title": f"{arguments['kind']} on table {table}"}
    again = ""
    if not arguments.get("dry_run"):
        request_id = request_id or new_batch_id(clock)
        arguments = {**arguments, "request_id": request_id}
        again = f"to know what came of it, repeat it with --id {request_id}: the rows change once"
        words["note"] = f"waiting for a worker: {arguments['kind']} --id {request_id}"
    task = run.task(MERGE_CHANGE, table, arguments, **words)
    deadline_ms = clock.monotonic_ms() + run.timeout_ms
    while True:
        try:
            result = task.ask(max(1, deadline_ms - clock.monotonic_ms()))
        except IceDBError as error:
            if again and not isinstance(error, InvalidRequest):
                print_note(again)
            raise
        outcome = str(result.get("outcome"))
        if outcome != "busy" or clock.monotonic_ms() + BUSY_PAUSE_MS >= deadline_ms:
            break
        clock.sleep_ms(BUSY_PAUSE_MS)
    code = outcome_exit_code(outcome)
    if code != OK:
        if again and code != INVALID:
            print_note(again)
        task.finish(result)
    return result


def _show(result: Mapping[str, Any]) -> None:
    if result["files_rewritten"]:
        _show_figures(result)
        if result.get("repeated"):
            print_note("an earlier run of this command has done it; nothing was changed now")
        return
    counted = f"; rows were counted in {format_count(result['files_scanned'])} files" if _is_delete(result) else ""
    what = "no such row" if _is_delete(result) else "no such partition"
    print_line(f"{what} in table [bold]{result['table']}[/]{counted}")


def _show_figures(result: Mapping[str, Any]) -> None:
    is_dry, is_delete = bool(result["dry_run"]), _is_delete(result)
    read, removed = int(result["rows_read"]), int(result["rows_removed"])
    pairs: dict[str, object] = {"table": f"{result['table']}{' (dry run: nothing was written)' if is_dry else ''}"}
    if is_delete:
        pairs["rows to delete" if is_dry else "rows deleted"] = removed
        pairs["files counted"] = format_count(result["files_scanned"])
    elif not is_dry:
        pairs |= {"rows before": read, "rows after": read - removed}
    else:
        pairs["rows"] = f"{format_count(read)} (the query was checked, it did not run)"
    pairs["files to rewrite" if is_dry else "files rewritten"] = _describe_files(result, "files_rewritten", "bytes_in")
    if not is_dry:
        pairs["files written"] = _describe_files(result, "files_written", "bytes_out")
    pairs["partitions"] = format_count(result["partitions"])
    print_pairs(pairs)
    paths = [path for path in result.get("paths", ()) if path]
    if paths:
        print_table(("partition",), ((path,) for path in paths[:SHOWN_PARTITIONS]))
    if len(paths) > SHOWN_PARTITIONS:
        print_note(f"and {format_count(int(result['partitions']) - SHOWN_PARTITIONS)} more")


def _describe_question(found: Mapping[str, Any]) -> str:
    table = found["table"]
    if _is_delete(found):
        return f"Delete {format_count(found['rows_removed'])} rows of table {table} for good?"
    return f"Replace the {format_count(found['rows_read'])} rows of these partitions of table {table} by the query's?"


def _describe_files(result: Mapping[str, Any], count: str, size: str) -> str:
    return f"{format_count(result[count])} ({format_bytes(int(result[size]))})"


def _is_delete(result: Mapping[str, Any]) -> bool:
    return bool(result["kind"] == "delete")
