"""JSON documents, CSV, Parquet and Arrow: what becomes of each type, and the reason for what cannot be taken."""

import base64
import gzip
import io
import json
import os
import subprocess
import sys
import zlib
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from backports import zstd
from icedb_engine.limits import FlushUnitLimits
from icedb_engine.reading import unit
from icedb_engine.reading.batches import decompress
from icedb_engine.reading.types import Kind
from icedb_log.content import hash_content
from icedb_log.formats import FORMATS


def parquet(table: pa.Table, **options) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def arrow_stream(table: pa.Table, compression=None) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    return sink.getvalue()


def arrow_file(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def typed_bodies(table: pa.Table):
    return [(parquet(table), "parquet"), (arrow_stream(table), "arrow"), (arrow_stream(table, "zstd"), "arrow"),
            (arrow_stream(table, "lz4"), "arrow"), (arrow_file(table), "arrow")]  # fmt: skip


def rows_of(table, body, staging_format, **options):
    result = table.flush(table.stage(body=body, staging_format=staging_format), **options)
    assert not result.rejected, result.rejected
    return table.rows(*result.files)


def reason_of(table, body, staging_format, **options):
    return table.reason(table.stage({"good": 1}), table.stage(body=body, staging_format=staging_format), **options)


def test_each_format_has_a_reader():
    assert unit._READERS.keys() == FORMATS.keys()


def test_a_json_document_is_an_array_of_events_or_one_event(make_table):
    table = make_table()
    assert rows_of(table, b' [{"a":1, "o":{"x": [1 , 2]}},\n {"a":2}] ', "json") == [
        {"a": 1, "o": '{"x":[1,2]}'},
        {"a": 2, "o": None},
    ]
    assert rows_of(table, b'\xef\xbb\xbf{"a":\n 1}\n', "json") == [{"a": 1}]
    assert rows_of(table, b"[]", "json") == rows_of(table, b"", "json") == []


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'[{"a":1},\n{"a":2}', "not one JSON document (line 2: Malformed JSON at byte 17"),
        (b'[{"a":1}] {}', "unexpected content after document"),
        (b'[{"a":1},2]', "element 2 is not a JSON object (it is a JSON ubigint)"),
        (b'[null,{"a":1}]', "element 1 is not a JSON object (it is a JSON null)"),
        (b'"text"', "element 1 is not a JSON object (it is a JSON varchar)"),
        (b'[{"a":1},{"a":"x"}]', '(element 2: "x")'),
        (b'[{"a":"\xff"}]', "line 1 is not UTF-8"),
        (b"[" + b" " * 5000 + b"]", "the JSON document has 5002 bytes; the limit is 4096: send NDJSON"),
        (b'[{"a":"' + b"x" * 2000 + b'"}]', "element 1 has 2008 bytes; the limit is 1024"),
    ],
)  # fmt: skip
def test_a_bad_json_document_is_rejected_with_its_reason(make_table, body, expected):
    table = make_table(limits=FlushUnitLimits(document_bytes=4096, line_bytes=1024))
    assert expected in table.reason(table.stage(body=body, staging_format="json"))


def test_cells_become_what_their_whole_column_is(make_table):
    body = (
        b"\xef\xbb\xbfi,f,b,s,mixed,zip,long,at,day,empty,text\r\n"
        b"1,1.5,true,a,1,007,99999999999999999999,2023-06-07T10:00:00Z,2023-06-07,,1\r\n"
        b'\r\n-2,3,false,"b,""c""\nd",x,1,1,1686132000000,2023-06-08,"",true'
    )
    table = make_table(declared={"at": "TIMESTAMP", "day": "DATE", "text": "VARCHAR"})
    batch = table.stage(body=body, staging_format="csv")
    result = table.flush(batch)
    assert table.rows(*result.files) == [
        {"at": datetime(2023, 6, 7, 10), "day": date(2023, 6, 7), "text": "1", "i": 1, "f": 1.5, "b": True, "s": "a",
         "mixed": "1", "zip": "007", "long": "99999999999999999999"},
        {"at": datetime(2023, 6, 7, 10), "day": date(2023, 6, 8), "text": "true", "i": -2, "f": 3.0, "b": False,
         "s": 'b,"c"\nd', "mixed": "x", "zip": "1", "long": "1"},
    ]  # fmt: skip
    assert rows_of(table, b"i,s", "csv") == rows_of(table, b"i,s\n", "csv") == rows_of(table, b"\n", "csv") == []


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"a,b\n1,2\n3\n", "row 3 has 1 cells, the header has 2: 3: quote cells"),
        (b"a,b\n1,2\n3,4,5\n", "row 3 has 3 cells, the header has 2"),
        (b'a,b\n1,"2\n3,4\n', 'row 2 has a double quote that is not closed: 1,"2\n3,4: quote cells with double'),
        (b'a,"b\n1,2\n', "the header is not CSV"),
        (
            b"a;b\n1;2\n",
            "the header is one column 'a;b': its cells are separated by semicolons; separate them by commas",
        ),
        (b",a\n0,1\n", "column 1 of the header has no name: name it, or leave it out (pandas writes its index so"),
        ("a,b\n1,2\n".encode("utf-16"), "the batch is UTF-16: make it UTF-8 first"),
        (b"a,a\n1,2\n", "column 'a' stands twice in the header"),
        (b"a,A\n1,2\n", "columns 'a' and 'A' differ only in case"),
        (b"a,\n1,2\n", "column 2 of the header has no name"),
        (b"a,b\n1,\xff\n", "line 2 is not UTF-8"),
        (b"n\n1\nx\n", "column 'n' is BIGINT (by the table's schema or an earlier batch), this batch has string"),
        (b"n\n1\nx\n", "(row 3: x)"),
        (b"n\n99999999999999999999\n", "integer beyond 64 bits values; BIGINT ends"),
        (b"t\n2023-06-07\nsoon\n", "column 't' is TIMESTAMP, and a value of this batch is none (row 3: soon)"),
        (b"a\n" + b"x" * 1025 + b"\n", f"row 2 has 1025 bytes: {'x' * 80}: send at most 1024"),
        (b"a\n" + b"x" * 70_000 + b"\n", "row 2 has 70000 bytes: xxx"),
        (",".join(f"c{i}" for i in range(21)).encode() + b"\n", "21 columns; the limit is 20"),
    ],
)
def test_bad_csv_is_rejected_with_its_reason(make_table, body, expected):
    table = make_table(limits=FlushUnitLimits(line_bytes=1024, batch_columns=20))
    assert expected in reason_of(table, body, "csv", schema={"n": "BIGINT", "t": "TIMESTAMP"})


PLUS_TWO = timezone(timedelta(hours=2))
TYPED = {
    "bool": (pa.array([True, None]), [True, None]),
    "int8": (pa.array([1, -2], pa.int8()), [1, -2]),
    "uint64": (pa.array([1, 2**63 - 1], pa.uint64()), [1, 2**63 - 1]),
    "half": (pa.array([0.5, None], pa.float16()), [0.5, None]),
    "float": (pa.array([0.1, 1.5], pa.float32()), [0.10000000149011612, 1.5]),
    "whole": (pa.array([Decimal(10**37), Decimal(-1)], pa.decimal128(38, 0)), [Decimal(10**37), Decimal(-1)]),
    "price": (pa.array([Decimal("0.10"), None], pa.decimal256(50, 2)), [Decimal("0.10"), None]),
    "text": (pa.array(["é😀", None], pa.large_string()), ["é😀", None]),
    "view": (pa.array(["a", "a longer text than twelve"], pa.string_view()), ["a", "a longer text than twelve"]),
    "kind": (pa.array(["a", "a"]).dictionary_encode(), ["a", "a"]),
    "code": (pa.array([7, None]).dictionary_encode(), [7, None]),
    "day": (pa.array([date(2023, 6, 7), None]), [date(2023, 6, 7), None]),
    "day64": (pa.array([date(2023, 6, 7), None], pa.date64()), [date(2023, 6, 7), None]),
    "s": (pa.array([datetime(2023, 6, 7), None], pa.timestamp("s")), [datetime(2023, 6, 7), None]),
    "ms": (pa.array([1, -1], pa.timestamp("ms")), [datetime(1970, 1, 1, 0, 0, 0, 1000), datetime(1969, 12, 31, 23, 59, 59, 999000)]),
    "ns": (pa.array([1999, -1], pa.timestamp("ns")), [datetime(1970, 1, 1, 0, 0, 0, 1), datetime(1969, 12, 31, 23, 59, 59, 999999)]),
    "zoned": (pa.array([datetime(2023, 6, 7, 12, tzinfo=PLUS_TWO)] * 2, pa.timestamp("us", "+02:00")), [datetime(2023, 6, 7, 10)] * 2),
    "struct": (pa.array([{"a": 1, "b": [None, 0.5]}, None]), ['{"a":1,"b":[null,0.5]}', None]),
    "list": (pa.array([["é", None], []]), ['["é",null]', "[]"]),
    "map": (pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())), ['{"k":1}', None]),
}  # fmt: skip


def test_typed_formats_keep_their_values(make_table):
    rows = pa.table({name: array for name, (array, _) in TYPED.items()}).append_column("none", pa.nulls(2))
    expected = [{name: values[place] for name, (_, values) in TYPED.items()} for place in range(2)]
    for body, staging_format in typed_bodies(rows):
        table = make_table()
        assert rows_of(table, body, staging_format) == expected, staging_format
    result = table.flush(table.stage(body=arrow_stream(rows), staging_format="arrow"))
    assert (result.new_kinds["day"], result.new_kinds["zoned"]) == (Kind.DATE, Kind.TIMESTAMP)


MOMENTS = [datetime(9999, 12, 31, 23, 59, 59, 999999), datetime(2262, 4, 12), datetime(2023, 6, 7, 1, 2, 3, 4),
           datetime(1969, 12, 31, 23, 59, 59, 999999), datetime(1677, 9, 20), datetime(1582, 10, 4), datetime(1, 1, 1), None]  # fmt: skip


@pytest.mark.parametrize("zone", [None, "UTC", "+02:00", "America/New_York"])
@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns", "INT96"])
def test_timestamps_of_every_unit_and_zone_are_what_they_were_written_as(make_table, unit, zone):
    """In nanoseconds of 64 bits, as Arrow reads INT96 by default, 9999-12-31 is 1816-03-29."""
    digits = {"s": 1_000_000, "ms": 1000}.get(unit, 1)
    years = (1678, 2261) if unit == "ns" else (1, 9999)
    moments = [m and m.replace(microsecond=m.microsecond // digits * digits) for m in MOMENTS if m is None or years[0] <= m.year <= years[1]]  # fmt: skip
    micros = pa.array(moments, pa.timestamp("us"))
    rows = pa.table({"t": micros.cast(pa.timestamp("us" if unit == "INT96" else unit)).cast(pa.int64())})
    rows = rows.cast(pa.schema([("t", pa.timestamp("us" if unit == "INT96" else unit, zone))]))
    if unit == "INT96":
        bodies = [(parquet(rows, use_deprecated_int96_timestamps=True), "parquet")]
    else:
        bodies = typed_bodies(rows)
    for body, staging_format in bodies:
        assert [row["t"] for row in rows_of(make_table(), body, staging_format)] == moments, staging_format


def test_typed_values_meet_declared_types_as_json_does(make_table):
    table = make_table("d=day(at)", declared={"day": "DATE", "f": "DOUBLE"})
    rows = pa.table({"at": ["2023-06-07T10:00:00+02:00"], "day": ["2023-06-07"], "f": [3]})
    assert rows_of(table, parquet(rows), "parquet") == [
        {"at": datetime(2023, 6, 7, 8), "day": date(2023, 6, 7), "f": 3.0}
    ]
    rows = pa.table({"at": [date(2023, 6, 7)], "day": [date(2023, 6, 7)]})
    assert rows_of(table, arrow_file(rows), "arrow") == [{"at": datetime(2023, 6, 7), "day": date(2023, 6, 7)}]
    assert rows_of(table, arrow_stream(pa.table({"at": [1686132000000]})), "arrow") == [
        {"at": datetime(2023, 6, 7, 10)}
    ]
    result = table.flush(
        table.stage({"at": 0, "x": "a"}), table.stage(body=parquet(pa.table({"at": [datetime.now(UTC)], "x": [1]})),
                                                       staging_format="parquet")
    )  # fmt: skip
    assert "column 'x' is VARCHAR" in next(iter(result.rejected.values()))
    assert "(row 1: 1)" in next(iter(result.rejected.values()))


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([1, 2**63], pa.uint64()), "row 2: column 'x' has 9223372036854775808; BIGINT ends at 2^63 - 1"),
        (pa.array([Decimal(10**40)], pa.decimal256(50, 0)), "column 'x': Decimal value does not fit in precision 38"),
        (pa.array([b"\x00"]), "column 'x' has the Arrow type binary, which has no SQL type here: send text (UTF-8)"),
        (pa.array([timedelta(1)]), "duration[us], which has no SQL type here: send a string, or an integer"),
        (pa.array([[b"a"]]), "column 'x' has binary inside list<"),
        (pa.array([2**62], pa.timestamp("s")), "row 1: column 'x' has 4611686018427387904 (timestamp[s]); send timestamps of the years"),
        (pa.array([4 * 10**6], pa.date32()), "send dates of the years 1 to 9999"),
        (pa.array([2**53 + 1]), "a DOUBLE would lose digits"),
    ],
)  # fmt: skip
def test_what_has_no_sql_type_is_rejected_with_column_and_row(make_table, column, expected):
    table = make_table()
    schema = {"x": "DOUBLE"} if expected.startswith("a DOUBLE") else {}
    assert expected in reason_of(table, arrow_stream(pa.table({"x": column})), "arrow", schema=schema)


def test_a_nested_moment_is_text_in_utc_on_every_host():
    """The engine takes its zone from the environment of its process."""
    program = (
        "import pyarrow as pa, datetime as d\n"
        "from icedb_engine.limits import FlushUnitLimits\n"
        "from icedb_engine.reading.read_typed import read_arrow\n"
        "kind = pa.struct({'t': pa.timestamp('us', 'Europe/Berlin'), 'l': pa.list_(pa.timestamp('ms', 'UTC'))})\n"
        "moment = d.datetime(2023, 6, 7, 10, tzinfo=d.UTC)\n"
        "table = pa.table({'o': pa.array([{'t': moment, 'l': [moment]}], kind)})\n"
        "sink = pa.BufferOutputStream()\n"
        "with pa.ipc.new_stream(sink, table.schema) as writer: writer.write_table(table)\n"
        "print(read_arrow(sink.getvalue().to_pybytes(), FlushUnitLimits()).rows.to_pylist()[0]['o'])\n"
    )
    for zone in ("America/New_York", "Asia/Kolkata"):
        environment = {**os.environ, "TZ": zone}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, check=True, text=True
        )
        assert done.stdout.strip() == '{"t":"2023-06-07 10:00:00+00","l":["2023-06-07 10:00:00+00"]}'


@pytest.mark.parametrize(
    "kind", [pa.struct({"a\0b": pa.int64()}), pa.list_(pa.struct({"x": pa.struct({"\0": pa.int64()})}))]
)
def test_a_nested_name_that_would_be_cut_is_named(make_table, kind):
    reason = reason_of(make_table(), arrow_stream(pa.table({"o": pa.array([None], kind)})), "arrow")
    assert "column 'o' has a field with a NUL in its name; rename it" in reason


def damaged_parquet():
    body = bytearray(parquet(pa.table({"a": list(range(1000))}), compression="none"))
    body[4:60] = b"\xff" * 56
    return bytes(body)


class OpenKeys(pe.KmsClient):
    """Keys that are no secret."""

    def __init__(self, _config):
        super().__init__()

    def wrap_key(self, key, _master_key_id):
        return base64.b64encode(key)


def parquet_with_encrypted_columns():
    """A file whose footer is plain."""
    names = pe.EncryptionConfiguration(footer_key="f", column_keys={"c": ["a"]}, plaintext_footer=True)
    keys = pe.CryptoFactory(OpenKeys).file_encryption_properties(pe.KmsConnectionConfig(), names)
    return parquet(GOOD, encryption_properties=keys)


GOOD = pa.table({"a": list(range(1000)), "s": ["x" * 50] * 1000})
INVALID_TEXT = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])


@pytest.mark.parametrize(
    ("body", "staging_format", "expected"),
    [
        (b"", "parquet", "not a readable Parquet file"),
        (b"PAR1 nonsense PAR1", "parquet", "not a readable Parquet file"),
        (parquet(GOOD)[:-20], "parquet", "not a readable Parquet file"),
        (damaged_parquet(), "parquet", "not a readable Parquet file"),
        (b"PARE" + b"x" * 50 + b"PARE", "parquet", "an encrypted Parquet file cannot be read"),
        (parquet_with_encrypted_columns(), "parquet", "an encrypted Parquet file cannot be read"),
        (b"", "arrow", "not a whole Arrow stream or file"),
        (b"nonsense" * 10, "arrow", "not a whole Arrow stream or file"),
        (arrow_stream(GOOD)[:-2000], "arrow", "not a whole Arrow stream or file"),
        (arrow_stream(GOOD, "zstd")[:-300], "arrow", "not a whole Arrow stream or file"),
        (arrow_file(GOOD)[:2000], "arrow", "not a whole Arrow stream or file"),
        (
            arrow_stream(pa.table({"a": INVALID_TEXT})),
            "arrow",
            "column 'a' is damaged or not UTF-8 in the 1 rows from row 1 on",
        ),
        (arrow_stream(pa.table([[1], [2]], names=["a", "a"])), "arrow", "column 'a' is there twice"),
        (arrow_stream(pa.table({f"c{i}": [1] for i in range(1001)})), "arrow", "1001 columns; the limit is 1000"),
    ],
    ids=range(14),
)
def test_damaged_files_are_rejected(make_table, body, staging_format, expected):
    table = make_table(limits=FlushUnitLimits(batch_decoded_bytes=1_000_000))
    assert expected in reason_of(table, body, staging_format)


@pytest.mark.parametrize(
    ("make_body", "staging_format", "expected"),
    [
        (
            lambda: parquet(pa.table({"s": pa.repeat("x" * 1000, 100_000)})),
            "parquet",
            "more than 1000000 bytes in memory",
        ),
        (lambda: parquet(pa.table({"a": pa.repeat(0, 9_000_000)})), "parquet", "9000000 rows and"),
        (
            lambda: arrow_stream(pa.table({"a": pa.repeat(0, 1_000_000)}), "zstd"),
            "arrow",
            "more than 1000000 bytes without",
        ),
        (
            lambda: arrow_stream(pa.table({"s": pa.array(["x" * 1000] * 9999).dictionary_encode()})),
            "arrow",
            "in memory",
        ),
    ],
    ids=["texts", "many rows", "compressed", "dictionary"],
)
def test_oversized_files_are_rejected(make_table, make_body, staging_format, expected):
    """Each is made in its test: every process of a run collects all of them."""
    table = make_table(limits=FlushUnitLimits(batch_decoded_bytes=1_000_000))
    assert expected in reason_of(table, make_body(), staging_format)


def test_files_without_rows_are_empty_batches(make_table):
    table = make_table()
    for rows in (GOOD.slice(0, 0), pa.table({})):
        for body, staging_format in typed_bodies(rows):
            assert rows_of(table, body, staging_format) == []


def test_batches_of_all_formats_share_a_unit(make_table):
    table = make_table(sort=("n",))
    bodies = [(b'{"n":1}\n', "ndjson"), (b'[{"n":2}]', "json"), (b"n\n3\n", "csv"),
              (parquet(pa.table({"n": [4]})), "parquet"), (arrow_stream(pa.table({"n": [5]})), "arrow")]  # fmt: skip
    batches = [table.stage(body=body, staging_format=staging_format) for body, staging_format in bodies]
    result = table.flush(*batches)
    assert table.rows(*result.files) == [{"n": n} for n in range(1, 6)]
    assert json.loads(json.dumps(result.new_kinds)) == {"n": Kind.INTEGER}


@pytest.mark.parametrize("typed", [pa.array([0], pa.timestamp("us")), pa.array([0], pa.date32())], ids=["time", "day"])
def test_text_after_typed_times_of_a_new_column_is_taken_as_its_type_does(make_table, typed):
    table = make_table()
    first = table.stage(body=arrow_stream(pa.table({"at": typed})), staging_format="arrow")
    good, bad, last = table.stage({"at": "2023-01-02"}), table.stage({"at": "hello"}), table.stage({"at": "2023-01-03"})
    result = table.flush(first, good, bad, last)
    assert list(result.rejected) == [bad.batch_id]
    assert sorted(str(row["at"])[:10] for row in table.rows(*result.files)) == [
        "1970-01-01",
        "2023-01-02",
        "2023-01-03",
    ]


def test_i8_a_flush_tells_of_each_batch_what_it_has_read(make_table):
    """By the decoded body, whatever is around it; of batches that it refuses, nothing."""
    table = make_table()
    body = b'{"a":1}\n'
    bodies = {"ndjson": body, "ndjson.gz": gzip.compress(body), "ndjson.zst": zstd.compress(body)}
    bodies |= {"parquet": parquet(pa.table({"a": [1]})), "json": b"{"}
    batches = [table.stage(body=body, staging_format=staging_format) for staging_format, body in bodies.items()]
    result = table.flush(*batches)
    expected = {
        batch.batch_id: hash_content(bodies[batch.format], batch.format) for batch in batches if batch.format != "json"
    }
    assert (result.contents, len(set(expected.values()))) == (expected, 2)


def test_what_the_data_path_takes_for_gzip_is_told_by_its_decoded_bytes_everywhere():
    """Its reader takes zlib's own header, too: a copy of the same bytes was called other content (I8)."""
    body = zlib.compress(b'{"a":1}\n')
    decoded = decompress(body, "gz", FlushUnitLimits())
    assert hash_content(body, "ndjson.gz") == hash_content(decoded, "ndjson")
