"""``icedb rebuild``: a new log from the footers of the data files, if the log was lost or damaged (docs/repair.md)."""

import sys
from enum import StrEnum
from typing import Annotated, Final

import typer
from icedb_log.clock import SystemClock
from icedb_log.errors import InvalidRequest
from icedb_log.repair.rebuild import RebuildOptions, RebuildResult, rebuild_table, require_decided
from icedb_log.repair.rebuild_record import Choice, Note, RebuildReport
from rich.markup import escape

from icedb_client.cli.exits import FAILED
from icedb_client.cli.output import JsonFlag, err, format_bytes, format_count, out, print_json, print_note
from icedb_client.cli.session import open_client
from icedb_client.client import Client
from icedb_client.footers import ParquetFooterReader

OWNER: Final = "icedb rebuild"
SHOWN_NAMES: Final = 5
"""Files of one kind that people see; ``--json`` and the record have all."""


class Undecided(StrEnum):
    """How to decide what nobody can tell."""

    LIKELY = "likely"
    INPUTS = "keep-inputs"
    OUTPUTS = "keep-outputs"


def rebuild(
    *,
    context: typer.Context,
    table: Annotated[str, typer.Argument(help="Name of the table.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    undecided: Annotated[
        Undecided | None,
        typer.Option(
            "--undecided",
            help="What nobody can tell: as is likely; the files as they were before such a commit; or those after it.",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Although nothing is certainly wrong: log files were lost, you know it.")
    ] = False,
    take_foreign: Annotated[
        bool, typer.Option("--take-foreign", help="Take files that IceDB did not write and no import knows.")
    ] = False,
    assume_fed: Annotated[
        bool, typer.Option("--assume-fed", help="Of a view: count all that its source has as taken, if nobody knows.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Make a new log from the footers of the data files, after the log was lost or damaged. A sound log is left alone.

    Prints what was found and what could not be decided, and asks before it writes. The report stays in the table, below
    _icedb/rebuilds/, and damaged log files below _icedb/damaged/. Run `icedb fsck TABLE --deep` afterwards.

    Example: icedb rebuild events --dry-run
    """
    asked = RebuildOptions(
        is_dry_run=True,
        is_forced=force,
        decision=None if undecided is None else undecided.value,
        takes_foreign=take_foreign,
        assumes_fed=assume_fed,
    )
    with open_client(context, table=table) as client:
        looked = _run(client, table, asked)
        found = looked.report
        has_work = bool(found.damage) or force
        is_done = dry_run or not (has_work or looked.is_unfinished)
        if is_done or not as_json:
            _print(found, has_work=has_work, as_json=as_json)
        if is_done:
            return
        if has_work and undecided is None:
            require_decided(found)
        if has_work and not yes:
            _confirm(found, as_json=as_json)
        options = RebuildOptions(
            is_forced=force,
            decision=asked.decision,
            takes_foreign=take_foreign,
            assumes_fed=assume_fed,
            digest=found.digest if has_work else None,
        )
        result = _run(client, table, options)
    if as_json:
        print_json({**_to_json(result.report), "committed": result.has_committed, "resumed": result.is_resumed})
    elif result.has_committed or result.is_resumed:
        _print_end(result)


def _run(client: Client, table: str, options: RebuildOptions) -> RebuildResult:
    store = client.warehouse.store
    return rebuild_table(
        store,
        client.warehouse.table(table),
        clock=SystemClock(),
        footers=ParquetFooterReader(store),
        owner=OWNER,
        options=options,
    )


def _confirm(found: RebuildReport, *, as_json: bool) -> None:
    if as_json or not sys.stdin.isatty():
        raise InvalidRequest("nobody can be asked here: give --yes to make a new log, or --dry-run to see what it says")
    question = f"Make a new log of table {found.table} with {_count(found.live_files, 'data file')}?"
    if not typer.confirm(question, err=True):
        print_note("nothing was written")
        raise typer.Exit(FAILED)


def _to_json(report: RebuildReport) -> dict[str, object]:
    return report.model_dump(mode="json")


def _print(report: RebuildReport, *, has_work: bool, as_json: bool) -> None:
    if as_json:
        print_json({**_to_json(report), "committed": False, "resumed": False})
        return
    name = escape(report.table)
    if not has_work:
        out.print(
            f"[bold]{name}[/]: nothing is certainly wrong with the log ({_count(report.whole_log_files, 'log file')}); "
            "there is nothing to rebuild. If you know that log files were lost: --force",
            soft_wrap=True,
        )
        return
    for problem in report.damage:
        out.print(f"[bold red]damaged[/] {escape(problem)}", soft_wrap=True)
    out.print(
        f"[bold]{name}[/]: live: {_count(report.live_files, 'data file')} with {_count(report.live_rows, 'row')} "
        f"({format_bytes(report.live_bytes)}); dead: {_count(report.dead_files, 'data file')}",
        soft_wrap=True,
    )
    for choice in report.choices:
        _print_choice(choice)
    for note in report.notes:
        _print_note(note)
    for entry in report.left_out[:SHOWN_NAMES]:
        kept = "; the orphan sweep leaves it alone" if entry.is_held else ""
        rows = "" if entry.row_count is None else f", {_count(entry.row_count, 'row')}"
        out.print(f"[dim]left out[/] {escape(entry.key)}{rows}: {escape(entry.reason)}{kept}", soft_wrap=True)
    if len(report.left_out) > SHOWN_NAMES:
        out.print(f"  … and {format_count(len(report.left_out) - SHOWN_NAMES)} more (--json)", soft_wrap=True)


def _print_choice(choice: Choice) -> None:
    rows = "unknown" if choice.input_rows is None else format_count(choice.input_rows)
    sides = f"{rows} rows in {len(choice.inputs)} files before, {format_count(choice.output_rows)} rows after"
    if choice.what == "leftover":
        sides = f"{rows} rows of {choice.inputs[0]}; the other file is {choice.outputs[0]}"
    out.print(
        f"[yellow]undecided[/] {escape(choice.kind)} {escape(choice.commit_id)}: {escape(choice.why)}", soft_wrap=True
    )
    out.print(f"  {escape(sides)}; likely: {choice.likely}, taken: {choice.decided}", soft_wrap=True)


def _print_note(note: Note) -> None:
    about = f" ({_count(note.file_count, 'file')}, {_count(note.row_count, 'row')})" if note.file_count else ""
    out.print(f"[bold]note[/] {note.kind}{about}: {escape(note.text)}", soft_wrap=True)
    for name in note.files[:SHOWN_NAMES]:
        out.print(f"  {escape(name)}", soft_wrap=True)
    if note.file_count > SHOWN_NAMES:
        out.print(f"  … and {format_count(note.file_count - SHOWN_NAMES)} more", soft_wrap=True)


def _print_end(result: RebuildResult) -> None:
    report = result.report
    what = "rebuilt" if result.has_committed else "was rebuilt by an earlier run that is finished now"
    err.print(
        f"[bold green]✓[/] the log of {escape(report.table)} is {what}: {escape(report.log_key)}; report: "
        f"{escape(report.log_key.rpartition('/_log/')[0])}/_icedb/rebuilds/{report.rebuild_id}.json",
        soft_wrap=True,
    )


def _count(number: int, what: str) -> str:
    return f"{format_count(number)} {what}{'' if number == 1 else 's'}"
