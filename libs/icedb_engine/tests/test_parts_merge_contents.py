"""A merge whose outputs do not hold what its inputs hold commits nothing, by the footers of both (M6)."""

import io
from dataclasses import replace
from datetime import date, datetime

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from icedb_engine.local_engine import LocalEngine
from icedb_engine.writing.part_files import PartFileWriter
from icedb_log.commit.table import Table
from icedb_log.errors import InvariantViolated, Unavailable
from icedb_log.log.fold import fold
from icedb_log.merge.merge import MergeWatch, merge_table
from icedb_log.merge.merge_plan import MergeOptions
from icedb_sim.tables.small_table import SmallTable

DAY = date(2024, 2, 29)
TIME = datetime(2024, 2, 29, 1, 2, 3, 4)
ROWS = {
    "i": pa.array([1, None, -(1 << 63)], pa.int64()),
    "d": pa.array([0.5, None, -1e300], pa.float64()),
    "b": pa.array([True, None, False]),
    "s": pa.array(["a", None, "é" * 2000]),
    "t": pa.array([TIME, None, datetime(1677, 1, 1)], pa.timestamp("us")),
    "day": pa.array([DAY, None, date(1, 1, 1)]),
}
SCHEMA = {"i": "BIGINT", "d": "DOUBLE", "b": "BOOLEAN", "s": "VARCHAR", "t": "TIMESTAMP", "day": "DATE"}


def merge_own(table, *tables, schema=SCHEMA, **options):
    """Merge files that our own writer has made of tables; return what was found of their contents."""
    ours = [make_own(table, rows, str(number)) for number, rows in enumerate(tables)]
    return table.merge(*ours, schema=schema, **options).contents


def make_own(table, rows, name):
    foreign = table.put_file(rows, name)
    (marker,) = table.merge(foreign).outputs
    return marker


def test_every_column_is_proved_where_both_sides_say_all(make_table):
    table = make_table()
    found = merge_own(table, pa.table(ROWS), pa.table(ROWS).slice(0, 2))
    assert (found.equal_count, found.unproven_count, found.differences) == (12, 0, ())


def test_a_column_that_an_input_lacks_counts_as_nulls(make_table):
    table = make_table()
    found = merge_own(table, pa.table({"i": [1]}), pa.table(ROWS), pa.table({"d": [None, 2.0]}), schema=SCHEMA)
    assert (found.equal_count, found.unproven_count, found.differences) == (12, 0, ())
    found = merge_own(table, pa.table({"i": [1]}), pa.table({"i": [2]}), schema=SCHEMA)
    assert (found.equal_count, found.unproven_count, found.differences) == (12, 0, ())


def test_wider_types_are_compared_as_they_are_written(make_table):
    table = make_table(sort=("i",))
    files = [
        make_own(table, pa.table({"i": [1 << 53, -3], "t": pa.array([DAY, None])}), "a"),
        make_own(table, pa.table({"i": [0.25, None], "t": pa.array([TIME, TIME], pa.timestamp("us"))}), "b"),
        table.put_file(
            pa.table({"i": pa.array([7], pa.int8()), "t": pa.array([TIME.replace(microsecond=0)], pa.timestamp("ms"))}),
            "c",
        ),
    ]
    found = table.merge(*files, schema={"i": "DOUBLE", "t": "TIMESTAMP"}).contents
    assert (found.equal_count, found.unproven_count, found.differences) == (4, 0, ())


@pytest.mark.parametrize(
    ("values", "unproven"),
    [
        (pa.array([float("nan"), None]), 1),  # no bound of anything
        (pa.array([1.0, float("inf")]), 1),
        (pa.array([0.0, -0.0, float("nan")]), 1),  # no bounds beside NaN: engines would believe them
        (pa.array(["x" * 5000]), 1),  # left out of the footer
        (pa.array([None], pa.string()), 0),
    ],
)
def test_what_a_footer_does_not_say_proves_nothing_and_is_counted(make_table, values, unproven):
    table = make_table()
    rows = pa.table({"x": values})
    kind = "VARCHAR" if values.type == pa.string() else "DOUBLE"
    found = merge_own(table, rows, rows, schema={"x": kind})
    assert (found.equal_count, found.unproven_count, found.differences) == (2 - unproven, unproven, ())


def test_other_writers_are_believed_as_far_as_they_say_something(make_table):
    table = make_table()
    silent = table.put_file(pa.table(ROWS), "a", write_statistics=False)
    found = table.merge(silent, silent, schema=SCHEMA).contents
    assert (found.equal_count, found.unproven_count, found.differences) == (0, 12, ())
    found = table.merge(silent, table.put_file(pa.table(ROWS), "b"), schema=SCHEMA).contents
    assert (found.equal_count, found.unproven_count, found.differences) == (0, 12, ())


def test_what_duckdb_writes_is_compared(make_table, tmp_path):
    """As the original's writer does: with statistics, and with path columns and rows of other files in it."""
    table = make_table()
    path = tmp_path / "a.parquet"
    with duckdb.connect() as engine:
        engine.register("rows", pa.table(ROWS))
        engine.execute(f"COPY (SELECT * FROM rows ORDER BY i) TO '{path}' (FORMAT parquet)")
    table.store.put(table.paths.data_key(partition="", file_id="a"), path.read_bytes())
    marker = replace(table.put_file(pa.table(ROWS), "b"), path=table.paths.data_key(partition="", file_id="a"))
    marker = replace(marker, size_bytes=path.stat().st_size)
    found = table.merge(marker, marker, schema=SCHEMA).contents
    assert found.differences == ()
    assert found.equal_count >= 11


def run_merge(table, *, checks=None):
    return merge_table(
        Table.open(table, clock=table.clock, owner="merge"),
        LocalEngine(table.store, clock=table.clock).merger,
        options=MergeOptions(full=True),
        watch=MergeWatch(on_check=(checks if checks is not None else []).append),
    )


def values_of(table):
    found = []
    for marker in fold(table.view()).live:
        found += pq.ParquetFile(io.BytesIO(table.store.get(marker.path).body)).read().to_pylist()
    return sorted(([row["n"], row["s"], row.get("x"), row["t"]] for row in found), key=lambda row: row[0])


def change_rows(change):
    """Rows are changed on their way to the writer."""
    write = PartFileWriter.write_partition

    def write_changed(writer, runs, **options):
        return write(writer, (replace(run, tables=map(change, run.tables)) for run in runs), **options)

    return write_changed


def replace_value(rows, column, old, new):
    values = [new if value == old else value for value in rows[column].to_pylist()]
    return rows.set_column(
        rows.schema.get_field_index(column), column, pa.array(values, rows.schema.field(column).type)
    )


DAMAGES = {
    "a column becomes null": lambda rows: rows.drop_columns(["s"]).append_column("s", pa.nulls(len(rows), pa.string())),
    "one value becomes null": lambda rows: replace_value(rows, "x", 2.5, None),
    "a null becomes a value": lambda rows: replace_value(rows, "x", None, 2.0),
    "the lowest value is another": lambda rows: replace_value(rows, "n", 0, 1),
    "the highest value is another": lambda rows: replace_value(rows, "n", 5, 6),
    "the longest text is cut": lambda rows: replace_value(rows, "s", "z" * 100, "z" * 99),
    "a column is not written": lambda rows: rows.drop_columns(["s"]),
    "a time is shifted": lambda rows: replace_value(
        rows, "t", datetime(2024, 1, 1, 0, 0, 0, 1), datetime(2024, 1, 1, 0, 0, 0, 2)
    ),
}


def make_damaged_table():
    rows = [
        {"n": 0, "s": "a", "x": 1.5, "t": "2024-01-01T00:00:00.000001Z"},
        {"n": 5, "s": "z" * 100, "x": 2.5, "t": "2023-01-01T00:00:00Z"},
        {"n": 3, "s": "b", "x": None, "t": "2022-01-01T00:00:00Z"},
    ]
    table = SmallTable(partition=(), sort=("n",), target_file_bytes=1 << 20, declared={"t": "TIMESTAMP"})
    for row in rows:
        table.stage([row])
        table.flush(writer=LocalEngine(table.store, clock=table.clock).writer)
    return table


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_merge_that_changes_a_value_commits_nothing_and_keeps_everything(monkeypatch, damage):
    table = make_damaged_table()
    before, rows = table.snapshot(), values_of(table)
    logs, data = table.keys(table.paths.log_prefix), table.keys(table.paths.data_prefix)
    checks = []
    with monkeypatch.context() as patch:
        patch.setattr(PartFileWriter, "write_partition", change_rows(damage))
        with pytest.raises(Unavailable, match=r"wrote other values than it read.*tries once more"):
            run_merge(table, checks=checks)
        assert sum(len(check.differences) for check in checks) >= 1
        assert table.keys(table.paths.log_prefix) == logs
        assert len(table.keys(table.paths.data_prefix)) == len(data) + 1, "the output stays to be looked at"
        for _ in range(3):  # whoever runs next, on whichever host
            with pytest.raises(InvariantViolated, match=r"not the first time.*icedb rewrite"):
                run_merge(table)
    assert table.snapshot() == before
    assert table.keys(table.paths.log_prefix) == logs
    assert set(table.keys(table.paths.data_prefix)) >= set(data)
    assert run_merge(table).input_count == 3, "it was the code: with another release merges go on"
    assert values_of(table) == rows
    table.stage([{"n": 7, "s": "c"}])
    table.flush(writer=LocalEngine(table.store, clock=table.clock).writer)
    monkeypatch.setattr(PartFileWriter, "write_partition", change_rows(lambda rows: replace_value(rows, "n", 7, 8)))
    with pytest.raises(Unavailable, match="tries once more"):  # what was settled is forgotten
        run_merge(table)
