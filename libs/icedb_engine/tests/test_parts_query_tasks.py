"""What tasks of a flush with an ``insert_query`` do, without Spark: blobs to rows, rows to blobs."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest
from icedb_engine.query.query_tasks import LostBlobs, make_decode_task
from icedb_engine.query.query_types import find_sql_type
from icedb_engine.spark.spark_blobs import make_blob_row, make_result_row
from icedb_engine.spark.spark_read import ReadUnit
from icedb_engine.units.flush_types import FlushUnit
from icedb_engine.units.flush_unit import EncodeUnit, FilledBlob, encode_unit, parse_unit
from icedb_log.errors import InvalidRequest

TYPES = {"ts": "TIMESTAMP", "n": "BIGINT", "more": "VARCHAR"}


def parse(table, number, *rows):
    """Return the rows that a parse task hands to Spark, and the unit as the driver knows it."""
    batch = table.stage(*rows)
    unit = FlushUnit(table.paths, table.config, TYPES, (batch,), "c1", 1, table.limits, table.engine)
    *filled, result = parse_unit(unit, table.store)
    handed = [make_blob_row(number, each.blob.number, each.body) for each in filled]
    return [*handed, make_result_row(number, "ok", "{}")], ReadUnit(number, (batch,), result)


def test_blobs_become_rows_with_all_columns_in_utc(make_table):
    table = make_table()
    first, one = parse(table, 0, {"ts": "2023-06-07T10:00:00Z", "n": 1})
    second, two = parse(table, 1, {"n": 2, "more": "x"})
    other, _ = parse(table, 2, {"n": 3})
    rows = [
        row
        for chunk in make_decode_task([one, two], TYPES)(iter([*first, *other, *second]))
        for row in chunk.to_pylist()
    ]
    assert rows == [
        {"ts": datetime(2023, 6, 7, 10, tzinfo=UTC), "n": 1, "more": None},
        {"ts": None, "n": 2, "more": "x"},
    ], "in the order in which they come; units that do not count are passed over"


@pytest.mark.parametrize("spoil", [lambda handed, other: handed[1:], lambda handed, other: [*other[:1], *handed[1:]]])
def test_a_blob_that_is_lost_or_was_made_again_is_found(make_table, spoil):
    table = make_table()
    handed, unit = parse(table, 0, {"n": 1})
    other, _ = parse(table, 0, {"n": 2})
    with pytest.raises(LostBlobs):
        list(make_decode_task([unit], TYPES)(iter(spoil(handed, other))))


def rows_of_query(*rows):
    schema = pa.schema([("ts", pa.timestamp("us", tz="UTC")), ("n", pa.int64())])
    return [pa.RecordBatch.from_pylist(list(rows), schema=schema)]


def encode(table, *rows):
    unit = EncodeUnit(table.paths, table.config, {"ts": "TIMESTAMP", "n": "BIGINT"}, table.engine)
    *filled, result = encode_unit(unit, iter(rows_of_query(*rows)) if rows else iter(()))
    assert all(isinstance(each, FilledBlob) for each in filled)
    return [pa.ipc.open_stream(each.body).read_all().to_pylist() for each in filled], result


def test_rows_of_a_query_become_sorted_blobs_of_partitions(make_table):
    table = make_table("d=day(ts)", "b=bucket[1](n)", sort=("n",))
    day = [datetime(2023, 6, day, tzinfo=UTC) for day in (7, 8)]
    read, result = encode(table, *({"ts": day[n % 2], "n": n} for n in (3, 1, 2, 0)))
    assert result.partitions == ("d=2023-06-07/b=0", "d=2023-06-08/b=0")
    assert [[row["n"] for row in rows] for rows in read] == [[0, 2], [1, 3]]
    assert (result.row_count, [blob.partition for blob in result.blobs]) == (4, [0, 1])
    assert read[0][0]["ts"] == datetime(2023, 6, 7), "naive, UTC"
    assert encode(table)[1].row_count == 0
    whole, result = encode(make_table(sort=("n",)), {"ts": None, "n": 2}, {"ts": None, "n": None}, {"ts": None, "n": 1})
    assert (result.partitions, [row["n"] for row in whole[0]]) == (("",), [1, 2, None])


def test_rows_without_a_usable_partition_are_refused(make_table):
    with pytest.raises(InvalidRequest, match=r"column 'ts' is NULL, and partition d=day\(ts\)"):
        encode(make_table("d=day(ts)"), {"ts": None, "n": 1}, {"ts": datetime(2023, 6, 7, tzinfo=UTC), "n": 1})


@pytest.mark.parametrize(
    ("spark_type", "sql_type"),
    [
        *(("int", "BIGINT"), ("decimal(18,0)", "BIGINT"), ("decimal(15,4)", "DOUBLE"), ("float", "DOUBLE")),
        *(("string", "VARCHAR"), ("varchar(10)", "VARCHAR"), ("timestamp_ntz", "TIMESTAMP")),
    ],
)
def test_types_of_spark_become_ours(spark_type, sql_type):
    assert find_sql_type("x", spark_type) == sql_type


@pytest.mark.parametrize(
    ("spark_type", "remedy"),
    [
        ("decimal(19,0)", "CAST"), ("decimal(16,1)", "would lose digits"), ("struct<a:int>", "to_json"), ("array<int>", "to_json"),
        ("map<string,int>", "to_json"), ("void", "CAST(NULL AS …)"), ("binary", "CAST(… AS STRING)"), ("interval day", "CAST"),
    ],
)  # fmt: skip
def test_other_types_name_the_cast_that_is_needed(spark_type, remedy):
    with pytest.raises(InvalidRequest) as raised:
        find_sql_type("x", spark_type)
    assert remedy in str(raised.value)
