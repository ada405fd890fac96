from collections import Counter
from dataclasses import replace

import pytest
from icedb_log.changes.table_changes import alter_table_config
from icedb_log.errors import CorruptLog, Unavailable
from icedb_log.jobs import ContentCheck
from icedb_log.merge.merge import MergeResult
from icedb_log.names import MERGE_COLD, MERGE_MERGE
from icedb_log.table.stored_config import read_table_config
from icedb_log.table.table_config import PartitionField
from icedb_log.units import MINUTE_MS
from icedb_merger.metrics import MergeMetrics
from icedb_merger.settings import MergerSettings
from icedb_merger.tasks import HOT_LIMITS, MergeTasks
from icedb_service.redis_clients import LockBusy, LockLost
from icedb_sim.rigs.task_context import MemoryContext
from icedb_sim.tables.row_files import RowFileMerger


@pytest.fixture
def context():
    context = MemoryContext(MergeMetrics())
    context.create_table("events", merge_fan_in=4)
    return context


def make_tasks(context, **options):
    return MergeTasks(context, settings=MergerSettings(store="file:///tmp/w", **options), metrics=context.metrics)


def append(context, count):
    for number in range(count):
        context.commit([{"n": number}])


def rows(context):
    return Counter(row["n"] for row in context.rows())


def test_small_files_become_one_and_no_row_is_lost(context):
    append(context, 8)
    before = rows(context)
    work = make_tasks(context).merge("events")
    assert not work.is_idle
    assert len(context.snapshot().live) == 1
    assert rows(context) == before
    assert (work.details["files_in"], work.details["files_out"], work.details["rows"]) == (8, 1, 8)
    assert context.metric("icedb_merge_files_total", direction="in") == 8
    assert context.metric("icedb_merge_files_total", direction="out") == 1
    assert context.metric("icedb_merge_bytes_total", direction="in") == work.details["bytes_in"] > 0
    assert context.metric("icedb_merge_folded_log_files_total") == work.details["folded_log_files"] == 8
    assert context.wakeups.announced[8:] == ["events"] * work.details["commits"]
    assert context.locked == ["events"]


def test_a_table_that_is_not_worth_it_is_idle_unless_asked_in_full(context):
    append(context, 2)
    tasks = make_tasks(context)
    assert tasks.merge("events").is_idle
    assert len(context.snapshot().live) == 2
    assert tasks.merge("events", full=True).details["files_in"] == 2
    assert len(context.snapshot().live) == 1


class SlowMerger:
    """Takes a minute for each job."""

    def __init__(self, context):
        self.context, self.inner, self.jobs = context, context.engine.merger, []

    def merge_groups(self, job):
        self.jobs.append((job.paths.name, len(job.groups)))
        self.context.clock.advance(60_000)
        return self.inner.merge_groups(job)


def test_after_its_time_a_table_makes_room_for_others(context):
    append(context, 8)
    context.engine.merger = SlowMerger(context)
    work = make_tasks(context).merge("events")
    assert (work.details["has_more"], work.details["commits"]) == (True, 1)
    assert context.wakeups.woken == [(MERGE_MERGE, "events")]
    assert context.metric("icedb_merge_turns_total", lane="hot", end="time") == 1
    context.wakeups.woken.clear()
    assert not make_tasks(context).merge("events").details["has_more"]
    assert context.wakeups.woken == []
    assert context.metric("icedb_merge_turns_total", lane="hot", end="done") == 1


class SampledMerger:
    """Finds the same texts in all files."""

    def __init__(self, context):
        self.inner, self.merge_groups, self.sample_count = context.engine.merger, context.engine.merger.merge_groups, 0

    def sample_texts(self, table, files, column):
        self.sample_count += 1
        return ['{"plan": "pro"}'] * 100


@pytest.fixture
def small_turns(monkeypatch):
    monkeypatch.setattr("icedb_merger.tasks.HOT_LIMITS", replace(HOT_LIMITS, max_bytes=1))


@pytest.mark.usefixtures("small_turns")
def test_a_turn_looks_once_for_paths_that_are_to_be_promoted(context):
    context.create_table("web", declared={"p": "VARCHAR"}, promoted_below=(("p",),), merge_fan_in=2)
    for number in range(8):
        context.commit([{"n": number}], table="web")
    merger = context.engine.merger = SampledMerger(context)
    assert make_tasks(context).merge("web").details["commits"] > 0
    assert (merger.sample_count, read_table_config(context.warehouse.table("web")).promoted) == (
        1,
        {"p__plan": ("p", "plan")},
    )
    append(context, 1)
    make_tasks(context).merge("events")
    assert merger.sample_count == 1, "a table that promotes nothing by itself is not looked at"


@pytest.mark.usefixtures("small_turns")
def test_after_its_amount_a_table_makes_room_for_others(context):
    append(context, 8)
    assert make_tasks(context).merge("events").details["has_more"]
    assert context.metric("icedb_merge_turns_total", lane="hot", end="amount") == 1


def test_a_table_is_merged_by_its_configuration_as_it_is_now(context):
    append(context, 3)
    tasks = make_tasks(context)
    assert tasks.sweep().is_idle
    table = context.warehouse.table("events")
    alter_table_config(table, {"merge_fan_in": 2}, clock=context.clock)
    tasks.sweep()
    assert (MERGE_MERGE, "events") in context.wakeups.woken
    assert tasks.merge("events").details["files_in"] == 3


def test_each_figure_of_a_merge_is_counted_as_what_it_is(context):
    figures = MergeResult(
        commit_count=1, group_count=2, input_count=3, output_count=4, input_bytes=5, output_bytes=6, row_count=7,
        copied_bytes=8, decoded_row_count=9, folded_log_count=10, misfit_count=11,
    )  # fmt: skip
    context.metrics.record(figures)
    names = ("commits", "folded_log_files", "promoted_misfits")
    assert [context.metric(f"icedb_merge_{name}_total") for name in names] == [1, 10, 11]
    for name, counts in (("files", [3, 4]), ("bytes", [5, 6])):
        found = [context.metric(f"icedb_merge_{name}_total", direction=each) for each in ("in", "out")]
        assert found == counts


def test_a_large_table_does_not_hold_the_workers(context):
    context.create_table("large", merge_fan_in=4, partition=(PartitionField(name="p", column="p"),))
    rows_of_large = [{"n": number, "p": f"p{number:02}"} for number in range(30)]
    for _ in range(4):
        context.commit(rows_of_large, table="large")
    append(context, 4)
    context.engine.merger = SlowMerger(context)
    tasks = make_tasks(context, merge_commit_bytes=1)
    queue, turns = [(MERGE_MERGE, "large"), (MERGE_MERGE, "events")], []
    while queue:
        _, table = queue.pop(0)
        context.wakeups.woken.clear()
        turns.append(table)
        assert tasks.merge(table).details["commits"] <= 1
        queue += context.wakeups.woken
    assert turns[:3] == ["large", "events", "large"]
    assert turns.count("large") == 31
    assert len(context.snapshot("events").live) == 1
    assert len(context.snapshot("large").live) == 30
    # Progress is never lost: each partition was merged once.
    assert sorted(count for _, count in context.engine.merger.jobs) == [1] * 31


def test_a_full_merge_takes_turns_too_and_whoever_asked_goes_on(context):
    append(context, 2)
    context.engine.merger = SlowMerger(context)
    tasks = make_tasks(context)
    assert tasks.merge("events", full=True).details["has_more"]
    assert context.wakeups.woken == []
    assert not tasks.merge("events", full=True).details["has_more"]


def test_the_cold_lane_merges_what_rests(context):
    append(context, 2)
    tasks = make_tasks(context)
    assert tasks.cold("events").is_idle
    context.clock.advance(3_600_000)
    work = tasks.cold("events")
    assert (work.details["files_in"], work.details["has_more"]) == (2, False)


def test_a_cold_turn_that_is_over_goes_on_later(context):
    append(context, 2)
    context.clock.advance(3_600_000)
    context.engine.merger = SlowMerger(context)
    assert make_tasks(context).cold("events").details["has_more"]
    assert context.wakeups.woken == [(MERGE_COLD, "events")]


def test_a_sweep_wakes_tables_that_have_something_to_do(context):
    context.create_table("quiet")
    append(context, 3)
    tasks = make_tasks(context)
    assert tasks.sweep().is_idle
    append(context, 1)
    assert not tasks.sweep().is_idle
    assert context.wakeups.woken == [(MERGE_MERGE, "events")]


def test_a_table_whose_merge_failed_rests_no_more(context):
    tasks = make_tasks(context)
    for _ in range(120):
        context.clock.advance(MINUTE_MS)
        tasks.sweep()
    append(context, 4)
    context.busy.add("events")
    with pytest.raises(LockBusy):
        tasks.merge("events")
    context.wakeups.woken.clear()
    tasks.sweep()
    assert context.wakeups.woken == [(MERGE_MERGE, "events")]


def test_a_sweep_looks_for_cold_merges_once_in_an_interval(context):
    append(context, 2)
    tasks = make_tasks(context, merge_cold_interval_ms=600_000)
    tasks.sweep()
    context.clock.advance(3_600_000)
    assert tasks.sweep().details["woken_cold"] == 1
    context.clock.advance(599_999)
    assert tasks.sweep().details["woken_cold"] == 0
    context.clock.advance(1)
    assert tasks.sweep().details["woken_cold"] == 1
    assert context.wakeups.woken == [(MERGE_COLD, "events")] * 2


def test_commits_that_have_landed_are_counted_whatever_stops_the_turn(context):
    context.create_table("wide", merge_fan_in=4, partition=(PartitionField(name="p", column="p"),))
    for _ in range(4):
        context.commit([{"n": 1, "p": "a"}, {"n": 2, "p": "b"}], table="wide")

    class LosingMerger(SlowMerger):
        def merge_groups(self, job):
            if self.jobs:
                context.held.failure = LockLost("gone")
            return super().merge_groups(job)

    context.engine.merger = LosingMerger(context)
    with pytest.raises(LockLost):
        make_tasks(context, merge_commit_bytes=1, merge_turn_ms=10**9).merge("wide")
    assert len(context.snapshot("wide").live) == 1 + 4
    assert context.metric("icedb_merge_turns_total", lane="hot", end="stopped") == 1


def test_a_held_lock_skips_the_run(context):
    append(context, 8)
    context.busy.add("events")
    with pytest.raises(LockBusy):
        make_tasks(context).merge("events")
    assert len(context.snapshot().live) == 8


def test_a_lock_that_is_lost_stops_the_run_before_its_commit(context):
    append(context, 8)

    class LosingMerger:
        def merge_groups(self, job):
            merged = inner.merge_groups(job)
            context.held.failure = LockLost("gone")
            return merged

    inner, context.engine.merger = context.engine.merger, LosingMerger()
    before = context.snapshot().snapshot_id
    tasks = make_tasks(context)
    with pytest.raises(LockLost):
        tasks.merge("events")
    assert context.snapshot().snapshot_id == before
    assert not tasks._index_of(context.open("events")).log.files, "what a run leaves behind that broke off is made anew"


def test_a_corrupt_log_stops_its_table_and_the_sweep_goes_on(context):
    context.create_table("broken")
    paths = context.warehouse.table("broken").paths
    key = paths.log_key(time_ms=1, commit_id="ab", is_merged=False)
    context.warehouse.store.put(key, b"garbage")
    tasks = make_tasks(context)
    with pytest.raises(CorruptLog, match=key):
        tasks.merge("broken")
    context.runner.run(lambda: tasks.merge("broken"), task=MERGE_MERGE, task_id="1", table="broken")
    assert context.metric("icedb_merge_halted", table="broken") == 1
    append(context, 4)
    work = tasks.sweep()
    assert context.wakeups.woken == [(MERGE_MERGE, "events")]
    assert work.details["pausing"] == 1


def test_what_footers_prove_is_counted_and_a_difference_commits_nothing(context, monkeypatch):
    append(context, 8)
    found = [ContentCheck(5, 1, ("column 'n' has 0 nulls in the inputs and 8 in the outputs",)), ContentCheck(6)]
    merge_groups = RowFileMerger.merge_groups
    monkeypatch.setattr(
        RowFileMerger,
        "merge_groups",
        lambda merger, job: tuple(replace(group, contents=found.pop(0)) for group in merge_groups(merger, job)),
    )
    before = context.snapshot()
    with pytest.raises(Unavailable, match="wrote other values than it read"):
        make_tasks(context).merge("events")
    assert context.snapshot() == before
    assert context.metric("icedb_merge_commits_total") == 0
    assert make_tasks(context).merge("events").details["files_in"] == 8
    counts = [context.metric("icedb_merge_content_checks_total", result=r) for r in ("equal", "unproven", "differs")]
    assert counts == [11, 1, 1]
