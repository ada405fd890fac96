"""What tasks of a change do, without Spark: data files become rows, rows become data files."""

import json
import random
from datetime import date, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from icedb_engine.limits import EngineLimits
from icedb_engine.spark.change_tasks import make_hidden_names
from icedb_engine.units.change_unit import ChangedGroup, ChangeUnit, make_error_text, read_error_text, write_change
from icedb_engine.units.read_unit import CHUNK_BYTES, NumberedFile, ReadFilesUnit, read_files, spark_arrow_type
from icedb_log.errors import CorruptLog, Fenced, InvalidRequest, NotFound, SchemaConflict, Unavailable
from icedb_log.units import MIB

COLUMNS = {"ts": "TIMESTAMP", "User": "VARCHAR", "x": "DOUBLE"}


@pytest.fixture
def table(make_table):
    return make_table("d=day(ts)", sort=("User",))


def read(table, *files, columns=COLUMNS, is_whole=True):
    unit = ReadFilesUnit(table.paths, columns, is_whole, files, table.engine)
    return [row for chunk in read_files(unit, table.store) for row in chunk.to_pylist()]


def numbered(marker, ordinal=0, row_count=None):
    return NumberedFile(ordinal, marker.path, row_count)


def test_pages_that_differ_from_their_checksums_halt(table):
    options = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    marker = table.put_file(pa.table({"x": [0.5] * 1000}), "a", **options)
    body = bytearray(table.store.get(marker.path).body)
    body[1000] ^= 1
    table.store.put(marker.path, bytes(body))
    with pytest.raises(CorruptLog, match=r"a.parquet cannot be read .*another checksum than its bytes"):
        read(table, numbered(marker))


def test_a_column_that_the_table_has_not_is_left_out_only_if_it_repeats_the_path(make_table):
    table = make_table()
    same = table.put_file(pa.table({"x": [0.5], "d": [date(2023, 6, 7)]}), "a", partition="d=2023-06-07")
    other = table.put_file(pa.table({"x": [0.5], "d": [date(2023, 6, 8)]}), "b", partition="d=2023-06-07")
    assert [row["c0"] for row in read(table, numbered(same), columns={"x": "DOUBLE"})] == [0.5]
    with pytest.raises(
        SchemaConflict, match=r"column 'd' is DATE in data file .*/b.parquet, but the table has no such"
    ):
        read(table, numbered(other), columns={"x": "DOUBLE"})


def test_rows_have_the_types_and_columns_of_the_table(table):
    narrow = table.put_file(pa.table({"x": pa.array([7], pa.int32()), "ts": [date(2023, 6, 1)]}), "a")
    wide = table.put_file(pa.table({"User": ["ann"], "x": [0.5]}), "b")
    rows = read(table, numbered(narrow, 3, 1), numbered(wide, 5))
    assert [list(row.values()) for row in rows] == [
        [3, datetime.fromisoformat("2023-06-01T00:00:00+00:00"), None, 7.0],
        [5, None, "ann", 0.5],
    ]
    assert [row["c0"] for row in read(table, numbered(wide), columns={"x": "DOUBLE"}, is_whole=False)] == [0.5]
    assert read(table, numbered(wide, 4), columns={}, is_whole=False) == [{"ordinal": 4}]


def test_a_file_that_is_not_the_tables_is_named(table):
    good = table.put_file(pa.table({"x": [1.5]}), "a")
    with pytest.raises(CorruptLog, match=f"{good.path} has 1 rows, and 2 by the log"):
        read(table, numbered(good, 0, 2))
    for name, values, reason in (
        ("more", [1], "'more' is BIGINT .*the table has no such column"),
        ("user", ["a"], "'user' is VARCHAR .*the table has 'User' as VARCHAR"),
        ("x", ["a"], "'x' is VARCHAR .*the table has 'x' as DOUBLE"),
    ):
        with pytest.raises(SchemaConflict, match=reason):
            read(table, numbered(table.put_file(pa.table({name: values}), "b")))
    table.store.delete([good.path])
    with pytest.raises(NotFound, match=f"data file {good.path} is gone"):
        read(table, numbered(good))


def test_chunks_of_wide_rows_are_bounded(table):
    text = ["y" * 500_000 + str(number) for number in range(64)]
    marker = table.put_file(pa.table({"User": text}), "a", compression="zstd", use_dictionary=False)
    unit = ReadFilesUnit(table.paths, COLUMNS, True, (numbered(marker),), table.engine)
    sizes = [chunk.nbytes for chunk in read_files(unit, table.store)]
    assert len(sizes) > 2
    assert max(sizes) <= 2 * CHUNK_BYTES


def make_unit(table, *groups, columns=COLUMNS, checks=True, **options):
    return ChangeUnit(
        paths=table.paths,
        config=table.config,
        columns=columns,
        groups=tuple(ChangedGroup(partition, inputs) for partition, inputs in groups),
        kind="delete",
        checks_partition=checks,
        commit_id="c0",
        time_ms=5,
        engine=options.get("engine", table.engine),
    )


def make_chunk(rows, columns=COLUMNS):
    """Return rows ``(ordinal, removed, *values)`` as Spark gives them."""
    hidden = [pa.int32(), pa.string(), pa.bool_()]
    types = [*hidden, *(spark_arrow_type(kind) for kind in columns.values())]
    rows = [(ordinal, None, gone, *values) for ordinal, gone, *values in rows]
    arrays = [pa.array(values, kind) for values, kind in zip(zip(*rows, strict=True), types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=[f"n{place}" for place in range(len(arrays))])


MORNING = datetime.fromisoformat("2023-06-01T10:00:00+00:00")
JUNE = ("d=2023-06-01", ("in/a",))


def test_what_is_left_is_written_sorted_and_counted_by_group(table):
    unit = make_unit(table, JUNE, ("d=2023-06-01", ("in/b",)), ("d=2023-06-01", ("in/c",)))
    chunks = [
        make_chunk([(1, False, MORNING, "b", 1.0), (0, True, MORNING, "z", 2.0), (1, False, MORNING, None, 3.0)]),
        make_chunk([(2, True, MORNING, "q", 4.0), (1, True, MORNING, "a", 5.0), (1, False, MORNING, "a", 6.0)]),
    ]
    outputs = write_change(unit, chunks, table.store, clock=table.clock)
    assert [(each.ordinal, each.rows_read, each.rows_removed, len(each.files)) for each in outputs] == [
        (0, 1, 1, 0),
        (1, 4, 1, 1),
        (2, 1, 1, 0),
    ]
    (marker,) = outputs[1].files
    found = pq.read_table(pa.BufferReader(table.store.get(marker.path).body))
    assert found["User"].to_pylist() == ["a", "b", None]
    assert found.schema.field("ts").type == pa.timestamp("us")
    footer = {name.decode(): value.decode() for name, value in found.schema.metadata.items()}
    assert (footer["icedb.kind"], json.loads(footer["icedb.inputs"])) == ("delete", ["in/b"])
    assert (marker.row_count, marker.created_ms, marker.stats["User"]) == (3, 5, ("a", "b", 1))
    assert write_change(unit, [], table.store, clock=table.clock) == ()


@pytest.mark.parametrize(
    ("ts", "said"),
    [
        (
            datetime.fromisoformat("2023-06-02T00:00:00+00:00"),
            "'2023-06-02 00:00:00', and it belongs into d=2023-06-02",
        ),
        (None, "'None', and NULL has no partition"),
    ],
)
def test_a_row_that_belongs_elsewhere_is_refused_unless_nobody_touched_it(table, ts, said):
    chunk = make_chunk([(0, False, MORNING, "a", 1.0), (0, False, ts, "b", 1.0)])
    with pytest.raises(InvalidRequest, match=f"a row of partition d=2023-06-01 would have ts = {said}"):
        write_change(make_unit(table, JUNE), [chunk], table.store, clock=table.clock)
    for unit in (make_unit(table, JUNE, checks=False), make_unit(table, ("other=1", ()))):
        (output,) = write_change(unit, [chunk], table.store, clock=table.clock)
        assert output.rows_read == 2


def test_an_error_that_a_task_sent_beside_rows_is_raised_as_it_was(table):
    for error in (Fenced("by b: and c"), CorruptLog("x")):
        assert (type(read_error_text(make_error_text(error))), str(error)) == (type(error), str(error))
    assert isinstance(read_error_text("KeyboardInterrupt:x"), Unavailable)
    chunk = make_chunk([(0, False, None, None, None)])
    broken = chunk.set_column(1, "n1", pa.array([make_error_text(NotFound("file y is gone"))]))
    with pytest.raises(NotFound, match=r"^file y is gone$"):
        write_change(make_unit(table, JUNE), [broken], table.store, clock=table.clock)


def test_more_rows_than_memory_are_sorted_on_disk_and_too_little_disk_is_said(table, tmp_path):
    def chunks():
        noise = random.Random(5)
        for _ in range(10):
            text = noise.randbytes(20_000 * 150).hex()  # nothing that could be compressed
            users = pa.array([text[start : start + 300] for start in range(0, len(text), 300)])
            hidden = [pa.repeat(pa.scalar(0, pa.int32()), 20_000), pa.nulls(20_000, pa.string())]
            yield pa.RecordBatch.from_arrays(
                [*hidden, pa.repeat(pa.scalar(False), 20_000), users], names=["o", "e", "g", "c0"]
            )

    def write(**limits):
        engine = EngineLimits(thread_count=1, scratch_folder=str(tmp_path), **limits)
        unit = make_unit(table, JUNE, columns={"User": "VARCHAR"}, engine=engine)
        return write_change(unit, chunks(), table.store, clock=table.clock)

    (output,) = write(memory_bytes=48 * MIB)
    users = [
        user
        for marker in output.files
        for user in pq.read_table(pa.BufferReader(table.store.get(marker.path).body))["User"].to_pylist()
    ]
    assert len(users) == 200_000 and users == sorted(users)
    with pytest.raises(Unavailable, match=f"memory {8 * MIB} bytes, scratch {MIB} bytes"):
        write(memory_bytes=8 * MIB, scratch_bytes=MIB)
    assert list(tmp_path.iterdir()) == [], "nothing stays in the scratch folder"


def test_hidden_columns_have_names_that_no_column_has():
    assert make_hidden_names(["a"]).ordinal == "__icedb_ordinal"
    assert make_hidden_names(["__ICEDB_Error", "__icedb__x"]).error == "__icedb____error"
