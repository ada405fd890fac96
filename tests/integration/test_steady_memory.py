"""What workers and the exporter keep in memory over six simulated hours of tables that come, work and go."""

import gc
import tracemalloc

import pytest
from icedb_log.names import INGEST_FLUSH, JANITOR_PURGE, JANITOR_VACUUM, MERGE_MERGE
from icedb_log.trash.drop import DropRequest, drop_table
from icedb_log.units import HOUR_MS, KIB, MINUTE_MS, SECOND_MS
from swept_services import Services

TABLES = 12
HOURS = 6
STEP_MS = 5 * SECOND_MS
MOST_GROWN_BYTES = 64 * KIB
"""By which memory may grow in the last three hours: arenas, and caches that are about to be full."""


class Busy(Services):
    """Services with tables that take batches; one of them is dropped every ten minutes, and another one made."""

    def __init__(self):
        super().__init__()
        self.made = 0
        self.names = ["events"]
        for _ in range(TABLES - 1):
            self.make()

    def make(self):
        self.made += 1
        self.names.append(f"t{self.made:04}")
        policies = {"log_grace_ms": MINUTE_MS, "data_grace_ms": 2 * MINUTE_MS}
        self.ingest.create_table(self.names[-1], merge_fan_in=4, **policies)

    def live(self, duration_ms):
        ends_ms, steps = self.clock.monotonic_ms() + duration_ms, 0
        while self.clock.monotonic_ms() < ends_ms:
            self.clock.advance(STEP_MS)
            steps += 1
            self.ingest.stage([{"n": steps}], table=self.names[steps % len(self.names)])
            if steps % (10 * MINUTE_MS // STEP_MS) == 0:
                request = DropRequest(keep_ms=10 * MINUTE_MS)
                drop_table(self.ingest.warehouse.table(self.names.pop(1)), clock=self.clock, request=request)
                self.make()
            self.sweep()

    def sweep(self):
        flushes, merges, vacuums = self.flushers[0], self.mergers[0], self.vacuums
        for sweep in (flushes.sweep, merges.sweep, vacuums.sweep, self.exporter.export_once):
            sweep()
        tasks = {
            INGEST_FLUSH: (self.ingest, flushes.flush),
            MERGE_MERGE: (self.merger, merges.merge),
            JANITOR_VACUUM: (self.janitor, vacuums.vacuum),
            JANITOR_PURGE: (self.janitor, vacuums.purge),
        }
        for context in (self.ingest, self.merger, self.janitor):
            woken, context.wakeups.woken = dict.fromkeys(context.wakeups.woken), []
            for task, table in woken:
                if task in tasks:
                    where, work = tasks[task]
                    where.runner.run(lambda work=work, table=table: work(table), task=task, task_id="x", table=table)
            context.wakeups.released.clear()
            context.wakeups.announced.clear()
            context.locked.clear()
        self.store.calls.clear()


@pytest.mark.soak
def test_memory_of_workers_is_flat_over_six_hours():
    services, held = Busy(), []
    tracemalloc.start()
    try:
        for _ in range(HOURS):
            services.live(HOUR_MS)
            gc.collect()
            snapshot = tracemalloc.take_snapshot()
            held.append(snapshot)
    finally:
        tracemalloc.stop()
    sizes = [sum(each.size for each in snapshot.statistics("filename")) for snapshot in held]
    grown = held[-1].compare_to(held[HOURS // 2 - 1], "lineno")
    assert sizes[-1] - sizes[HOURS // 2 - 1] <= MOST_GROWN_BYTES, (sizes, [str(each) for each in grown[:15]])
