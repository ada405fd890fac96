"""The figures of all tables in the console: what is wrong with one keeps no other from being shown."""

import pytest
from icedb_console.figures import Figures
from icedb_ingest.metrics import IngestMetrics
from icedb_log.changes.table_changes import alter_table_config
from icedb_log.errors import JobCrashed, NotFound, Unavailable
from icedb_log.serving.statuses import StatusReader
from icedb_log.serving.table_cache import TableCache
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import TableConfig
from icedb_log.warehouse import Warehouse
from icedb_sim.fakes.fake_clock import FakeClock
from icedb_sim.fakes.memory_store import MemoryObjectStore
from icedb_sim.rigs.task_context import MemoryContext


def open_statuses(warehouse, clock):
    tables = TableCache(warehouse, clock=clock, max_tables=9, wait_ms=1000, on_refresh=lambda _: None)
    return StatusReader(warehouse, tables, clock=clock)


class Shown(Figures):
    """Figures of three tables; reading one of them raises what it is told to."""

    def __init__(self):
        clock = FakeClock()
        warehouse = Warehouse(MemoryObjectStore(clock.now_ms))
        for name in ("a", "b", "c"):
            create_table(warehouse.table(name), TableConfig.create(name=name))
        statuses = open_statuses(warehouse, clock)
        super().__init__(warehouse, statuses, clock=clock, interval_ms=1000, threads=1)
        self.errors = {}
        self._plain = statuses.read
        statuses.read = self._read

    def _read(self, name, *, log=None):
        if name in self.errors:
            raise self.errors[name]
        return self._plain(name, log=log)

    def words(self):
        return {name: each.health.word for name, each in self.look().items()}


@pytest.fixture
def figures():
    return Shown()


def test_all_tables_are_shown(figures):
    assert figures.words() == {}
    figures.read_round()
    assert figures.words() == {"a": "ok", "b": "ok", "c": "ok"}
    assert figures.problem == ""


@pytest.mark.parametrize(
    ("error", "kind"), [(KeyError("nobody foresaw this"), JobCrashed), (Unavailable("no answer"), Unavailable)], ids=str
)
def test_a_table_that_cannot_be_read_hides_none_of_the_others_and_says_why(figures, error, kind):
    figures.errors["a"] = error
    figures.read_round()
    assert {name: each.error is None for name, each in figures.look().items()} == {"a": False, "b": True, "c": True}
    assert type(figures.look()["a"].error) is kind
    figures.errors.clear()
    figures.read_round()
    figures.errors["b"] = error
    figures.read_round()
    shown = figures.look()
    assert (shown["a"].error, type(shown["b"].error)) == (None, kind)
    assert shown["b"].status is not None, "its last figures stay"


def test_a_table_that_is_dropped_while_it_is_read_is_gone(figures):
    figures.read_round()
    figures.errors["b"] = NotFound("dropped meanwhile")
    figures.read_round()
    assert sorted(figures.look()) == ["a", "c"]


def test_a_promoted_column_is_shown_when_readers_see_it():
    context = MemoryContext(IngestMetrics())
    context.create_table("events", declared={"properties": "VARCHAR"})
    context.commit([{"properties": "{}"}])
    change = {"declared": {"plan": "VARCHAR"}, "promoted": {"plan": ["properties", "plan"]}}
    alter_table_config(context.warehouse.table("events"), change, clock=context.clock)
    statuses = open_statuses(context.warehouse, context.clock)
    figures = Figures(context.warehouse, statuses, clock=context.clock, interval_ms=1000, threads=1)
    figures.read_table("events")
    assert figures.look()["events"].columns == {"properties": "VARCHAR"}
