"""What keeps the janitor honest: its audit, its bounds, and the store's clock instead of its own."""

import threading

import pytest
from icedb_janitor.metrics import JanitorMetrics
from icedb_janitor.settings import JanitorSettings
from icedb_janitor.tasks import MAX_OBJECTS, JanitorTasks
from icedb_log.clean.deletion import CHUNK_KEYS, AuditPart, read_audit
from icedb_log.errors import Unavailable
from icedb_log.names import JANITOR_VACUUM
from icedb_log.store.object_store import list_all
from icedb_log.warehouse import Warehouse
from icedb_service.redis_clients import LockLost
from icedb_sim.fakes.scripted_store import Effect, Fault
from icedb_sim.rigs.task_context import MemoryContext
from icedb_sim.tables.small_table import SmallTable
from structlog.testing import capture_logs
from waiting import LIMIT_S

DAY_MS = 86_400_000
MINUTE_MS = 60_000


class Place:
    """A table whose store has a clock of its own, and a janitor on a host with another."""

    def __init__(self, **settings):
        self.table = SmallTable(name="events", root="root")
        self.context = MemoryContext(JanitorMetrics())
        self.context.warehouse = Warehouse(self.table.store, "root")
        options = {"store": "file:///tmp/w", "orphan_sweep_interval_ms": 3_600_000} | settings
        settings = JanitorSettings(**options)
        self.tasks = JanitorTasks(self.context, settings=settings, metrics=self.context.metrics)

    def fill(self, count=4):
        for number in range(count):
            self.table.append(number)
        self.table.merge(full=True)

    def wait(self, duration_ms):
        """Time passes, on both clocks."""
        self.table.clock.advance(duration_ms)
        self.context.clock.advance(duration_ms)

    def keys(self):
        """All objects but the scratch object of the clock's check."""
        return set(self.table.keys()) - {self.table.paths.clock_key}

    def vacuum(self):
        return self.tasks.vacuum("events").details

    def audit(self):
        return list(read_audit(self.table))

    def metric(self, name, **labels):
        return self.context.metric(f"icedb_janitor_{name}", **labels)


@pytest.fixture
def place():
    return Place()


def test_whatever_is_deleted_stands_in_the_audit(place):
    place.fill()
    place.wait(DAY_MS)
    gone = place.keys()
    details = place.vacuum()
    gone -= place.keys()
    parts = place.audit()
    assert all(isinstance(part, AuditPart) and part.owner == "test" for part in parts)
    assert {entry.key for part in parts for entry in part.entries if entry.outcome == "deleted"} == gone
    assert len(gone) == details["deleted_data_files"] + details["deleted_log_files"] == 8


def test_without_its_audit_the_janitor_deletes_nothing_and_says_so(place):
    place.fill()
    place.wait(DAY_MS)
    before = place.keys()
    place.table.store.script = [Fault("put", Effect.UNAVAILABLE, key="/_icedb/audit/")]
    with pytest.raises(Unavailable):
        place.vacuum()
    assert place.keys() == before
    assert place.metric("audit_failures_total", step="announce") == 1
    assert place.vacuum()["deleted_data_files"] == 4


def test_outcomes_that_cannot_be_written_are_counted_and_stop_nothing(place):
    place.fill()
    place.wait(DAY_MS)
    audit = f"{place.table.paths.audit_prefix}"
    place.table.store.script = [Fault("put", None, key=audit), Fault("put", Effect.UNAVAILABLE, key=audit)]
    assert place.vacuum()["deleted_data_files"] == 4
    assert place.metric("audit_failures_total", step="conclude") == 1


def test_old_audit_goes_with_the_orphan_sweep(place):
    place.fill()
    place.wait(DAY_MS)
    place.vacuum()
    part_count = len(place.audit())
    assert part_count > 0
    place.table.clock.advance(place.table.config.audit_retention_ms)
    assert "deleted_audit" not in place.vacuum(), "at most once per sweep"
    place.context.clock.advance(3_600_000)
    with pytest.raises(Unavailable, match="minutes apart"):
        place.vacuum()
    place.context.clock.advance(place.table.config.audit_retention_ms - 3_600_000)
    assert place.vacuum()["deleted_audit"] == part_count
    assert place.audit() == []
    assert place.metric("deleted_objects_total", kind="audit") == part_count


def test_a_bounded_run_wakes_its_table_again_and_leaves_the_walk_for_later(monkeypatch):
    monkeypatch.setattr("icedb_janitor.tasks.MAX_OBJECTS", 1000)
    place = Place()
    for number in range(3):
        place.table.append(*range(number, number + 2))
    add_dead_files(place.table, 1500)
    place.wait(DAY_MS)
    runs = []
    while not runs or runs[-1]["has_more"]:
        runs.append(place.vacuum())
    assert sum(run["deleted_data_files"] for run in runs) == 1500
    assert len(runs) > 1
    assert place.context.wakeups.woken == [(JANITOR_VACUUM, "events")] * (len(runs) - 1)
    assert ["deleted_orphans" in run for run in runs] == [False] * (len(runs) - 1) + [True]


def add_dead_files(table, count):
    """So many dead data files, as many partitions that were removed leave behind."""
    for number in range(count // 50):
        table.stage([{"id": 50 * number + each, "p": f"x{50 * number + each}"} for each in range(50)])
        table.flush()
    table.drop("p=x*")


def test_a_lock_that_is_lost_stops_the_run_before_its_next_deletes(place):
    place.fill()
    place.wait(DAY_MS)
    place.context.held.failure = LockLost("lost")
    before = place.keys()
    with pytest.raises(LockLost):
        place.vacuum()
    assert place.keys() == before


def test_a_run_that_takes_too_long_stops_before_its_next_deletes(place):
    place.fill()
    place.wait(DAY_MS)
    stall = Fault("get", None, key="table.json", before=lambda: place.wait(3_600_000))
    place.table.store.script = [stall]
    with pytest.raises(Unavailable, match="ICEDB_TASK_TIME_LIMIT_MS"):
        place.vacuum()
    assert place.vacuum()["deleted_data_files"] == 4


@pytest.mark.parametrize("days", [-30, -1, 1, 30, 3650])
def test_a_host_clock_that_jumps_by_days_deletes_nothing_early(place, days):
    """Dead and unnamed files, each just too young by the store's clock; the host's can stop a vacuum, nothing more."""
    table, host = place.table, place.context.clock
    unnamed = table.paths.data_key(partition="p=a", file_id="ab")
    place.fill()
    table.store.put(unnamed, b"x")
    table.clock.advance(table.config.data_grace_ms - 1000)
    before = set(table.keys(table.paths.data_prefix))
    host.set_wall(table.clock.now_ms() + days * DAY_MS)
    for _ in range(3):
        with pytest.raises(Unavailable, match="minutes apart"):  # log files are old, and one of both clocks is wrong
            place.vacuum()
        host.set_wall(host.now_ms() + days * DAY_MS)
    assert set(table.keys(table.paths.data_prefix)) == before
    host.set_wall(table.clock.now_ms())
    assert place.vacuum()["deleted_data_files"] == 0
    place.wait(2000)
    assert place.vacuum()["deleted_data_files"] == 4
    assert unnamed in table.keys(table.paths.data_prefix)


def test_tables_side_by_side_have_readers_metrics_and_times_of_their_own():
    """Two runs meet in the middle: each holds its table's lock while the other works."""
    place = Place()
    other = SmallTable(store=place.table.store.inner, name="other", root="root")
    for table in (place.table, other):
        table.append(1)
        table.append(2)
        table.merge(full=True)
    place.wait(DAY_MS)
    together = threading.Barrier(2, timeout=LIMIT_S)
    inner = place.table.store.inner
    delete = inner.delete

    def meet(keys):
        if "/_log/" in keys[0]:
            together.wait()
        return delete(keys)

    inner.delete = meet
    results = {}
    runs = [
        threading.Thread(target=lambda name=name: results.update({name: place.tasks.vacuum(name).details}))
        for name in ("events", "other")
    ]
    for run in runs:
        run.start()
    for run in runs:
        run.join(LIMIT_S)
    assert {name: found["deleted_data_files"] for name, found in results.items()} == {"events": 2, "other": 2}
    assert place.metric("deleted_objects_total", kind="data_file") == 4
    for table in (place.table, other):
        assert len(list_all(inner, table.paths.data_prefix).objects) == 1


def test_a_chunk_is_no_larger_than_a_run():
    assert MAX_OBJECTS >= CHUNK_KEYS


def test_a_store_whose_clock_jumps_ahead_ends_no_grace_period(place):
    """What a vacuum has heard of the store's time lasts until the next one (J1)."""
    place.fill()
    place.vacuum()
    place.table.store.inner._now_ms = lambda: place.table.clock.now_ms() + 10 * MINUTE_MS
    with capture_logs() as logs:
        assert place.vacuum()["deleted_log_files"] == 0
    assert [line["held_back_ms"] for line in logs if line["event"] == "store_clock_jumped"] == [10 * MINUTE_MS]
    assert place.metric("clock_held_back_seconds", table="events") == 600


def test_a_store_whose_clock_is_far_from_the_hosts_stops_the_vacuum(place):
    place.fill()
    place.table.store.inner._now_ms = lambda: place.table.clock.now_ms() + DAY_MS
    before = set(place.table.keys(place.table.paths.log_prefix))
    with pytest.raises(Unavailable, match="minutes apart"):
        place.vacuum()
    assert set(place.table.keys(place.table.paths.log_prefix)) == before
