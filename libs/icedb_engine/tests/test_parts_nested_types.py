"""Nested Arrow types of any depth: each batch is taken or refused with a reason, and nothing else can happen."""

import contextlib
import io
import json
from datetime import datetime, timedelta
from decimal import Decimal
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from icedb_engine.reading import nested_json
from icedb_sim.tables.profiles import SHARED_FIXTURES


def parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def arrow_stream(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


TWICE = pa.array([[("k", 1), ("k", 2)], None, []], pa.map_(pa.string(), pa.int64()))
KINDS = pa.array([{"a": 1}, {"a": 2}])
TAKEN = {
    "empty": (pa.array([{}, None], pa.struct([])), ["{}", None]),
    "empty inside": (pa.array([{"a": {}}, {"a": None}], pa.struct({"a": pa.struct([])})), ['{"a":{}}', '{"a":null}']),
    "empty in a list": (pa.array([[{}, None], []], pa.list_(pa.struct([]))), ["[{},null]", "[]"]),
    "sliced": (pa.array([[{}], [{}, {}], None, []], pa.list_(pa.struct([]))).slice(1), ["[{},{}]", None, "[]"]),
    "fixed size": (pa.array([[{}], None], pa.list_(pa.struct([]), 1)), ["[{}]", None]),
    "a key twice": (TWICE, ['{"k":1,"k":2}', None, "{}"]),
    "keys that are no text": (
        pa.array([[(1, {}), (2, None)]], pa.map_(pa.int64(), pa.struct([]))),
        ['{"1":{},"2":null}'],
    ),
    "dictionary": (
        pa.ListArray.from_arrays([0, 2], pa.DictionaryArray.from_arrays(pa.array([1, 0]), KINDS)),
        ['[{"a":2},{"a":1}]'],
    ),
    "half": (pa.array([{"a": 0.5}, {"a": None}], pa.struct({"a": pa.float16()})), ['{"a":0.5}', '{"a":null}']),
    "digits": (pa.array([[Decimal("1.10")]], pa.list_(pa.decimal256(50, 2))), ["[1.10]"]),
    "hundreds": (pa.array([[Decimal(100)]], pa.list_(pa.decimal128(5, -2))), ["[1E+2]"]),
    "names twice": (pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), ['{"a":1,"a":2}']),
    "nothing": (pa.array([{"a": None}], pa.struct({"a": pa.null()})), ['{"a":null}']),
}


@pytest.mark.parametrize("case", TAKEN)
def test_what_the_engine_cannot_take_is_written_all_the_same(make_table, case):
    column, expected = TAKEN[case]
    table = make_table()
    rows = pa.table({"x": column})
    for body, staging_format in ((arrow_stream(rows), "arrow"), *_as_parquet(rows)):
        result = table.flush(table.stage(body=body, staging_format=staging_format))
        assert not result.rejected
        assert sorted(map(str, table.parquet(result.files[0]).read()["x"].to_pylist())) == sorted(map(str, expected))


def _as_parquet(rows):
    try:
        return ((parquet(rows), "parquet"),)
    except (pa.ArrowException, OSError):  # Parquet has no such type
        return ()


LEAVES = {
    pa.null(): st.none(),
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float16(): st.just(0.5),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.decimal128(9, 2): st.decimals(-1000, 1000, places=2),
    pa.decimal128(5, -2): st.just(Decimal("1E2")),
    pa.decimal256(60, 3): st.decimals(-1000, 1000, places=3),
    pa.string(): st.text(max_size=3),
    pa.large_string(): st.text(max_size=3),
    pa.string_view(): st.text(max_size=20),
    pa.date32(): st.dates(),
    pa.date64(): st.dates(),
    pa.timestamp("s"): st.datetimes(),
    pa.timestamp("us", "Europe/Berlin"): st.datetimes(),
    pa.timestamp("ns"): st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1)),
    # What has no JSON text: a reason.
    pa.binary(): st.binary(max_size=3),
    pa.binary(3): st.just(b"abc"),
    pa.time64("us"): st.times(),
    pa.duration("ms"): st.timedeltas(timedelta(0), timedelta(9)).map(lambda each: timedelta(each.days)),
    pa.month_day_nano_interval(): st.just((1, 2, 3)),
}
NAMES = st.sampled_from(["a", "A", "b", "", "é", 'q"', "a\nb", "x.y"])


@st.composite
def leaves(draw):
    kind = draw(st.sampled_from(list(LEAVES)))
    values = draw(st.lists(st.none() | LEAVES[kind], max_size=4))
    return pa.array(values, kind)


@st.composite
def nested(draw, inner):
    kind = draw(st.sampled_from(["struct", "list", "large", "view", "fixed", "map", "dictionary", "runs", "union"]))
    values = draw(inner)
    count = len(values)
    if kind == "struct":
        names = draw(st.lists(NAMES, max_size=3))
        columns = [_fit(draw(inner), count) for _ in names]
        mask = pa.array(draw(st.lists(st.booleans(), min_size=count, max_size=count)), pa.bool_())
        if not names:
            return pa.array([None if is_null else {} for is_null in mask.to_pylist()], pa.struct([]))
        return pa.StructArray.from_arrays(columns, names=names, mask=mask)
    ends = sorted(draw(st.lists(st.integers(0, count), max_size=3)))
    offsets = [0, *ends, count]
    if kind == "map":
        keys = draw(inner.filter(lambda each: not each.null_count and len(each)))
        keys = _fit(keys, count)
        if keys.null_count:
            return values
        return pa.MapArray.from_arrays(offsets, keys, values)
    if kind == "large":
        return pa.LargeListArray.from_arrays(offsets, values)
    if kind == "view":
        sizes = [end - start for start, end in pairwise(offsets)]
        return pa.ListViewArray.from_arrays(offsets[:-1], sizes, values)
    if kind == "fixed" and count:
        return pa.FixedSizeListArray.from_arrays(values, count)
    if kind == "dictionary" and count:
        return pa.DictionaryArray.from_arrays(pa.array([0, None, count - 1], pa.int8()), values)
    if kind == "runs" and count:
        return pa.RunEndEncodedArray.from_arrays(pa.array(range(1, count + 1), pa.int32()), values)
    if kind == "union" and count:
        return pa.UnionArray.from_sparse(pa.array([0] * count, pa.int8()), [values])
    return pa.ListArray.from_arrays(offsets, values)


def _fit(values, count):
    if not len(values):
        return pa.nulls(count, values.type) if not pa.types.is_union(values.type) else pa.nulls(count)
    return pa.concat_arrays([values] * (count // len(values) + 1)).slice(0, count)


COLUMNS = st.recursive(leaves(), nested, max_leaves=6)


@settings(suppress_health_check=SHARED_FIXTURES, deadline=None, max_examples=60)
@given(column=COLUMNS, start=st.integers(0, 1))
def test_each_type_at_any_depth_is_taken_or_refused_with_a_reason(make_table, column, start):
    table = make_table()
    rows = pa.table({"x": column.slice(start)})
    for body, staging_format in _bodies(rows):
        batch, other = table.stage(body=body, staging_format=staging_format), table.stage({"i": 1})
        result = table.flush(batch, other)
        assert other.batch_id in result.accepted
        assert batch.batch_id in result.accepted or result.rejected[batch.batch_id]


def _bodies(rows):
    yield arrow_stream(rows), "arrow"
    with contextlib.suppress(pa.ArrowException, OSError, NotImplementedError, TypeError):  # no file has such a type
        yield parquet(rows), "parquet"


TEXTUAL = list(LEAVES)[1 : list(LEAVES).index(pa.binary())]
PLAIN = st.recursive(
    leaves().filter(lambda values: values.type in TEXTUAL),
    lambda inner: st.one_of(
        inner.map(lambda values: pa.ListArray.from_arrays([0, len(values) // 2, len(values)], values)),
        st.lists(inner, min_size=1, max_size=2).map(
            lambda columns: pa.StructArray.from_arrays(
                [_fit(each, len(columns[0])) for each in columns], names=["a", "b"][: len(columns)]
            )
        ),
    ),
    max_leaves=4,
)


@settings(deadline=None, max_examples=60)
@given(column=PLAIN, start=st.integers(0, 1))
def test_both_ways_of_writing_give_one_text(column, start):
    rows = pa.table({"x": column.slice(start)})
    fresh = pa.ipc.open_stream(arrow_stream(rows)).read_all()["x"]  # as batches come: nothing is a part of an array
    try:
        expected = nested_json._write_by_engine(fresh).to_pylist()
    except (nested_json.duckdb.Error, pa.ArrowException):
        return
    assert nested_json._write(column.slice(start)) == expected
    assert nested_json._write(column)[start:] == expected


def test_a_part_of_an_array_has_its_own_nulls(make_table):
    rows = [{"x": {"p": None if n % 3 else {"a": n % 2 == 0}}} for n in range(20)]
    column = pa.table({"x": pa.array([row["x"] for row in rows])})["x"].slice(7)
    assert nested_json.write_json("x", column).to_pylist() == [
        json.dumps(row["x"]).replace(" ", "") for row in rows[7:]
    ]


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.int64(), 2),
        pa.list_(pa.int64()),
        pa.large_list(pa.int64()),
        pa.struct([("l", pa.list_(pa.int64(), 2))]),
    ],
    ids=str,
)
def test_a_part_of_an_array_of_lists_has_its_own_items(kind):
    lists = [[1, 2], [3, None], None, [5, 6], [7, 8]]
    values = [{"l": each} for each in lists] if pa.types.is_struct(kind) else lists
    column = pa.chunked_array([pa.array(values, kind).slice(1, 3)])
    assert nested_json.write_json("x", column).to_pylist() == [
        None if each is None else json.dumps(each).replace(" ", "") for each in values[1:4]
    ]


def test_a_batch_that_nobody_has_thought_of_is_refused_with_its_error(make_table, monkeypatch):
    def fail(_values):
        raise RuntimeError("a level of a tower")

    monkeypatch.setattr(nested_json, "_write", fail)
    table = make_table()
    rows = pa.table({"x": pa.array([{}], pa.struct([]))})
    reason = table.reason(table.stage({"i": 1}), table.stage(body=arrow_stream(rows), staging_format="arrow"))
    assert (
        "column 'x' of the Arrow type struct<> cannot be written as JSON (RuntimeError: a level of a tower)" in reason
    )


def test_texts_of_odd_values_are_json(make_table):
    table = make_table()
    rows = pa.table({"x": pa.array([{"e": {}, "f": [0.1, None], "t": 'a"\n'}])})
    result = table.flush(table.stage(body=arrow_stream(rows), staging_format="arrow"))
    (row,) = table.rows(*result.files)
    assert json.loads(row["x"]) == {"e": {}, "f": [0.1, None], "t": 'a"\n'}
