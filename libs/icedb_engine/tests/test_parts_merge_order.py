"""In which order a merge writes rows, from wherever they are decoded."""

import io
import math
from datetime import date, datetime, timedelta
from functools import partial
from itertools import chain

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from icedb_engine.engine import open_engine, open_scratch
from icedb_engine.limits import EngineLimits
from icedb_engine.reading import data_files, sort
from icedb_engine.reading.data_files import DataFiles, InputFile
from icedb_engine.reading.sort import sort_rows
from icedb_engine.work import MergeUnit
from icedb_log.errors import CorruptLog
from icedb_log.jobs import MergeGroup
from icedb_log.keys import TablePaths
from icedb_log.model import FileMarker
from icedb_log.table.table_config import TableConfig
from icedb_log.units import MIB

ENGINE = duckdb.connect(config={"threads": 1})
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


rows = st.lists(st.fixed_dictionaries({name: st.none() | values for name, values in VALUES.items()}), max_size=12)
sorts = st.permutations(list(VALUES)).flatmap(lambda names: st.integers(1, 4).map(lambda n: tuple(names[:n])))


def make_table(rows: list[dict], first_id: int = 0) -> pa.Table:
    columns = {name: pa.array([row[name] for row in rows], kind) for name, kind in TYPES.items()}
    return pa.table({**columns, "id": pa.array(range(first_id, first_id + len(rows)), pa.int64())})


def duck_keys(table: pa.Table, sort) -> list[tuple]:
    """Sort columns of the rows as the flush's engine orders them, NaN and zeros made comparable."""
    order = ", ".join(f'"{column}" NULLS LAST' for column in sort)
    with ENGINE.cursor() as connection:
        connection.register("rows", table)
        return keys(connection.execute(f"SELECT * FROM rows ORDER BY {order}").to_arrow_table(), sort)


def keys(table: pa.Table, sort) -> list[tuple]:
    return [
        tuple("nan" if value != value else value for value in row.values()) for row in table.select(sort).to_pylist()
    ]


def make_input(table: pa.Table, number: int, **options) -> InputFile:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    body = sink.getvalue()
    marker = FileMarker(f"wh/t/_data/{number}.parquet", len(body), 0, table.num_rows)
    types = {name: COLUMNS.get(name, "VARCHAR") for name in table.column_names}
    return InputFile(marker, pa.py_buffer(body), pq.read_metadata(io.BytesIO(body)), types)


def read_all(inputs, by, *, columns=COLUMNS, chunk_rows=3) -> list[pa.Table]:
    limits = EngineLimits(memory_bytes=64 * MIB)
    unit = MergeUnit(
        paths=TablePaths("t", "wh/t"),
        config=TableConfig.model_construct(name="t", sort=tuple(by), row_group_rows=chunk_rows),
        schema=columns,
        commit_id="c",
        time_ms=0,
        engine=limits,
        group=MergeGroup("", tuple(each.marker for each in inputs)),
    )
    with open_scratch(limits) as scratch:
        files = DataFiles(unit, scratch / "in", partial(open_engine, limits, scratch))
        files.files = inputs
        return list(files.read_sorted(columns))


some_columns = st.sets(st.sampled_from(list(VALUES)), max_size=3)
files = st.lists(st.tuples(rows, some_columns), min_size=1, max_size=6)


IN_MEMORY = {"DECODED_SHARE": 3}
RUNS = {"RUN_ROWS": 0}
DICTIONARIES = {"_REPEATING_ROWS": 0, "_REPEATED_SHARE": 1.0}
OUTSIDE = {"MAX_DECODED_BYTES": 0}


@pytest.mark.parametrize(
    "constants",
    [
        IN_MEMORY,
        RUNS,
        DICTIONARIES,
        {**DICTIONARIES, **RUNS},
        {**OUTSIDE, "SMALL_FILE_BYTES": 0},
        {**OUTSIDE, "SMALL_FILE_BYTES": 1 << 20},
    ],
    ids=["in memory", "in runs", "as dictionaries", "as dictionaries in runs", "engine reads", "engine sorts"],
)
@given(files, sorts)
@settings(max_examples=25, deadline=None)
def test_files_are_read_as_one_sorted_stream_whoever_decodes_and_sorts_them(constants, files, by):
    inputs, tables, count = [], [], 0
    for number, (rows, missing) in enumerate(files):
        table = make_table([{**row, **dict.fromkeys(missing)} for row in rows], count)
        count += len(rows)
        inputs.append(make_input(table.drop_columns(list(missing)), number))
        tables.append(table)
    everything = pa.concat_tables(tables)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in constants.items():
            patch.setattr(sort if name in RUNS else data_files, name, value)
        read = [table.cast(everything.schema) for table in read_all(inputs, by)]
    found = pa.concat_tables(read) if read else everything.slice(0, 0)
    assert found.schema.equals(everything.schema)
    assert keys(found, by) == duck_keys(everything, by)
    assert keys(found.sort_by("id"), COLUMNS) == keys(everything.sort_by("id"), COLUMNS), "a row was lost or changed"


def test_a_file_that_arrow_cannot_decode_is_named():
    good, bad = (make_input(pa.table({"i": [2, 1]}), number, compression="none") for number in (0, 1))
    damaged = bytearray(bad.source.to_pybytes())
    damaged[4:20] = bytes(16)
    bad = InputFile(bad.marker, pa.py_buffer(bytes(damaged)), bad.metadata, bad.types)
    with pytest.raises(CorruptLog, match=r"data file wh/t/_data/1\.parquet is not readable as Parquet"):
        read_all([good, bad], ["i"], columns={"i": "BIGINT"})


def test_chunks_of_wide_rows_are_small(monkeypatch):
    text = pa.table({"s": [str(n).zfill(2000) for n in range(8192)]})
    monkeypatch.setattr(data_files, "CHUNK_BYTES", 2000 * 2048)
    read = read_all([make_input(text, 0, use_dictionary=False)], ["s"], columns={"s": "VARCHAR"}, chunk_rows=8192)
    assert [table.num_rows for table in read] == [2048] * 4


def count_decoded(monkeypatch) -> list[str]:
    """Note which files are decoded, each time."""
    decoded: list[str] = []
    decode = InputFile.decode

    def noted(self, columns, **options):
        decoded.append(self.marker.path)
        return decode(self, columns, **options)

    monkeypatch.setattr(InputFile, "decode", noted)
    return decoded


def test_a_merge_in_memory_decodes_each_file_once_and_opens_no_engine(monkeypatch):
    decoded = count_decoded(monkeypatch)
    monkeypatch.setattr(data_files, "duckdb", None)
    inputs = [make_input(pa.table({"i": [number, -number]}), number) for number in range(5)]
    (read,) = read_all(inputs, ["i"], columns={"i": "BIGINT"}, chunk_rows=100)
    assert read["i"].to_pylist() == [-4, -3, -2, -1, 0, 0, 1, 2, 3, 4]
    assert sorted(decoded) == [each.marker.path for each in inputs]


def test_rows_that_turn_out_to_be_too_large_for_memory_are_sorted_by_the_engine(monkeypatch):
    wide = pa.table({"s": ["x" * 5000] * 10_000, "i": range(10_000)})
    file = make_input(wide, 0)
    assert file.decoded_bytes < 1 * MIB, "the footer says nothing of it"
    decoded = count_decoded(monkeypatch)
    read = read_all([file, make_input(wide.slice(0, 0), 1)], ["i"], columns={"s": "VARCHAR", "i": "BIGINT"})
    assert sum(table.num_rows for table in read) == wide.num_rows
    assert decoded.count(file.marker.path) == 2, "nothing was given up"


def test_text_that_repeats_itself_stays_a_dictionary_if_it_has_few_values_in_all_files(monkeypatch):
    monkeypatch.setattr(data_files, "_REPEATING_ROWS", 1)
    few = pa.array([f"w{n % 3}" for n in range(9000)])
    inputs = [
        make_input(pa.table({"few": few, "many": [f"{number if n else n}-{n % 60}" for n in range(9000)]}), number)
        for number in range(80)
    ]
    columns = {"few": "VARCHAR", "many": "VARCHAR"}
    table = read_all(inputs, ["many"], columns=columns, chunk_rows=1 << 20)[0]
    assert pa.types.is_dictionary(table["few"].type)
    assert len(table["few"].chunk(0).dictionary) == 3
    assert pa.types.is_string(table["many"].type), "4,780 values would be in each row group"


def test_many_files_of_few_texts_each_are_not_spelled_out_beyond_the_bound(monkeypatch):
    monkeypatch.setattr(data_files, "_REPEATING_ROWS", 1)
    rows = 2000
    inputs = [
        make_input(pa.table({"s": [f"{number}-{n % 60}".ljust(200) for n in range(rows)]}), number)
        for number in range(80)
    ]
    monkeypatch.setattr(data_files, "MAX_DECODED_BYTES", 80 * rows * 100)  # more than dictionaries, less than texts
    count_plain = data_files.count_plain_bytes
    counted = []
    monkeypatch.setattr(data_files, "count_plain_bytes", lambda values: counted.append(values) or count_plain(values))
    tables = read_all(inputs, ["s"], columns={"s": "VARCHAR"})
    assert len(counted[0].chunk(0).dictionary) == 4800, "what is decoded fits"
    assert sum(table.num_rows for table in tables) == 80 * rows
    assert count_plain(counted[0]) == sum(len(text) + 4 for table in tables for text in table["s"].to_pylist())
    monkeypatch.setattr(data_files.DataFiles, "_sort_outside", lambda *_: iter(["outside"]))
    assert read_all(inputs, ["s"], columns={"s": "VARCHAR"}) == ["outside"]


def sorted_ids(table, by, *, chunk_rows):
    return [part["id"].to_pylist() for part in sort_rows(table, by, chunk_rows=chunk_rows)]


@pytest.mark.parametrize("run_rows", [0, 8192])
def test_a_dictionary_that_has_a_value_twice_sorts_as_its_values(monkeypatch, run_rows):
    monkeypatch.setattr(sort, "RUN_ROWS", run_rows)
    twice = pa.DictionaryArray.from_arrays(pa.array([2, 0, 1, None, 0], pa.int32()), pa.array(["b", "a", "b"]))
    table = pa.table({"s": twice, "n": [0, 4, 3, 2, 1], "id": range(5)})
    assert list(chain(*sorted_ids(table, ["s", "n"], chunk_rows=5))) == [2, 0, 4, 1, 3]


@pytest.mark.parametrize("run_rows", [0, 8192])
def test_rows_of_equal_keys_stay_in_their_order(monkeypatch, run_rows):
    monkeypatch.setattr(sort, "RUN_ROWS", run_rows)
    keys = [n * 7 % 3 for n in range(999)]
    table = pa.table({"k": keys, "id": range(999)})
    pieces = [table.slice(at, 100) for at in range(0, 999, 100)]
    for by in (["k"], []):
        found = sorted_ids(pa.concat_tables(pieces), by, chunk_rows=50)
        assert list(chain(*found)) == sorted(range(999), key=lambda n: keys[n] if by else 0)
        assert {len(part) for part in found[:-1]} == {50}, "also where all have one key"


def test_rows_of_sorted_files_come_in_parts_of_about_one_size_and_only_they_are_copied(monkeypatch):
    monkeypatch.setattr(sort, "RUN_ROWS", 100)
    sorts = []
    argsort = np.argsort
    monkeypatch.setattr(sort.np, "argsort", lambda codes, **how: sorts.append(len(codes)) or argsort(codes, **how))
    rng = np.random.default_rng(1)
    files = [pa.table({"k": np.sort(rng.integers(0, 10**6, 10_000))}) for _ in range(20)]
    parts = list(sort_rows(pa.concat_tables(files), ["k"], chunk_rows=5_000))
    assert all(4_700 < part.num_rows < 5_300 for part in parts[:-1])
    assert pa.concat_tables(parts)["k"].to_pylist() == sorted(k for file in files for k in file["k"].to_pylist())
    assert max(sorts[1:]) < 5_300, "after a sample of all rows"


def test_rows_of_one_run_are_not_copied():
    keys = pa.array(range(100_000))
    parts = list(sort_rows(pa.table({"k": keys}), ["k"], chunk_rows=30_000))
    assert sum(part.num_rows for part in parts) == len(keys)
    first = keys.buffers()[1].address
    assert {part["k"].chunk(0).buffers()[1].address for part in parts} == {first}


def test_rows_that_are_sorted_as_a_whole_are_in_memory_once():
    before = pa.total_allocated_bytes()
    pieces = [pa.array([n * 7_919 % 100_003 for n in range(start, start + 50_000)]) for start in (0, 50_000)]
    table = pa.table({"k": pa.chunked_array(pieces)})
    size_bytes = table.nbytes
    parts = sort_rows(table, ["k"], chunk_rows=1_000)
    del pieces, table
    assert next(parts)["k"].to_pylist() == list(range(1_000))
    assert pa.total_allocated_bytes() - before < 1.5 * size_bytes
