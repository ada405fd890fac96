"""A staging gate over a store in memory, and what the tasks find in their process."""

import pytest
from icedb_ingest.frontend.staging_gate import MISSING_AGE_MS, BatchBounds, Offer, StagingGate
from icedb_ingest.metrics import IngestMetrics
from icedb_log.ingest.staging import Acceptance, list_staged
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import TableConfig
from icedb_log.warehouse import Warehouse
from icedb_sim.fakes.fake_clock import FakeClock
from icedb_sim.fakes.memory_store import MemoryObjectStore
from icedb_sim.rigs.task_context import MemoryContext


class Pressure:
    """Says what the test says."""

    refusal = None
    failure = ""

    def find_failure(self, _paths):
        return self.failure

    def check(self, paths):
        if self.refusal is not None:
            raise self.refusal


class Bench(TableStore):
    """A staging gate over a store in memory.

    Attributes:
        lines: A good batch.
    """

    lines = b'{"a":1}\n'

    def __init__(self):
        self.clock = FakeClock()
        self.store = MemoryObjectStore(self.clock.now_ms)
        self.warehouse = Warehouse(self.store)
        self.paths = self.warehouse.table("events").paths
        self.config = TableConfig.create(name="events", evolution="add_columns", on_bad_rows="quarantine_batch")
        create_table(TableStore(self.store, self.paths), self.config)
        self.acceptance = Acceptance(self.warehouse, clock=self.clock, max_age_ms=30_000, missing_age_ms=MISSING_AGE_MS)
        self.acceptance.pressure = self.pressure = Pressure()
        self.woken = []
        self.bound(BatchBounds())

    def bound(self, bounds):
        self.gate = StagingGate(self.acceptance, clock=self.clock, on_staged=self.woken.append, bounds=bounds)

    def accept(self, body=lines, *, table="events", **fields):
        return self.gate.accept(Offer(table, body, fields.pop("format", "ndjson"), **fields))

    def staged_ids(self):
        return [batch.batch_id for batch in list_staged(TableStore(self.store, self.paths)).batches]


@pytest.fixture
def bench():
    return Bench()


@pytest.fixture
def context():
    context = MemoryContext(IngestMetrics())
    context.create_table("events")
    return context
