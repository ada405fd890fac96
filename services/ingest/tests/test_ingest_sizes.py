"""Large batches: who takes them, who is woken, and what is counted (I6)."""

import pytest
from icedb_ingest.flush_choice import MAX_LOOKS, FlushChoice
from icedb_ingest.frontend.settings import FrontendSettings
from icedb_ingest.settings import IngestSettings
from icedb_ingest.tasks import IngestTasks
from icedb_log.clock import new_batch_id
from icedb_log.ingest.flush import MAX_FLUSH_BATCHES, FlushLimits, FlushResult
from icedb_log.ingest.quarantine import list_conflicts
from icedb_log.ingest.staging import list_staged, stage_batch
from icedb_log.jobs import SizeClass
from icedb_log.names import INGEST_FLUSH, INGEST_LARGE_FLUSH, QUEUES
from icedb_log.store.table_store import TableStore
from icedb_log.units import MIB, MINUTE_MS
from icedb_service.redis_clients import LockBusy
from icedb_service.settings import load_settings
from icedb_sim.fakes.manual_clock import ManualClock
from icedb_sim.tables.row_files import encode_rows

LARGE_ROWS = 10


@pytest.fixture(autouse=True)
def large_by_few_rows(monkeypatch):
    monkeypatch.setattr("icedb_ingest.tasks.LARGE_ROWS", LARGE_ROWS)


def make_tasks(context, *, serves_large=False, **options):
    settings = IngestSettings(
        store="file:///tmp/w",
        **{"flush_interval_ms": 0, "merge_wake_commits": 99} | options,
    )
    return IngestTasks(context, settings=settings, metrics=context.metrics, serves_large=serves_large)


def stage(context, rows):
    context.clock.advance(1)  # ids of one millisecond have no order
    return context.stage({"n": n} for n in range(rows))


def commits(context):
    return [file.log.batch_ids for file in context.open("events").read_log().files]


def staged(context):
    return [batch.batch_id for batch in list_staged(context.warehouse.table("events")).batches]


def large(context, outcome):
    return context.metric("icedb_ingest_large_batches_total", outcome=outcome)


def test_a_large_batch_is_left_to_the_worker_of_its_queue_which_is_woken(context):
    context.wakeups.served.add("ingest-large")
    big, small = stage(context, LARGE_ROWS + 1), stage(context, 1)
    tasks = make_tasks(context)
    work = tasks.flush("events")
    assert (work.details["batches"], work.details["has_more"]) == (1, False)
    assert (commits(context), staged(context)) == ([(small,)], [big])
    assert context.wakeups.woken == [(INGEST_LARGE_FLUSH, "events")]
    assert (large(context, "left"), large(context, "flushed"), large(context, "flushed_here")) == (1, 0, 0)

    context.wakeups.woken.clear()
    context.locked.clear()
    assert tasks.flush("events").is_idle
    assert context.locked == [], "what is known to be large is not looked at again"
    assert large(context, "left") == 1

    helper = make_tasks(context, serves_large=True)
    assert helper.flush_large("events").details["batches"] == 1
    assert (commits(context), staged(context)) == ([(small,), (big,)], [])
    assert large(context, "flushed") == 1
    assert (INGEST_FLUSH, "events") in context.wakeups.woken, "what waited for the lock"


def test_a_table_with_a_large_batch_does_not_rest(context):
    context.wakeups.served.add("ingest-large")
    stage(context, LARGE_ROWS + 1)
    tasks = make_tasks(context)
    tasks.flush("events")
    for _ in range(123):
        context.clock.advance(MINUTE_MS)
        context.wakeups.woken.clear()
        tasks.sweep()
        assert (INGEST_LARGE_FLUSH, "events") in context.wakeups.woken


@pytest.mark.parametrize("large_format", ["json", "ndjson"])
def test_copies_of_both_sizes_under_one_id_hide_each_other_from_nobody(context, large_format):
    """The one that is listed first is committed, the other one is an entry of quarantine (I8)."""
    context.wakeups.served.add("ingest-large")
    paths, batch_id = context.warehouse.table("events").paths, new_batch_id(context.clock)
    bodies = {"json": encode_rows([{"n": 99}]), "ndjson": encode_rows([{"n": 99}])}
    bodies[large_format] = encode_rows({"n": n} for n in range(LARGE_ROWS + 1))
    tasks, helper = make_tasks(context), make_tasks(context, serves_large=True)
    for staging_format in sorted(bodies, key=lambda name: name != large_format):
        body = bodies[staging_format]
        stage_batch(
            TableStore(context.warehouse.store, paths), body=body, staging_format=staging_format, batch_id=batch_id
        )
        if staging_format == large_format:
            tasks.flush("events")
    for _ in range(3):
        context.clock.advance(1)
        helper.flush_large("events")
        context.clock.advance(1)
        tasks.flush("events")
    assert (commits(context), staged(context)) == ([(batch_id,)], [])
    assert len(list_conflicts(TableStore(context.warehouse.store, paths), batch_id)) == 1
    context.wakeups.woken.clear()
    tasks.flush("events")
    assert context.wakeups.woken == []


def test_large_batches_are_flushed_one_at_a_time(context):
    batches = [stage(context, LARGE_ROWS + 1) for _ in range(3)]
    helper = make_tasks(context, serves_large=True)
    assert helper.flush_large("events").details["has_more"]
    assert commits(context) == [(batches[0],)]
    assert (INGEST_LARGE_FLUSH, "events") in context.wakeups.woken
    while staged(context):
        context.clock.advance(1)
        helper.flush_large("events")
    assert commits(context) == [(batch,) for batch in batches]
    assert helper.flush_large("events").is_idle


def test_the_search_for_a_large_batch_leaves_small_ones_alone(context):
    for _ in range(3):
        stage(context, LARGE_ROWS)
    helper = make_tasks(context, serves_large=True)
    assert helper.flush_large("events").is_idle
    assert (len(staged(context)), commits(context)) == (3, [])
    context.locked.clear()
    helper.flush_large("events")
    assert context.locked == [], "they are known"


def test_without_a_worker_for_them_large_batches_are_committed_after_the_others(context):
    big, small = stage(context, LARGE_ROWS + 1), stage(context, 1)
    tasks = make_tasks(context)
    assert tasks.flush("events").details["batches"] == 2
    assert commits(context) == [(small,), (big,)]
    assert large(context, "flushed_here") == 1
    assert (INGEST_LARGE_FLUSH, "events") not in context.wakeups.woken


def test_small_batches_without_end_do_not_starve_a_large_one(context, monkeypatch):
    monkeypatch.setattr("icedb_ingest.tasks.MAX_ROUNDS", 2)
    big = stage(context, LARGE_ROWS + 1)
    for _ in range(9):
        stage(context, 1)
    make_tasks(context, flush_max_batches=2).flush("events")
    assert (big,) in commits(context)
    assert (INGEST_FLUSH, "events") in context.wakeups.woken


def test_the_sweep_wakes_whoever_takes_large_batches(context):
    context.wakeups.served.add("ingest-large")
    big = stage(context, LARGE_ROWS + 1)
    tasks = make_tasks(context)
    tasks.flush("events")
    context.wakeups.woken.clear()
    assert tasks.sweep().details["woken"] == 0
    assert context.wakeups.woken == [(INGEST_LARGE_FLUSH, "events")]
    context.wakeups.served.clear()
    context.wakeups.woken.clear()
    assert tasks.sweep().details["woken"] == 1, "it is gone: the work is this worker's again"
    tasks.flush("events")
    assert commits(context) == [(big,)]
    context.wakeups.woken.clear()
    context.clock.advance(60_000)
    context.wakeups.served.add("ingest-large")
    tasks.sweep()
    assert (INGEST_LARGE_FLUSH, "events") not in context.wakeups.woken, "what is gone is forgotten"


def test_a_large_batch_waits_while_somebody_else_holds_the_table(context):
    big = stage(context, LARGE_ROWS + 1)
    context.busy.add("events")
    with pytest.raises(LockBusy):
        make_tasks(context, serves_large=True).flush_large("events")
    assert staged(context) == [big]


def test_what_is_remembered_is_bounded_and_by_size(monkeypatch):
    monkeypatch.setattr("icedb_ingest.flush_choice.MAX_REMEMBERED", 3)
    sizes = FlushChoice(FlushLimits(), small=SizeClass("small", 1, 1), clock=ManualClock())
    sizes.record("t", "small", FlushResult(left_out=("1", "2")))
    sizes.record("t", "small", FlushResult(left_out=("3", "4")))
    limits = sizes.limits("t", "small")
    assert (limits.skip, limits.sizes.takes, limits.max_batches) == (frozenset("234"), "small", MAX_FLUSH_BATCHES)
    limits = sizes.limits("t", "large")
    assert (limits.skip, limits.sizes.takes, limits.max_batches) == (frozenset(), "large", MAX_LOOKS)
    assert (sizes.has_large("t"), sizes.has_large("u")) == (True, False)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"flush_large_mb": 257}, "ICEDB_FLUSH_LARGE_MB <= ICEDB_BATCH_MAX_DECODED_MB must hold, but 257 > 256"),
        (
            {"task_memory_mb": 1023},
            r"4 \* ICEDB_BATCH_MAX_DECODED_MB <= ICEDB_TASK_MEMORY_MB must hold .*4 \* 256 > 1023",
        ),
    ],
)
def test_bounds_fit_each_other(options, message):
    with pytest.raises(ValueError, match=message):
        IngestSettings(store="file:///tmp/w", **options)


def test_the_bounds_reach_the_tasks_and_are_the_same_at_the_doors(monkeypatch):
    monkeypatch.setenv("ICEDB_STORE", "file:///tmp/w")
    monkeypatch.setenv("ICEDB_BATCH_MAX_DECODED_MB", "100")
    monkeypatch.setenv("ICEDB_BATCH_MAX_ROWS", "5000000")
    settings, door = load_settings(IngestSettings), load_settings(FrontendSettings)
    limits = settings.job_limits
    assert (limits.batch.batch_decoded_bytes, limits.batch.batch_rows) == (100 * MIB, 5_000_000)
    assert (limits.batch.unit_decoded_bytes, limits.direct_bytes) == (100 * MIB, 100 * MIB)
    assert (door.batch_max_decoded_bytes, door.batch_max_rows) == (100 * MIB, 5_000_000)


def test_the_default_queue_is_still_that_of_all_tasks_without_one():
    assert QUEUES[0] == "ingest"
