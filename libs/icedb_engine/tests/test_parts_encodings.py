"""How column chunks are encoded: small and quick for readers, and the same values for each of them."""

import io
import random
from datetime import date, datetime, timedelta

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from icedb_engine.reading import data_files
from icedb_engine.writing import encodings
from icedb_engine.writing.encodings import encode_rows, find_repeated
from icedb_log.parquet.pages import DATA_PAGE, check_chunk

COUNT = 20_000
SENTENCES = [" ".join(f"{random.Random(n + m).getrandbits(30):x}" for m in range(9)) for n in range(0, 3_000, 3)]


def chunks_of(rows):
    """Return the encodings of each column, without those of levels and dictionaries."""
    metadata = pq.ParquetFile(pa.BufferReader(encode_rows(rows))).metadata
    group = metadata.row_group(0)
    found = {}
    for place in range(metadata.num_columns):
        chunk = group.column(place)
        is_dictionary = chunk.has_dictionary_page
        found[chunk.path_in_schema] = "dictionary" if is_dictionary else (set(chunk.encodings) - {"RLE"}).pop()
    return found


def shuffled(values):
    values = list(values)
    random.Random(1).shuffle(values)
    return values


def test_each_column_has_the_encoding_that_readers_are_quickest_with():
    start = datetime(2026, 1, 1)
    rows = pa.table(
        {
            "url": shuffled(f"https://example.com/{n % 3000}" for n in range(COUNT)),
            "user": [f"u{n // 5}" for n in range(COUNT)],
            "session": [f"{'s' * (n % 7)}{n // 2}" for n in range(COUNT)],
            "id": [f"{n * 7919 % 2**40:010x}" for n in range(COUNT)],
            "message": [f"button {n} was pressed" for n in range(COUNT)],
            "price": pa.array(shuffled(n % 1000 / 100 for n in range(COUNT))),
            "share": pa.array([n / 7 for n in range(COUNT)]),
            "ts": pa.array([start + timedelta(milliseconds=n) for n in range(COUNT)], pa.timestamp("us")),
            "day": pa.array([date(2000, 1, 1) + timedelta(days=n) for n in range(COUNT)], pa.date32()),
            "number": pa.array(shuffled(range(COUNT))),
            "hash": pa.array([(n * 0x9E3779B97F4A7C15) % 2**64 - 2**63 for n in range(COUNT)]),
            "flag": pa.array([n % 2 == 0 for n in range(COUNT)]),
            "nothing": pa.nulls(COUNT, pa.string()),
        }
    )
    assert chunks_of(rows) == {
        "url": "dictionary",
        "user": "dictionary",
        "session": "PLAIN",
        "id": "DELTA_LENGTH_BYTE_ARRAY",
        "message": "PLAIN",
        "price": "dictionary",
        "share": "PLAIN",
        "ts": "DELTA_BINARY_PACKED",
        "day": "DELTA_BINARY_PACKED",
        "number": "DELTA_BINARY_PACKED",
        "hash": "PLAIN",
        "flag": "PLAIN",
        "nothing": "dictionary",
    }


def size_of(rows):
    chunk = pq.ParquetFile(pa.BufferReader(encode_rows(rows))).metadata.row_group(0).column(0)
    return chunk.total_compressed_size


@pytest.mark.parametrize(
    ("make", "is_smaller"),
    [
        pytest.param(lambda chance: f"{chance.choice(SENTENCES)} {chance.random()}", True, id="sentences"),
        pytest.param(lambda chance: f"{chance.getrandbits(64):016x}", False, id="random digits"),
    ],
)
def test_text_that_repeats_itself_is_compressed_harder_and_no_other(monkeypatch, make, is_smaller):
    chance = random.Random(1)
    rows = pa.table({"v": [make(chance) for _ in range(COUNT)]})
    size_bytes = size_of(rows)
    monkeypatch.setattr(encodings, "TEXT_LEVEL", encodings.COMPRESSION_LEVEL)
    assert (size_bytes < 0.95 * size_of(rows)) is is_smaller
    assert is_smaller or size_bytes == size_of(rows)


@pytest.mark.parametrize("texts", [[None] * COUNT, [""] * COUNT, [None, "x" * 200_000] * 2, ["é" * 70_000] * 2])
def test_levels_are_chosen_of_any_text(monkeypatch, texts):
    monkeypatch.setattr(encodings, "_LENGTHS_ROWS", 1)
    rows = pa.table({"v": pa.array(texts, pa.string())})
    assert pq.read_table(pa.BufferReader(encode_rows(rows))).equals(rows)


@pytest.mark.parametrize("order", [list, shuffled])
@pytest.mark.parametrize(("rows_of_each", "is_repeated"), [(200, True), (20, True), (8, True), (2, False), (1, False)])
def test_a_dictionary_goes_by_the_share_of_distinct_values_in_any_order(order, rows_of_each, is_repeated):
    rows = pa.table({"v": order(f"v{n // rows_of_each}" for n in range(100_000))})
    assert find_repeated(rows) == ["v"] * is_repeated


@pytest.mark.parametrize("null_share", [0.0, 0.03, 0.3, 0.9])
@pytest.mark.parametrize(("rows_of_each", "is_repeated"), [(20, True), (8, True), (2, False), (1, False)])
def test_nulls_make_no_column_repeat_itself(null_share, rows_of_each, is_repeated):
    chance = random.Random(1)
    count = round(100_000 * (1 - null_share))
    values = [f"v{n // rows_of_each}" for n in range(count)] + [None] * (100_000 - count)
    chance.shuffle(values)
    assert find_repeated(pa.table({"v": values})) == ["v"] * is_repeated


def test_text_of_few_rows_can_be_read_as_a_dictionary_by_arrow():
    rows = pa.table({"country": [f"{n:02}" for n in range(50)]})
    assert chunks_of(rows) == {"country": "PLAIN"}
    (read,) = pq.read_table(pa.BufferReader(encode_rows(rows)), read_dictionary=["country"]).columns
    assert read.to_pylist() == rows["country"].to_pylist()


def test_a_column_chunk_is_one_page_unless_it_is_large():
    rows = pa.table({"n": shuffled(range(50_000)), "text": [f"{n:060}" for n in range(50_000)]})
    body = encode_rows(rows)
    source = data_files.parse_source(data_files.cut_footer(memoryview(body)), data_bytes=body.size)
    pages = {
        name: [page for page in check_chunk(body.to_pybytes(), chunk) if page.kind == DATA_PAGE]
        for name, chunk in source.groups[0].chunks.items()
    }
    assert len(pages["n"]) == 1
    assert len(pages["text"]) == 3
    assert max(page.size_bytes for page in pages["text"]) <= 1.1 * encodings.PAGE_BYTES


LONGS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(0, 1000), st.sampled_from([-(2**63), 2**63 - 1, 0, -1]))
COLUMNS = {
    "n": (pa.int64(), LONGS),
    "t": (pa.timestamp("us"), LONGS.filter(lambda n: abs(n) < 2**53)),
    "d": (pa.date32(), st.integers(-100_000, 100_000)),
    "f": (pa.float64(), st.floats(allow_nan=False)),
    "s": (
        pa.string(),
        st.one_of(st.text(st.characters(exclude_categories=["Cs"])), st.text("ab", min_size=3, max_size=3)),
    ),
    "b": (pa.bool_(), st.booleans()),
}


@given(data=st.data(), count=st.integers(0, 60), lengths_rows=st.sampled_from([1, 16_384]))
def test_every_reader_gets_the_values_that_were_written(data, count, lengths_rows):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encodings, "_LENGTHS_ROWS", lengths_rows)
        names = data.draw(st.lists(st.sampled_from(list(COLUMNS)), min_size=1, unique=True))
        arrays = {
            name: pa.array(
                data.draw(st.lists(st.one_of(COLUMNS[name][1], st.none()), min_size=count, max_size=count)),
                type=COLUMNS[name][0],
            )
            for name in names
        }
        rows = pa.table(arrays)
        body = encode_rows(rows)
    assert pq.read_table(pa.BufferReader(body), page_checksum_verification=True).equals(rows)
    if not count:
        return
    read = pl.read_parquet(io.BytesIO(body.to_pybytes())).to_arrow().cast(rows.schema)
    assert read.equals(rows)


def test_the_native_engine_reads_each_encoding(tmp_path):
    numbers = [n * 48_271 % 2**31 - 2**30 for n in range(COUNT)]
    rows = pa.table({"n": numbers, "id": [f"{n % 2**32:08x}" for n in numbers], "s": [f"v{n % 9}" for n in numbers]})
    assert chunks_of(rows) == {"n": "DELTA_BINARY_PACKED", "id": "DELTA_LENGTH_BYTE_ARRAY", "s": "dictionary"}
    path = tmp_path / "rows.parquet"
    path.write_bytes(encode_rows(rows))
    with duckdb.connect() as connection:
        assert connection.execute(f"FROM read_parquet('{path}')").to_arrow_table().cast(rows.schema).equals(rows)


def test_a_merge_keeps_text_as_dictionaries_also_where_a_file_has_it_otherwise(make_table, tmp_path, monkeypatch):
    monkeypatch.setattr(encodings, "_LENGTHS_ROWS", 1)
    monkeypatch.setattr(data_files, "_REPEATING_ROWS", 1)
    monkeypatch.setattr(data_files, "_REPEATED_SHARE", 1.0)
    table = make_table(sort=("n",))
    few = table.flush(table.stage(*({"n": 2 * n, "s": "aa"} for n in range(40)))).files
    many = table.flush(table.stage(*({"n": 2 * n + 1, "s": f"{n:02}"} for n in range(30)))).files
    assert "DELTA_LENGTH_BYTE_ARRAY" in table.parquet(many[0]).metadata.row_group(0).column(1).encodings
    merged = table.merge(*few, *many)
    expected = sorted([(2 * n, "aa") for n in range(40)] + [(2 * n + 1, f"{n:02}") for n in range(30)])
    assert [(row["n"], row["s"]) for row in table.rows(*merged.outputs)] == expected


@pytest.mark.parametrize("parts", [1, 2])
def test_a_dictionary_holds_no_value_that_none_of_its_rows_has(parts):
    """What rows that are deleted had must not stay behind in the file."""
    known = pa.array(["a", "gone", "b"])
    chunks = [pa.DictionaryArray.from_arrays(pa.array([2, None, 0], pa.int32()), known) for _ in range(parts)]
    rows = pa.table({"t": pa.chunked_array(chunks)})
    body = pa.BufferReader(encode_rows(rows))
    (read,) = pq.read_table(body, read_dictionary=["t"]).column("t").chunks
    assert sorted(read.dictionary.to_pylist()) == ["a", "b"]
    assert read.to_pylist() == ["b", None, "a"] * parts
