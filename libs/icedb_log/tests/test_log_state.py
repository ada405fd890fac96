"""The state answers as a look at all log files does, whatever came and went; a merge is checked by it as by the whole log."""

from collections import defaultdict
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from icedb_log.commit.invariants import require_merge
from icedb_log.commit.merge_log import build_merge_log
from icedb_log.errors import InvariantViolated
from icedb_log.jobs import MergedGroup, MergeGroup
from icedb_log.log import live_files, state
from icedb_log.log.codec import decode_log_file, encode_log_file
from icedb_log.log.fold import fold, fold_live_paths
from icedb_log.log.state import LogState
from icedb_log.model import ListedLogFile
from icedb_sim.tables.log_views import PATHS, dead, kill, listed, live, log_key, view

PARTITIONS = ("", "p=a", "p=b", "p=b/u=a")
names = st.sampled_from([*"uvwxyz", "\U0010ffffx"])  # a name of others may sort behind every character
files = st.tuples(names, st.sampled_from(PARTITIONS))


@st.composite
def log_files(draw):
    """A log file, its markers decoded or as lines; two log files of a time may say different things."""
    number = draw(st.integers(1, 12))
    gone, alive = draw(st.sets(files, max_size=6)), draw(st.sets(files, max_size=6))
    file = listed(
        number,
        *(live(n, partition=p, rows=draw(st.one_of(st.none(), st.integers(0, 3)))) for n, p in sorted(alive - gone)),
        *(dead(n, draw(st.integers(1, 9)), partition=p) for n, p in sorted(gone)),
        kills=[kill(other, number) for other in sorted(draw(st.sets(st.integers(1, 12), max_size=3)))],
    )
    file = replace(file, etag=repr(file.log))
    return as_lines(file) if draw(st.booleans()) else file


def as_lines(file):
    return replace(file, log=decode_log_file(file.key, encode_log_file(file.log), is_compact=True))


@st.composite
def views(draw):
    return view(*{file.key: file for file in draw(st.lists(log_files(), max_size=8))}.values())


@pytest.fixture(autouse=True, scope="module")
def small_chunks():
    patch = pytest.MonkeyPatch()
    patch.setattr(live_files, "CHUNK_FILES", 2)
    patch.setattr(state, "FEW_MARKERS", 10)
    yield
    patch.undo()


@dataclass
class Said:
    """What log files say of one data file, found by a look at each marker."""

    counts: list[int] = field(default_factory=lambda: [0, 0, 0, 0])
    log_keys: list[str] = field(default_factory=list)
    died_ms: list[int] = field(default_factory=list)

    @property
    def is_live(self):
        return self.counts[0] > 0 and not self.counts[1]

    @property
    def is_inconsistent(self):
        return (self.counts[2] > 0 and not self.counts[3]) != self.is_live


def look_at(seen):
    dead_logs = {tombstone.path for file in seen.files for tombstone in file.log.log_tombstones}
    said = defaultdict(Said)
    for file in seen.files:
        for marker in file.log.markers:
            known = said[marker.path]
            known.counts[0 if marker.is_live else 1] += 1
            known.counts[2 if marker.is_live else 3] += file.key not in dead_logs
            known.log_keys.append(file.key)
            known.died_ms += [] if marker.is_live else [marker.tombstoned_ms]
    return said, dead_logs


@settings(max_examples=25, deadline=None)
@given(st.lists(views(), min_size=1, max_size=5))
def test_a_state_that_is_kept_up_to_date_says_what_all_log_files_say(history):
    kept = LogState()
    for seen in history:
        kept.update(seen)
        said, dead_logs = look_at(seen)
        alive = sorted(path for path, known in said.items() if known.is_live)
        assert kept.live.paths() == alive == sorted(fold_live_paths(seen.files))
        assert [marker.path for marker in kept.live] == alive == [kept.live[at].path for at in range(len(alive))]
        assert kept.inconsistent == {path for path, known in said.items() if known.is_inconsistent}
        assert kept.tombstoned_ms == {path: min(known.died_ms) for path, known in said.items() if known.died_ms}
        for path in (*said, "wh/t/_data/none"):
            named = kept.named(path)
            assert [named.live_in, named.dead_in, named.held_live, named.held_dead] == said[path].counts
            assert sorted(kept.logs_naming(path)) == sorted(said[path].log_keys)
            assert (kept.live_marker(path) is not None) == (kept.live.find(path) is not None) == (path in alive)
        keys = {file.key for file in seen.files}
        assert {key for key in keys if kept.is_dead_log(key)} == keys & dead_logs
        assert {file.key for file in kept.active_files()} == keys - dead_logs
        assert {key for key in keys if kept.held_log(key)} == keys - dead_logs


@settings(max_examples=25, deadline=None)
@given(st.lists(views(), min_size=1, max_size=5), st.integers(0, 12))
def test_a_state_is_the_same_by_whatever_way_it_came(history, as_of_ms):
    kept = LogState()
    for seen in history:
        known, before = kept.copy(), kept.live.paths()
        expected, found = fold(seen), fold(seen, state=kept)
        assert replace(found, live=expected.live) == expected
        assert found.live == expected.live
        for total in ("size_bytes", "row_count", "newest_ms", "digest", "partition_count"):
            assert getattr(found.live, total) == getattr(expected.live, total)
        assert known.live.paths() == before, "a copy goes on by itself"
        past = fold(replace(seen, files=tuple(f for f in seen.files if f.log.time_ms <= as_of_ms)))
        known.update(seen)
        known.update(replace(seen, files=()))
        assert fold(seen, as_of_ms=None, state=known).live == expected.live
        known.update(replace(seen, files=tuple(f for f in seen.files if f.log.time_ms <= as_of_ms)))
        assert known.live == past.live
        assert found.live.minus(past.live).paths() == sorted(set(found.live.paths()) - set(past.live.paths()))


@settings(max_examples=15, deadline=None)
@given(st.lists(views(), min_size=2, max_size=2))
def test_folders_are_the_live_files_of_a_partition_and_say_when_they_change(history):
    kept, found = LogState(), []
    for seen in history:
        kept.update(seen)
        folders = defaultdict(list)
        for marker in kept.live:
            folders[folder_of(marker.path)].append(marker)
        assert {folder: list(files) for folder, files in kept.folders()} == folders
        assert all(list(kept.folder(folder)) == markers for folder, markers in folders.items())
        assert not kept.folder("wh/t/_data/p=c/")
        naming = {path: sorted(kept.logs_naming(path)) for path in kept.live.paths()}
        found.append((kept.take_changed(), naming))
    (_, before), (changed, after) = found
    assert changed >= {folder_of(path) for path in before.keys() | after if before.get(path) != after.get(path)}


def folder_of(path):
    return path.rpartition("/")[0] + "/"


def test_a_commit_leaves_the_chunks_of_other_files_as_they_are():
    markers = [live(name, partition=partition) for partition in PARTITIONS for name in "abcdefgh"]
    kept = LogState.of(view(as_lines(listed(1, *markers))))
    before = kept.live
    fresh = listed(2, live("zz", partition="p=b"), replace(markers[0], tombstoned_ms=3))
    kept.update(view(*kept.files, fresh))
    assert len(set(before.chunks) - set(kept.live.chunks)) <= 2
    assert len(kept.live) == len(before)


def test_what_was_made_of_a_chunk_goes_over_to_one_that_says_the_same():
    kept = LogState.of(view(listed(1, live("a"), live("b"))))
    assert kept.live.chunks[0].once("x", lambda: 1) == 1
    kept.update(view(listed(2, live("a"), live("b"))))
    assert kept.live.chunks[0].once("x", lambda: 2) == 1
    kept.update(view(listed(3, live("a"), live("c"))))
    assert kept.live.chunks[0].once("x", lambda: 3) == 3


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
    assert LogState.of(view(*both)).inconsistent == {live("x").path}
    carried = LogState.of(view(*both, listed(3, live("x"))))
    assert carried.inconsistent == set()
    assert (carried.named(live("x").path).live_in, carried.named(live("x").path).held_live) == (2, 1)
    assert carried.held_log(log_key(1)) is None
    assert carried.held_log(log_key(3)) is not None
    carried.update(view(listed(1, live("x")), listed(3, live("x"))))  # its killer went: it counts again
    assert carried.named(live("x").path).held_live == 2


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
    alive = [path for path in state.live.paths() if PATHS.partition_of(path) == "p=a"]
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
