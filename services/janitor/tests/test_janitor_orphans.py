"""The task that a person asks for: orphans now, with other bounds; and when the others are due."""

import pytest
from icedb_janitor.metrics import JanitorMetrics
from icedb_janitor.settings import JanitorSettings
from icedb_janitor.tasks import JanitorTasks
from icedb_log.errors import InvalidRequest, Unavailable
from icedb_log.ingest.idempotency import KEEP_MS
from icedb_log.keys import PROBE_FOLDER
from icedb_log.store.object_store import list_all
from icedb_log.units import DAY_MS
from icedb_sim.rigs.task_context import MemoryContext

GRACE_MS = 60_000
AGE_MS = 10 * GRACE_MS


@pytest.fixture
def context():
    context = MemoryContext(JanitorMetrics())
    context.create_table("events", data_grace_ms=GRACE_MS, log_grace_ms=GRACE_MS, orphan_age_ms=AGE_MS)
    paths = context.warehouse.table("events").paths
    context.warehouse.store.put(paths.data_key(partition="", file_id="ab"), b"x")
    context.clock.advance(AGE_MS)
    return context


def make_tasks(context, **options):
    return JanitorTasks(context, settings=JanitorSettings(store="file:///tmp/w", **options), metrics=context.metrics)


def test_a_sweep_that_was_asked_for_may_be_forced(context):
    tasks = make_tasks(context)
    work = tasks.sweep_orphans("events")
    assert (work.is_idle, work.details["held_orphans"], work.details["orphan_share"]) == (True, 1, 1.0)
    assert tasks.sweep_orphans("events", force=True).details["deleted_orphans"] == 1
    assert tasks.sweep_orphans("events", force=True).is_idle
    assert list_all(context.warehouse.store, context.warehouse.table("events").paths.audit_prefix).objects


def test_an_age_below_the_tables_is_refused(context):
    tasks = make_tasks(context)
    with pytest.raises(InvalidRequest, match="orphan age is 600000 ms"):
        tasks.sweep_orphans("events", older_than_ms=AGE_MS - 1)
    assert tasks.sweep_orphans("events").details["young_orphans"] == 0
    assert tasks.sweep_orphans("events", older_than_ms=2 * AGE_MS).details["young_orphans"] == 1


def test_a_sweep_that_was_asked_for_counts_for_the_interval(context):
    tasks = make_tasks(context)
    tasks.sweep_orphans("events")
    assert "young_orphans" not in tasks.vacuum("events").details


def test_a_sweep_that_failed_waits_for_the_next_interval_and_stops_no_vacuum(context, monkeypatch):
    tasks = make_tasks(context, orphan_sweep_interval_ms=1000)
    listed = []

    def breaks_off(table, **_options):
        listed.append(table.name)
        raise Unavailable("the listing broke off")

    with monkeypatch.context() as patch:
        patch.setattr("icedb_log.clean.sweep.sweep_orphans", breaks_off)
        with pytest.raises(Unavailable):
            tasks.vacuum("events")
        assert tasks.vacuum("events").is_idle
    assert listed == ["events"]
    context.clock.advance(1000)
    assert "young_orphans" in tasks.vacuum("events").details


def test_leftovers_and_probes_are_swept_along(context):
    store, paths = context.warehouse.store, context.warehouse.table("events").paths
    root = context.warehouse.root
    probe = f"{root}/{PROBE_FOLDER}/ab" if root else f"{PROBE_FOLDER}/ab"
    store.put(paths.idempotency_key("ab"), b"x")
    store.put(probe, b"x")
    tasks = make_tasks(context)
    tasks.sweep_orphans("events")
    context.clock.advance(max(KEEP_MS, DAY_MS))
    assert tasks.sweep_orphans("events").details["deleted_leftovers"] == 1
    assert context.metric("icedb_janitor_deleted_objects_total", kind="idempotency_key") == 1
    assert context.metric("icedb_janitor_deleted_objects_total", kind="leftover") == 1
    assert not list_all(store, probe).objects
