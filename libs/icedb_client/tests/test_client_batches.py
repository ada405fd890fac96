"""Rows and files to bodies: nothing lost, nothing held that need not be, bad input named by line."""

import gzip
import io
import json
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from uuid import UUID

import pytest
from backports import zstd
from icedb_client import bodies as batches
from icedb_client import files as text_files
from icedb_client.bodies import encode_rows, wrap_bytes
from icedb_client.files import split_file
from icedb_log.errors import InvalidRequest


def unpack(body):
    raw = zstd.decompress(body.body) if body.format == "ndjson.zst" else body.body
    return [json.loads(line) for line in raw.splitlines() if line]


def rows_of(bodies):
    return [row for body in bodies for row in unpack(body)]


def test_rows_become_ndjson():
    body = encode_rows([{"ts": datetime(2026, 1, 2, 3, 4, 5), "d": date(2026, 1, 2), "x": {"é": [1, None]}}, {}])
    assert body.format == "ndjson"
    assert body.row_count == 2
    assert unpack(body) == [
        {"ts": "2026-01-02T03:04:05+00:00", "d": "2026-01-02", "x": {"é": [1, None]}},
        {},
    ]


def test_python_values_are_written_exactly():
    """orjson cuts the seconds of an offset: rows of local times before 1900 were 28 s off."""
    amsterdam = timezone(timedelta(minutes=53, seconds=28))
    ident = UUID("00000000-0000-0000-0000-00000000002a")
    values = {
        "odd": datetime(1850, 1, 2, 3, 4, 5, 6, tzinfo=amsterdam),
        "even": datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=-9, minutes=-30))),
        "naive": datetime(1, 1, 1, 0, 0, 0, 7),
        "inner": [{"at": datetime(1850, 1, 2, tzinfo=amsterdam)}],
        "d": date(1, 2, 3),
        "t": time(1, 2, 3),
        "id": ident,
        "price": Decimal("12345678901234567890.10"),
        "small": Decimal("1E-30"),
    }
    body = encode_rows([values])
    assert unpack(body)[0] | {"price": 0, "small": 0} == {
        "odd": "1850-01-02T02:10:37.000006+00:00",
        "even": "2026-01-02T03:04:05-09:30",
        "naive": "0001-01-01T00:00:00.000007+00:00",
        "inner": [{"at": "1850-01-01T23:06:32+00:00"}],
        "d": "0001-02-03",
        "t": "01:02:03",
        "id": str(ident),
        "price": 0,
        "small": 0,
    }
    assert b'"price":12345678901234567890.10,"small":1E-30' in body.body
    for value in (Decimal("sNaN"), time(1, tzinfo=amsterdam), datetime(1, 1, 1, tzinfo=amsterdam), b"x"):
        with pytest.raises(InvalidRequest, match="row 1 cannot be written as JSON"):
            encode_rows([{"a": value}])


def test_large_bodies_are_compressed_the_same_way_each_time():
    rows = [{"n": n, "text": "x" * 50} for n in range(1000)]
    body = encode_rows(rows)
    assert body.format == "ndjson.zst"
    assert len(body.body) < body.raw_bytes / 5
    assert unpack(body) == rows
    assert encode_rows(rows).body == body.body


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"a": 1}, [1]], "row 2 is a list"),
        ([{"a": 1, "b": object()}], "row 1 cannot be written as JSON: column 'b': .*object; send text, or a number"),
        ([{"a": 1 << 70}], "row 1 cannot be written as JSON: column 'a': Integer exceeds 64-bit range"),
        ([{1: 2}], "row 1 cannot be written as JSON: Dict key must be str$"),
        (["{}"], "row 1 is a str"),
    ],
)
def test_bad_rows_are_named(rows, words):
    with pytest.raises(InvalidRequest, match=words):
        encode_rows(rows)


def test_a_batch_has_a_largest_size(monkeypatch):
    monkeypatch.setattr(batches, "MAX_BATCH_BYTES", 100)
    with pytest.raises(InvalidRequest, match="several batches"):
        encode_rows({"a": "x" * 30} for _ in range(10))
    with pytest.raises(InvalidRequest, match="cut it"):
        wrap_bytes(b"x" * 101)
    with pytest.raises(InvalidRequest, match="1 to 100 bytes"):
        wrap_bytes(b"")


def test_bytes_pass_through_by_their_content():
    assert wrap_bytes(b'{"a":1}\n\n{"a":2}').row_count == 2
    packed = gzip.compress(b'{"a":1}')
    assert (wrap_bytes(packed).body, wrap_bytes(packed).format) == (packed, "ndjson.gz")
    packed = zstd.compress(b'{"a":1}')
    assert (wrap_bytes(packed).body, wrap_bytes(packed).format) == (packed, "ndjson.zst")
    # What is wrong with it is for the flush to say.
    assert wrap_bytes(b"not json").body == b"not json"


ROWS = [{"n": n, "text": "é" * (n % 50)} for n in range(1000)]
NDJSON = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


@pytest.mark.parametrize(
    "content",
    [
        NDJSON,
        NDJSON[:-1],
        NDJSON.replace(b"\n", b"\r\n\r\n"),
        b"\xef\xbb\xbf" + NDJSON,
        gzip.compress(NDJSON),
        gzip.compress(NDJSON[:5000].rpartition(b"\n")[0] + b"\n")
        + gzip.compress(NDJSON[len(NDJSON[:5000].rpartition(b"\n")[0]) + 1 :]),
        zstd.compress(NDJSON),
        json.dumps(ROWS).encode(),
        zstd.compress(b"\n " + json.dumps(ROWS, indent=1).encode()),
    ],
    ids=["lf", "no-end", "crlf", "bom", "gz", "gz-two-members", "zst", "array", "array-zst"],
)
def test_files_of_every_kind_give_the_same_rows(content, tmp_path):
    path = tmp_path / "events.whatever"
    path.write_bytes(content)
    bodies = list(split_file(path, batch_rows=300))
    assert [body.row_count for body in bodies] == [300, 300, 300, 100]
    assert [body.first_row for body in bodies] == [1, 301, 601, 901]
    assert rows_of(bodies) == ROWS
    assert 0 < bodies[0].position <= bodies[-1].position == len(content)


def test_batches_are_cut_by_bytes_too(tmp_path):
    path = tmp_path / "a.ndjson"
    path.write_bytes(NDJSON)
    bodies = list(split_file(path, batch_bytes=2000))
    assert rows_of(bodies) == ROWS
    assert max(body.raw_bytes for body in bodies) < 2000 + 400


def test_a_stream_is_read_as_it_comes():
    class Pipe(io.RawIOBase):
        def __init__(self):
            self.left = NDJSON
            self.taken = 0

        def readable(self):
            return True

        def readinto(self, buffer):
            count = min(len(buffer), 1000, len(self.left))
            buffer[:count], self.left = self.left[:count], self.left[count:]
            self.taken += count
            return count

    pipe = Pipe()
    bodies = split_file(io.BufferedReader(pipe, 1000), batch_rows=10)
    first = next(bodies)
    assert pipe.taken < len(NDJSON) / 2
    assert rows_of([first, *bodies]) == ROWS


def test_going_on_from_a_row(tmp_path):
    path = tmp_path / "a.ndjson"
    path.write_bytes(NDJSON)
    bodies = list(split_file(path, batch_rows=300, first_row=601))
    assert rows_of(bodies) == ROWS[600:]
    assert bodies[0].first_row == 601


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe{", r"a\.ndjson: is UTF-16"),
        (b'{\n  "a": 1\n}\n', r"a\.ndjson: line 1 is not JSON: an object over several lines"),
        (b"[{}, ", "not a JSON array"),
        (gzip.compress(NDJSON)[:-100], "cannot be read after row"),
        (zstd.compress(NDJSON)[:-100], "cannot be read after row"),
        (b"\x1f\x8bgarbage", "cannot be read after row 0"),
    ],
)
def test_bad_files_are_named_with_the_line(content, words, tmp_path):
    path = tmp_path / "a.ndjson"
    path.write_bytes(content)
    with pytest.raises(InvalidRequest, match=words):
        list(split_file(path))


@pytest.mark.parametrize(
    ("content", "sent"),
    [
        (b'{"a":1}\n{"a":\n{"a":2}\n', b'{"a":1}\n{"a":\n{"a":2}\n'),
        (b'{"a":1}\n\n[1]\n', b'{"a":1}\n[1]\n'),
        (b'{"a":1}\n{"a":"\xff"}\n', b'{"a":1}\n{"a":"\xff"}\n'),
        (b'{"a":\n{"a":1}\n', b'{"a":\n{"a":1}\n'),
        (b'{"a": NaN}', b'{"a": NaN}\n'),
        (b'[{"a":1}, 5, null]', b'{"a":1}\n5\nnull\n'),
    ],
)
def test_a_broken_line_is_sent_as_it_is_and_the_table_decides(content, sent, tmp_path):
    path = tmp_path / "a.ndjson"
    path.write_bytes(content)
    assert b"".join(body.body for body in split_file(path)) == sent


def test_files_that_are_not_there_or_empty(tmp_path):
    with pytest.raises(InvalidRequest, match="No such file"):
        list(split_file(tmp_path / "nope"))
    with pytest.raises(InvalidRequest, match="directory"):
        list(split_file(tmp_path))
    (tmp_path / "empty").touch()
    assert list(split_file(tmp_path / "empty")) == []


def test_limits_are_checked(tmp_path, monkeypatch):
    for wrong in ({"batch_rows": 0}, {"batch_bytes": 0}, {"first_row": 0}, {"batch_bytes": 1 << 40}):
        with pytest.raises(InvalidRequest, match="at least 1"):
            list(split_file(tmp_path / "a", **wrong))
    monkeypatch.setattr(text_files, "MAX_LINE_BYTES", 100)
    (tmp_path / "long").write_bytes(b'{"a":"' + b"x" * 200 + b'"}')
    with pytest.raises(InvalidRequest, match="line 1 is longer than 100 bytes"):
        list(split_file(tmp_path / "long"))
    monkeypatch.setattr(text_files, "MAX_ARRAY_BYTES", 10)
    (tmp_path / "array").write_bytes(b'[{"a":"xxxxxxxx"}]')
    with pytest.raises(InvalidRequest, match="NDJSON"):
        list(split_file(tmp_path / "array"))
