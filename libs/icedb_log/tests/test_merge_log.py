"""What the log file of a merge says (M1, M3, S1)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from icedb_log.commit.merge_log import build_merge_log
from icedb_log.jobs import MergedGroup, MergeGroup
from icedb_log.log.fold import fold
from icedb_log.log.state import LogState
from icedb_log.model import LogTombstone, Widening
from icedb_sim.tables.log_views import data, dead, kill, listed, live, log_key, view


def merge(files, *, inputs=(), outputs=(), folded=None, now=100):
    """Return the log file of a merge that folds some log files; by default all."""
    before = fold(view(*files))
    chosen = tuple(marker for marker in before.live if marker.path in {data(name) for name in inputs})
    assert len(chosen) == len(inputs)
    groups = [MergedGroup(MergeGroup("p=a", chosen), tuple(outputs), len(chosen))] if inputs else []
    keys = [file.key for file in files] if folded is None else folded
    return build_merge_log(LogState.of(view(*files)), merged=groups, folded_log_keys=keys, commit_id="ab", now_ms=now)


def by_path(log):
    found = {marker.path: marker for marker in log.markers}
    assert len(found) == len(log.markers)
    return found


def test_m1_outputs_are_live_and_inputs_are_dead():
    log = merge([listed(1, live("x"), live("y"))], inputs="xy", outputs=[live("z", created_ms=99)])
    markers = by_path(log)
    assert markers[data("z")] == live("z", created_ms=99)
    assert markers[data("x")] == live("x", tombstoned_ms=100)
    assert (log.time_ms, log.commit_id) == (100, "ab")


def test_m1_a_merge_says_what_it_changed_and_nothing_more():
    files = [listed(1, live("x"), live("other")), listed(2, live("y"), dead("d", 2), extra={"b": 2}, merged=True)]
    log = merge(files, inputs="xy", outputs=[live("z")], folded=())
    assert by_path(log).keys() == {data("x"), data("y"), data("z")}
    assert (log.log_tombstones, log.extra) == ((), {})


def test_m1_live_markers_of_folded_log_files_are_carried():
    other = live("other", partition="p=b", stats={"id": (1, 2, 0)}, extra={"codec": "zstd"})
    log = merge([listed(1, live("x"), other), listed(2, live("y"))], inputs="xy", outputs=[live("z")])
    assert by_path(log)[other.path] == other


def test_m1_dead_markers_of_folded_log_files_are_carried_with_the_proof_of_their_landing():
    log = merge(
        [
            listed(50, live("x"), dead("d1", 50), dead("d2", 40, landed=44), merged=True, modified_ms=57),
            listed(60, live("y")),
        ],
        inputs="xy",
        outputs=[live("z")],
    )
    assert by_path(log)[data("d1")] == dead("d1", 50, landed=57)
    assert by_path(log)[data("d2")] == dead("d2", 40, landed=44)


def test_m1_a_tombstone_in_two_log_files_is_carried_once_with_the_earliest_times():
    files = [
        listed(50, live("x"), dead("d", 50, landed=58), merged=True, modified_ms=70),
        listed(60, live("y"), dead("d", 49), merged=True, modified_ms=61),
    ]
    assert by_path(merge(files, inputs="xy", outputs=[live("z")]))[data("d")] == dead("d", 49, landed=58)
    assert by_path(merge(list(reversed(files)), inputs="xy"))[data("d")] == dead("d", 49, landed=58)


def test_m1_what_is_live_here_and_dead_in_a_log_file_that_stays_is_left_out():
    files = [listed(1, live("x"), live("d")), listed(2, live("y")), listed(30, dead("d", 30), merged=True)]
    assert data("d") not in by_path(merge(files, inputs="xy", folded=[log_key(1)]))
    tombstone = by_path(merge(files, inputs="xy"))[data("d")]
    assert tombstone.tombstoned_ms == 30, "and a fold of both keeps the tombstone"


def test_m1_what_is_live_here_and_dead_only_in_a_dead_log_file_is_carried_as_dead():
    files = [
        listed(1, live("x"), live("d")),
        listed(2, live("y")),
        listed(30, dead("d", 30), merged=True),
        listed(40, kills=[kill(30, 40, merged=True)], merged=True),
    ]
    assert by_path(merge(files, inputs="xy", folded=[log_key(1)]))[data("d")].tombstoned_ms == 30


def test_m1_log_tombstones_of_folded_log_files_are_carried_and_each_of_them_gets_one():
    files = [
        listed(50, live("x"), kills=[kill(10, 50), kill(11, 40, landed=45)], merged=True, modified_ms=57),
        listed(60, live("y")),
    ]
    log = merge(files, inputs="xy", outputs=[live("z")])
    assert {t.path: (t.tombstoned_ms, t.landed_ms) for t in log.log_tombstones} == {
        log_key(10): (50, 57),
        log_key(11): (40, 45),
        log_key(50, merged=True): (100, None),
        log_key(60): (100, None),
    }


def test_m1_a_dead_log_file_is_not_folded_again():
    files = [
        listed(1, live("x"), live("gone")),
        listed(50, live("x"), live("y"), dead("gone", 50), kills=[kill(1, 50)], merged=True, modified_ms=50),
    ]
    log = merge(files, inputs="xy", outputs=[live("z")])
    assert {t.path: t.tombstoned_ms for t in log.log_tombstones} == {log_key(1): 50, log_key(50, merged=True): 100}


def test_m1_what_was_stripped_does_not_come_back_from_a_dead_log_file():
    files = [
        listed(30, live("x"), dead("longgone", 30), merged=True),
        listed(50, live("x"), live("y"), kills=[kill(30, 50, merged=True)], merged=True),
    ]
    assert data("longgone") not in by_path(merge(files, inputs="xy", outputs=[live("z")]))


def test_f4_a_seal_is_never_merged_away():
    seal = listed(3, is_seal=True)
    log = merge([listed(1, live("x"), live("y")), seal], inputs="xy", folded=[log_key(1), seal.key])
    assert [t.path for t in log.log_tombstones] == [log_key(1)]


@pytest.mark.parametrize("now", [1, 70, 71, 500])
def test_s1_the_name_of_a_merge_sorts_after_its_inputs_whatever_its_clock_says(now):
    log = merge([listed(70, live("x")), listed(30, live("y"))], inputs="xy", now=now)
    assert log.time_ms == max(now, 71)
    assert by_path(log)[data("x")].tombstoned_ms == log.time_ms


def test_s1_a_fold_is_named_behind_the_merge_that_killed_what_it_leaves_out():
    append, ahead = listed(1, live("x")), listed(500, live("z"), dead("x", 500), merged=True)
    folded = merge([append, ahead], folded=[append.key], now=100)
    assert folded.markers == ()
    later = view(ahead, listed(folded.time_ms, kills=folded.log_tombstones, merged=True))
    oldest = fold(later, as_of_ms=fold(later).horizon_ms)
    assert [marker.path for marker in oldest.live] == [data("z")], "neither x nor z: rows are missing from a past state"
    assert folded.time_ms == 501


def test_s1_the_name_counts_when_it_is_later_than_the_time_inside():
    foreign = listed(70, live("x"), live("y"), commit_id=None)
    foreign = replace(foreign, log=replace(foreign.log, time_ms=20))
    assert merge([foreign], inputs="xy", now=30).time_ms == 71


def test_m3_a_removal_carries_everything_else():
    other = live("other", partition="p=b")
    log = merge([listed(1, live("x"), live("y"), other, dead("d", 1))], inputs="xy", outputs=())
    markers = by_path(log)
    assert [path for path, marker in markers.items() if marker.is_live] == [other.path]
    assert data("d") in markers


def test_r3_the_horizon_is_carried():
    assert merge([listed(50, live("x"), live("y"), horizon_ms=44)], inputs="xy").horizon_ms == 44
    vanished = listed(50, live("x"), live("y"), kills=[kill(10, 45)], horizon_ms=44, merged=True)
    assert merge([vanished], inputs="xy").horizon_ms == 45
    assert merge([listed(1, live("x"), live("y"))], inputs="xy").horizon_ms is None


def test_fields_that_are_not_known_are_carried_from_all_lines():
    file = listed(1, live("x"), live("y"), live("other", extra={"a": 1}), extra={"b": 2})
    file = replace(file, log=replace(file.log, log_tombstones=(LogTombstone(log_key(0), 1, extra={"c": 3}),)))
    log = merge([file], inputs="xy")
    assert log.extra == {"b": 2}
    assert by_path(log)[data("other")].extra == {"a": 1}
    assert log.log_tombstones[0].extra == {"c": 3}


def test_batch_ids_stay_in_their_own_log_files():
    assert merge([listed(1, live("x"), live("y"), batch_ids=("b",))], inputs="xy").batch_ids == ()


def test_the_schema_of_the_whole_table_is_carried():
    files = [listed(1, live("x"), live("y"), schema={"a": "BIGINT"}), listed(2, schema={"b": "DATE"})]
    assert dict(merge(files, inputs="xy").schema) == {"a": "BIGINT", "b": "DATE"}


def test_s2_a_merge_logs_the_logged_types_and_carries_what_was_widened():
    files = [
        listed(1, live("x"), live("y"), schema={"a": "BIGINT", "b": "DATE"}),
        listed(2, schema={"a": "BIGINT"}, widened={"a": Widening("DOUBLE", 1)}),
    ]
    log = merge(files, inputs="xy")
    assert (dict(log.schema), dict(log.widened)) == ({"a": "BIGINT", "b": "DATE"}, {"a": Widening("DOUBLE", 1)})


names = st.sampled_from("uvwxyz")
histories = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 3), st.booleans()),
        st.tuples(st.just("merge"), st.sets(st.integers(0, 8), max_size=4), st.integers(0, 3)),
    ),
    max_size=12,
)


@given(histories)
def test_m1_without_the_log_files_that_died_the_table_is_the_same(steps):
    """Appends, and merges of any inputs that fold any log files; after each, the dead ones may go and nothing changes."""
    files = []
    for number, (what, choice, folds) in enumerate(steps, 1):
        time_ms = number * 10
        if what == "append":
            made = [live(f"f{number}x{i}", size=choice) for i in range(choice)]
            files.append(listed(time_ms, *made))
            continue
        before = fold(view(*files))
        inputs = tuple(before.live[i] for i in sorted(choice) if i < len(before.live))
        groups = [MergedGroup(MergeGroup("p=a", inputs), (live(f"m{number}"),), 1)] if inputs else []
        folded = [f.key for f in files if f.log.time_ms % (10 * folds) == 0] if folds else []
        log = build_merge_log(
            LogState.of(view(*files)), merged=groups, folded_log_keys=folded, commit_id="00", now_ms=time_ms
        )
        files.append(listed(log.time_ms, *log.markers, kills=log.log_tombstones, merged=True))
        after = fold(view(*files))
        gone = {m.path for m in inputs}
        outputs = {data(f"m{number}")} if inputs else set()
        assert {m.path for m in after.live} == ({m.path for m in before.live} - gone) | outputs
        kept = [f for f in files if f.key not in after.log_tombstoned_ms]
        alone = fold(view(*kept))
        assert alone.snapshot_id == after.snapshot_id
        assert alone.tombstoned_ms.keys() >= gone
        last = {}
        for file in sorted(files, key=lambda f: f.key):
            for marker in file.log.markers:
                last[marker.path] = marker.is_live
        assert {path for path, is_live in last.items() if is_live} == {m.path for m in after.live}
