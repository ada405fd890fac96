import pytest
from icedb_janitor.metrics import JanitorMetrics, kinds_of_failures
from icedb_janitor.settings import JanitorSettings
from icedb_janitor.tasks import JanitorTasks
from icedb_log.clock import new_batch_id
from icedb_log.commit.fence import FenceState, read_fence, write_fence
from icedb_log.commit.table import Table
from icedb_log.ingest.flush import flush_table
from icedb_log.ingest.idempotency import KEEP_MS
from icedb_log.ingest.staging import stage_batch
from icedb_log.log.codec import encode_log_file
from icedb_log.merge.merge import merge_table
from icedb_log.merge.merge_plan import MergeOptions
from icedb_log.model import LogFile
from icedb_log.names import JANITOR_VACUUM
from icedb_log.store.object_store import DeleteReport, FailedDelete, list_all
from icedb_service.redis_clients import LockBusy
from icedb_sim.rigs.task_context import MemoryContext
from icedb_sim.tables.row_files import encode_rows
from structlog.testing import capture_logs

GRACE_MS = 60_000


@pytest.fixture
def context():
    context = MemoryContext(JanitorMetrics())
    context.create_table(
        "events", merge_fan_in=2, data_grace_ms=GRACE_MS, log_grace_ms=GRACE_MS, orphan_age_ms=10 * GRACE_MS
    )
    return context


def make_tasks(context, **options):
    return JanitorTasks(context, settings=JanitorSettings(store="file:///tmp/w", **options), metrics=context.metrics)


def fill_and_merge(context, count=4):
    table = context.warehouse.table("events")
    for number in range(count):
        body = encode_rows([{"n": number}])
        stage_batch(table, body=body, staging_format="ndjson", batch_id=new_batch_id(context.clock))
        flush_table(open_table(context), context.engine.writer)
        context.clock.advance(10)
    merge_table(open_table(context), context.engine.merger, options=MergeOptions(full=True))


def open_table(context):
    return Table.open(context.warehouse.table("events"), clock=context.clock, owner="test")


def data_keys(context):
    return [
        o.key for o in list_all(context.warehouse.store, context.warehouse.table("events").paths.data_prefix).objects
    ]


def log_keys(context):
    return [
        o.key for o in list_all(context.warehouse.store, context.warehouse.table("events").paths.log_prefix).objects
    ]


def test_what_is_dead_goes_when_its_grace_period_is_over_and_not_before(context):
    fill_and_merge(context)
    tasks = make_tasks(context)
    work = tasks.vacuum("events")
    assert work.is_idle
    assert len(data_keys(context)) == 5
    assert (
        context.metric("icedb_janitor_waiting_objects", table="events", guard="grace") == work.details["waiting"] == 8
    )
    assert context.metric("icedb_janitor_waiting_objects", table="events", guard="lease") == 0
    context.clock.advance(GRACE_MS + 1000)
    work = tasks.vacuum("events")
    assert not work.is_idle
    assert (len(data_keys(context)), len(log_keys(context))) == (1, 1)
    assert (work.details["deleted_data_files"], work.details["deleted_log_files"]) == (4, 4)
    assert context.metric("icedb_janitor_deleted_objects_total", kind="data_file") == 4
    assert context.metric("icedb_janitor_deleted_objects_total", kind="log_file") == 4
    assert context.metric("icedb_janitor_waiting_objects", table="events", guard="grace") == 0
    assert tasks.vacuum("events").is_idle


def orphan_metric(context, guard):
    return context.metric("icedb_janitor_waiting_orphan_files", table="events", guard=guard)


def test_orphans_are_looked_for_at_first_and_then_rarely(context):
    fill_and_merge(context)
    paths = context.warehouse.table("events").paths
    orphan = paths.data_key(partition="", file_id="ab")
    context.warehouse.store.put(orphan, b"x")
    tasks = make_tasks(context, orphan_sweep_interval_ms=3_600_000)
    assert tasks.vacuum("events").details["young_orphans"] == 1
    assert orphan_metric(context, "age") == 1
    context.clock.advance(11 * GRACE_MS)
    assert "young_orphans" not in tasks.vacuum("events").details
    assert orphan in data_keys(context)
    context.clock.advance(3_600_000)
    work = tasks.vacuum("events")
    assert (work.is_idle, work.details["deleted_orphans"]) == (False, 1)
    assert orphan not in data_keys(context)
    assert context.metric("icedb_janitor_deleted_objects_total", kind="orphan") == 1
    assert orphan_metric(context, "age") == 0


def test_too_many_orphans_and_objects_of_no_kind_are_held_and_counted(context):
    paths = context.warehouse.table("events").paths
    context.warehouse.store.put(paths.data_key(partition="", file_id="ab"), b"all that is there")
    context.warehouse.store.put(f"{paths.prefix}/notes.txt", b"mine")
    tasks = make_tasks(context, orphan_sweep_interval_ms=1000)
    for _ in range(3):
        context.clock.advance(11 * GRACE_MS)
        details = tasks.vacuum("events").details
    assert (details["deleted_orphans"], details["held_orphans"], details["unknown_objects"]) == (0, 1, 1)
    assert orphan_metric(context, "share") == 1
    assert context.metric("icedb_janitor_unknown_objects", table="events") == 1


def test_a_lost_commit_is_counted_and_logged_by_each_vacuum(context):
    """F5: the fence says that it landed, and the log does not have it."""
    paths = context.warehouse.table("events").paths
    store, key = context.warehouse.store, paths.fence_key("merge")
    state, etag = read_fence(store, key)
    epoch = 1 if state is None else state.epoch
    name = f"{context.clock.now_ms():013d}_{'ab' * 16}"
    write_fence(store, key, FenceState(epoch, "me", None, 99, landed=(name,)), etag=etag, clock=context.clock)
    tasks = make_tasks(context, orphan_sweep_interval_ms=1000)
    tasks.vacuum("events")
    assert context.metric("icedb_janitor_lost_commits", table="events") == 1
    context.clock.advance(1000)
    with capture_logs() as logs:
        assert tasks.vacuum("events").details["lost_commits"] == 1
    assert [each["names"] for each in logs if each["event"] == "commits_lost"] == [(name,)]
    log = LogFile(int(name[:13]), commit_id="ab" * 16)
    store.put(f"{paths.log_prefix}{name}.jsonl", encode_log_file(log))
    context.clock.advance(1000)
    tasks.vacuum("events")
    assert context.metric("icedb_janitor_lost_commits", table="events") == 0


def test_keys_of_producers_are_forgotten_after_a_day(context):
    paths = context.warehouse.table("events").paths
    context.warehouse.store.put(paths.idempotency_key("ab" * 32), b"x")
    tasks = make_tasks(context, orphan_sweep_interval_ms=3_600_000)
    assert tasks.vacuum("events").details["deleted_leftovers"] == 0
    context.clock.advance(KEEP_MS)
    assert tasks.vacuum("events").details["deleted_leftovers"] == 1
    assert context.metric("icedb_janitor_deleted_objects_total", kind="idempotency_key") == 1


def test_deletes_that_fail_are_counted_by_kind_and_reason_and_come_again(context, monkeypatch):
    fill_and_merge(context)
    context.clock.advance(GRACE_MS + 1000)
    store = context.warehouse.store
    delete = store.delete

    def refuse_data(keys):
        kept = [key for key in keys if "/_data/" in key]
        report = delete([key for key in keys if key not in kept])
        return DeleteReport(report.deleted, tuple(FailedDelete(key, "AccessDenied", "denied") for key in kept))

    monkeypatch.setattr(store, "delete", refuse_data)
    tasks = make_tasks(context)
    assert tasks.vacuum("events").details["failed"] == 4
    assert context.metric("icedb_janitor_failed_deletes_total", kind="data_file", reason="denied") == 4
    assert context.metric("icedb_janitor_failed_deletes_total", kind="log_file", reason="denied") == 0
    assert context.metric("icedb_janitor_deleted_objects_total", kind="data_file") == 0
    assert context.metric("icedb_janitor_deleted_objects_total", kind="log_file") == 4
    since = context.metric("icedb_janitor_failing_since_timestamp_seconds", table="events")
    assert since == context.clock.now_ms() / 1000
    context.clock.advance(GRACE_MS)
    tasks.vacuum("events")
    assert context.metric("icedb_janitor_failing_since_timestamp_seconds", table="events") == since
    monkeypatch.undo()
    assert tasks.vacuum("events").details["deleted_data_files"] == 4
    assert context.metric("icedb_janitor_failing_since_timestamp_seconds", table="events") == 0


def test_deletes_that_fail_again_have_failed_since_then_and_not_since_the_first_time(context, monkeypatch):
    tasks, store, denied = (
        make_tasks(context),
        context.warehouse.store,
        DeleteReport((), (FailedDelete("k", "no", "denied"),)),
    )

    def failing_since():
        return context.metric("icedb_janitor_failing_since_timestamp_seconds", table="events")

    for is_dropped in (False, True):
        for refuses in (True, False, True):
            fill_and_merge(context)
            context.clock.advance(GRACE_MS + 1000)
            with monkeypatch.context() as patch:
                if refuses:
                    patch.setattr(store, "delete", lambda keys: denied)
                tasks.vacuum("events")
            assert failing_since() == (context.clock.now_ms() / 1000 if refuses else 0)
        context.metrics.forget_tables([])
        assert failing_since() is None, is_dropped


def test_failures_are_told_apart_by_their_keys(context):
    paths = context.warehouse.table("events").paths
    keys = [f"{paths.log_prefix}x", f"{paths.staging_prefix}y", f"{paths.data_prefix}z", f"{paths.data_prefix}w"]
    kinds = kinds_of_failures(paths, [FailedDelete(key, "no", "throttled") for key in keys])
    assert kinds == {("log_file", "throttled"): 1, ("staged_batch", "throttled"): 1, ("data_file", "throttled"): 2}


def test_a_held_lock_skips_the_run_and_the_sweep_wakes_every_table(context):
    context.create_table("other")
    context.busy.add("events")
    tasks = make_tasks(context)
    with pytest.raises(LockBusy):
        tasks.vacuum("events")
    tasks.sweep()
    assert context.wakeups.woken == [(JANITOR_VACUUM, "events"), (JANITOR_VACUUM, "other")]
