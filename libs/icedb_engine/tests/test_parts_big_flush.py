"""A big flush without Spark: blobs, the plan, write tasks, and what is deferred."""

import json
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from icedb_engine.engine import open_scratch
from icedb_engine.limits import FlushUnitLimits
from icedb_engine.units.blobs import BlobFolder, cut_blobs, plan_writes
from icedb_engine.units.flush_unit import parse_unit, write_unit
from icedb_engine.work import Blob, UnitResult, count_prefix, decode_result, decode_unit, encode
from icedb_engine.writing.encodings import find_repeated
from icedb_engine.writing.part_files import ORDINAL
from icedb_log.errors import InvariantViolated, Unavailable


def parse(table, *batches, schema=None):
    *filled, result = parse_unit(table.flush_unit(*batches, schema=schema), table.store)
    return [each.body for each in filled], result


def write(table, parsed, *, columns, task_bytes=1, piece_bytes=2**40, spoil=lambda blobs: blobs):
    """Run the write tasks of several parsed units; return the data files of each."""
    answered = [(number, result) for number, (_, result) in enumerate(parsed)]
    results = []
    for plan in plan_writes(answered, task_bytes=task_bytes, piece_bytes=piece_bytes):
        unit = table.write_unit(columns, partitions=plan.partitions, blobs=plan.blobs)
        unit = decode_unit("write", encode(unit))
        with open_scratch(table.engine) as scratch:
            folder = BlobFolder(scratch)
            for blob in spoil(plan.blobs):
                folder.add(blob.unit, blob.number, parsed[blob.unit][0][blob.number])
            written = write_unit(unit, folder, table.store, clock=table.clock)
            results.append(decode_result("write", encode(written)))
    return results


def events(count, *, start=0, **more):
    return [{"ts": f"2023-06-0{1 + i % 3}", "n": (i * 7919) % count + start, **more} for i in range(count)]


COLUMNS = {"ts": "TIMESTAMP", "n": "BIGINT", "x": "DOUBLE"}


def test_units_become_one_sorted_file_for_each_partition(make_table):
    table = make_table("d=day(ts)", sort=("n",))
    parsed = [parse(table, table.stage(*events(30))), parse(table, table.stage(*events(30, start=15, x=0.5)))]
    assert [result.row_count for _, result in parsed] == [30, 30]
    results = write(table, parsed, columns=COLUMNS)
    files = sorted((marker for result in results for marker in result), key=lambda marker: marker.path)
    assert [table.paths.partition_of(marker.path) for marker in files] == [f"d=2023-06-0{day}" for day in (1, 2, 3)]
    for marker in files:
        rows = table.rows(marker)
        assert list(rows[0]) == list(COLUMNS)
        assert [row["n"] for row in rows] == sorted(row["n"] for row in rows)
        assert {row["x"] for row in rows} == {None, 0.5}
    assert sum(marker.row_count for marker in files) == 60


def test_a_large_partition_is_spread_over_tasks_and_each_piece_is_sorted(make_table):
    table = make_table(sort=("n",))
    parsed = [parse(table, table.stage(*({"n": i * 7 % 50 + start} for i in range(50)))) for start in range(4)]
    results = write(table, parsed, columns={"n": "BIGINT"}, piece_bytes=2 * parsed[0][1].blobs[0].size_bytes)
    assert [sum(marker.row_count for marker in result) for result in results] == [100, 100]
    for result in results:
        numbers = [row["n"] for row in table.rows(*result)]
        assert numbers == sorted(numbers)


@pytest.mark.parametrize(
    "spoil", [lambda blobs: blobs[1:], lambda blobs: [replace(blobs[0], number=1 - blobs[0].number)]]
)
def test_blobs_that_are_not_the_planned_ones_are_found(make_table, spoil):
    table = make_table("n")
    parsed = [parse(table, table.stage({"n": 1}, {"n": 2}))]
    with pytest.raises(Unavailable, match="not the 1 that were planned"):
        write(table, parsed, columns={"n": "BIGINT"}, spoil=spoil)


def test_a_blob_that_was_made_again_with_other_rows_is_found(make_table):
    table = make_table()
    bodies, result = parse(table, table.stage({"n": 1}, {"n": 2}))
    other, _ = parse(table, table.stage({"n": 1}, {"n": 3}))
    with pytest.raises(Unavailable, match="Spark lost some"):
        write(table, [(other, result)], columns={"n": "BIGINT"})
    assert write(table, [(bodies, result)], columns={"n": "BIGINT"})[0][0].row_count == 2


def test_blobs_are_cut_by_ordinal_and_size(monkeypatch):
    monkeypatch.setattr("icedb_engine.units.blobs.BLOB_BYTES", 4000)
    ordinals = pa.array([0] * 1000 + [2] * 10 + [3] * 3000, pa.int32())
    numbers = pa.array(range(4010), pa.int64())
    rows = pa.table({ORDINAL: ordinals, "n": numbers})
    filled = list(cut_blobs(rows.to_batches(max_chunksize=500)))
    assert [each.blob.number for each in filled] == list(range(len(filled)))
    assert [each.blob.partition for each in filled] == [0, 0, 2, *[3] * (len(filled) - 3)]
    assert len(filled) > 6
    read = [pa.ipc.open_stream(each.body).read_all() for each in filled]
    assert [table.num_rows for table in read] == [each.blob.row_count for each in filled]
    assert pa.concat_tables(read)["n"].to_pylist() == numbers.to_pylist()


@given(
    sizes=st.lists(st.tuples(st.integers(0, 6), st.integers(1, 5000)), min_size=1, max_size=60),
    task_bytes=st.integers(1, 9000),
    piece_bytes=st.integers(1, 9000),
)
def test_a_plan_has_every_blob_once(sizes, task_bytes, piece_bytes):
    blobs = [Blob(number, partition, 1, size, number) for number, (partition, size) in enumerate(sizes)]
    paths = [f"p={place}" for place in range(7)]
    half = len(blobs) // 2
    results = [UnitResult(partitions=tuple(paths), blobs=tuple(each)) for each in (blobs[:half], blobs[half:])]
    plans = plan_writes(enumerate(results), task_bytes=task_bytes, piece_bytes=piece_bytes)
    planned = [(blob.unit, blob.number) for plan in plans for blob in plan.blobs]
    assert sorted(planned) == [(int(number >= half), number) for number in range(len(blobs))]
    for plan in plans:
        assert [plan.partitions[blob.partition] for blob in plan.blobs] == sorted(
            paths[blobs[blob.number].partition] for blob in plan.blobs
        )
    pieces = [(partition, number) for number, plan in enumerate(plans) for partition in set(plan.partitions)]
    for place, path in enumerate(paths):
        size_bytes = sum(size for partition, size in sizes if partition == place)
        if size_bytes < 2 * piece_bytes:
            assert len([1 for partition, _ in pieces if partition == path]) <= 1, "one task, so one file"
    assert len(plans) <= max(1, -(-sum(size for _, size in sizes) // task_bytes))


@pytest.mark.parametrize(
    ("touched", "limit", "count"),
    [
        ([], 1, 0),
        ([{1, 2, 3}], 1, 1),
        ([{1}, {1}, {2}], 1, 2),
        ([{1, 2}, {2}, {3}, {1}], 2, 2),
        ([{1}, {2}, {3}], 3, 3),
        ([(), {1, 2}], 1, 1),
    ],
)
def test_a_commit_takes_the_oldest_batches_that_fit(touched, limit, count):
    assert count_prefix(touched, limit) == count


def test_a_unit_defers_batches_beyond_the_partitions_of_a_commit(make_table):
    table = make_table("user", max_partitions_per_flush=3)
    batches = [
        table.stage({"user": "a", "n": 1}, {"user": "b", "n": 2}),
        table.stage({"user": None}),
        table.stage({"user": "b", "n": 3}, {"user": "c", "n": 4}),
        table.stage({"user": "d", "other": True}),
        table.stage(body=b""),
        table.stage({"user": "a", "n": 5}),
    ]
    result = table.flush(*batches)
    assert result.accepted == tuple(batches[place].batch_id for place in (0, 2, 4))
    assert [*result.rejected] == [batches[1].batch_id]
    assert result.deferred == (batches[3].batch_id, batches[5].batch_id)
    assert result.columns == {"user": "VARCHAR", "n": "BIGINT"}
    assert "other" not in result.new_kinds
    assert sorted(row["n"] for row in table.rows(*result.files)) == [1, 2, 3, 4]


def test_a_batch_above_the_partitions_of_a_commit_goes_alone(make_table):
    table = make_table("user", max_partitions_per_flush=3)
    big = table.stage(*({"user": f"u{i}"} for i in range(7)))
    small = table.stage({"user": "u1"})
    result = table.flush(big, small)
    assert (result.accepted, result.deferred) == ((big.batch_id,), (small.batch_id,))
    assert len(result.files) == 7


def test_a_unit_stops_reading_when_it_has_enough(make_table):
    table = make_table(limits=FlushUnitLimits(unit_decoded_bytes=100))
    batches = [table.stage({"n": number, "text": "x" * 60}) for number in range(20)]
    result = table.flush(*batches)
    assert result.accepted == tuple(batch.batch_id for batch in batches[:2])
    assert result.left == tuple(batch.batch_id for batch in batches[2:])


def test_many_small_batches_are_one_file_for_each_partition(make_table):
    table = make_table("d=day(ts)", sort=("n",))
    batches = [table.stage({"ts": f"2023-06-0{1 + i % 2}", "n": i}) for i in range(300)]
    result = table.flush(*batches)
    assert len(result.accepted) == 300
    assert [marker.row_count for marker in result.files] == [150, 150]


def test_dictionaries_are_for_columns_of_few_values():
    count = 5000
    rows = pa.table(
        {
            "few": [f"v{i % 7}" for i in range(count)],
            "ids": [f"{i:x}" for i in range(count)],
            "codes": [i // 100 for i in range(count)],
            "numbers": list(range(count)),
            "flags": [i % 2 == 0 for i in range(count)],
            "nothing": pa.nulls(count, pa.string()),
        }
    )
    assert find_repeated(rows) == ["few", "codes", "nothing"]


def test_a_row_group_of_wide_rows_ends_early(make_table, monkeypatch):
    monkeypatch.setattr("icedb_engine.writing.part_files.ROW_GROUP_BYTES", 100_000)
    table = make_table(sort=("n",), row_group_rows=4096)
    monkeypatch.setattr("icedb_engine.reading.frame.ROWS_PER_CHUNK", 2048)
    body = "".join(json.dumps({"n": i, "text": f"{i}" * 40}) + "\n" for i in range(9000)).encode()
    (marker,) = table.flush(table.stage(body=body)).files
    metadata = table.parquet(marker).metadata
    assert metadata.num_row_groups > 3
    assert marker.row_count == 9000


@pytest.mark.parametrize("change", [-1, 1])
def test_a_write_task_that_writes_other_rows_than_were_planned_is_found(make_table, change):
    table = make_table(sort=("n",))
    bodies, result = parse(table, table.stage(*events(30)))
    (blob,) = result.blobs
    planned = replace(result, blobs=(replace(blob, row_count=blob.row_count + change),))
    with pytest.raises(InvariantViolated, match=f"read {30 + change} rows and wrote 30"):
        write(table, [(bodies, planned)], columns=COLUMNS)
