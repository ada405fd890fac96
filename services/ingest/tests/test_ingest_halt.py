"""A table on which flushes halt: its worker says so, to every door and every person, and takes it back when it is over."""

import pytest
from icedb_ingest.metrics import IngestMetrics
from icedb_ingest.settings import IngestSettings
from icedb_ingest.tasks import IngestTasks
from icedb_log.changes.table_changes import alter_table_config
from icedb_log.commit.table import Table
from icedb_log.errors import SchemaConflict, TableHalted
from icedb_log.ingest.pressure import HALT_TTL_MS, PressureGate, read_pressure
from icedb_log.ingest.staging import list_staged
from icedb_log.log.codec import encode_log_file
from icedb_log.model import LogFile
from icedb_log.serving.status import read_status
from icedb_log.store.object_store import delete_or_raise
from icedb_log.store.table_store import TableStore
from icedb_log.warehouse import Warehouse
from icedb_sim.fakes.scripted_store import Effect, Fault, ScriptedStore
from icedb_sim.rigs.task_context import MemoryContext


class Halting:
    """An ingest worker and a table that was adopted with another type than its log has."""

    def __init__(self):
        self.context = MemoryContext(IngestMetrics())
        self.store = ScriptedStore(self.context.warehouse.store)
        self.context.warehouse = Warehouse(self.store, self.context.warehouse.root)
        self.clock = self.context.clock
        self.paths = self.context.warehouse.table("events").paths
        log = LogFile(time_ms=self.clock.now_ms(), schema={"n": "BIGINT"}, markers=(), commit_id="c" * 32)
        key = self.paths.log_key(time_ms=log.time_ms, commit_id=log.commit_id, is_merged=False)
        self.store.put(key, encode_log_file(log))
        self.context.create_table("events", declared={"n": "VARCHAR"}, log_grace_ms=20_000)
        self.tasks = self.worker()
        self.gate = PressureGate(self.store, clock=self.clock, max_age_ms=0)

    def worker(self):
        settings = IngestSettings(store="file:///tmp/w", flush_interval_ms=0)
        return IngestTasks(self.context, settings=settings, metrics=self.context.metrics)

    def stage(self):
        self.context.stage([{"m": 1}])

    def mend(self):
        alter_table_config(TableStore(self.store, self.paths), {"declared": {"n": "BIGINT"}}, clock=self.clock)

    def is_open(self):
        try:
            self.gate.check(self.paths)
        except TableHalted as error:
            assert "table events is halted" in str(error)
            assert "the log" in str(error)
            return False
        return True

    def status(self):
        return read_status(Table.open(TableStore(self.store, self.paths), clock=self.clock))


@pytest.fixture
def halting():
    return Halting()


def halt(halting, tasks=None):
    with pytest.raises(SchemaConflict):
        (tasks or halting.tasks).flush("events")


def test_a_halt_is_told_until_a_flush_commits(halting):
    assert halting.is_open()
    halting.stage()
    halt(halting)
    assert not halting.is_open()
    assert "'n'" in halting.status().halted
    for _ in range(3):
        halting.clock.advance(HALT_TTL_MS // 2)
        halt(halting)  # each try measures first, and finds no pressure: that ends nothing
        assert not halting.is_open()
    halting.mend()
    assert not halting.is_open()
    assert halting.tasks.flush("events").details["commits"] == 1
    assert halting.is_open()
    assert halting.status().halted == ""
    assert read_pressure(halting) is None


def test_another_worker_ends_what_this_one_said(halting):
    halting.stage()
    halt(halting)
    halting.mend()
    assert halting.worker().flush("events").details["commits"] == 1
    assert halting.is_open()


def test_a_halt_ends_when_what_was_staged_is_taken_out(halting):
    halting.stage()
    halt(halting)
    delete_or_raise(halting.store, [batch.key for batch in list_staged(halting, limit=9).batches])
    halting.worker().flush("events")
    assert halting.is_open()


def test_what_a_dead_worker_said_of_a_halt_runs_out(halting):
    halting.stage()
    halt(halting)
    assert not halting.is_open()
    halting.clock.advance(HALT_TTL_MS + 1000)
    assert halting.is_open()
    assert halting.status().halted == ""


def test_a_halt_that_cannot_be_told_is_a_halt_all_the_same(halting):
    halting.stage()
    halting.store.script.append(Fault("put", Effect.UNAVAILABLE, key=halting.paths.pressure_key))
    halt(halting)
    assert halting.is_open()
    halt(halting)
    assert not halting.is_open()
