"""The tasks that remove partitions: what they remove, count and refuse, and when the sweep wakes retention."""

import pytest
from icedb_log.errors import InvalidRequest, Unavailable
from icedb_log.names import MERGE_RETAIN
from icedb_log.table.table_config import PartitionField
from icedb_log.units import DAY_MS, HOUR_MS
from icedb_merger.metrics import MergeMetrics
from icedb_merger.settings import MergerSettings
from icedb_merger.tasks import MergeTasks
from icedb_service.redis_clients import LockBusy, LockLost
from icedb_sim.rigs.task_context import MemoryContext

DAYS = ("2023-06-01", "2023-06-02", "2023-07-01")


@pytest.fixture
def context():
    return MemoryContext(MergeMetrics())


def create(context, name="events", **options):
    context.create_table(name, partition=(PartitionField.parse("d=day(ts)"),), **options)


def append(context, *days):
    context.commit([{"ts": day} for day in days])


def days(context):
    return sorted(row["ts"] for row in context.rows())


def make_tasks(context, **options):
    settings = MergerSettings(store="file:///tmp/w", **options)
    return MergeTasks(context, settings=settings, metrics=context.metrics)


def test_partitions_are_dropped_and_counted(context):
    create(context)
    append(context, *DAYS, "2023-06-01")
    tasks = make_tasks(context)
    work = tasks.drop_partitions("events", ["d=2023-06-*"])
    assert days(context) == ["2023-07-01"]
    assert work.details["committed_key"]
    assert (work.is_idle, work.details["partitions"], work.details["files"], work.details["rows"]) == (False, 2, 2, 3)
    assert work.details["paths"] == ["d=2023-06-01", "d=2023-06-02"]
    assert context.metric("icedb_merge_commits_total") == 1
    assert context.locked == ["events"]


def test_a_wrong_glob_removes_nothing(context):
    create(context)
    append(context, *DAYS)
    tasks = make_tasks(context)
    for globs in (["d=2024-*"], ["d=*"], ["nonsense"], "d=2023-06-01", [1], []):
        with pytest.raises(InvalidRequest):
            tasks.drop_partitions("events", globs)
    assert days(context) == sorted(DAYS)
    assert tasks.drop_partitions("events", ["d=*"], may_match_all=True).details["partitions"] == 3


def test_a_lost_lock_stops_a_removal(context):
    create(context)
    append(context, *DAYS)
    context.held.failure = LockLost("gone")
    tasks = make_tasks(context)
    with pytest.raises(LockLost):
        tasks.drop_partitions("events", ["d=2023-06-01"])
    assert days(context) == sorted(DAYS)


def test_retention_removes_what_has_expired_and_says_why_the_rest_stays(context):
    create(context, retention_ms=30 * DAY_MS)
    # The clock of the tests stands in November 2023.
    append(context, "2023-06-01", "2023-11-14", "nonsense", "2033-01-01")
    tasks = make_tasks(context)
    assert tasks.retain("events").details["kept_late"] == 1
    context.clock.advance(7 * HOUR_MS)
    work = tasks.retain("events")
    assert days(context) == ["2023-11-14", "2033-01-01", "nonsense"]
    assert (work.details["partitions"], work.details["rows"], work.details["paths"]) == (1, 1, ["d=2023-06-01"])
    for reason, count in {"young": 1, "late": 0, "future": 1, "null": 0, "unparsable": 1}.items():
        assert context.metric("icedb_merge_retention_kept_partitions", table="events", reason=reason) == count
        assert work.details[f"kept_{reason}"] == count
    assert tasks.retain("events").is_idle


def test_retention_of_most_of_a_table_is_refused_unless_forced(context):
    create(context, retention_ms=30 * DAY_MS)
    append(context, "2023-06-01", "2023-06-02", "2023-11-14")
    context.clock.advance(7 * HOUR_MS)
    tasks = make_tasks(context)
    with pytest.raises(InvalidRequest, match="allow it once"):
        tasks.retain("events")
    assert len(days(context)) == 3
    assert tasks.retain("events", force=True).details["partitions"] == 2
    assert days(context) == ["2023-11-14"]


def test_a_host_with_a_wrong_clock_removes_nothing(context):
    create(context, retention_ms=30 * DAY_MS)
    append(context, "2023-06-01", "2023-11-14")
    context.clock.advance(7 * HOUR_MS)
    store_now_ms = context.clock.now_ms()
    context.warehouse.store._now_ms = lambda: store_now_ms
    context.clock.advance(2 * HOUR_MS)
    tasks = make_tasks(context)
    with pytest.raises(Unavailable, match="clock"):
        tasks.retain("events")
    assert len(days(context)) == 2


def test_the_sweep_wakes_retention_now_and_then_where_there_is_one(context):
    create(context)
    create(context, "short", retention_ms=30 * DAY_MS)
    tasks = make_tasks(context, merge_retain_interval_ms=60_000)
    work = tasks.sweep()
    assert [task for task in context.wakeups.woken if task[0] == MERGE_RETAIN] == [(MERGE_RETAIN, "short")]
    assert work.details["woken_retention"] == 1
    context.wakeups.woken.clear()
    context.clock.advance(59_999)
    tasks.sweep()
    assert (MERGE_RETAIN, "short") not in context.wakeups.woken
    context.clock.advance(1)
    tasks.sweep()
    assert (MERGE_RETAIN, "short") in context.wakeups.woken

    context.wakeups.woken.clear()
    context.busy.add("short")
    with pytest.raises(LockBusy):
        tasks.retain("short")
    tasks.sweep()
    assert (MERGE_RETAIN, "short") in context.wakeups.woken, "a run that did not get its turn is tried again"
