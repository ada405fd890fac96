"""What workers and the exporter remember over six simulated hours of tables that come, work and go: every collection.

A collection may grow with the names of tables that there ever were, if it is one of those that have a bound of their
own; none may grow with batches, commits, calls or time.
"""

from collections import deque

import pytest
from icedb_log.names import INGEST_FLUSH, JANITOR_PURGE, JANITOR_VACUUM, MERGE_MERGE
from icedb_log.trash.drop import DropRequest, drop_table
from icedb_log.units import HOUR_MS, MINUTE_MS, SECOND_MS
from swept_services import Services

TABLES = 8
STEP_MS = 15 * SECOND_MS
MAX_DEPTH = 6
SPREAD = 4
"""By how much the size of what comes and goes may differ from one look to another."""
BOUNDED = {
    "_numbers": "MAX_KNOWN_NAMES",
    "_rests": "MAX_KEYS",
    "_noted_ms": "MAX_KEYS",
    "_failures": "MAX_KEYS",
    "_kept": "MAX_LOG_BYTES",
    "_steady": "MAX_STEADY",
    "_tables": "MAX_TABLES",
    "_indexes": "MAX_INDEXES",
}
"""Collections of what is known of tables by name, also of those that are gone, and what bounds each."""
NOT_THEIRS = ("_app", "engine", "clock", "_clock", "store", "registry", "_settings", "wakeups", "locked")


class Busy(Services):
    """Services with tables that take batches; one of them is dropped every ten minutes, and another one made."""

    def __init__(self):
        super().__init__()
        self.made, self.names = 0, ["events"]
        for _ in range(TABLES - 1):
            self.make()

    def make(self):
        self.made += 1
        self.names.append(f"t{self.made:04}")
        self.ingest.create_table(self.names[-1], merge_fan_in=4, log_grace_ms=MINUTE_MS, data_grace_ms=2 * MINUTE_MS)

    def live(self, duration_ms):
        for step in range(duration_ms // STEP_MS):
            self.clock.advance(STEP_MS)
            self.ingest.stage([{"n": step}], table=self.names[step % TABLES])
            if step % (10 * MINUTE_MS // STEP_MS) == 0:
                request = DropRequest(keep_ms=10 * MINUTE_MS)
                drop_table(self.ingest.warehouse.table(self.names.pop(1)), clock=self.clock, request=request)
                self.make()
            self.sweep()

    def sweep(self):
        flushes, merges = self.flushers[0], self.mergers[0]
        for sweep in (flushes.sweep, merges.sweep, self.vacuums.sweep, self.exporter.export_once):
            sweep()
        tasks = {
            INGEST_FLUSH: (self.ingest, flushes.flush),
            MERGE_MERGE: (self.merger, merges.merge),
            JANITOR_VACUUM: (self.janitor, self.vacuums.vacuum),
            JANITOR_PURGE: (self.janitor, self.vacuums.purge),
        }
        for context in (self.ingest, self.merger, self.janitor):
            woken, context.wakeups.woken = dict.fromkeys(context.wakeups.woken), []
            for task, table in woken:
                if task in tasks:
                    where, work = tasks[task]
                    where.runner.run(lambda work=work, table=table: work(table), task=task, task_id="x", table=table)
        self.store.calls.clear()

    def count(self):
        """Return how much is in each collection that the services reach, by where it is."""
        found, seen = {}, set()
        rest = [("flush", self.flushers[0]), ("merge", self.mergers[0]), ("janitor", self.vacuums)]
        rest.append(("exporter", self.exporter))
        while rest:
            path, it = rest.pop()
            if id(it) in seen or path.count(".") > MAX_DEPTH:
                continue
            seen.add(id(it))
            if isinstance(it, dict | set | list | deque) or hasattr(it, "currsize"):
                found[path] = len(it)
                continue
            slots = [name for kind in type(it).__mro__ for name in getattr(kind, "__slots__", ()) if hasattr(it, name)]
            for name in {*vars(it), *slots} if hasattr(it, "__dict__") else slots:
                if name not in NOT_THEIRS:
                    rest.append((f"{path}.{name}", getattr(it, name)))
        return found


@pytest.mark.soak
def test_what_services_remember_does_not_grow_with_time():
    services = Busy()
    services.live(3 * HOUR_MS)
    before = services.count()
    services.live(3 * HOUR_MS)
    grown = {path: (before.get(path, 0), size) for path, size in services.count().items()}
    grown = {path: sizes for path, sizes in grown.items() if sizes[1] > sizes[0] + SPREAD}
    assert {path.rpartition(".")[2] for path in grown} <= {*BOUNDED}, grown
    assert all(size <= services.made + 2 for _, size in grown.values()), grown
    assert len(before) > 20
