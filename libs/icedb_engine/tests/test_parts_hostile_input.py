"""Bad input: each kind has a clear error that names the line, or the treatment of docs/types.md, by either reader."""

import gzip
import io
import json
import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from icedb_engine.limits import FlushUnitLimits
from icedb_engine.reading import frame
from icedb_log.units import MIB

GOOD = {"n": 1, "f": 0.5, "s": "a", "o": {"k": 1}}
LEVELS = 100_000


@pytest.fixture(params=["exact", "fast"])
def reader(request, monkeypatch):
    """Both readers of lines, whatever the size of the unit."""
    monkeypatch.setattr(frame, "SAMPLE_LINES", 0 if request.param == "fast" else 10**9)


def lines(*texts: str) -> bytes:
    return "".join(f"{text}\n" for text in (json.dumps(GOOD), *texts)).encode()


def zeros(compress) -> bytes:
    return compress(b" " * (8 * MIB))


def parquet_bomb() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"s": ["x" * 10_000] * 10_000}), sink)
    return sink.getvalue()


BOMBS = {
    "ndjson.gz": (lambda: zeros(gzip.compress), "more than 1048576 bytes after decompression"),
    "json.zst": (
        lambda: zeros(lambda data: pa.compress(data, codec="zstd", asbytes=True)),
        "more than 1048576 bytes after",
    ),
    "csv.gz": (
        lambda: gzip.compress(b"a\n" + b"1\n" * (4 * MIB)),
        "more than 1048576 bytes after decompression",
    ),
    "parquet": (parquet_bomb, "more than 1048576 bytes in memory"),
}
"""How one of a format is made, in its test: every process of a run collects all of them."""


@pytest.mark.parametrize("staging_format", BOMBS)
def test_a_bomb_is_not_unpacked(make_table, staging_format):
    make_body, expected = BOMBS[staging_format]
    body = make_body()
    assert len(body) < 1 * MIB
    table = make_table(limits=FlushUnitLimits(batch_decoded_bytes=1 * MIB))
    bomb, good = table.stage(body=body, staging_format=staging_format), table.stage(GOOD)
    assert expected in table.reason(bomb, good)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (lines('{"n":1,"n":1}'), "line 2: an event has the same key twice"),
        (lines('{"\\u006e":1,"n":1}'), "line 2: an event has the same key twice"),
        (lines('{"s":"\xe9"}').decode().encode("latin-1"), "line 2 is not UTF-8: byte 0xe9 at offset"),
        (lines('{"s":"\\ud800"}'), "line 2"),
        (lines(f'{{"n":{2**63}}}'), f"(line 2: {2**63})"),
        (lines(f'{{"f":{2**53 + 1}}}'), f"(line 2: {2**53 + 1})"),
        (lines(json.dumps({f"k{i}": i for i in range(10_000)})), "10004 different top-level keys; the limit is 1000"),
        (lines('{"n":' + "[" * LEVELS + "]" * LEVELS + "}"), "object or array values; send values that fit BIGINT"),
        (lines('{"o":' + "[" * LEVELS), "line 2 is not a JSON object"),
        *(
            (lines('{"' + "x" * pad + "é" * 200 + '":01}'), "line 2 is not a JSON object (Malformed JSON")
            for pad in (0, 1)
        ),
    ],
    ids=range(11),
)
def test_bad_lines_have_a_clear_error(make_table, reader, body, expected):
    table = make_table()
    good = table.stage(GOOD, GOOD)
    result = table.flush(good, table.stage(body=body), schema={"n": "BIGINT", "f": "DOUBLE"})
    assert result.accepted == (good.batch_id,)
    assert expected in next(iter(result.rejected.values()))


@pytest.mark.parametrize("pad", [0, 1])
def test_a_malformed_document_may_be_cut_within_a_character(make_table, pad):
    body = ('[{"' + "x" * pad + "é" * 200 + '":01}]').encode()
    table = make_table()
    assert "not one JSON document (line 1: Malformed JSON" in table.reason(
        table.stage(body=body, staging_format="json")
    )


def test_deep_nesting_is_kept_as_text(make_table, reader):
    table = make_table()
    deep = "[" * LEVELS + "]" * LEVELS
    result = table.flush(table.stage(body=lines(f'{{"o":{deep}}}')))
    assert deep in [row["o"] for row in table.rows(*result.files)]
    document = table.flush(table.stage(body=f'[{{"o":{deep}}}]'.encode(), staging_format="json"))
    assert [row["o"] for row in table.rows(*document.files)] == [deep]


def test_nan_and_infinity_are_doubles(make_table, reader):
    table = make_table()
    result = table.flush(table.stage(body=lines('{"f":NaN}', '{"f":-Infinity}')))
    found = sorted((row["f"] for row in table.rows(*result.files)), key=str)
    assert found[:2] == [-math.inf, 0.5]
    assert math.isnan(found[2])


@pytest.mark.parametrize("staging_format", ["ndjson", "json", "csv"])
@pytest.mark.parametrize("body", [b"", b"\n \r\n", b"\xef\xbb\xbf"])
def test_an_empty_batch_is_accepted_and_has_no_rows(make_table, body, staging_format):
    table = make_table()
    empty = table.stage(body=body, staging_format=staging_format)
    squeezed = table.stage(body=gzip.compress(body), staging_format=f"{staging_format}.gz")
    result = table.flush(empty, squeezed, table.stage(GOOD))
    assert result.accepted[:2] == (empty.batch_id, squeezed.batch_id)
    assert result.row_count == 1


def test_few_keys_in_many_rows_and_many_keys_do_not_meet(make_table, reader):
    table = make_table(limits=FlushUnitLimits(unit_cells=100))
    wide, long = table.stage({f"k{i}": 1 for i in range(40)}), table.stage(*({"n": i} for i in range(50)))
    other, both = table.stage({"n": 1}), table.stage({f"k{i}": 1 for i in range(40)}, {}, {})
    result = table.flush(wide, long, other)
    assert (result.accepted, result.left) == ((wide.batch_id,), (long.batch_id, other.batch_id))
    assert table.flush(long, other).accepted == (long.batch_id, other.batch_id)
    assert "3 events with 40 different keys together; the limit is 100 events times keys" in table.reason(both, other)


def test_an_oversized_batch_is_not_even_fetched(make_table):
    table = make_table(limits=FlushUnitLimits(batch_staged_bytes=100))
    large = table.stage(body=b"x" * 101)
    table.store.delete([large.key])
    assert "the staged object has 101 bytes; the limit is 100: send smaller batches" in table.reason(large)


def test_a_batch_of_only_unknown_columns_is_taken_unless_the_table_is_strict(make_table, reader):
    rows = [{"new": 1, "newer": "x"}, {"new": 2}]
    taken = make_table(declared={"n": "BIGINT"})
    result = taken.flush(taken.stage(*rows))
    assert taken.rows(*result.files) == [{"new": 1, "newer": "x"}, {"new": 2, "newer": None}]
    strict = make_table(declared={"n": "BIGINT"}, evolution="strict")
    assert "line 1: column 'new' is not in the schema of table events" in strict.reason(strict.stage(*rows))


@pytest.mark.parametrize("name", ["\0", "a\0b", "'\0'", "\0" * 3])
def test_a_key_with_a_nul_holds_up_nobody(make_table, reader, name):
    table = make_table()
    good, bad = table.stage(GOOD), table.stage(GOOD, {name: 1, "n": 2})
    result = table.flush(good, bad)
    assert result.accepted == (good.batch_id,)
    assert "line 2" in next(iter(result.rejected.values()))


def test_bad_rows_with_a_nul_in_a_key_are_told_apart(make_table, reader):
    table = make_table(on_bad_rows="quarantine_rows")
    batch = table.stage(GOOD, {"a\0b": 1}, {"n": 3})
    result = table.flush(batch)
    assert result.accepted == (batch.batch_id,)
    assert result.row_count == 2


def test_a_partition_value_with_a_nul_is_one(make_table, reader):
    table = make_table("s", declared={"s": "VARCHAR"})
    result = table.flush(table.stage({"s": "a\0b"}, {"s": "a"}, {"s": "b\0'"}))
    assert sorted(row["s"] for row in table.rows(*result.files)) == ["a", "a\0b", "b\0'"]
    assert len(result.files) == 3
