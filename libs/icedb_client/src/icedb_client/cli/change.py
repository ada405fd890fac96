"""``icedb delete`` and ``icedb rewrite``: change rows that are in a table already."""

import sys
from typing import Annotated, Any, Final

import typer
from icedb_log.clock import Clock, SystemClock
from icedb_log.errors import InvalidRequest
from icedb_log.names import MERGE_CHANGE
from icedb_log.table.partition_filter import PartitionMatcher, parse_partition_filters

from icedb_client.cli.exits import FAILED, OK, outcome_exit_code
from icedb_client.cli.output import (
    JsonFlag,
    format_bytes,
    format_count,
    make_table,
    out,
    print_error,
    print_json,
    print_note,
    print_pairs,
)
from icedb_client.cli.parsing import parse_duration
from icedb_client.cli.session import open_client
from icedb_client.cli.table_options import read_query
from icedb_client.cli.work import wait_for_task
from icedb_client.client import Client

SHOWN_PARTITIONS: Final = 20
"""Partitions that are named; ``--json`` has up to 1,000."""
BUSY_PAUSE_MS: Final = 500

TableName = Annotated[str, typer.Argument(help="Name of the table.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only say what would be touched; a worker looks, none writes.")]
Timeout = Annotated[str, typer.Option("--timeout", help="How long to wait for the worker's result.")]


def delete(
    *,
    context: typer.Context,
    table: TableName,
    where: Annotated[
        str,
        typer.Option("--where", metavar="CONDITION", help="Spark SQL: rows for which it is true go. Or @FILE."),
    ],
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    timeout: Timeout = "30m",
    as_json: JsonFlag = False,
) -> None:
    """Delete rows by a condition, in all partitions, in one commit. Rows for which it is NULL stay.

    Only data files that hold such rows are rewritten. The rows are gone for readers at once; the files that held them
    stay for the grace period (`icedb erase` waits for their end, and proves it).

    Example: icedb delete events --where "user_id = 'x'" --dry-run
    """
    condition = read_query(where, option="--where")
    request = _Request(table, "delete", {"sql": condition}, parse_duration(timeout, option="--timeout"), as_json)
    if not yes and not dry_run and (as_json or not sys.stdin.isatty()):
        raise InvalidRequest("nobody can be asked here: give --yes to delete rows for good, or --dry-run")
    with open_client(context, table=table) as client:
        client.table_config(table)
        if not yes or dry_run:
            planned = request.ask(client, dry_run=True)
            if dry_run or not planned["files_rewritten"]:
                _print_result(planned, as_json=as_json)
                return
            _confirm(planned)
        _print_result(request.ask(client, dry_run=False), as_json=as_json)


def rewrite(
    *,
    context: typer.Context,
    table: TableName,
    query: Annotated[
        str,
        typer.Option("--query", metavar="SQL", help="Spark SQL over _rows, the rows of a partition. Or @FILE."),
    ],
    partition: Annotated[
        list[str] | None,
        typer.Option(
            "--partition",
            metavar="FILTER",
            help="Which partitions, e.g. d=2023-06-01 or 'd<2023-06-01'. Repeat: all fields must match.",
        ),
    ] = None,
    all_partitions: Annotated[bool, typer.Option("--all", help="Every partition of the table.")] = False,
    dry_run: DryRun = False,
    timeout: Timeout = "30m",
    as_json: JsonFlag = False,
) -> None:
    """Replace the rows of partitions by what a query makes of them, in one commit.

    The query runs for each partition on its own, and must leave its rows there. Columns that it leaves out are NULL.

    Example: icedb rewrite events --partition d=2023-06-01 --query "select * from _rows where n > 0"
    """
    texts = partition or []
    if bool(texts) == all_partitions:
        raise InvalidRequest("say which partitions: --partition FILTER (repeat it), or --all for every one")
    arguments = {"sql": read_query(query, option="--query"), "partitions": texts}
    request = _Request(table, "rewrite", arguments, parse_duration(timeout, option="--timeout"), as_json)
    with open_client(context, table=table) as client:
        PartitionMatcher(parse_partition_filters(texts), client.table_config(table))
        _print_result(request.ask(client, dry_run=dry_run), as_json=as_json)


class _Request:
    """What a worker is asked for.

    Args:
        table: The table.
        kind: ``delete`` or ``rewrite``.
        arguments: Of the task, besides.
        wait_ms: How long to wait for it in all.
        as_json: Whether errors come with the result on standard output.
    """

    def __init__(
        self,
        table: str,
        kind: str,
        arguments: dict[str, Any],
        wait_ms: int,
        as_json: bool,  # noqa: FBT001 - a value like the others
        *,
        clock: Clock | None = None,
    ) -> None:
        self._table = table
        self._arguments = {"kind": kind, **arguments}
        self._wait_ms = wait_ms
        self._as_json = as_json
        self._clock = clock or SystemClock()

    def ask(self, client: Client, *, dry_run: bool) -> dict[str, Any]:
        """Return the worker's result. While another run holds the table it is asked again.

        Raises:
            TimedOut: No result in time.
            Unavailable: Redis does not answer.
            typer.Exit: The task ended badly; the error is printed.
        """
        arguments = {**self._arguments, **({"dry_run": True} if dry_run else {})}
        deadline_ms = self._clock.monotonic_ms() + self._wait_ms
        while True:
            wait_ms = max(1, deadline_ms - self._clock.monotonic_ms())
            result = wait_for_task(
                client, MERGE_CHANGE, self._table, arguments=arguments, wait_ms=wait_ms, as_json=self._as_json
            )
            outcome = str(result.get("outcome"))
            if outcome != "busy" or self._clock.monotonic_ms() + BUSY_PAUSE_MS >= deadline_ms:
                break
            self._clock.sleep_ms(BUSY_PAUSE_MS)
        code = outcome_exit_code(outcome)
        if code == OK:
            return result
        if self._as_json:
            print_json(result)
        message = (result.get("error") or {}).get("message", "see the worker log")
        print_error(f"{self._arguments['kind']} on table {self._table}: {outcome}: {message}")
        raise typer.Exit(code)


def _confirm(planned: dict[str, Any]) -> None:
    _print_figures(planned)
    rows, table = format_count(planned["rows_removed"]), planned["table"]
    if not typer.confirm(f"Delete {rows} rows of table {table} for good?", err=True):
        print_note("nothing was deleted")
        raise typer.Exit(FAILED)


def _print_result(result: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(result)
        return
    if not result["files_rewritten"]:
        counted = f"; rows were counted in {format_count(result['files_scanned'])} files" if _is_delete(result) else ""
        what = "no such row" if _is_delete(result) else "no such partition"
        out.print(f"{what} in table [bold]{result['table']}[/]{counted}", soft_wrap=True)
        return
    _print_figures(result)


def _print_figures(result: dict[str, Any]) -> None:
    is_dry = bool(result["dry_run"])
    read, removed = int(result["rows_read"]), int(result["rows_removed"])
    pairs = {"table": f"{result['table']}{' (dry run: nothing was written)' if is_dry else ''}"}
    if _is_delete(result):
        pairs["rows to delete" if is_dry else "rows deleted"] = format_count(removed)
        pairs["files counted"] = format_count(result["files_scanned"])
    elif not is_dry:
        pairs["rows before"] = format_count(read)
        pairs["rows after"] = format_count(read - removed)
    else:
        pairs["rows"] = f"{format_count(read)} (the query was checked, it did not run)"
    pairs["files to rewrite" if is_dry else "files rewritten"] = _describe_files(result, "files_rewritten", "bytes_in")
    if not is_dry:
        pairs["files written"] = _describe_files(result, "files_written", "bytes_out")
    pairs["partitions"] = format_count(result["partitions"])
    print_pairs(pairs)
    paths = [path for path in result.get("paths", ()) if path]
    if paths:
        table = make_table("partition")
        for path in paths[:SHOWN_PARTITIONS]:
            table.add_row(path)
        out.print(table)
    if len(paths) > SHOWN_PARTITIONS:
        print_note(f"and {format_count(int(result['partitions']) - SHOWN_PARTITIONS)} more")


def _describe_files(result: dict[str, Any], count: str, size: str) -> str:
    return f"{format_count(result[count])} ({format_bytes(int(result[size]))})"


def _is_delete(result: dict[str, Any]) -> bool:
    return bool(result["kind"] == "delete")
