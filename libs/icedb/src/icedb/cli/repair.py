"""``icedb fsck``: is a table sound? ``icedb rebuild``: a new log from footers, if it is not. See docs/repair.md."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal

import typer
from icedb_log.errors import InvalidRequest
from icedb_log.parquet.file_reads import ParquetFooterReader, ParquetPageReader
from icedb_log.parquet.footer import Footer, FooterReader, UnreadableFooter
from icedb_log.repair.fsck import FsckOptions, fsck_table
from icedb_log.repair.fsck_findings import CODES, REPORT_VERSION, SEVERITIES, Counted, FsckReport, Severity
from icedb_log.repair.rebuild import RebuildResult, rebuild_table, require_decided
from icedb_log.repair.rebuild_plan import RebuildOptions
from icedb_log.repair.rebuild_record import Choice, Note, RebuildReport
from icedb_log.store.object_store import ObjectInfo
from rich.markup import escape

from icedb.cli.output import (
    Show,
    count_of,
    err,
    format_bytes,
    format_count,
    print_json,
    print_line,
    print_note,
    progress,
)
from icedb.cli.runner import (
    FAILED,
    Run,
    TableName,
    YesFlag,
    argument,
    command,
    confirm,
    describe_no_tables,
    flag,
    option,
)

OWNER: Final = "icedb rebuild"
SHOWN_NAMES: Final = 5
"""Files of one kind that people see; ``--json`` and the record have all."""
SHOWN_KEYS: Final = 5
"""Findings of one code that a person sees; the JSON has more."""

_STYLES: Final[dict[Severity, str]] = {"error": "bold red", "warning": "yellow", "note": "dim"}


@command()
def fsck(
    run: Run,
    *,
    table: str | None = argument("Name of a table.", None),
    deep: bool = flag("--deep", "Also read the footer of every live data file: rows, types, statistics."),
    sample: int | None = option("--sample", "Only so many data files, evenly spread; implies --deep.", min=1),
    pages: bool = flag("--pages", "Also read all their bytes, against the checksums; implies --deep."),
    check_all: bool = flag("--all", "Check every table."),
) -> None:
    """Check whether a table is sound: its log, its data files, everything beside them. Changes nothing.

    Exit code 0 without errors (warnings and notes are allowed), 1 with errors. Each finding has a code that
    docs/repair.md explains.

    Example: icedb fsck events --deep
    """
    if (table is None) != check_all:
        raise InvalidRequest("name one table, or give --all: icedb fsck TABLE")
    warehouse = run.client.warehouse
    options = FsckOptions(
        footers=ParquetFooterReader(warehouse.store) if deep or pages or sample is not None else None,
        pages=ParquetPageReader(warehouse.store) if pages else None,
        sample=sample,
    )
    reports: list[FsckReport] = []
    for name in warehouse.list_tables() if table is None else (table,):
        with progress(name, is_quiet=run.as_json) as show:
            stages = partial(_show_stage, show, name)
            report = fsck_table(warehouse.table(name), clock=run.clock, options=options, progress=stages)
        reports.append(report)
        if not run.as_json:
            _show_report(report)
    is_sound = all(report.is_sound for report in reports)
    if run.as_json:
        tables = [report.to_json() for report in reports]
        print_json({"version": REPORT_VERSION, "sound": is_sound, "tables": tables})
    elif not reports:
        print_note(describe_no_tables(run.client))
    if not is_sound:
        raise typer.Exit(FAILED)


def _show_report(report: FsckReport) -> None:
    """Print what a person wants to know: the verdict, then each kind of finding, the worst first, with its remedy."""
    figures = report.figures
    verdict = "[bold red]damaged[/]" if not report.is_sound else "[bold green]sound[/]"
    if report.is_sound and report.count("warning"):
        verdict = "[yellow]sound, with warnings[/]"
    looked = [
        count_of(figures.get("live_files", 0), "data file"),
        count_of(figures.get("live_rows", 0), "row"),
        format_bytes(figures.get("live_bytes", 0)),
        count_of(figures.get("log_files", 0), "log file"),
    ]
    if report.is_deep:
        looked.append(f"{count_of(figures.get('footers', 0), 'footer')} read")
    if figures.get("pages"):
        looked.append(f"{count_of(figures['pages'], 'page')} read")
    print_line(f"[bold]{escape(report.table)}[/]: {verdict} ({', '.join(looked)})")
    for counted in report.counts:
        _show_code(report, counted)
    if report.counts:
        words = ", ".join(count_of(report.count(severity), severity) for severity in SEVERITIES)
        print_line(f"\n{words}; docs/repair.md explains each code")


def _show_code(report: FsckReport, counted: Counted) -> None:
    code, style = CODES[counted.code], _STYLES[counted.severity]
    times = "" if counted.count == 1 else f" × {format_count(counted.count)}"  # noqa: RUF001 - a sign for people
    print_line(f"\n[{style}]{counted.severity}[/] [bold]{counted.code}[/]{times}: {code.title}")
    found = [each for each in report.findings if (each.code, each.severity) == (counted.code, counted.severity)]
    for each in found[:SHOWN_KEYS]:
        line = "" if each.line is None else f", line {each.line}"
        print_line(f"  {escape(each.key)}{line}")
        print_line(f"    {escape(each.message)}")
    if counted.count > SHOWN_KEYS:
        print_line(f"  … and {format_count(counted.count - SHOWN_KEYS)} more (--json lists up to 100)")
    if counted.severity != "note":
        remedy = code.remedy.replace("TABLE", report.table)
        print_line(f"  [bold]→[/] {escape(remedy)} [dim]({code.rule})[/]")


def _show_stage(show: Show, table: str, stage: str, done: int, total: int | None) -> None:
    show(done, total, f"{table}: {stage}")


@dataclass(frozen=True, slots=True)
class _CountedFooters:
    """Reads footers, and shows how many.

    Attributes:
        reader: Reads them.
        show: Takes how many are read, and of how many.
    """

    reader: FooterReader
    show: Show

    def read_footers(
        self, infos: Iterable[ObjectInfo], *, bounds_of: Iterable[str] = ()
    ) -> Iterator[Footer | UnreadableFooter]:
        """See :class:`~icedb_log.parquet.footer.FooterReader`."""
        asked = list(infos)
        for number, footer in enumerate(self.reader.read_footers(asked, bounds_of=bounds_of), 1):
            self.show(number, len(asked))
            yield footer


@command()
def rebuild(
    run: Run,
    *,
    table: TableName,
    dry_run: bool = flag("--dry-run", "Only say what would be done."),
    undecided: Literal["likely", "keep-inputs", "keep-outputs"] | None = option(
        "--undecided",
        "What nobody can tell: as is likely; the files as they were before such a commit; or those after it.",
    ),
    force: bool = flag("--force", "Although nothing is certainly wrong: log files were lost, you know it."),
    take_foreign: bool = flag("--take-foreign", "Take files that IceDB did not write and no import knows."),
    assume_fed: bool = flag("--assume-fed", "Of a view: count all that its source has as taken, if nobody knows."),
    yes: YesFlag = False,
) -> None:
    """Make a new log from the footers of the data files, after the log was lost or damaged. A sound log is left alone.

    Prints what was found and what could not be decided, and asks before it writes. The report stays in the table, below
    _icedb/rebuilds/, and damaged log files below _icedb/damaged/. Run `icedb fsck TABLE --deep` afterwards.

    Example: icedb rebuild events --dry-run
    """
    asked = RebuildOptions(is_forced=force, decision=undecided, takes_foreign=take_foreign, assumes_fed=assume_fed)
    footers = ParquetFooterReader(run.client.warehouse.store)

    def work(options: RebuildOptions) -> RebuildResult:
        with progress(f"{table}: reading footers", is_quiet=run.as_json) as show:
            counted = _CountedFooters(footers, show)
            return rebuild_table(run.open(table, owner=OWNER), footers=counted, options=options)

    looked = work(replace(asked, is_dry_run=True))
    found = looked.report
    has_work = bool(found.damage) or force
    is_done = dry_run or not (has_work or looked.is_unfinished)
    if is_done or not run.as_json:
        document = {**found.model_dump(mode="json"), "committed": False, "resumed": False}
        run.answer(document, lambda: _show_found(found, has_work=has_work))
    if is_done:
        return
    if has_work and undecided is None:
        require_decided(found)
    if has_work and not yes:
        confirm(
            f"Make a new log of table {found.table} with {count_of(found.live_files, 'data file')}?",
            unasked="give --yes to make a new log, or --dry-run to see what it says",
            declined="nothing was written",
            can_ask=not run.as_json,
        )
    result = work(replace(asked, digest=found.digest if has_work else None))
    document = {
        **result.report.model_dump(mode="json"),
        "committed": result.has_committed,
        "resumed": result.is_resumed,
    }
    run.answer(document, lambda: _show_end(result))


def _show_found(report: RebuildReport, *, has_work: bool) -> None:
    name = escape(report.table)
    if not has_work:
        print_line(
            f"[bold]{name}[/]: nothing is certainly wrong with the log "
            f"({count_of(report.whole_log_files, 'log file')}); "
            "there is nothing to rebuild. If you know that log files were lost: --force"
        )
        return
    for problem in report.damage:
        print_line(f"[bold red]damaged[/] {escape(problem)}")
    print_line(
        f"[bold]{name}[/]: live: {count_of(report.live_files, 'data file')} with {count_of(report.live_rows, 'row')} "
        f"({format_bytes(report.live_bytes)}); dead: {count_of(report.dead_files, 'data file')}"
    )
    for choice in report.choices:
        _show_choice(choice)
    for note in report.notes:
        _show_note(note)
    for entry in report.left_out[:SHOWN_NAMES]:
        kept = "; the orphan sweep leaves it alone" if entry.is_held else ""
        rows = "" if entry.row_count is None else f", {count_of(entry.row_count, 'row')}"
        print_line(f"[dim]left out[/] {escape(entry.key)}{rows}: {escape(entry.reason)}{kept}")
    if len(report.left_out) > SHOWN_NAMES:
        print_line(f"  … and {format_count(len(report.left_out) - SHOWN_NAMES)} more (--json)")


def _show_choice(choice: Choice) -> None:
    rows = "unknown" if choice.input_rows is None else format_count(choice.input_rows)
    sides = f"{rows} rows in {len(choice.inputs)} files before, {format_count(choice.output_rows)} rows after"
    if choice.what == "leftover":
        sides = f"{rows} rows of {choice.inputs[0]}; the other file is {choice.outputs[0]}"
    print_line(f"[yellow]undecided[/] {escape(choice.kind)} {escape(choice.commit_id)}: {escape(choice.why)}")
    print_line(f"  {escape(sides)}; likely: {choice.likely}, taken: {choice.decided}")


def _show_note(note: Note) -> None:
    about = f" ({count_of(note.file_count, 'file')}, {count_of(note.row_count, 'row')})" if note.file_count else ""
    print_line(f"[bold]note[/] {note.kind}{about}: {escape(note.text)}")
    for name in note.files[:SHOWN_NAMES]:
        print_line(f"  {escape(name)}")
    if note.file_count > SHOWN_NAMES:
        print_line(f"  … and {format_count(note.file_count - SHOWN_NAMES)} more")


def _show_end(result: RebuildResult) -> None:
    if not (result.has_committed or result.is_resumed):
        return
    report = result.report
    what = "rebuilt" if result.has_committed else "was rebuilt by an earlier run that is finished now"
    err.print(
        f"[bold green]✓[/] the log of {escape(report.table)} is {what}: {escape(report.log_key)}; report: "
        f"{escape(report.log_key.rpartition('/_log/')[0])}/_icedb/rebuilds/{report.rebuild_id}.json",
        soft_wrap=True,
    )
