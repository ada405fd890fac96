"""``icedb fsck``: is a table sound? Reads only; see docs/repair.md."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Final

import typer
from icedb_log.clock import SystemClock
from icedb_log.errors import InvalidRequest
from icedb_log.repair.fsck import FsckOptions, fsck_table
from icedb_log.repair.fsck_codes import CODES, SEVERITIES, Severity
from icedb_log.repair.fsck_objects import Progress as ShowProgress
from icedb_log.repair.fsck_report import REPORT_VERSION, Counted, FsckReport
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from icedb_client.cli.exits import FAILED
from icedb_client.cli.output import JsonFlag, err, format_bytes, format_count, out, print_json, print_note
from icedb_client.cli.session import open_client
from icedb_client.footers import ParquetFooterReader
from icedb_client.pages import ParquetPageReader

SHOWN_KEYS: Final = 5
"""Findings of one code that a person sees; the JSON has more."""

_STYLES: Final[dict[Severity, str]] = {"error": "bold red", "warning": "yellow", "note": "dim"}


def fsck(
    *,
    context: typer.Context,
    table: Annotated[str | None, typer.Argument(help="Name of a table.")] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Also read the footer of every live data file: rows, types, statistics.")
    ] = False,
    sample: Annotated[
        int | None, typer.Option("--sample", min=1, help="Only so many data files, evenly spread; implies --deep.")
    ] = None,
    pages: Annotated[
        bool, typer.Option("--pages", help="Also read all their bytes, against the checksums; implies --deep.")
    ] = False,
    check_all: Annotated[bool, typer.Option("--all", help="Check every table.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Check whether a table is sound: its log, its data files, everything beside them. Changes nothing.

    Exit code 0 without errors (warnings and notes are allowed), 1 with errors. Each finding has a code that
    docs/repair.md explains.

    Example: icedb fsck events --deep
    """
    if (table is None) != check_all:
        raise InvalidRequest("name one table, or give --all: icedb fsck TABLE")
    with open_client(context, table=table) as client:
        warehouse = client.warehouse
        options = FsckOptions(
            footers=ParquetFooterReader(warehouse.store) if deep or pages or sample is not None else None,
            pages=ParquetPageReader(warehouse.store) if pages else None,
            sample=sample,
        )
        names = warehouse.list_tables() if table is None else (table,)
        reports: list[FsckReport] = []
        for name in names:
            with _show_progress(name, is_shown=not as_json) as progress:
                report = fsck_table(
                    warehouse.store, warehouse.table(name), clock=SystemClock(), options=options, progress=progress
                )
            reports.append(report)
            if not as_json:
                print_report(report)
    is_sound = all(report.is_sound for report in reports)
    if as_json:
        tables = [report.to_json() for report in reports]
        print_json({"version": REPORT_VERSION, "sound": is_sound, "tables": tables})
    elif not reports:
        print_note("no tables yet; create one with `icedb table create`")
    if not is_sound:
        raise typer.Exit(FAILED)


def print_report(report: FsckReport) -> None:
    """Print what a person wants to know: the verdict, then each kind of finding, the worst first, with its remedy."""
    figures = report.figures
    verdict = "[bold red]damaged[/]" if not report.is_sound else "[bold green]sound[/]"
    if report.is_sound and report.count("warning"):
        verdict = "[yellow]sound, with warnings[/]"
    looked = [
        _count(figures.get("live_files", 0), "data file"),
        _count(figures.get("live_rows", 0), "row"),
        format_bytes(figures.get("live_bytes", 0)),
        _count(figures.get("log_files", 0), "log file"),
    ]
    if report.is_deep:
        looked.append(f"{_count(figures.get('footers', 0), 'footer')} read")
    if figures.get("pages"):
        looked.append(f"{_count(figures['pages'], 'page')} read")
    out.print(f"[bold]{escape(report.table)}[/]: {verdict} ({', '.join(looked)})", soft_wrap=True)
    for counted in report.counts:
        _print_code(report, counted)
    if report.counts:
        words = ", ".join(_count(report.count(severity), severity) for severity in SEVERITIES)
        out.print(f"\n{words}; docs/repair.md explains each code", soft_wrap=True)


def _count(number: int, what: str) -> str:
    return f"{format_count(number)} {what}{'' if number == 1 else 's'}"


def _print_code(report: FsckReport, counted: Counted) -> None:
    code, style = CODES[counted.code], _STYLES[counted.severity]
    times = "" if counted.count == 1 else f" × {format_count(counted.count)}"  # noqa: RUF001 - a sign for people
    out.print(f"\n[{style}]{counted.severity}[/] [bold]{counted.code}[/]{times}: {code.title}", soft_wrap=True)
    found = [each for each in report.findings if (each.code, each.severity) == (counted.code, counted.severity)]
    for each in found[:SHOWN_KEYS]:
        line = "" if each.line is None else f", line {each.line}"
        out.print(f"  {escape(each.key)}{line}", soft_wrap=True)
        out.print(f"    {escape(each.message)}", soft_wrap=True)
    if counted.count > SHOWN_KEYS:
        out.print(f"  … and {format_count(counted.count - SHOWN_KEYS)} more (--json lists up to 100)", soft_wrap=True)
    if counted.severity != "note":
        remedy = code.remedy.replace("TABLE", report.table)
        out.print(f"  [bold]→[/] {escape(remedy)} [dim]({code.rule})[/]", soft_wrap=True)


@contextmanager
def _show_progress(table: str, *, is_shown: bool) -> Iterator[ShowProgress]:
    """Show on a terminal what is being done; elsewhere nothing."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=err,
        disable=not (is_shown and err.is_terminal),
        transient=True,
    )
    with bar:
        task = bar.add_task(escape(table), total=None)

        def show(stage: str, done: int, total: int | None) -> None:
            bar.update(task, description=f"{escape(table)}: {stage}", completed=done, total=total)

        yield show
