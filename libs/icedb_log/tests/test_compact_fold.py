"""What is folded of compact markers is what is folded of whole ones, anew and from one read of the log to the next."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from icedb_log.errors import CorruptLog
from icedb_log.log import compact_fold, live_files
from icedb_log.log.codec import decode_log_file, encode_log_file
from icedb_log.log.fold import Folded, fold
from icedb_log.log.live_files import LiveFiles
from icedb_log.model import FileMarker, ListedLogFile, LogFile, LogView

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


def listed(number, markers, *, is_compact):
    body = encode_log_file(LogFile(time_ms=number, schema={"ts": "TIMESTAMP"}, markers=markers))
    key = f"wh/t/_log/{number:013d}_{number:04x}.jsonl"
    return ListedLogFile(key, f"etag{number}", number, len(body), decode_log_file(key, body, is_compact=is_compact))


def view_of(files):
    return LogView("t", tuple(sorted(files, key=lambda file: file.key)), 1000)


def plain(snapshot):
    """Return what a snapshot says, whatever holds it; which of several markers of a file speaks is not said."""
    live = [(m.path, m.row_count is None) for m in snapshot.live]
    return replace(snapshot, live=tuple(live), tombstoned_ms=dict(snapshot.tombstoned_ms))


@pytest.fixture(autouse=True, scope="module")
def small_chunks():
    patch = pytest.MonkeyPatch()
    patch.setattr(live_files, "CHUNK_FILES", 2)
    patch.setattr(compact_fold, "FEW_MARKERS", 20)
    yield
    patch.undo()


@settings(max_examples=40, deadline=None)
@given(first=st.lists(LOGS, max_size=4), steps=st.lists(st.tuples(LOGS, st.integers(0, 9)), max_size=5))
def test_the_same_files_are_live(first, steps):
    whole = {n: listed(n, markers, is_compact=False) for n, markers in enumerate(first, 1)}
    compact = {n: listed(n, markers, is_compact=True) for n, markers in enumerate(first, 1)}
    known = None
    for number, (markers, gone) in enumerate([((), 99), *steps], len(first) + 1):
        if gone in whole:  # as the janitor does
            del whole[gone], compact[gone]
        whole[number] = listed(number, markers, is_compact=False)
        compact[number] = listed(number, markers, is_compact=True)
        expected, view = fold(view_of(whole.values())), view_of(compact.values())
        found = fold(view, known=known)
        assert isinstance(found.live, LiveFiles)
        assert plain(found) == plain(expected)
        assert (found.row_count, len(found.live)) == (expected.row_count, len(expected.live))
        assert found.size_bytes == sum(marker.size_bytes for marker in found.live)
        assert [found.live[at] for at in range(len(found.live))] == list(found.live)
        assert all(found.live.find(m.path.encode()) is not None for m in expected.live)
        assert [chunk.first for chunk in found.live.chunks] == sorted({chunk.first for chunk in found.live.chunks})
        past = fold(view, as_of_ms=number - 1, known=Folded(view, found))
        assert plain(past) == plain(fold(view_of(whole.values()), as_of_ms=number - 1))
        known = Folded(view, found)


@given(markers=LOGS)
def test_compact_markers_decode_to_what_was_written(markers):
    body = encode_log_file(LogFile(time_ms=5, markers=markers))
    found = decode_log_file("k", body, is_compact=True)
    assert found == decode_log_file("k", body)
    assert [found.markers.path(at).decode() for at in range(len(markers))] == [m.path for m in markers]
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
    assert [found.markers.path(at) for at in range(2)] == ["a/é/x".encode(), b"a/b"]
    assert [marker.path for marker in found.markers] == ["a/é/x", "a/b"]


@pytest.mark.parametrize("line", [b"[]", b"{", b'{"p":"a","b":-1,"t":1}', b'{"p":"a","b":1,"t":1,"s":{"x":[1]}}', b""])
def test_a_bad_line_is_found_when_it_is_read_and_not_later(line):
    body = b"\n".join((b'{"v":1,"t":5,"sch":1,"f":2}', b"{}", line))
    with pytest.raises(CorruptLog, match="line 2"):
        decode_log_file("k", body, is_compact=True)


def test_a_commit_leaves_the_chunks_of_other_files_as_they_are():
    markers = tuple(FileMarker(path, 1, 1) for path in sorted(PATHS))
    view = view_of([listed(1, markers, is_compact=True)])
    before = fold(view)
    fresh = (FileMarker("wh/t/_data/d=2026-01-02/zz.parquet", 1, 1), replace(markers[0], tombstoned_ms=3))
    after = fold(view_of([*view.files, listed(2, fresh, is_compact=True)]), known=Folded(view, before))
    kept = set(map(id, before.live.chunks)) & set(map(id, after.live.chunks))
    assert len(before.live.chunks) - len(kept) <= 2
    assert len(after.live) == len(before.live)
