"""What a flush writes: types, columns, order, footers, statistics."""

import gzip
import json
import threading
from datetime import date, datetime

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from icedb_engine.limits import FlushUnitLimits
from icedb_engine.reading import unit as unit_module
from icedb_engine.reading.types import Kind
from icedb_engine.units.typed_rows import append_unit
from icedb_engine.writing.part_files import PartFileWriter
from icedb_log.errors import InvariantViolated
from icedb_sim.fakes.scripted_store import ScriptedStore
from icedb_sim.tables.profiles import SHARED_FIXTURES
from waiting import LIMIT_S


def test_json_becomes_sql_types_by_the_documented_rule(make_table):
    table = make_table(declared={"at": "TIMESTAMP", "day": "DATE", "raw": "VARCHAR"})
    row = {
        "s": 'quo"te\\ é\n', "i": -7, "f": 1.5, "e": 100.0, "b": True, "o": {"k": [1, {"x": None}]}, "l": [1, "a"],
        "none": None, "at": "2023-06-07T12:00:00.5+02:00", "day": "2023-06-07", "raw": {"a": "é"},
    }  # fmt: skip
    result = table.flush(table.stage(row))
    (written,) = table.rows(*result.files)
    assert written == {
        "at": datetime(2023, 6, 7, 10, 0, 0, 500_000), "day": date(2023, 6, 7), "raw": '{"a":"é"}',
        "s": 'quo"te\\ é\n', "i": -7, "f": 1.5, "e": 100.0, "b": True, "o": '{"k":[1,{"x":null}]}', "l": '[1,"a"]',
    }  # fmt: skip
    assert list(written) == ["at", "day", "raw", "s", "i", "f", "e", "b", "o", "l"], "the schema's order, then new ones"
    assert result.new_kinds["i"] == Kind.INTEGER


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2023-06-07", datetime(2023, 6, 7)),
        ("2023-06-07T10:11", datetime(2023, 6, 7, 10, 11)),
        ("2023-06-07 10:11:12", datetime(2023, 6, 7, 10, 11, 12)),
        ("2023-06-07T10:11:12.123456Z", datetime(2023, 6, 7, 10, 11, 12, 123456)),
        ("2023-06-07T10:11:12-0130", datetime(2023, 6, 7, 11, 41, 12)),
        (1686132672123, datetime(2023, 6, 7, 10, 11, 12, 123000)),
        (-1, datetime(1969, 12, 31, 23, 59, 59, 999000)),
        ("0001-01-01T00:00:00Z", datetime(1, 1, 1)),
        ("9999-12-31T23:59:59.999999Z", datetime(9999, 12, 31, 23, 59, 59, 999999)),
    ],
)
def test_a_timestamp_is_utc(make_table, value, expected):
    table = make_table(declared={"ts": "TIMESTAMP"})
    result = table.flush(table.stage({"ts": value}))
    assert table.rows(*result.files) == [{"ts": expected}]


def test_formats_and_line_endings_are_read(make_table):
    table = make_table()
    rows = [{"n": i} for i in range(3)]
    text = "".join(json.dumps(row) + "\n" for row in rows).encode()
    result = table.flush(
        table.stage(body=gzip.compress(text[:9]) + gzip.compress(text[9:]), staging_format="ndjson.gz"),
        table.stage(body=pa.compress(text, codec="zstd", asbytes=True), staging_format="ndjson.zst"),
        table.stage(body=b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n").rstrip()),
        table.stage(body=b"\n  \n" + text + b"\n\t\r\n"),
        table.stage(body=b""),
    )
    assert len(result.accepted) == 5
    assert sorted(row["n"] for row in table.rows(*result.files)) == sorted([0, 1, 2] * 4)


def test_a_new_column_with_integers_and_fractions_is_double_whichever_comes_first(make_table):
    for values in ([1], [1.5]), ([1.5], [1]):
        table = make_table()
        result = table.flush(*(table.stage(*({"x": value} for value in batch)) for batch in values))
        assert sorted(row["x"] for row in table.rows(*result.files)) == [1.0, 1.5]


def test_the_first_batch_wins_a_conflict(make_table):
    table = make_table()
    first, second, third = table.stage({"x": "a"}), table.stage({"x": 1}), table.stage({"x": "b"})
    result = table.flush(first, second, third)
    assert result.accepted == (first.batch_id, third.batch_id)


def test_partitions_rows_and_order(make_table):
    table = make_table("d=day(ts)", "c=country", sort=("event", "n"), row_group_rows=2048)
    rows = [
        {
            "ts": f"2023-06-0{1 + i % 2}",
            "country": "São" if i % 3 else "DE",
            "event": f"e{i * 7 % 5}",
            "n": i * 31 % 997,
        }
        for i in range(6000)
    ]
    for row in rows[::10]:
        del row["event"]
    result = table.flush(*(table.stage(*rows[i : i + 1000]) for i in range(0, 6000, 1000)))
    assert [table.paths.partition_of(marker.path) for marker in result.files] == [
        f"d=2023-06-0{day}/c={country}" for day in (1, 2) for country in ("DE", "S_c3_a3o")
    ]
    for marker in result.files:
        written = table.rows(marker)
        assert marker.row_count == len(written)
        assert marker.size_bytes == len(table.store.get(marker.path).body)
        assert {row["ts"].day for row in written} == {int(marker.path.split("d=2023-06-0")[1][0])}
        keys = [(row["event"] is None, row["event"] or "", row["n"]) for row in written]
        assert keys == sorted(keys), "nulls sort last"
    big = table.parquet(result.files[1]).metadata
    assert [big.row_group(i).num_rows for i in range(big.num_row_groups)] == [2000]


def test_row_groups_and_footer(make_table):
    table = make_table("d=day(ts)", sort=("n",), row_group_rows=2048)
    result = table.flush(table.stage(*({"ts": "2023-06-07", "n": i} for i in range(5000))))
    metadata = table.parquet(result.files[0]).metadata
    assert metadata.metadata == {
        b"icedb.format": b"1",
        b"icedb.table": b"events",
        b"icedb.partition": b"d=2023-06-07",
        b"icedb.commit": b"c0ffee",
        b"icedb.kind": b"flush",
        b"icedb.dictionaries": b"exact",
        b"icedb.order": b'{"by":["n"],"groups":[[[0],[2047]],[[2048],[4095]],[[4096],[4999]]]}',
    }
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [2048, 2048, 904]
    column = metadata.row_group(1).column(1)
    assert (column.compression, column.statistics.min, column.statistics.max) == ("ZSTD", 2048, 4095)
    assert metadata.row_group(0).sorting_columns[0].nulls_first is False


def test_a_big_partition_becomes_several_files_that_follow_each_other(make_table):
    table = make_table(sort=("n",), row_group_rows=2048, target_file_bytes=1024)
    numbers = [number * 2**48 for number in range(20_000)]
    result = table.flush(table.stage(*({"n": numbers[(i * 7919) % 20_000]} for i in range(20_000))))
    assert len(result.files) > 2
    assert [row["n"] for row in table.rows(*result.files)] == numbers


VALUES = st.fixed_dictionaries(
    {},
    optional={
        "s": st.one_of(st.none(), st.text(st.characters(exclude_categories=["Cs"]), max_size=70)),
        "n": st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
        "f": st.one_of(st.none(), st.floats(width=64)),
        "t": st.one_of(st.none(), st.datetimes(min_value=datetime(1, 1, 1)).map(lambda t: t.isoformat() + "Z")),
    },
)


@given(rows=st.lists(VALUES, min_size=1, max_size=12))
@settings(max_examples=40, deadline=None, suppress_health_check=SHARED_FIXTURES)
def test_statistics_bound_the_data(make_table, rows):
    table = make_table(
        sort=("s", "n", "f", "t"), declared={"s": "VARCHAR", "n": "BIGINT", "f": "DOUBLE", "t": "TIMESTAMP"}
    )
    result = table.flush(table.stage(*rows))
    written = table.rows(*result.files)
    assert [marker.row_count for marker in result.files] == [len(rows)]
    for column, (low, high, null_count) in result.files[0].stats.items():
        values = [row[column] for row in written]
        assert null_count == values.count(None)
        values = [f"{v.isoformat(timespec='microseconds')}Z" if column == "t" else v for v in values if v is not None]
        if low is None:
            assert not values or column == "f" or "\U0010ffff" in max(values)
        else:
            assert all(low <= value <= high for value in values), (column, low, high)
            assert column == "s" or (low, high) == (min(values), max(values))
        assert all(len(bound) <= 64 for bound in (low, high) if column == "s" and bound is not None)


def test_the_parquet_types_are_what_engines_expect(make_table):
    table = make_table(declared={"at": "TIMESTAMP", "day": "DATE"})
    result = table.flush(table.stage({"at": 0, "day": "2023-01-01", "s": "a", "i": 1, "f": 0.5, "b": False}))
    schema = table.parquet(result.files[0]).schema_arrow
    assert {name: str(schema.field(name).type) for name in schema.names} == {
        "at": "timestamp[us]", "day": "date32[day]", "s": "string", "i": "int64", "f": "double", "b": "bool",
    }  # fmt: skip
    assert pc.min_max(table.parquet(result.files[0]).read()["i"]).as_py() == {"min": 1, "max": 1}


@pytest.mark.parametrize("cut", [lambda rows: rows.slice(1), lambda rows: pa.concat_batches([rows, rows.slice(0, 1)])])
def test_a_row_that_gets_lost_or_doubled_on_its_way_to_a_file_is_found(make_table, monkeypatch, cut):
    """Whoever writes files compares rows read and rows written, each counted by itself."""
    write_chunk = PartFileWriter._write_chunk
    monkeypatch.setattr(PartFileWriter, "_write_chunk", lambda writer, rows: write_chunk(writer, cut(rows)))
    table = make_table()
    with pytest.raises(InvariantViolated, match=r"read 2 rows and wrote [13]"):
        table.flush(table.stage({"n": 1}, {"n": 2}))
    with pytest.raises(InvariantViolated, match=r"read 2 rows and wrote [13]"):
        append_unit(table.write_unit({"n": "BIGINT"}), [pa.record_batch({"n": [1, 2]})], table.store, clock=table.clock)


def test_of_very_many_tiny_batches_each_is_fetched_once_and_stands_or_falls_alone(make_table, monkeypatch):
    table = make_table(sort=("n",))
    batches = [table.stage(*({"n": 10 * number + row, "word": "a"} for row in range(10))) for number in range(450)]
    packed = table.stage(body=gzip.compress(b'{"n": -1, "word": "packed"}\n'), staging_format="ndjson.gz")
    cells = table.stage(body=b"n,word\n-2,cell\n", staging_format="csv")
    odd = [table.stage({"n": -3, "word": "b", f"only_{number}": True}) for number in range(3)]
    clash, broken, gone = table.stage({"n": "text"}), table.stage(body=b'{"n": 1'), table.stage({"n": 0})
    table.store.delete([gone.key])
    mixed = [*batches[:211], packed, clash, *batches[211:300], gone, odd[0], broken, *batches[300:], *odd[1:], cells]
    fetched: list[str] = []
    get = table.store.get
    monkeypatch.setattr(table.store, "get", lambda key, **more: [fetched.append(key), get(key, **more)][1])
    result = table.flush(*mixed)
    assert sorted(fetched) == sorted(batch.key for batch in mixed)
    assert result.missing == (gone.batch_id,)
    assert result.rejected.keys() == {clash.batch_id, broken.batch_id}
    taken = [batch.batch_id for batch in mixed if batch not in (gone, clash, broken)]
    assert list(result.accepted) == taken
    rows = table.rows(*result.files)
    assert [row["n"] for row in rows] == [-3, -3, -3, -2, -1, *range(4500)]
    assert sum(bool(row.get(f"only_{number}")) for row in rows for number in range(3)) == 3
    assert result.contents.keys() == set(taken)


def test_packed_batches_are_not_taken_together_by_their_size_as_staged(make_table):
    table = make_table(limits=FlushUnitLimits(unit_decoded_bytes=10_000))
    body = gzip.compress(b'{"n": 1}\n' * 700)
    batches = [table.stage(body=body, staging_format="ndjson.gz") for _ in range(6)]
    ids = tuple(batch.batch_id for batch in batches)
    result = table.flush(*batches)
    assert (result.accepted, result.left) == (ids[:2], ids[2:]), "memory is bounded by what they decode to"


class WaitingStore(ScriptedStore):
    """Answers reads of staged batches when so many are asked for at once."""

    def __init__(self, inner, count):
        super().__init__(inner)
        self.barrier = threading.Barrier(count)

    def get(self, key, **more):
        if "/staging/" in key:
            self.barrier.wait(LIMIT_S)
        return super().get(key, **more)


def test_batches_that_are_alone_are_fetched_side_by_side(make_table):
    table = make_table()
    batches = [table.stage({"id": number}) for number in range(unit_module.SMALL_FETCHES)]
    table.store = WaitingStore(table.store, len(batches))
    assert table.flush(*batches).row_count == len(batches)
