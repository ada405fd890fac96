"""Which files of a partition are merged, and how often a row is rewritten."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from icedb_log.merge.merge_policy import (
    MIN_GROWTH,
    SMALLEST_TIER_BYTES,
    plan_full,
    plan_settling,
    plan_tiers,
    tier_of,
)
from icedb_log.table.table_config import TableConfig
from icedb_sim.tables.log_views import live

MIB = 2**20


def configure(**fields):
    return TableConfig.create(name="t", **{"target_file_bytes": 8 * MIB, "merge_fan_in": 4, **fields})


def files(*sizes):
    return [live(f"{number:04}", size=size) for number, size in enumerate(sizes)]


def sizes_of(groups):
    return [sorted(marker.size_bytes for marker in group.inputs) for group in groups]


@given(st.integers(2, 10), st.integers(1, 2**40))
def test_a_file_of_a_tier_is_as_many_times_larger_as_the_fan_in(fan_in, size):
    tier = tier_of(size, fan_in)
    assert size < (SMALLEST_TIER_BYTES + 1) * fan_in**tier
    assert tier == 0 or size >= (SMALLEST_TIER_BYTES + 1) * fan_in ** (tier - 1)


def test_a_group_may_be_as_large_as_the_target_and_has_at_most_so_many_files():
    exact = configure(target_file_bytes=2000)
    assert sizes_of(plan_full("p", files(1000, 1000, 1000), exact)) == [[1000, 1000]]
    few = configure(max_files_per_group=2)
    assert sizes_of(plan_full("p", files(1, 2, 3, 4, 5), few)) == [[1, 2], [3, 4]]
    late = configure(target_file_bytes=2000, max_files_per_group=1000)
    assert sizes_of(plan_full("p", files(0, 0, 1999, 1999), late)) == [[0, 0, 1999]]


def test_a_group_that_the_target_size_cuts_has_to_grow():
    config = configure(target_file_bytes=1100, merge_fan_in=4)
    assert sizes_of(plan_tiers("p", files(450, 450, 450, 450), config)) == [[450, 450]]
    assert plan_tiers("p", files(90, 1010, 1020, 1030), config) == ()


def test_a_rest_below_the_fan_in_waits_also_when_other_files_of_its_tier_are_merged():
    config = configure(merge_fan_in=3, max_files_per_group=3)
    assert sizes_of(plan_tiers("p", files(1, 2, 3, 4, 5), config)) == [[1, 2, 3]]


def test_a_settling_partition_is_merged_whatever_the_tiers():
    assert sizes_of(plan_settling("p", files(10, 20_000, 15_000, 60_000), configure())) == [
        [10, 15_000, 20_000, 60_000]
    ]


def test_a_settling_partition_does_not_rewrite_a_large_file_for_a_little():
    assert sizes_of(plan_settling("p", files(10, 10, 5 * MIB), configure())) == [[10, 10]]
    assert plan_settling("p", files(10, 5 * MIB), configure()) == ()
    assert plan_settling("p", files(10), configure()) == ()


@given(st.lists(st.integers(1, 9 * MIB), max_size=60))
def test_a_partition_that_has_settled_has_few_files(sizes):
    config = configure()
    left = [size for size in sizes if size < config.target_file_bytes]
    for _ in range(20):
        groups = plan_settling("p", files(*left), config)
        if not groups:
            break
        for group in groups:
            for marker in group.inputs:
                left.remove(marker.size_bytes)
            if group.size_bytes < config.target_file_bytes:
                left.append(group.size_bytes)
    assert plan_settling("p", files(*left), config) == ()
    total = sum(sizes)
    assert len(left) <= 2 * total / config.target_file_bytes + math.log2(config.target_file_bytes) + 2


@given(st.lists(st.integers(1, 100_000), min_size=1, max_size=80), st.integers(2, 20))
def test_full_merges_bring_a_partition_below_the_target_size_to_one_file(sizes, max_files):
    config = configure(max_files_per_group=max_files)
    left = list(sizes)
    for _ in range(10):
        groups = plan_full("p", files(*left), config)
        for group in groups:
            for marker in group.inputs:
                left.remove(marker.size_bytes)
            left.append(group.size_bytes)
    assert left == [sum(sizes)]


def bound_on_rewrites(*, fan_in, smallest, target):
    """Climb every tier once; in the smallest tier once for each fan-in - 1 files; in the last one by growing."""
    tiers = tier_of(target - 1, fan_in)
    in_smallest = SMALLEST_TIER_BYTES / (smallest * (fan_in - 1)) + 1
    in_last = math.log(fan_in, MIN_GROWTH) + 1
    return tiers + in_smallest + in_last


appends = st.lists(st.tuples(st.integers(2_000, 60_000), st.booleans()), min_size=1, max_size=400)


def replay(history, config, *, settles=False):
    """Append files and merge as the policy says; return the live sizes, the depth of each, and the bytes rewritten."""
    sizes, depths, rewritten = {}, {}, 0
    for number, (size, merges) in enumerate(history):
        sizes[f"n{number}"], depths[f"n{number}"] = size, 0
        is_cold = settles and merges and number % 7 == 0
        plan = plan_settling if is_cold else plan_tiers
        while merges:
            groups = plan("p", [live(name, size=size) for name, size in sizes.items()], config)
            for group in groups:
                names = [marker.path.rpartition("/")[2].removesuffix(".parquet") for marker in group.inputs]
                output = f"m{len(depths)}"
                depths[output] = 1 + max(depths[name] for name in names)
                sizes[output] = sum(sizes.pop(name) for name in names)
                rewritten += group.size_bytes
            if not groups or is_cold:
                break
    return sizes, {name: depths[name] for name in sizes}, rewritten


@settings(max_examples=60, deadline=None)
@given(appends, st.sampled_from((2, 4, 8)))
def test_a_row_is_rewritten_at_most_about_log_times(history, fan_in):
    config = configure(merge_fan_in=fan_in, target_file_bytes=MIB)
    _, depths, rewritten = replay(history, config)
    bound = bound_on_rewrites(fan_in=fan_in, smallest=2_000, target=MIB)
    assert max(depths.values()) <= bound
    assert rewritten <= bound * sum(size for size, _ in history)


@settings(max_examples=40, deadline=None)
@given(appends)
def test_settling_in_between_rewrites_a_row_a_bounded_number_of_times(history):
    # An output of a settling merge is at least half as large again as any of its inputs.
    config = configure(merge_fan_in=4, target_file_bytes=MIB)
    _, depths, _ = replay(history, config, settles=True)
    settling = math.log(MIB / 2_000, MIN_GROWTH) + 1
    assert max(depths.values()) <= bound_on_rewrites(fan_in=4, smallest=2_000, target=MIB) + settling


@pytest.mark.parametrize("fan_in", [2, 4, 8])
@pytest.mark.parametrize("size", [500, 10_000])
def test_equal_appends_reach_the_logarithm_and_leave_few_files(fan_in, size):
    count = 1000
    config = configure(merge_fan_in=fan_in, target_file_bytes=64 * MIB)
    sizes, depths, rewritten = replay([(size, True)] * count, config)
    levels = math.log(count, fan_in)
    in_smallest_tier = SMALLEST_TIER_BYTES / (size * (fan_in - 1))
    assert max(depths.values()) <= levels + in_smallest_tier + 1
    assert rewritten / (count * size) <= levels + in_smallest_tier + 1
    assert len(sizes) <= fan_in * (levels + 1)
