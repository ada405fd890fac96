"""What units of a change do, without Spark: data files become rows, SQL changes them, rows become data files."""

import json
import random
from dataclasses import replace
from datetime import date, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from icedb_engine.units.merge_unit import count_unit, merge_unit
from icedb_engine.units.read_unit import CHUNK_BYTES, read_files
from icedb_engine.work import MergeUnit
from icedb_log.errors import CorruptLog, InvalidRequest, NotFound, SchemaConflict, Unavailable
from icedb_log.jobs import MergeGroup, RowChange
from icedb_log.units import MIB

COLUMNS = {"ts": "TIMESTAMP", "User": "VARCHAR", "x": "DOUBLE"}


@pytest.fixture
def table(make_table):
    return make_table("d=day(ts)", sort=("User",))


def read(table, *files, columns=COLUMNS, is_whole=True):
    unit = table.read_unit(columns, *files, is_whole=is_whole)
    return [row for chunk in read_files(unit, table.store) for row in chunk.to_pylist()]


def test_pages_that_differ_from_their_checksums_halt(table):
    options = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    marker = table.put_file(pa.table({"x": [0.5] * 1000}), "a", **options)
    body = bytearray(table.store.get(marker.path).body)
    body[1000] ^= 1
    table.store.put(marker.path, bytes(body))
    with pytest.raises(CorruptLog, match=r"a.parquet cannot be read .*another checksum than its bytes"):
        read(table, marker)


def test_a_column_that_the_table_has_not_is_left_out_only_if_it_repeats_the_path(make_table):
    table = make_table()
    same = table.put_file(pa.table({"x": [0.5], "d": [date(2023, 6, 7)]}), "a", partition="d=2023-06-07")
    other = table.put_file(pa.table({"x": [0.5], "d": [date(2023, 6, 8)]}), "b", partition="d=2023-06-07")
    assert [row["c0"] for row in read(table, same, columns={"x": "DOUBLE"})] == [0.5]
    with pytest.raises(
        SchemaConflict, match=r"column 'd' is DATE in data file .*/b.parquet, but the table has no such"
    ):
        read(table, other, columns={"x": "DOUBLE"})


def test_rows_have_the_types_and_columns_of_the_table(table):
    narrow = table.put_file(pa.table({"x": pa.array([7], pa.int32()), "ts": [date(2023, 6, 1)]}), "a")
    wide = table.put_file(pa.table({"User": ["ann"], "x": [0.5]}), "b")
    rows = read(table, narrow, wide)
    assert [list(row.values()) for row in rows] == [
        [0, datetime.fromisoformat("2023-06-01T00:00:00+00:00"), None, 7.0],
        [1, None, "ann", 0.5],
    ]
    assert [row["c0"] for row in read(table, wide, columns={"x": "DOUBLE"}, is_whole=False)] == [0.5]
    assert read(table, wide, columns={}, is_whole=False) == [{"ordinal": 0}]


def test_a_file_that_is_not_the_tables_is_named(table):
    good = table.put_file(pa.table({"x": [1.5]}), "a")
    with pytest.raises(CorruptLog, match=f"{good.path} has 1 rows, and 2 by the log"):
        read(table, replace(good, row_count=2))
    for name, values, reason in (
        ("more", [1], "'more' is BIGINT .*the table has no such column"),
        ("user", ["a"], "'user' is VARCHAR .*the table has 'User' as VARCHAR"),
        ("x", ["a"], "'x' is VARCHAR .*the table has 'x' as DOUBLE"),
    ):
        with pytest.raises(SchemaConflict, match=reason):
            read(table, table.put_file(pa.table({name: values}), "b"))
    table.store.delete([good.path])
    with pytest.raises(NotFound, match=f"data file {good.path} is gone"):
        read(table, good)


def test_chunks_of_wide_rows_are_bounded(table):
    text = ["y" * 500_000 + str(number) for number in range(64)]
    marker = table.put_file(pa.table({"User": text}), "a", compression="zstd", use_dictionary=False)
    unit = table.read_unit(COLUMNS, marker, is_whole=True)
    sizes = [chunk.nbytes for chunk in read_files(unit, table.store)]
    assert len(sizes) > 2
    assert max(sizes) <= 2 * CHUNK_BYTES


JUNE = "d=2023-06-01"
MORNING = datetime.fromisoformat("2023-06-01T10:00:00")


def put(table, name, *rows, partition=JUNE, columns=("ts", "User", "x")):
    data = {column: list(values) for column, values in zip(columns, zip(*rows, strict=True), strict=True)}
    kinds = {"ts": pa.timestamp("us"), "User": pa.string(), "x": pa.float64(), "n": pa.int64()}
    arrays = {column: pa.array(values, kinds[column]) for column, values in data.items()}
    return table.put_file(pa.table(arrays), name, partition=partition)


def change(table, kind, sql, *inputs, schema=COLUMNS, partition=JUNE, **limits):
    unit = table.unit(
        MergeUnit,
        schema=schema,
        group=MergeGroup(partition, tuple(inputs)),
        change=RowChange(kind, sql),
        time_ms=5,
        engine=replace(table.engine, **limits),
    )
    return merge_unit(unit, table.store, clock=table.clock)


def read_outputs(table, result):
    rows = []
    for marker in result.outputs:
        rows += pq.read_table(pa.BufferReader(table.store.get(marker.path).body)).to_pylist()
    return rows


def test_what_a_deletion_leaves_is_written_sorted_and_counted(table):
    first = put(table, "a", (MORNING, "b", 1.0), (MORNING, "z", 2.0), (MORNING, None, 3.0))
    second = put(table, "b", (MORNING, "a", 6.0), (MORNING, "q", 4.0))
    result = change(table, "delete", "\"user\" = 'z' OR x = 4", first, second)
    assert (result.rows_read, result.rows_removed) == (5, 2)
    (marker,) = result.outputs
    found = pq.read_table(pa.BufferReader(table.store.get(marker.path).body))
    assert found["User"].to_pylist() == ["a", "b", None]
    assert found.schema.field("ts").type == pa.timestamp("us")
    footer = {name.decode(): value.decode() for name, value in found.schema.metadata.items()}
    assert (footer["icedb.kind"], json.loads(footer["icedb.inputs"])) == ("delete", [first.path, second.path])
    assert (marker.row_count, marker.created_ms, marker.stats["User"]) == (3, 5, ("a", "b", 1))
    assert change(table, "delete", "true", first).outputs == ()
    assert change(table, "delete", "User = NULL", first).rows_removed == 0
    assert [row["User"] for row in read_outputs(table, change(table, "delete", "x > 2.5", first))] == ["b", "z"]


def test_rows_are_counted_for_each_file(table):
    first = put(table, "a", (MORNING, "b", 1.0), (MORNING, "z", None))
    second = put(table, "b", (MORNING, "b", 6.0))

    def count(condition):
        return count_unit(table.read_unit(COLUMNS, first, second, where=condition), table.store)

    assert count("User = 'b'") == (1, 1)
    assert count("x IS NULL") == (1, 0)
    assert count("true") == (2, 1)
    with pytest.raises(InvalidRequest, match=r"table events: condition: Conversion Error.*'b'"):
        count("CAST(User AS INT) = 1")
    with pytest.raises(InvalidRequest, match=r'"Usr" not found in FROM clause! Candidate bindings: "User"'):
        count("Usr = 'b'")


def test_a_deletion_goes_by_the_types_of_the_table(table):
    narrow = put(table, "a", (1,), (2,), (3,), columns=("n",))
    kept = change(table, "delete", "n >= 2.5", narrow, schema={"n": "DOUBLE"})
    assert (kept.rows_removed, [row["n"] for row in read_outputs(table, kept)]) == (1, [1.0, 2.0])


def test_a_query_makes_the_rows_of_a_group(table):
    first = put(table, "a", (MORNING, "b", 1.0), (MORNING, "a", 2.0))
    second = put(table, "b", (MORNING, "b", 6.0))
    sql = 'SELECT min(ts) AS ts, "User", sum(x) AS x FROM source_files GROUP BY "User"'
    result = change(table, "merge_query", sql, first, second)
    assert (result.rows_read, result.rows_removed) == (3, None)
    assert [(row["User"], row["x"]) for row in read_outputs(table, result)] == [("a", 2.0), ("b", 7.0)]
    narrower = change(table, "rewrite", 'SELECT ts, "User" FROM _rows', first)
    assert list(read_outputs(table, narrower)[0]) == ["ts", "User"]
    assert change(table, "rewrite", "SELECT * FROM _rows WHERE x > 9", first).outputs == ()


@pytest.mark.parametrize(
    ("ts", "said"),
    [
        ("TIMESTAMP '2023-06-02'", "'2023-06-02 00:00:00', and it belongs into d=2023-06-02"),
        ("CAST(NULL AS TIMESTAMP)", "'None', and NULL has no partition"),
    ],
)
def test_a_row_that_belongs_elsewhere_is_refused_unless_nobody_touched_it(table, ts, said):
    marker = put(table, "a", (MORNING, "a", 1.0), (MORNING, "b", 1.0))
    query = f"SELECT * REPLACE (if(\"User\" = 'b', {ts}, ts) AS ts) FROM _rows"
    with pytest.raises(InvalidRequest, match=f"a row of partition d=2023-06-01 would have ts = {said}"):
        change(table, "rewrite", query, marker)
    strayed = put(table, "c", (datetime.fromisoformat("2023-06-02"), "a", 1.0), (MORNING, "b", 1.0))
    assert change(table, "delete", "User = 'b'", strayed).rows_removed == 1
    other = put(table, "b", (MORNING, "b", 1.0), partition="other=1")
    assert change(table, "rewrite", query, other, partition="other=1").rows_read == 1


def test_a_decimal_or_huge_integer_goes_into_its_column_if_it_fits(table):
    marker = put(table, "a", (MORNING, "a", 1.0), (MORNING, "b", 1.0))
    schema = {**COLUMNS, "n": "BIGINT"}
    sql = 'SELECT ts, "User", sum(CAST(x AS DECIMAL(30, 3))) AS x, sum(CAST(x AS BIGINT)) AS n FROM _rows GROUP BY 1, 2'
    rows = read_outputs(table, change(table, "rewrite", sql, marker, schema=schema))
    assert [(row["x"], row["n"]) for row in rows] == [(1.0, 1), (1.0, 1)]
    sql = 'SELECT ts, "User", 0.12345678901234567890::DECIMAL(25, 20) AS x FROM _rows'
    rows = read_outputs(table, change(table, "rewrite", sql, marker, schema=schema))
    assert {row["x"] for row in rows} == {0.12345678901234568}, "the nearest double"
    for value, kind in (
        ("9223372036854775808::HUGEINT AS n", "n is BIGINT, which cannot hold this HUGEINT"),
        ("1.5::DECIMAL(5, 2) AS n", "n is BIGINT, which cannot hold this DECIMAL"),
        ("9007199254740993 AS x", "x is DOUBLE, which cannot hold this BIGINT"),
    ):
        with pytest.raises(InvalidRequest, match=f"column {kind}"):
            change(table, "rewrite", f'SELECT ts, "User", {value} FROM _rows', marker, schema=schema)


def test_a_group_that_is_too_large_for_its_query_is_cut_and_a_file_that_is_is_said(table):
    rows = [(MORNING, f"{number:0200}", float(number)) for number in range(300)]
    markers = [put(table, name, *rows) for name in ("a", "b", "c")]
    # The value of one file has 180 MB, that of two does not fit.
    sql = 'SELECT min(ts) AS ts, max("User") AS "User", sum(len(repeat("User", 1000))) AS x FROM source_files'
    result = change(table, "merge_query", sql, *markers)
    assert (result.rows_read, len(read_outputs(table, result))) == (900, 1)
    huge = sql.replace('sum(len(repeat("User", 1000)))', "len(repeat(string_agg(\"User\", '' ORDER BY x), 3000))")
    assert len(read_outputs(table, change(table, "merge_query", huge, *markers, memory_bytes=3 * 160 * MIB))) > 1
    with pytest.raises(InvalidRequest, match=r"merge_query: it needs more than \d+ MiB of memory"):
        change(table, "merge_query", huge.replace("3000", "10000"), *markers)
    with pytest.raises(InvalidRequest, match=r"rewrite query: it needs more than \d+ MiB of memory"):
        change(table, "rewrite", huge.replace("source_files", "_rows"), *markers, memory_bytes=3 * 160 * MIB)


def test_more_rows_than_memory_are_sorted_on_disk_and_too_little_disk_is_said(table, tmp_path):
    noise = random.Random(5)
    markers = []
    for number in range(10):
        text = noise.randbytes(20_000 * 150).hex()  # nothing that could be compressed
        users = pa.table({"User": [text[start : start + 300] for start in range(0, len(text), 300)]})
        markers.append(table.put_file(users, f"f{number}", partition=JUNE))

    def write(**limits):
        folder = str(tmp_path)
        return change(
            table,
            "delete",
            "User = ''",
            *markers,
            schema={"User": "VARCHAR"},
            thread_count=1,
            scratch_folder=folder,
            **limits,
        )

    users = [row["User"] for row in read_outputs(table, write(memory_bytes=3 * 48 * MIB))]
    assert len(users) == 200_000 and users == sorted(users)
    with pytest.raises(Unavailable, match=f"memory {8 * MIB} bytes, scratch {MIB} bytes"):
        write(memory_bytes=3 * 8 * MIB, scratch_bytes=MIB)
    assert list(tmp_path.iterdir()) == [], "nothing stays in the scratch folder"
