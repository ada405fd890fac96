"""Footers of real Parquet files, read without an engine: what they say, and what becomes of damaged ones."""

import io
import json
import random
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from icedb_log.parquet import footer as footer_fields
from icedb_log.parquet.file_reads import TAIL_BYTES, ParquetFooterReader
from icedb_log.parquet.footer import ColumnBounds, Footer, UnreadableFooter
from icedb_log.parquet.schema import Leaf
from icedb_log.parquet.thrift import BINARY, I32, LIST, MAP, STRUCT, ThriftError, ThriftReader
from icedb_log.store.object_store import ObjectInfo, list_all
from icedb_sim.fakes.memory_store import MemoryObjectStore
from icedb_sim.fakes.scripted_store import Effect, Fault, ScriptedStore

ROWS = pa.table(
    {
        "n": pa.array([3, None, 1], pa.int64()),
        "s": pa.array(["b", "a", None]),
        "ts": pa.array([datetime(2026, 1, 2), datetime(2026, 1, 1, 0, 0, 0, 5), None], pa.timestamp("us")),
        "d": pa.array([date(2026, 1, 2), None, date(2026, 1, 1)]),
        "x": pa.array([1.5, -2.0, None]),
        "b": pa.array([True, None, True]),
        "l": pa.array([[1], None, [2, 3]]),
        "none": pa.array([None, None, None], pa.string()),
    }
)
OURS = {
    "icedb.format": "1",
    "icedb.table": "t",
    "icedb.partition": "p=a",
    "icedb.commit": "0c",
    "icedb.kind": "merge",
    "icedb.inputs": json.dumps(["wh/t/_data/p=a/1.parquet"]),
}


def parquet(rows=ROWS, *, texts=None, row_group_size=None, **options):
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, rows.schema, store_schema=False, **options) as writer:
        writer.write_table(rows, row_group_size=row_group_size)
        writer.add_key_value_metadata(texts or {})
    return sink.getvalue()


@pytest.fixture
def store():
    return ScriptedStore(MemoryObjectStore(lambda: 1))


def read(store, body, *bounds_of):
    store.put("f", body)
    return ParquetFooterReader(store).read_footer(store.head("f"), bounds_of=frozenset(bounds_of))


def test_what_a_footer_says(store):
    footer = read(store, parquet(texts=OURS), *ROWS.column_names)
    assert footer.row_count == 3
    assert footer.columns == {
        "n": "BIGINT", "s": "VARCHAR", "ts": "TIMESTAMP", "d": "DATE", "x": "DOUBLE", "b": "BOOLEAN", "none": "VARCHAR",
    }  # fmt: skip
    assert footer.odd_columns == {"l": "nested (a list, map or struct)"}
    assert (footer.origin.kind, footer.origin.table, footer.origin.partition) == ("merge", "t", "p=a")
    assert (footer.origin.commit_id, footer.origin.inputs) == ("0c", ("wh/t/_data/p=a/1.parquet",))
    assert footer.bounds == {
        "n": ColumnBounds(1, 3, 1, is_exact=True),
        "s": ColumnBounds("a", "b", 1, is_exact=True),
        "ts": ColumnBounds("2026-01-01T00:00:00.000005Z", "2026-01-02T00:00:00.000000Z", 1, is_exact=True),
        "d": ColumnBounds("2026-01-01", "2026-01-02", 1, is_exact=True),
        "x": ColumnBounds(-2.0, 1.5, 1, is_exact=True),
        "b": ColumnBounds(True, True, 1, is_exact=True),
        "none": ColumnBounds(None, None, 3, is_exact=False),
    }


def test_bounds_span_all_row_groups(store):
    rows = pa.table({"n": pa.array([5, 1, None, None, 9, 2], pa.int64())})
    assert read(store, parquet(rows, row_group_size=2), "n").bounds["n"] == ColumnBounds(1, 9, 2, is_exact=True)


def test_a_column_without_statistics_has_no_bounds(store):
    assert read(store, parquet(write_statistics=False), "n").bounds["n"] == ColumnBounds(
        None, None, None, is_exact=False
    )


def test_bounds_become_statistics_that_are_never_too_narrow():
    long = "x" * 100
    assert ColumnBounds("a", long, 0, is_exact=True).to_stats() == ("a", "x" * 63 + "y", 0)
    assert ColumnBounds(1.0, 2.0, 1, is_exact=True).to_stats() == (None, None, 1)  # there may be NaN beside them
    assert ColumnBounds(1, 2, 1, is_exact=True).to_stats() == (1, 2, 1)
    assert ColumnBounds(1, 2, None, is_exact=True).to_stats() is None


@pytest.mark.parametrize(
    "texts",
    [
        {},
        {**OURS, "icedb.format": "2"},
        {**OURS, "icedb.kind": "compaction"},
        {**OURS, "icedb.inputs": "[1]"},
        {**OURS, "icedb.inputs": "{"},
    ],
)
def test_whatever_is_not_understood_is_foreign(store, texts):
    origin = read(store, parquet(texts=texts)).origin
    assert (origin.kind, origin.table, origin.inputs) == ("foreign", "", ())


def test_one_ranged_request_for_most_files_and_two_for_large_footers(store):
    read(store, parquet())
    assert [call.method for call in store.calls if call.method.startswith("get")] == ["get_range"]
    wide = parquet(pa.table({f"column_{number}": [1] for number in range(1500)}))
    assert int.from_bytes(wide[-8:-4], "little") > TAIL_BYTES
    store.calls.clear()
    assert len(read(store, wide).columns) == 1500
    assert [call.method for call in store.calls if call.method.startswith("get")] == ["get_range", "get_range"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "too few"),
        (b"PAR1PAR1", "too few"),
        (b"x" * 500, "does not end as a Parquet file does"),
        (b"x" * 500 + b"PARE", "encrypted"),
        (b"PAR1" + b"\xff" * 4 + b"PAR1PAR1" + b"\xff\xff\xff\x7fPAR1", "more than the file has"),
        (b"PAR1" + b"\0" * 90 + b"\5\0\0\0PAR1", "lacks the schema"),
        (parquet()[:-9] + parquet()[-8:], "damaged"),
        (parquet()[:4] + parquet()[300:], "names bytes that the file does not have"),
    ],
)
def test_what_is_no_whole_parquet_file_is_unreadable(store, body, words):
    found = read(store, body)
    assert isinstance(found, UnreadableFooter)
    assert found.cause == "damaged"
    assert words in found.reason


def test_no_damage_raises_or_ends_the_process(store):
    """pyarrow ends the process on some of these."""
    whole = parquet(texts=OURS, row_group_size=1)
    rng = random.Random(7)
    start = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    damaged = 0
    for _ in range(400):
        body = bytearray(whole)
        for _ in range(rng.choice([1, 1, 4])):
            body[rng.randrange(start, len(body))] = rng.randrange(256)
        if rng.random() < 0.1:
            del body[rng.randrange(len(body)) :]
        found = read(store, bytes(body), *ROWS.column_names)
        assert isinstance(found, Footer | UnreadableFooter)
        damaged += isinstance(found, UnreadableFooter)
    assert 60 < damaged < 380


def test_rows_that_contradict_each_other_are_damage(store):
    whole = parquet(pa.table({"n": [1] * 7}))
    (place,) = [at for at in range(len(whole) - 8) if whole[at - 1 : at + 2] == b"\x16\x0e\x19"]
    found = read(store, whole[:place] + b"\x10" + whole[place + 1 :])
    assert "contradicts itself" in found.reason


def test_gone_changed_and_silent_files(store):
    for name in "abc":
        store.put(name, parquet())
    infos = list(list_all(store, "").objects)
    store.delete(["a"])
    store.put("b", parquet() + b"x")
    store.script = [Fault("get_range", Effect.UNAVAILABLE, "c")]
    found = list(ParquetFooterReader(store, threads=1).read_footers(infos))
    assert [each.cause for each in found] == ["gone", "changed", "unanswered"]


def test_any_number_of_files_in_order_and_few_ahead(store):
    body = parquet()
    for number in range(40):
        store.put(f"{number:02}", body)
    taken = []

    def infos():
        for info in list_all(store, "").objects:
            taken.append(info.key)
            yield info

    found = ParquetFooterReader(store, threads=2).read_footers(infos())
    first = next(found)
    assert first.info.key == "00"
    assert len(taken) <= 8
    rest = list(found)
    assert [each.info.key for each in rest] == [f"{number:02}" for number in range(1, 40)]
    assert rest[0].columns is rest[-1].columns  # a million files share a few schemas


def test_an_iterator_that_is_closed_reads_no_further(store):
    for number in range(40):
        store.put(f"{number:02}", parquet())
    found = ParquetFooterReader(store, threads=1).read_footers(list_all(store, "").objects)
    next(found)
    found.close()
    assert len([call for call in store.calls if call.method == "get_range"]) <= 6


def test_an_empty_etag_stands_for_any(store):
    store.put("f", parquet())
    size_bytes = store.head("f").size_bytes
    assert ParquetFooterReader(store).read_footer(ObjectInfo("f", "", size_bytes, 0)).row_count == 3
    assert ParquetFooterReader(store).read_footer(ObjectInfo("f", "old", size_bytes, 0)).cause == "changed"


def test_times_beyond_what_python_knows_have_no_bounds(store):
    rows = pa.table(
        {"ts": pa.array([1 << 62], pa.timestamp("us")), "d": pa.array([1 << 30], pa.int32()).cast(pa.date32())}
    )
    bounds = read(store, parquet(rows), "ts", "d").bounds
    assert (bounds["ts"].low, bounds["d"].low) == (None, None)
    assert datetime.max.replace(tzinfo=UTC).year == 9999


@pytest.mark.parametrize(
    ("data", "kind", "words"),
    [
        (b"", I32, "ends in the middle"),
        (b"\xff" * 20, I32, "more than 64 bits"),
        (b"\x7f", BINARY, "longer than what is left"),
        (b"\xfc\xff\xff\xff\xff\x0f", LIST, "longer than what is left"),
        (b"\x01\xcc" + b"\x1c" * 50, MAP, "nested"),
        (b"\x1c" * 60, STRUCT, "nested"),
        (b"\x1f\x00", LIST, "there is no kind 15"),
    ],
)
def test_thrift_that_is_none(data, kind, words):
    with pytest.raises(ThriftError, match=words):
        ThriftReader(data).skip(kind)


def test_a_later_releases_file_says_for_which_table(store):
    assert read(store, parquet(texts=OURS)).written_for == "t"
    assert read(store, parquet(texts={**OURS, "icedb.format": "2"})).written_for == "t"
    assert read(store, parquet(texts={"icedb.format": "3"})).written_for == "?"
    assert read(store, parquet()).written_for == ""


def test_what_all_row_groups_are_sorted_by(store):
    order = [pq.SortingColumn(1), pq.SortingColumn(0)]
    assert read(store, parquet(sorting_columns=order, row_group_size=1)).sorted_by == ("s", "n")
    assert read(store, parquet(sorting_columns=[order[0], pq.SortingColumn(0, descending=True)])).sorted_by == ("s",)
    assert read(store, parquet(sorting_columns=[pq.SortingColumn(1, nulls_first=True)])).sorted_by == ()
    assert read(store, parquet()).sorted_by == ()


OLD_BOUNDS = {
    "n": (pa.array([3, 1]), 1),
    "i": (pa.array([3, -1], pa.int32()), -1),
    "d": (pa.array([date(2026, 1, 2), date(1969, 1, 1)]), "1969-01-01"),
    "t": (pa.array([datetime(2026, 1, 2), datetime(1969, 1, 1)]), "1969-01-01T00:00:00.000000Z"),
    "price": (pa.array([Decimal("3.50"), Decimal("-1.25")], pa.decimal128(9, 2)), "-1.25"),
    "long": (pa.array([Decimal("3.50"), Decimal("-1.25")], pa.decimal128(20, 2)), None),
    "u": (pa.array([3, 1], pa.uint32()), None),
    "u8": (pa.array([3, 1], pa.uint8()), None),
    "s": (pa.array(["b", "a"]), None),
    "f": (pa.array([1.5, -0.5]), None),
    "x": (pa.array([1.5, -0.5], pa.float32()), None),
    "b": (pa.array([True, False]), None),
}


@pytest.mark.parametrize("name", OLD_BOUNDS)
def test_bounds_of_older_writers_count_for_signed_integers_alone(store, monkeypatch, name):
    """Their fields are in an order that is right for these alone. Arrow writes none of unsigned ones, so all are moved."""
    values, low = OLD_BOUNDS[name]
    body = parquet(pa.table({name: values}), store_decimal_as_integer=True)
    assert read(store, body, name).bounds[name].low is not None
    monkeypatch.setattr(footer_fields, "_OLD_HIGH", footer_fields._HIGH)
    monkeypatch.setattr(footer_fields, "_OLD_LOW", footer_fields._LOW)
    monkeypatch.setattr(footer_fields, "_HIGH", 105)
    monkeypatch.setattr(footer_fields, "_LOW", 106)
    assert read(store, body, name).bounds[name].low == low


def test_bounds_that_say_nothing_of_their_type_are_none(store):
    """NaN and infinity, text cut within a character, a number of no calendar, decimals of more digits than there are."""
    leaf = Leaf("x", "BYTE_ARRAY", "STRING", "VARCHAR")
    decimal = "DECIMAL(4,2)"
    cases = [
        (Leaf("x", "DOUBLE", "", "DOUBLE"), b"\0\0\0\0\0\0\xf8\x7f"),
        (Leaf("x", "FLOAT", "", "DOUBLE"), b"\0\0\x80\x7f"),
        (leaf, "é".encode()[:1]),
        (Leaf("x", "INT32", "DATE", "DATE"), b"\xff\xff\xff\x7f"),
        (Leaf("x", "INT64", "", "BIGINT"), b"\1"),
        (Leaf("x", "INT32", decimal, decimal), (10_000).to_bytes(4, "little")),
        (Leaf("x", "FIXED_LEN_BYTE_ARRAY", decimal, decimal), b"\x7f" * 40),
        (Leaf("x", "BYTE_ARRAY", decimal, decimal), b"\1"),
        (Leaf("x", "BOOLEAN", "", "BOOLEAN"), b""),
    ]
    for odd, data in cases:
        assert footer_fields._decode(data, odd) is None, odd
    assert footer_fields._decode(
        (-125).to_bytes(2, "big", signed=True), Leaf("x", "FIXED_LEN_BYTE_ARRAY", decimal, decimal)
    ) == Decimal("-1.25")
