"""NaN, infinity, zeros and single precision: a condition finds the rows for which DuckDB says that it is true, by every
door, whoever wrote the file, before a merge and after it.

Engines sort NaN above every number, and the bounds of Parquet's footers leave it out.
"""

import math

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from icedb import connect
from icedb_client.duck import select_from
from icedb_log.imports.import_sources import list_sources, parse_pattern
from icedb_log.imports.imports import ImportOptions, import_files
from icedb_log.store_settings import StoreSettings
from many_conditions import ask_at_once

NAN, INF = math.nan, math.inf
SETS = {
    "nan": [1.5, NAN],
    "only nan": [NAN, NAN],
    "nan and null": [None, NAN],
    "infinity": [1.5, INF, -INF, None],
    "zeros": [0.0, -0.0, 2.5],
    "all": [0.1, -0.0, 0.0, 1.5, 2.5, NAN, INF, -INF, None],
}
CONDITIONS = [
    "f <> 1.5", "f = 1.5", "NOT (f = 1.5)", "f >= 2", "f > 1e300", "f < 2", "f <= 1.5", "f = 0", "f <> 0", "f < 0",
    "f = -0.0", "f = 'NaN'::DOUBLE", "f <> 'NaN'::DOUBLE", "f > 'Infinity'::DOUBLE", "f = 'Infinity'::DOUBLE",
    "f <= '-Infinity'::DOUBLE", "f IS NULL", "f IS NOT NULL", "f BETWEEN 1 AND 2", "f NOT BETWEEN 1 AND 2",
    "f IN (1.5, 7)", "f NOT IN (1.5, 7)", "f IS DISTINCT FROM 1.5", "f IS NOT DISTINCT FROM 1.5", "isnan(f)", "f = 0.1",
    "f <= 0.1", "f > 0.1",
]  # fmt: skip


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    with connect(tmp_path_factory.mktemp("numbers") / "lake") as lake:
        yield lake


def write_arrow(table, path):
    pq.write_table(table, path)


def write_polars(table, path):
    pl.from_arrow(table).write_parquet(path, statistics="full")


def write_duckdb(table, path):
    with duckdb.connect() as con:
        con.register("given", table)
        con.execute(f"COPY given TO '{path}' (FORMAT parquet)")


WRITERS = {"arrow": write_arrow, "polars": write_polars, "duckdb": write_duckdb}


def expect(values):
    """Return the rows that DuckDB finds in memory for each condition."""
    with duckdb.connect() as con:
        con.register("given", pa.table({"n": range(len(values)), "f": pa.array(values, pa.float64())}))
        con.execute("CREATE TABLE rows AS FROM given")
        return {each: _numbers(con.execute(f"SELECT n FROM rows WHERE {each}")) for each in CONDITIONS}


def _numbers(found):
    return sorted(n for (n,) in found.fetchall())


def find_wrong(lake, table, wanted, doors=("query", "printed", "where")):
    """Return by which door which condition finds other rows."""

    with duckdb.connect() as con, duckdb.connect() as other:
        snapshot = table.snapshot()
        con.execute(f"CREATE VIEW {table.name} AS {select_from(snapshot)}")
        snapshot.duckdb(other)
        ways = {
            "printed": lambda: ask_at_once(con.execute, table.name, wanted),
            "view": lambda: ask_at_once(other.execute, table.name, wanted),
            "query": lambda: ask_at_once(lambda sql: lake.query(sql), table.name, wanted),
            "where": lambda: [
                sorted(table.snapshot(where=where).to_arrow(columns=["n"])["n"].to_pylist()) for where in wanted
            ],
        }
        return [
            (door, where, rows, found)
            for door in doors
            for (where, rows), found in zip(wanted.items(), ways[door](), strict=True)
            if found != rows
        ]


@pytest.mark.parametrize("values", SETS.values(), ids=SETS)
@pytest.mark.parametrize("sort", [(), ("f",)], ids=["unsorted", "sorted"])
def test_conditions_on_rows_that_were_appended(lake, values, sort):
    name = f"own_{len(lake.tables())}"
    table = lake.create_table(name, columns={"n": "BIGINT", "f": "DOUBLE"}, sort=sort)
    wanted = expect(values)
    for n, value in enumerate(values):  # each value in a row group of its own, then several in one
        table.append(pa.table({"n": [n], "f": pa.array([value], pa.float64())}))
    # A condition of a snapshot is a query of its own: before a merge or after it.
    assert not find_wrong(lake, table, wanted, ["printed"] if sort else ["printed", "where"])
    table.merge(full=True)
    assert not find_wrong(lake, table, wanted, ["printed", "view", "where"] if sort else ["printed", "view"])
    gone = wanted["f >= 2"]
    table.delete("f >= 2")
    left = {where: [n for n in rows if n not in gone] for where, rows in wanted.items()}
    assert not find_wrong(lake, table, left, ["printed"])


def import_file(lake, table, path):
    found = list_sources(
        [parse_pattern(f"file://{path}")], open_store=lambda url: StoreSettings(url).open().store, allowed=["file:///"]
    )
    import_files(table.open(), lake.engine.importer, found, options=ImportOptions())


@pytest.mark.parametrize(  # each two of writer, type and values
    ("writer", "kind", "chosen"),
    [
        ("arrow", pa.float64(), "nan"),
        ("arrow", pa.float32(), "all"),
        ("polars", pa.float64(), "all"),
        ("polars", pa.float32(), "nan"),
        ("duckdb", pa.float64(), "nan"),
        ("duckdb", pa.float32(), "all"),
    ],
    ids=str,
)
def test_conditions_on_files_of_other_writers(lake, tmp_path, writer, kind, chosen):
    values = pa.array(SETS[chosen], kind).cast(pa.float64()).to_pylist()
    wanted = expect(values)
    WRITERS[writer](pa.table({"n": range(len(values)), "f": pa.array(values, kind)}), tmp_path / "all.parquet")
    name = f"imported_{len(lake.tables())}"
    table = lake.create_table(name, columns={"n": "BIGINT", "f": "DOUBLE"})
    import_file(lake, table, tmp_path / "all.parquet")
    assert table.snapshot().narrow_types == {"f": "FLOAT"}
    assert not find_wrong(lake, table, wanted, ["query", "printed", "view", "where"])
    table.append(pa.table({"n": [len(values)], "f": [7.0]}))
    table.merge(full=True)
    newest = max(table.open().read_log().files, key=lambda file: file.log.time_ms)
    assert newest.log.inexact == {}, "what a merge has written can be believed, once the import's log file is gone"
    assert not find_wrong(
        lake, table, expect([*values, 7.0]), ["printed", "where"] if writer == "arrow" else ["printed"]
    )


NUMBERS = st.lists(st.sampled_from(SETS["all"]), min_size=1, max_size=3)
STEPS = st.one_of(
    st.tuples(st.just("append"), NUMBERS),
    st.tuples(st.just("append whole"), st.lists(st.sampled_from([-1, 0, 2, 3]), min_size=1, max_size=2)),
    st.tuples(st.sampled_from(["import double", "import float"]), NUMBERS),
    st.tuples(st.just("merge"), st.booleans()),
    st.tuples(st.just("delete"), st.sampled_from(["f >= 2", "isnan(f)", "f = 0", "f < 1"])),
)
TELLING = ["f <> 1.5", "f >= 2", "f < 2", "f = 0", "f = 0.1", "f > 'Infinity'::DOUBLE", "f NOT IN (1.5, 7)"]
KINDS = {
    "append": pa.float64(),
    "append whole": pa.int64(),
    "import double": pa.float64(),
    "import float": pa.float32(),
}


@settings(max_examples=5, deadline=None, derandomize=True, database=None)
@given(st.booleans(), st.lists(STEPS, min_size=1, max_size=5))
@example(False, [("import double", [1.5, NAN])])
@example(True, [("append", [NAN]), ("import float", [0.1]), ("merge", True), ("delete", "f >= 2")])
def test_s2_no_history_makes_a_condition_find_other_rows(lake, tmp_path_factory, is_widened, steps):
    """Values of footers and logs: the simulation knows no values, so that this is where histories of them are tried."""
    name = f"history_{len(lake.tables())}"
    first = [("append whole", [1, 3]), ("append", [0.5])] if is_widened else [("append", [0.5])]
    columns = {"n": "BIGINT"} if is_widened else {"n": "BIGINT", "f": "DOUBLE"}
    table = lake.create_table(name, columns=columns, evolution="widen")
    folder = tmp_path_factory.mktemp(name)
    with duckdb.connect() as con:
        con.execute("CREATE TABLE rows (n BIGINT, f DOUBLE)")
        for number, (step, what) in enumerate([*first, *steps]):
            if step == "merge":
                table.merge(full=what)
            elif step == "delete":
                table.delete(what)
                con.execute(f"DELETE FROM rows WHERE {what}")
            else:
                rows = pa.table({"n": range(10 * number, 10 * number + len(what)), "f": pa.array(what, KINDS[step])})
                con.register("given", rows)
                con.execute("INSERT INTO rows FROM given")
                if step.startswith("append"):
                    table.append(rows)
                else:
                    write_arrow(rows, folder / f"{number}.parquet")
                    import_file(lake, table, folder / f"{number}.parquet")
        wanted = {each: _numbers(con.execute(f"SELECT n FROM rows WHERE {each}")) for each in TELLING}
    assert not find_wrong(lake, table, wanted, ["printed", "where"])
    table.merge(full=True)
    assert not find_wrong(lake, table, wanted, ["printed"])
