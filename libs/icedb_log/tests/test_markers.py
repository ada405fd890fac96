"""Markers that are held as lines of a log file say what decoded ones say."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from icedb_log.errors import CorruptLog
from icedb_log.log.codec import decode_log_file, encode_log_file
from icedb_log.model import FileMarker, LogFile

FOLDERS = ("", "d=2026-01-01/", "d=2026-01-02/", "d=2026-01-02/u=a/", "d=2026-01-02/u=é/")
PATHS = [f"wh/t/_data/{folder}{name}.parquet" for folder in FOLDERS for name in "abcdefgh"]
MARKERS = st.builds(
    FileMarker,
    path=st.sampled_from(PATHS),
    size_bytes=st.integers(0, 5),
    created_ms=st.just(7),
    tombstoned_ms=st.one_of(st.none(), st.none(), st.none(), st.integers(1, 9)),
    row_count=st.one_of(st.none(), st.integers(0, 3)),
    stats=st.sampled_from([{}, {"ts": ("a", "b", 0)}]),
    extra=st.sampled_from([{}, {"zz": [1]}]),
)
LOGS = st.lists(MARKERS, max_size=12, unique_by=lambda marker: marker.path).map(tuple)


@given(markers=LOGS)
def test_lines_decode_to_what_was_written(markers):
    body = encode_log_file(LogFile(time_ms=5, markers=markers))
    found = decode_log_file("k", body, is_compact=True)
    assert found == decode_log_file("k", body)
    assert [found.markers.path(at) for at in range(len(markers))] == [m.path for m in markers]
    assert [found.markers.row_count(at) for at in range(len(markers))] == [m.row_count for m in markers]
    assert found.markers[1:3] == markers[1:3]
    assert encode_log_file(found) == body


def test_lines_of_other_writers_are_understood():
    lines = (
        b'{"v":1,"t":5,"sch":1,"f":2}',
        b"{}",
        b'{ "b": 3, "p": "a/\\u00e9/x" , "t": 4}',
        b'{"p":"a/b","b":1,"t":2,"n":9}',
    )
    found = decode_log_file("k", b"\n".join(lines), is_compact=True)
    assert [found.markers.path(at) for at in range(2)] == ["a/é/x", "a/b"]
    assert [marker.path for marker in found.markers] == ["a/é/x", "a/b"]


@pytest.mark.parametrize("line", [b"[]", b"{", b'{"p":"a","b":-1,"t":1}', b'{"p":"a","b":1,"t":1,"s":{"x":[1]}}', b""])
def test_a_bad_line_is_found_when_it_is_read_and_not_later(line):
    body = b"\n".join((b'{"v":1,"t":5,"sch":1,"f":2}', b"{}", line))
    with pytest.raises(CorruptLog, match="line 2"):
        decode_log_file("k", body, is_compact=True)
