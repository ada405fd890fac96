from types import SimpleNamespace

import pytest
from icedb_ingest.flush_choice import STREAM_AGE_MS
from icedb_ingest.settings import IngestSettings
from icedb_ingest.tasks import IngestTasks
from icedb_log.errors import NotFound, Unavailable
from icedb_log.ingest.staging import list_staged
from icedb_log.names import INGEST_FLUSH, MERGE_MERGE
from icedb_log.warehouse import Warehouse
from icedb_service.redis_clients import LockBusy
from icedb_service.worker import TABLES_AGE_MS
from icedb_sim.fakes.scripted_store import ScriptedStore


def make_tasks(context, **options):
    settings = IngestSettings(store="file:///tmp/w", **options)
    return IngestTasks(context, settings=settings, metrics=context.metrics)


def live_rows(context, table="events"):
    return sorted(row["n"] for row in context.rows(table))


def test_many_batches_become_one_log_file(context):
    for number in range(5):
        context.stage([{"n": number}])
    work = make_tasks(context).flush("events")
    assert not work.is_idle
    assert (work.details["commits"], work.details["batches"], work.details["rows"]) == (1, 5, 5)
    assert live_rows(context) == [0, 1, 2, 3, 4]
    assert len(context.open("events").read_log().files) == 1
    assert context.wakeups.announced == ["events"]
    assert context.locked == ["events"]
    assert context.metric("icedb_ingest_batches_total", outcome="committed") == 5
    assert context.metric("icedb_ingest_rows_total") == 5
    assert context.metric("icedb_ingest_commits_total") == 1
    assert context.metric("icedb_ingest_written_bytes_total") == work.details["written_bytes"] > 0
    assert context.metric("icedb_ingest_flush_duration_seconds_count") == 1
    assert context.metric("icedb_ingest_commit_batches_sum") == 5
    assert context.metric("icedb_ingest_commit_files_sum") == 1


def test_nothing_staged_is_idle_and_takes_no_lock(context):
    assert make_tasks(context).flush("events").is_idle
    assert context.locked == context.wakeups.announced == []


def test_a_flush_goes_on_until_nothing_waits_and_keeps_the_pace(context):
    for number in range(5):
        context.stage([{"n": number}])
    work = make_tasks(context, flush_max_batches=2, flush_interval_ms=700).flush("events")
    assert (work.details["rounds"], work.details["commits"], work.details["has_more"]) == (3, 3, False)
    assert context.clock.slept_ms == [700, 700]
    assert live_rows(context) == [0, 1, 2, 3, 4]


def test_the_pace_is_kept_between_runs_and_only_for_the_same_table(context):
    context.create_table("other")
    tasks = make_tasks(context, flush_interval_ms=1000)
    context.stage([{"n": 1}])
    tasks.flush("events")
    context.stage([{"n": 2}], table="other")
    tasks.flush("other")
    assert context.clock.slept_ms == []
    context.clock.advance(400)
    context.stage([{"n": 3}])
    tasks.flush("events")
    assert context.clock.slept_ms == [600]


def test_after_its_rounds_a_table_makes_room_for_others(context, monkeypatch):
    monkeypatch.setattr("icedb_ingest.tasks.MAX_ROUNDS", 2)
    for number in range(5):
        context.stage([{"n": number}])
    work = make_tasks(context, flush_max_batches=1).flush("events")
    assert work.details["has_more"]
    assert len(live_rows(context)) == 2
    assert (INGEST_FLUSH, "events") in context.wakeups.woken


def test_a_bad_batch_goes_to_quarantine_and_the_others_go_on(context):
    context.stage([{"n": 1}])
    bad = context.stage([], body=b"{not json")
    work = make_tasks(context).flush("events")
    assert work.details["rejected"] == 1
    assert work.details["reasons"] == [{"batch": bad, "reason": "line 1: not JSON"}]
    assert live_rows(context) == [1]
    assert context.metric("icedb_ingest_batches_total", outcome="rejected") == 1


def test_only_bad_batches_are_work_too(context):
    context.stage([], body=b"{not json")
    work = make_tasks(context).flush("events")
    assert not work.is_idle
    assert (work.details["batches"], work.details["rejected"], work.details["has_more"]) == (0, 1, False)


def test_the_merge_is_woken_after_so_many_commits_of_a_table(context):
    tasks = make_tasks(context, merge_wake_commits=3, flush_interval_ms=0)
    for number in range(7):
        context.stage([{"n": number}])
        tasks.flush("events")
    assert context.wakeups.woken == [(MERGE_MERGE, "events")] * 2


def test_a_merge_that_cannot_be_woken_is_woken_after_the_next_commit(context):
    tasks = make_tasks(context, merge_wake_commits=2, flush_interval_ms=0)
    context.wakeups.failure = Unavailable("redis")
    for number in range(3):
        context.stage([{"n": number}])
        tasks.flush("events")
    context.wakeups.failure = None
    context.stage([{"n": 3}])
    tasks.flush("events")
    assert context.wakeups.woken == [(MERGE_MERGE, "events")]
    assert live_rows(context) == [0, 1, 2, 3]


def test_a_held_lock_leaves_the_batches_to_the_holder(context):
    context.stage([{"n": 1}])
    context.busy.add("events")
    with pytest.raises(LockBusy):
        make_tasks(context).flush("events")
    assert len(list_staged(context.warehouse.table("events")).batches) == 1


def test_an_unknown_table_with_batches_is_named(context):
    context.stage([{"n": 1}], table="nowhere")
    with pytest.raises(NotFound, match="'nowhere' does not exist"):
        make_tasks(context).flush("nowhere")


def test_the_sweep_wakes_the_tables_with_staged_batches(context):
    for name in ("quiet", "waiting", "pausing"):
        context.create_table(name)
    context.stage([{"n": 1}])
    context.stage([{"n": 1}], table="waiting")
    context.stage([{"n": 1}], table="pausing")
    context.wakeups.waiting.add((INGEST_FLUSH, "waiting"))
    context.runner.backoff.record_failure(f"{INGEST_FLUSH}:pausing")
    tasks = make_tasks(context)
    work = tasks.sweep()
    assert context.wakeups.woken == [(INGEST_FLUSH, "events")]
    assert work.details == {"tables": 4, "woken": 1, "waiting": 1, "pausing": 1, "failed": 0}
    context.clock.advance(60_000)
    tasks.sweep()
    assert (INGEST_FLUSH, "pausing") in context.wakeups.woken


class Lists:
    """What of a table is listed."""

    def __init__(self, context, table="events"):
        self.store = ScriptedStore(context.warehouse.store)
        context.warehouse = Warehouse(self.store, context.warehouse.root)
        self.paths = context.warehouse.table(table).paths

    def during(self, work):
        """Do some work; return how often staging and the log were listed meanwhile."""
        self.store.calls.clear()
        work()
        keys = [call.key for call in self.store.calls if call.method == "list_page"]
        return keys.count(self.paths.staging_prefix), keys.count(self.paths.log_prefix)


def test_of_a_stream_of_batches_nobody_asks_whether_some_are_staged(context):
    lists, tasks = Lists(context), make_tasks(context)

    def send(count):
        for number in range(count):
            context.stage([{"n": number}])
        context.clock.advance(1000)

    def flush():
        return tasks.flush("events").details["batches"]

    send(2)
    assert lists.during(flush)[0] == 2, "before the fence is taken, and under it"
    for _ in range(3):
        send(2)
        assert lists.during(flush) == (1, 1)
        assert lists.during(tasks.sweep) == (0, 0)
        assert context.wakeups.woken[-1] == (INGEST_FLUSH, "events")
    locks = len(context.locked)
    assert lists.during(flush) == (1, 1), "none came: the fence was taken for nothing"
    assert lists.during(flush) == (1, 0)
    assert len(context.locked) == locks + 1
    woken = len(context.wakeups.woken)
    assert lists.during(tasks.sweep) == (1, 0)
    assert len(context.wakeups.woken) == woken
    send(1)
    assert lists.during(flush) == (2, 1), "a single one promises nothing"
    send(1)
    assert lists.during(flush) == (2, 1)


def test_a_stream_is_not_expected_for_ever_nor_after_a_failure(context):
    lists, tasks = Lists(context), make_tasks(context)

    def stream():
        for number in range(2):
            context.stage([{"n": number}])
        context.clock.advance(1000)
        assert tasks.flush("events").details["batches"] == 2

    stream()
    context.clock.advance(STREAM_AGE_MS)
    assert lists.during(lambda: tasks.flush("events")) == (1, 0)
    stream()
    context.busy.add("events")
    with pytest.raises(LockBusy):
        tasks.flush("events")
    assert lists.during(tasks.sweep) == (1, 0)


def test_the_next_commit_is_due_an_interval_after_the_flush_of_the_last_one_began(context):
    tasks, writer = make_tasks(context, flush_interval_ms=1000), context.engine.writer

    def write_slowly(job):
        context.clock.advance(300)
        return writer.write_batches(job)

    context.engine.writer = SimpleNamespace(write_batches=write_slowly)
    for number in range(3):
        context.stage([{"n": number}])
        tasks.flush("events")
    assert context.clock.slept_ms == [700, 700]
    tasks._watch.look(context.warehouse.table("events").paths, max_age_ms=0)
    assert tasks._watch.due_in_ms("events") == 700, "not from where its own commit landed"


def test_tables_are_listed_anew_after_a_while_and_wake_ups_need_no_list(context):
    tasks = make_tasks(context)
    tasks.sweep()
    context.create_table("fresh")
    context.stage([{"n": 1}], table="fresh")
    assert tasks.sweep().details["tables"] == 1
    assert tasks.flush("fresh").details["batches"] == 1
    context.stage([{"n": 2}], table="fresh")
    context.clock.advance(TABLES_AGE_MS)
    assert tasks.sweep().details["tables"] == 2
    assert context.wakeups.woken == [(INGEST_FLUSH, "fresh")]
