"""``icedb table drop``, ``undrop`` and ``trash``: the trash, what is in it, and how far purges are."""

from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer
from icedb_log.clean.drop import DropRequest, DropResult, drop_table, undrop_table
from icedb_log.clean.guards import Hold
from icedb_log.clean.purge import PurgeProgress, read_progress
from icedb_log.clean.trash_list import TrashEntry, read_trash
from icedb_log.clock import Clock, SystemClock
from icedb_log.errors import InvalidRequest, Unavailable
from icedb_log.names import JANITOR_PURGE
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import load_any_config
from rich.markup import escape

from icedb_client.cli.output import (
    err,
    format_bytes,
    format_count,
    make_table,
    out,
    pick,
    print_json,
    print_note,
)
from icedb_client.cli.parsing import format_time, parse_duration
from icedb_client.cli.runner import JsonFlag, TableName, TimedOut, answer, open_client, require_terminal
from icedb_client.client import Client

POLL_MS: Final = 500
MANY_BATCHES: Final = 1000
"""So many staged batches are counted at most."""


def drop(
    *,
    context: typer.Context,
    name: TableName,
    keep: Annotated[str, typer.Option("--keep", help="How long it stays in the trash, e.g. 30d.")] = "7d",
    force: Annotated[
        bool, typer.Option("--force", help="Past the trash: purge it at once; nothing brings it back.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="With --force: do not ask for the name again.")] = False,
    dropped_by: Annotated[str, typer.Option("--by", help="Who drops it, for those who find it in the trash.")] = "",
    note: Annotated[str, typer.Option("--note", help="Why, for the same.")] = "",
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="With --force: follow the purge to its end.")] = False,
    timeout: Annotated[str, typer.Option("--timeout", help="How long --wait waits.")] = "1h",
    as_json: JsonFlag = False,
) -> None:
    """Drop a table: it goes to the trash, with all its data, and is purged by the janitor when its time there is over.

    Example: icedb table drop clicks --keep 30d
    """
    request = DropRequest(
        keep_ms=parse_duration(keep, option="--keep"), is_forced=force, dropped_by=dropped_by, note=note
    )
    wait_ms = parse_duration(timeout, option="--timeout")
    if wait and not force:
        raise InvalidRequest(
            "--wait follows a purge, which begins when the time in the trash is over: give --force, too"
        )
    with open_client(context, table=name) as client:
        store, paths = client.warehouse.store, client.warehouse.table(name).paths
        if force and not yes:
            _confirm(client, name)
        result = drop_table(TableStore(store, paths), clock=SystemClock(), request=request)
        is_woken = result.mark.state == "purging" and _wake(client, name)
        progress = _follow(client, name, result, wait_ms=wait_ms, clock=SystemClock()) if wait else None
    document = _drop_to_json(name, result, progress)
    answer(document, as_json=as_json, show=lambda: _show_drop(name, result, progress, is_woken=is_woken))


def undrop(
    *,
    context: typer.Context,
    name: TableName,
    as_json: JsonFlag = False,
) -> None:
    """Bring a table back from the trash, as it was: its rows, its earlier versions, what waits to be flushed.

    Example: icedb table undrop clicks
    """
    with open_client(context) as client:
        result = undrop_table(client.warehouse.table(name), clock=SystemClock())
    if as_json:
        print_json({"table": name, "changed": result.is_new, "detached_from": result.detached_from})
        return
    if not result.is_new:
        out.print(f"table [bold]{escape(name)}[/] is not in the trash")
        return
    out.print(f"table [bold]{escape(name)}[/] is back")
    if result.detached_from is not None:
        print_note(
            f"view {name} is detached from {result.detached_from}: what was committed there since it was dropped is "
            f"not in it; `icedb view attach {name}` feeds it with what comes from then on"
        )


def trash(
    *,
    context: typer.Context,
    show_purged: Annotated[
        bool, typer.Option("--all", help="Also tables that are purged: their names are free.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """List the tables that are dropped: since when, when they are purged, what that waits for, how far it is.

    Example: icedb table trash
    """
    with open_client(context) as client:
        entries = [each for each in read_trash(client.warehouse) if show_purged or each.state != "purged"]
    answer({"tables": [_entry_to_json(entry) for entry in entries]}, as_json=as_json, show=lambda: _show_trash(entries))


def _show_trash(entries: Sequence[TrashEntry]) -> None:
    if not entries:
        print_note("the trash is empty")
        return
    table = make_table("table", "dropped", "by", "state", "purged from", "waits for", "note")
    for entry in entries:
        table.add_row(
            escape(entry.name),
            format_time(entry.dropped_ms),
            escape(entry.dropped_by or "-"),
            escape(_describe_state(entry)),
            "at once" if entry.is_forced else format_time(entry.due_ms),
            escape(", ".join(_describe_claim(claim) for claim in entry.waits_for) or entry.problem or "-"),
            escape(entry.note or "-"),
        )
    out.print(table)


def _follow(client: Client, name: str, result: DropResult, *, wait_ms: int, clock: Clock) -> PurgeProgress | None:
    """Wait for the end of a purge; return what it did.

    Raises:
        TimedOut: It has not ended.
        Unavailable: The store did not answer.
    """
    store, paths = client.warehouse.store, client.warehouse.table(name).paths
    ends_ms = clock.monotonic_ms() + wait_ms
    with err.status(f"purging {name}") as status:
        while True:
            mark = load_any_config(TableStore(store, paths))[0].dropped
            progress = read_progress(TableStore(store, paths), drop_id=result.mark.drop_id)
            if mark is None or mark.drop_id != result.mark.drop_id or mark.state == "purged":
                return progress
            status.update(f"purging {name}: {_describe_progress(progress)}")
            if clock.monotonic_ms() >= ends_ms:
                raise TimedOut(
                    f"table {name!r} is not purged yet ({_describe_progress(progress)}); is a janitor running? It goes "
                    "on by itself; `icedb table trash` shows how far it is"
                )
            clock.sleep_ms(POLL_MS)


def _wake(client: Client, name: str) -> bool:
    """Tell the janitor; return whether that worked. Its sweep finds a purge without being told."""
    try:
        client.workers.send(JANITOR_PURGE, name, arguments={})
    except Unavailable:
        return False
    return True


def _confirm(client: Client, name: str) -> None:
    """Have the name typed. Raises InvalidRequest if it is another one, NotFound if there is no such table."""
    load_any_config(client.warehouse.table(name))
    require_terminal(f"give --yes to purge table {name!r} with all its data, for good")
    typed = typer.prompt(f"Purge table {name} with all its data, for good? Type its name", default="", err=True)
    if typed.strip() != name:
        raise InvalidRequest(f"table {name!r} was not dropped: another name was typed; give it, or --yes")


def _show_drop(name: str, result: DropResult, progress: PurgeProgress | None, *, is_woken: bool) -> None:
    mark = result.mark
    shown = f"table [bold]{escape(name)}[/]"
    if progress is not None:
        out.print(f"{shown} is purged: {_describe_progress(progress)}", soft_wrap=True)
    elif mark.state == "purging":
        out.print(f"{shown} is being purged; `icedb table trash` shows how far that is", soft_wrap=True)
        if not is_woken:
            print_note("the janitor was not woken: its sweep begins with it")
    else:
        purged_at = format_time(result.modified_ms + mark.keep_ms)
        what = "is in the trash" if result.is_new else "was in the trash already"
        out.print(f"{shown} {what} until {purged_at}; `icedb table undrop {name}` brings it back", soft_wrap=True)
    if result.detached_from is not None:
        print_note(f"{result.detached_from} does not feed view {name} any more")
    if result.staged_count:
        fate = "are deleted with it" if mark.state == "purging" else "wait, and are flushed if it is brought back"
        print_note(f"{_count_batches(result.staged_count)} that are not committed {fate}")


def _count_batches(count: int) -> str:
    return f"{format_count(count)}{' or more' if count >= MANY_BATCHES else ''} staged batches"


def _describe_state(entry: TrashEntry) -> str:
    if entry.state == "purging":
        return f"being purged: {_describe_progress(entry.progress)}"
    if entry.state == "purged":
        return f"purged: {_describe_progress(entry.progress)}"
    return "in the trash" if not entry.is_due else "about to be purged"


def _describe_progress(progress: PurgeProgress | None) -> str:
    if progress is None:
        return "not begun"
    text = f"{format_count(progress.deleted_count)} objects deleted, {format_bytes(progress.deleted_bytes)}"
    if progress.failed_count:
        text += f"; {format_count(progress.failed_count)} will not go: {progress.problem}"
    return text


def _describe_claim(claim: Hold) -> str:
    until = "" if claim.until_ms is None else f" until {format_time(claim.until_ms)}"
    return f"{claim.kind} {claim.held_by}{until}"


def _drop_to_json(name: str, result: DropResult, progress: PurgeProgress | None) -> dict[str, Any]:
    mark = result.mark
    return {
        "table": name,
        "changed": result.is_new,
        "state": mark.state if progress is None else "purged",
        "purge_at_ms": None if mark.is_forced else result.modified_ms + mark.keep_ms,
        "staged_batches": result.staged_count,
        "detached_from": result.detached_from,
        "progress": _progress_to_json(progress),
    }


def _entry_to_json(entry: TrashEntry) -> dict[str, Any]:
    return {
        **pick(entry, "state", "dropped_ms", "dropped_by", "note", "is_due", table="name"),
        "purge_at_ms": None if entry.is_forced else entry.due_ms,
        "waits_for": [pick(claim, "kind", "until_ms", name="held_by") for claim in entry.waits_for],
        "problem": entry.problem or None,
        "progress": _progress_to_json(entry.progress),
    }


def _progress_to_json(progress: PurgeProgress | None) -> dict[str, Any] | None:
    if progress is None:
        return None
    counts = pick(
        progress, "started_ms", "updated_ms", "deleted_bytes", deleted_objects="deleted_count", failed="failed_count"
    )
    return {**counts, "problem": progress.problem or None}
