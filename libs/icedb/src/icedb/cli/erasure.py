"""``icedb erase`` and ``icedb erasure``: rows that have to be gone, and the proof that they are."""

from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer
from icedb_log.clean.guards import STORE_RESOLUTION_MS
from icedb_log.clean.pins import list_pins
from icedb_log.erasure.erasure_scan import count_staged_until, find_pin_holds
from icedb_log.erasure.erasures import (
    Erasure,
    NamedObjects,
    certificate,
    create_erasure,
    list_erasures,
    read_erasure,
    renew_condition,
)
from icedb_log.names import MERGE_ERASE
from icedb_log.table.table_config import TableConfig
from icedb_log.units import parse_duration
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
from icedb.cli.runner import INVALID, Run, TableName, TimedOut, YesFlag, command, confirm, flag, option

POLL_MS: Final = 3000
WAKE_MS: Final = 30_000
SHOWN_OBJECTS: Final = 20
"""Objects that are shown to people; ``--json`` has all."""
SHOWN_CHARS: Final = 60

app: Final = typer.Typer(name="erasure", no_args_is_help=True, help="Look at erasures and their certificates.")

ErasureId = Annotated[str, typer.Argument(metavar="ID", help="Id of the erasure, as `icedb erase` printed it.")]

_NOT_COVERED: Final = {
    "quarantine": "batches in quarantine",
    "unknown_staged": "objects in staging that are no batches",
    "unknown_data": "objects among the data files that are none",
    "import_sources": "sources that were imported from",
    "views": "tables that are fed by this one",
    "late": "data files with such rows that came after the request",
}


@command(asks=True)
def erase(
    run: Run,
    *,
    table: TableName,
    where: str = option("--where", "SQL condition: rows for which it is true are erased.", ...),
    dry_run: bool = flag("--dry-run", "Only say what would be removed now."),
    yes: YesFlag = False,
    note: str = option("--note", "Why, for the certificate; nothing personal.", ""),
    requested_by: str = option("--by", "Who asks, for the certificate.", ""),
    check_timeout: str = option("--check-timeout", "How long a worker may take to say what would be removed.", "10m"),
    renew: str | None = option(
        "--renew", "Give this open erasure of an earlier release its condition anew.", metavar="ID"
    ),
    wait: bool = flag("--wait", "Wait until it is complete; takes the grace period."),
    timeout: str = option("--timeout", "How long to wait at most.", "2d"),
) -> None:
    """Erase rows for good, and prove it: rewrite, wait for every object that held them to be deleted, certify.

    A merge worker first says what would be removed. Then the request is written; workers carry it on by themselves.

    Example: icedb erase events --where "user_id = 'x'" --dry-run
    """
    check_ms = parse_duration(check_timeout, option="--check-timeout")
    wait_ms = parse_duration(timeout, option="--timeout")
    run.client.table_config(table)
    found = _preview(run, table, where, timeout_ms=check_ms)
    if dry_run:
        figures = ("rows", "files", "bytes", "files_counted", "partitions")
        run.answer(
            {"table": table, "dry_run": True, **{name: found.get(name) for name in figures}},
            lambda: out.print(f"would erase {_describe(found)} of table [bold]{escape(table)}[/]"),
        )
    _warn_of_pins(run, table)
    if dry_run:
        return
    if not yes:
        question = f"Erase {_describe(found)} of table {table} for good?"
        confirm(question, unasked="give --yes to erase for good", declined="nothing was erased")
    place = run.place(table)
    if renew is not None:
        erasure = renew_condition(place, renew, condition=where)
    else:
        erasure = create_erasure(place, condition=where, clock=run.clock, requested_by=requested_by, note=note)
    is_woken = run.wake(MERGE_ERASE, table)
    if not wait:
        run.answer({**_to_json(erasure), "woken": is_woken}, lambda: _show_asked(erasure))
        return
    print_note(f"erasure {erasure.erasure_id} of table {table} was asked for")
    erasure = _wait(run, erasure, timeout_ms=wait_ms)
    run.answer(certificate(erasure), lambda: _show_one(erasure, "nothing: it has ended"))
    if erasure.state == "refused":
        print_error(f"erasure {erasure.erasure_id} of table {erasure.table} is refused: {erasure.refusal}")
        raise typer.Exit(INVALID)


@app.command("list")
@command()
def list_of_table(
    run: Run,
    *,
    table: TableName,
    limit: int = option("--limit", "How many, newest first.", 50, min=1, max=10_000),
) -> None:
    """List the erasures of a table, newest first.

    Example: icedb erasure list events
    """
    run.client.table_config(table)
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
                len(erasure.targets),
                _shorten(erasure.condition),
            )
            for erasure in found
        ),
    )


@app.command("show")
@command()
def show_one(run: Run, *, table: TableName, erasure_id: ErasureId) -> None:
    """Show one erasure: how far it is, or its certificate. With --json: the whole certificate.

    Example: icedb erasure show events 019b7d3c-0000-7000-8000-000000000001 --json
    """
    run.client.table_config(table)
    erasure = read_erasure(run.place(table), erasure_id)
    waits_for = _waits_for(run, erasure)
    run.answer(certificate(erasure), lambda: _show_one(erasure, waits_for))


def _preview(run: Run, table: str, condition: str, *, timeout_ms: int) -> dict[str, Any]:
    what = f"nothing was erased from table {table}"
    return run.task(MERGE_ERASE, table, {"preview": condition}).ask_first(
        timeout_ms,
        late=f"nothing was erased: no merge worker said within {timeout_ms / 1000:g} s what would be removed from "
        f"table {table}. Start one and try again, or raise --check-timeout",
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
    print_note(f"see how far it is: icedb erasure show {erasure.table} {erasure.erasure_id}")


def _wait(run: Run, erasure: Erasure, *, timeout_ms: int) -> Erasure:
    """Look at an erasure until it has ended; say what it waits for."""
    clock = run.clock
    started_ms = woken_ms = clock.monotonic_ms()
    said = ""
    while not erasure.is_closed:
        now_ms = clock.monotonic_ms()
        if now_ms - started_ms >= timeout_ms:
            raise TimedOut(
                f"erasure {erasure.erasure_id} of table {erasure.table} is not complete after {timeout_ms / 1000:g} s: "
                f"{_waits_for(run, erasure)}. It goes on by itself; see `icedb erasure show`"
            )
        if now_ms - woken_ms >= WAKE_MS:
            run.wake(MERGE_ERASE, erasure.table)
            woken_ms = now_ms
        waits_for = _waits_for(run, erasure)
        if waits_for != said:
            print_note(waits_for)
            said = waits_for
        clock.sleep_ms(min(POLL_MS, timeout_ms))
        erasure = read_erasure(run.place(erasure.table), erasure.erasure_id)
    return erasure


def _waits_for(run: Run, erasure: Erasure) -> str:
    if erasure.is_closed:
        return "nothing: it has ended"
    if erasure.state == "requested":
        staged_count = count_staged_until(run.place(erasure.table), erasure.requested_ms + STORE_RESOLUTION_MS)
        if staged_count:
            return f"{format_count(staged_count)} accepted batches have to be flushed first"
        return "a merge worker has to delete the rows"
    config = run.client.table_config(erasure.table)
    versions = ""
    if config.keep_versions:
        versions = (
            f"; the table keeps the newest {config.keep_versions} versions, and what is part of them: wait for so many "
            f"commits, or icedb table alter {erasure.table} --keep-versions 0"
        )
    left = erasure.open_targets
    if not left:
        return f"the janitor has to remove the last traces from the log{versions}"
    due_ms = max((target.due_ms or 0 for target in left), default=0)
    when = f", not before {format_time(due_ms)}" if due_ms else ""
    return (
        f"the janitor has to delete {format_count(len(left))} of {format_count(len(erasure.targets))} objects{when}"
        f"{_describe_pins(run, erasure, config)}{versions}"
    )


def _describe_pins(run: Run, erasure: Erasure, config: TableConfig) -> str:
    left = [target.key for target in erasure.open_targets]
    return "".join(
        f"; pin {pin.name} holds {format_count(count)} of them"
        + (f" until {format_time(pin.until_ms)}" if pin.until_ms else "")
        + f": icedb unpin {erasure.table} {pin.name}"
        for pin, count in find_pin_holds(run.place(erasure.table), left, config=config)
    )


def _warn_of_pins(run: Run, table: str) -> None:
    """Say before anything is asked for that pins keep erased rows readable."""
    listed = list_pins(run.place(table))
    names = sorted({pin.name for pin in listed.lasting})
    if names:
        err.print(
            f"[yellow]warning:[/] table {escape(table)} has pins ({escape(', '.join(names))}): what they pinned stays "
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
            "objects": f"{format_count(len(erasure.targets))}, {format_count(len(erasure.open_targets))} still there",
            "waits for": waits_for,
            "refused": erasure.refusal or None,
        }
    )
    if erasure.targets:
        print_table(
            ("object", ">size", ">rows", "reason", "gone", "known by"),
            (
                (
                    target.key,
                    format_bytes(target.size_bytes) if target.size_bytes is not None else "?",
                    format_count(target.row_count),
                    target.reason,
                    format_time(target.gone_ms) if target.gone_ms else None,
                    target.known_by or None,
                )
                for target in erasure.targets[:SHOWN_OBJECTS]
            ),
        )
        if len(erasure.targets) > SHOWN_OBJECTS:
            print_note(f"{format_count(len(erasure.targets) - SHOWN_OBJECTS)} more objects: --json has all")
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
        "object_count": len(erasure.targets),
        "open_object_count": len(erasure.open_targets),
    }


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARS else f"{line[: SHOWN_CHARS - 1]}…"
