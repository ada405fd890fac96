"""Writes ``docs/benchmarks.md`` from ``bench/results``: ``python -m bench.report``. Measures nothing.

Of the page only what lies between the marks is written; a plot for each workload goes beside it.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from bench.compare import Comparison, by_axis, compare, fit_growth, kind_of, lead_rows
from bench.goals import Verdict, judge
from bench.harness import RESULTS, Report, Row, read_report
from bench.plots import draw, shown, with_unit
from bench.processes import ROOT

PAGE: Final = ROOT / "docs" / "benchmarks.md"
BEGIN: Final = "<!-- written by `python -m bench.report`: begin -->"
END: Final = "<!-- written by `python -m bench.report`: end -->"
PLOTS: Final = "benchmarks"
ORDER: Final = (
    "scan",
    "nested",
    "merge",
    "wide",
    "nodes",
    "ingest",
    "tiny",
    "enqueue",
    "seen",
    "snapshot",
    "starting",
    "many",
    "vacuum",
    "iceberg",
    "growth",
    "doors",
    "day",
    "commit",
)
MATRICES: Final = "scan"
"""The workload of which a case has many figures of one unit: a table for each, one line a figure."""
BESIDE: Final = ("cpu_time", "peak_memory")
"""Figures that a table shows beside the one that a case is about."""
JVM: Final = "peak_jvm"
"""What Spark's Java takes of the peak memory, at its own peak: its heap has a limit, ``ICEDB_SPARK_MEMORY_MB``."""
NOT_FOUND: Final = ""
_CALL: Final = " (a call over gRPC beside libraries)"
_LIBRARY: Final = " (our library in the caller's process)"


def read_reports(folder: Path) -> list[Report]:
    """Read all stored results of workloads, in the order in which the page has them."""
    reports = [read_report(path) for path in sorted(folder.glob("*.json")) if b'"workload"' in path.read_bytes()[:200]]
    known = {name: number for number, name in enumerate(ORDER)}
    return sorted(reports, key=lambda report: (known.get(report.workload, len(known)), report.workload))


def write_page(reports: Sequence[Report], page: Path) -> list[Path]:
    """Write the page's part between the marks, and its plots; return all files that were written.

    Raises:
        ValueError: The page has no marks.
    """
    text = page.read_text(encoding="utf-8")
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{page}: the marks are missing, {BEGIN} and {END}")
    plots = []
    for report in reports:
        plots.append(page.parent / PLOTS / f"{report.workload}.svg")
        draw(report, plots[-1])
    page.write_text(f"{before}{BEGIN}\n{render(reports)}\n{END}{after}", encoding="utf-8")
    return [page, *plots]


def render(reports: Sequence[Report]) -> str:
    """Return the generated part of the page."""
    parts = ["## Who is ahead", *_summary(reports)]
    for report in reports:
        parts += [f"## {report.workload}", *_section(report)]
    return "\n".join(parts)


def _summary(reports: Sequence[Report]) -> Iterable[str]:
    verdicts = {report.workload: judge(report.workload, report.rows) for report in reports}
    lines = []
    ahead = compared = 0
    for report in reports:
        for each in compare([row for row in report.rows if not row.axis]):
            found = [verdict for verdict in verdicts[report.workload] if verdict.case == each.case]
            libraries = each.of_libraries()
            if each.ratio is not None or found:
                lines.append(_summary_line(report, each, found, "" if libraries is None else _CALL))
            if libraries is not None:
                lines.append(_summary_line(report, libraries, (), _LIBRARY))
            counted = libraries or each
            compared += counted.ratio is not None
            ahead += counted.ratio is not None and counted.ratio < 1
    yield (
        "Medians, beside the fastest peer, whatever it leaves out. *Ratio*: how many times as fast IceDB is, "
        f"1 is a draw. **In {ahead} of {compared} comparisons a peer is ahead.** "
        "A call over gRPC beside a library in the caller's process is no comparison, and not counted where our library "
        "stands beside it."
    )
    yield ""
    yield "| workload, case | ours | best peer | ratio | goal |"
    yield "| --- | ---: | --- | ---: | --- |"
    yield from lines
    yield ""


def _summary_line(report: Report, each: Comparison, verdicts: Sequence[Verdict], how: str) -> str:
    ours = NOT_FOUND if each.ours is None else f"{shown(each.ours.median)} {each.unit}"
    peer = NOT_FOUND if each.peer is None else f"{each.peer.system}: {shown(each.peer.median)} {each.unit}"
    ratio = NOT_FOUND
    if each.ratio is not None:
        is_behind = each.ratio < 1 and how != _CALL
        ratio = f"{each.ratio:.2f} ×{' **peer ahead**' if is_behind else ''}"
    mark = " ⚠" if is_marked(report) else ""
    goals = "; ".join(_say(verdict) for verdict in verdicts)
    what = f"{report.workload}: {each.case}, {each.metric.replace('_', ' ')}{how}{mark}"
    return f"| {what} | {ours} | {peer} | {ratio} | {goals} |"


def _say(verdict: Verdict) -> str:
    reached = "reached" if verdict.is_reached else "**not reached**"
    return f"{verdict.goal.text} {verdict.unit}: {shown(verdict.value)}, {reached}{verdict.detail}"


def is_marked(report: Report) -> bool:
    """Return whether a result may be worthless: others worked on the machine, or nobody looked whether they did."""
    return report.load is None or report.load.is_high


def _section(report: Report) -> Iterable[str]:
    yield f"{report.description[:1].upper()}{report.description[1:]}."
    yield ""
    yield f"![{report.workload}]({PLOTS}/{report.workload}.svg)"
    yield ""
    growth = by_axis(fit_growth(report.rows))
    if growth:
        for axis, found in growth.items():
            sizes = sorted({size for each in found for size, _ in each.points})
            yield f"| by {axis} | figure | {' | '.join(f'{size:,.0f}' for size in sizes)} | exponent |"
            yield "| --- | --- |" + " ---: |" * (len(sizes) + 1)
            for each in found:
                costs = dict(each.points)
                cells = " | ".join(shown(costs[size]) if size in costs else NOT_FOUND for size in sizes)
                yield f"| {each.system} | {with_unit(each.metric, each.unit)} | {cells} | {each.exponent:.2f} |"
            yield ""
    rows = [row for row in report.rows if not row.axis]
    if report.workload == MATRICES:
        for case in dict.fromkeys(row.case for row in rows):
            yield from _wide_table([row for row in rows if row.case == case], marks_best=True)
            yield ""
    elif rows:
        yield from _wide_table(rows) if growth else _table(rows)
        yield ""
    yield from _circumstances(report)
    yield ""


def _table(rows: Sequence[Row]) -> Iterable[str]:
    yield "| case | system | median | least to most | turns | processor time | peak memory | ours is |"
    yield "| --- | --- | ---: | --- | ---: | ---: | ---: | --- |"
    found = {(row.case, row.system, row.metric): row for row in rows}
    comparisons = {each.case: each for each in compare(rows)}
    for case, compared in comparisons.items():
        for row in lead_rows([row for row in rows if row.case == case]):
            beside = [found.get((case, row.system, metric)) for metric in BESIDE]
            cells = [NOT_FOUND if each is None else f"{shown(each.median)} {each.unit}" for each in beside]
            jvm = found.get((case, row.system, JVM))
            cells[-1] += "" if jvm is None else f" (JVM {shown(jvm.median)})"
            yield (
                f"| {case} | {_system(row)} | {shown(row.median)} {row.unit} | {shown(row.min)} to {shown(row.max)} | "
                f"{row.turn_count} | {' | '.join(cells)} | {_ratio(compared, row)} |"
            )


def _wide_table(rows: Sequence[Row], *, marks_best: bool = False) -> Iterable[str]:
    """One line a figure, one column a system; the best of a line in bold if that is asked for."""
    systems = list(dict.fromkeys(row.system for row in rows))
    found = {(row.metric, row.system): row for row in rows}
    yield f"| {rows[0].case} | {' | '.join(systems)} |"
    yield "| --- |" + " ---: |" * len(systems)
    for metric, unit in dict.fromkeys((row.metric, row.unit) for row in rows):
        cells = [found.get((metric, system)) for system in systems]
        best = min((each.median for each in cells if each is not None and marks_best and unit), default=None)
        values = [
            NOT_FOUND if each is None else f"**{shown(each.median)}**" if each.median == best else shown(each.median)
            for each in cells
        ]
        yield f"| {with_unit(metric, unit)} | {' | '.join(values)} |"


def _system(row: Row) -> str:
    kind = kind_of(row.system)
    return f"**{row.system}**" if kind == "ours" else f"*{row.system}* (bound)" if kind == "bound" else row.system


def _ratio(case: Comparison, row: Row) -> str:
    if case.ours is None or row is case.ours:
        return NOT_FOUND
    ratio = Comparison(case.case, case.metric, case.unit, case.ours, row, ()).ratio or 0.0
    return f"{shown(ratio)} × as fast" if row.unit.endswith("s") else f"{shown(ratio)} × as small"


def _circumstances(report: Report) -> Iterable[str]:
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    when = f"{report.began or 'no date'}, {report.elapsed_s / 60:.0f} min"
    yield f"`{report.command}`, {when}; {report.machine}; {versions}."
    load = report.load
    if load is None:
        yield "⚠ Other load on the machine was not measured."
        return
    said = (
        f"load average {load.average:.1f} on {load.core_count} cores before the run, "
        f"{load.busy_share:.0%} of the cores taken by others between the turns"
    )
    yield f"⚠ **Measured under load**: {said}." if load.is_high else f"A quiet machine: {said}."


def main() -> None:
    """Write the page from what is stored."""
    for path in write_page(read_reports(RESULTS), PAGE):
        print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
