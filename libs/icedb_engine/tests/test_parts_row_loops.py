"""No Python loop over rows where data passes: ten times the rows run hardly more lines of Python."""

import sys
import threading
from collections import Counter

import pytest
from icedb_engine.units.merge_unit import merge_unit
from icedb_engine.work import MergeUnit
from icedb_log.jobs import MergeGroup
from icedb_log.keys import check_table_name

FEW, MANY = 1_000, 10_000


def rows_of(count, *, offset=0):
    return [
        {
            "ts": f"2025-06-01T00:{n // 60 % 60:02d}:{n % 60:02d}Z",
            "event": f"e{n % 7}",
            "id": offset + n,
            "price": n / 8,
        }
        for n in range(count)
    ]


def lines_of(work):
    """Run something and count the lines of this project's Python that it runs, in all threads, by place."""
    lines = Counter()

    def trace(frame, event, _arg):
        if "/icedb_" not in frame.f_code.co_filename:
            return None
        if event == "line":
            lines[f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"] += 1
        return trace

    before = sys.gettrace()
    threading.settrace(trace)
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
        threading.settrace(None)
    return lines


def assert_no_row_loop(few, many):
    grown = {place: (few[place], count) for place, count in many.items() if count - few[place] >= FEW}
    assert not grown
    assert many.total() <= 1.5 * few.total() + FEW


def measure(prepare, run):
    """Return the lines that ``run`` takes for few and for many rows; the first run fills caches, and does not count."""
    found = {}
    for count in (FEW, FEW, MANY):
        prepared = prepare(count)
        found[count] = lines_of(lambda: run(*prepared))
    return found[FEW], found[MANY]


@pytest.mark.parametrize("partition", [(), ("d=day(ts)",)])
@pytest.mark.parametrize("staging_format", ["ndjson", "csv"])
def test_a_flush_has_no_loop_over_rows(make_table, partition, staging_format):
    def prepare(count):
        table = make_table(*partition, sort=("event", "ts"), declared={"ts": "TIMESTAMP", "id": "BIGINT"})
        if staging_format == "ndjson":
            return table, table.stage(*rows_of(count))
        lines = [",".join(rows_of(1)[0]), *(",".join(map(str, row.values())) for row in rows_of(count))]
        return table, table.stage(body="\n".join(lines).encode(), staging_format="csv")

    assert_no_row_loop(*measure(prepare, lambda table, batch: table.flush(batch)))


@pytest.mark.parametrize("overlaps", [True, False])
def test_a_merge_has_no_loop_over_rows(make_table, overlaps):
    def prepare(count):
        table = make_table(sort=("event", "ts"), declared={"ts": "TIMESTAMP"})
        files = []
        for number in range(3):
            rows = rows_of(count, offset=number * count)
            if not overlaps:
                rows = [{**row, "event": f"{number}{row['event']}"} for row in rows]
            files += table.flush(table.stage(*rows)).files
        unit = table.unit(MergeUnit, schema=table.united_types(files), group=MergeGroup("", tuple(files)))
        return table, unit

    assert_no_row_loop(*measure(prepare, lambda table, unit: merge_unit(unit, table.store, clock=table.clock)))


def test_a_loop_over_rows_is_noticed(make_table):
    def count_letters(count):
        return sum(len(row) for row in (check_table_name(f"t{row['id']}") or "" for row in rows_of(count)))

    few, many = measure(lambda count: (count,), count_letters)
    with pytest.raises(AssertionError):
        assert_no_row_loop(few, many)
