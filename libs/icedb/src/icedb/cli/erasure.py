"""``icedb erasure``: rows that have to be gone, and the proof that they are."""

from collections.abc import Collection, Sequence
from typing import Any, Final

import typer
from icedb_log.clean.holds import read_holds
from icedb_log.clean.vacuum import vacuum_table
from icedb_log.commit.table import Table
from icedb_log.erasure.erasure_scope import count_staged_until
from icedb_log.holds.erasures import (
    Erasure,
    NamedObjects,
    certificate,
    create_erasure,
    list_erasures,
    read_erasure,
)
from icedb_log.holds.guards import STORE_RESOLUTION_MS, Kept, find_data_deaths, group_waiting
from icedb_log.holds.tags import find_lasting, list_tags
from icedb_log.log.fold import named_paths
from icedb_log.model import LogView
from icedb_log.names import MERGE_ERASE
from rich.markup import escape

from icedb.cli.output import (
    err,
    format_bytes,
    format_count,
    format_time,
    out,
    print_error,
    print_note,
    print_pairs,
    print_table,
)
from icedb.cli.runner import INVALID, Commands, Run, TableName, YesFlag, argument, command, confirm, flag, option

POLL_MS: Final = 3000
LOOK_MS: Final = 30_000
SHOWN_OBJECTS: Final = 20
"""Objects that are shown to people; ``-o json`` has all."""
SHOWN_CHARS: Final = 60

app: Final = Commands(name="erasure", help="Erase rows for good, with a certificate.")

_NOT_COVERED: Final = {
    "quarantine": "batches in quarantine",
    "unknown_staged": "objects in staging that are no batches",
    "unknown_data": "objects among the data files that are none",
    "import_sources": "sources that were imported from",
    "views": "tables that are fed by this one",
    "late": "data files that were committed after the request",
}


@app.command("create")
@command(timeout="10m")
def create(
    run: Run,
    *,
    table: TableName,
    where: str = option("--where", "SQL condition: rows for which it is true are erased.", ...),
    dry_run: bool = flag("--dry-run", "Show what would be erased now; a worker reads, nothing is written."),
    yes: YesFlag = False,
    note: str = option("--note", "Why, for the certificate; nothing personal.", ""),
    requested_by: str = option("--by", "Who requests it, for the certificate.", ""),
    follow: bool = flag("--follow", "Wait until it is complete, and show what it waits for; takes the grace period."),
) -> None:
    """Erase rows with proof: rewrite files, wait until all dead files are deleted, write a certificate.

    A merge worker first says what would be erased. Then the request is written, and workers carry it on by themselves.
    """
    run.client.table_config(table)
    found = _preview(run, table, where, timeout_ms=run.timeout_ms)
    if dry_run:
        figures = ("rows", "files", "bytes", "files_counted", "partitions")
        run.answer(
            {"table": table, "dry_run": True, **{name: found.get(name) for name in figures}},
            lambda: out.print(f"would erase {_describe(found)} of table [bold]{escape(table)}[/]"),
        )
    _warn_of_tags(run, table)
    if dry_run:
        return
    if not yes:
        question = f"Erase {_describe(found)} of table {table} for good?"
        confirm(question, unasked="give --yes to erase for good", declined="nothing was erased")
    place = run.place(table)
    erasure = create_erasure(place, condition=where, clock=run.clock, requested_by=requested_by, note=note)
    is_woken = run.wake(MERGE_ERASE, table)
    if not follow:
        run.answer({**_to_json(erasure), "woken": is_woken}, lambda: _show_asked(erasure))
        return
    print_note(f"erasure {erasure.erasure_id} of table {table} was asked for")
    erasure = _follow(run, erasure)
    run.answer(certificate(erasure), lambda: _show_one(erasure, "nothing: it has ended"))
    if erasure.state == "refused":
        print_error(f"erasure {erasure.erasure_id} of table {erasure.table} is refused: {erasure.refusal}")
        raise typer.Exit(INVALID)


@app.command("list")
@command(records="erasures")
def list_erasures_of(
    run: Run,
    *,
    table: TableName,
    erasure_id: str | None = argument("Show this one: its progress, or its certificate.", None, metavar="[ID]"),
    limit: int = option("--limit", "How many, newest first.", 50, min=1, max=10_000),
) -> None:
    """List the erasures of a table, newest first, or show one.

    With -o json one is its whole certificate.
    """
    run.client.table_config(table)
    if erasure_id is not None:
        erasure = read_erasure(run.place(table), erasure_id)
        waits_for = _waits_for(run, erasure)
        run.answer(certificate(erasure), lambda: _show_one(erasure, waits_for))
        return
    found = list_erasures(run.place(table), limit=limit)
    document = {"table": table, "erasures": [_to_json(erasure) for erasure in found]}
    run.answer(document, lambda: _show_list(table, found))


def _show_list(table: str, found: Sequence[Erasure]) -> None:
    if not found:
        print_note(f"no erasure of table {table} was asked for")
        return
    print_table(
        ("id", "state", "asked", "ended", ">rows", ">objects", "condition"),
        (
            (
                erasure.erasure_id,
                erasure.state,
                format_time(erasure.requested_ms),
                format_time(erasure.completed_ms) if erasure.completed_ms else None,
                format_count(erasure.row_count),
                len(erasure.objects),
                _shorten(erasure.condition),
            )
            for erasure in found
        ),
    )


def _preview(run: Run, table: str, condition: str, *, timeout_ms: int) -> dict[str, Any]:
    what = f"nothing was erased from table {table}"
    return run.task(MERGE_ERASE, table, {"preview": condition}).ask_first(
        timeout_ms,
        late=f"nothing was erased: no merge worker said within {timeout_ms / 1000:g} s what would be removed from "
        f"table {table}. Start one and try again, or raise --timeout",
        away="nothing was erased: a merge worker has to check the condition, and ",
        refused=what,
        failed=what,
    )


def _describe(found: dict[str, Any]) -> str:
    return (
        f"{format_count(found.get('rows'))} rows in {format_count(found.get('files'))} data files "
        f"({format_bytes(int(found.get('bytes') or 0))}) of {format_count(found.get('partitions'))} partitions"
    )


def _show_asked(erasure: Erasure) -> None:
    out.print(f"erasure [bold]{erasure.erasure_id}[/] of table [bold]{escape(erasure.table)}[/] was asked for")
    print_note(f"see how far it is: icedb erasure list {erasure.table} {erasure.erasure_id}")


def _follow(run: Run, erasure: Erasure) -> Erasure:
    """Look at an erasure until it has ended; say what it waits for."""
    clock = run.clock
    looked_ms = None
    said, waits_for = "", ""
    while not erasure.has_ended:
        now_ms = clock.monotonic_ms()
        if looked_ms is None or now_ms - looked_ms >= LOOK_MS:  # it reads the log
            waits_for, looked_ms = _waits_for(run, erasure), now_ms
            run.wake(MERGE_ERASE, erasure.table)
        if waits_for != said:
            print_note(waits_for)
            said = waits_for
        clock.sleep_ms(POLL_MS)
        erasure = read_erasure(run.place(erasure.table), erasure.erasure_id)
    return erasure


def _waits_for(run: Run, erasure: Erasure) -> str:
    if erasure.has_ended:
        return "nothing: it has ended"
    if erasure.state == "requested":
        staged_count = count_staged_until(run.place(erasure.table), erasure.requested_ms + STORE_RESOLUTION_MS)
        if staged_count:
            return f"{format_count(staged_count)} accepted batches have to be flushed first"
        return "a merge worker has to delete the rows"
    table = run.open(erasure.table)
    view = table.read_log()
    left = named_paths(view.files).intersection(erasure.dead)
    if left:
        kept = "".join(f"; {_describe_kept(each, erasure.table)}" for each in _find_kept(table, view, left))
        return f"the janitor has to delete {format_count(len(left))} of {format_count(len(erasure.dead))} objects{kept}"
    if erasure.unnamed:
        config = table.config
        due_ms = (erasure.checked_ms or erasure.deleted_ms or 0) + config.orphan_age_ms + config.data_grace_ms
        return (
            f"{format_count(len(erasure.unnamed))} objects that no log file named have to be committed, or deleted by "
            f"the janitor: about {format_time(due_ms)} (see icedb orphans {erasure.table})"
        )
    return "a merge worker has to look whether all is gone"


def _find_kept(table: Table, view: LogView, left: Collection[str]) -> tuple[Kept, ...]:
    """Return what keeps dead objects: what outlasts the grace period is said at once, so that a person can end it."""
    waiting = {each.path: each for each in vacuum_table(table, dry_run=True).waiting if each.path in left}
    deaths = [(path, death) for path, death in find_data_deaths(view).items() if path in left]
    holds = read_holds(table, view=view, config=table.config)
    return group_waiting((waiting | holds.guard_data(deaths, grace_ms=0, now_ms=view.store_now_ms)).values())


def _describe_kept(kept: Kept, table: str) -> str:
    """Say what keeps dead objects, and what a person can do about it."""
    until = "" if kept.last_ms is None or kept.is_open else f" until {format_time(kept.last_ms)}"
    holder = f" {kept.held_by}" if kept.held_by else ""
    ways_out = {
        "tag": f": icedb tag delete {table} {kept.held_by}",
    }
    return f"{kept.guard}{holder} keeps {format_count(kept.count)}{until}{ways_out.get(kept.guard, '')}"


def _warn_of_tags(run: Run, table: str) -> None:
    """Say before anything is asked for that tags keep erased rows readable."""
    names = sorted({tag.name for tag in find_lasting(list_tags(run.place(table)))})
    if names:
        err.print(
            f"[yellow]warning:[/] table {escape(table)} has tags ({escape(', '.join(names))}): what they tagged stays "
            "readable, and the erasure is not complete, until they end",
            soft_wrap=True,
        )


def _show_one(erasure: Erasure, waits_for: str) -> None:
    bound = "" if erasure.is_row_count_exact else "at least "
    print_pairs(
        {
            "erasure": erasure.erasure_id,
            "table": erasure.table,
            "state": erasure.state,
            "condition": erasure.condition,
            "asked by": erasure.requested_by or "-",
            "note": erasure.note or "-",
            "asked for": format_time(erasure.requested_ms),
            "rows deleted": format_time(erasure.deleted_ms) if erasure.deleted_ms else "-",
            "complete": (
                format_time(erasure.completed_ms) if erasure.state == "complete" and erasure.completed_ms else "-"
            ),
            "rows removed": f"{bound}{format_count(erasure.row_count)}",
            "objects": f"{format_count(len(erasure.objects))} {'gone' if erasure.has_ended else 'have to go'}",
            "waits for": waits_for,
            "refused": erasure.refusal or None,
        }
    )
    for key in erasure.objects[:SHOWN_OBJECTS]:
        out.print(escape(key), soft_wrap=True)
    if len(erasure.objects) > SHOWN_OBJECTS:
        print_note(f"{format_count(len(erasure.objects) - SHOWN_OBJECTS)} more objects: -o json has all")
    _show_not_covered(erasure)


def _show_not_covered(erasure: Erasure) -> None:
    left = erasure.not_covered
    for name, text in _NOT_COVERED.items():
        objects: NamedObjects = getattr(left, name)
        if objects.count:
            first = ", ".join(objects.names[:3])
            err.print(f"[yellow]not covered:[/] {format_count(objects.count)} {text}: {escape(first)}", soft_wrap=True)
    if left.view_of:
        err.print(f"[yellow]not covered:[/] this table is fed by {escape(left.view_of)}; erase there first")


def _to_json(erasure: Erasure) -> dict[str, Any]:
    """Return a certificate without its objects: for lists."""
    whole = certificate(erasure)
    return {name: value for name, value in whole.items() if name not in ("objects", "proves", "limits")} | {
        "object_count": len(erasure.objects),
    }


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARS else f"{line[: SHOWN_CHARS - 1]}…"
