import pytest
from icedb_log.clean.vacuum import vacuum_table
from icedb_log.commit.table import Table
from icedb_log.erasure.erasure_run import advance_erasure
from icedb_log.errors import InvalidRequest, JobCrashed, Unavailable
from icedb_log.holds.erasures import create_erasure, list_open_ids, read_erasure
from icedb_log.names import INGEST_FLUSH, MERGE_ERASE
from icedb_log.store.table_store import TableStore
from icedb_log.units import MINUTE_MS
from icedb_merger.metrics import MergeMetrics
from icedb_merger.settings import MergerSettings
from icedb_merger.tasks import MergeTasks
from icedb_service.redis_clients import LockBusy
from icedb_sim.rigs.task_context import MemoryContext

GRACE_MS = 60_000


@pytest.fixture
def context():
    context = MemoryContext(MergeMetrics())
    for table in ("events", "other"):
        context.create_table(table, data_grace_ms=GRACE_MS, log_grace_ms=GRACE_MS)
    context.commit([{"n": 1}, {"n": 2}, {"n": 3}])
    context.commit([{"n": 2}, {"n": 4}])
    return context


@pytest.fixture
def tasks(context):
    return MergeTasks(context, settings=MergerSettings(store="file:///tmp/w"), metrics=context.metrics)


def ask(context, condition="n = 2", table="events"):
    store, paths = context.warehouse.store, context.warehouse.table(table).paths
    erasure = create_erasure(TableStore(store, paths), condition=condition, clock=context.clock)
    context.clock.advance(1)
    return erasure.erasure_id


def clean(context):
    store, paths = context.warehouse.store, context.warehouse.table("events").paths
    vacuum_table(Table.open(TableStore(store, paths), clock=context.clock))


def rows(context):
    return sorted(row["n"] for row in context.rows())


def test_an_erasure_goes_from_its_request_to_its_certificate(context, tasks):
    erasure_id = ask(context)
    work = tasks.erase("events")
    assert rows(context) == [1, 3, 4]
    assert not work.is_idle
    assert work.details["erasures"] == [{"id": erasure_id, "state": "deleted", "waits_for": "janitor", "waiting": 2}]
    assert context.locked == ["events"]
    assert tasks.erase("events").is_idle
    context.clock.advance(GRACE_MS + 1000)
    clean(context)
    work = tasks.erase("events")
    assert (work.details["open"], work.details["ended"]) == (0, 1)
    assert context.locked == ["events"]  # looking takes no lock
    done = read_erasure(context.warehouse.table("events"), erasure_id)
    assert (done.state, done.row_count, len(done.objects)) == ("complete", 2, 2)
    assert context.metric("icedb_merge_erasures_total", state="complete") == 1
    assert tasks.erase("events").details == {"open": 0, "ended": 0, "erasures": []}


def test_batches_of_before_are_flushed_first(context, tasks):
    context.stage([{"n": 2}])
    ask(context)
    work = tasks.erase("events")
    assert work.is_idle
    assert work.details["erasures"][0]["waits_for"] == "flush"
    assert context.wakeups.woken == [(INGEST_FLUSH, "events")]
    assert rows(context).count(2) == 2


def test_one_that_is_refused_or_fails_does_not_keep_the_others_waiting(context, tasks):
    refused, fine = ask(context, "nope = 1"), ask(context)
    work = tasks.erase("events")
    assert [each["state"] for each in work.details["erasures"]] == ["refused", "deleted"]
    assert context.metric("icedb_merge_erasures_total", state="refused") == 1
    assert list_open_ids(context.warehouse.table("events")) == (fine,)
    paths = context.warehouse.table("events").paths
    assert "no column 'nope'" in read_erasure(TableStore(context.warehouse.store, paths), refused).refusal


def test_one_that_nobody_foresaw_does_not_keep_the_others_waiting(context, tasks, monkeypatch):
    first, second = ask(context), ask(context, "n = 3")

    def advance(opened, changer, erasure_id):
        if erasure_id == first:
            raise KeyError("nobody foresaw this")
        return advance_erasure(opened, changer, erasure_id)

    monkeypatch.setattr("icedb_log.erasure.erasure_run.advance_erasure", advance)
    with pytest.raises(JobCrashed, match=f"erasure {first}: KeyError"):
        tasks.erase("events")
    paths = context.warehouse.table("events").paths
    assert read_erasure(TableStore(context.warehouse.store, paths), second).state == "deleted"


def test_a_held_lock_leaves_the_deletion_to_the_next_run_and_the_looks_go_on(context, tasks):
    first = ask(context)
    tasks.erase("events")
    second = ask(context, "n = 4")
    context.clock.advance(GRACE_MS + 1000)
    clean(context)
    context.busy.add("events")
    with pytest.raises(LockBusy):
        tasks.erase("events")
    assert list_open_ids(context.warehouse.table("events")) == (second,)
    paths = context.warehouse.table("events").paths
    assert read_erasure(TableStore(context.warehouse.store, paths), first).state == "complete"


def test_a_preview_says_what_would_go_and_changes_nothing(context, tasks):
    work = tasks.erase("events", preview="n = 2")
    assert (work.details["rows"], work.details["files"], work.details["files_counted"]) == (2, 2, 2)
    assert rows(context) == [1, 2, 2, 3, 4]
    assert context.locked == []
    with pytest.raises(InvalidRequest, match="no column 'nope'"):
        tasks.erase("events", preview="nope = 1")


def test_the_sweep_wakes_it_where_an_erasure_is_open_once_in_a_while(context):
    tasks = MergeTasks(
        context,
        settings=MergerSettings(store="file:///tmp/w", merge_erase_interval_ms=10_000),
        metrics=context.metrics,
    )
    ask(context)
    assert tasks.sweep().details["woken_erasures"] == 1
    assert [woken for woken in context.wakeups.woken if woken[0] == MERGE_ERASE] == [(MERGE_ERASE, "events")]
    assert tasks.sweep().details["woken_erasures"] == 0
    context.clock.advance(10_000)
    assert tasks.sweep().details["woken_erasures"] == 1


def test_one_that_is_asked_for_after_a_long_rest_is_gone_on_with_by_the_next_sweeps(context, tasks):
    for _ in range(123):
        context.clock.advance(MINUTE_MS)
        tasks.sweep()
    ask(context, "n = 1")
    tasks.erase("events")
    for _ in range(3):
        context.clock.advance(MINUTE_MS)
        assert tasks.sweep().details["woken_erasures"] == 1


def test_a_store_that_does_not_answer_is_said_to(context, tasks, monkeypatch):
    ask(context)

    def silent(*_args, **_options):
        raise Unavailable("no answer")

    monkeypatch.setattr(context.engine.changer.__class__, "count_rows", silent)
    with pytest.raises(Unavailable):
        tasks.erase("events")
    assert rows(context).count(2) == 2
