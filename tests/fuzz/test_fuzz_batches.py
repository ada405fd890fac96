"""Staged payloads of every format: whatever the bytes are, a batch is committed or refused with a reason, and the others go on.

Flushes are those of the services with the real readers and writers (Arrow, DuckDB), without Spark. What was committed
from JSON is compared with what Python's own JSON reads.
"""

import gzip
import io
import json
import math
from collections import Counter
from dataclasses import replace

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from backports import zstd
from hypothesis import event, example, given
from hypothesis import strategies as st
from icedb_engine.limits import FlushUnitLimits
from icedb_engine.local_engine import LocalEngine, choose_limits
from icedb_log.clock import new_batch_id
from icedb_log.formats import STAGING_FORMATS
from icedb_log.ingest.quarantine import list_quarantined
from icedb_log.ingest.staging import list_staged, stage_batch
from icedb_log.units import MIB
from icedb_sim.tables.profiles import fuzz_examples
from icedb_sim.tables.small_table import SmallTable

GOOD = [{"id": 1, "s": "a"}, {"id": 2}]
SMALL = replace(
    choose_limits(memory_bytes=256 * MIB, thread_count=1),
    batch=FlushUnitLimits(batch_decoded_bytes=1 * MIB, line_bytes=64 * 1024, document_bytes=256 * 1024),
)

NUMBERS = st.one_of(
    st.sampled_from([0, -0.0, 1.5, 1e308, 2**53, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 10**400, math.nan, math.inf]),
    st.integers(-(2**65), 2**65),
    st.floats(),
)  # fmt: skip
TEXTS = st.one_of(
    st.text(max_size=6), st.sampled_from(["", "2024-01-01", "\x00", "\ud800", "é", "1", "true", "x" * 70_000])
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, TEXTS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=4,
)
KEYS = st.sampled_from(
    ["id", "id", "s", "n", "f", "b", "o", "ts", "ID", "", "é", "a b", "\x00", "x" * 300, "filename", "c\nd"]
)
EVENTS = st.dictionaries(KEYS, JSON, max_size=4)
PLAIN_EVENTS = st.fixed_dictionaries(
    {"id": st.integers(-100, 100)},
    optional={
        "s": st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
        "n": st.none() | st.integers(-(2**63), 2**63 - 1),
        "f": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "b": st.none() | st.booleans(),
        "o": st.none() | st.lists(st.integers(0, 9), max_size=2) | st.dictionaries(st.sampled_from(["k", "é"]), st.none() | st.text("ab", max_size=2), max_size=2),
    },
)  # fmt: skip


def dump(value):
    return json.dumps(value).encode()


def lines(events):
    return b"".join(dump(each) + b"\n" for each in events)


def parquet(events):
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(events), sink)
    return sink.getvalue()


def arrow(events):
    sink = io.BytesIO()
    table = pa.Table.from_pylist(events)
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def csv(events):
    sink = io.BytesIO()
    pacsv.write_csv(pa.Table.from_pylist([{"id": each["id"]} for each in events]), sink)
    return sink.getvalue()


NDJSON_BODIES = st.lists(EVENTS, max_size=4).map(lines) | st.lists(PLAIN_EVENTS, max_size=5).map(lines)
DOCUMENTS = st.one_of(st.lists(EVENTS, max_size=4).map(dump), EVENTS.map(dump), JSON.map(dump))
CSVS = st.one_of(
    st.lists(PLAIN_EVENTS, min_size=1, max_size=4).map(csv),
    st.text(st.sampled_from('id,s"\n\r\t;1\x00é'), max_size=40).map(str.encode),
)
TYPED = st.lists(PLAIN_EVENTS.map(lambda row: {**row, "o": str(row.get("o"))}), max_size=4)
ODD = st.one_of(
    st.binary(max_size=60),
    st.sampled_from([
        b"", b"\n", b"\xef\xbb\xbf", b"\xef\xbb\xbf{}\n", b"\x00" * 100, b"[", b"]", b"{", b"[]" * 50, b"{}" * 50, b"{}\r\r\n", b"null", b"[null]",
        b"[" * 100_000, b'{"id":' + b"[" * 50_000 + b"]" * 50_000 + b"}", b'{"id":1}' + b" " * 2_000_000, b'{"id":1,"id":2}', b'{"\\u0069d":1,"id":2}',
        b'{"id":1}garbage', b'{"id":1}\x00\n', b'{"id":01}', b'{"id":1e5}\n{"id":1.}', b'{"s":"\xff"}', b'{"s":"\\ud83d"}', b'{"s":"a\nb"}',
        b"PAR1", b"PAR1" * 20, b"ARROW1\x00\x00", b"\xff\xff\xff\xff\x00\x00\x00\x00", b"\xff\xff\xff\xff\xff\xff\xff\x7f", b"a,a\n1,2\n", b'"a\n1', b"a\n" + b"1," * 5000,
        b" " * 8_000_000,
    ]),
)  # fmt: skip
COMPRESSED = {"gz": gzip.compress, "zst": zstd.compress}


def mutate(body, edits):
    for at, inserted, removed in edits:
        place = at % (len(body) + 1)
        body = body[:place] + inserted + body[place + removed :]
    return body


EDITS = st.lists(st.tuples(st.integers(0, 5000), st.binary(max_size=3), st.integers(0, 5)), max_size=3)
SOURCES = {
    "ndjson": NDJSON_BODIES,
    "json": DOCUMENTS,
    "csv": CSVS,
    "parquet": TYPED.map(parquet),
    "arrow": TYPED.map(arrow),
}


@st.composite
def payloads(draw):
    """A format and bytes: of this format or of another one, whole or changed, compressed rightly or not."""
    staging_format = draw(st.sampled_from(STAGING_FORMATS))
    plain, _, codec = staging_format.partition(".")
    body = draw(st.one_of(SOURCES[plain], SOURCES[plain], SOURCES[draw(st.sampled_from(sorted(SOURCES)))], ODD))
    if draw(st.integers(0, 2)) == 0:
        body = mutate(body, draw(EDITS))
    if codec and draw(st.integers(0, 5)):
        body = COMPRESSED[codec](body)
        if draw(st.integers(0, 3)) == 0:
            body = mutate(body, draw(EDITS))
    return staging_format, body


def make_table(**config):
    return SmallTable(partition=(), sort=("id",), **{"declared": {"id": "BIGINT"}, **config})


def stage(table, staging_format, body):
    batch_id = new_batch_id(table.clock)
    stage_batch(table, body=body, staging_format=staging_format, batch_id=batch_id)
    table.clock.advance(1)
    return batch_id


def flush_all(table):
    """Flush until nothing is staged; return ids of committed and refused batches."""
    writer = LocalEngine(table.store, clock=table.clock, limits=SMALL).writer
    for _ in range(5):
        result = table.flush(writer=writer)
        if not result.has_more and not list_staged(table).batches:
            break
    logs = table.view().files
    committed = {each for log in logs for each in log.log.batch_ids}
    refused = {each for log in logs for each in log.log.refused_ids}
    assert not list_staged(table).batches, "a batch was neither committed nor refused"
    assert not committed & refused
    return committed, refused


def read_rows(table):
    rows = []
    for marker in table.snapshot().live:
        body = table.store.get(marker.path).body
        rows += pq.read_table(io.BytesIO(body)).to_pylist()
    return rows


CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "on_bad_rows": st.sampled_from(["quarantine_batch", "quarantine_rows"]),
        "evolution": st.sampled_from(["strict", "add_columns", "widen"]),
        "declared": st.sampled_from([{"id": "BIGINT"}, {"id": "BIGINT", "s": "VARCHAR", "ts": "TIMESTAMP"}, {"id": "VARCHAR", "o": "DOUBLE"}, {"id": "BIGINT", "b": "DATE"}]),
    },
)  # fmt: skip


@fuzz_examples(25)
@given(st.lists(payloads(), min_size=1, max_size=4), CONFIGS)
@example(
    [
        ("json", b"[" * 100_000),
        ("ndjson.gz", gzip.compress(b" " * 8_000_000)),
        ("arrow", b"\xff\xff\xff\xff\xff\xff\xff\x7f"),
    ],
    {},
)
def test_any_batch_is_committed_or_refused_with_a_reason(batches, config):
    table = make_table(**config)
    ids = [stage(table, staging_format, body) for staging_format, body in batches]
    good = stage(table, "ndjson", lines([{"id": 1}] if table.config.declared["id"] == "BIGINT" else [{"id": "a"}]))
    committed, refused = flush_all(table)
    assert committed | refused == {*ids, good}
    assert good in committed, "a batch was held up by others"
    entries = {entry.batch_id: entry for entry in list_quarantined(table)}
    for (staging_format, _), batch_id in zip(batches, ids, strict=True):
        event(f"{staging_format}: {'committed' if batch_id in committed else 'refused'}")
        if batch_id in refused:
            assert 0 < len(entries[batch_id].reason) < 3000
            assert "Traceback" not in entries[batch_id].reason
    read_rows(table)


def meaning(row, schema):
    """Return a row as its table should have it: NULL where nothing is, numbers and JSON by what they are."""
    found = {}
    for name, value in row.items():
        if value is None:
            continue
        if schema.get(name) == "DOUBLE":
            value = float(value)
        elif isinstance(value, dict | list):
            value = json.dumps(value, sort_keys=True)
        elif name == "o":
            value = json.dumps(json.loads(value), sort_keys=True)
        found[name] = repr(value)
    return tuple(sorted(found.items()))


@fuzz_examples(15)
@given(
    st.lists(st.tuples(st.sampled_from(["ndjson", "json", "ndjson.gz", "json.zst"]), st.lists(PLAIN_EVENTS, max_size=6)), min_size=1, max_size=4),
    st.booleans(),
)  # fmt: skip
def test_rows_of_json_are_what_python_reads(batches, is_widening):
    table = make_table(evolution="widen" if is_widening else "add_columns")
    sent = {}
    for staging_format, rows in batches:
        plain, _, codec = staging_format.partition(".")
        body = lines(rows) if plain == "ndjson" else dump(rows)
        sent[stage(table, staging_format, COMPRESSED[codec](body) if codec else body)] = rows
    committed, _ = flush_all(table)
    schema = table.snapshot().schema
    expected = [meaning(row, schema) for batch_id in committed for row in sent[batch_id]]
    assert Counter(meaning(row, schema) for row in read_rows(table)) == Counter(expected)
    event(f"{len(committed)} of {len(sent)} committed")
