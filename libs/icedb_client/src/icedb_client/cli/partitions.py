"""``icedb partitions``: what a table's partitions hold, and how they are removed."""

from collections.abc import Collection, Iterable
from typing import Annotated, Any, Final

import typer
from icedb_log.clock import SystemClock
from icedb_log.errors import InvalidRequest
from icedb_log.log.reader import LogReader
from icedb_log.model import LogView
from icedb_log.names import MERGE_DROP_PARTITIONS, MERGE_RETAIN
from icedb_log.table.partition_removal import PartitionInfo, RemovalResult, list_partitions, remove_partitions
from icedb_log.table.partitions import decode_partition, select_partitions
from icedb_log.table.retention import KeptReason, RetentionResult, count_kept, retain_table
from icedb_log.table.table import Table
from rich.markup import escape
from typer.core import TyperGroup

from icedb_client.cli.output import format_bytes, format_count, make_table, out, pick, print_note
from icedb_client.cli.parsing import format_time, parse_duration
from icedb_client.cli.runner import (
    JsonFlag,
    TableName,
    Task,
    Timeout,
    Wait,
    YesFlag,
    answer,
    confirm,
    open_client,
    require_terminal,
)
from icedb_client.client import Client

SHOWN_PARTITIONS: Final = 20
"""Lines of a removal that is asked about; ``--json`` has all."""

_REASONS: Final[dict[KeptReason, str]] = {
    "young": "their time has not come",
    "late": "their time has come, but data files came not long ago",
    "future": "their time has not begun",
    "null": "their rows have no time: they never expire",
    "unparsable": "their value is no time: they never expire",
}


class _TableFirst(TyperGroup):
    """Takes ``icedb partitions TABLE`` for ``icedb partitions list TABLE``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put ``list`` before a word that is no command."""
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["list", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_TableFirst,
    no_args_is_help=True,
    help="Look at the partitions of a table, and remove them. `icedb partitions TABLE` lists them.",
)


@app.command("list")
def list_of_table(*, context: typer.Context, table: TableName, as_json: JsonFlag = False) -> None:
    """List the partitions of a table with what they hold. The word list may be left out.

    Example: icedb partitions list events
    """
    with open_client(context, table=table) as client:
        infos = list_partitions(_read_log(client, table), client.warehouse.table(table).paths)
    document = {"table": table, "partitions": [_to_json(info) for info in infos]}
    answer(document, as_json=as_json, show=lambda: _show_all(table, infos))


@app.command("drop")
def drop(
    *,
    context: typer.Context,
    table: TableName,
    globs: Annotated[
        list[str],
        typer.Argument(metavar="GLOB...", help="Which partitions, e.g. 'd=2023-06-*' or 'd=2023-06-01/u=a*'."),
    ],
    drop_all: Annotated[bool, typer.Option("--all", help="Also if that is every partition of the table.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be removed; touches nothing, needs no worker.")
    ] = False,
    yes: YesFlag = False,
    wait: Wait = True,
    timeout: Timeout = "10m",
    as_json: JsonFlag = False,
) -> None:
    """Remove whole partitions for good, in one commit; all partitions of the globs or none.

    The rows are gone for readers at once. Their data files stay for the grace period, for queries that run.

    Example: icedb partitions drop events 'd=2023-06-*' --dry-run
    """
    wait_ms = parse_duration(timeout, option="--timeout") if wait else None
    with open_client(context, table=table) as client:
        planned = _plan_drop(client, table, globs, may_match_all=drop_all)
        if dry_run:
            document = {"table": table, "dry_run": True, **_removal_to_json(planned)}
            answer(document, as_json=as_json, show=lambda: _show_removal(planned))
            return
        if not yes:
            _confirm(table, planned, can_ask=not as_json)
        arguments = {"globs": list(globs), "may_match_all": drop_all}
        Task(MERGE_DROP_PARTITIONS, table, arguments, as_json).run(client, wait_ms=wait_ms)


@app.command("expire")
def expire(
    *,
    context: typer.Context,
    table: TableName,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Show what retention would remove now, and why the rest stays."),
    ] = False,
    force: Annotated[
        bool,
        typer.Option("--force", help="Also if that is most of the table: settings and clocks were looked at."),
    ] = False,
    wait: Wait = True,
    timeout: Timeout = "10m",
    as_json: JsonFlag = False,
) -> None:
    """Remove the partitions whose retention has passed now, as the merge workers do once an hour.

    Example: icedb partitions expire events --dry-run
    """
    wait_ms = parse_duration(timeout, option="--timeout") if wait else None
    with open_client(context, table=table) as client:
        config = client.table_config(table)
        if config.retention_ms is None:
            raise InvalidRequest(
                f"table {table} has no retention; set one with `icedb table alter {table} --retention 90d`"
            )
        if not dry_run:
            arguments = {"force": True} if force else {}
            Task(MERGE_RETAIN, table, arguments, as_json).run(client, wait_ms=wait_ms)
            return
        result = retain_table(
            Table.open(client.warehouse.table(table), clock=SystemClock(), owner="dry run"),
            dry_run=True,
        )
    document = {
        "table": table,
        "dry_run": True,
        **pick(result.plan, "field", "refusal"),
        **_removal_to_json(result.removal),
        "kept": [{"path": one.info.path, **pick(one, "reason", "until_ms")} for one in result.plan.kept],
    }
    answer(document, as_json=as_json, show=lambda: _show_expiry(result))


def _read_log(client: Client, table: str) -> LogView:
    config = client.table_config(table)
    reader = LogReader(
        client.warehouse.table(table),
        clock=SystemClock(),
        max_refresh_ms=config.log_grace_ms // 2,
    )
    return reader.read()


def _plan_drop(client: Client, table: str, globs: list[str], *, may_match_all: bool) -> RemovalResult:
    def choose(_view: LogView, infos: tuple[PartitionInfo, ...]) -> Collection[str]:
        return select_partitions(table, globs, [info.path for info in infos], may_match_all=may_match_all)

    return remove_partitions(
        Table.open(client.warehouse.table(table), clock=SystemClock(), owner="dry run"),
        choose,
        dry_run=True,
    )


def _confirm(table: str, planned: RemovalResult, *, can_ask: bool) -> None:
    unasked = "give --yes to remove these partitions for good, or --dry-run"
    require_terminal(unasked, can_ask=can_ask)
    _show_partitions(planned.partitions[:SHOWN_PARTITIONS])
    count = len(planned.partitions)
    if count > SHOWN_PARTITIONS:
        print_note(f"and {format_count(count - SHOWN_PARTITIONS)} more")
    question = f"Remove {count} partitions with {format_count(planned.row_count)} rows of table {table} for good?"
    confirm(question, unasked=unasked, declined="nothing was removed")


def _show_removal(removal: RemovalResult) -> None:
    if removal.partitions:
        _show_partitions(removal.partitions)
    out.print(
        f"would remove {format_count(len(removal.partitions))} partitions: "
        f"{format_count(len(removal.removed_paths))} data files, {format_count(removal.row_count)} rows, "
        f"{format_bytes(removal.size_bytes)}",
        soft_wrap=True,
    )


def _show_expiry(result: RetentionResult) -> None:
    plan = result.plan
    _show_removal(result.removal)
    for reason, count in count_kept(plan).items():
        if count:
            times = [one.until_ms for one in plan.kept if one.reason == reason and one.until_ms is not None]
            first = f"; the first goes at {format_time(min(times))}" if times else ""
            out.print(f"{format_count(count)} stay, {reason}: {_REASONS[reason]}{first}", soft_wrap=True)
    if plan.refusal:
        print_note(plan.refusal)


def _show_all(table: str, infos: Iterable[PartitionInfo]) -> None:
    if infos:
        _show_partitions(infos)
    else:
        print_note(f"table {table} has no live data files")


def _show_partitions(infos: Iterable[PartitionInfo]) -> None:
    table = make_table("partition", "files", "rows", "size", "newest", right=("files", "rows", "size"))
    for info in infos:
        table.add_row(
            escape(decode_partition(info.path) or "(the table has no partitions)"),
            format_count(info.file_count),
            format_count(info.row_count),
            format_bytes(info.size_bytes),
            format_time(info.newest_ms),
        )
    out.print(table)


def _removal_to_json(removal: RemovalResult) -> dict[str, Any]:
    return {
        "partitions": [_to_json(info) for info in removal.partitions],
        "files": len(removal.removed_paths),
        **pick(removal, rows="row_count", bytes="size_bytes"),
    }


def _to_json(info: PartitionInfo) -> dict[str, Any]:
    return pick(info, "path", "newest_ms", "oldest_ms", files="file_count", rows="row_count", bytes="size_bytes")
