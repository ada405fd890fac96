"""Ingest, merger, janitor and snapshot service in this process, which sweep when a simulated clock says so."""

import random
from types import SimpleNamespace

from icedb_ingest.metrics import IngestMetrics
from icedb_ingest.settings import IngestSettings
from icedb_ingest.tasks import IngestTasks
from icedb_janitor.metrics import JanitorMetrics
from icedb_janitor.settings import JanitorSettings
from icedb_janitor.tasks import JanitorTasks
from icedb_log.names import INGEST_FLUSH, JANITOR_VACUUM
from icedb_log.serving.table_cache import TableCache
from icedb_log.units import MINUTE_MS, SECOND_MS
from icedb_log.warehouse import Warehouse
from icedb_merger.metrics import MergeMetrics
from icedb_merger.settings import MergerSettings
from icedb_merger.tasks import MergeTasks
from icedb_sim.fakes.scripted_store import ScriptedStore
from icedb_sim.rigs.task_context import MemoryContext
from icedb_snapshot.lag import LagExporter
from icedb_snapshot.metrics import SnapshotMetrics
from icedb_snapshot.requests import ServiceParts
from icedb_snapshot.settings import SnapshotSettings


class Looks:
    """Redis, as workers claim looks in it, and tell each other of tables."""

    def __init__(self, clock):
        self.clock, self.ends_ms, self.tables_ms = clock, {}, {}

    def give_to(self, wakeups):
        wakeups.claim_look, wakeups.find_tables, wakeups.note_tables = self.claim, self.find_tables, self.note_tables

    def find_tables(self, names):
        return [name for name in names if self.tables_ms.get(name, 0) > self.clock.monotonic_ms()]

    def note_tables(self, names, *, for_ms):
        self.tables_ms.update(dict.fromkeys(names, self.clock.monotonic_ms() + for_ms))

    def claim(self, what, pause_ms):
        now_ms = self.clock.monotonic_ms()
        is_free = self.ends_ms.get(what, now_ms) <= now_ms
        if is_free:
            self.ends_ms[what] = now_ms + pause_ms
        return is_free


class Services:
    """Ingest, merger, janitor and snapshot service of one warehouse, which sweep when a simulated clock says so.

    Args:
        workers: Ingest workers, and mergers: any of them takes a sweep, or a turn.
    """

    def __init__(self, workers=1):
        store = "file:///unused"
        self.ingest = MemoryContext(IngestMetrics())
        self.merger = MemoryContext(MergeMetrics(), beside=self.ingest)
        self.janitor = MemoryContext(JanitorMetrics(), beside=self.ingest)
        self.clock = self.ingest.clock
        self.store = ScriptedStore(self.ingest.warehouse.store)
        looks = Looks(self.clock)
        for context in (self.ingest, self.merger, self.janitor):
            context.warehouse = Warehouse(self.store, "root")
            looks.give_to(context.wakeups)
        warehouse = Warehouse(self.store, "root")
        self.ingest.create_table("events", log_grace_ms=MINUTE_MS)
        settings = IngestSettings(store=store)
        self.flushers = [
            IngestTasks(each, settings=settings, metrics=each.metrics) for each in self.hire(self.ingest, workers)
        ]
        settings = MergerSettings(store=store)
        self.mergers = [
            MergeTasks(each, settings=settings, metrics=each.metrics) for each in self.hire(self.merger, workers)
        ]
        self.vacuums = JanitorTasks(self.janitor, settings=JanitorSettings(store=store), metrics=self.janitor.metrics)
        tables = TableCache(warehouse, clock=self.clock, max_tables=9, wait_ms=1000, on_refresh=lambda _: None)
        settings, metrics = SnapshotSettings(store=store), SnapshotMetrics()
        reads = SimpleNamespace(tables=tables)
        self.exporter = LagExporter(ServiceParts(warehouse, settings, metrics, self.clock, reads, None, None))
        self.registry = metrics.registry
        self.rng = random.Random(0)
        self.sweeps = {
            2 * SECOND_MS: self.sweep_ingest,
            10 * SECOND_MS: lambda: self.rng.choice(self.mergers).sweep(),
            15 * SECOND_MS: self.exporter.export_once,
            30 * SECOND_MS: self.sweep_janitor,
        }

    @staticmethod
    def hire(first, count):
        """Return a context and more of them, that send to the same queue."""
        others = [MemoryContext(type(first.metrics)(), beside=first) for _ in range(count - 1)]
        for each in others:
            each.warehouse, each.wakeups = Warehouse(first.warehouse.store, "root"), first.wakeups
        return [first, *others]

    def sweep_ingest(self):
        self.rng.choice(self.flushers).sweep()
        self.run_woken(self.ingest, INGEST_FLUSH, lambda table: self.rng.choice(self.flushers).flush(table))

    def sweep_janitor(self):
        self.vacuums.sweep()
        self.run_woken(self.janitor, JANITOR_VACUUM, self.vacuums.vacuum)

    def run_woken(self, context, task, work):
        if (task, "events") in context.wakeups.woken:
            context.wakeups.woken.clear()
            work("events")

    def run(self, duration_ms):
        """Let time pass; return the requests for objects of the table."""
        self.store.calls.clear()
        ends_ms = self.clock.monotonic_ms() + duration_ms
        while self.clock.monotonic_ms() < ends_ms:
            self.clock.advance(SECOND_MS)
            for interval_ms, sweep in self.sweeps.items():
                if self.clock.monotonic_ms() // SECOND_MS * SECOND_MS % interval_ms == 0:
                    sweep()
        return [call for call in self.store.calls if "/events/" in call.key]

    def figure(self, name):
        return self.registry.get_sample_value(f"icedb_table_{name}", {"table": "events"})
