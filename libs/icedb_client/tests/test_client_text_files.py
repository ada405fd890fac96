"""CSV cut where records end, JSON arrays cut without a change, formats told by content and name."""

import csv
import gzip
import io
import json

import pytest
from backports import zstd
from icedb_client import files as text_files
from icedb_client.bodies import wrap_bytes
from icedb_client.files import format_of_name, split_file
from icedb_log.errors import InvalidRequest

RECORDS = [
    ["name", "text"],
    ["plain", "x"],
    ["comma", "a,b"],
    ["quote", 'say "hi"'],
    ["lines", "one\ntwo\r\n\nthree"],
    ["only quotes", '""'],
    ["quote, comma", '",",\n"'],
    ["empty", ""],
    ["pipe", "é|\u2028"],
] + [[f"row {n}", "y\n" * (n % 3)] for n in range(200)]


def as_csv(end="\n"):
    text = io.StringIO()
    csv.writer(text, lineterminator=end).writerows(RECORDS)
    return text.getvalue().encode()


def text_of(body):
    return zstd.decompress(body.body) if body.format.endswith(".zst") else body.body


def records_of(bodies):
    found = []
    for body in bodies:
        records = list(csv.reader(io.StringIO(text_of(body).decode(), newline="")))
        assert records[0] == RECORDS[0]
        assert len(records) - 1 == body.row_count
        found += records[1:]
    return found


@pytest.mark.parametrize(
    "content",
    [
        as_csv(),
        as_csv()[:-1],
        as_csv("\r\n"),
        b"\xef\xbb\xbf" + as_csv(),
        b"\n\r\n" + as_csv() + b"\n\n",
        gzip.compress(as_csv()),
        zstd.compress(as_csv()),
    ],
    ids=["lf", "no-end", "crlf", "bom", "blank", "gz", "zst"],
)
@pytest.mark.parametrize("bounds", [{}, {"batch_rows": 1}, {"batch_rows": 7}, {"batch_bytes": 100}])
def test_csv_is_cut_where_records_end_and_has_its_header(content, bounds, tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    bodies = list(split_file(path, **bounds))
    assert records_of(bodies) == RECORDS[1:]
    assert {body.format.partition(".")[0] for body in bodies} == {"csv"}


def test_a_quote_inside_a_plain_field_is_plain_text(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b'size,what\n5" wide,pipe\n6",rod\n"7"" wide\n or so",bar\n8",last')
    bodies = list(split_file(path, batch_rows=1))
    assert [text_of(body).partition(b"\n")[2] for body in bodies] == [
        b'5" wide,pipe\n',
        b'6",rod\n',
        b'"7"" wide\n or so",bar\n',
        b'8",last\n',
    ]


def test_going_on_in_a_csv(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(as_csv())
    bodies = list(split_file(path, batch_rows=50, first_row=101))
    assert records_of(bodies) == RECORDS[101:]
    assert bodies[0].first_row == 101


@pytest.mark.parametrize(("end", "written"), [("\n", "\n"), ("\r\n", "\r\n"), ("\r", "\n")])
def test_any_line_end_and_an_open_quote_are_for_the_flush_to_judge(tmp_path, end, written):
    path = tmp_path / "a.csv"
    path.write_bytes(f'{end}a,b{end}1,"2{end}3"{end}{end}4,5" pipe{end}6,"open{end}7,8'.encode())
    assert [text_of(body).decode() for body in split_file(path, batch_rows=1)] == [
        f'a,b{written}1,"2{end}3"{written}',
        f'a,b{written}4,5" pipe{written}',
        f'a,b{written}6,"open{end}7,8\n',
    ]


def test_bad_csv_is_named_with_its_line(tmp_path, monkeypatch):
    path = tmp_path / "a.csv"
    monkeypatch.setattr(text_files, "MAX_LINE_BYTES", 20)
    path.write_bytes(b'a,b\n1,"' + b"x\n" * 20 + b'"\n')
    with pytest.raises(InvalidRequest, match="the record of line 2 is longer than 20 bytes"):
        list(split_file(path))
    path.write_bytes(b"a,b\n")
    assert list(split_file(path)) == []


def test_elements_of_an_array_stay_as_they_were_written(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b'\xef\xbb\xbf [ {"n": 123456789012345678901234567890,\r\n "n": 1.10},\n{"t": "a\\nb"} , {} ]\n')
    (body,) = split_file(path)
    assert text_of(body).splitlines() == [
        b'{"n": 123456789012345678901234567890,   "n": 1.10}',
        b'{"t": "a\\nb"}',
        b"{}",
    ]
    path.write_bytes(b" [ ] ")
    assert list(split_file(path)) == []


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'[{"a":1} {"a":2}]', "after element 1 comes '{"),
        (b'[{"a":1},]', "not a JSON array"),
        (b'[{"a":1}', "after element 1 comes ''"),
        (b'[{"a":1}] x', "not a JSON array"),
        (b"[", "not a JSON array"),
        (b'[{"a":NaN}]', "NaN is not JSON"),
        (b'[{"a":"\xff"}]', "not a JSON array"),
        (b"[" + b'{"a":' * 100_000, "nested too deeply"),
    ],
)
def test_bad_arrays_are_named(content, words, tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(InvalidRequest, match=words) as caught:
        list(split_file(path))
    assert len(str(caught.value)) < 500


def test_a_name_may_lie_about_json_and_a_format_may_be_forced(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b'{"a":1}\n{"a":2}\n')
    assert next(split_file(path)).row_count == 2
    path.write_bytes(b"a\n1\n2\n3\n")
    (body,) = split_file(path, data_format="csv")
    assert (body.format, body.row_count) == ("csv", 3)
    with pytest.raises(InvalidRequest, match="not parquet: its first bytes"):
        list(split_file(path, data_format="parquet"))
    with pytest.raises(InvalidRequest, match="format 'xml' is unknown"):
        list(split_file(path, data_format="xml"))


@pytest.mark.parametrize(
    ("name", "data_format"),
    [
        ("A.CSV.gz", "csv"),
        ("a.ndjson.zst", "ndjson"),
        ("a.b.parquet", "parquet"),
        ("a.feather", "arrow"),
        ("a.gz", None),
    ],
)
def test_names_show_formats(name, data_format):
    assert format_of_name(name) == data_format


@pytest.mark.parametrize("pack", [gzip.compress, zstd.compress])
def test_compressed_bytes_are_told_by_what_is_inside(pack):
    kind = "gz" if pack is gzip.compress else "zst"
    assert wrap_bytes(pack(json.dumps([{"a": 1}] * 5000).encode())).format == f"json.{kind}"
    assert wrap_bytes(pack(b'{"a":1}\n')).format == f"ndjson.{kind}"
    assert wrap_bytes(pack(b"a\n1\n"), "csv").format == f"csv.{kind}"
    assert wrap_bytes(pack(b"x" * 100)[:-8] + b"garbage!").format == f"ndjson.{kind}"
