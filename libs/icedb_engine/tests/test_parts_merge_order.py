"""In which order a merge reads and writes: the plan by statistics, the keys, and the stream of rows."""

import io
import math
from datetime import date, datetime, timedelta

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from icedb_engine.merging.merge_inputs import MergeInput
from icedb_engine.merging.merge_order import plan_runs
from icedb_engine.merging.merge_rows import RowSource, WrongBounds, read_sorted
from icedb_engine.merging.sort_keys import find_order
from icedb_engine.writing.column_stats import StatsCollector
from icedb_log.model import FileMarker

EPOCH = datetime(2025, 6, 1)
COLUMNS = {"s": "VARCHAR", "i": "BIGINT", "f": "DOUBLE", "t": "TIMESTAMP", "d": "DATE", "b": "BOOLEAN", "id": "BIGINT"}
TYPES = {
    "s": pa.string(),
    "i": pa.int64(),
    "f": pa.float64(),
    "t": pa.timestamp("us"),
    "d": pa.date32(),
    "b": pa.bool_(),
}
VALUES = {
    "s": st.sampled_from(["", "a", "ab", "b", "é", "\U0001f600", "￿", "x" * 70, "x" * 69 + "y"]),
    "i": st.sampled_from([-(2**63), -1, 0, 1, 2**62, 2**63 - 1]),
    "f": st.sampled_from([-math.inf, -1.5, -0.0, 0.0, 1e-300, 2.0, math.inf, math.nan]),
    "t": st.integers(-3, 3).map(lambda n: EPOCH + timedelta(microseconds=n)),
    "d": st.integers(-3, 3).map(lambda n: date(1970, 1, 1) + timedelta(days=n)),
    "b": st.booleans(),
}


def marker(number: int, **stats) -> FileMarker:
    return FileMarker(f"wh/t/_data/{number}.parquet", 1, 0, row_count=10, stats=stats)


def plan(*bounds, sort=("n",)):
    return plan_runs([marker(number, **each) for number, each in enumerate(bounds)], sort)


def test_files_that_do_not_overlap_follow_each_other_by_their_minimum():
    assert plan({"n": (5, 9, 0)}, {"n": (1, 2, 0)}, {"n": (3, 4, 0)}) == [[1], [2], [0]]


def test_overlaps_join_also_through_others_and_at_a_tie():
    assert plan({"n": (1, 4, 0)}, {"n": (9, 9, 0)}, {"n": (4, 6, 0)}, {"n": (2, 3, 0)}) == [[0, 3, 2], [1]]


def test_nulls_come_last_so_a_file_that_has_one_ends_with_the_last():
    assert plan({"n": (1, 2, 1)}, {"n": (5, 6, 0)}, {"n": (-1, 0, 0)}) == [[2], [0, 1]]
    assert plan({"n": (None, None, 10)}, {"n": (5, 6, 0)}) == [[1], [0]]
    assert plan({"n": (None, None, 10)}, {"n": (5, 6, 1)}) == [[1, 0]]


def test_what_is_not_known_overlaps_with_everything():
    assert plan({"n": (5, 6, 0)}, {}, {"n": (1, 2, 0)}) == [[1, 2, 0]]
    assert plan({"n": (5, 6, 0)}, {"n": (None, None, 0)}) == [[1, 0]]
    assert plan({"n": (5, 6, 0)}, {"n": ("a", "b", 0)}) == [[0, 1]]


def test_a_leading_column_of_one_value_in_all_files_is_passed_over():
    same = ("acme", "acme", 0)
    assert plan({"k": same, "n": (5, 6, 0)}, {"k": same, "n": (1, 2, 0)}, sort=("k", "n")) == [[1], [0]]
    for other in (("acme", "acme", 1), ("acme", "b", 0)):
        assert plan({"k": same, "n": (5, 6, 0)}, {"k": other, "n": (1, 2, 0)}, sort=("k", "n")) == [[0, 1]]
    cut = ("x" * 64, "x" * 64, 0)  # a lower and an upper bound that were cut say nothing of what was cut
    assert plan({"k": cut, "n": (5, 6, 0)}, {"k": cut, "n": (1, 2, 0)}, sort=("k", "n")) == [[0, 1]]
    assert plan({"k": same}, {"k": same}, sort=("k",)) == [[0], [1]]


rows = st.lists(st.fixed_dictionaries({name: st.none() | values for name, values in VALUES.items()}), max_size=12)
sorts = st.permutations(list(VALUES)).flatmap(lambda names: st.integers(1, 4).map(lambda n: tuple(names[:n])))


def make_table(rows: list[dict], first_id: int = 0) -> pa.Table:
    columns = {name: pa.array([row[name] for row in rows], kind) for name, kind in TYPES.items()}
    return pa.table({**columns, "id": pa.array(range(first_id, first_id + len(rows)), pa.int64())})


def duck_keys(table: pa.Table, sort) -> list[tuple]:
    """Sort columns of the rows as the flush's engine orders them, NaN and zeros made comparable."""
    order = ", ".join(f'"{column}" NULLS LAST' for column in sort)
    with duckdb.connect() as connection:
        connection.register("rows", table)
        return keys(connection.execute(f"SELECT * FROM rows ORDER BY {order}").to_arrow_table(), sort)


def keys(table: pa.Table, sort) -> list[tuple]:
    return [
        tuple("nan" if value != value else value for value in row.values()) for row in table.select(sort).to_pylist()
    ]


@given(rows, sorts, st.booleans())
@settings(max_examples=50, deadline=None)
def test_rows_are_ordered_as_the_engine_orders_them(rows, sort, has_words):
    table = make_table(rows)
    if has_words:
        table = table.set_column(0, "s", table["s"].dictionary_encode())
    table = table.combine_chunks()
    order = find_order(table, sort)
    found = table if order is None else table.take(pa.array(order))
    assert keys(found, sort) == duck_keys(make_table(rows), sort)
    again = find_order(found.combine_chunks(), sort)
    assert again is None or (again == np.arange(len(again))).all(), "sorted rows stay as they are"


def make_input(table: pa.Table, sort, number: int) -> MergeInput:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    stats = StatsCollector([column for column in sort if column in table.column_names])
    stats.add(table)
    found = FileMarker(f"wh/t/_data/{number}.parquet", len(sink.getvalue()), 0, table.num_rows, stats=stats.finish())
    body = pa.py_buffer(sink.getvalue())
    return MergeInput(
        found, body, pq.read_metadata(io.BytesIO(sink.getvalue())), {n: COLUMNS[n] for n in table.column_names}
    )


def sort_all(sort, used: list[int]):
    """Stand in for the engine."""

    def sort_elsewhere(batch):
        used.append(len(batch))
        read = [each.open().read() for each in batch]
        if len(read[0].column_names) > 1:  # the engine gives all columns, of every type
            read.append(make_table([]))
        table = pa.concat_tables(read, promote_options="default").combine_chunks()
        table = table.select([column for column in COLUMNS if column in table.column_names])
        order = find_order(table, sort)
        yield table if order is None else table.take(pa.array(order))

    return sort_elsewhere


some_columns = st.sets(st.sampled_from(list(VALUES)), max_size=3)
files = st.lists(st.tuples(rows, some_columns), min_size=1, max_size=6)


@given(files, sorts, st.sampled_from([1, 400, 2000, 1 << 20]), st.integers(1, 5), st.booleans())
@settings(max_examples=50, deadline=None)
def test_files_are_read_as_one_sorted_stream_whatever_the_memory(files, sort, memory_bytes, table_rows, is_sorted):
    inputs, tables, count = [], [], 0
    for number, (rows, missing) in enumerate(files):
        table = make_table([{**row, **dict.fromkeys(missing)} for row in rows], count)
        count += len(rows)
        order = find_order(table, sort) if is_sorted else None
        table = table if order is None else table.take(pa.array(order))
        inputs.append(make_input(table.drop_columns(list(missing)), sort, number))
        tables.append(table)
    source = RowSource(inputs, COLUMNS, sort, memory_bytes=memory_bytes, thread_count=2, table_rows=table_rows)
    read = list(read_sorted(source, sort_all(sort, []), trusts_bounds=True))
    everything = pa.concat_tables(tables)
    found = pa.concat_tables([each.cast(everything.schema) for each in read]) if read else everything.slice(0, 0)
    assert keys(found, sort) == duck_keys(everything, sort)
    assert keys(found.sort_by("id"), COLUMNS) == keys(everything.sort_by("id"), COLUMNS), "a row was lost or changed"


def test_a_stream_of_files_that_fit_one_by_one_never_needs_more():
    tables = [pa.table({"i": np.arange(1000) + 1000 * number}) for number in (2, 0, 3, 1)]
    inputs = [make_input(table, ["i"], number) for number, table in enumerate(tables)]
    used: list[int] = []
    source = RowSource(inputs, {"i": "BIGINT"}, ["i"], memory_bytes=2 * 45_000, thread_count=1, table_rows=700)
    read = list(read_sorted(source, sort_all(["i"], used), trusts_bounds=True))
    assert pa.concat_tables(read)["i"].to_pylist() == list(range(4000))
    assert used == []
    everything = list(read_sorted(source, sort_all(["i"], used), trusts_bounds=False))
    assert used == [4]
    assert pa.concat_tables(everything)["i"].to_pylist() == list(range(4000))


def test_bounds_that_are_not_true_are_noticed():
    tables = [pa.table({"i": [1, 9]}), pa.table({"i": [2, 3]})]
    first, second = (make_input(table, ["i"], number) for number, table in enumerate(tables))
    lying = MergeInput(marker(0, i=(1, 1, 0)), first.source, first.metadata, first.types)
    source = RowSource([lying, second], {"i": "BIGINT"}, ["i"], memory_bytes=2 * 90, thread_count=1, table_rows=10)
    with pytest.raises(WrongBounds):
        list(read_sorted(source, sort_all(["i"], []), trusts_bounds=True))


def test_zeros_are_equal_and_so_is_every_nan():
    other_nan = np.array([0xFFF8000000000001], dtype=np.uint64).view(np.float64)[0]
    numbers = np.array([0.0, -0.0, 0.0, math.nan, other_nan, math.nan, math.inf])
    table = pa.table({"f": numbers, "i": [3, 2, 1, 6, 5, 4, 0]})
    order = find_order(table, ["f", "i"])
    assert table.take(pa.array(order))["i"].to_pylist() == [1, 2, 3, 0, 4, 5, 6]
    with duckdb.connect() as connection:
        connection.register("rows", table)
        found = connection.execute("SELECT i FROM rows ORDER BY f NULLS LAST, i NULLS LAST").fetchall()
    assert [number for (number,) in found] == [1, 2, 3, 0, 4, 5, 6]
