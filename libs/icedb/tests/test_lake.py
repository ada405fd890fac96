"""The warehouse in the caller's own process: tables, appends, and what becomes of a batch."""

import itertools
import logging
import queue
import threading
from collections import Counter
from contextlib import nullcontext
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from types import SimpleNamespace
from uuid import UUID

import orjson
import pyarrow as pa
import pytest
from icedb import connect
from icedb.table_writer import ROOM_WAIT_MS
from icedb.work import Worker
from icedb_client.bodies import encode_rows
from icedb_engine.reading.unit import read_batch
from icedb_log.clock import new_batch_id
from icedb_log.commit.fence import acquire_fence, look_at_fence
from icedb_log.commit.table import Table
from icedb_log.errors import (
    CommitOutcomeUnknown,
    CorruptLog,
    IceDBError,
    InvalidRequest,
    NotFound,
    Overloaded,
    Unavailable,
)
from icedb_log.ingest.flush import flush_table
from icedb_log.ingest.pressure import PressureGate
from icedb_log.ingest.quarantine import list_quarantined
from icedb_log.ingest.staging import list_staged
from icedb_log.intervals import Backoff, Intervals, Rests
from icedb_log.merge.merge import MergeResult
from icedb_log.names import (
    INGEST_FLUSH,
    INGEST_IMPORT,
    MERGE_CHANGE,
    MERGE_DROP_PARTITIONS,
    MERGE_ERASE,
    MERGE_MERGE,
    MERGE_RETAIN,
)
from icedb_log.results import Work
from icedb_log.serving.status import find_health, read_status
from icedb_log.trash.drop import DropRequest, drop_table
from icedb_log.trash.purge import purge_table
from icedb_log.units import HOUR_MS, MINUTE_MS, SECOND_MS
from icedb_sim.fakes.fake_clock import FakeClock
from waiting import LIMIT_S

ROWS = [{"ts": "2026-01-02T03:04:05Z", "event": "view", "n": 1}, {"ts": "2026-01-03T00:00:00Z", "event": "buy", "n": 2}]


@pytest.fixture
def lake(tmp_path, cli_env):
    with connect(tmp_path / "lake") as lake:
        yield lake


@pytest.fixture
def events(lake):
    return lake.create_table("events", partition=["d=day(ts)"], sort=["event", "ts"])


def rows_of(lake, sql):
    return lake.query(sql).fetchall()


def test_what_is_appended_is_there_when_the_call_returns(lake, events):
    done = events.append(ROWS)
    assert (done.row_count, done.bad_row_count, done.is_duplicate) == (2, 0, False)
    assert rows_of(lake, "select event, n, d from events order by n") == [
        ("view", 1, "2026-01-02"),
        ("buy", 2, "2026-01-03"),
    ]
    assert events.snapshot(partitions={"d": ["2026-01-03"]}).row_count == 1
    assert [file.key for file in events.open().read_log().files] == [done.committed_key]
    assert not list_staged(events.place).batches


def test_decimals_are_exact_from_python_to_every_reader(lake):
    prices = [Decimal("12345678901234567890.10"), Decimal("19.99"), Decimal("-0.05"), None]
    table = lake.create_table(
        "prices", partition=["price"], sort=["price"], columns={"price": "DECIMAL(22,2)", "n": "BIGINT"}
    )
    for _ in range(2):
        done = table.append([{"price": price, "n": n} for n, price in enumerate(prices[:3])])
        assert (done.row_count, done.bad_row_count) == (3, 0)
    table.merge(full=True)
    snapshot = table.snapshot(where="price < 20.00")
    assert {file.partition["price"] for file in table.snapshot().files} == {"12345678901234567890.10", "19.99", "-0.05"}
    assert {file.partition["price"] for file in snapshot.files} == {"19.99", "-0.05"}
    sql = "select distinct price from prices order by price"
    assert [price for (price,) in rows_of(lake, sql)] == sorted(prices[:3])
    assert table.snapshot().to_arrow().schema.field("price").type == pa.decimal128(22, 2)
    assert sorted(set(table.snapshot().to_pandas()["price"])) == sorted(prices[:3])
    assert sorted(set(table.snapshot().to_polars()["price"])) == sorted(prices[:3])
    assert table.delete("price = 19.99").rows_removed == 2
    assert rows_of(lake, "select count(*), sum(price) from prices") == [(4, 2 * (prices[0] + prices[2]))]
    found = {column.name: column for column in table.snapshot().describe().columns}["price"]
    assert (found.min, found.max) == (prices[2], prices[0])
    done = table.append([{"price": Decimal("0.001"), "n": 7}, {"price": 1, "n": 8}])
    assert (done.row_count, done.bad_row_count) == (1, 1)


def test_values_of_python_are_taken_as_their_columns_want_them(lake):
    columns = {
        "seen": "TIMESTAMP",
        "day": "DATE",
        "price": "DECIMAL(18,2)",
        "share": "DOUBLE",
        "n": "BIGINT",
        "id": "VARCHAR",
    }
    table = lake.create_table("values", partition=["d=day(seen)"], columns=columns)
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=timezone(timedelta(hours=2)))
    ident = UUID(int=42)
    row = {
        "seen": at,
        "day": at.date(),
        "price": Decimal("19.90"),
        "share": Decimal("0.25"),
        "n": Decimal(7),
        "id": ident,
    }
    assert table.append([row]).row_count == 1
    with table.appender() as out:
        out.append([{**row, "seen": at.replace(tzinfo=None)}, {**row, "nested": {"at": at, "price": Decimal("1.50")}}])
    assert (out.row_count, out.bad_row_count) == (2, 0)
    rest = (at.date(), Decimal("19.90"), 0.25, 7, str(ident))
    utc, naive = datetime(2026, 1, 2, 1, 4, 5, 6), datetime(2026, 1, 2, 3, 4, 5, 6)
    assert rows_of(lake, "select seen, day, price, share, n, id from values order by seen") == [
        (utc, *rest),
        (utc, *rest),
        (naive, *rest),
    ]
    assert rows_of(lake, "select nested from values where nested is not null") == [
        ('{"at":"2026-01-02T03:04:05.000006+02:00","price":1.50}',)
    ]


def test_a_batch_that_is_appended_again_under_its_id_is_there_once(lake, events):
    batch_id = new_batch_id(lake.gate.clock)
    first = events.append(ROWS, batch_id=batch_id)
    again = events.append(ROWS, batch_id=batch_id)
    assert again.is_duplicate
    assert again.committed_key == first.committed_key
    assert rows_of(lake, "select count(*) from events") == [(2,)]


def test_other_rows_under_a_committed_id_are_kept_in_quarantine_and_not_taken_for_a_repeat(lake, events):
    batch_id = events.append(ROWS).batch_id
    with pytest.raises(InvalidRequest, match="committed with other rows before"):
        events.append(ROWS[:1], batch_id=batch_id)
    with pytest.raises(InvalidRequest, match="committed with other rows before"), events.appender() as out:
        out.append(ROWS[1:], batch_id=batch_id)
    assert out.committed_count == 0
    assert rows_of(lake, "select count(*) from events") == [(2,)]
    assert lake.client.wait_committed("events", [batch_id], timeout_ms=0).conflicts


def test_a_batch_that_waits_is_committed_with_the_next(lake, events):
    lake.gate.stage("events", encode_rows(ROWS), new_batch_id(lake.gate.clock))
    done = events.append(ROWS[:1])
    assert done.row_count == 1
    assert rows_of(lake, "select count(*) from events") == [(3,)]
    assert len(events.open().read_log().files) == 1


def test_bad_rows_are_counted_and_a_refused_batch_says_why(lake, events):
    done = events.append([*ROWS, {"ts": "no time", "event": "view"}])
    assert (done.row_count, done.bad_row_count) == (2, 1)
    strict = lake.create_table("strict", columns={"n": "BIGINT"}, on_bad_rows="quarantine_batch")
    with pytest.raises(InvalidRequest, match=r"batch .* is refused: .*quarantine list strict"):
        strict.append([{"n": "not a number"}])
    assert rows_of(lake, "select count(*) from strict") == [(0,)]


def test_tables_are_made_once_and_found_by_name(lake, events):
    assert lake.tables() == ("events",)
    with pytest.raises(InvalidRequest, match="exists already"):
        lake.create_table("events")
    assert lake.create_table("events", exist_ok=True) is lake.table("events") is events
    with pytest.raises(NotFound, match="nothing"):
        lake.table("nothing")
    lake.drop_table("events")
    assert lake.tables() == ()
    with pytest.raises(NotFound):
        events.append(ROWS)


def purge_by_force(lake, name):
    for _ in range(2):
        drop_table(lake.warehouse.table(name), clock=lake.clock, request=DropRequest(is_forced=True))
    assert purge_table(lake.warehouse.table(name), clock=lake.clock, owner="x").state == "purged"


def test_t4_a_purged_name_is_used_again(lake, events, tmp_path):
    events.append([{"ts": "2026-01-02T00:00:00Z", "event": "old"}])
    with connect(tmp_path / "lake") as other:
        assert other.query("select event from events").fetchall() == [("old",)]
        purge_by_force(lake, "events")
        with pytest.raises(NotFound, match="purged"):
            lake.table("events")
        assert lake.tables() == ()
        again = lake.create_table("events", sort=["n"])
        again.append([{"n": 7}])
        assert (again.place.paths.prefix, lake.tables()) == ("events.2", ("events",))
        assert lake.query("select n from events").fetchall() == [(7,)]
        with pytest.raises(InvalidRequest, match="is another one"):
            events.append([{"n": 8}])
        with pytest.raises(Unavailable, match=r"lies at events\.2 now"):
            other.table("events")
        assert other.query("select n from events").fetchall() == [(7,)]
        other.table("events").append([{"n": 9}])
    assert lake.query("select sum(n) from events").fetchall() == [(16,)]


def test_settings_go_by_their_names_and_times_by_words(lake):
    table = lake.create_table("short", partition=["d=day(ts)"], log_grace="30s", retention="90d", merge_fan_in=4)
    config = table.open().config
    assert (config.log_grace_ms, config.retention_ms, config.merge_fan_in) == (30_000, 90 * 86_400_000, 4)
    with pytest.raises(InvalidRequest, match="give a list"):
        lake.create_table("wrong", partition="d=day(ts)")
    with pytest.raises(InvalidRequest, match="no_such_setting"):
        lake.create_table("wrong", no_such_setting=1)


def test_a_setting_that_is_none_is_told_with_the_one_that_is_meant_and_lakes_say_where_they_are(lake, events):
    with pytest.raises(InvalidRequest, match="partitions is no setting of a table; did you mean partition"):
        lake.create_table("other", partitions=["d=day(ts)"])
    assert repr(events) == f"Lake({lake.client.settings.store!r}).table('events')"


def test_a_view_of_a_table_with_rows_warns_that_they_are_not_in_it(lake, events, caplog):
    query = {"view_of": "events", "view_query": "select ts from _rows"}
    lake.create_table("early", **query)
    assert not caplog.messages
    events.append(ROWS)
    lake.create_table("late", exist_ok=True, **query)
    assert (
        "takes what is committed to events from now on; the 2 rows that are there already are not in it" in caplog.text
    )
    caplog.clear()
    lake.create_table("late", exist_ok=True, **query)
    assert not caplog.messages


def test_a_view_begins_with_the_rows_that_are_there(lake, events, caplog):
    """Real rows: merged and deleted ones among them, and an aggregate over each step."""
    for hour in range(4):
        events.append([{"ts": f"2026-01-02T0{hour}:00:00Z", "event": kind} for kind in ("view", "signup", "view")])
    events.merge(full=True)
    events.append([{"ts": "2026-01-03T00:00:00Z", "event": "view"}])
    events.delete("event = 'signup'")
    query = "select event, count(*) as n from _rows group by event"
    counts = lake.create_table("counts", view_of="events", view_query=query, view_backfill="on")
    assert not caplog.messages
    events.append([{"ts": "2026-01-04T00:00:00Z", "event": "view"}])
    results = []
    while not results or results[-1].has_more:
        results.append(counts.feed())
    assert (sum(each.backfilled_count for each in results), sum(each.commit_count for each in results)) == (2, 1)
    lake.work(until_idle=True)
    assert lake.query("select event, sum(n) as n from counts group by event").fetchall() == [("view", 10)]


def test_a_rewrite_that_is_repeated_under_its_id_runs_once(lake):
    table = lake.create_table("numbers", columns={"n": "BIGINT"})
    table.append([{"n": 1}, {"n": 2}])
    request_id = new_batch_id(lake.clock)
    for is_repeated in (False, True):
        result = table.rewrite("select n + 1 as n from _rows", request_id=request_id)
        assert (result.rows_read, result.is_repeated) == (2, is_repeated)
    assert lake.query("select n from numbers order by n").fetchall() == [(2,), (3,)]
    assert table.delete("n = 3", request_id=new_batch_id(lake.clock)).rows_removed == 1


def test_a_table_that_is_there_with_other_partitions_is_taken_with_a_warning(lake, events, caplog):
    lake.create_table("events", partition=["d=day(ts)"], sort=["event", "ts"], exist_ok=True)
    lake.create_table("events", exist_ok=True)
    assert not caplog.messages
    lake.create_table("events", partition=["d=month(ts)"], sort=["ts"], exist_ok=True)
    assert "with partitions ['d=day(ts)'] and sort order ['event', 'ts']: these stay" in caplog.text


def test_a_table_with_queries_is_checked_here(lake):
    table = lake.create_table(
        "clicks", insert_query="select upper(event) as event from _rows", source={"event": "VARCHAR"}
    )
    assert table.open().config.declared == {"event": "VARCHAR"}
    table.append([{"event": "view"}])
    assert rows_of(lake, "select event from clicks") == [("VIEW",)]
    with pytest.raises(InvalidRequest, match="nowhere"):
        lake.create_table("wrong", insert_query="select nowhere from _rows", source={"event": "VARCHAR"})
    assert lake.tables() == ("clicks",)


def test_nothing_is_printed_by_an_append(events, capfd, caplog):
    with caplog.at_level(logging.WARNING):
        events.append(ROWS)
    assert capfd.readouterr() == ("", "")


def test_an_appender_stages_at_once_and_commits_in_groups(lake, events):
    with events.appender(commit_every_ms=60_000) as out:
        ids = [out.append([{"ts": "2026-01-02", "event": "view", "n": n}]) for n in range(20)]
        assert len(list_staged(events.place).batches) == 20
        assert rows_of(lake, "select count(*) from events") == [(0,)]
    assert (out.committed_count, out.row_count, len(set(ids))) == (20, 20, 20)
    assert rows_of(lake, "select count(*), sum(n) from events") == [(20, 190)]
    assert len(events.open().read_log().files) == 1


def test_an_appender_commits_what_is_good_and_says_at_the_end_what_was_refused(lake):
    table = lake.create_table("strict", columns={"n": "BIGINT"}, on_bad_rows="quarantine_batch")
    with pytest.raises(InvalidRequest, match="is refused: "), table.appender(commit_every_ms=60_000) as out:
        out.append([{"n": 1}])
        out.append([{"n": "wrong"}])
    assert out.committed_count == 1
    assert rows_of(lake, "select n from strict") == [(1,)]


def test_an_appender_counts_rows_that_went_to_quarantine(lake):
    table = lake.create_table("loose", columns={"n": "BIGINT"})
    with table.appender(commit_every_ms=60_000) as out:
        for number in range(2):
            out.append([{"n": number}, {"n": "wrong"}, {"n": "too"}])
    assert (out.committed_count, out.row_count, out.bad_row_count) == (2, 2, 4)


@pytest.fixture
def in_memory(warehouse, clock):
    """A lake in memory by a clock that sleeps at once, and its table, on which a worker of the stack was at work."""
    lake = connect("unused", clock=clock, warehouse=warehouse)
    table = lake.create_table("events")
    worker = Table.open(table.place, clock=clock, owner="ingest@other:1")
    acquire_fence(worker, "ingest").release()
    return lake, table, worker


def test_where_a_worker_is_alive_an_append_leaves_the_commit_to_it(in_memory, clock, monkeypatch):
    lake, table, worker = in_memory
    sleep = clock.sleep_ms

    def sleep_while_the_worker_works(duration_ms):
        sleep(duration_ms)
        if list_staged(table.place).batches:
            flush_table(worker.renewed(), lake.engine.writer)

    monkeypatch.setattr(clock, "sleep_ms", sleep_while_the_worker_works)
    done = table.append([{"n": 1}])
    assert done.committed_key is not None
    assert look_at_fence(table.place).owner == "ingest@other:1"


def test_an_append_commits_itself_where_the_worker_does_not(in_memory, clock):
    lake, table, _ = in_memory
    begun_ms = clock.monotonic_ms()
    assert table.append([{"n": 1}]).row_count == 1
    waited_ms = clock.monotonic_ms() - begun_ms
    assert 1000 < waited_ms <= 10_000
    assert table.append([{"n": 2}]).row_count == 1
    assert clock.monotonic_ms() - begun_ms == waited_ms, "not waited for again"
    assert look_at_fence(table.place).owner == lake.owner


def test_a_full_log_is_waited_for_and_then_says_what_to_do(in_memory, monkeypatch):
    _, table, _ = in_memory
    table.append([{"n": 1}])
    monkeypatch.setattr("icedb.table_writer.MAX_LOG_FILES", 1)
    with pytest.raises(Overloaded, match=r"1 files.*appender\(\).*log_grace") as refused:
        table.append([{"n": 2}])
    assert "is accepted" in str(refused.value)
    monkeypatch.undo()
    assert table.append([{"n": 3}]).committed_key
    assert not list_staged(table.place).batches


def test_who_waits_behind_others_for_a_full_log_waits_no_longer_than_they_do(in_memory, clock, monkeypatch):
    _, table, _ = in_memory
    table.append([{"n": 1}])
    monkeypatch.setattr("icedb.table_writer.MAX_LOG_FILES", 1)
    batches = dict([table.stage(encode_rows([{"n": 2}]), None)])
    waited_ms = []

    class Behind:
        """The turn of a thread comes when the one before it has given up."""

        def acquire(self, blocking=True):
            if blocking:
                clock.sleep_ms(ROOM_WAIT_MS)
                waited_ms.append(clock.monotonic_ms())
            return blocking

        def release(self):
            waited_ms.append(clock.monotonic_ms())

    monkeypatch.setattr(table, "flushing", Behind())
    with pytest.raises(Overloaded):
        table.commit(batches)
    turn_ms, end_ms = waited_ms
    assert end_ms - turn_ms < 1000


@pytest.mark.parametrize(
    ("operation", "task", "arguments", "lock"),
    [
        ("icedb_log.operations.import_files", INGEST_IMPORT, {"sources": ["file:///nowhere/*.parquet"]}, "flushing"),
        ("icedb.work.retain_table", MERGE_RETAIN, {}, "merging"),
        ("icedb_log.operations.remove_partitions", MERGE_DROP_PARTITIONS, {"globs": ["d=*"]}, "merging"),
        ("icedb_log.operations.delete_rows", MERGE_CHANGE, {"kind": "delete", "sql": "true"}, "merging"),
        ("icedb_log.erasure.erasure_run.advance_erasure", MERGE_ERASE, {}, "merging"),
    ],
)
def test_no_two_threads_of_a_process_take_a_fence_from_each_other(lake, monkeypatch, operation, task, arguments, lock):
    """They have one owner, and the same owner does not wait for itself (F6)."""
    table = lake.create_table("events", partition=["d=day(ts)"], retention="90d")
    seen = []

    class Done(IceDBError):
        pass

    def look(*_, hold=nullcontext, **__):
        with hold():
            seen.append(getattr(table, lock).locked())
        raise Done

    monkeypatch.setattr(operation, look)
    monkeypatch.setattr("icedb_log.erasure.erasure_run.list_open_ids", lambda *_, **__: ["one"])
    monkeypatch.setattr("icedb_log.erasure.erasure_run.read_erasure", lambda *_: SimpleNamespace(state="requested"))
    monkeypatch.setattr("icedb_log.operations.list_sources", lambda *_, **__: [])
    with pytest.raises(Done):
        Worker(lake, lake.table).run(task, "events", arguments)
    assert seen == [True]
    assert not getattr(table, lock).locked()


def test_tasks_of_workers_are_done_here_with_the_same_results(run_icedb, folder):
    run_icedb("table", "create", "events", "--partition", "d=day(ts)", "--sort", "event")
    lake = connect(warehouse=folder)
    for _ in range(8):
        lake.table("events").append(ROWS)
    merged = orjson.loads(run_icedb("merge", "events", "--local", "-o", "json"))
    assert (merged["outcome"], merged["files_in"], merged["files_out"]) == ("done", 16, 2)
    assert orjson.loads(run_icedb("merge", "events", "--local", "-o", "json"))["outcome"] == "idle"
    assert "log files" in run_icedb("vacuum", "events", "--local") or "nothing" in run_icedb(
        "vacuum", "events", "--local"
    )
    deleted = orjson.loads(run_icedb("delete", "events", "--where", "n = 1", "--yes", "--local", "-o", "json"))
    assert (deleted["rows_removed"], deleted["files_rewritten"]) == (8, 1)
    dropped = orjson.loads(
        run_icedb("partitions", "events", "d=2026-01-03", "--drop", "--force", "--yes", "--local", "-o", "json")
    )
    assert dropped["rows"] == 8
    assert "--local" in run_icedb("merge", "events", code=4)


def test_a_file_is_ingested_and_committed_in_one_command(run_icedb, folder, tmp_path):
    run_icedb("table", "create", "events")
    (tmp_path / "e.ndjson").write_text('{"n": 1}\n{"n": 2}\n')
    said = orjson.loads(run_icedb("ingest", "events", str(tmp_path / "e.ndjson"), "--commit", "-o", "json"))
    assert (said["committed"], said["rows"], said["waiting"]) == (1, 2, [])
    assert "give one of them" in run_icedb("ingest", "events", str(tmp_path / "e.ndjson"), "--commit", "--wait", code=2)


def test_icedb_work_does_what_is_due_and_says_it(run_icedb, folder):
    run_icedb("table", "create", "events")
    lake = connect(warehouse=folder)
    lake.gate.stage("events", encode_rows(ROWS), new_batch_id(lake.gate.clock))
    assert "ingest.flush: 1 commit, 1 batch, 2 rows, 1 file" in run_icedb("work", "--once")
    assert orjson.loads(run_icedb("work", "--once", "-o", "json")) == {"done": [], "problems": 0}


def test_a_first_look_at_a_table(lake):
    events = lake.create_table("looks", partition=["d=day(ts)"], sort=["ts"])
    events.append([{"ts": f"2026-01-02T00:00:0{second}Z", "n": second % 2} for second in range(5)])
    found = {column.name: column for column in events.describe(files=0).columns}
    assert (found["ts"].min.second, found["ts"].max.second, found["ts"].range_known) == (0, 4, "exact")
    assert found["n"].range_known == "unknown"
    assert {column.name: column.max for column in events.describe().columns}["n"] == 1


def test_what_tidying_meets_is_no_matter_of_the_append(lake, events, monkeypatch):
    monkeypatch.setattr("icedb.table_writer.TIDY_EVERY", 1)

    def refuse(*_, **__):
        raise CorruptLog("a data file is damaged")

    monkeypatch.setattr("icedb.table_writer.merge_table", refuse)
    assert events.append(ROWS).row_count == 2
    assert rows_of(lake, "select count(*) from events") == [(2,)]


def test_an_appender_goes_on_after_what_passes_and_says_what_does_not(lake, events, monkeypatch):
    commit, outcomes = events.commit, [CommitOutcomeUnknown("no answer"), None, OSError("disk")]
    turn = threading.Semaphore(0)

    def stumble(batches):
        try:
            if outcomes and (outcome := outcomes.pop(0)):
                raise outcome
            return commit(batches)
        finally:
            turn.release()

    monkeypatch.setattr(events, "commit", stumble)
    with pytest.raises(OSError, match="disk"), events.appender(commit_every_ms=1) as out:
        out.append(ROWS)
        assert turn.acquire(timeout=LIMIT_S)
        assert turn.acquire(timeout=LIMIT_S)  # the second try commits
        assert rows_of(lake, "select count(*) from events") == [(2,)]
        out.append(ROWS)
        assert turn.acquire(timeout=LIMIT_S)
        out._thread.join()
        out.append(ROWS)
    assert len(list_staged(events.place).batches) == 1  # it was accepted, and the next flush of the table takes it


@pytest.mark.parametrize("is_ended", [False, True])
def test_an_appender_accepts_nothing_outside_of_its_block(events, is_ended):
    out = events.appender()
    if is_ended:
        with out:
            out.append(ROWS)
    with pytest.raises(InvalidRequest, match="inside of its `with` block"):
        out.append(ROWS)
    assert not list_staged(events.place).batches


def test_a_table_that_cannot_be_worked_on_holds_up_no_other(lake, events, monkeypatch):
    lake.gate.stage("events", encode_rows(ROWS), new_batch_id(lake.gate.clock))
    lake.create_table("another", partition=["d=day(ts)"], retention="90d")

    def refuse(table, **_):
        raise InvalidRequest(f"table {table.name}: retention needs a person")

    monkeypatch.setattr("icedb.work.retain_table", refuse)
    told = []
    lake.work(until_idle=True, tell=told.append)
    assert {each.table for each in told if each.problem} == {"another"}
    assert rows_of(lake, "select count(*) from events") == [(2,)]


def test_a_table_whose_configuration_does_not_answer_holds_up_no_other(lake, events, monkeypatch, said_by_icedb):
    lake.gate.stage("events", encode_rows(ROWS), new_batch_id(lake.gate.clock))
    for name in ("another", "zebra"):
        lake.create_table(name)
    lake.drop_table("zebra")
    place = type(lake.warehouse.store)
    plain = place.get

    def get(store, key, **options):
        if key.endswith(("another/_icedb/table.json", "zebra/_icedb/table.json")):
            raise Unavailable(f"{key}: no answer")
        return plain(store, key, **options)

    monkeypatch.setattr(place, "get", get)
    told = []
    lake.work(until_idle=True, tell=told.append)
    assert {each.table for each in told if each.problem} == {"another", "zebra"}
    assert rows_of(lake, "select count(*) from events") == [(2,)]
    monkeypatch.setenv("ICEDB_STORE", lake.client.settings.store)
    status = orjson.loads(said_by_icedb("status", "-o", "json", code=1).out)["tables"]
    assert [(each["table"], "no answer" in each.get("error", {}).get("message", "")) for each in status] == [
        ("another", True), ("events", False), ("zebra", True),
    ]  # fmt: skip
    listed = orjson.loads(said_by_icedb("table", "list", "-o", "json", code=1).out)
    assert ([each["table"] for each in listed["tables"]], sorted(listed["unreadable"])) == (
        ["events"], ["another", "zebra"],
    )  # fmt: skip


def test_a_table_that_fails_again_and_again_is_tried_later_each_time(tmp_path, cli_env):
    clock, tried_ms = FakeClock(), []

    def fail(_table):
        tried_ms.append(clock.monotonic_ms())
        raise Unavailable("the store does not answer")

    with connect(tmp_path / "lake", clock=clock) as lake:
        lake.create_table("events", partition=["d=day(ts)"])
        worker = Worker(lake, lake.table, stops=lambda: clock.monotonic_ms() > 100_000)
        worker._tasks = {**worker._tasks, INGEST_FLUSH: fail}
        worker._repeat(lambda _: None, {INGEST_FLUSH}, pause_ms=1000)
    pauses = [later - before for before, later in itertools.pairwise(tried_ms)]
    assert pauses == [1000, 2000, 4000, 8000, 16_000, 32_000]


def test_a_worker_looks_less_often_at_a_table_that_rests_but_for_batches(lake, events):
    clock = FakeClock()
    worker, looks = Worker(lake, lake.table), Counter()
    worker._rests = {task: Rests(clock) for task in worker._rests}
    worker._due = {task: Intervals(clock, interval._interval_ms) for task, interval in worker._due.items()}
    work = Work(is_idle=True)
    worker._tasks = {task: lambda _, task=task: (looks.update([task]), work)[1] for task in worker._tasks}

    def look_for(duration_ms):
        looks.clear()
        for _ in range(duration_ms // SECOND_MS):
            worker._work_once(print, worker._due.keys(), is_all_due=False)
            clock.advance(SECOND_MS)
        return looks[INGEST_FLUSH], looks[MERGE_MERGE]

    assert look_for(MINUTE_MS) == (60, 6)
    look_for(8 * HOUR_MS)
    assert look_for(HOUR_MS) == (3600, 3)
    work = Work(is_idle=False)
    look_for(SECOND_MS)
    work = Work(is_idle=True)
    assert look_for(MINUTE_MS) == (60, 6), "a commit ends the rest"


def test_a_table_at_which_something_fails_does_not_rest(lake, events):
    clock = FakeClock()
    worker, tries = Worker(lake, lake.table), Counter()
    worker._rests = {task: Rests(clock) for task in worker._rests}
    worker._due = {task: Intervals(clock, interval._interval_ms) for task, interval in worker._due.items()}
    worker._backoff = Backoff(clock)

    def fail(_):
        tries.update([MERGE_MERGE])
        raise Unavailable("the store does not answer")

    worker._tasks = {**dict.fromkeys(worker._tasks, lambda _: Work(is_idle=True)), MERGE_MERGE: fail}
    for _ in range(2 * HOUR_MS // SECOND_MS):
        worker._work_once(lambda _: None, {MERGE_MERGE}, is_all_due=False)
        clock.advance(SECOND_MS)
    assert tries[MERGE_MERGE] > 100


def test_work_that_never_ends_ends_after_some_rounds_for_who_waits(lake, events, monkeypatch):
    monkeypatch.setattr("icedb.work.MAX_ROUNDS", 3)
    told = []
    worker = Worker(lake, lake.table, stops=lambda: len(told) == 20)
    worker._tasks = {**worker._tasks, INGEST_FLUSH: lambda _table: Work(is_idle=False)}
    worker.work(told.append, until_idle=True)
    assert len(told) == 4


def test_a_long_merge_holds_up_no_commit_of_others(lake, events, monkeypatch):
    lake.create_table("another", partition=["d=day(ts)"])
    began, may_end, stop, told = threading.Event(), threading.Event(), threading.Event(), queue.Queue()

    def merge(*_, **__):
        began.set()
        assert may_end.wait(LIMIT_S)
        return MergeResult()

    monkeypatch.setattr("icedb.lake_table.merge_table", merge)
    worker = threading.Thread(target=Worker(lake, lake.table, stops=stop.is_set).work, args=(told.put,))
    worker.start()
    try:
        assert began.wait(LIMIT_S)
        lake.gate.stage("events", encode_rows(ROWS), new_batch_id(lake.gate.clock))
        assert told.get(timeout=LIMIT_S).task == INGEST_FLUSH
        assert rows_of(lake, "select count(*) from events") == [(2,)]
    finally:
        stop.set()
        may_end.set()
        worker.join()


@pytest.mark.parametrize("task", [INGEST_FLUSH, MERGE_MERGE])
def test_what_ends_one_thread_of_a_worker_ends_it_whole(lake, events, task):
    def fail(_table):
        raise SystemExit("the process is to end")

    worker = Worker(lake, lake.table)
    worker._tasks = {**worker._tasks, task: fail}
    with pytest.raises(SystemExit, match="is to end"):
        worker.work(lambda _: None)
    assert not [each.name for each in threading.enumerate() if each.name == "icedb-work-commits"]


@pytest.mark.parametrize("task", [INGEST_FLUSH, MERGE_MERGE])
def test_what_nobody_foresaw_at_one_table_holds_up_no_other(lake, events, task):
    lake.create_table("another")
    lake.gate.stage("events", encode_rows(ROWS), new_batch_id(lake.gate.clock))
    worker, told = Worker(lake, lake.table), []
    plain = worker._tasks[task]

    def fail(table):
        if table == "another":
            raise RuntimeError("a fault of ours")
        return plain(table)

    worker._tasks = {**worker._tasks, task: fail}
    worker.work(told.append, until_idle=True)
    problems = {(each.table, each.task, str(each.problem)) for each in told if each.problem}
    assert [(name, what) for name, what, _ in problems] == [("another", task)]
    assert f"table another: {task}: RuntimeError: a fault of ours (test_lake.py:" in next(iter(problems))[2]
    assert rows_of(lake, "select count(*) from events") == [(2,)]


def test_one_batch_that_nobody_can_read_stops_nobody(lake, events, monkeypatch):
    """It crashes its reader: the append says why it was refused, and the next one is committed."""
    monkeypatch.setattr("icedb_engine.reading.unit.read_batch", crash_over(b"poison", read_batch))
    with pytest.raises(InvalidRequest, match=r"failed twice, alone.*MemoryError: poison \(test_lake.py:\d+\)"):
        events.append([{"ts": "2026-01-02T03:04:05Z", "event": "poison"}])
    assert events.append(ROWS).row_count == 2
    assert read_status(events.open()).quarantined_batches == 1


def crash_over(word, plain):
    def read(body, *more):
        if word in body:
            raise MemoryError("poison")
        return plain(body, *more)

    return read


@pytest.mark.parametrize("query", [None, "SELECT * FROM _rows"])
def test_a_batch_that_crashes_its_reader_is_isolated_beside_others(lake, monkeypatch, query):
    table = lake.create_table("t", insert_query=query, **({"source": {"n": "BIGINT"}} if query else {}))
    monkeypatch.setattr("icedb_engine.reading.unit.read_batch", crash_over(b"999", read_batch))
    for number in (1, 2, 999, 3, 4):
        table.stage(encode_rows([{"n": number}]), None)
    told = []
    lake.work(until_idle=True, tell=told.append)
    assert [str(each.problem) for each in told if each.problem] == []
    assert rows_of(lake, "select n from t order by n") == [(1,), (2,), (3,), (4,)]
    assert "MemoryError: poison" in list_quarantined(table.place)[0].reason


def test_a_table_whose_flushes_fail_says_so_until_one_ends_well(lake, events, monkeypatch, run_icedb):
    """The engine is broken: nothing is refused for that, and everybody sees it."""
    events.stage(encode_rows(ROWS), None)

    def broken(*_, **__):
        raise RuntimeError("the engine is broken")

    with monkeypatch.context() as patched:
        patched.setattr("icedb_engine.units.run_unit.flush_unit", broken)
        told = []
        lake.work(until_idle=True, tell=told.append)
        assert [(each.table, each.task) for each in told if each.problem] == [("events", INGEST_FLUSH)]
    state = read_status(events.open())
    assert "RuntimeError: the engine is broken" in state.failing
    assert find_health(state).word == "failing"
    assert (state.staged_batches, state.quarantined_batches, state.halted) == (1, 0, "")
    gate = PressureGate(lake.warehouse.store, clock=lake.clock)
    gate.check(events.place.paths)  # it takes batches, and says why they wait
    assert "takes batches, but its flushes fail" in gate.find_failure(events.place.paths)
    monkeypatch.setenv("ICEDB_STORE", lake.client.settings.store)
    assert "failing" in run_icedb("status")
    assert "RuntimeError: the engine is broken" in run_icedb("status", "events")
    assert events.append(ROWS).row_count == 2
    assert read_status(events.open()).failing == ""


def test_a_flush_on_a_full_log_commits_nothing(lake, events, monkeypatch):
    """Whoever flushes: readers of the original list a thousand log files, and miss the rest."""
    events.append(ROWS)
    events.stage(encode_rows(ROWS), None)
    monkeypatch.setattr("icedb_log.commit.commit.MAX_LOG_FILES", 1)
    with pytest.raises(Overloaded, match="its log has 1 files and takes no more than 1"):
        events.flush()
    assert len(list_staged(events.place).batches) == 1
    monkeypatch.undo()
    assert events.flush().row_count == 2


def test_a_lake_is_not_taken_over_a_fork(lake, events, monkeypatch):
    monkeypatch.setattr("os.getpid", lambda: lake._process_id + 1)
    with pytest.raises(InvalidRequest, match=r"call connect\(\) in the child"):
        events.append(ROWS)
