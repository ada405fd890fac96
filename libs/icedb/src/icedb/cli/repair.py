"""``icedb fsck``: is a table sound? ``icedb rebuild``: a new log from footers, if it is not. See docs/repair.md."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import typer
from icedb_log.errors import IceDBError, NotFound, crashes_told
from icedb_log.parquet.file_reads import ParquetFooterReader, ParquetPageReader
from icedb_log.parquet.footer import Footer, FooterReader, UnreadableFooter
from icedb_log.repair.fsck import FsckOptions, fsck_table
from icedb_log.repair.fsck_findings import CODES, REPORT_VERSION, SEVERITIES, Counted, Findings, FsckReport, Severity
from icedb_log.repair.rebuild import RebuildResult, has_work, rebuild_table, require_decided
from icedb_log.repair.rebuild_plan import Candidate, RebuildOptions, RebuildPlan
from icedb_log.store.object_store import ObjectInfo
from rich.markup import escape

from icedb.cli.output import (
    Show,
    count_of,
    err,
    format_bytes,
    format_count,
    format_span,
    print_json,
    print_line,
    print_note,
    print_table,
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
SHOWN_GROUPS: Final = 50
"""Lines of candidates that people see; ``-o json`` has every file."""
SHOWN_KEYS: Final = 5
"""Findings of one code that a person sees; the JSON has more."""

_STYLES: Final[dict[Severity, str]] = {"error": "bold red", "warning": "yellow", "note": "dim"}


@command()
def fsck(
    run: Run,
    *,
    table: str | None = argument("Name of a table; all tables by default.", None, metavar="[TABLE]"),
    deep: bool = flag("--deep", "Also read the footer of every live data file: rows, types, statistics."),
    sample: int | None = option("--sample", "Only this many data files, evenly spread; implies --deep.", min=1),
    pages: bool = flag("--pages", "Also read all their bytes, against the checksums; implies --deep."),
) -> None:
    """Check tables for damage: log, data files, all other objects. Changes nothing.

    Of all tables, one that cannot be read is named, and the others are checked. Exit code 0 without errors (warnings
    and notes are allowed), 1 with errors. docs/repair.md explains the code of each finding.
    """
    warehouse = run.client.warehouse
    options = FsckOptions(
        footers=ParquetFooterReader(warehouse.store) if deep or pages or sample is not None else None,
        pages=ParquetPageReader(warehouse.store) if pages else None,
        sample=sample,
    )
    reports: list[FsckReport] = []
    for name in warehouse.list_tables() if table is None else (table,):
        with progress(name, is_quiet=run.as_data) as show:
            stages = partial(_show_stage, show, name)
            check = partial(fsck_table, warehouse.table(name), clock=run.clock, options=options, progress=stages)
            report = check() if table is not None else _check_one_of_many(name, check, is_deep=options.is_deep)
        if report is None:
            continue
        reports.append(report)
        if not run.as_data:
            _show_report(report)
    is_sound = all(report.is_sound for report in reports)
    if run.as_data:
        tables = [report.to_json() for report in reports]
        print_json({"version": REPORT_VERSION, "sound": is_sound, "tables": tables})
    elif not reports:
        print_note(describe_no_tables(run.client))
    if not is_sound:
        raise typer.Exit(FAILED)


def _check_one_of_many(name: str, check: Callable[[], FsckReport], *, is_deep: bool) -> FsckReport | None:
    """Return a table's report, one that says why there is none, or ``None``: it was purged since it was listed."""
    try:
        with crashes_told(f"table {name}: its check"):
            return check()
    except NotFound:
        return None
    except IceDBError as error:
        found = Findings()
        found.add("not-checked:unread", "", problem=error)
        return found.report(name, is_deep=is_deep, figures={})


def _show_report(report: FsckReport) -> None:
    """Print what a person wants to know: the verdict, then each kind of finding, the worst first, with its remedy."""
    figures = report.figures
    verdict = "[bold red]damaged[/]" if not report.is_sound else "[bold green]sound[/]"
    if report.is_sound and report.count("warning"):
        verdict = "[yellow]sound, with warnings[/]"
    if not report.figures:
        verdict = "[bold red]not checked[/]"
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
        print_line(f"  … and {format_count(counted.count - SHOWN_KEYS)} more (-o json lists up to 100)")
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
    take: list[str] | None = option(
        "--take", "Data files that are live: a glob of paths below _data/, or of commit ids. Can be repeated."
    ),
    leave: list[str] | None = option(
        "--leave",
        "Data files that are not live, by such globs. It wins over --take. Can be repeated.",
    ),
    dry_run: bool = flag("--dry-run", "Show the plan; writes nothing."),
    force: bool = flag("--force", "Write a new log although the old one has no certain damage."),
    assume_fed: bool = flag("--assume-fed", "Count all commits of a view's source as taken, if its position is lost."),
    yes: YesFlag = False,
) -> None:
    """Write a new log after log files were lost or damaged. An undamaged log is not changed.

    What whole log files say counts. A data file that another one was made from is dead. The other data files that no
    log file names are listed with what their footers say, and you take them (--take) or leave them (--leave). Prints
    the plan, and asks before it writes. Damaged log files are kept below _icedb/damaged/.
    """
    asked = RebuildOptions(is_forced=force, take=tuple(take or ()), leave=tuple(leave or ()), assumes_fed=assume_fed)
    footers = ParquetFooterReader(run.client.warehouse.store)

    def work(options: RebuildOptions) -> RebuildResult:
        with progress(f"{table}: reading footers", is_quiet=run.as_data) as show:
            counted = _CountedFooters(footers, show)
            return rebuild_table(run.open(table, owner=OWNER), footers=counted, options=options)

    plan = work(replace(asked, is_dry_run=True)).plan
    is_done = dry_run or not has_work(plan, asked)
    if is_done or not run.as_data:
        run.answer(_document(plan), lambda: _show_plan(plan, is_work=has_work(plan, asked)))
    if is_done:
        return
    require_decided(plan)
    if not yes:
        confirm(
            f"Make a new log of table {plan.table} with {count_of(len(plan.live), 'data file')} and "
            f"{count_of(plan.live_rows + plan.rows_of('taken'), 'row')}?",
            unasked="give --yes to make a new log, or --dry-run to see what it says",
            declined="nothing was written",
            can_ask=not run.as_data,
        )
    result = work(replace(asked, digest=plan.digest))
    run.answer(_document(result.plan, log_key=result.log_key), lambda: _show_end(result))


def _document(plan: RebuildPlan, *, log_key: str = "") -> dict[str, Any]:
    return {**plan.to_json(), "committed": bool(log_key), "log_key": log_key}


def _show_plan(plan: RebuildPlan, *, is_work: bool) -> None:
    name = escape(plan.table)
    for problem in plan.damage:
        print_line(f"[bold red]damaged[/] {escape(problem)}")
    uncounted = f", {count_of(plan.uncounted_files, 'file')} not counted" if plan.uncounted_files else ""
    rows = [
        ("live, certain", plan.live_files, format_count(plan.live_rows) + uncounted),
        ("live, taken", len(plan.of("taken")), format_count(plan.rows_of("taken"))),
        ("waiting for --take or --leave", len(plan.of("waiting")), format_count(plan.rows_of("waiting"))),
        ("left", len(plan.of("left")), format_count(plan.rows_of("left"))),
        ("dead", plan.dead_files, format_count(plan.dead_rows)),
    ]
    print_line(f"[bold]{name}[/]: {count_of(plan.whole_log_files, 'whole log file')}")
    print_table(("data files", "files", "rows"), [(what, format_count(files), text) for what, files, text in rows])
    groups = _group(plan.candidates)
    if groups:
        print_line("\n[bold]No log file names these[/], one line for each commit, kind and partition:")
        print_table(_COLUMNS, [_show_group(group) for group in groups[:SHOWN_GROUPS]])
        if len(groups) > SHOWN_GROUPS:
            print_line(f"  … and {format_count(len(groups) - SHOWN_GROUPS)} more lines (-o json has every file)")
    for conflict in plan.conflicts:
        print_line(f"[bold red]conflict[/] {escape(conflict)}; --leave one")
    if plan.staged_batches and plan.of("taken"):
        print_line(
            f"[yellow]{count_of(plan.staged_batches, 'batch')} staged[/]: rows come twice if a file that you "
            "take has the rows of one of them"
        )
    if not is_work:
        print_line("nothing is certainly wrong with the log, and no file is taken: there is nothing to rebuild")
    else:
        print_line(
            "[dim]Removed partitions, and files of which a deletion left no row, leave no trace in data files: look "
            "whether their rows are among those that you take.[/]"
        )


_COLUMNS: Final = ("fate", "kind", "commit", "partition", "files", "rows", "made from", "age", "known of it")


def _group(candidates: Iterable[Candidate]) -> list[list[Candidate]]:
    """Return candidates by what a person decides about at once, in the order of their commits."""
    groups: dict[tuple[str, ...], list[Candidate]] = {}
    for each in candidates:
        key = (each.commit_id, each.fate, each.kind, each.partition, each.mark, each.problem)
        groups.setdefault(key, []).append(each)
    return list(groups.values())


def _show_group(group: list[Candidate]) -> tuple[str, ...]:
    first = group[0]
    counts = [each.row_count for each in group]
    rows = "unknown" if None in counts else format_count(sum(count or 0 for count in counts))
    made_from = "" if first.read_rows is None else f"{format_count(first.read_rows)} rows"
    if first.read_rows is not None and (first.written_rows or 0) < first.read_rows:
        made_from += f", {format_count(first.written_rows)} of them written"
    known = ", ".join(text for text in (first.mark, first.problem) if text)
    age = format_span(min(each.age_ms for each in group))
    return (
        first.fate,
        first.kind,
        first.commit_id,
        first.partition,
        format_count(len(group)),
        rows,
        made_from,
        age,
        known,
    )


def _show_end(result: RebuildResult) -> None:
    if result.has_committed:
        err.print(
            f"[bold green]✓[/] the log of {escape(result.plan.table)} is rebuilt: {escape(result.log_key)}. Run `icedb "
            f"fsck {escape(result.plan.table)} --deep` now",
            soft_wrap=True,
        )
