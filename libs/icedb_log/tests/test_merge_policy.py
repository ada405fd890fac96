"""Which files of a partition are merged, and how often a row is rewritten."""

import math
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
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

MIB = 2**20


def configure(**fields):
    return TableConfig.create(name="t", **{"target_file_bytes": 8 * MIB, "merge_fan_in": 4, **fields})


def groups_of(max_files):
    return patch("icedb_log.merge.merge_policy.MAX_FILES", max_files)


def planned(plan, *sizes, config):
    """The sizes of each group, smallest first."""
    return [sorted(sizes[at] for at in group) for group in plan(sizes, config)]


@given(st.integers(2, 10), st.integers(1, 2**40))
def test_a_file_of_a_tier_is_as_many_times_larger_as_the_fan_in(fan_in, size):
    tier = tier_of(size, fan_in)
    assert size < (SMALLEST_TIER_BYTES + 1) * fan_in**tier
    assert tier == 0 or size >= (SMALLEST_TIER_BYTES + 1) * fan_in ** (tier - 1)


def test_a_group_may_be_as_large_as_the_target_and_has_at_most_so_many_files():
    exact = configure(target_file_bytes=2000)
    assert planned(plan_full, 1000, 1000, 1000, config=exact) == [[1000, 1000]]
    with groups_of(2):
        assert planned(plan_full, 1, 2, 3, 4, 5, config=configure()) == [[1, 2], [3, 4]]
    assert planned(plan_full, 0, 0, 1999, 1999, config=exact) == [[0, 0, 1999]]


def test_a_group_that_the_target_size_cuts_has_to_grow():
    config = configure(target_file_bytes=1100, merge_fan_in=4)
    assert planned(plan_tiers, 450, 450, 450, 450, config=config) == [[450, 450]]
    assert planned(plan_tiers, 90, 1010, 1020, 1030, config=config) == []


def test_a_rest_below_the_fan_in_waits_also_when_other_files_of_its_tier_are_merged():
    with groups_of(3):
        assert planned(plan_tiers, 1, 2, 3, 4, 5, config=configure(merge_fan_in=3)) == [[1, 2, 3]]


def test_a_settling_partition_is_merged_whatever_the_tiers():
    assert planned(plan_settling, 10, 20_000, 15_000, 60_000, config=configure()) == [[10, 15_000, 20_000, 60_000]]


def test_a_settling_partition_does_not_rewrite_a_large_file_for_a_little():
    assert planned(plan_settling, 10, 10, 5 * MIB, config=configure()) == [[10, 10]]
    assert planned(plan_settling, 10, 5 * MIB, config=configure()) == []
    assert planned(plan_settling, 10, config=configure()) == []


@given(st.lists(st.integers(1, 9 * MIB), max_size=60))
def test_a_partition_that_has_settled_has_few_files(sizes):
    config = configure()
    left = [size for size in sizes if size < config.target_file_bytes]
    for _ in range(20):
        groups = planned(plan_settling, *left, config=config)
        if not groups:
            break
        for group in groups:
            for size in group:
                left.remove(size)
            if sum(group) < config.target_file_bytes:
                left.append(sum(group))
    assert planned(plan_settling, *left, config=config) == []
    total = sum(sizes)
    assert len(left) <= 2 * total / config.target_file_bytes + math.log2(config.target_file_bytes) + 2


@given(st.lists(st.integers(1, 100_000), min_size=1, max_size=80), st.integers(2, 20))
def test_full_merges_bring_a_partition_below_the_target_size_to_one_file(sizes, max_files):
    left = list(sizes)
    for _ in range(10):
        with groups_of(max_files):
            groups = planned(plan_full, *left, config=configure())
        for group in groups:
            for size in group:
                left.remove(size)
            left.append(sum(group))
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
            there = sorted(sizes)
            groups = plan([sizes[name] for name in there], config)
            for group in groups:
                names = [there[at] for at in group]
                output = f"m{len(depths)}"
                depths[output] = 1 + max(depths[name] for name in names)
                sizes[output] = sum(sizes.pop(name) for name in names)
                rewritten += sizes[output]
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


def plan_by_pairs(kind, sizes, config, max_files):
    """The same policy, said file by file over pairs of size and place."""
    left = sorted((size, at) for at, size in enumerate(sizes) if size < config.target_file_bytes)
    if kind == "full":
        return [group for group in cut(left, config, max_files) if len(group) >= 2]
    if kind == "settling":
        chosen, pending, total = [], [], 0
        for size, at in left:
            pending.append((size, at))
            if size <= 2 * total:
                chosen, pending = chosen + pending, []
            total += size
        return [group for group in cut(chosen, config, max_files) if grows(group)]
    groups = []
    for tier in sorted({tier_of(size, config.merge_fan_in) for size, _ in left}):
        files = [pair for pair in left if tier_of(pair[0], config.merge_fan_in) == tier]
        if len(files) >= config.merge_fan_in:
            *full, rest = cut(files, config, max_files)
            groups += [group for group in full if len(group) >= config.merge_fan_in or grows(group)]
            groups += [rest] if len(rest) >= config.merge_fan_in else []
    return groups


def cut(pairs, config, max_files):
    groups = []
    for pair in pairs:
        last = groups[-1] if groups else []
        fits = sum(size for size, _ in last) + pair[0] <= config.target_file_bytes
        if last and fits and len(last) < max_files:
            last.append(pair)
        else:
            groups.append([pair])
    return groups


def grows(group):
    sizes = [size for size, _ in group]
    return len(sizes) >= 2 and sum(sizes) >= MIN_GROWTH * max(sizes)


@given(
    st.sampled_from((("tiers", plan_tiers), ("settling", plan_settling), ("full", plan_full))),
    st.lists(
        st.one_of(st.integers(0, 50), st.integers(0, 120_000), st.sampled_from((9_000, 99_999, 100_000))), max_size=60
    ),
    st.integers(2, 8),
    st.integers(2, 12),
)
@example(("settling", plan_settling), [2, 1], 2, 12)  # grows by just so much
def test_groups_by_places_are_those_that_are_made_file_by_file(kind, sizes, fan_in, max_files):
    config = configure(target_file_bytes=100_000, merge_fan_in=fan_in)
    name, plan = kind
    expected = [sorted(at for _, at in group) for group in plan_by_pairs(name, sizes, config, max_files)]
    with groups_of(max_files):
        assert [list(group) for group in plan(sizes, config)] == expected
