"""Back-pressure of the ingest worker: there and back, and never in the way of other work."""

import pytest
from icedb_ingest import pressure_watch
from icedb_ingest.metrics import IngestMetrics
from icedb_ingest.pressure_watch import PressureWatch
from icedb_ingest.settings import IngestSettings
from icedb_ingest.tasks import IngestTasks
from icedb_log.clean.vacuum import vacuum_table
from icedb_log.commit.invariants import MAX_LOG_FILES
from icedb_log.commit.table import Table
from icedb_log.errors import Overloaded
from icedb_log.ingest import pressure
from icedb_log.ingest.pressure import (
    PRESSURE_TTL_MS,
    Bounds,
    Pressure,
    PressureGate,
    publish_pressure,
    read_pressure,
)
from icedb_log.ingest.staging import list_staged
from icedb_log.merge.merge import merge_table
from icedb_log.merge.merge_plan import MergeOptions
from icedb_log.names import INGEST_FLUSH, MERGE_MERGE
from icedb_log.store.object_store import list_all
from icedb_log.store.table_store import TableStore
from icedb_log.warehouse import Warehouse
from icedb_sim.fakes.scripted_store import Effect, Fault, ScriptedStore
from icedb_sim.rigs.task_context import MemoryContext
from icedb_sim.tables.log_steps import lengthen_log

LOG_GRACE_MS = 20_000


class Ingest(TableStore):
    """One ingest worker on a store in memory."""

    def __init__(self, context, *, table="events", **options):
        self.context = context
        self.table = table
        self.clock = context.clock
        self.store = context.warehouse.store
        self.paths = context.warehouse.table(table).paths
        settings = IngestSettings(store="file:///tmp/w", **options)
        self.tasks = IngestTasks(context, settings=settings, metrics=context.metrics)

    def stage(self):
        self.context.stage([{"n": 1}], table=self.table)

    def flush(self):
        return self.tasks.flush(self.table).details

    def commit(self):
        """Stage a batch and commit it, however long its turn takes; return how long."""
        self.stage()
        started_ms = self.clock.monotonic_ms()
        while not self.flush()["commits"]:
            self.clock.advance(500)
        return self.clock.monotonic_ms() - started_ms

    def said(self):
        return read_pressure(TableStore(self.store, self.paths))

    def swept(self):
        self.context.wakeups.woken.clear()
        self.tasks.sweep()
        return self.context.wakeups.woken

    def log_files(self):
        return len(list_all(self.store, self.paths.log_prefix).objects)


def bound(monkeypatch, name, slow, stop):
    for module in (pressure, pressure_watch):
        monkeypatch.setattr(module, name, Bounds(slow, stop))


def measure_every(interval_ms, monkeypatch):
    monkeypatch.setattr(pressure_watch, "NEAR_INTERVAL_MS", interval_ms)


@pytest.fixture
def context(monkeypatch):
    bound(monkeypatch, "LOG_FILES", 3, 6)
    context = MemoryContext(IngestMetrics())
    store = ScriptedStore(context.warehouse.store)
    context.warehouse = Warehouse(store, context.warehouse.root)
    context.create_table("events", log_grace_ms=LOG_GRACE_MS)
    measure_every(0, monkeypatch)
    return context


@pytest.fixture
def ingest(context):
    return Ingest(context)


@pytest.fixture
def gate(ingest):
    return PressureGate(ingest.store, clock=ingest.clock, max_age_ms=0)


def test_there_and_back(ingest, gate):
    waits = [ingest.commit() for _ in range(3)]
    assert waits == [0, 1000, 1000]
    assert ingest.said().level == "slow"
    waits = [ingest.commit() for _ in range(3)]
    assert waits == [1000, 3914, 15_326]
    gate_error = None
    try:
        gate.check(ingest.paths)
    except Overloaded as error:
        gate_error = error
    assert gate_error.retry_after_ms == 10_000
    assert "6 log files: batches are refused from 6 on" in str(gate_error)

    assert ingest.commit() == 60_000
    merge_table(
        Table.open(ingest, clock=ingest.clock, owner="merge"),
        ingest.context.engine.merger,
        options=MergeOptions(full=True),
    )
    assert ingest.log_files() == 8
    ingest.clock.advance(3000)
    assert ingest.swept() == [(INGEST_FLUSH, "events")]
    ingest.flush()
    assert ingest.said().reason == "8 log files: batches are refused from 6 on"
    with pytest.raises(Overloaded):
        gate.check(ingest.paths)

    ingest.clock.advance(LOG_GRACE_MS)
    vacuum_table(Table.open(ingest, clock=ingest.clock))
    assert ingest.log_files() == 1
    assert ingest.swept() == [(INGEST_FLUSH, "events")]
    assert ingest.flush()["pressure"] == "none"
    assert ingest.said() is None
    gate.check(ingest.paths)
    assert ingest.swept() == []
    assert [ingest.commit() for _ in range(2)] == [0, 1000]


def test_a_stretched_flush_does_not_hold_the_worker(ingest):
    for _ in range(4):
        ingest.commit()
    ingest.clock.slept_ms.clear()
    ingest.stage()
    work = ingest.tasks.flush("events")
    assert work.is_idle
    assert (
        work.details["put_off"] == "the next commit is due in 3914 ms: 4 log files: flushes come less often from 3 on"
    )
    assert work.details["has_more"]
    assert ingest.clock.slept_ms == []
    assert ingest.context.metric("icedb_ingest_put_off_total", reason="interval") == 1
    assert (INGEST_FLUSH, "events") not in ingest.context.wakeups.woken


def test_the_sweep_picks_up_what_was_put_off_when_it_is_due(context, monkeypatch):
    measure_every(30_000, monkeypatch)
    ingest = Ingest(context)
    for _ in range(4):
        ingest.commit()
    ingest.clock.advance(30_000)
    ingest.flush()
    ingest.commit()
    ingest.stage()
    assert ingest.flush()["put_off"].startswith("the next commit is due in 3914 ms")
    assert ingest.swept() == []
    ingest.clock.advance(2_914)
    assert ingest.swept() == [(INGEST_FLUSH, "events")]
    assert ingest.flush()["commits"] == 1
    assert ingest.clock.slept_ms[-1] == 1000


def test_a_long_interval_is_left_to_the_sweep_too(context, monkeypatch):
    measure_every(5000, monkeypatch)
    ingest = Ingest(context, flush_interval_ms=10_000)
    ingest.commit()
    ingest.stage()
    ingest.store.calls.clear()
    assert ingest.flush()["put_off"] == "the next commit is due in 10000 ms"
    assert ingest.store.calls == [], "each staged batch wakes a flush: none of these may cost a LIST"


def test_a_worker_waits_for_the_turn_that_another_one_has_taken_and_never_longer_than_an_interval(ingest):
    for turn_ms, waited_ms in ((700, 700), (60_000, 1000)):
        ingest.context.wakeups.turns["events"] = turn_ms
        ingest.clock.advance(10_000)
        assert ingest.commit() == waited_ms


def test_rounds_of_one_run_feel_the_pressure_that_they_make(context):
    ingest = Ingest(context, flush_max_batches=1)
    for _ in range(6):
        ingest.stage()
    details = ingest.flush()
    assert (details["commits"], details["pressure"], details["has_more"]) == (4, "slow", True)
    assert details["put_off"].startswith("the next commit is due in 3914 ms")


def test_measures_of_a_table_near_its_bounds_are_rare(context, monkeypatch):
    measure_every(5000, monkeypatch)
    ingest = Ingest(context, flush_interval_ms=0)
    ingest.commit()
    for _ in range(3):
        ingest.commit()
    assert ingest.said() is None
    assert ingest.swept() == []
    ingest.clock.advance(5000)
    assert ingest.swept() == [(INGEST_FLUSH, "events")]
    ingest.flush()
    assert ingest.said().level == "slow"


def test_a_measure_that_takes_long_is_done_less_often(context, monkeypatch):
    measure_every(1000, monkeypatch)
    ingest = Ingest(context)
    for _ in range(3):
        ingest.commit()
        ingest.clock.advance(1000)
    listed = context.warehouse.store.list_page

    def list_slowly(*args, **kwargs):
        ingest.clock.advance(1000)
        return listed(*args, **kwargs)

    monkeypatch.setattr(context.warehouse.store, "list_page", list_slowly)
    ingest.tasks._watch.look(ingest.paths)
    monkeypatch.undo()
    ingest.clock.advance(19_999)
    assert ingest.swept() == []
    ingest.clock.advance(1)
    assert ingest.swept() == [(INGEST_FLUSH, "events")]


def test_the_whole_log_is_read_only_where_the_backlog_may_matter(context, monkeypatch):
    bound(monkeypatch, "LOG_FILES", 400, 800)
    bound(monkeypatch, "BACKLOG_FILES", 8, 12)
    context.create_table("wide", merge_fan_in=2)
    ingest = Ingest(context, table="wide", flush_interval_ms=0)

    def reads_whole_log():
        before = ingest.tasks._watch._tables["wide"].counted_ms
        ingest.clock.advance(1)
        ingest.commit()
        return ingest.tasks._watch._tables["wide"].counted_ms > before

    ingest.commit()
    assert [reads_whole_log() for _ in range(4)] == [False, False, True, True]
    assert ingest.said() is None
    for _ in range(3):
        ingest.commit()
    assert ingest.said().reason == "8 data files to merge: flushes come less often from 8 on"
    merge_table(
        Table.open(ingest, clock=ingest.clock, owner="merge"),
        context.engine.merger,
        options=MergeOptions(full=True),
    )
    ingest.flush()
    assert ingest.said() is None
    assert not reads_whole_log()
    ingest.clock.advance(30_000)
    assert reads_whole_log()


def test_a_fresh_worker_keeps_the_pace_of_the_one_before(context):
    before = Ingest(context)
    for _ in range(5):
        before.commit()
    before.stage()
    after = Ingest(context)
    assert after.swept() == [(INGEST_FLUSH, "events")]
    details = after.flush()
    assert details["put_off"].startswith("the next commit is due in 15")
    assert after.swept() == [(INGEST_FLUSH, "events")]


def test_a_worker_takes_back_what_another_said(context, gate, ingest):
    publish_pressure(ingest, Pressure("stop", 60.0, "long ago", 10_000), clock=ingest.clock)
    with pytest.raises(Overloaded):
        gate.check(ingest.paths)
    assert ingest.swept() == [(INGEST_FLUSH, "events")]
    assert ingest.flush()["pressure"] == "none"
    gate.check(ingest.paths)
    ingest.clock.advance(29_999)
    publish_pressure(ingest, Pressure("stop", 60.0, "again", 10_000), clock=ingest.clock)
    assert ingest.swept() == []
    ingest.clock.advance(1)
    assert ingest.swept() == [(INGEST_FLUSH, "events")]


def test_what_lasts_is_said_again_before_it_runs_out(ingest, gate):
    for _ in range(6):
        ingest.commit()
    for _ in range(PRESSURE_TTL_MS // 10_000 * 2):
        ingest.clock.advance(10_000)
        assert ingest.swept() == [(INGEST_FLUSH, "events")]
        ingest.flush()
        with pytest.raises(Overloaded):
            gate.check(ingest.paths)


def test_a_full_log_takes_no_commit_and_loses_no_batch(context):
    ingest = Ingest(context)
    lengthen_log(ingest, MAX_LOG_FILES - 1, clock=ingest.clock)
    ingest.clock.advance(60_000)
    assert ingest.commit() == 0
    ingest.stage()
    ingest.clock.advance(60_000)
    work = ingest.tasks.flush("events")
    assert work.is_idle
    assert work.details["put_off"] == (
        "the log has 950 files and takes no more than 950: merges and vacuum have to bring it down first"
    )
    assert context.metric("icedb_ingest_put_off_total", reason="log_full") == 1
    assert len(list_staged(ingest).batches) == 1
    assert ingest.log_files() == MAX_LOG_FILES
    ingest.store.inner.delete([list_all(ingest.store, ingest.paths.log_prefix).objects[0].key])
    assert ingest.swept() == [(INGEST_FLUSH, "events")]
    assert ingest.flush()["commits"] == 1


def test_merges_are_woken_after_each_commit_under_pressure(ingest):
    for _ in range(3):
        ingest.commit()
    assert (MERGE_MERGE, "events") in ingest.context.wakeups.woken
    ingest.context.wakeups.woken.clear()
    ingest.commit()
    assert ingest.context.wakeups.woken == [(MERGE_MERGE, "events")]
    ingest.flush()
    assert ingest.context.wakeups.woken == [(MERGE_MERGE, "events")]


@pytest.mark.parametrize("method", ["get", "put"])
def test_pressure_that_cannot_be_told_never_fails_a_flush(ingest, method):
    for _ in range(2):
        ingest.commit()
    ingest.clock.advance(1000)
    ingest.stage()
    ingest.store.script = [Fault(method, Effect.UNAVAILABLE, "pressure.json")]
    assert ingest.flush()["commits"] == 1
    assert ingest.said() is None
    assert ingest.flush()["pressure"] == "slow"
    assert ingest.said().level == "slow"


def test_an_unknown_table_without_batches_is_idle(ingest):
    assert ingest.tasks.flush("nowhere").is_idle


def test_a_sweep_that_cannot_ask_goes_on_with_the_other_tables(ingest, context):
    context.create_table("other")
    ingest.store.script = [Fault("get", Effect.UNAVAILABLE, "events/_icedb/pressure.json")]
    work = ingest.tasks.sweep()
    assert work.details["failed"] == 1
    assert work.details["tables"] == 2


@pytest.mark.parametrize(
    ("interval_ms", "stretch", "stretched_ms"),
    [
        (1000, 1, 1000),
        (1000, 7.5, 7500),
        (0, 1, 0),
        (0, 4, 3000),
        (500, 3, 2500),
        (5000, 60, 60_000),
        (1000, 60, 60_000),
    ],
)
def test_the_stretch_works_on_a_second_at_least_and_ends_at_the_longest_interval(
    context, interval_ms, stretch, stretched_ms
):
    settings = IngestSettings(store="file:///tmp/w", flush_interval_ms=interval_ms)
    assert PressureWatch(context, settings=settings).interval_ms(Pressure(stretch=stretch)) == stretched_ms


def test_a_table_waits_from_its_newest_commit_whoever_made_it(context):
    context.create_table("t")
    ours, theirs = (Ingest(context, table="t", flush_interval_ms=interval_ms) for interval_ms in (1000, 0))
    watch = ours.tasks._watch
    assert watch.due_in_ms("t") == 0
    ours.commit()
    assert watch.due_in_ms("t") == 1000
    context.clock.advance(600)
    theirs.commit()
    context.clock.advance(100)
    assert watch.due_in_ms("t") == 300, "nobody has looked at the log"
    watch.look(ours.paths, max_age_ms=0)
    assert watch.due_in_ms("t") == 900
    assert watch.due_in_ms("other") == 0
    context.clock.advance(9000)
    assert watch.due_in_ms("t") == 0


def test_the_plain_interval_is_not_longer_than_the_longest():
    with pytest.raises(
        ValueError, match="ICEDB_FLUSH_INTERVAL_MS <= ICEDB_FLUSH_MAX_INTERVAL_MS must hold, but 9000 > 5000"
    ):
        IngestSettings(store="file:///tmp/w", flush_interval_ms=9000, flush_max_interval_ms=5000)
