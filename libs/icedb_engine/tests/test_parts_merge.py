"""What a merge writes: all rows once, sorted, with the union of the columns, within its memory."""

import json
from dataclasses import replace
from datetime import date, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from icedb_engine.writing.part_files import PartFileWriter, PartLayout, SortedRun
from icedb_log.errors import CorruptLog, NotFound, SchemaConflict, Unavailable
from icedb_log.model import FileMarker
from icedb_log.parquet.pages import check_page_sums
from icedb_log.units import MIB
from pyarrow.parquet import SortingColumn

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


@pytest.mark.parametrize(
    ("memory_bytes", "thread_count", "row_count"),
    [
        pytest.param(48 * MIB, 1, 40_000, marks=pytest.mark.soak),
        (64 * MIB, 2, 20_000),
        (512 * MIB, 2, 20_000),
    ],
)
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
    low, high = (pc.min_max(written["n"])[name].as_py() for name in ("min", "max"))
    assert marker.stats == {"k": ("0", "9", 0), "n": (low, high, 0)}


def test_a_row_group_takes_text_that_repeats_itself_beside_text_that_does_not(make_table, tmp_path):
    table = make_table(sort=("text",))
    columns = {"n": "BIGINT", "text": "VARCHAR"}
    layout = PartLayout(table.write_unit(columns), columns, ("",), "merge")
    writer = PartFileWriter(layout, table.store, clock=table.clock, folder=tmp_path / "out")
    texts = [pa.array(["a", "b"]).dictionary_encode(), pa.array(["c", "d"]), pa.array(["e", "a"]).dictionary_encode()]
    runs = [SortedRun(2, [pa.table({"n": [n, n], "text": text})]) for n, text in enumerate(texts)]
    (marker,) = writer.write_partition(runs)
    assert [row["text"] for row in table.rows(marker)] == ["a", "b", "c", "d", "e", "a"]
    assert table.parquet(marker).num_row_groups == 1
    assert marker.stats == {"text": ("a", "e", 0)}


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
    with pytest.raises(CorruptLog, match=r"data file wh/events/_data/b.parquet is not readable as Parquet"):
        table.merge(good, bad)
    with pytest.raises(CorruptLog, match=r"data file wh/events/_data/b.parquet is not readable as Parquet"):
        table.merge(good, bad, schema={"n": "DOUBLE"})
    table.store.put(bad.path, body[:400] + b"\xff" * 400 + body[800:])  # which only decompression notices
    with pytest.raises(CorruptLog, match=r"a data file, one of 2 from .*_data/a.parquet on, cannot be merged"):
        table.merge(good, bad, schema={"n": "DOUBLE"})


@pytest.mark.parametrize("schema", [None, {"n": "DOUBLE"}])  # read in memory, and by the engine
def test_an_input_whose_pages_differ_from_their_checksums_halts_and_is_named(make_table, schema):
    """Without a checksum they would be other numbers, and be written anew as if they were right."""
    table = make_table()
    good = table.put_file(pa.table({"n": list(range(1000))}), "a")
    summed = table.put_file(
        pa.table({"n": list(range(1000))}), "b", compression="none", use_dictionary=False, write_page_checksum=True
    )
    body = bytearray(table.store.get(summed.path).body)
    for place in range(1000, 1060):
        body[place] ^= 255
    table.store.put(summed.path, bytes(body))
    with pytest.raises(CorruptLog, match=r"data file wh/events/_data/b.parquet is not readable as Parquet"):
        table.merge(good, summed, schema=schema)


def test_what_is_written_has_a_checksum_for_each_page(make_table):
    table = make_table(sort=("n",), row_group_rows=2048)
    rows = [{"n": n, "s": f"w{n % 5}", "u": f"{n * 7919}"} for n in range(5000)]
    (flushed,) = table.flush(table.stage(*rows)).files
    (merged,) = table.merge(flushed, table.put_file(pa.table({"n": [-1]}), "x")).outputs
    for marker in (flushed, merged):
        page_count, unsummed_count = check_page_sums(table.store.get(marker.path).body)
        assert page_count > 6
        assert not unsummed_count


def test_columns_keep_the_order_of_the_schema(make_table):
    table = make_table()
    files = [table.put_file(pa.table({"b": [1], "c": [2]}), "0"), table.put_file(pa.table({"z": [3], "a": [4]}), "1")]
    schema = {"a": "BIGINT", "z": "BIGINT", "b": "BIGINT", "nowhere": "BIGINT", "c": "BIGINT"}
    (marker,) = table.merge(*files, schema=schema).outputs
    assert table.parquet(marker).schema_arrow.names == ["a", "z", "b", "c"]


PATH = "u=S_c3_a3o/d=2023-06-07/k=0123/e=_/x=__HIVE_DEFAULT_PARTITION__"


@pytest.mark.parametrize(
    "values",
    [
        {"d": pa.array([date(2023, 6, 7)] * 2)},
        {"d": ["2023-06-07", None], "D2": pa.nulls(2)},
        {"u": ["São", "S_c3_a3o"]},
        {"k": [123, None], "K": [123, 123]},
        {"k": ["0123", "0123"], "e": ["", "_"]},
        {"x": pa.nulls(2, pa.int64()), "never": pa.nulls(2, pa.string())},
    ],
)
@pytest.mark.parametrize("others", [{}, {"n": pa.array([3], pa.int32())}])  # sorted in memory, and by the engine
def test_a_merge_writes_the_columns_of_the_schema_and_none_that_repeats_the_path(make_table, values, others):
    table = make_table(sort=("n",))
    old = table.put_file(pa.table({"n": [2, 1], **values}), "0", partition=PATH)
    new = table.put_file(pa.table({"n": [3], **others}), "1", partition=PATH)
    result = table.merge(replace(old, row_count=None), new, schema={"n": "BIGINT", "later": "VARCHAR"})
    (marker,) = result.outputs
    assert table.parquet(marker).schema_arrow.names == ["n"]
    assert table.rows(marker) == [{"n": 1}, {"n": 2}, {"n": 3}]
    assert (marker.row_count, result.rows_read, dict(marker.stats)) == (3, 3, {"n": (1, 3, 0)})


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("d", [date(2023, 6, 7), date(2023, 6, 8)]),
        ("d", [datetime(2023, 6, 7), datetime(2023, 6, 7, 1)]),
        ("k", [123, 124]),
        ("e", ["", " "]),
        ("x", ["", None]),
        ("unknown", [None, 1]),
        ("u", [{"a": 1}, None]),
    ],
)
def test_data_of_a_column_that_the_schema_has_not_halts_the_merge_and_is_named(make_table, column, values):
    table = make_table()
    bad = table.put_file(pa.table({"n": [1, 2], column: values}), "0", partition=PATH)
    good = table.put_file(pa.table({"n": [3]}), "1", partition=PATH)
    with pytest.raises(
        SchemaConflict, match=rf"column '{column}' is .* in data file .*/0.parquet, but the table has no"
    ):
        table.merge(good, bad, schema={"n": "BIGINT"})


def test_a_column_of_the_schema_stays_although_the_path_repeats_it(make_table):
    table = make_table()
    files = [table.put_file(pa.table({"u": ["São"], "n": [n]}), str(n), partition=PATH) for n in (1, 2)]
    (marker,) = table.merge(*files, schema={"u": "VARCHAR", "n": "BIGINT"}).outputs
    assert table.rows(marker) == [{"u": "São", "n": 1}, {"u": "São", "n": 2}]


def test_a_failed_upload_raises_and_leaves_no_scratch(make_table, monkeypatch):
    table = make_table()
    files = [table.put_file(pa.table({"n": [1]}), "0"), table.put_file(pa.table({"n": [2]}), "1")]

    def refuse(key, path, *, may_move):
        raise Unavailable("no room")

    monkeypatch.setattr(table.store, "upload", refuse)
    with pytest.raises(Unavailable, match="no room"):
        table.merge(*files)
    with pytest.raises(Unavailable, match="no room"):
        table.flush(table.stage({"n": 1}))


def test_text_of_few_values_stays_a_dictionary_of_the_words_that_a_row_group_has(make_table):
    table = make_table(sort=("word",), row_group_rows=2048)
    words = [f"word-{number:04}" for number in range(500)]
    unique = [f"{number:08}" for number in range(4000)]
    files = [
        table.put_file(pa.table({"word": words * 8, "unique": unique, "late": [None, "x"] * 2000}), "0"),
        table.put_file(
            pa.table({"word": words * 8, "unique": [f"x{each}" for each in unique]}), "1", use_dictionary=False
        ),
    ]
    (marker,) = table.merge(*files).outputs
    parquet = table.parquet(marker)
    assert parquet.schema_arrow.types == [pa.string()] * 3
    assert parquet.read()["word"].to_pylist() == sorted(words * 16)
    assert parquet.read()["late"].null_count == 6000
    group = parquet.metadata.row_group(0)
    assert [group.column(number).has_dictionary_page for number in range(3)] == [True, False, True]
    assert group.column(0).total_uncompressed_size < 128 * 20 + 2048 * 2, "the words of all other rows are in it"
    assert group.sorting_columns == (SortingColumn(0, nulls_first=False),)
    table_of_nulls = table.put_file(pa.table({"word": pa.nulls(3, pa.string())}), "2")
    assert table.merge(table_of_nulls, table_of_nulls).outputs[0].stats == {"word": (None, None, 6)}


def test_values_that_have_to_be_converted_are(make_table):
    table = make_table(sort=("n",))
    files = [
        table.put_file(pa.table({"n": pa.array([3, 1], pa.int32()), "x": pa.array([0.5, 1.5], pa.float32())}), "0"),
        table.put_file(pa.table({"n": [2], "x": [7.25]}), "1"),
    ]
    (marker,) = table.merge(*files, schema={"n": "BIGINT", "x": "DOUBLE"}).outputs
    assert table.parquet(marker).schema_arrow.types == [pa.int64(), pa.float64()]
    assert table.rows(marker) == [{"n": 1, "x": 1.5}, {"n": 2, "x": 7.25}, {"n": 3, "x": 0.5}]


def test_files_without_rows_become_none(make_table):
    table = make_table(sort=("n",))
    files = [table.put_file(pa.table({"n": pa.array([], pa.int64())}), name) for name in "ab"]
    result = table.merge(*files)
    assert (result.outputs, result.rows_read) == ((), 0)


@pytest.mark.parametrize("memory_bytes", [16 * MIB, 256 * MIB])
def test_statistics_that_are_not_true_do_not_break_the_order(make_table, memory_bytes):
    table = make_table(sort=("n",))
    numbers = [list(range(0, 400_000, 2)), list(range(1, 400_000, 2))]
    files = [table.put_file(pa.table({"n": each}), f"{name}") for name, each in enumerate(numbers)]
    lying = [replace(file, stats={"n": (name, name, 0)}) for name, file in enumerate(files)]
    (marker,) = table.merge(*lying, engine=replace(table.engine, memory_bytes=memory_bytes)).outputs
    assert table.parquet(marker).read()["n"].to_pylist() == list(range(400_000))
    assert marker.stats == {"n": (0, 399_999, 0)}
