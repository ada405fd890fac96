"""``icedb table drop``, ``undrop`` and ``list --trash``: the trash, and what is in it."""

from collections.abc import Sequence
from contextlib import suppress
from getpass import getuser
from typing import Any, Final

import typer
from icedb_log.errors import InvalidRequest, Unavailable
from icedb_log.holds.guards import Hold
from icedb_log.names import JANITOR_PURGE
from icedb_log.table.stored_config import load_any_config
from icedb_log.trash.drop import DropRequest, DropResult, drop_table, undrop_table
from icedb_log.trash.purge import TrashEntry, read_trash
from icedb_log.units import parse_duration
from rich.markup import escape

from icedb.cli.output import (
    count_of,
    format_count,
    format_time,
    out,
    pick,
    print_line,
    print_note,
    print_table,
    progress,
)
from icedb.cli.runner import Run, TableName, TimedOut, command, flag, option, require_terminal

POLL_MS: Final = 500
MANY_BATCHES: Final = 1000
"""So many staged batches are counted at most."""


@command(waits="1h")
def drop(
    run: Run,
    *,
    name: TableName,
    keep: str = option("--keep", "How long it stays in the trash, e.g. 30d.", "7d", metavar="TIME"),
    purge: bool = flag("--purge", "Purge it now instead of keeping it in the trash; it cannot be restored."),
    yes: bool = flag("--yes", "With --purge: do not ask for the name again."),
    note: str = option("--note", "Why, for those who find it in the trash.", ""),
) -> None:
    """Drop a table: it moves to the trash with all its data, and the janitor purges it when --keep is over."""
    keep_ms = parse_duration(keep, option="--keep")
    request = DropRequest(keep_ms, is_forced=purge, dropped_by=_login_name(), note=note)
    if run.local and not purge:
        raise InvalidRequest(
            "--local purges in this process: give --purge, too; without it the table goes to the trash"
        )
    if purge and not yes:
        _confirm(run, name)
    result = drop_table(run.place(name), clock=run.clock, request=request)
    is_woken = result.mark.state == "purging" and (_purge_locally if run.local else _wake)(run, name)
    is_followed = is_woken and (run.local or run.wait_ms is not None)
    if is_followed:
        _wait_for_end(run, name, result, wait_ms=run.timeout_ms)
    mark = result.mark
    document = {
        "table": name,
        "changed": result.is_new,
        "state": "purged" if is_followed else mark.state,
        "purge_at_ms": None if mark.is_forced else result.modified_ms + mark.keep_ms,
        "staged_batches": result.staged_count,
        "detached_from": result.detached_from,
    }
    run.answer(document, lambda: _show_drop(name, result, is_purged=is_followed, is_woken=is_woken))


@command()
def undrop(run: Run, *, name: TableName) -> None:
    """Bring a table back from the trash, as it was: its rows, its earlier versions, what waits to be flushed."""
    result = undrop_table(run.place(name), clock=run.clock)

    def show() -> None:
        out.print(f"table [bold]{escape(name)}[/] is {'back' if result.is_new else 'not in the trash'}")
        if result.is_new and result.detached_from is not None:
            print_note(
                f"view {name} is detached from {result.detached_from}: what was committed there since it was dropped "
                f"is not in it; `icedb views {result.detached_from} --attach {name}` feeds it with what comes then"
            )

    run.answer({"table": name, "changed": result.is_new, "detached_from": result.detached_from}, show)


def list_trash(run: Run) -> None:
    """List the tables that are dropped: since when, when they are purged, what that waits for."""
    entries = [each for each in read_trash(run.client.warehouse) if each.table.mark.state != "purged"]
    run.answer({"tables": [_entry_to_json(entry) for entry in entries]}, lambda: _show_trash(entries))


def _show_trash(entries: Sequence[TrashEntry]) -> None:
    if not entries:
        print_note("the trash is empty")
        return
    print_table(
        ("table", "dropped", "by", "state", "purged from", "waits for", "note"),
        (
            (
                entry.table.name,
                format_time(entry.table.dropped_ms),
                entry.table.mark.dropped_by or None,
                _describe_state(entry),
                "at once" if entry.table.mark.is_forced else format_time(entry.table.due_ms),
                ", ".join(map(_describe_claim, entry.waits_for)) or entry.problem or None,
                entry.table.mark.note or None,
            )
            for entry in entries
        ),
    )


def _login_name() -> str:
    """Return who drops a table, for those who find it in the trash; nothing where the system has no name for it."""
    with suppress(KeyError, OSError):
        return getuser()
    return ""


def _wait_for_end(run: Run, name: str, result: DropResult, *, wait_ms: int) -> None:
    """Wait for the end of a purge. Raises TimedOut, Unavailable."""
    ends_ms = run.clock.monotonic_ms() + wait_ms
    with progress(f"purging {name}", is_quiet=run.as_data):
        while True:
            mark = load_any_config(run.place(name))[0].dropped
            if mark is None or mark.drop_id != result.mark.drop_id or mark.state == "purged":
                return
            if run.clock.monotonic_ms() >= ends_ms:
                raise TimedOut(
                    f"table {name!r} is not purged yet; is a janitor running? It goes on by itself; `icedb table "
                    "list --trash` shows it until then"
                )
            run.clock.sleep_ms(POLL_MS)


def _wake(run: Run, name: str) -> bool:
    """Tell the janitor; return whether that worked. Its sweep finds a purge without being told."""
    try:
        run.client.workers.send(JANITOR_PURGE, name, arguments={})
    except Unavailable:
        return False
    return True


def _purge_locally(run: Run, name: str) -> bool:
    """Purge in this process; return whether that came to its end. Raises as the task."""
    with progress(f"purging {name}", is_quiet=run.as_data) as show:
        while True:
            done = run.do(JANITOR_PURGE, name)
            show(now=f"purging {name}: {format_count(done['deleted'])} objects deleted")
            if done["state"] == "purged":
                return True
            if done["failed"] or not done["deleted"]:
                print_note(
                    f"not at its end: {count_of(done['failed'], 'object')} could not be deleted, {done['state']}; "
                    "`icedb table list --trash` says what it waits for, `icedb work --once` goes on"
                )
                return False


def _confirm(run: Run, name: str) -> None:
    """Have the name typed. Raises InvalidRequest if it is another one, NotFound if there is no such table."""
    load_any_config(run.place(name))
    require_terminal(f"give --yes to purge table {name!r} with all its data, for good")
    typed = typer.prompt(f"Purge table {name} with all its data, for good? Type its name", default="", err=True)
    if typed.strip() != name:
        raise InvalidRequest(f"table {name!r} was not dropped: another name was typed; give it, or --yes")


def _show_drop(name: str, result: DropResult, *, is_purged: bool, is_woken: bool) -> None:
    mark = result.mark
    shown = f"table [bold]{escape(name)}[/]"
    if is_purged:
        print_line(f"{shown} is purged")
    elif mark.state == "purging":
        print_line(f"{shown} is being purged; `icedb table list --trash` shows it until it is gone")
        if not is_woken:
            print_note("the janitor was not woken: its sweep begins with it; without one, `icedb work --once` purges")
    else:
        purged_at = format_time(result.modified_ms + mark.keep_ms)
        what = "is in the trash" if result.is_new else "was in the trash already"
        print_line(f"{shown} {what} until {purged_at}; `icedb table undrop {name}` brings it back")
    if result.detached_from is not None:
        print_note(f"{result.detached_from} does not feed view {name} any more")
    if count := result.staged_count:
        fate = "are deleted with it" if mark.state == "purging" else "wait, and are flushed if it is brought back"
        more = " or more" if count >= MANY_BATCHES else ""
        print_note(f"{format_count(count)}{more} staged batches that are not committed {fate}")


def _describe_state(entry: TrashEntry) -> str:
    if entry.table.mark.state == "purging":
        return "being purged"
    return "in the trash" if not entry.is_due else "about to be purged"


def _describe_claim(claim: Hold) -> str:
    until = "" if claim.until_ms is None else f" until {format_time(claim.until_ms)}"
    return f"{claim.kind} {claim.held_by}{until}"


def _entry_to_json(entry: TrashEntry) -> dict[str, Any]:
    return {
        **pick(entry.table, "dropped_ms", table="name"),
        **pick(entry.table.mark, "state", "dropped_by", "note"),
        "is_due": entry.is_due,
        "purge_at_ms": None if entry.table.mark.is_forced else entry.table.due_ms,
        "waits_for": [pick(claim, "kind", "until_ms", name="held_by") for claim in entry.waits_for],
        "problem": entry.problem or None,
    }
