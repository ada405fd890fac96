"""``icedb delete`` and ``icedb rewrite``: change rows that are in a table already."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer
from icedb_log.errors import InvalidRequest
from icedb_log.names import MERGE_CHANGE
from icedb_log.table.partitions import PartitionMatcher, parse_partition_filters

from icedb.cli.output import format_bytes, format_count, print_line, print_note, print_pairs, print_table
from icedb.cli.runner import (
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
UNASKED: Final = "give --yes to delete rows for good, or --dry-run"

DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be changed; a worker reads, nothing is written.")
]


@command(timeout="30m")
def delete(
    run: Run,
    *,
    table: TableName,
    where: str = option("--where", "SQL: rows for which it is true are deleted. Or @FILE.", ..., metavar="CONDITION"),
    dry_run: DryRun = False,
    yes: YesFlag = False,
) -> None:
    """Delete rows by a condition, in all partitions, in one commit. Rows for which it is NULL stay.

    Only data files that hold such rows are rewritten. The rows are gone for readers at once; the files that held them
    stay for the grace period (`icedb erasure create` deletes these, too, and proves it).
    """
    arguments = {"kind": "delete", "sql": read_query(where, option="--where")}
    if not yes and not dry_run:
        require_terminal(UNASKED, can_ask=not run.as_data)
    run.client.table_config(table)
    result = {}
    if not yes or dry_run:
        result = _ask(run, table, {**arguments, "dry_run": True})
    if not dry_run and (yes or result["files_rewritten"]):
        if not yes:
            _show_figures(result)
            question = f"Delete {format_count(result['rows_removed'])} rows of table {table} for good?"
            confirm(question, unasked=UNASKED, declined="nothing was deleted")
        result = _ask(run, table, arguments)
    run.answer(result, lambda: _show(result))


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
) -> None:
    """Replace the rows of partitions by the result of a query over them, in one commit.

    The query runs for each partition on its own, and must leave its rows there. Columns that it leaves out are NULL.
    """
    texts = partition or []
    if bool(texts) == all_partitions:
        raise InvalidRequest("say which partitions: --partition FILTER (repeat it), or --all for every one")
    arguments: dict[str, Any] = {"kind": "rewrite", "sql": read_query(query, option="--query"), "partitions": texts}
    if dry_run:
        arguments["dry_run"] = True
    PartitionMatcher(parse_partition_filters(texts), run.client.table_config(table))
    result = _ask(run, table, arguments)
    run.answer(result, lambda: _show(result))


def _ask(run: Run, table: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the worker's result. While another run holds the table it is asked again.

    Raises:
        TimedOut: No result in time.
        Unavailable: Redis does not answer.
        typer.Exit: The task ended badly; the error is printed.
    """
    clock = run.clock
    task = run.task(MERGE_CHANGE, table, arguments, title=f"{arguments['kind']} on table {table}")
    deadline_ms = clock.monotonic_ms() + run.timeout_ms
    while True:
        result = task.ask(max(1, deadline_ms - clock.monotonic_ms()))
        outcome = str(result.get("outcome"))
        if outcome != "busy" or clock.monotonic_ms() + BUSY_PAUSE_MS >= deadline_ms:
            break
        clock.sleep_ms(BUSY_PAUSE_MS)
    if outcome_exit_code(outcome) != OK:
        task.finish(result)
    return result


def _show(result: Mapping[str, Any]) -> None:
    if result["files_rewritten"]:
        _show_figures(result)
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


def _describe_files(result: Mapping[str, Any], count: str, size: str) -> str:
    return f"{format_count(result[count])} ({format_bytes(int(result[size]))})"


def _is_delete(result: Mapping[str, Any]) -> bool:
    return bool(result["kind"] == "delete")
