"""``icedb partitions``: what a table's partitions hold, and how they are removed."""

from collections.abc import Collection, Iterable
from typing import Any, Final

import typer
from icedb_log.errors import InvalidRequest
from icedb_log.log.fold import fold
from icedb_log.model import LogView
from icedb_log.names import MERGE_DROP_PARTITIONS, MERGE_RETAIN
from icedb_log.table.partition_removal import PartitionInfo, RemovalResult, list_partitions, remove_partitions
from icedb_log.table.partitions import decode_partition, select_partitions
from icedb_log.table.retention import KeptReason, RetentionResult, count_kept, retain_table
from typer.core import TyperGroup

from icedb.cli.output import (
    format_bytes,
    format_count,
    format_time,
    pick,
    print_line,
    print_note,
    print_table,
)
from icedb.cli.runner import Run, TableName, YesFlag, argument, command, confirm, flag, require_terminal

SHOWN_PARTITIONS: Final = 20
"""Lines of a removal that is asked about; ``--json`` has all."""
UNASKED: Final = "give --yes to remove these partitions for good, or --dry-run"

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
@command()
def list_of_table(run: Run, *, table: TableName) -> None:
    """List the partitions of a table with what they hold. The word list may be left out.

    Example: icedb partitions list events
    """
    opened = run.open(table)
    infos = list_partitions(fold(opened.read_log()).live, paths=opened.paths, config=opened.config)

    def show() -> None:
        if infos:
            _show_partitions(infos)
        else:
            print_note(f"table {table} has no live data files")

    run.answer({"table": table, "partitions": [_to_json(info) for info in infos]}, show)


@app.command("drop")
@command(waits="10m")
def drop(
    run: Run,
    *,
    table: TableName,
    globs: list[str] = argument("Which partitions, e.g. 'd=2023-06-*' or 'd=2023-06-01/u=a*'.", metavar="GLOB..."),
    drop_all: bool = flag("--all", "Also if that is every partition of the table."),
    dry_run: bool = flag("--dry-run", "Show what would be removed; touches nothing, needs no worker."),
    yes: YesFlag = False,
) -> None:
    """Remove whole partitions for good, in one commit; all partitions of the globs or none.

    The rows are gone for readers at once. Their data files stay for the grace period, for queries that run.

    Example: icedb partitions drop events 'd=2023-06-*' --dry-run
    """

    def choose(_view: LogView, infos: tuple[PartitionInfo, ...]) -> Collection[str]:
        return select_partitions(table, globs, [info.path for info in infos], may_match_all=drop_all)

    planned = remove_partitions(run.open(table, owner="dry run"), choose, dry_run=True)
    if dry_run:
        document = {"table": table, "dry_run": True, **_removal_to_json(planned)}
        run.answer(document, lambda: _show_removal(planned))
        return
    if not yes:
        _confirm(table, planned, can_ask=not run.as_json)
    run.task(MERGE_DROP_PARTITIONS, table, {"globs": list(globs), "may_match_all": drop_all}).carry_out()


@app.command("expire")
@command(waits="10m")
def expire(
    run: Run,
    *,
    table: TableName,
    dry_run: bool = flag("--dry-run", "Show what retention would remove now, and why the rest stays."),
    force: bool = flag("--force", "Also if that is most of the table: settings and clocks were looked at."),
) -> None:
    """Remove the partitions whose retention has passed now, as the merge workers do once an hour.

    Example: icedb partitions expire events --dry-run
    """
    opened = run.open(table, owner="dry run")
    if opened.config.retention_ms is None:
        raise InvalidRequest(
            f"table {table} has no retention; set one with `icedb table alter {table} --retention 90d`"
        )
    if not dry_run:
        run.task(MERGE_RETAIN, table, {"force": True} if force else {}).carry_out()
        return
    result = retain_table(opened, dry_run=True)
    document = {
        "table": table,
        "dry_run": True,
        **pick(result.plan, "field", "refusal"),
        **_removal_to_json(result.removal),
        "kept": [{"path": one.info.path, **pick(one, "reason", "until_ms")} for one in result.plan.kept],
    }
    run.answer(document, lambda: _show_expiry(result))


def _confirm(table: str, planned: RemovalResult, *, can_ask: bool) -> None:
    require_terminal(UNASKED, can_ask=can_ask)
    _show_partitions(planned.partitions[:SHOWN_PARTITIONS])
    count = len(planned.partitions)
    if count > SHOWN_PARTITIONS:
        print_note(f"and {format_count(count - SHOWN_PARTITIONS)} more")
    question = f"Remove {count} partitions with {format_count(planned.row_count)} rows of table {table} for good?"
    confirm(question, unasked=UNASKED, declined="nothing was removed")


def _show_removal(removal: RemovalResult) -> None:
    if removal.partitions:
        _show_partitions(removal.partitions)
    print_line(
        f"would remove {format_count(len(removal.partitions))} partitions: "
        f"{format_count(len(removal.removed_paths))} data files, {format_count(removal.row_count)} rows, "
        f"{format_bytes(removal.size_bytes)}"
    )


def _show_expiry(result: RetentionResult) -> None:
    plan = result.plan
    _show_removal(result.removal)
    for reason, count in count_kept(plan).items():
        if count:
            times = [one.until_ms for one in plan.kept if one.reason == reason and one.until_ms is not None]
            first = f"; the first goes at {format_time(min(times))}" if times else ""
            print_line(f"{format_count(count)} stay, {reason}: {_REASONS[reason]}{first}")
    if plan.refusal:
        print_note(plan.refusal)


def _show_partitions(infos: Iterable[PartitionInfo]) -> None:
    print_table(
        ("partition", ">files", ">rows", ">size", "newest"),
        (
            (
                decode_partition(info.path) or "(the table has no partitions)",
                info.file_count,
                format_count(info.row_count),
                format_bytes(info.size_bytes),
                format_time(info.newest_ms),
            )
            for info in infos
        ),
    )


def _removal_to_json(removal: RemovalResult) -> dict[str, Any]:
    return {
        "partitions": [_to_json(info) for info in removal.partitions],
        "files": len(removal.removed_paths),
        **pick(removal, rows="row_count", bytes="size_bytes"),
    }


def _to_json(info: PartitionInfo) -> dict[str, Any]:
    return pick(info, "path", "newest_ms", "oldest_ms", files="file_count", rows="row_count", bytes="size_bytes")
