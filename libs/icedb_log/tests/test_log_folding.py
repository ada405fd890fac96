"""Which log files a commit involves, and which merges wait for theirs."""

from itertools import combinations

import pytest
from icedb_log.jobs import MergeGroup
from icedb_log.log.state import LogState
from icedb_log.merge.log_folding import (
    FREE_LOG_BYTES,
    LOG_REST_MS,
    MARKER_BYTES,
    PAYS_FOR,
    Wanted,
    find_reach,
    folded_along,
    log_fan_in,
    log_tier_of,
    plan_fold,
    reach_of,
    tiers_of_logs,
)
from icedb_log.merge.merge_log import build_merge_log
from icedb_log.merge.merge_plan import MergeIndex, MergeOptions, plan_merge
from icedb_log.table.table_config import TableConfig
from icedb_sim.tables.log_views import PATHS, kill, listed, live, log_key, view

TARGET = 100_000
KIB = 1024


def configure(**fields):
    return TableConfig.create(name="t", **{"target_file_bytes": TARGET, "merge_fan_in": 4, **fields})


def plan(*files, now=1_000_000, **config):
    return plan_merge(MergeIndex(PATHS, configure(**config)), view(*files, now=now))


def waiting(*files, now=1_000_000):
    index = MergeIndex(PATHS, configure())
    index.update(view(*files, now=now))
    return index.find_ready().waiting


def mature(number):
    return live(f"x{number}", size=TARGET)


def small(count, prefix="a"):
    return [live(f"{prefix}{number:04}", size=10) for number in range(count)]


def fold_of(*sizes, wanted=None, fan_in=4, now=1_000_000):
    files = [listed(number, size_bytes=size) for number, size in enumerate(sizes, start=1)]
    return plan_fold(files, wanted or Wanted({}, {}), fan_in=fan_in, now_ms=now)


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
    made = fold_of(10, 500 * KIB, 100 * KIB, 100 * KIB, 100 * KIB, 100 * KIB)
    assert made.due_keys == tuple(log_key(number) for number in (3, 4, 5, 6))
    assert fold_of(10, 10, 10, 500 * KIB).due_keys == ()
    assert len(fold_of(*[10] * 4, *[100 * KIB] * 4).due_keys) == 8


def test_a_merge_involves_no_other_log_file_of_its_tier():
    made = plan(listed(1, *small(4)), listed(2, live("other", partition="p=z")))
    assert (len(made.groups), made.folded_log_keys) == (1, ())


def test_log_files_that_pay_for_a_larger_one_go_into_it():
    due = listed(1, *small(4), size_bytes=200 * KIB)
    files = [listed(2, mature(2)), listed(3, mature(3), size_bytes=60 * KIB), listed(4, mature(4))]
    assert plan(due, *files).folded_log_keys == (log_key(2), log_key(3), log_key(4))
    assert plan(due, *files, now=LOG_REST_MS + 1).folded_log_keys == ()  # it pays for itself
    assert folded_along(files, reach=0, fan_in=4) == ()


def test_dead_log_files_and_seals_are_not_folded():
    made = plan(
        listed(1, mature(1)),
        listed(2, is_seal=True),
        *(listed(number, mature(number)) for number in (4, 5, 6)),
        listed(9, mature(1), kills=[kill(1, 9)], merged=True),
    )
    assert made.folded_log_keys == (*(log_key(number) for number in (4, 5, 6)), log_key(9, merged=True))


@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 100_000, 1), (1, 20_000, 100_000), (100_000, 20_000, 1)])
def test_the_reach_of_groups_is_the_same_file_by_file_and_for_a_whole_folder(sizes):
    """Also of files that two log files name, in whichever order."""
    files = small(6)
    named = (files[:3], files[2:5], files[4:])
    state = LogState.of(
        view(*(listed(n, *some, size_bytes=size) for n, (some, size) in enumerate(zip(named, sizes), 1)))
    )
    tiers = tiers_of_logs(state, 4)
    assert sorted(tiers.values()) == sorted(log_tier_of(size, 4) for size in sizes)
    (folder,) = {name for name, _ in state.folders()}
    find = find_reach(state.folder(folder), tiers)
    for first, last in combinations(range(7), 2):
        group = MergeGroup("p=a", tuple(files[first:last]))
        assert find(range(first, last)) == reach_of(group, state, tiers), (first, last)


def test_folding_comes_to_an_end():
    logs = [listed(number, mature(number)) for number in range(1, 5)]
    keys = plan(*logs).folded_log_keys
    log = build_merge_log(LogState.of(view(*logs)), merged=[], folded_log_keys=keys, commit_id="ab", now_ms=50)
    merged = listed(50, *log.markers, kills=log.log_tombstones, merged=True)
    assert plan(*logs, merged).is_empty


# -- a large log file is rewritten when it pays

LARGE = 1024 * KIB
PAYING = LARGE // (PAYS_FOR * MARKER_BYTES)


def test_a_small_log_file_is_free_and_a_large_one_is_not():
    assert (fold_of(FREE_LOG_BYTES).reach, fold_of(FREE_LOG_BYTES).min_inputs) == (2, 0)
    assert fold_of(LARGE).reach == 0
    assert len(plan(listed(1, *small(4), size_bytes=FREE_LOG_BYTES)).groups) == 1
    assert plan(listed(1, *small(4), size_bytes=LARGE)).is_empty
    assert len(waiting(listed(1, *small(4), size_bytes=LARGE))) == 1


@pytest.mark.parametrize(
    ("why", "files", "now"),
    [
        (
            "it is to be folded anyway",
            [listed(number, mature(number), size_bytes=LARGE) for number in (2, 3, 4)],
            10**6,
        ),
        ("the tiers below hold a quarter of it", [listed(2, mature(2), size_bytes=LARGE // 4)], 10**6),
        ("it has rested", [], LOG_REST_MS + 1),
    ],
)
def test_a_merge_that_waits_for_its_log_file_goes_on_when(why, files, now):
    due = listed(1, *small(4), size_bytes=LARGE)
    assert not plan(due, *files, now=now).is_empty, why
    assert waiting(due, *files, now=now) == ()


def test_what_is_just_too_little_does_not_pay():
    due = listed(1, *small(4), size_bytes=LARGE)
    assert plan(due, listed(2, mature(2), size_bytes=LARGE // 4 - 1), now=LOG_REST_MS).is_empty
    assert fold_of(LARGE, wanted=Wanted({4: PAYING - 1}, {4: 16 * LARGE - 1})).reach == 0


def test_a_log_file_that_rests_and_that_nothing_asks_for_frees_nothing_below_it():
    now = LOG_REST_MS + 1000
    young, old = listed(now - 1, size_bytes=512 * KIB), listed(1, size_bytes=512 * KIB)
    settled = listed(2, size_bytes=65_536 * KIB)
    tier = log_tier_of(512 * KIB, 4)
    wanted = Wanted({tier: 8}, {tier: 80})
    assert plan_fold([young, settled], wanted, fan_in=4, now_ms=now).reach < tier
    assert plan_fold([old, settled], wanted, fan_in=4, now_ms=now).reach == tier


def test_many_inputs_or_much_data_pay():
    tier = log_tier_of(LARGE, 4)
    for wanted in (Wanted({tier: PAYING}, {}), Wanted({tier: 1}, {tier: 16 * LARGE})):
        made = fold_of(LARGE, wanted=wanted)
        assert (made.reach, made.min_inputs, made.min_bytes) == (tier, PAYING, 16 * LARGE)


def test_merges_of_small_log_files_go_on_while_others_wait():
    waits, goes = (
        listed(1, *small(4, "a"), size_bytes=LARGE),
        listed(2, *[live(f"b{n}", partition="p=b") for n in range(4)]),
    )
    assert [group.partition for group in plan(waits, goes).groups] == ["p=b"]
    assert [group.partition for group in waiting(waits, goes)] == ["p=a"]


def test_a_full_merge_waits_for_nothing():
    seen = view(listed(1, *small(2), size_bytes=LARGE))
    assert len(plan_merge(MergeIndex(PATHS, configure()), seen, MergeOptions(full=True)).groups) == 1


def test_merges_that_wait_come_to_an_end_while_appends_come():
    # A quarter of the large log file in new ones is enough, whatever they are about.
    due = listed(1, *small(4), size_bytes=LARGE)
    appends = [listed(number, mature(number), size_bytes=60 * KIB) for number in (2, 3, 4)]
    assert plan(due, *appends).is_empty
    made = plan(due, *appends, listed(5, mature(5), size_bytes=80 * KIB))
    assert (len(made.groups), len(made.folded_log_keys)) == (1, 4)


def test_the_cold_lane_does_not_run_to_fold():
    logs = view(*(listed(number, mature(number)) for number in range(1, 5)))
    assert plan_merge(MergeIndex(PATHS, configure()), logs, MergeOptions("cold")).is_empty
    assert not plan_merge(MergeIndex(PATHS, configure()), logs).is_empty
