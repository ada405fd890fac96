"""The task that purges: woken when it is time, carried on by itself, counted."""

import pytest
from icedb_janitor.metrics import JanitorMetrics
from icedb_janitor.settings import JanitorSettings
from icedb_janitor.tasks import JanitorTasks
from icedb_log.errors import Fenced, Unavailable
from icedb_log.intervals import MAX_REST_MS
from icedb_log.names import JANITOR_PURGE, JANITOR_VACUUM
from icedb_log.store.object_store import DeleteReport, FailedDelete, list_all
from icedb_log.table.stored_config import load_any_config
from icedb_log.trash.drop import DropRequest, drop_table
from icedb_service.redis_clients import LockBusy
from icedb_service.runs import backoff_key
from icedb_sim.rigs.task_context import MemoryContext
from structlog.testing import capture_logs

KEEP_MS = 600_000
SEAL_MS = 100_000


@pytest.fixture
def context():
    context = MemoryContext(JanitorMetrics())
    context.create_table("events", data_grace_ms=60_000, log_grace_ms=60_000, seal_age_ms=SEAL_MS)
    context.create_table("other")
    store, paths = context.warehouse.store, context.warehouse.table("events").paths
    for _ in range(25):
        store.put(paths.data_key(partition="", file_id=context.clock.new_id()), b"0123456789")
    return context


def make_tasks(context, **options):
    return JanitorTasks(context, settings=JanitorSettings(store="file:///tmp/w", **options), metrics=context.metrics)


def drop(context, *, force=False):
    request = DropRequest(keep_ms=KEEP_MS, is_forced=force)
    drop_table(context.warehouse.table("events"), clock=context.clock, request=request)


def state_of(context):
    return load_any_config(context.warehouse.table("events"))[0].dropped.state


def woken_purges(context, tasks):
    context.wakeups.woken.clear()
    tasks.sweep()
    return [table for task, table in context.wakeups.woken if task == JANITOR_PURGE]


def test_a_table_is_purged_when_its_time_in_the_trash_is_over(context):
    tasks = make_tasks(context)
    assert woken_purges(context, tasks) == []
    drop(context)
    assert woken_purges(context, tasks) == []
    assert tasks.purge("events").details["state"] == "kept"
    context.clock.advance(KEEP_MS + MAX_REST_MS)  # the sweep before the drop saw a table
    assert woken_purges(context, tasks) == ["events"]
    work = tasks.purge("events")
    assert (work.is_idle, work.details["state"], work.details["deleted_bytes"]) == (False, "purged", 250)
    assert context.metric("icedb_janitor_deleted_objects_total", kind="dropped_table") == work.details["deleted"] >= 25
    assert context.locked[-1] == "events"
    audit = list_all(context.warehouse.store, context.warehouse.table("events").paths.audit_prefix).objects
    assert len(audit) >= 1
    assert woken_purges(context, tasks) == []
    context.clock.advance(SEAL_MS)
    assert woken_purges(context, tasks) == ["events"]
    tasks.purge("events")
    assert woken_purges(context, tasks) == ["events"], "its audit has a retention"
    assert woken_purges(context, tasks) == []
    context.clock.advance(86_400_000)
    assert woken_purges(context, tasks) == ["events"]


def test_what_was_said_of_a_table_ends_with_it_so_that_no_alert_lasts_for_ever(context):
    tasks = make_tasks(context)
    context.clock.advance(30 * 86_400_000)
    tasks.sweep_orphans("events")  # no log names them
    context.metrics.halted.labels("events").set(1)
    context.metrics.halted.labels("other").set(1)
    held = {"name": "icedb_janitor_waiting_orphan_files", "table": "events", "guard": "share"}
    tasks.sweep()
    assert context.metric(**held) == 25
    context.clock.advance(MAX_REST_MS)
    drop(context)
    tasks.sweep()
    assert (context.metric(**held), context.metric("icedb_janitor_halted", table="events")) == (None, None)
    assert context.metric("icedb_janitor_halted", table="other") == 1


def test_a_purge_that_cannot_write_its_audit_deletes_nothing_and_says_so(context, monkeypatch):
    drop(context, force=True)
    tasks = make_tasks(context)
    store, prefix = context.warehouse.store, context.warehouse.table("events").paths.audit_prefix
    put = store.put

    def refuse(key, body):
        if key.startswith(prefix):
            raise Unavailable(key)
        return put(key, body)

    monkeypatch.setattr(store, "put", refuse)
    with pytest.raises(Unavailable):
        tasks.purge("events")
    assert context.metric("icedb_janitor_audit_failures_total", step="announce") == 1
    assert len(list_all(store, context.warehouse.table("events").paths.data_prefix).objects) == 25


def test_deletes_of_a_purge_that_fail_are_told_for_as_long_as_it_lasts(context, monkeypatch):
    drop(context, force=True)
    tasks = make_tasks(context)
    store = context.warehouse.store
    denied = DeleteReport((), (FailedDelete("k", "no", "denied"),))
    monkeypatch.setattr(store, "delete", lambda keys: denied)
    tasks.purge("events")
    tasks.sweep()
    assert context.metric("icedb_janitor_failing_since_timestamp_seconds", table="events") > 0
    monkeypatch.undo()
    tasks.purge("events")
    tasks.sweep()
    assert context.metric("icedb_janitor_failing_since_timestamp_seconds", table="events") is None


def test_a_purge_that_is_not_done_is_woken_by_itself_and_by_each_sweep(context, monkeypatch):
    drop(context, force=True)
    tasks = make_tasks(context)
    assert woken_purges(context, tasks) == ["events"]
    monkeypatch.setattr(tasks, "_purge_limits", tasks._purge_limits.__class__(run_ms=0, chunk_keys=10))
    context.wakeups.woken.clear()
    work = tasks.purge("events")
    assert (work.details["state"], work.details["deleted"]) == ("purging", 10)
    assert context.wakeups.woken == [(JANITOR_PURGE, "events")]
    for _ in range(5):
        work = tasks.purge("events")
    assert (work.details["state"], state_of(context)) == ("purged", "purged")


def test_deletes_that_fail_are_counted_and_left_to_the_next_sweep(context, monkeypatch):
    drop(context, force=True)
    tasks = make_tasks(context)
    store = context.warehouse.store
    monkeypatch.setattr(
        store,
        "delete",
        lambda keys: DeleteReport((), tuple(FailedDelete(key, "AccessDenied", "denied") for key in keys)),
    )
    work = tasks.purge("events")
    assert (work.details["state"], work.details["failed"], context.wakeups.woken) == ("purging", 25, [])
    assert context.metric("icedb_janitor_failed_deletes_total", kind="dropped_table", reason="denied") == 25
    monkeypatch.undo()
    assert woken_purges(context, tasks) == ["events"]
    assert tasks.purge("events").details["state"] == "purged"


def test_a_purge_stops_when_its_lock_is_lost_and_pauses_when_it_fails(context):
    drop(context, force=True)
    tasks = make_tasks(context)
    context.held.failure = Fenced("the lock is lost")
    with pytest.raises(Fenced):
        tasks.purge("events")
    context.held.failure = None
    context.busy.add("events")
    with pytest.raises(LockBusy):
        tasks.purge("events")
    context.runner.backoff.record_failure(backoff_key(JANITOR_PURGE, "events"))
    assert woken_purges(context, tasks) == []


def test_a_table_whose_configuration_does_not_answer_keeps_no_purge_and_no_vacuum_waiting(context, monkeypatch):
    for name in ("another", "zebra"):
        context.create_table(name)
    drop(context, force=True)
    tasks = make_tasks(context)
    store, get = context.warehouse.store, context.warehouse.store.get

    def answer(key, **options):
        if key.endswith("another/_icedb/table.json"):
            raise Unavailable(f"{key}: no answer")
        return get(key, **options)

    monkeypatch.setattr(store, "get", answer)
    context.wakeups.woken.clear()
    with capture_logs() as logs:
        tasks.sweep()
    assert (JANITOR_PURGE, "events") in context.wakeups.woken
    assert (JANITOR_VACUUM, "zebra") in context.wakeups.woken
    assert [line["table"] for line in logs if line["event"] == "purge_not_looked_for"] == ["another"]
