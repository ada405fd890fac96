"""The feed task: when views are woken, what a run does with many commits, what is counted."""

from types import SimpleNamespace

import pytest
from icedb_ingest.feeds import TABLE_KIND_AGE_MS, VIEW_NAMES_AGE_MS
from icedb_ingest.imports import ImportTasks
from icedb_ingest.settings import IngestSettings
from icedb_ingest.tasks import IngestTasks
from icedb_log.errors import CorruptLog, InvalidRequest, Unavailable
from icedb_log.feed.views import create_view, detach_view
from icedb_log.names import INGEST_FEED, INGEST_FLUSH, MERGE_MERGE
from icedb_log.table.table_config import TableConfig
from icedb_log.trash.drop import drop_table
from icedb_log.units import MINUTE_MS
from icedb_service.runs import backoff_key
from icedb_service.worker import TABLES_AGE_MS
from structlog.testing import capture_logs


def make_tasks(context, **options):
    settings = IngestSettings(store="file:///tmp/w", **{"flush_interval_ms": 0, **options})
    return IngestTasks(context, settings=settings, metrics=context.metrics)


def make_view(context, name="copy", source="events", **more):
    config = TableConfig.create(name=name, view_of=source, view_query="select * from _rows", **more)
    create_view(context.warehouse.table(name), config, clock=context.clock)


def append(context, tasks, *numbers, **more):
    context.stage([{"n": number, **more} for number in numbers])
    context.clock.advance(1)
    assert tasks.flush("events").details["commits"] == 1


def live_rows(context, table):
    return sorted(row["n"] for row in context.rows(table))


def test_a_commit_wakes_the_views_and_a_feed_takes_it(context):
    make_view(context)
    tasks = make_tasks(context)
    append(context, tasks, 1, 2)
    assert context.wakeups.woken == [(INGEST_FEED, "copy")]
    work = tasks.feeds.feed("copy")
    assert not work.is_idle
    assert work.details == {
        "commits": 1,
        "taken": 1,
        "refused": 0,
        "rows_read": 2,
        "rows": 2,
        "misfits": 0,
        "files": 1,
        "waiting": 0,
        "backfilled": 0,
        "unfilled": 0,
        "attached": True,
        "log_full": False,
        "put_off": False,
        "reasons": [],
    }
    assert live_rows(context, "copy") == [1, 2]
    assert context.locked == ["events", "copy"]
    assert context.metric("icedb_ingest_feed_commits_total", outcome="taken") == 1
    assert context.metric("icedb_ingest_rows_total") == 4
    assert tasks.feeds.feed("copy").is_idle


def test_views_of_views_and_merges_are_woken(context):
    make_view(context)
    make_view(context, name="second", source="copy")
    tasks = make_tasks(context, merge_wake_commits=1)
    append(context, tasks, 1)
    context.wakeups.woken.clear()
    tasks.feeds.feed("copy")
    assert context.wakeups.woken == [(MERGE_MERGE, "copy"), (INGEST_FEED, "second")]


def test_many_commits_are_fed_in_one(context):
    make_view(context)
    tasks = make_tasks(context)
    for number in range(5):
        append(context, tasks, number)
    work = tasks.feeds.feed("copy")
    assert (work.details["commits"], work.details["taken"]) == (1, 5)


def test_what_is_left_after_the_last_round_wakes_the_feed_again(context, monkeypatch):
    make_view(context)
    tasks = make_tasks(context)
    monkeypatch.setattr("icedb_ingest.feeds.MAX_ROUNDS", 2)
    monkeypatch.setattr("icedb_log.feed.feeds.FeedLimits.__init__.__defaults__", (1, 1, 1))
    for number in range(3):
        append(context, tasks, number)
    context.wakeups.woken.clear()
    work = tasks.feeds.feed("copy")
    assert (work.details["commits"], work.details["waiting"]) == (2, 1)
    assert context.wakeups.woken == [(INGEST_FEED, "copy")]


def test_a_backfill_is_one_step_for_each_turn_and_wakes_the_next_one(context, monkeypatch):
    tasks = make_tasks(context)
    for number in range(3):
        append(context, tasks, number)
    make_view(context, view_backfill="on")
    monkeypatch.setattr("icedb_log.feed.feeds.FeedLimits.__init__.__defaults__", (1, 1, 1))
    tasks.feeds.sweep_table(context.warehouse.table("copy").paths)
    woken, figures = [], []
    for _ in range(3):
        woken.append(context.wakeups.woken[-1:])
        context.wakeups.woken.clear()
        details = tasks.feeds.feed("copy").details
        figures.append((details["commits"], details["taken"], details["backfilled"], details["unfilled"]))
    assert woken == [[(INGEST_FEED, "copy")]] * 3
    assert figures == [(1, 0, 1, 2), (1, 0, 1, 1), (1, 0, 1, 0)]
    assert not [name for name in context.wakeups.woken if name[0] == INGEST_FEED]
    assert live_rows(context, "copy") == [0, 1, 2]
    assert tasks.feeds.feed("copy").is_idle


def test_a_refused_commit_is_named_and_counted(context):
    make_view(context)
    tasks = make_tasks(context)
    append(context, tasks, 1, poison="x")
    work = tasks.feeds.feed("copy")
    assert [each["reason"] for each in work.details["reasons"]] == ["a row is poisoned"]
    assert context.metric("icedb_ingest_feed_commits_total", outcome="refused") == 1


def test_a_feed_that_is_not_due_is_left_to_the_sweep(context):
    make_view(context)
    tasks = make_tasks(context, flush_interval_ms=30_000)
    append(context, tasks, 1)
    tasks.feeds.feed("copy")
    context.clock.advance(25_000)
    append_later = make_tasks(context)  # another worker
    append(context, append_later, 2)
    work = tasks.feeds.feed("copy")
    assert (work.is_idle, work.details["put_off"]) == (True, True)
    tasks.feeds.sweep_table(context.warehouse.table("copy").paths)
    assert (INGEST_FEED, "copy") not in context.wakeups.woken[2:]
    context.clock.advance(5_000)
    assert tasks.feeds.feed("copy").details["taken"] == 1


def test_a_feed_that_was_put_off_is_taken_up_by_the_next_sweep_though_the_view_has_rested(context):
    make_view(context)
    tasks = make_tasks(context, flush_interval_ms=30_000)
    for _ in range(120):
        context.clock.advance(MINUTE_MS)
        tasks.sweep()
    append(context, tasks, 1)
    tasks.feeds.feed("copy")
    append(context, make_tasks(context), 2)  # another worker
    assert tasks.feeds.feed("copy").details["put_off"]
    context.clock.advance(30_000)
    context.wakeups.woken.clear()
    tasks.sweep()
    assert (INGEST_FEED, "copy") in context.wakeups.woken


def test_the_sweep_finds_what_no_wake_up_told(context):
    make_view(context)
    tasks = make_tasks(context)
    append(context, tasks, 1)
    context.wakeups.woken.clear()
    tasks.sweep()
    assert context.wakeups.woken == [(INGEST_FEED, "copy")]
    tasks.feeds.feed("copy")
    context.wakeups.woken.clear()
    tasks.sweep()
    assert context.wakeups.woken == []
    append(context, tasks, 2)
    detach_view(context.warehouse.table("events"), "copy", clock=context.clock)
    context.wakeups.woken.clear()
    tasks.sweep()
    assert context.wakeups.woken == []
    assert tasks.feeds.feed("copy").details["attached"] is False


def test_a_view_that_cannot_be_looked_at_does_not_keep_the_others_waiting(context):
    make_view(context, name="aaa")
    make_view(context)
    tasks = make_tasks(context)
    append(context, tasks, 1)
    context.wakeups.woken.clear()
    store, paths = context.warehouse.store, context.warehouse.table("aaa").paths
    store.put(f"{paths.log_prefix}0000000000001_ab.jsonl", b"broken")
    tasks.sweep()
    assert context.wakeups.woken == [(INGEST_FEED, "copy")]
    assert context.metric("icedb_ingest_halted", table="aaa") == 1
    assert not context.runner.backoff.is_due(backoff_key(INGEST_FEED, "aaa"))
    with pytest.raises(CorruptLog):
        tasks.feeds.feed("aaa")


def test_a_view_that_nobody_foresaw_does_not_keep_the_others_waiting(context, monkeypatch):
    for name in ("aaa", "copy"):
        make_view(context, name=name)
    tasks = make_tasks(context)
    append(context, tasks, 1)
    context.wakeups.woken.clear()
    plain = tasks.feeds._needs_feed

    def look(paths):
        if paths.name == "aaa":
            raise KeyError("nobody foresaw this")
        return plain(paths)

    monkeypatch.setattr(tasks.feeds, "_needs_feed", look)
    with capture_logs() as logs:
        tasks.sweep()
    assert context.wakeups.woken == [(INGEST_FEED, "copy")]
    (told,) = (line for line in logs if line["event"] == "view_not_swept")
    assert (told["swept_table"], "KeyError: 'nobody foresaw this'" in told["error"]) == ("aaa", True)
    assert context.metric("icedb_ingest_halted", table="aaa") in (None, 0)
    assert not context.runner.backoff.is_due(backoff_key(INGEST_FEED, "aaa"))


def test_a_detached_view_whose_source_is_dropped_needs_nothing(context):
    make_view(context)
    source = context.warehouse.table("events")
    detach_view(source, "copy", clock=context.clock)
    drop_table(source, clock=context.clock)
    make_tasks(context).sweep()
    assert (INGEST_FEED, "copy") not in context.wakeups.woken
    context.clock.advance(1)
    assert context.runner.backoff.is_due(backoff_key(INGEST_FEED, "copy"))


def test_a_table_that_was_dropped_since_it_was_listed_is_no_problem(context):
    tasks = make_tasks(context)
    tasks.sweep()
    drop_table(context.warehouse.table("events"), clock=context.clock)
    context.clock.advance(TABLE_KIND_AGE_MS)
    with capture_logs() as logs:
        tasks.sweep()
    assert [line["event"] for line in logs] == []
    context.clock.advance(TABLES_AGE_MS)
    assert tasks.sweep().details["tables"] == 0


def test_views_are_looked_up_now_and_then_only(context):
    tasks = make_tasks(context)
    append(context, tasks, 1)
    make_view(context)
    append(context, tasks, 2)
    assert context.wakeups.woken == []
    context.clock.advance(VIEW_NAMES_AGE_MS + 1)
    append(context, tasks, 3)
    assert context.wakeups.woken == [(INGEST_FEED, "copy")]


def test_a_flush_ends_well_although_the_views_cannot_be_listed(context, monkeypatch):
    tasks = make_tasks(context)

    def fail(*_arguments):
        raise Unavailable("no answer")

    monkeypatch.setattr("icedb_ingest.feeds.list_view_names", fail)
    append(context, tasks, 1)
    assert (INGEST_FLUSH, "events") not in context.wakeups.woken


def test_batches_for_a_view_are_refused_by_its_flush(context):
    make_view(context)
    tasks = make_tasks(context)
    context.stage([{"n": 1}], table="copy")
    work = tasks.flush("copy")
    assert "takes no batches" in work.details["reasons"][0]["reason"]


def test_nothing_is_imported_into_a_view(context, tmp_path):
    make_view(context)
    settings = IngestSettings(store="s3://bucket/root", import_sources=(f"file://{tmp_path}",))
    (tmp_path / "x.parquet").write_bytes(b"PAR1")
    context.engine = SimpleNamespace(importer=None)
    with pytest.raises(InvalidRequest, match="is a view of 'events'"):
        ImportTasks(context, settings=settings, metrics=context.metrics, wake_views=print).import_files(
            "copy", [f"file://{tmp_path}/x.parquet"]
        )


def test_a_view_is_checked_against_its_source(context, monkeypatch):
    tasks = make_tasks(context)
    append(context, tasks, 1)
    asked = []

    def check(config, source_schema):
        asked.append((config.name, dict(source_schema)))
        return {"n": "BIGINT"}

    monkeypatch.setattr("icedb_engine.sql.checks.check_view_query", check)
    config = TableConfig.create(name="copy", view_of="events", view_query="select * from _rows")
    work = tasks.check_query("copy", config.model_dump(mode="json"))
    assert work.details == {"schema": {"n": "BIGINT"}}
    assert asked == [("copy", {"n": "BIGINT"})]
