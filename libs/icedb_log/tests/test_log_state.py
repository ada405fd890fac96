"""The state answers as the fold does, whatever came and went; a merge is checked by it as by the whole log."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from icedb_log.errors import InvariantViolated
from icedb_log.jobs import MergedGroup, MergeGroup
from icedb_log.log.fold import fold, fold_live_paths
from icedb_log.log.invariants import require_merge
from icedb_log.log.state import LogState
from icedb_log.merge.merge_log import build_merge_log
from icedb_log.model import ListedLogFile
from icedb_sim.tables.log_views import PATHS, dead, kill, listed, live, log_key, view

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
    index = LogState()
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
    index = LogState.of(
        view(listed(1, live("x", rows=None)), listed(2, live("x", rows=7)), listed(3, live("x", rows=None)))
    )
    assert index.live_marker(live("x").path).row_count == 7


def test_a_seal_is_never_active():
    index = LogState.of(view(listed(1, live("x")), listed(2, is_seal=True)))
    assert [file.key for file in index.active_files()] == [log_key(1)]
    assert len(index.files) == 2


def test_what_dead_log_files_alone_say_is_torn():
    both = (listed(1, live("x")), listed(2, kills=[kill(1, 2)]))
    assert LogState.of(view(*both)).torn == {live("x").path}
    carried = LogState.of(view(*both, listed(3, live("x"))))
    assert carried.torn == set()
    assert (carried.named(live("x").path).live_in, carried.named(live("x").path).held_live) == (2, 1)
    assert carried.held_log(log_key(1)) is None
    assert carried.held_log(log_key(3)) is not None
    carried.update(view(listed(1, live("x")), listed(3, live("x"))))  # its killer went: it counts again
    assert carried.named(live("x").path).held_live == 2


@settings(max_examples=50, deadline=None)
@given(st.lists(views(), min_size=1, max_size=5))
def test_what_is_held_is_what_log_files_say_that_are_not_dead(history):
    state = LogState()
    for seen in history:
        state.update(seen)
        dead_logs = {tombstone.path for file in seen.files for tombstone in file.log.log_tombstones}
        held = [file for file in seen.files if file.key not in dead_logs]
        for path in {marker.path for file in seen.files for marker in file.log.markers}:
            said = [marker.is_live for file in held for marker in file.log.markers if marker.path == path]
            assert (state.named(path).held_live, state.named(path).held_dead) == (said.count(True), said.count(False))
            is_torn = (said.count(True) > 0 and not said.count(False)) != (state.live_marker(path) is not None)
            assert (path in state.torn) == is_torn
        assert {file.key for file in seen.files if state.held_log(file.key)} == {file.key for file in held}


def require_merge_by_whole_log(seen, log, *, inputs, outputs):
    """Say what a merge does wrong, by folds of the whole log: what the check has to find by what the merge touches."""
    key = PATHS.log_key(time_ms=log.time_ms, commit_id=log.commit_id, is_merged=True)
    new = ListedLogFile(key, "", 0, 0, log)
    expected = (fold_live_paths(seen.files) - inputs) | outputs
    if fold_live_paths((*seen.files, new)) != expected:
        return "S1"
    dead_logs = {t.path for file in seen.files for t in file.log.log_tombstones}
    gone = dead_logs | {t.path for t in log.log_tombstones}
    remaining = (*(file for file in seen.files if file.key not in gone), new)
    held = [file for file in seen.files if file.key not in dead_logs]
    if fold_live_paths(remaining) != expected:
        return "M1"

    def dead_in(files):
        return {m.path for f in files for m in f.log.markers if not m.is_live} | {
            t.path for f in files for t in f.log.log_tombstones
        }

    return "drops the tombstone" if dead_in(held) - dead_in(remaining) else None


@settings(max_examples=300, deadline=None)
@given(views(), st.data())
def test_a_merge_is_checked_by_what_it_touches_as_by_the_whole_log(seen, data):
    """Right merges and damaged ones: a marker or a tombstone that is left out, or one too many."""
    state = LogState.of(seen)
    alive = sorted(marker.path for files in state.folders.values() for marker in files.values())
    inputs = data.draw(st.sets(st.sampled_from(alive), min_size=1)) if alive else set()
    markers = tuple(replace(state.live_marker(path), row_count=1) for path in sorted(inputs))
    output = live("merged", rows=len(inputs))
    merged = [MergedGroup(MergeGroup("p=a", markers), (output,), len(inputs))] if inputs else []
    folded = [file.key for file in seen.files if data.draw(st.booleans())]
    log = build_merge_log(state, merged=merged, folded_log_keys=folded, commit_id="ab", now_ms=50)
    if data.draw(st.booleans()) and log.markers:
        left_out = data.draw(st.sampled_from(log.markers))
        log = replace(log, markers=tuple(marker for marker in log.markers if marker != left_out))
    if data.draw(st.booleans()) and log.log_tombstones:
        left_out = data.draw(st.sampled_from(log.log_tombstones))
        log = replace(log, log_tombstones=tuple(one for one in log.log_tombstones if one != left_out))
    if data.draw(st.booleans()):
        name = data.draw(names)
        log = replace(log, markers=(*log.markers, data.draw(st.sampled_from([live(name), dead(name, 50)]))))
    expected = require_merge_by_whole_log(seen, log, inputs=inputs, outputs={output.path} if merged else set())
    found = None
    key = PATHS.log_key(time_ms=log.time_ms, commit_id="ab", is_merged=True)
    try:
        require_merge(PATHS, state, log, merged=merged, commit_key=key)
    except InvariantViolated as error:
        found = str(error)
    assert (found is None) == (expected is None), (found, expected)
    assert expected is None or expected in found
