"""Row groups that a merge takes over as bytes: the same rows, order and statistics as if they had been decoded."""

import io
import json
import math
import time
from dataclasses import replace
from datetime import date, timedelta
from threading import Event, current_thread

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from icedb_engine.arrow_types import make_schema
from icedb_engine.reading import data_files
from icedb_engine.units import merge_unit as merge_unit_module
from icedb_engine.units.merge_unit import merge_unit
from icedb_engine.work import MergeUnit
from icedb_engine.writing import part_files, row_groups
from icedb_engine.writing.part_files import PartEncoder
from icedb_engine.writing.row_groups import PieceMaker
from icedb_log.errors import CorruptLog, InvariantViolated, SchemaConflict
from icedb_log.jobs import MergeGroup
from icedb_log.model import FileMarker
from icedb_sim.tables.profiles import SHARED_FIXTURES
from sorted_files import COLUMNS, CONDITIONS, EPOCH, GROUP_ROWS, Files, check_file, keys, make_rows, some_files, sorts
from waiting import LIMIT_S


@pytest.fixture(autouse=True, scope="module")
def half_is_small():
    """Call half a row group small: with the product's share the examples would have to be four times as large."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_groups, "SMALL_SHARE", 2)
        yield


@pytest.fixture(scope="module")
def engine():
    """One for all examples: to open one takes longer than what it is asked."""
    with duckdb.connect(config={"threads": 1}) as engine:
        yield engine


def decoding(patch):
    make = PieceMaker.make_pieces
    patch.setattr(PieceMaker, "make_pieces", lambda *told: [replace(piece, facts=None) for piece in make(*told)])


@given(files=some_files, sort=sorts)
@settings(max_examples=25, deadline=None, suppress_health_check=SHARED_FIXTURES)
def test_a_merge_that_copies_is_like_one_that_decodes(make_table, tmp_path_factory, files, sort):
    made = Files(make_table, sort=sort)
    scratch = tmp_path_factory.mktemp("files")
    markers, schema = made.put_all(files, scratch)
    copied = made.merge(*markers, schema=schema)
    with pytest.MonkeyPatch.context() as patch:
        decoding(patch)
        decoded = made.merge(*markers, schema=schema)
    assert decoded.copied_bytes == 0
    if len(copied.outputs) == len(decoded.outputs):  # late rows may be apart: what comes out is compared above
        assert [(each.row_count, dict(each.stats), each.inexact) for each in copied.outputs] == [
            (each.row_count, dict(each.stats), each.inexact) for each in decoded.outputs
        ]
    assert copied.contents.differences == ()


@given(files=some_files, sort=sorts, condition=st.sampled_from(CONDITIONS))
@settings(max_examples=40, deadline=None, suppress_health_check=SHARED_FIXTURES)
def test_a_deletion_leaves_each_other_row_whether_it_copies_or_decodes(
    make_table, tmp_path_factory, engine, files, sort, condition
):
    made = Files(make_table, sort=sort)
    scratch = tmp_path_factory.mktemp("files")
    tables, first = [], 0
    for rows, missing in files:
        tables.append(make_rows(rows, first).drop_columns(sorted(missing)))
        first += len(rows)
    markers = [made.put(table, scratch) for table in tables]
    everything = pa.concat_tables(tables, promote_options="default").select(
        [name for name in COLUMNS if any(name in table.column_names for table in tables)]
    )
    whole = pa.table([everything[name] if name in everything.column_names else pa.nulls(first, kind)
                      for name, kind in zip(COLUMNS, make_schema(COLUMNS).types, strict=True)], names=list(COLUMNS))  # fmt: skip
    engine.register("rows", whole)
    left = engine.execute(f"SELECT * FROM rows WHERE NOT coalesce({condition}, false) ORDER BY id").to_arrow_table()
    with pytest.MonkeyPatch.context() as patch:
        for decodes in (False, True):
            if decodes:
                decoding(patch)
            done = made.delete(condition, *markers)
            assert (done.rows_read, done.rows_removed) == (first, first - left.num_rows)
            assert (done.copied_bytes == 0) or not decodes
            found = made.read(done.outputs).sort_by("id") if done.outputs else left.slice(0, 0)
            names = found.column_names
            assert keys(found) == keys(left.select(names))
            assert all(left[name].null_count == left.num_rows for name in set(COLUMNS) - set(names))


def test_a_deletion_decodes_only_row_groups_that_hold_such_a_row(make_table, tmp_path):
    made = Files(make_table, sort=("i",))
    (file,) = (made.put(rows, tmp_path) for rows in in_order(1, 5 * GROUP_ROWS))
    left = made.delete("i = 19 AND s <> 'x'", file)
    assert (left.rows_removed, left.rows_decoded) == (1, GROUP_ROWS)
    assert left.copied_bytes > file.size_bytes / 3
    assert made.read(left.outputs)["i"].to_pylist() == [n for n in range(5 * GROUP_ROWS) if n != 19]
    everywhere = made.delete("f = 4.75", file)
    assert (everywhere.rows_removed, everywhere.rows_decoded, everywhere.copied_bytes) == (1, 5 * GROUP_ROWS, 0)


def test_a_deletion_that_loses_a_row_is_not_committed(make_table, tmp_path, monkeypatch):
    made = Files(make_table, sort=("i",))
    (file,) = (made.put(rows, tmp_path) for rows in in_order(1, GROUP_ROWS))
    monkeypatch.setattr(merge_unit_module._Kept, "keep", lambda _, rows: rows.slice(1))
    with pytest.raises(InvariantViolated, match="8 rows came, 0 were removed and 7 written"):
        made.delete("i = 3", file)


def dictionaries_of(table, marker, column):
    """Return for each row group of a data file the values of the dictionary, and those of the rows."""
    with pq.ParquetFile(io.BytesIO(table.store.get(marker.path).body), read_dictionary=[column]) as file:
        found = [file.read_row_group(number)[column].chunk(0) for number in range(file.metadata.num_row_groups)]
    return [(set(each.dictionary.to_pylist()), set(each.to_pylist())) for each in found]


def test_no_dictionary_holds_a_value_of_a_row_that_was_deleted(make_table, tmp_path, monkeypatch):
    monkeypatch.setattr(data_files, "_REPEATING_ROWS", 1)
    monkeypatch.setattr(data_files, "_REPEATED_SHARE", 1.0)
    made = Files(make_table, sort=("i",))
    count = 6 * GROUP_ROWS
    files = [
        made.put(make_rows([{"i": 2 * n + odd, "s": f"name-{n // 6}"} for n in range(count)], odd * count), tmp_path)
        for odd in (0, 1)
    ]
    (merged,) = made.merge(*files).outputs
    groups = dictionaries_of(made.table, merged, "s")
    assert len(groups) > 8
    assert all(known == used and len(known) <= 3 for known, used in groups), "of all files there are 8 names"
    left = made.delete("s = 'name-3' AND i < 1000", merged)
    assert left.rows_removed == 12
    (kept,) = made.delete("s = 'name-3' AND i BETWEEN 36 AND 47", merged).outputs
    assert made.delete("i BETWEEN 36 AND 47", merged).copied_bytes > 0
    for known, used in dictionaries_of(made.table, kept, "s"):
        assert known == used
        assert "name-3" not in known


def test_row_groups_of_which_dictionaries_may_hold_more_are_copied_by_no_deletion(make_table, tmp_path):
    made = Files(make_table, sort=("i",))
    first, second = in_order(2, 5 * GROUP_ROWS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(part_files, "EXACT", "unknown")
        old = made.put(first, tmp_path)
    new = made.put(second, tmp_path)
    assert made.delete("i = 3", old).copied_bytes == 0
    assert made.delete("i = 43", new).copied_bytes > 0
    (merged,) = made.merge(old, new).outputs
    assert made.delete("i = 43", merged).copied_bytes == 0, "what a merge has copied of it is no better"
    (clean,) = made.delete("i = 3", old).outputs
    assert made.delete("i = 30", clean).copied_bytes > 0


def in_order(count: int, size: int, *, offset=0) -> list[pa.Table]:
    return [
        make_rows([{"i": offset + number * size + n, "s": f"v{n % 3}", "f": n / 4} for n in range(size)], number * size)
        for number in range(count)
    ]


def test_files_that_follow_each_other_are_not_decoded(make_table, tmp_path):
    made = Files(make_table, sort=("i",))
    markers = [made.put(rows, tmp_path) for rows in in_order(5, 20)]
    with pytest.MonkeyPatch.context() as patch:
        only_copied(patch)  # whatever it says of itself
        merged = made.merge(*markers[::-1])
    assert merged.rows_decoded == 0
    assert merged.copied_bytes > 0
    (output,) = merged.outputs
    assert output.stats["i"] == (0, 99, 0)
    footer = made.table.parquet(output).metadata
    assert footer.num_row_groups == 15
    assert {footer.row_group(n).sorting_columns[0].column_index for n in range(15)} == {1}
    told = json.loads(footer.metadata[b"icedb.order"])
    assert told["by"] == ["i"]
    assert told["groups"][0] == [[0], [7]]
    again = made.merge(output, made.put(in_order(1, 8, offset=200)[0], tmp_path))
    assert again.rows_decoded == 0, "what was copied once is copied again"


def test_only_row_groups_that_overlap_are_decoded(make_table, tmp_path):
    made = Files(make_table, sort=("i",))
    first = made.put(in_order(1, 40)[0], tmp_path)
    late = made.put(make_rows([{"i": 17}, {"i": 21}], 1000), tmp_path)
    merged = made.merge(first, late)
    assert merged.rows_decoded == 8 + 2
    wide = made.put(make_rows([{"i": n} for n in (9, 10, 17, 18, 25, 26)], 2000), tmp_path)
    merged = made.merge(first, wide)
    assert merged.rows_decoded == 3 * 8 + 6, "and what waits is written before the row group that is copied next"
    footer = made.table.parquet(merged.outputs[0]).metadata
    assert [footer.row_group(n).num_rows for n in range(6)] == [8, 8, 8, 8, 6, 8]


def late_events(table, number, rows=1000):
    """Flush events of an hour, of which a hundredth comes from the hours before; return the data file."""
    first = EPOCH + timedelta(hours=number)
    step = timedelta(hours=1) / rows
    times = [first + n * step - (timedelta(hours=2) if n % 100 == 7 else timedelta()) for n in range(rows)]
    (file,) = table.flush(table.stage(*({"t": f"{time.isoformat()}Z", "id": n} for n, time in enumerate(times)))).files
    return file


@pytest.fixture
def late_table(make_table, monkeypatch):
    monkeypatch.setattr(part_files, "LATE_MIN_ROWS", 1000)
    table = make_table(sort=("t",), declared={"t": "TIMESTAMP"})
    table.config = table.config.model_copy(update={"row_group_rows": 1024})
    return table


def test_a_few_late_rows_leave_the_others_to_be_copied(late_table):
    files = [late_events(late_table, number) for number in range(6)]
    late_rows = [late_table.parquet(file).metadata.row_group(0).num_rows for file in files]
    assert [late_table.parquet(file).metadata.num_row_groups for file in files] == [2] * 6
    assert all(10 <= count <= 50 for count in late_rows)
    merged = late_table.merge(*files)
    assert merged.rows_decoded <= sum(late_rows)
    others = [late_table.parquet(file).metadata.row_group(1) for file in files]
    assert merged.copied_bytes == sum(
        group.column(place).total_compressed_size for group in others for place in range(group.num_columns)
    )
    main, late = merged.outputs
    assert late.row_count <= sum(late_rows)
    for marker in merged.outputs:
        check_file(late_table, marker)
    (whole,) = late_table.merge(main, late).outputs
    assert whole.row_count == 6000, "two files become one: no merge does its work again and again"
    check_file(late_table, whole)


def test_late_rows_are_told_by_how_thin_they_lie(late_table):
    evenly = [{"t": f"{(EPOCH + timedelta(seconds=n)).isoformat()}Z"} for n in range(1000)]
    (file,) = late_table.flush(late_table.stage(*evenly)).files
    assert late_table.parquet(file).metadata.num_row_groups == 1
    (file,) = late_table.flush(late_table.stage({"t": "2020-01-01T00:00:00Z"}, *evenly)).files
    assert late_table.parquet(file).metadata.row_group(0).num_rows == 2 * (1001 // 64)


@pytest.mark.parametrize(
    "values",
    [
        [None] * 1000,
        [*range(999), None],
        [f"{n:04}" for n in range(1000)],
        [-math.inf, *map(float, range(998)), math.inf],
        [*map(float, range(999)), math.nan],
        [False] * 10 + [True] * 990,
        [5] * 1000,
    ],
)
def test_what_has_no_distance_has_no_late_rows(values, monkeypatch):
    monkeypatch.setattr(part_files, "LATE_MIN_ROWS", 1000)
    assert part_files.find_late(pa.chunked_array([pa.array(values)])) == 0


def test_a_tie_of_the_first_column_is_told_apart_by_tuples_alone(make_table, tmp_path):
    made = Files(make_table, sort=("b", "i"))
    parts = [[{"b": n > 1, "i": 10 * n + k} for k in range(8)] for n in range(4)]
    markers = [made.put(make_rows(rows, 8 * n), tmp_path) for n, rows in enumerate(parts)]
    assert made.merge(*markers).rows_decoded == 0
    for marker in markers:
        change_footer(made.table, marker, b"icedb.order", b"icedb.0rder")
    assert made.merge(*markers).rows_decoded == 32


def test_without_tuples_nulls_and_nan_are_above_all_else(make_table, tmp_path):
    made = Files(make_table, sort=("i", "s"))
    one, two = ([{"i": n + first} for n in range(8)] for first in (0, 100))
    one[7]["i"] = None
    markers = [made.put(make_rows(rows, 0), tmp_path) for rows in (one, two)]
    for marker in markers:
        change_footer(made.table, marker, b"icedb.order", b"icedb.0rder")
    assert made.merge(*markers).rows_decoded == 16
    assert made.merge(*markers).outputs[0].stats["i"] == (0, 107, 1)


def test_the_log_says_of_copied_rows_what_it_says_of_others(make_table, tmp_path):
    made = Files(make_table, sort=("f",))
    rows = [{"f": float(n), "i": 2**60 if n == 3 else n} for n in range(8)]
    nulls = [{"f": None, "d": date(2020, 1, 1)} for _ in range(8)]
    markers = [made.put(make_rows(each, 0), tmp_path) for each in (rows, nulls)]
    merged = made.merge(*markers)
    assert merged.rows_decoded == 0
    assert merged.outputs[0].stats["f"] == (0.0, 7.0, 8)
    assert merged.outputs[0].inexact == ("i",)
    rows[7]["f"] = math.nan
    merged = made.merge(made.put(make_rows(rows, 0), tmp_path), markers[1])
    assert merged.rows_decoded == 8, "of NaN only the log knows, and of which row group nobody"
    assert merged.outputs[0].stats["f"] == (None, None, 8)


def change_footer(table, marker, before: bytes, after: bytes):
    body = table.store.get(marker.path).body
    assert body.count(before) == 1
    table.store.put(marker.path, body.replace(before, after))


def test_small_row_groups_are_put_together_with_their_neighbours(make_table, tmp_path):
    made = Files(make_table, sort=("i",))
    rows = in_order(1, 24)[0]
    big, rest = made.put(rows.slice(0, 16), tmp_path), made.put(rows.slice(23, 1), tmp_path)
    merged = made.merge(big, rest)
    assert merged.rows_decoded == 9
    footer = made.table.parquet(merged.outputs[0]).metadata
    assert [footer.row_group(n).num_rows for n in range(3)] == [8, 5, 4]


def test_a_table_without_order_is_copied(make_table, tmp_path):
    made = Files(make_table, sort=())
    markers = [made.put(rows, tmp_path) for rows in in_order(3, 20)]
    assert made.merge(*markers).rows_decoded == 0


def test_columns_that_an_input_lacks_are_null_without_decoding(make_table, tmp_path):
    made = Files(make_table, sort=("i",))
    one, two = in_order(2, 20)
    markers = [made.put(one.drop_columns(["s", "d"]), tmp_path), made.put(two.drop_columns(["b", "t"]), tmp_path)]
    merged = made.merge(*markers)
    assert merged.rows_decoded == 0
    rows = made.table.parquet(merged.outputs[0]).read()
    assert [rows[name].null_count for name in ("s", "d", "b", "t")] == [20, 40, 40, 40]


def write(rows, **options):
    sink = io.BytesIO()
    pq.write_table(rows, sink, row_group_size=GROUP_ROWS, **options)
    return sink.getvalue()


def write_polars(rows, path):
    pl.from_arrow(rows).write_parquet(path, row_group_size=GROUP_ROWS)
    return path.read_bytes()


def write_duckdb(rows, path):
    with duckdb.connect() as engine:
        engine.register("rows", rows)
        engine.execute(f"COPY rows TO '{path}' (FORMAT parquet)")
    return path.read_bytes()


FOREIGN = {
    "arrow": lambda rows, _: write(rows),
    "no dictionary": lambda rows, _: write(rows, use_dictionary=False, compression="snappy"),
    "v2 pages": lambda rows, _: write(rows, data_page_version="2.0", compression="zstd"),
    "page index": lambda rows, _: write(rows, write_page_index=True, data_page_size=16),
    "bloom filter": lambda rows, _: write(rows, bloom_filter_options={"i": {}, "s": {"ndv": 100}}),
    **{
        codec: lambda rows, _, codec=codec: write(rows, compression=codec)
        for codec in ("none", "gzip", "brotli", "lz4")
    },
    "delta": lambda rows, _: write(rows, use_dictionary=False, column_encoding={"i": "DELTA_BINARY_PACKED"}),
    "polars": write_polars,
    "duckdb": write_duckdb,
}


@pytest.mark.parametrize("name", FOREIGN)
def test_row_groups_of_other_writers_are_copied_where_there_is_no_order(make_table, tmp_path, name):
    made = Files(make_table, sort=())
    rows = make_rows(
        [{"i": n, "s": f"v{n % 3}" if n % 5 else None, "f": math.nan if n % 7 == 0 else n / 4} for n in range(40)], 0
    )
    body = FOREIGN[name](rows, tmp_path / "foreign.parquet")
    key = made.table.paths.data_key(partition="", file_id="f")
    made.table.store.put(key, body)
    foreign = FileMarker(key, len(body), 0, row_count=40)
    own = made.put(in_order(1, 20)[0].drop_columns(["s"]), tmp_path)
    merged = made.merge(foreign, own)
    assert merged.rows_decoded == 0
    result = made.table.store.get(merged.outputs[0].path).body
    (tmp_path / "merged.parquet").write_bytes(result)
    engines = [
        pl.read_parquet(tmp_path / "merged.parquet").filter(pl.col("i") == 39).height,
        duckdb.sql(f"SELECT count(*) FROM '{tmp_path}/merged.parquet' WHERE i = 39").fetchone()[0],
        pq.read_table(tmp_path / "merged.parquet", filters=[("i", "=", 39)]).num_rows,
    ]
    assert engines == [1, 1, 1]
    metadata = pq.read_metadata(tmp_path / "merged.parquet")
    column = metadata.row_group(0).column(1)
    assert not column.has_column_index
    assert not column.has_offset_index


@pytest.mark.parametrize("name", FOREIGN)
def test_rows_of_other_writers_are_sorted_whatever_they_say(make_table, tmp_path, name):
    """Nobody has looked whether they are sorted: what a writer says of that is not believed."""
    made = Files(make_table, sort=("i",))
    rows = make_rows([{"i": n // 8 * 8 + 7 - n % 8, "s": "x" * n} for n in range(40)], 0)
    body = FOREIGN[name](rows, tmp_path / "foreign.parquet")
    if name == "arrow":
        body = write(rows, sorting_columns=[pq.SortingColumn(1, nulls_first=False)])
    key = made.table.paths.data_key(partition="", file_id="f")
    made.table.store.put(key, body)
    foreign = FileMarker(key, len(body), 0, row_count=40)
    merged = made.merge(foreign, made.put(in_order(1, 16, offset=100)[0], tmp_path))
    assert merged.rows_decoded >= 40


def test_types_that_differ_are_decoded(make_table, tmp_path):
    made = Files(make_table, sort=())
    rows = in_order(1, 40)[0]
    narrow = rows.select(["i"]).cast(pa.schema([("i", pa.int32())]))
    required = rows.select(["i"]).cast(pa.schema([pa.field("i", pa.int64(), nullable=False)]))
    millis = rows.select(["t"]).cast(pa.schema([("t", pa.timestamp("ms"))]))
    for number, odd in enumerate((narrow, required, millis)):
        body = write(odd)
        key = made.table.paths.data_key(partition="", file_id=f"odd{number}")
        made.table.store.put(key, body)
        marker = FileMarker(key, len(body), 0, row_count=40)
        own = made.put(rows.select(odd.column_names), tmp_path)
        merged = made.table.merge(marker, own, schema={name: COLUMNS[name] for name in odd.column_names})
        assert merged.rows_decoded == 40


def test_a_column_that_became_wider_is_decoded(make_table, tmp_path):
    made = Files(make_table, sort=("s",))
    marker = made.put(in_order(1, 24)[0], tmp_path)
    merged = made.table.merge(marker, marker, schema={**COLUMNS, "d": "TIMESTAMP"})
    assert merged.copied_bytes == 0


def put_days(made, name: str, days: list[date], **options) -> FileMarker:
    """Put a file of dates alone, as from before their column became wider, with what the log says of it."""
    rows = pa.table({"t": pa.array(days, pa.date32())})
    body = write(rows, **options)
    key = made.table.paths.data_key(partition="", file_id=name)
    made.table.store.put(key, body)
    bounds = min(days).isoformat(), max(days).isoformat(), 0
    return FileMarker(key, len(body), 0, row_count=len(days), stats={"t": bounds})


def test_files_that_are_converted_may_lack_columns_of_others(make_table, tmp_path):
    """They are sorted by themselves, where no file has those columns."""
    made = Files(make_table, sort=("t",))
    days = put_days(made, "days", [date(2025, 5, 1)] * 8)
    merged = made.merge(days, made.put(make_rows([{"t": EPOCH, "s": "a"}] * 8, 0), tmp_path))
    assert merged.rows_decoded == 8
    rows = made.table.parquet(merged.outputs[0]).read()
    assert [rows[name].null_count for name in ("t", "s", "id")] == [0, 8, 8]


def test_days_of_the_log_are_in_utc_wherever_the_process_runs(make_table, tmp_path, monkeypatch):
    made = Files(make_table, sort=("t",))
    days = put_days(made, "days", [EPOCH.date()] * 8)
    later = made.put(make_rows([{"t": EPOCH + timedelta(hours=1, minutes=n)} for n in range(8)], 0), tmp_path)
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        made.merge(days, later)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_bounds_of_the_log_that_have_another_type_say_nothing(make_table, tmp_path):
    made = Files(make_table, sort=("i",))
    one, two = in_order(2, 8)
    body = write(one.select(["i"]).cast(pa.schema([("i", pa.int32())])))  # decoded: the log alone says where it lies
    key = made.table.paths.data_key(partition="", file_id="odd")
    made.table.store.put(key, body)
    markers = [FileMarker(key, len(body), 0, row_count=8, stats={"i": odd}) for odd in (("0", "7", 0), (False, "7", 0))]
    for marker in markers:
        assert made.table.merge(marker, made.put(two, tmp_path), schema=COLUMNS).rows_decoded == 16


def test_a_file_is_not_taken_for_another_whose_number_is_its_name(make_table, monkeypatch):
    """Of small files the content came with the footer; it is written down as those that are downloaded are."""
    monkeypatch.setattr(merge_unit_module, "SMALL_FILE_BYTES", 0)
    monkeypatch.setattr(data_files, "FOOTER_BYTES", 3000)
    made = Files(make_table, sort=("t",))
    days = [date(2025, 1, 1) + timedelta(days=n) for n in range(2000)]
    small = [put_days(made, f"{n:06d}", days[n : n + 10]) for n in (1, 2)]
    large = put_days(made, "000003", days)
    assert large.size_bytes > 3000 > small[0].size_bytes
    made.table.merge(*small, large, schema={"t": "TIMESTAMP"})


def test_text_that_repeats_itself_has_tuples_in_the_footer(make_table, tmp_path, monkeypatch):
    monkeypatch.setattr(data_files, "_REPEATING_ROWS", 1)
    monkeypatch.setattr(data_files, "_REPEATED_SHARE", 1)
    made = Files(make_table, sort=("s", "i"))
    parts = [[{"s": f"v{n // 4}", "i": 2 * n + k} for n in range(16)] for k in range(2)]
    (output,) = made.merge(*(made.put(make_rows(rows, 0), tmp_path) for rows in parts)).outputs
    told = json.loads(made.table.parquet(output).metadata.metadata[b"icedb.order"])["groups"]
    assert told == [[[f"v{n}", 8 * n], [f"v{n}", 8 * n + 7]] for n in range(4)]


def test_what_log_and_footer_say_differently_is_decoded(make_table, tmp_path):
    made = Files(make_table, sort=("i",))
    one, two = (made.put(rows, tmp_path) for rows in in_order(2, 16))
    assert made.merge(one, two).rows_decoded == 0
    wrong = replace(one, stats={"i": (0, 14, 0)})
    assert made.merge(wrong, two).rows_decoded == 32, "nothing is known of where its rows lie"
    change_footer(made.table, one, b'"groups":[[[0],[7]]', b'"groups":[[[0],[6]]')
    assert made.merge(one, two).rows_decoded == 32


def test_a_long_text_leaves_only_the_strict_order(make_table, tmp_path):
    made = Files(make_table, sort=("s",))
    markers = [made.put(make_rows([{"s": c * 300}] * 8, 8 * n), tmp_path) for n, c in enumerate("abc")]
    merged = made.merge(*markers)
    assert merged.rows_decoded == 0
    footer = made.table.parquet(merged.outputs[0]).metadata
    assert json.loads(footer.metadata[b"icedb.order"])["groups"] == [None] * 3


def test_a_merge_that_is_split_has_whole_row_groups(make_table, tmp_path):
    made = Files(make_table, sort=("i",), target_file_bytes=2048)
    markers = [made.put(rows, tmp_path) for rows in in_order(6, 16)]
    merged = made.merge(*markers)
    assert merged.rows_decoded == 0
    assert len(merged.outputs) > 1
    assert [each.stats["i"][0] for each in merged.outputs] == sorted(each.stats["i"][0] for each in merged.outputs)
    assert sum(each.row_count for each in merged.outputs) == 96


def test_a_file_has_no_more_row_groups_than_what_counts_them(make_table, tmp_path, monkeypatch):
    monkeypatch.setattr(part_files, "MAX_GROUPS", 4)
    made = Files(make_table, sort=("i",))
    markers = [made.put(rows, tmp_path) for rows in in_order(6, 16)]
    for merged in (made.merge(*markers), made.merge(*reversed(markers))):
        assert merged.rows_decoded == 0
        groups = [made.table.parquet(each).metadata.num_row_groups for each in merged.outputs]
        assert (sum(groups), max(groups)) == (12, 3)


def test_a_file_of_another_size_than_the_log_says_is_read_whole(make_table, tmp_path, monkeypatch):
    monkeypatch.setattr(merge_unit_module, "SMALL_FILE_BYTES", 0)
    monkeypatch.setattr(data_files, "FOOTER_BYTES", 64)
    made = Files(make_table, sort=("i",))
    one, two = (made.put(rows, tmp_path) for rows in in_order(2, 16))
    for odd in (-10, 10):
        merged = made.merge(replace(one, size_bytes=one.size_bytes + odd), two)
        assert made.read(merged.outputs)["i"].to_pylist() == list(range(32))


def test_damage_in_what_is_copied_halts(make_table, tmp_path):
    made = Files(make_table, sort=("i",))
    one, two = (made.put(rows, tmp_path) for rows in in_order(2, 16))
    body = bytearray(made.table.store.get(one.path).body)
    chunk = pq.read_metadata(io.BytesIO(body)).row_group(0).column(6)
    body[chunk.data_page_offset + chunk.total_compressed_size - 3] ^= 1
    made.table.store.put(one.path, bytes(body))
    with pytest.raises(CorruptLog, match=one.path):
        made.merge(one, two)


@pytest.mark.parametrize("place", range(3))
def test_no_file_with_damage_in_what_was_copied_is_uploaded(make_table, tmp_path, monkeypatch, place):
    made = Files(make_table, sort=("i",))
    files = [made.put(rows, tmp_path) for rows in in_order(3, GROUP_ROWS)]
    body = bytearray(made.table.store.get(files[place].path).body)
    chunk = pq.read_metadata(io.BytesIO(body)).row_group(0).column(6)
    body[chunk.data_page_offset + chunk.total_compressed_size - 3] ^= 1
    made.table.store.put(files[place].path, bytes(body))
    uploaded = []
    monkeypatch.setattr(made.table.store, "upload", lambda key, *_, **__: uploaded.append(key))
    with pytest.raises(CorruptLog, match=files[place].path):
        made.merge(*files)
    assert uploaded == []


def test_a_row_group_is_copied_while_the_one_before_it_is_checked(make_table, tmp_path, monkeypatch):
    made = Files(make_table, sort=("i",))
    made.table.engine = replace(made.table.engine, thread_count=2)
    files = [made.put(rows, tmp_path) for rows in in_order(2, GROUP_ROWS)]
    has_both, copied = Event(), []
    copy, check = PartEncoder.copy_group, PartEncoder.check_group

    def copy_noted(encoder, group):
        copied.append(copy(encoder, group))
        if len(copied) == len(files):
            has_both.set()
        return copied[-1]

    def check_late(*told):
        assert has_both.wait(LIMIT_S)
        return check(*told)

    monkeypatch.setattr(PartEncoder, "copy_group", copy_noted)
    monkeypatch.setattr(PartEncoder, "check_group", check_late)
    merged = made.merge(*files)
    assert merged.copied_bytes > 0
    assert sum(marker.row_count for marker in merged.outputs) == 2 * GROUP_ROWS


@pytest.mark.parametrize("is_quick", [False, True])
def test_a_store_that_answers_at_once_is_read_by_who_needs_the_bytes(make_table, tmp_path, monkeypatch, is_quick):
    made = Files(make_table, sort=("i",))
    files = [made.put(rows, tmp_path) for rows in in_order(2, GROUP_ROWS)]
    store, readers = made.table.store, set()
    if is_quick:
        monkeypatch.setattr(type(store), "max_parallel_reads", 1, raising=False)
    monkeypatch.setattr(merge_unit_module, "SMALL_FILE_BYTES", 0)  # or they were in memory
    monkeypatch.setattr(data_files, "FOOTER_BYTES", 64)
    read = store.get_range

    def read_noted(*told, **options):
        readers.add(current_thread().name.rpartition("_")[0])
        return read(*told, **options)

    monkeypatch.setattr(store, "get_range", read_noted)
    assert made.merge(*files).copied_bytes > 0
    assert readers == ({"", "icedb-encode"} if is_quick else {"icedb-download", "icedb-copy"})


def test_a_damaged_footer_never_makes_other_rows(make_table, tmp_path):
    """Each byte of a footer flipped: the merge halts, or writes the rows that were there."""
    made = Files(make_table, sort=("i",))
    one, two = (made.put(rows.select(["s", "i", "id"]), tmp_path) for rows in in_order(2, 16))
    body = made.table.store.get(one.path).body
    length = int.from_bytes(body[-8:-4], "little")
    columns = {name: COLUMNS[name] for name in ("s", "i", "id")}
    unit = made.table.unit(MergeUnit, schema=columns, group=MergeGroup("", (one, two)))
    before = keys(pa.concat_tables([made.table.parquet(each).read() for each in (one, two)]).sort_by("id"))
    outcomes = {"halted": 0, "differed": 0, "same": 0}
    for place in range(len(body) - 8 - length, len(body) - 8, 3):
        flipped = bytearray(body)
        flipped[place] ^= 1 << place % 7
        made.table.store.put(one.path, bytes(flipped))
        try:
            with pytest.MonkeyPatch.context() as patch:
                only_copied(patch)
                merged = merge_unit(unit, made.table.store, clock=made.table.clock)
        except (CorruptLog, SchemaConflict, Decoded):
            outcomes["halted"] += 1
            continue
        after = pa.concat_tables([made.table.parquet(each).read() for each in merged.outputs])
        if merged.contents.differences or merged.rows_read != 32:
            outcomes["differed"] += 1
        else:
            outcomes["same"] += 1
            assert keys(after.sort_by("id")) == before, place
            assert after["i"].to_pylist() == list(range(32)), place
    assert min(outcomes["halted"], outcomes["same"]) > 10, outcomes


class Decoded(Exception):
    """What cannot be copied is decoded, as ever: not what is looked at here."""


def only_copied(patch):
    def read_sorted(_files, _columns):
        raise Decoded
        yield

    patch.setattr("icedb_engine.reading.data_files.DataFiles.read_sorted", read_sorted)
