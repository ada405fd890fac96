from collections import Counter

import pytest
from icedb_log.clock import new_batch_id
from icedb_log.errors import CorruptLog
from icedb_log.flush import flush_table
from icedb_log.fold import fold
from icedb_log.reader import LogReader
from icedb_log.staging import stage_batch
from icedb_log.testing.row_files import encode_rows, read_live_rows
from icedb_merger.metrics import MergeMetrics
from icedb_merger.settings import MergerSettings
from icedb_merger.tasks import MergeTasks
from icedb_service.names import MERGE_MERGE
from icedb_service.redlock import LockBusy, LockLost
from icedb_service.testing.task_context import MemoryContext


@pytest.fixture
def context():
    context = MemoryContext(MergeMetrics())
    context.create_table("events", merge_fan_in=4)
    return context


def make_tasks(context, **options):
    return MergeTasks(context, settings=MergerSettings(store="file:///tmp/w", **options), metrics=context.metrics)


def append(context, count, table="events"):
    store, paths = context.warehouse.store, context.warehouse.table(table)
    for number in range(count):
        body = encode_rows([{"n": number}])
        stage_batch(store, paths, body=body, staging_format="ndjson", batch_id=new_batch_id(context.clock))
        flush_table(store, paths, clock=context.clock, writer=context.engine.writer, owner="test")
        context.clock.advance(1)


def snapshot(context, table="events"):
    return fold(LogReader(context.warehouse.store, context.warehouse.table(table), clock=context.clock).read())


def rows(context):
    return Counter(row["n"] for row in read_live_rows(context.warehouse.store, snapshot(context)))


def test_small_files_become_one_and_no_row_is_lost(context):
    append(context, 8)
    before = rows(context)
    work = make_tasks(context).merge("events")
    assert not work.is_idle
    assert len(snapshot(context).live) == 1
    assert rows(context) == before
    assert (work.details["files_in"], work.details["files_out"], work.details["rows"]) == (8, 1, 8)
    assert context.metric("icedb_merge_files_total", direction="in") == 8
    assert context.metric("icedb_merge_files_total", direction="out") == 1
    assert context.metric("icedb_merge_rows_total") == 8
    assert context.metric("icedb_merge_bytes_total", direction="in") == work.details["bytes_in"] > 0
    assert context.metric("icedb_merge_folded_log_files_total") == work.details["folded_log_files"] == 8
    assert context.locked == ["events"]


def test_a_table_that_is_not_worth_it_is_idle_unless_asked_in_full(context):
    append(context, 2)
    tasks = make_tasks(context)
    assert tasks.merge("events").is_idle
    assert len(snapshot(context).live) == 2
    assert tasks.merge("events", full=True).details["files_in"] == 2
    assert len(snapshot(context).live) == 1


def test_after_its_rounds_a_table_makes_room_for_others(context):
    append(context, 8)
    work = make_tasks(context, merge_max_rounds=1).merge("events")
    assert work.details["has_more"]
    assert context.wakeups.woken == [(MERGE_MERGE, "events")]
    context.wakeups.woken.clear()
    assert not make_tasks(context, merge_max_rounds=2).merge("events").details["has_more"]
    assert context.wakeups.woken == []


def test_a_held_lock_skips_the_run(context):
    append(context, 8)
    context.busy.add("events")
    with pytest.raises(LockBusy):
        make_tasks(context).merge("events")
    assert len(snapshot(context).live) == 8


def test_a_lock_that_is_lost_stops_the_run_before_its_commit(context):
    append(context, 8)

    class LosingMerger:
        def merge_groups(self, job):
            merged = inner.merge_groups(job)
            context.held.failure = LockLost("gone")
            return merged

    inner, context.engine.merger = context.engine.merger, LosingMerger()
    before = snapshot(context).snapshot_id
    with pytest.raises(LockLost):
        make_tasks(context).merge("events")
    assert snapshot(context).snapshot_id == before


def test_a_corrupt_log_stops_its_table_and_the_sweep_goes_on(context):
    context.create_table("broken")
    paths = context.warehouse.table("broken")
    key = paths.log_key(time_ms=1, commit_id="ab", is_merged=False)
    context.warehouse.store.put(key, b"garbage")
    tasks = make_tasks(context)
    with pytest.raises(CorruptLog, match=key):
        tasks.merge("broken")
    context.runner.run(lambda: tasks.merge("broken"), task=MERGE_MERGE, task_id="1", table="broken")
    assert context.metric("icedb_merge_halted", table="broken") == 1
    work = tasks.sweep()
    assert context.wakeups.woken == [(MERGE_MERGE, "events")]
    assert work.details["pausing"] == 1
