"""What a merge writes: all rows once, sorted, with the union of the columns, within its memory."""

import json
from dataclasses import replace
from datetime import datetime

import icedb_parts.units.merge_unit
import numpy as np
import pyarrow as pa
import pytest
from icedb_log.errors import CorruptLog, NotFound, SchemaConflict, Unavailable
from icedb_log.model import FileMarker
from icedb_parts.engine import open_engine
from icedb_parts.limits import MIB

SCHEMA = {"ts": "TIMESTAMP", "event": "VARCHAR", "n": "BIGINT", "late": "DOUBLE"}


def test_rows_are_kept_sorted_and_united_by_column_name(make_table):
    table = make_table("d=day(ts)", sort=("event", "ts"))
    ts = "2023-06-07T0{}:00:00Z"
    files = [
        *table.flush(table.stage({"ts": ts.format(2), "event": "b", "n": 1}, {"ts": ts.format(1), "n": 2})).files,
        *table.flush(
            table.stage({"ts": ts.format(1), "event": "b", "late": 0.5}, {"ts": ts.format(3), "event": "a"})
        ).files,
    ]
    result = table.merge(*files, schema=SCHEMA)
    (marker,) = result.outputs
    assert result.rows_read == marker.row_count == 4
    assert table.paths.partition_of(marker.path) == "d=2023-06-07"
    assert [tuple(row.values()) for row in table.rows(marker)] == [
        (datetime(2023, 6, 7, 3), "a", None, None),
        (datetime(2023, 6, 7, 1), "b", None, 0.5),
        (datetime(2023, 6, 7, 2), "b", 1, None),
        (datetime(2023, 6, 7, 1), None, 2, None),
    ]
    assert marker.stats == {
        "ts": ("2023-06-07T01:00:00.000000Z", "2023-06-07T03:00:00.000000Z", 0),
        "event": ("a", "b", 1),
    }
    footer = table.parquet(marker).metadata.metadata
    assert footer[b"icedb.kind"] == b"merge"
    assert footer[b"icedb.partition"] == b"d=2023-06-07"
    assert json.loads(footer[b"icedb.inputs"]) == [file.path for file in files]
    assert all(table.store.head(file.path) for file in files), "a merge deletes nothing"


@pytest.mark.parametrize(("memory_bytes", "thread_count", "row_count"), [(48 * MIB, 1, 40_000), (512 * MIB, 2, 20_000)])
def test_a_merge_stays_sorted_also_when_it_is_larger_than_its_memory(make_table, memory_bytes, thread_count, row_count):
    table = make_table(sort=("k", "n"), row_group_rows=20_480)
    random = np.random.default_rng(7)
    files = [
        table.put_file(
            pa.table(
                {
                    "k": random.integers(0, 50, row_count).astype(str),
                    "n": random.integers(0, 10**9, row_count),
                    "text": [random.bytes(60).hex() for _ in range(row_count)],
                }
            ),
            f"{number:02x}",
        )
        for number in range(8)
    ]  # fmt: skip
    engine = replace(table.engine, memory_bytes=memory_bytes, thread_count=thread_count)
    result = table.merge(*files, engine=engine)
    (marker,) = result.outputs
    written = table.parquet(marker).read()
    assert result.rows_read == written.num_rows == 8 * row_count
    assert written.sort_by([("k", "ascending"), ("n", "ascending")]).select(["k", "n"]) == written.select(["k", "n"])
    assert table.parquet(marker).metadata.row_group(0).num_rows == 20_480


def test_too_little_memory_and_scratch_is_unavailable_and_says_so(make_table):
    table = make_table(sort=("n",))
    random = np.random.default_rng(7)
    files = [table.put_file(pa.table({"n": random.integers(0, 2**62, 400_000)}), f"{number}") for number in range(3)]
    engine = replace(table.engine, memory_bytes=6 * MIB, scratch_bytes=sum(file.size_bytes for file in files))
    with pytest.raises(Unavailable, match=r"ran out of room \(memory"):
        table.merge(*files, engine=replace(engine, memory_bytes=4 * MIB))
    with pytest.raises(Unavailable, match=r"needs .* bytes of scratch for its inputs"):
        table.merge(*files, engine=replace(engine, scratch_bytes=1000))


def test_a_big_group_becomes_several_runs_that_follow_each_other(make_table):
    table = make_table(sort=("n",), row_group_rows=2048, target_file_bytes=16 * 1024)
    random = np.random.default_rng(7)
    files = [table.put_file(pa.table({"n": random.integers(0, 2**62, 20_000)}), f"{number}") for number in range(4)]
    result = table.merge(*files, engine=replace(table.engine, thread_count=2))
    assert len(result.outputs) > 3
    assert sum(marker.row_count for marker in result.outputs) == result.rows_read == 80_000
    numbers = [row["n"] for row in table.rows(*result.outputs)]
    assert numbers == sorted(numbers)
    lows = [marker.stats["n"][0] for marker in result.outputs]
    assert lows == sorted(lows)
    assert lows[0] == numbers[0]


def test_an_input_of_another_type_halts_and_is_named(make_table):
    table = make_table()
    good = table.put_file(pa.table({"n": [1]}), "a")
    bad = table.put_file(pa.table({"n": ["x"]}), "b")
    with pytest.raises(SchemaConflict, match=r"column 'n' is VARCHAR in data file wh/events/_data/b.parquet.*BIGINT"):
        table.merge(good, bad, schema={"n": "BIGINT"})
    with pytest.raises(SchemaConflict, match="column 'N'"):
        table.merge(good, table.put_file(pa.table({"N": [1]}), "c"), schema={"n": "BIGINT"})


def test_an_input_that_is_gone_is_named(make_table):
    table = make_table()
    there = table.put_file(pa.table({"n": [1]}), "a")
    with pytest.raises(NotFound, match=r"data file wh/events/_data/b.parquet is live but gone"):
        table.merge(there, replace(there, path=there.path.replace("a.parquet", "b.parquet")))


def test_an_input_that_is_not_parquet_is_named(make_table):
    table = make_table()
    key = table.paths.data_key(partition="", file_id="bad")
    table.store.put(key, b"not a file of rows")
    with pytest.raises(CorruptLog, match=r"data file wh/events/_data/bad.parquet is not readable as Parquet"):
        table.merge(FileMarker(key, 18, 0), table.put_file(pa.table({"n": [1]}), "a"))


def test_an_input_with_damaged_pages_halts_and_is_named(make_table):
    table = make_table()
    good, bad = (table.put_file(pa.table({"n": list(range(1000))}), name) for name in "ab")
    body = table.store.get(bad.path).body
    table.store.put(bad.path, b"PAR1" + b"\xff" * 40 + body[44:])
    with pytest.raises(CorruptLog, match=r"a data file of partition '', one of 2 .* cannot be merged"):
        table.merge(good, bad)


def test_columns_keep_the_order_of_the_schema(make_table):
    table = make_table()
    files = [table.put_file(pa.table({"b": [1], "c": [2]}), "0"), table.put_file(pa.table({"z": [3], "a": [4]}), "1")]
    (marker,) = table.merge(*files, schema={"a": "BIGINT", "b": "BIGINT", "c": "BIGINT"}).outputs
    assert table.parquet(marker).schema_arrow.names == ["a", "b", "c", "z"]


def test_a_failed_upload_raises_and_leaves_no_scratch(make_table, monkeypatch):
    table = make_table()
    files = [table.put_file(pa.table({"n": [1]}), "0"), table.put_file(pa.table({"n": [2]}), "1")]

    def refuse(key, path):
        raise Unavailable("no room")

    monkeypatch.setattr(table.store, "upload", refuse)
    with pytest.raises(Unavailable, match="no room"):
        table.merge(*files)
    with pytest.raises(Unavailable, match="no room"):
        table.flush(table.stage({"n": 1}))


@pytest.mark.parametrize(("target_file_bytes", "thread_count"), [(1024, 1), (1024 * MIB, 2)])
def test_only_an_output_that_is_not_split_is_written_by_several_threads(
    make_table, monkeypatch, target_file_bytes, thread_count
):
    opened = []

    def record(limits, scratch):
        opened.append(limits.thread_count)
        return open_engine(limits, scratch)

    monkeypatch.setattr(icedb_parts.units.merge_unit, "open_engine", record)
    table = make_table(sort=("n",), target_file_bytes=target_file_bytes)
    files = [table.put_file(pa.table({"n": list(range(2000))}), f"{number}") for number in range(2)]
    table.merge(*files, engine=replace(table.engine, thread_count=2))
    assert opened == [thread_count]
