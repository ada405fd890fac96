"""The page that benchmarks write: from results that are stored, without measuring anything."""

from dataclasses import replace

import pytest

from bench.compare import compare, describe_growth, fit_exponent, fit_growth, kind_of
from bench.goals import BEST, EACH, GOALS, Goal, judge
from bench.harness import RESULTS, Report, Row, read_report, write_report
from bench.machine import Load
from bench.report import BEGIN, END, is_marked, read_reports, render, write_page

QUIET = Load(average=0.1, core_count=2, busy_share=0.02)


def row(system, median, *, case="40 files", metric="duration", unit="s", workload="merge", **more):
    return Row(workload, case, system, metric, unit, median, median * 0.9, median * 1.2, None, 3, **more)


def report(*rows, **more):
    fields = {"began": "2026-11-23 22:50 UTC", "size": "middle", "load": QUIET} | more
    return Report(
        "merge", "what was done", "python -m bench merge", "2 cores", {"duckdb (peer)": "1.5.5"}, rows, **fields
    )


def test_there_are_results_of_what_we_compare():
    assert {each.workload for each in read_reports(RESULTS)} >= {"merge", "ingest", "snapshot", "vacuum", "enqueue"}


def shorten(stored):
    """Return a result with the systems and figures of two cases, or of two figures that grow: plots take long."""
    if any(each.axis for each in stored.rows):
        kept = list(dict.fromkeys((each.axis, each.metric) for each in stored.rows if each.axis))[:2]
        return replace(stored, rows=tuple(each for each in stored.rows if (each.axis, each.metric) in kept))
    cases = list(dict.fromkeys(each.case for each in stored.rows))[:2]
    return replace(stored, rows=tuple(each for each in stored.rows if each.case in cases))


@pytest.mark.parametrize("cut", [shorten, pytest.param(lambda stored: stored, marks=pytest.mark.soak, id="whole")])
@pytest.mark.parametrize("stored", read_reports(RESULTS), ids=lambda stored: stored.workload)
def test_every_stored_result_gets_a_section_and_a_plot(tmp_path, stored, cut):
    stored = cut(stored)
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    written = write_page([stored], page)
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "\nold\n" not in text
    assert f"\n## {stored.workload}\n" in text
    assert f"![{stored.workload}](benchmarks/{stored.workload}.svg)" in text
    plot = tmp_path / "benchmarks" / f"{stored.workload}.svg"
    grows = any(found.axis for found in stored.rows)
    named = {found.system for found in stored.rows if bool(found.axis) is grows}
    assert [name for name in named if f">{name}<" not in plot.read_text()] == []
    assert written == [page, plot]


def test_the_same_results_give_the_same_files(tmp_path):
    results = [report(row("icedb", 2.0), row("duckdb", 3.0))]
    texts = []
    for _ in range(2):
        page = tmp_path / "page.md"
        page.write_text(f"{BEGIN}\n{END}")
        texts.append([path.read_text() for path in write_page(results, page)])
    assert texts[0] == texts[1]


def test_a_page_without_marks_is_left_alone(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("by hand")
    with pytest.raises(ValueError, match="marks"):
        write_page([report(row("icedb", 2.0))], page)
    assert page.read_text() == "by hand"


def summary(*rows, **more):
    lines = render([report(*rows, **more)]).splitlines()
    return next(line for line in lines if line.startswith("| merge: "))


def test_a_peer_that_is_ahead_is_said_to_be():
    line = summary(row("icedb", 4.0), row("duckdb", 8.0), row("delta-rs", 2.0), row("cp", 0.1))
    assert "| 4.00 s | delta-rs: 2.00 s | 0.50 × **peer ahead** |" in line
    line = summary(row("icedb", 4.0), row("duckdb", 8.0), row("cp", 0.1))
    assert "| 4.00 s | duckdb: 8.00 s | 2.00 × |" in line


def test_the_page_counts_how_often_a_peer_is_ahead():
    rows = [
        row(name, value, case=case)
        for case, peer in (("a", 2.0), ("b", 8.0), ("c", 3.0))
        for name, value in (("icedb", 4.0), ("duckdb", peer))
    ]
    assert "**In 2 of 3 comparisons a peer is ahead.**" in render([report(*rows, row("icedb", 1.0, case="alone"))])


def test_more_is_better_where_the_figure_is_a_rate():
    rows = [
        row(name, value, metric="rate", unit="rows/s")
        for name, value in (("icedb", 50.0), ("delta-rs", 10.0), ("duckdb", 40.0))
    ]
    (compared,) = compare(rows)
    assert (compared.peer.system, compared.ratio) == ("duckdb", 1.25)


def test_the_first_metric_of_a_case_is_the_one_that_is_compared():
    rows = [
        row("icedb", 1.0),
        row("icedb", 9.0, metric="cpu_time"),
        row("duckdb", 2.0),
        row("duckdb", 1.0, metric="cpu_time"),
    ]
    (compared,) = compare(rows)
    assert (compared.metric, compared.ratio) == ("duration", 2.0)
    assert "| 9.00 s |" in render([report(*rows)])


@pytest.mark.parametrize(
    ("system", "kind"),
    [("icedb", "ours"), ("icedb-bytes", "ours"), ("icedb, log files folded", "ours"), ("webhook", "ours"),
     ("iceberg", "peer"), ("delta-rs, kept open", "peer"), ("cp", "bound"), ("decode+encode", "bound"), ("floor", "bound")],
)  # fmt: skip
def test_whose_a_system_is(system, kind):
    assert kind_of(system) == kind


@pytest.mark.parametrize(
    ("load", "marked"),
    [(None, True), (QUIET, False), (replace(QUIET, average=1.0), False), (replace(QUIET, average=1.01), True),
     (replace(QUIET, busy_share=0.3), True)],
)  # fmt: skip
def test_a_result_that_was_taken_under_load_says_so(load, marked):
    result = report(row("icedb", 2.0), row("duckdb", 3.0), load=load)
    assert is_marked(result) is marked
    assert ("⚠" in render([result])) is marked


def test_goals_are_judged_by_what_was_measured():
    rows = [row("icedb", 2.0), row("duckdb", 5.0), row("icedb", 300.0, metric="p50", unit="ms")]
    goals = [
        Goal("merge", "40 files", "duration", at_least=2.5, against="duckdb"),
        Goal("merge", "4? *", "duration", at_least=2.6, against="duckdb"),
        Goal("merge", "*", "p50", at_most=299),
        Goal("merge", "*", "p50", at_least=299),
        Goal("merge", "*", "duration", at_least=1, against="delta-rs"),
        Goal("merge", "40", "p50", at_most=1000),
        Goal("merge", "other case", "p50", at_most=1000),
        Goal("ingest", "*", "p50", at_most=1000),
    ]
    assert [(each.value, each.is_reached) for each in judge("merge", rows, goals)] == [
        (2.5, True),
        (2.5, False),
        (300.0, False),
        (300.0, True),
    ]


def test_a_goal_stands_in_the_line_of_its_case():
    line = summary(row("icedb", 4.0, case="8 files of 10 rows"), row("duckdb", 2.0, case="8 files of 10 rows"))
    assert "duration ≤ 0.08 s: 4.00, **not reached**" in line


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0])
def test_the_exponent_of_a_power_law_is_found(exponent):
    points = [(size, 7.0 * size**exponent) for size in (1e3, 1e4, 1e5, 1e6)]
    assert fit_exponent(points) == pytest.approx(exponent)


def test_the_exponent_of_costs_with_a_fixed_part_lies_between():
    assert 0.3 < fit_exponent([(size, 100 + size) for size in (1, 10, 100, 1_000)]) < 0.7


def test_costs_of_nothing_have_an_exponent_and_one_size_has_none():
    assert fit_exponent([(10, 0.0), (100, 0.0)]) == 0
    assert fit_exponent([(10, 0.0), (100, 4.0), (1000, 4.0)]) == 0
    with pytest.raises(ValueError, match="two sizes"):
        fit_exponent([(10, 1.0), (10, 2.0)])


def test_what_grows_is_reported_by_its_exponent(tmp_path):
    rows = [
        row(system, cost(size), case=f"{size} files", axis="data files", at=float(size), metric="bytes", unit="bytes")
        for size in (1_000, 100_000)
        for system, cost in (("icedb", lambda _: 500.0), ("pyiceberg", lambda size: size * 2.0))
    ]
    assert [(each.system, each.exponent) for each in fit_growth(rows)] == [
        ("icedb", 0.0),
        ("pyiceberg", pytest.approx(1.0)),
    ]
    assert describe_growth(rows)[1] == "pyiceberg: bytes grows with data files ^ 1.00"
    text = render([report(*rows)])
    assert "| by data files | figure | 1,000 | 100,000 | exponent |" in text
    assert "| pyiceberg | bytes | 2,000 | 200,000 | 1.00 |" in text
    page = tmp_path / "page.md"
    page.write_text(f"{BEGIN}\n{END}")
    plot = write_page([report(*rows)], page)[1].read_text()
    assert ">pyiceberg<" in plot
    assert ">data files<" in plot


def test_a_result_is_read_as_it_was_written(tmp_path):
    written = report(row("icedb", 2.0, axis="tables", at=3.0))
    assert read_report(write_report(written, tmp_path)) == written


def scan_rows(**queries):
    """Return rows of a case of scans: of each query ours, and those of two peers."""
    values = {"mean_query": (9, 1, 1)} | queries
    return [
        row(system, value, case="DuckDB, 8 columns", metric=metric, unit="" if metric == "requests" else "ms")
        for metric, found in values.items()
        for system, value in zip(("icedb", "polars", "duckdb"), found, strict=True)
    ]


def test_the_worst_of_many_figures_decides_beside_the_best_peer():
    goal = Goal("scan", "DuckDB*", EACH, at_least=0.95, against=BEST)
    rows = scan_rows(first=(10, 20, 10), second=(10, 8, 90), cpu_time=(9, 1, 1), requests=(9, 1, 1))
    (verdict,) = judge("scan", rows, [goal])
    assert (verdict.value, verdict.is_reached, verdict.detail) == (0.8, False, " (second; 1 of 2 reach it)")
    (verdict,) = judge("scan", scan_rows(first=(10, 20, 10)), [goal])
    assert (verdict.value, verdict.is_reached) == (1, True)
    assert judge("scan", [each for each in rows if each.system == "icedb"], [goal]) == []


def test_each_engine_of_scans_has_a_goal_and_sizes_have_theirs():
    cases = ("DuckDB, 8 columns", "Spark, 30 columns", "PyArrow, 8 columns, S3 with 15 ms a request")
    queries = [row(system, 1, case=case, metric="q", unit="ms") for case in cases for system in ("icedb", "duckdb")]
    sizes = [
        row(system, 1, case=case, metric="size", unit="MB")
        for case in ("size, 8 columns", "size, 8 columns, all with zstd at level 1")
        for system in ("icedb", "duckdb")
    ]
    assert [(each.case, each.goal.metric) for each in judge("scan", [*queries, *sizes], GOALS)] == [
        *((case, EACH) for case in cases),
        ("size, 8 columns, all with zstd at level 1", "size"),
    ]


def test_scans_get_a_table_for_each_case_with_the_best_of_each_line_in_bold():
    rows = scan_rows(first=(10, 20, 12), requests=(3, 2, 1))
    found = render([replace(report(*rows), workload="scan")])
    assert "| DuckDB, 8 columns | icedb | polars | duckdb |" in found
    assert "| first, ms | **10.0** | 20.0 | 12.0 |" in found
    assert "| requests | 3.00 | 2.00 | 1.00 |" in found


def test_a_call_to_a_service_is_no_comparison_where_our_library_stands_beside_it():
    page = render([report(row("icedb", 3.0), row("icedb, embedded", 0.5), row("delta-rs", 1.0))])
    assert "In 0 of 1 comparisons a peer is ahead" in page
    call, library = (line for line in page.splitlines() if line.startswith("| merge: 40 files"))
    assert "over gRPC" in call and "| 0.33 × |" in call and "peer ahead" not in call
    assert "our library in the caller's process" in library and "| 2.00 × |" in library


def test_what_the_jvm_takes_of_the_memory_is_named_apart():
    rows = [row("icedb", 2.0), row("icedb", 900, metric="peak_memory", unit="MiB")]
    (line,) = [each for each in render([report(*rows)]).splitlines() if "**icedb**" in each]
    assert "900 MiB |" in line
    rows.append(row("icedb", 430, metric="peak_jvm", unit="MiB"))
    (line,) = [each for each in render([report(*rows)]).splitlines() if "**icedb**" in each]
    assert "900 MiB (JVM 430) |" in line
