"""A user's NDJSON: counted independently, cut into batches without losing a byte, refused with the line's number."""

import gzip
import json

import pyarrow as pa
import pytest
from icedb_local.event_files import EventFile
from icedb_log.errors import InvalidRequest, NotFound

LINES = [
    {"ts": "2025-01-01T10:00:00Z", "event": "a", "v": 1},
    {"ts": "2025-01-01T23:30:00-02:00", "event": "ü", "v": 2},
    {"ts": 1735819200000, "event": "c", "v": None},
    {"ts": "2025-01-03", "event": "d", "nested": {"ts": "x"}},
]
BODY = "\n".join(json.dumps(line, ensure_ascii=False) for line in LINES).encode()


@pytest.mark.parametrize("suffix", ["", ".gz", ".zst"])
def test_counts_by_day_in_utc(tmp_path, suffix):
    path = tmp_path / f"events.ndjson{suffix}"
    if suffix == ".zst":
        with pa.CompressedOutputStream(pa.OSFile(str(path), "wb"), "zstd") as sink:
            sink.write(BODY)
    else:
        path.write_bytes(gzip.compress(BODY) if suffix else BODY)
    facts = EventFile(path).read_facts()
    assert facts.row_count == 4
    assert facts.rows_per_day == {"2025-01-01": 1, "2025-01-02": 2, "2025-01-03": 1}
    assert facts.columns == ("ts", "event", "v")


def test_batches_hold_every_line_once_and_in_order(tmp_path):
    path = tmp_path / "events.ndjson"
    path.write_bytes(b"\n\n" + BODY + b"\n\n   \n" + BODY + b"\n")
    batches = list(EventFile(path).batches(rows_per_batch=3))
    assert [batch.number for batch in batches] == list(range(len(batches)))
    rows = [json.loads(line) for batch in batches for line in batch.body.splitlines()]
    assert rows == LINES + LINES
    assert sum(batch.row_count for batch in batches) == 8


def test_another_column_may_hold_the_time(tmp_path):
    path = tmp_path / "events.ndjson"
    path.write_bytes(b'{"a/b~c":"2025-02-03T00:00:00Z"}')
    assert EventFile(path, "a/b~c").read_facts().rows_per_day == {"2025-02-03": 1}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "no events"),
        (b"\n \n", "no events"),
        (b'{"a":1}\n', r"line 1: has no column 'ts'.*TS_COLUMN"),
        (BODY + b'\n{"ts":"yesterday"}\n', "line 5: has no readable time"),
        (BODY + b'\n\n{"ts":\n', "line 6: is not a JSON object"),
        (b"[1,2]\n", "line 1: is not a JSON object"),
        (BODY + b'\n{"ts":"2025-01-01","x":"\xff"}', "line 5: is not a JSON object"),
        (b'{"ts":null}\n{"ts":null}\n', r"line 1: has no column 'ts'.*1 more"),
    ],
)
def test_bad_lines_are_named(tmp_path, body, words):
    path = tmp_path / "events.ndjson"
    path.write_bytes(body)
    with pytest.raises(InvalidRequest, match=words):
        EventFile(path).read_facts()


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_file_that_is_not_compressed_as_its_name_says(tmp_path, suffix):
    path = tmp_path / f"events.ndjson{suffix}"
    path.write_bytes(BODY)
    with pytest.raises(InvalidRequest, match="cannot be read"):
        EventFile(path).read_facts()


def test_a_missing_file(tmp_path):
    with pytest.raises(NotFound, match="not a file"):
        EventFile(tmp_path / "nope.ndjson").read_facts()
