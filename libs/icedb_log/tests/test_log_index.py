"""The index answers as the fold does, whatever came and went."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from icedb_log.log.fold import fold
from icedb_log.merge.log_index import LogIndex
from icedb_sim.tables.log_views import dead, kill, listed, live, log_key, view

names = st.sampled_from("uvwxyz")
log_files = st.builds(
    lambda number, alive, gone, kills, size: listed(
        number,
        *(live(name, rows=size or None) for name in alive if name not in gone),
        *(dead(name, number) for name in gone),
        kills=[kill(other, number) for other in kills],
        size_bytes=size,
    ),
    st.integers(1, 12),
    st.sets(names),
    st.sets(names),
    st.sets(st.integers(1, 12)),
    st.integers(0, 3),
)


@st.composite
def views(draw):
    """A view in which each key has one content; the ETag tells contents apart."""
    files = {file.key: file for file in draw(st.lists(log_files, max_size=8))}
    return view(*(replace(file, etag=repr(file.log)) for file in files.values()))


@settings(max_examples=50, deadline=None)
@given(st.lists(views(), min_size=1, max_size=5))
def test_an_index_that_is_kept_up_to_date_says_what_a_fold_says(history):
    index = LogIndex()
    before = {}
    for seen in history:
        index.update(seen)
        snapshot = fold(seen)
        paths = {marker.path for file in seen.files for marker in file.log.markers}
        alive = {marker.path for files in index.folders.values() for marker in files.values()}
        assert alive == {marker.path for marker in snapshot.live}
        for path in paths:
            assert (index.live_marker(path) is not None) == (path in alive)
            naming = [file.key for file in seen.files if any(marker.path == path for marker in file.log.markers)]
            assert sorted(index.logs_naming(path)) == naming
        for file in seen.files:
            assert index.is_dead_log(file.key) == (file.key in snapshot.log_tombstoned_ms)
        assert {file.key for file in index.active_files()} == {
            file.key for file in seen.files if file.key not in snapshot.log_tombstoned_ms
        }
        changed = index.take_changed()
        after = {path: sorted(index.logs_naming(path)) for path in alive}
        assert changed or after == before or not (after.keys() ^ before.keys())
        before = after


def test_a_marker_that_knows_its_rows_is_preferred():
    index = LogIndex.of(
        view(listed(1, live("x", rows=None)), listed(2, live("x", rows=7)), listed(3, live("x", rows=None)))
    )
    assert index.live_marker(live("x").path).row_count == 7


def test_a_seal_is_never_active():
    index = LogIndex.of(view(listed(1, live("x")), listed(2, is_seal=True)))
    assert [file.key for file in index.active_files()] == [log_key(1)]
    assert len(index.files) == 2
