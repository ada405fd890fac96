"""An explanation says what the plan does, and why it does nothing."""

from hypothesis import given, settings
from hypothesis import strategies as st
from icedb_log.ingest.pressure import Bounds
from icedb_log.merge import merge_plan
from icedb_log.merge.merge_explain import explain_merge, say_why_not
from icedb_log.merge.merge_plan import MergeIndex, MergeLimits, MergeOptions, plan_merge
from icedb_log.table.table_config import TableConfig
from icedb_sim.tables.log_views import PATHS, kill, listed, live, view

TARGET = 100_000
HOUR = 3_600_000
UNBOUNDED = MergeLimits(max_groups=10**9, max_files=10**9, max_bytes=1 << 60, commit_bytes=1 << 60)


def configure(**fields):
    return TableConfig.create(name="t", **{"target_file_bytes": TARGET, "merge_fan_in": 3, **fields})


def explain(*files, now=HOUR - 1, full=False, **fields):
    return explain_merge(MergeIndex(PATHS, configure(**fields)), view(*files, now=now), full=full)


def partition_of(*sizes, created_ms=1, **options):
    markers = [live(f"{number:03}", size=size, created_ms=created_ms) for number, size in enumerate(sizes)]
    (found,) = explain(listed(1, *markers), **options).partitions
    return found


files = st.lists(
    st.tuples(st.sampled_from("abcd"), st.integers(1, int(TARGET * 1.2)), st.sampled_from((1, HOUR))), max_size=40
)


@settings(max_examples=80, deadline=None)
@given(files, st.integers(1, 3), st.sampled_from((100, 1_000_000)), st.booleans())
def test_what_is_explained_as_merged_is_what_the_plan_merges(files, log_count, log_bytes, full):
    markers = [
        live(f"{number:03}", size=size, partition=f"p={name}", created_ms=at)
        for number, (name, size, at) in enumerate(files)
    ]
    logs = [listed(n + 1, *markers[n::log_count], size_bytes=log_bytes) for n in range(log_count)]
    seen, config = view(*logs, now=HOUR + 5), configure()
    explained = explain_merge(MergeIndex(PATHS, config), seen, full=full)
    groups = [group for found in explained.partitions for group in found.groups]
    for lane in ("hot",) if full else ("hot", "cold"):
        planned = plan_merge(MergeIndex(PATHS, config), seen, MergeOptions(lane, full, UNBOUNDED)).groups
        assert {group.paths for group in groups if group.lane == lane and group.when != "log"} == {
            tuple(marker.path for marker in group.inputs) for group in planned
        }
        bounded = plan_merge(MergeIndex(PATHS, config), seen, MergeOptions(lane, full)).groups
        assert {group.paths for group in groups if group.lane == lane and group.when == "now"} == {
            tuple(marker.path for marker in group.inputs) for group in bounded
        }
    # Every live file is accounted for, and every partition has one reason.
    assert sum(found.file_count for found in explained.partitions) == len(files)
    for found in explained.partitions:
        assert (say_why_not(found.reason, fan_in=3) == "") == (found.reason == "merge") == bool(found.groups)
        assert found.mature_count + sum(found.tiers.values()) == found.file_count


def test_each_reason():
    assert partition_of(TARGET, TARGET).reason == "mature"
    assert partition_of(TARGET, 10).reason == "one_file"
    assert partition_of(10, 20).reason == "cold"
    assert partition_of(10, 50_000).reason == "fan_in"
    assert partition_of(10, 50_000, now=HOUR + 1).reason == "settled"
    assert partition_of(10, 20, 30).reason == "merge"


def test_a_group_says_its_lane_its_tier_and_its_size():
    found = partition_of(10, 20, 9_000, 30_000, 31_000, 32_000)
    (group,) = found.groups
    assert (group.lane, group.when, group.tier, group.file_count, group.size_bytes) == ("hot", "now", 2, 3, 93_000)
    assert dict(found.tiers) == {0: 2, 1: 1, 2: 3}
    (cold,) = partition_of(10, 20, now=HOUR + 1).groups
    assert (cold.lane, cold.when) == ("cold", "now")


def test_what_does_not_fit_into_a_run_comes_in_the_next():
    markers = [live(f"{n}_{m}", size=1, partition=f"p={n}") for n in range(1100) for m in range(3)]
    found = explain(listed(1, *markers)).partitions
    assert [partition.groups[0].when for partition in found] == ["now"] * 1024 + ["next_run"] * 76


def test_the_log_is_explained_too():
    explained = explain(*(listed(n, live(f"x{n}", size=TARGET)) for n in range(1, 4)), listed(9, size_bytes=300_000))
    small, large = explained.log_tiers
    assert (small.file_count, small.size_bytes, small.folded_count) == (3, 300, 3)
    assert (large.file_count, large.folded_count) == (1, 0)
    assert (explained.log_file_count, explained.log_fan_in, explained.waits) == (4, 3, False)


def test_a_long_log_is_said_to_hold_the_run_back(monkeypatch):
    markers = [live(f"x{n}", size=TARGET) for n in range(3)]
    gone = [listed(n, marker) for n, marker in enumerate(markers, start=1)]
    kills = [kill(n, 5) for n in range(1, 4)]
    crowd = [*gone, listed(5, *markers, merged=True, kills=kills, size_bytes=10**6)]
    due = listed(9, *(live(f"y{n}", size=1, partition="p=b") for n in range(3)))
    monkeypatch.setattr(merge_plan, "LOG_FILES", Bounds(6, 12))
    assert explain(due, *crowd).waits
    monkeypatch.setattr(merge_plan, "LOG_FILES", Bounds(8, 12))
    assert not explain(due, *crowd).waits
