"""A table whose flushes fail: its worker says so to people and senders, and no other table waits for it."""

import pytest
from icedb_ingest.metrics import IngestMetrics
from icedb_ingest.settings import IngestSettings
from icedb_ingest.tasks import IngestTasks
from icedb_log.commit.table import Table
from icedb_log.errors import JobCrashed, Overloaded, Unavailable
from icedb_log.ingest.pressure import FAILURES_TOLD, Pressure, PressureGate, publish_pressure, read_pressure
from icedb_log.ingest.staging import list_staged
from icedb_log.names import INGEST_FLUSH
from icedb_log.serving.status import find_health, read_status
from icedb_log.store.object_store import delete_or_raise
from icedb_log.units import MINUTE_MS
from icedb_service.redis_clients import LockBusy
from icedb_sim.rigs.task_context import MemoryContext


class Failing:
    """An ingest worker whose engine raises what it is told to."""

    def __init__(self):
        self.context = MemoryContext(IngestMetrics())
        self.context.create_table("events")
        self.table = self.context.warehouse.table("events")
        settings = IngestSettings(store="file:///tmp/w", flush_interval_ms=0)
        self.tasks = IngestTasks(self.context, settings=settings, metrics=self.context.metrics)
        self.gate = PressureGate(self.table.store, clock=self.context.clock, max_age_ms=0)
        self.error = None
        plain = self.context.engine.writer.write_batches
        self.context.engine.writer = self
        self.write_batches = lambda job: self._raise() if self.error else plain(job)

    def _raise(self):
        raise self.error

    def flush(self, error=None):
        self.error = error
        if not list_staged(self.table, limit=1).batches:
            self.context.stage([{"n": 1}])
        if error is None:
            return self.tasks.flush("events")
        with pytest.raises(type(error) if isinstance(error, Unavailable) else JobCrashed):
            self.tasks.flush("events")
        return None

    def status(self):
        return read_status(Table.open(self.table, clock=self.context.clock))

    def warning(self):
        self.gate.check(self.table.paths)  # it takes batches
        return self.gate.find_failure(self.table.paths)


@pytest.fixture
def failing():
    return Failing()


def test_what_nobody_foresaw_is_told_at_once_and_taken_back_by_a_flush_that_commits(failing):
    failing.flush(RuntimeError("the engine is broken"))
    assert "RuntimeError: the engine is broken" in failing.status().failing
    assert (find_health(failing.status()).word, failing.status().halted) == ("failing", "")
    assert "takes batches, but its flushes fail, so that they wait" in failing.warning()
    failing.flush()
    assert (failing.status().failing, failing.warning(), read_pressure(failing.table)) == ("", "", None)


def test_a_server_that_does_not_answer_is_told_when_it_lasts(failing):
    for _ in range(FAILURES_TOLD - 1):
        failing.flush(Unavailable("Spark lost a flush job"))
        assert failing.status().failing == ""
    failing.flush(Unavailable("Spark lost a flush job"))
    assert failing.status().failing == "Spark lost a flush job"


@pytest.mark.parametrize("error", [LockBusy("another"), Overloaded("full")], ids=lambda error: type(error).__name__)
def test_who_is_only_late_does_not_fail(failing, error):
    for _ in range(FAILURES_TOLD):
        failing.flush(error)
    assert failing.status().failing == ""


def test_a_table_that_has_to_refuse_batches_refuses_them_although_its_flushes_fail(failing):
    stop = Pressure("stop", 60.0, "950 log files", 10_000)
    publish_pressure(failing.table, stop, clock=failing.context.clock)
    failing.flush(RuntimeError("the engine is broken"))
    # The measure before the flush found no pressure here, and took it back; a worker that finds it goes on saying so.
    publish_pressure(failing.table, stop, clock=failing.context.clock)
    with pytest.raises(Overloaded):
        failing.gate.check(failing.table.paths)


def test_the_sweep_wakes_the_tables_behind_one_that_nobody_foresaw(failing, monkeypatch):
    failing.context.create_table("zebra")
    failing.context.stage([{"n": 1}])
    failing.context.stage([{"n": 1}], table="zebra")
    plain = failing.tasks._choice.has_work

    def look(table, takes):
        if table.name == "events":
            raise KeyError("nobody foresaw this")
        return plain(table, takes)

    monkeypatch.setattr(failing.tasks._choice, "has_work", look)
    work = failing.tasks.sweep()
    assert (work.details["failed"], work.details["woken"]) == (1, 1)
    assert (INGEST_FLUSH, "zebra") in failing.context.wakeups.woken


def test_a_failure_ends_with_what_was_staged(failing):
    failing.flush(RuntimeError("the engine is broken"))
    delete_or_raise(failing.table.store, [batch.key for batch in list_staged(failing.table, limit=9).batches])
    failing.tasks.flush("events")
    assert failing.status().failing == ""


def test_a_table_whose_flush_failed_rests_no_more(failing):
    for _ in range(120):
        failing.context.clock.advance(MINUTE_MS)
        failing.tasks.sweep()
    failing.flush(Unavailable("Spark lost a flush job"))
    failing.context.wakeups.woken.clear()
    failing.tasks.sweep()
    assert failing.context.wakeups.woken == [(INGEST_FLUSH, "events")]
