"""The merge plan's promises: groups, lanes, bounds of runs and commits."""

from collections import defaultdict
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from icedb_log.ingest.pressure import Bounds
from icedb_log.merge import merge_plan
from icedb_log.merge.merge_plan import COLD_LIMITS, HOT_LIMITS, MergeIndex, MergeLimits, MergeOptions, plan_merge
from icedb_log.model import FileMarker
from icedb_log.table.table_config import TableConfig
from icedb_sim.tables.log_views import PATHS, data, dead, kill, listed, live, view

TARGET = 100_000


def configure(**fields):
    return TableConfig.create(name="t", **{"target_file_bytes": TARGET, "merge_fan_in": 4, **fields})


HOUR = 3_600_000


def plan(*files, full=False, limits=None, lane="hot", now=1_000_000, **config):
    seen = view(*files, now=now)
    return plan_merge(MergeIndex(PATHS, configure(**config)), seen, MergeOptions(lane, full, limits))


def of_sizes(*sizes, partition="p=a"):
    return [live(f"{partition[-1]}{number:04}", size=size, partition=partition) for number, size in enumerate(sizes)]


sizes = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, int(TARGET * 1.2))), max_size=40)
configs = st.fixed_dictionaries({"merge_fan_in": st.integers(2, 8), "target_file_bytes": st.just(TARGET)})


def markers_of(parts):
    return [
        live(f"{number:04}", size=size, partition=f"p={partition}") for number, (partition, size) in enumerate(parts)
    ]


@given(sizes, configs, st.booleans())
def test_groups_never_cross_partitions_and_take_no_file_twice(parts, config, full):
    made = plan(listed(1, *markers_of(parts)), full=full, **config)
    for group in made.groups:
        assert {PATHS.partition_of(marker.path) for marker in group.inputs} == {group.partition}
    paths = [marker.path for marker in made.inputs]
    assert len(paths) == len(set(paths))


@given(sizes, configs, st.booleans())
def test_mature_files_are_left_alone_and_groups_have_their_bounds(parts, config, full):
    made = plan(listed(1, *markers_of(parts)), full=full, **config)
    assert all(marker.size_bytes < TARGET for marker in made.inputs)
    for group in made.groups:
        assert len(group.inputs) >= 2
        assert group.size_bytes <= TARGET


@given(sizes, configs)
def test_a_full_merge_leaves_a_bounded_number_of_small_files(parts, config):
    made = plan(listed(1, *markers_of(parts)), full=True, **config)
    taken = {marker.path for marker in made.inputs}
    for partition in "abc":
        small = [size for part, size in parts if part == partition and size < TARGET]
        left = [m for m in markers_of(parts) if m.path not in taken and PATHS.partition_of(m.path) == f"p={partition}"]
        left = [m for m in left if m.size_bytes < TARGET]
        after = len(left) + sum(1 for group in made.groups if group.partition == f"p={partition}")
        assert after <= 2 * sum(small) / TARGET + 1


@given(sizes, configs, st.booleans(), st.randoms())
def test_the_plan_does_not_depend_on_the_order_of_the_log(parts, config, full, random):
    markers = markers_of(parts)
    first = plan(listed(1, *markers), full=full, **config)
    random.shuffle(markers)
    half = len(markers) // 2
    assert plan(listed(1, *markers[:half]), listed(2, *markers[half:]), full=full, **config).groups == first.groups


@given(sizes, configs, st.booleans(), st.integers(1, 5), st.integers(1, 5 * TARGET))
def test_limits_are_respected(parts, config, full, max_groups, max_bytes):
    everything = plan(listed(1, *markers_of(parts)), full=full, **config)
    limits = MergeLimits(max_groups=max_groups, max_bytes=max_bytes)
    made = plan(listed(1, *markers_of(parts)), full=full, limits=limits, **config)
    assert made.groups == everything.groups[: len(made.groups)]
    assert made.has_more == (len(made.groups) < len(everything.groups))
    assert len(made.groups) <= max_groups
    assert len(made.groups) <= 1 or sum(group.size_bytes for group in made.groups) <= max_bytes
    assert made.groups or not everything.groups


def test_a_tier_waits_until_it_has_as_many_files_as_the_fan_in():
    assert plan(listed(1, *of_sizes(10, 20, 30))).groups == ()
    (group,) = plan(listed(1, *of_sizes(10, 20, 30, 40))).groups
    assert len(group.inputs) == 4


def test_files_of_different_tiers_are_not_merged_together():
    small, large = of_sizes(10, 20, 30), of_sizes(60_000, partition="p=a")
    assert plan(listed(1, *small, replace(large[0], path=data("large")))).groups == ()


def test_a_mature_file_does_not_count_for_its_tier():
    assert plan(listed(1, *of_sizes(33_000, 33_000, 33_000, TARGET))).groups == ()
    assert len(plan(listed(1, *of_sizes(20_000, 20_000, 20_000, 20_000))).groups) == 1


def test_a_full_merge_takes_all_tiers():
    (group,) = plan(listed(1, *of_sizes(10, 9_000, 60_000)), full=True).groups
    assert len(group.inputs) == 3


def test_the_newest_partition_comes_first():
    files = [*of_sizes(1, 1, partition="p=a"), *of_sizes(1, 1, partition="p=c"), *of_sizes(1, 1, partition="p=b")]
    assert [group.partition for group in plan(listed(1, *files), full=True).groups] == ["p=c", "p=b", "p=a"]


def test_dead_files_are_no_inputs():
    made = plan(listed(1, *of_sizes(1, 1, 1, 1)), listed(2, dead("a0000", 2)), merge_fan_in=3)
    assert data("a0000") not in {marker.path for marker in made.inputs}


# -- lanes


def of_age(partition, count, *, created_ms, size=10):
    return [
        live(f"{partition}{n:03}", size=size, partition=f"p={partition}", created_ms=created_ms) for n in range(count)
    ]


def test_the_hot_lane_takes_partitions_with_the_newest_data_first():
    files = [*of_age("a", 4, created_ms=300), *of_age("b", 4, created_ms=100), *of_age("c", 4, created_ms=200)]
    assert [group.partition for group in plan(listed(1, *files)).groups] == ["p=a", "p=c", "p=b"]


def test_the_cold_lane_takes_partitions_that_rest_and_those_that_waited_longest_first():
    files = [*of_age("a", 2, created_ms=300), *of_age("b", 2, created_ms=100), *of_age("c", 2, created_ms=HOUR)]
    assert plan(listed(1, *files), now=HOUR + 99, lane="cold").groups == ()
    assert [group.partition for group in plan(listed(1, *files), now=HOUR + 100, lane="cold").groups] == ["p=b"]
    assert [group.partition for group in plan(listed(1, *files), now=HOUR + 300, lane="cold").groups] == ["p=b", "p=a"]


def test_a_partition_with_one_new_file_is_not_cold():
    files = [*of_age("a", 3, created_ms=1), live("new", created_ms=HOUR, partition="p=a")]
    assert plan(listed(1, *files), now=HOUR + 5, lane="cold").is_empty


def test_neither_lane_starves_the_other():
    # New partitions fill each hot run. What they leave is at the head of each cold run, and takes nothing from them.
    limits = MergeLimits(max_groups=3)
    hot = [marker for name in "vwxyz" for marker in of_age(name, 4, created_ms=HOUR)]
    cold = [marker for name in "abcde" for marker in of_age(name, 4, created_ms=1)]
    now = HOUR + 1
    assert {g.partition for g in plan(listed(1, *hot, *cold), now=now, limits=limits).groups} == {"p=z", "p=y", "p=x"}
    taken = plan(listed(1, *hot, *cold), now=now, limits=limits, lane="cold")
    assert [group.partition for group in taken.groups] == ["p=a", "p=b", "p=c"]
    assert taken.has_more


def test_a_cold_run_may_take_more_than_a_hot_one():
    assert COLD_LIMITS.max_bytes > HOT_LIMITS.max_bytes
    assert COLD_LIMITS.max_files > HOT_LIMITS.max_files
    files = [marker for number in range(HOT_LIMITS.max_groups + 1) for marker in of_age(f"a{number}", 4, created_ms=1)]
    assert plan(listed(1, *files), now=HOUR + 1).has_more
    assert not plan(listed(1, *files), now=HOUR + 1, lane="cold").has_more


# -- bounds of a run and of its commits


def test_a_run_is_bounded_by_files_too():
    files = [marker for name in "abc" for marker in of_age(name, 4, created_ms=1)]
    made = plan(listed(1, *files), limits=MergeLimits(max_files=8))
    assert (len(made.groups), made.has_more) == (2, True)


def test_a_run_is_cut_into_commits():
    files = [marker for name in "abcde" for marker in of_age(name, 4, created_ms=1)]
    made = plan(listed(1, *files), limits=MergeLimits(commit_bytes=80))
    assert [len(commit) for commit in made.commits] == [2, 2, 1]
    assert len(plan(listed(1, *files)).commits) == 1


def test_in_a_long_log_a_commit_has_to_replace_as_many_log_files_as_the_fan_in(monkeypatch):
    markers = [live(f"x{number}", size=TARGET) for number in range(4)]
    gone = [listed(10 + number, marker) for number, marker in enumerate(markers)]
    kills = [kill(10 + number, 20) for number in range(4)]
    crowd = [*gone, listed(20, *markers, merged=True, kills=kills, size_bytes=10**6)]
    due = listed(1, *of_sizes(1, 1, 1, 1))
    monkeypatch.setattr(merge_plan, "LOG_FILES", Bounds(10, 20))
    assert len(plan(due, *crowd).groups) == 1
    monkeypatch.setattr(merge_plan, "LOG_FILES", Bounds(9, 20))
    assert plan(due, *crowd).is_empty
    assert len(plan(due, *crowd, full=True).groups) == 1
    apart = [listed(number, marker) for number, marker in enumerate(of_sizes(1, 1, 1, 1), start=1)]
    assert len(plan(*apart, *crowd).groups) == 1


@pytest.mark.parametrize("slow", [2, 4, 400])
def test_log_files_that_stay_keep_no_merge_waiting(slow, monkeypatch):
    monkeypatch.setattr(merge_plan, "LOG_FILES", Bounds(slow, 800))
    stay = [listed(number, live(f"x{number}", size=TARGET), size_bytes=10**number) for number in range(5, 9)]
    due = listed(1, *of_sizes(1, 1, 1, 1))
    assert len(plan(due, *stay).groups) == 1


def test_an_index_that_is_kept_plans_as_a_new_one():
    config = configure()
    index = MergeIndex(PATHS, config)
    first, second = listed(1, *of_sizes(1, 1, 1)), listed(2, live("late", size=1))
    for seen in (view(first), view(first, second), view(second), view(first, second)):
        assert plan_merge(index, seen) == plan_merge(MergeIndex(PATHS, config), seen)


def test_partitions_are_told_from_keys_alone():
    groups = defaultdict(list)
    deep = FileMarker("wh/t/_data/d=1/u=2/x.parquet", 1, 1, row_count=1)
    other = FileMarker("wh/t/_data/d=1/u=2/y.parquet", 1, 1, row_count=1)
    flat = FileMarker("wh/t/_data/z.parquet", 1, 1, row_count=1)
    for group in plan(listed(1, deep, other, flat), full=True).groups:
        groups[group.partition] = [marker.path for marker in group.inputs]
    assert groups == {"d=1/u=2": [deep.path, other.path]}


def test_files_from_before_a_widening_come_first_whatever_their_size_and_alone_if_need_be():
    small, large = of_sizes(*[10] * 4, partition="p=a"), of_sizes(2 * TARGET, partition="p=b")
    other = of_sizes(*[10] * 4, partition="p=c")
    small[1] = replace(small[1], created_ms=6)
    large[0] = replace(large[0], created_ms=7)
    rest = [replace(marker, created_ms=8) for marker in (small[0], *small[2:], *other)]
    seen = view(listed(9, small[1], *large, *rest), now=1_000_000)
    index = MergeIndex(PATHS, configure())
    index.first_before_ms = 8
    for lane in ("hot", "cold"):
        made = plan_merge(index, seen, MergeOptions(lane, limits=MergeLimits(max_groups=2)))
        assert [[each.path for each in group.inputs] for group in made.groups] == [[small[1].path], [large[0].path]]
    made = plan_merge(index, seen)
    assert [len(group.inputs) for group in made.groups] == [1, 1, 4]
    assert {group.partition for group in made.groups} == {"p=a", "p=b", "p=c"}
    index.first_before_ms = 0
    assert sorted(len(group.inputs) for group in plan_merge(index, seen).groups) == [4, 4]
