"""What is known of a table without reading its rows, and how well."""

from dataclasses import replace

import pytest
from icedb_client import Client
from icedb_client.describe import DISTINCT_AT_ONCE, _count_distinct, _Facts
from icedb_log.errors import InvalidRequest, Unavailable
from icedb_sim.rigs.parquet_warehouse import ParquetWarehouse

SCHEMA = {
    "ts": "TIMESTAMP",
    "kind": "VARCHAR",
    "n": "BIGINT",
    "x": "DOUBLE",
    "ok": "BOOLEAN",
    "tags": "VARCHAR[]",
    "gone": "VARCHAR",
}
ROWS = (
    "select timestamp '{day}' + to_seconds(i::bigint) as ts, '{kind}' as kind, nullif(i % {modulo}, 0) as n, "
    "i / 4 as x, i % 2 = 0 as ok, ['a'] as tags from range({rows}) t(i)"
)


@pytest.fixture
def add(folder):
    """Commits a file of rows of a day and a kind; ``told``: the log says what is in its sorted columns, too."""
    parquet = ParquetWarehouse(folder)
    parquet.create("events", "kind", "d=day(ts)", sort=("ts",))

    def add(day="2026-01-02", kind="a", *, rows=100, modulo=10, told=True, schema=SCHEMA, high=None):
        last = high or f"{day}T00:{(rows - 1) // 60:02}:{(rows - 1) % 60:02}.000000Z"
        stats = {"ts": (f"{day}T00:00:00.000000Z", last, 0), "kind": (kind, kind, 0)}
        select = ROWS.format(day=day, kind=kind, rows=rows, modulo=modulo)
        return parquet.commit(
            "events", select, partition=f"kind={kind}/d={day}", schema=schema, stats=stats if told else {}
        )

    return add


@pytest.fixture
def events(folder):
    client = Client(warehouse=folder)
    return lambda **asked: client.snapshot("events", bounds=True, **asked)


def known(found, name):
    column = next(each for each in found.columns if each.name == name)
    return (
        (column.null_share, column.nulls_known),
        (column.distinct_count, column.distinct_known),
        (None if column.min is None else (str(column.min), str(column.max)), column.range_known),
    )


EXACT_NONE = (0.0, "exact")


@pytest.mark.parametrize("told", [True, False])
def test_statistics_tell_columns_without_their_rows(add, events, told, monkeypatch):
    monkeypatch.setattr("icedb_client.describe.SMALL_ROWS", 0)
    add(told=told)
    add("2026-01-03", "b", rows=50, modulo=5, told=told)
    found = events().describe()
    assert (found.source, found.opened_count, found.file_count, found.row_count) == ("footers", 2, 2, 150)
    assert [(each.name, each.count, each.min, each.max) for each in found.partitions] == [
        ("kind", 2, "a", "b"),
        ("d", 2, "2026-01-02", "2026-01-03"),
    ]
    spans = ("2026-01-02 00:00:00", "2026-01-03 00:00:49")
    assert known(found, "ts")[::2] == (EXACT_NONE, (spans, "exact"))
    assert known(found, "kind") == (EXACT_NONE, (2, "exact"), (("a", "b"), "exact"))
    assert known(found, "n") == ((20 / 150, "exact"), (9, "bound"), (("1", "9"), "exact"))
    assert known(found, "x")[::2] == (EXACT_NONE, (("0.0", "24.75"), "exact"))
    assert known(found, "ok") == (EXACT_NONE, (2, "exact"), (("False", "True"), "exact"))
    assert known(found, "tags") == ((None, "unknown"), (None, "unknown"), (None, "unknown"))
    assert known(found, "gone") == ((1.0, "exact"), (0, "exact"), (None, "exact"))


def test_values_of_a_small_table_are_counted_in_its_rows(add, events, monkeypatch):
    add()
    add("2026-01-03", "b", rows=50, modulo=5)
    found = events().describe()
    assert (found.source, found.opened_count) == ("rows", 2)
    assert known(found, "n") == ((20 / 150, "exact"), (9, "exact"), (("1", "9"), "exact"))
    assert known(found, "ts")[1] == (150, "exact")
    assert known(found, "gone")[1] == (0, "exact")
    assert events().describe(files=1).source == "footers", "of a part of the files nothing is counted"
    monkeypatch.setattr("icedb_client.describe.SMALL_ROWS", 149)
    assert events().describe().source == "footers"


def test_the_log_alone_tells_what_it_knows(add, events, folder):
    made = add()
    add("2026-01-03")
    folder.store.delete([made.data_key])
    found = events().describe(files=0)
    assert (found.source, found.opened_count) == ("log", 0)
    assert known(found, "ts")[2] == (("2026-01-02 00:00:00", "2026-01-03 00:01:39"), "exact")
    assert known(found, "kind")[1] == (1, "exact")
    assert known(found, "n") == ((None, "unknown"), (None, "unknown"), (None, "unknown"))
    only_known = {"ts": "TIMESTAMP", "kind": "VARCHAR"}
    add("2026-01-04", schema=only_known)
    assert known(events().describe(files=0), "ts")[2][1] == "exact"
    with pytest.raises(Unavailable, match="it is not there"):
        events().describe()


def test_figures_of_a_part_of_the_files_are_estimates(add, events):
    for day in range(1, 9):
        add(f"2026-01-0{day}", modulo=10 if day % 2 else 5)
    found = events().describe(files=2)
    assert (found.source, found.opened_count, found.file_count) == ("footers", 2, 8)
    assert known(found, "ts")[2][1] == "exact", "the log knows of all files"
    assert known(found, "n") == ((0.1, "estimate"), (9, "bound"), (("1", "9"), "estimate"))
    assert known(found, "gone")[0] == (1.0, "estimate")
    assert known(found, "ok")[1] == (2, "bound")


def test_long_text_is_bounded_and_a_file_that_says_nothing_makes_footers_be_read(add, events):
    add(kind="k" * 70)
    assert known(events().describe(files=0), "kind")[2] == (("k" * 70, "k" * 70), "bound")
    add(told=False)
    assert known(events().describe(files=0), "ts") == ((None, "unknown"), (None, "unknown"), (None, "unknown"))
    assert known(events().describe(), "ts")[2] == (("2026-01-02 00:00:00", "2026-01-02 00:01:39"), "exact")


def test_a_table_without_rows_has_columns_of_which_nothing_is_known(add, events):
    found = events().describe()
    assert (found.source, found.row_count, found.file_count, found.partitions) == ("log", 0, 0, ())
    assert {(each.nulls_known, each.distinct_known, each.range_known) for each in found.columns} == {("unknown",) * 3}


@pytest.mark.parametrize("asked", [{"files": -1}, {"files": 10_001}])
def test_bounds_of_what_is_opened(add, events, asked):
    with pytest.raises(InvalidRequest, match="give 0 to 10000"):
        events().describe(**asked)
    with pytest.raises(InvalidRequest, match="without where"):
        events(where="true").describe()


class Recorder:
    """Counts what a connection is asked, and answers."""

    def __init__(self):
        self.asked = []

    def execute(self, sql):
        self.asked.append(sql)
        return self

    def fetchone(self):
        return [1] * self.asked[-1].count("count(DISTINCT")


@pytest.mark.parametrize("width", [1, DISTINCT_AT_ONCE, DISTINCT_AT_ONCE + 1, 500, 1000])
def test_values_of_a_wide_table_are_counted_a_few_columns_at_a_time(events, add, width):
    """What DuckDB does for one query grows with the square of its columns: 1,982 took 14 s."""
    add()
    schema = {f"c{place}": "BIGINT" for place in range(width)}
    facts = {name: _Facts(100, 0) for name in schema}
    con = Recorder()
    _count_distinct(con, replace(events(), schema=schema), facts)
    assert all(each.distinct == 1 and each.distinct_known == "exact" for each in facts.values())
    assert sum(sql.count("count(DISTINCT") for sql in con.asked) == width
    assert max(sql.count("count(DISTINCT") for sql in con.asked) <= DISTINCT_AT_ONCE
    assert all(sql.count("default_value") <= DISTINCT_AT_ONCE for sql in con.asked), "all columns in each: n squared"
