"""Which log files a commit of the merger folds."""

import pytest
from icedb_log.commit.merge_log import build_merge_log
from icedb_log.log.state import LogState
from icedb_log.merge.log_folding import (
    DATA_PER_LOG,
    FREE_LOG_BYTES,
    LOG_REST_MS,
    MARKER_BYTES,
    PAYS_FOR,
    log_fan_in,
    log_tier_of,
    plan_fold,
)
from icedb_log.merge.merge_plan import QUIET_MS, WORTH_BYTES, MergeIndex, MergeOptions, plan_merge
from icedb_log.table.table_config import TableConfig
from icedb_sim.tables.log_views import PATHS, dead, kill, listed, live, log_key, view

TARGET = 100_000
KIB = 1024


def configure(**fields):
    return TableConfig.create(name="t", **{"target_file_bytes": TARGET, "merge_fan_in": 4, **fields})


def plan(*files, now=1_000_000, **config):
    return plan_merge(MergeIndex(PATHS, configure(**config)), view(*files, now=now))


def mature(number):
    return live(f"x{number}", size=TARGET)


def small(count, prefix="a"):
    return [live(f"{prefix}{number:04}", size=10) for number in range(count)]


def fold_of(*files, inputs=(), fan_in=4, now=1_000_000):
    return sorted(plan_fold(LogState.of(view(*files)), inputs, fan_in=fan_in, now_ms=now))


def sized(*sizes):
    return [listed(number, size_bytes=size) for number, size in enumerate(sizes, start=1)]


def test_a_log_file_of_a_tier_is_as_many_times_larger_as_the_fan_in():
    assert [log_tier_of(size, 4) for size in (1, 4 * KIB, 5 * KIB, 16 * KIB, 20 * KIB, 256 * KIB)] == [0, 0, 1, 1, 2, 3]


def test_the_fan_in_of_the_log_has_a_bound_of_its_own():
    assert (log_fan_in(configure(merge_fan_in=3)), log_fan_in(configure(merge_fan_in=500))) == (3, 8)


def test_a_tier_is_folded_when_it_has_as_many_log_files_as_the_fan_in():
    logs = [listed(number, mature(number)) for number in range(1, 5)]
    assert plan(*logs[:3]).is_empty
    made = plan(*logs)
    assert (made.groups, made.folded_log_keys) == ((), tuple(log_key(number) for number in range(1, 5)))


def test_only_log_files_of_one_size_are_folded_together():
    made = fold_of(*sized(10, 500 * KIB, 100 * KIB, 100 * KIB, 100 * KIB, 100 * KIB))
    assert made == [log_key(number) for number in (3, 4, 5, 6)]
    assert fold_of(*sized(10, 10, 10, 500 * KIB)) == []
    assert len(fold_of(*sized(*[10] * 4, *[100 * KIB] * 4))) == 8


def test_dead_log_files_and_seals_are_not_folded():
    made = plan(
        listed(1, mature(1)),
        listed(2, is_seal=True),
        *(listed(number, mature(number)) for number in (4, 5, 6)),
        listed(9, mature(1), kills=[kill(1, 9)], merged=True),
    )
    assert made.folded_log_keys == (*(log_key(number) for number in (4, 5, 6)), log_key(9, merged=True))


def test_folding_comes_to_an_end():
    logs = [listed(number, mature(number)) for number in range(1, 5)]
    keys = plan(*logs).folded_log_keys
    log = build_merge_log(LogState.of(view(*logs)), merged=[], folded_log_keys=keys, commit_id="ab", now_ms=50)
    merged = listed(50, *log.markers, kills=log.log_tombstones, merged=True)
    assert plan(*logs, merged).is_empty


# -- log files that list dead data files as live

LARGE = 1024 * KIB
PAYING = LARGE // (PAYS_FOR * MARKER_BYTES)


def test_a_merge_folds_the_small_log_files_that_name_its_inputs_and_no_others():
    made = plan(listed(1, *small(4)), listed(2, live("other", partition="p=z")))
    assert (len(made.groups), made.folded_log_keys) == (1, (log_key(1),))


def test_a_merge_leaves_a_large_log_file_that_names_its_inputs_as_it_is():
    made = plan(listed(1, *small(4), size_bytes=LARGE))
    assert (len(made.groups), made.folded_log_keys) == (1, ())


def test_a_merge_that_leaves_a_large_log_file_behind_waits_for_log_files_to_fold_while_appends_come():
    large = listed(1, *small(4), size_bytes=LARGE)
    appends = [listed(number, mature(number)) for number in range(2, 6)]
    now = appends[-1].log.time_ms + QUIET_MS
    waits = plan(large, *appends[:3], now=now - 2)
    assert (waits.is_empty, len(waits.ready)) == (True, 1)
    made = plan(large, *appends, now=now - 2)
    assert (len(made.groups), len(made.folded_log_keys)) == (1, 4)
    assert len(plan(large, *appends[:3], now=now).groups) == 1, "nothing comes any more"
    assert len(plan(large, *appends[:3], now=1).groups) == 1, "by a clock that is wrong nothing waits"
    much = [live(f"a{number:04}", size=WORTH_BYTES // 4) for number in range(4)]
    made = plan(listed(1, *much, size_bytes=LARGE), *appends[:3], now=now - 2, target_file_bytes=WORTH_BYTES)
    assert len(made.groups) == 1, "that moves much data"
    assert len(plan(listed(1, *small(4)), *appends[:3], now=now - 2).groups) == 1, "and nothing is left behind"
    seen = view(listed(1, *small(2), size_bytes=LARGE), *appends[:3], now=now - 2)
    for options in (MergeOptions("cold", cold_after_ms=1_000), MergeOptions(full=True)):
        index = MergeIndex(PATHS, configure())
        assert len(plan_merge(index, seen, options).groups) == 1, options


def test_up_to_a_size_a_log_file_is_folded_for_one_data_file():
    (input_,) = files = small(1)
    assert fold_of(listed(1, *files, size_bytes=FREE_LOG_BYTES), inputs=[input_]) == [log_key(1)]
    assert fold_of(listed(1, *files, size_bytes=FREE_LOG_BYTES + 1), inputs=[input_]) == []


@pytest.mark.parametrize("is_dead_already", [False, True])
@pytest.mark.parametrize(
    ("why", "count", "size", "now"),
    [
        ("a quarter of what it names is dead", PAYING, 10, 10**6),
        ("they are much data", 1, DATA_PER_LOG * LARGE, 10**6),
        ("it was not rewritten for a day", 1, 10, LOG_REST_MS + 1),
    ],
)
def test_a_large_log_file_is_folded_when_it_pays(why, count, size, now, is_dead_already):
    files = [live(f"a{number:04}", size=size) for number in range(count)]

    def folded(count, size_bytes=LARGE, now=now):
        large = listed(1, *files, size_bytes=size_bytes)
        if not is_dead_already:
            return fold_of(large, inputs=files[:count], now=now)
        told = listed(9, *(dead(f"a{number:04}", 9) for number in range(count)), merged=True, size_bytes=4 * LARGE)
        return fold_of(large, told, now=now)

    assert folded(count) == [log_key(1)], why
    assert folded(count - 1) == []
    if now > LOG_REST_MS:
        assert folded(count, now=now - 1) == []
    else:
        assert folded(count, size_bytes=LARGE + 1024) == []


def test_what_a_dead_log_file_lists_or_what_is_live_is_no_reason():
    both = small(2)
    killer = listed(9, *both, kills=[kill(1, 9)], merged=True, size_bytes=LARGE)
    assert fold_of(listed(1, *both), killer) == []
    told = listed(9, *both, *(dead("gone", 9),), merged=True, size_bytes=LARGE)
    assert fold_of(listed(1, *both), told) == []


def test_a_dead_data_file_that_a_log_file_lists_as_live_is_left_out_of_the_fold_and_that_is_the_end():
    large, told = listed(1, *small(2), size_bytes=10), listed(9, dead("a0000", 9), merged=True, size_bytes=LARGE)
    made = plan(large, told)
    assert (made.groups, made.folded_log_keys) == ((), (log_key(1),))
    log = build_merge_log(
        LogState.of(view(large, told)), merged=[], folded_log_keys=made.folded_log_keys, commit_id="ab", now_ms=50
    )
    assert log.markers == tuple(small(2)[1:])
    assert plan(large, told, listed(50, *log.markers, kills=log.log_tombstones, merged=True)).is_empty


def test_each_commit_of_a_run_folds_what_names_its_own_inputs():
    index = MergeIndex(PATHS, configure())
    index.update(view(listed(1, *small(4, "a")), listed(2, *[live(f"b{n}", partition="p=b") for n in range(4)])))
    (first, second) = index.find_ready()
    assert {index.find_due_logs([each]) for each in (first, second)} == {
        frozenset([log_key(1)]),
        frozenset([log_key(2)]),
    }
    assert index.find_due_logs([first, second]) == {log_key(1), log_key(2)}


def test_the_cold_lane_does_not_run_to_fold():
    logs = view(*(listed(number, mature(number)) for number in range(1, 5)))
    assert plan_merge(MergeIndex(PATHS, configure()), logs, MergeOptions("cold")).is_empty
    assert not plan_merge(MergeIndex(PATHS, configure()), logs).is_empty
