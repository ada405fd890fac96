"""One task of a write: typed rows become data files, and what does not fit is one clear error."""

import pyarrow as pa
import pytest
from icedb_engine.reading import data_files
from icedb_engine.sql.checks import check_reader_condition
from icedb_engine.units.read_unit import read_files
from icedb_engine.units.typed_rows import append_unit
from icedb_log.errors import InvalidRequest
from icedb_log.store.object_store import MAX_KEY_BYTES
from icedb_log.table.file_pruning import FilePruner

UTC = pa.timestamp("us", tz="UTC")


def append(table, data, **types):
    batch = pa.record_batch(list(data.values()), names=list(data))
    return append_unit(table.write_unit(types), [batch], table.store, clock=table.clock).files


def read(table, files, columns, **options):
    unit = table.read_unit(columns, *files, **options)
    rows = []
    for batch in read_files(unit, table.store):
        names = list(unit.outputs)
        rows += [dict(zip(names, list(row.values())[1:], strict=True)) for row in batch.to_pylist()]
    return rows


def test_rows_are_partitioned_sorted_and_described(make_table):
    table = make_table("d=day(ts)", sort=("c0", "c1"), declared={"c0": "BIGINT"})
    data = {
        "ts": pa.array([1, 86_400_000_001, 2, 3], UTC),
        "c1": pa.array([1, 2, 3, 1], pa.int32()),
        "c0": pa.array([9, 5, 7, 7], pa.int16()),
    }
    files = append(table, data, ts="TIMESTAMP", c1="BIGINT", c0="BIGINT")
    assert [table.paths.partition_of(marker.path) for marker in files] == ["d=1970-01-01", "d=1970-01-02"]
    assert [(row["c0"], row["c1"]) for row in table.rows(files[0])] == [(7, 1), (7, 3), (9, 1)]
    assert files[0].row_count == 3
    assert files[0].stats["c0"] == (7, 9, 0)
    footer = table.parquet(files[0]).metadata.metadata
    assert (footer[b"icedb.kind"], footer[b"icedb.commit"]) == (b"flush", b"c0ffee")


@pytest.mark.parametrize("is_outside", [False, True])
def test_a_negative_zero_stays_one_in_a_sort_column(make_table, monkeypatch, is_outside):
    """DuckDB gives a column that it sorts by back as it compares it: zeros lost their sign in flushes, writes, merges."""
    if is_outside:
        monkeypatch.setattr(data_files, "MAX_DECODED_BYTES", 0)
    table = make_table(sort=("x",))
    zeros = [{"x": -0.0, "n": 1}, {"x": 0.0, "n": 2}, {"x": 0.5, "n": 3}]
    flushed = table.flush(table.stage(*zeros)).files
    written = append(table, {"x": pa.array([0.5, -0.0, 0.0]), "n": pa.array([6, 4, 5])}, x="DOUBLE", n="BIGINT")
    merged = table.merge(*flushed, *written).outputs
    for files, count in ((flushed, 3), (written, 3), (merged, 6)):
        rows = table.rows(*files)
        assert {row["n"]: str(row["x"]) for row in rows} == {
            n: x for n, x in {1: "-0.0", 2: "0.0", 3: "0.5", 4: "-0.0", 5: "0.0", 6: "0.5"}.items()
            if n in {row["n"] for row in rows}
        }  # fmt: skip
        assert len(rows) == count and [abs(row["x"]) for row in rows] == sorted(abs(row["x"]) for row in rows)
        for condition in ("x = 0.0", "x = -0.0", "x <= -0.0", "x >= 0.0", "NOT x <> -0.0"):
            assert FilePruner(condition, table.config, schema={"x": "DOUBLE"}).select(files), condition


def test_no_rows_make_no_files(make_table):
    table = make_table()
    assert append(table, {"n": pa.array([], pa.int64())}, n="BIGINT") == ()


@pytest.mark.parametrize(
    ("array", "sql_type"),
    [
        (pa.array([1 << 53, (1 << 53) + 1]), "DOUBLE"),
        (pa.array([1 << 63], pa.uint64()), "BIGINT"),
    ],
)
def test_a_value_that_would_lose_digits_is_an_error(make_table, array, sql_type):
    with pytest.raises(InvalidRequest, match="column 'n' does not go into"):
        append(make_table(), {"n": array}, n=sql_type)


def test_types_that_lose_nothing_go_in(make_table):
    table = make_table()
    data = {"n": pa.array([1 << 53]), "d": pa.array([1], pa.date32()), "x": pa.nulls(1)}
    files = append(table, data, n="DOUBLE", d="TIMESTAMP", x="VARCHAR")
    row = table.rows(*files)[0]
    assert (row["n"], row["d"].isoformat(), row["x"]) == (float(1 << 53), "1970-01-02T00:00:00", None)


def test_a_row_without_a_partition_value_is_an_error(make_table):
    with pytest.raises(InvalidRequest, match="the write gives a row in which column 'ts' is NULL"):
        append(make_table("d=day(ts)"), {"ts": pa.array([None], UTC)}, ts="TIMESTAMP")


def test_partition_values_that_make_a_key_too_long_together_are_an_error(make_table):
    names = [f"c{number}" for number in range(6)]
    table = make_table(*names)

    def write(count):
        return append(table, {name: pa.array(["x" * count]) for name in names}, **dict.fromkeys(names, "VARCHAR"))

    (marker,) = write(130)
    assert len(marker.path) <= MAX_KEY_BYTES
    with pytest.raises(InvalidRequest, match=r"190 bytes a value and \d+ a key"):
        write(190)


def test_a_time_that_the_table_does_not_take_is_an_error(make_table):
    times = {"at": {"unit": "epoch_ms", "from_ms": 946_684_800_000, "to_ms": 4_102_444_800_000}}
    table = make_table(declared={"at": "BIGINT"}, times=times)
    assert len(append(table, {"at": pa.array([1_767_312_000_000, None])}, at="BIGINT")) == 1
    with pytest.raises(InvalidRequest, match=r"the write gives at = 1767312000: .*looks like seconds"):
        append(table, {"at": pa.array([1_767_312_000_000, 1_767_312_000])}, at="BIGINT")


def test_a_condition_chooses_rows_and_columns_come_in_the_order_asked_for(make_table):
    table = make_table()
    files = append(table, {"n": pa.array([1, 2, 3]), "s": pa.array(["a", "b", None])}, n="BIGINT", s="VARCHAR")
    columns = {"n": "DOUBLE", "s": "VARCHAR", "new": "DATE"}
    rows = read(table, files, columns, where="n >= 2 OR new IS NOT NULL", wanted=("new", "n"))
    assert rows == [{"new": None, "n": 2.0}, {"new": None, "n": 3.0}]
    assert read(table, files, columns, where="s = 'b'") == [{"n": 2.0, "s": "b", "new": None}]
    assert read(table, files, columns, where="s = 'z'") == []


def test_a_condition_that_fails_on_a_row_blames_the_condition(make_table):
    table = make_table()
    files = append(table, {"s": pa.array(["a"])}, s="VARCHAR")
    with pytest.raises(InvalidRequest, match="the condition cannot be evaluated on the rows"):
        read(table, files, {"s": "VARCHAR"}, where="CAST(s AS BIGINT) = 1")


def test_a_condition_reaches_no_file_even_when_it_is_not_checked(make_table, tmp_path):
    table = make_table()
    files = append(table, {"s": pa.array(["a"])}, s="VARCHAR")
    secret = tmp_path / "secret.csv"
    secret.write_text("password\nhunter2\n")
    with pytest.raises(Exception, match=r"(?i)permission|cannot be read|disabled"):
        read(table, files, {"s": "VARCHAR"}, where=f"EXISTS (FROM read_csv('{secret}'))")


SCHEMA = {"ts": "TIMESTAMP", "event": "VARCHAR", "n": "BIGINT"}


@pytest.mark.parametrize(
    "condition",
    [
        "event = 'x' AND n > 3 -- fine",
        "ts >= '2023-01-01' AND n BETWEEN 1 AND 3",
        "list_contains([1, 2], n) OR event ~ 'a.*'",
        "CASE WHEN n = 1 THEN true END",
    ],
)
def test_conditions_over_a_row_are_taken(condition):
    check_reader_condition(condition, SCHEMA, table="events")


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("", "is empty"),
        ("n =", "not understood"),
        ("x = 1", "no column 'x'"),
        ("1 = 1) UNION ALL SELECT (1", "not understood"),
        ("n = 1) ORDER BY (n", "not understood"),
        ("n = 1; DROP TABLE t", "semicolon"),
        ("EXISTS (FROM read_csv('/etc/passwd'))", "subquery"),
        ("n IN (SELECT n FROM t)", "subquery"),
        ("count(*) > 1", "aggregate"),
        ("row_number() OVER () = 1", "window|aggregate"),
        ("unnest([1, 2]) = n", "no generator"),
        ("event = $1", "parameter"),
        ("no_such_function(n)", "does not exist"),
    ],
)
def test_other_conditions_are_refused_with_the_reason(condition, message):
    with pytest.raises(InvalidRequest, match=message) as caught:
        check_reader_condition(condition, SCHEMA, table="events")
    assert "\x1b" not in str(caught.value)
