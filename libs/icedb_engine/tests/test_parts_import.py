"""What a footer proves (N5), what is refused and why, and that imported files read and merge as any other."""

import contextlib
import io
import random
from datetime import date, datetime, timedelta

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from icedb_engine.imports.import_inspect import FileRefused, inspect_file
from icedb_engine.imports.import_unit import copy_unit, inspect_unit
from icedb_engine.reading.data_files import NARROW_TYPES
from icedb_engine.work import CopyUnit, decode_result, decode_unit, encode
from icedb_log.imports.import_sources import list_sources, parse_pattern
from icedb_log.jobs import InspectJob, SourceFile
from icedb_log.model import FileMarker
from icedb_log.parquet.file_reads import TAIL_BYTES
from icedb_log.store.local_store import LocalObjectStore
from icedb_sim.fakes.memory_store import MemoryObjectStore

DAY = datetime(2026, 1, 2)


def parquet(columns, **options):
    sink = io.BytesIO()
    pq.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), sink, **options)
    return sink.getvalue()


def put(table, body, key="in/x.parquet", *, is_named=True):
    table.store.put(key, body)
    info = table.store.head(key)
    return SourceFile("mem://", key, f"mem://{key}", info.etag, info.size_bytes, info.modified_ms, is_named)


def inspect(table, columns, key="in/x.parquet", partition=None, mode="copy", is_named=True, **options):
    body = columns if isinstance(columns, bytes) else parquet(columns, **options)
    job = InspectJob(table.paths, table.config, (), partition or {}, mode)
    return inspect_file(table.store, put(table, body, key, is_named=is_named), job)


def reason(table, columns, *args, **options):
    with pytest.raises(FileRefused) as caught:
        inspect(table, columns, *args, **options)
    return str(caught.value)


def hours(*numbers, start=DAY):
    return pa.array([start + timedelta(hours=n) for n in numbers], pa.timestamp("us"))


def test_a_footer_gives_types_rows_partition_and_statistics(make_table):
    table = make_table("d=day(ts)", "event", sort=("event", "n"))
    found = inspect(
        table,
        {
            "ts": hours(1, 5),
            "event": ["São", "São"],
            "n": pa.array([7, None], pa.int32()),
            "f": pa.array([1, 2], pa.float32()),
        },
        row_group_size=1,
    )
    assert found.columns == {"ts": "TIMESTAMP", "event": "VARCHAR", "n": "BIGINT", "f": "DOUBLE"}
    assert (found.partition, found.row_count, found.is_sorted) == ("d=2026-01-02/event=S_c3_a3o", 2, False)
    assert found.stats == {
        "ts": ("2026-01-02T01:00:00.000000Z", "2026-01-02T05:00:00.000000Z", 0),
        "event": ("São", "São", 0),
        "n": (7, 7, 1),
    }


def test_only_the_end_of_the_file_is_read_and_a_long_footer_with_two_requests(make_table, monkeypatch):
    table = make_table()
    asked = []
    get_range = table.store.get_range
    monkeypatch.setattr(table.store, "get_range", lambda key, **at: asked.append(at["length"]) or get_range(key, **at))
    wide = {f"column_{number:04d}": [number] for number in range(1500)}
    assert len(inspect(table, wide).columns) == 1500
    assert len(asked) == 2 and asked[1] > TAIL_BYTES
    asked.clear()
    inspect(table, {"n": list(range(100_000))}, compression="none")
    assert asked == [TAIL_BYTES]


def test_a_file_that_says_it_is_sorted_is_believed(make_table):
    table = make_table(sort=("a", "b"))
    columns = {"b": [1, 2], "a": [1, 1]}
    order = [pq.SortingColumn(1), pq.SortingColumn(0)]
    for sorting, expected in (
        (order, True),
        (order[:1], False),
        ([pq.SortingColumn(1, descending=True), order[1]], False),
    ):
        assert inspect(table, columns, sorting_columns=sorting).is_sorted is expected
    assert inspect(make_table(), columns).is_sorted


REFUSED_TYPES = {
    "ns": (pa.array([DAY], pa.timestamp("ns")), "nanoseconds, which no column of a table is.*microseconds"),
    "zone": (pa.array([DAY], pa.timestamp("us", "UTC")), "microseconds UTC, .*without a time zone"),
    "u64": (pa.array([1], pa.uint64()), "INT64 INT unsigned 64"),
    "decimal": (pa.array([1], pa.decimal256(50, 2)), "FIXED_LEN_BYTE_ARRAY DECIMAL"),
    "list": (pa.array([[1]]), "nested"),
    "struct": (pa.array([{"a": 1}]), "nested"),
    "binary": (pa.array([b"x"]), "BYTE_ARRAY"),
    "time": (pa.array([1], pa.time64("us")), "INT64 TIME"),
    "half": (pa.array([1.0], pa.float16()), "FLOAT16"),
    "null": (pa.nulls(1), "INT32 NULL"),
}


@pytest.mark.parametrize("name", REFUSED_TYPES)
def test_a_type_that_would_need_a_conversion_is_refused(make_table, name):
    values, words = REFUSED_TYPES[name]
    table = make_table()
    with pytest.raises(FileRefused, match=f"column '{name}' is .*{words}"):
        inspect(table, {"n": [1], name: values})


def test_an_old_spark_timestamp_is_refused(make_table):
    assert "INT96" in reason(make_table(), {"ts": hours(1)}, use_deprecated_int96_timestamps=True)


@pytest.mark.parametrize("unit", ["ms", "us"])
@pytest.mark.parametrize("ms", [-62_135_596_800_001, 253_402_300_800_000, 2**53])
def test_times_outside_the_calendar_are_refused_and_end_no_merge(make_table, unit, ms):
    """They were imported without a bound, also past a plausible range; then each merge of them failed."""
    count = ms if unit == "ms" else ms * 1000
    rows = pa.table({"ts": pa.array([0, count], pa.int64()).view(pa.timestamp(unit)), "n": [1, 2]})
    table = make_table(sort=("ts",))
    assert "column 'ts' has times outside the years 1 to 9999" in reason(table, parquet(rows))
    files = [table.put_file(rows, letter * 32) for letter in "ab"]  # of a release that took it
    (marker,) = table.merge(*files, schema={"ts": "TIMESTAMP", "n": "BIGINT"}).outputs
    assert (marker.row_count, marker.stats["ts"]) == (4, (None, None, 0))


BROKEN = {
    "empty": (b"", "too few for a Parquet file"),
    "text": (b"hello, this is not parquet", "does not end as a Parquet file"),
    "encrypted": (b"PAR1xxxxxxxx\x04\0\0\0PARE", "encrypted"),
    "a length beyond the file": (b"PAR1xxxxxxxx\xff\xff\0\0PAR1", "more than the file has"),
    "garbage": (b"PAR1xxxxxxxxgarbage!\x08\0\0\0PAR1", "its footer is damaged"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_parquet_file_is_refused(make_table, name):
    body, words = BROKEN[name]
    assert words in reason(make_table(), body)


def test_a_file_whose_data_was_cut_is_refused(make_table):
    whole = parquet({"n": list(range(10_000))})
    footer_bytes = int.from_bytes(whole[-8:-4], "little") + 8
    assert "damaged or cut" in reason(make_table(), b"PAR1" + whole[-footer_bytes:])


@pytest.mark.parametrize("seeds", [(434,), (553,), (770,), range(200)], ids=str)
def test_a_damaged_footer_is_read_or_refused_and_ends_no_process(make_table, seeds):
    """Of the first three pyarrow 26 ends the process."""
    table = make_table(sort=("a",))
    whole = parquet({"a": [1, 2, 3], "s": ["x", "y", None], "d": [1.5, 2.5, None]})
    footer_bytes = int.from_bytes(whole[-8:-4], "little")
    for seed in seeds:
        chance, body = random.Random(seed), bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            body[len(body) - 8 - chance.randint(1, footer_bytes)] = chance.randrange(256)
        with contextlib.suppress(FileRefused):
            inspect(table, bytes(body))


def test_a_summary_file_of_others_is_refused(make_table, tmp_path):
    collected = []
    pq.write_to_dataset(pa.table({"n": [1, 2]}), str(tmp_path / "t"), metadata_collector=collected)
    pq.write_metadata(pa.schema({"n": pa.int64()}), str(tmp_path / "_metadata"), metadata_collector=collected)
    assert "summary of other files" in reason(make_table(), (tmp_path / "_metadata").read_bytes())


def test_a_column_twice_is_refused(make_table):
    twice = pa.table([[1], [2]], names=["n", "n"])
    sink = io.BytesIO()
    pq.write_table(twice, sink)
    assert "two columns 'n'" in reason(make_table(), sink.getvalue())


def test_a_file_that_changed_or_went_since_it_was_listed_is_refused(make_table):
    table = make_table()
    source = put(table, parquet({"n": [1]}))
    put(table, parquet({"n": [2, 3]}))
    with pytest.raises(FileRefused, match="changed since it was listed"):
        inspect_file(table.store, source, InspectJob(table.paths, table.config, ()))
    table.store.delete([source.key])
    with pytest.raises(FileRefused, match="gone since it was listed"):
        inspect_file(table.store, source, InspectJob(table.paths, table.config, ()))


PROVED = [
    ("year(ts)", hours(0, 8000), "ts_year=2026"),
    ("month(ts)", hours(0, 600), "ts_month=2026-01"),
    ("hour(ts)", hours(5, 5), "ts_hour=2026-01-02-05"),
    ("d=day(ts)", pa.array([date(2026, 1, 2)] * 2), "d=2026-01-02"),
    ("bucket[16](ts)", pa.array(["a", "a"]), "ts_bucket=9"),
    ("truncate[2](ts)", pa.array(["abc", "abd"]), "ts_truncate=ab"),
    ("truncate[10](ts)", pa.array([-5, -1]), "ts_truncate=-10"),
    ("ts", pa.array([True, True]), "ts=true"),
]


@pytest.mark.parametrize(("field", "values", "expected"), PROVED)
def test_the_partition_is_what_the_transform_makes_of_least_and_greatest(make_table, field, values, expected):
    assert inspect(make_table(field), {"ts": values}).partition == expected


@pytest.mark.parametrize(
    ("field", "values", "words"),
    [
        ("d=day(ts)", hours(1, 25), "several partitions: d=day(ts) goes from '2026-01-02' to '2026-01-03'"),
        ("ts", pa.array(["a", "b"]), "goes from 'a' to 'b'"),
        ("ts", pa.array(["a", None]), "has 1 nulls"),
        ("ts", pa.array([None, None], pa.string()), "has 2 nulls"),
        ("bucket[16](ts)", pa.array(["a", "b"]), "a bucket is known for one value only"),
        ("bucket[16](ts)", pa.array([1.5, 1.5]), "no usable minimum and maximum"),
        ("d=day(ts)", pa.array(["2026-01-02"]), "cannot take a column of type VARCHAR"),
        ("other", pa.array([1]), "no column 'other'"),
        ("ts", pa.array(["x" * 300]), "the limit is 190"),
    ],
)
def test_a_file_without_one_known_partition_is_refused(make_table, field, values, words):
    assert words in reason(make_table(field), {"ts": values})


def test_without_statistics_the_caller_may_vouch_for_the_partition(make_table):
    table = make_table("d=day(ts)")
    columns = {"ts": hours(1, 2)}
    assert "vouch for all files with --partition d=VALUE" in reason(table, columns, write_statistics=False)
    found = inspect(table, columns, partition={"d": "2026-01-02"}, write_statistics=False)
    assert (found.partition, found.stats) == ("d=2026-01-02", {})
    assert inspect(table, columns, partition={"d": "2026-01-02"}).partition == "d=2026-01-02"
    assert "its statistics say '2026-01-02'" in reason(table, columns, partition={"d": "2026-01-03"})
    assert inspect(make_table("bucket[4](n)"), {"n": [1, 2]}, partition={"n_bucket": "3"}).partition == "n_bucket=3"


def test_a_hive_path_must_not_contradict_the_rows(make_table):
    table = make_table("kind")
    columns = {"kind": ["a b", "a b"]}
    assert inspect(table, columns, key="in/kind=a%20b/x.parquet").partition == "kind=a_20b"
    assert inspect(table, columns, key="in/kind=a_20b/x.parquet").partition == "kind=a_20b"
    assert "its path says 'kind=c'" in reason(table, columns, key="in/kind=c/x.parquet")
    day = make_table("d=day(ts)")
    assert inspect(day, {"ts": hours(1)}, key="in/d=2/x.parquet").partition == "d=2026-01-02", (
        "d is proved; 2 is of others"
    )
    options = {"partition": {"d": "2026-01-02"}, "write_statistics": False}
    assert "its path says 'd=2026-01-05'" in reason(day, {"ts": hours(1)}, key="in/d=2026-01-05/x.parquet", **options)


def test_data_files_of_icedb_are_taken_only_if_they_are_named_and_copied(make_table):
    table = make_table()
    (marker,) = table.flush(table.stage({"n": 1})).files
    body = table.store.get(marker.path).body
    assert inspect(table, body).row_count == 1
    assert "icedb snapshot events -o paths" in reason(table, body, is_named=False)
    assert "IceDB wrote it for table events" in reason(table, body, mode="in_place")


def test_strings_beyond_the_statistics_of_their_writer_have_no_bounds(make_table, tmp_path):
    path = tmp_path / "long.parquet"
    duckdb.sql(f"COPY (SELECT repeat('é', 4000) AS kind) TO '{path}' (FORMAT parquet)")
    table = make_table("kind")
    assert "cannot be told" in reason(table, path.read_bytes()) or "the limit is 190" in reason(
        table, path.read_bytes()
    )


def test_units_travel_as_text_and_account_for_each_file(make_table, tmp_path):
    table = make_table("kind")
    good = [put(table, parquet({"kind": ["a"], "n": [n]}), f"in/{n}.parquet") for n in range(3)]
    bad = put(table, b"no parquet at all", "in/bad.parquet")
    job = InspectJob(table.paths, table.config, (*good[:2], bad, good[2]))
    inspected = inspect_unit(decode_unit("inspect", encode(job)), lambda url: table.store)
    inspected = decode_result("inspect", encode(inspected))
    assert [file.source for file in inspected.files] == good
    assert [refused.url for refused in inspected.refused] == [bad.url]
    put(table, parquet({"kind": ["a"], "n": [9]}), "in/1.parquet")
    table.store.delete(["in/2.parquet"])
    unit = decode_unit("copy", encode(CopyUnit(table.paths, inspected.files, table.engine)))
    copied = copy_unit(unit, table.store, lambda url: table.store, clock=table.clock)
    copied = decode_result("copy", encode(copied))
    (placed,) = copied.files
    assert table.paths.partition_of(placed.path) == "kind=a"
    assert table.store.get(placed.path).body == table.store.get("in/0.parquet").body
    assert sorted(refused.reason.partition(":")[0] for refused in copied.refused) == [
        "it changed after its footer was read",
        "it is gone since its footer was read",
    ]


def test_a_local_file_is_uploaded_as_it_lies_there(make_table, tmp_path):
    table = make_table()
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "x.parquet").write_bytes(parquet({"n": [1, 2]}))
    local = LocalObjectStore(tmp_path)
    sources = list_sources(
        [parse_pattern(f"file://{tmp_path}/in/*.parquet")],
        open_store=lambda url: LocalObjectStore(tmp_path.joinpath(*tmp_path.parts[:2])),
        allowed=["file:///"],
    )
    opened = LocalObjectStore(tmp_path.joinpath(*tmp_path.parts[:2]))
    job = InspectJob(table.paths, table.config, sources)
    found = inspect_unit(job, lambda url: opened)
    unit = CopyUnit(table.paths, found.files, table.engine)
    copied = copy_unit(unit, table.store, lambda url: opened, clock=table.clock)
    assert table.store.get(copied.files[0].path).body == local.get("in/x.parquet").body


def test_n6_a_server_copies_no_file_with_field_ids(make_table, monkeypatch):
    table = make_table()
    copied = []

    def copy_from(self, source, info, key):
        copied.append(info.key)
        self.put(key, source.get(info.key).body)
        return self.head(key)

    monkeypatch.setattr(MemoryObjectStore, "copy_from", copy_from, raising=False)
    numbered = pa.schema([pa.field("n", pa.int64(), metadata={"PARQUET:field_id": "3"})])
    sources = (
        put(table, parquet({"n": [1]}), "in/plain"),
        put(table, parquet(pa.table({"n": [2]}, numbered)), "in/ids"),
    )
    found = inspect_unit(InspectJob(table.paths, table.config, sources), lambda url: table.store)
    assert [file.has_field_ids for file in found.files] == [False, True]
    unit = decode_unit("copy", encode(CopyUnit(table.paths, found.files, table.engine)))
    placed = copy_unit(unit, table.store, lambda url: table.store, clock=table.clock).files
    assert copied == ["in/plain"]
    for file in placed:
        body = table.store.get(file.path).body
        assert len(body) == file.size_bytes
        assert not pq.read_schema(io.BytesIO(body)).field("n").metadata


def test_narrow_types_and_unsorted_files_merge_to_the_tables_types_sorted(make_table):
    table = make_table(sort=("n",))
    schema = {"n": "BIGINT", "x": "DOUBLE", "s": "VARCHAR"}
    kinds = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32()]
    markers = []
    for number, kind in enumerate(kinds):
        body = parquet(
            {
                "n": pa.array([100 - number, number], kind),
                "x": pa.array([0.5, None], pa.float32() if number % 2 else pa.float64()),
                "s": pa.array(["a", "b"]).dictionary_encode(),
            }
        )
        found = inspect(table, body)
        assert (dict(found.columns), found.is_sorted) == (schema, False)
        key = table.paths.data_key(partition="", file_id=f"f{number}")
        table.store.put(key, body)
        markers.append(FileMarker(key, len(body), 1, row_count=2))
    result = table.merge(*markers, schema=schema)
    (output,) = result.outputs
    values = [row["n"] for row in table.rows(output)]
    assert values == sorted([*range(7), *(100 - number for number in range(7))])
    assert [str(kind) for kind in table.parquet(output).schema_arrow.types] == ["int64", "double", "string"]


def test_every_narrow_type_is_one_that_duckdb_reads_without_loss():
    for narrow, wide in NARROW_TYPES.items():
        (united,) = duckdb.sql(
            f"SELECT typeof(x) FROM (SELECT CAST(1 AS {narrow}) AS x UNION ALL SELECT CAST(2 AS {wide})) LIMIT 1"
        ).fetchone()
        assert united == wide
