"""``icedb partitions``: what a table's partitions hold, and how they are removed."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from icedb_log.changes.partition_removal import PartitionInfo, RemovalResult, list_partitions
from icedb_log.changes.retention import KeptReason, RetentionResult, count_kept, retain_table
from icedb_log.errors import InvalidRequest
from icedb_log.log.fold import fold
from icedb_log.names import MERGE_DROP_PARTITIONS, MERGE_RETAIN
from icedb_log.operations import drop_partitions
from icedb_log.table.partitions import decode_partition, select_partitions

from icedb.cli.output import (
    count_of,
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
"""Lines of a removal that is asked about; ``-o json`` has all."""
UNASKED: Final = "give --yes to remove these partitions for good; without --drop they are listed"

_REASONS: Final[dict[KeptReason, str]] = {
    "young": "their time has not come",
    "late": "their time has come, but data files came not long ago",
    "future": "their time has not begun",
    "null": "their rows have no time: they never expire",
    "unparsable": "their value is no time: they never expire",
}


@command(waits="10m", records="partitions")
def partitions(
    run: Run,
    *,
    table: TableName,
    globs: list[str] | None = argument(
        "Only these partitions, e.g. 'd=2023-06-*' or 'd=2023-06-01/u=a*'.", None, metavar="[GLOB]..."
    ),
    expired: bool = flag("--expired", "Only expired partitions, and why the others stay."),
    drop: bool = flag("--drop", "Remove the partitions of the globs, or expired ones; it cannot be undone."),
    force: bool = flag("--force", "With --drop: also if these are all or most of the table."),
    yes: YesFlag = False,
) -> None:
    """List the partitions of a table: files, rows, bytes; or remove whole ones, all that match or none.

    A removal is one commit, and its rows are gone for readers at once. The data files stay for the grace period, for
    queries that run. Merge workers remove what has expired once an hour by themselves.
    """
    if expired and globs:
        raise InvalidRequest("give globs or --expired, not both")
    if expired:
        _expire(run, table, drop=drop, force=force)
        return
    if not drop:
        _list(run, table, globs or ())
        return
    if not globs:
        raise InvalidRequest("say which partitions go: a glob, e.g. 'd=2023-06-*', or --expired")

    planned = drop_partitions(run.open(table, owner="dry run"), globs, may_match_all=force, dry_run=True)
    if not yes:
        _confirm(table, planned, can_ask=not run.as_data)
    run.task(MERGE_DROP_PARTITIONS, table, {"globs": list(globs), "may_match_all": force}).carry_out()


def _list(run: Run, table: str, globs: Sequence[str]) -> None:
    opened = run.open(table)
    infos = list_partitions(fold(opened.read_log()).live, paths=opened.paths, config=opened.config)
    if globs:
        chosen = select_partitions(table, globs, [info.path for info in infos], may_match_all=True)
        infos = tuple(info for info in infos if info.path in chosen)

    def show() -> None:
        if not infos:
            print_note(f"table {table} has no live data files")
            return
        _show_partitions(infos)
        if globs:
            print_note(_describe_sum(infos))

    run.answer({"table": table, "partitions": [_to_json(info) for info in infos]}, show)


def _expire(run: Run, table: str, *, drop: bool, force: bool) -> None:
    opened = run.open(table, owner="dry run")
    if opened.config.retention_ms is None:
        raise InvalidRequest(
            f"table {table} has no retention; set one with `icedb table alter {table} --retention 90d`"
        )
    if drop:
        run.task(MERGE_RETAIN, table, {"force": True} if force else {}).carry_out()
        print_note(f"`icedb partitions {table} --expired` says what stays, and why")
        return
    result = retain_table(opened, dry_run=True)
    document = {
        "table": table,
        **pick(result.plan, "field", "refusal"),
        "partitions": [_to_json(info) for info in result.removal.partitions],
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


def _describe_sum(infos: Collection[PartitionInfo]) -> str:
    files, rows, size = (
        sum(getattr(info, name) for info in infos) for name in ("file_count", "row_count", "size_bytes")
    )
    return (
        f"{count_of(len(infos), 'partition')}: {count_of(files, 'data file')}, {count_of(rows, 'row')}, "
        f"{format_bytes(size)}"
    )


def _show_expiry(result: RetentionResult) -> None:
    plan, infos = result.plan, result.removal.partitions
    if infos:
        _show_partitions(infos)
    print_line(f"expired: {_describe_sum(infos)}")
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


def _to_json(info: PartitionInfo) -> dict[str, Any]:
    return pick(info, "path", "newest_ms", "oldest_ms", files="file_count", rows="row_count", bytes="size_bytes")
