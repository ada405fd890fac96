"""Figures of every table, whatever is wrong with one of them."""

from dataclasses import fields
from types import SimpleNamespace

import pytest
from icedb_log.clock import new_batch_id
from icedb_log.commit.fence import FenceState, write_fence
from icedb_log.errors import Unavailable
from icedb_log.feed.views import create_view, detach_view
from icedb_log.ingest import pressure
from icedb_log.ingest.pressure import Bounds
from icedb_log.ingest.staging import stage_batch
from icedb_log.log.reader import LogReader
from icedb_log.log.state import LogState
from icedb_log.merge.small_files import Backlog
from icedb_log.serving import status
from icedb_log.serving.status import TableStatus, list_backlog, measure_backlog
from icedb_log.serving.table_cache import TableCache
from icedb_log.store.store_clock import MAX_STORE_GAP_MS
from icedb_log.store.table_store import TableStore
from icedb_log.table.table_config import TableConfig
from icedb_sim.fakes.fake_clock import FakeClock
from icedb_sim.tables.lease_steps import put_lease
from icedb_snapshot.lag import LagExporter
from icedb_snapshot.metrics import FIGURES, SnapshotMetrics, value_of
from icedb_snapshot.requests import ServiceParts
from icedb_snapshot.settings import SnapshotSettings


@pytest.fixture
def metrics():
    return SnapshotMetrics()


@pytest.fixture
def registry(metrics):
    return metrics.registry


@pytest.fixture
def exporter(warehouse, clock, metrics):
    tables = TableCache(warehouse, clock=clock, max_tables=9, wait_ms=1000, on_refresh=lambda _: None)
    settings, reads = SnapshotSettings(store="file:///unused"), SimpleNamespace(tables=tables)
    parts = ServiceParts(warehouse, settings, metrics, clock, reads, names=None, access=None)
    return LagExporter(parts)


def test_figures_of_a_table(tables, exporter, registry, clock):
    tables.create(merge_fan_in=2)
    first = clock.ms + 1
    for _ in range(4):
        tables.commit(files=[("d=2026-01-02", 10)])
    clock.ms = first + 5000
    assert exporter.export_once() == {"events": "shown"}

    def value(what):
        return registry.get_sample_value(f"icedb_table_{what}", {"table": "events"})

    assert value("data_files") == value("log_files") == 4
    assert value("live_rows") == 40
    assert value("live_bytes") == 400
    assert value("halted") == value("staged_batches") == value("quarantined_batches") == value("bad_row_batches") == 0
    assert value("merge_lag_files") == 4
    assert value("merge_lag_bytes") == 400
    assert value("merge_lag_seconds") == 5
    assert value("open_erasures") == value("oldest_erasure_seconds") == 0
    assert (value("data_grace_seconds"), value("orphan_age_seconds")) == (6 * 3600, 24 * 3600)
    assert value("log_grace_seconds") == 600
    assert value("last_commit_timestamp_seconds") == (first + 3) / 1000
    assert registry.get_sample_value("icedb_snapshot_exporter_last_success_timestamp_seconds") == clock.ms / 1000


def test_a_table_that_nobody_foresaw_hides_none_of_the_others(tables, exporter, registry, monkeypatch):
    tables.create()
    plain = exporter._statuses.read

    def read(name):
        if name == "another":
            raise KeyError("nobody foresaw this")
        return plain(name)

    monkeypatch.setattr(exporter._statuses, "read", read)
    monkeypatch.setattr(type(exporter._parts.warehouse), "list_tables", lambda *_, **__: ("another", "events"))
    assert exporter.export_once() == {"another": "failed", "events": "shown"}
    assert registry.get_sample_value("icedb_table_live_rows", {"table": "events"}) == 0


def test_figures_are_those_of_their_names():
    names = [field.name for field in fields(TableStatus) if field.name in FIGURES]
    status = SimpleNamespace(**{name: number for number, name in enumerate(names)})
    counted = [name for name in names if name not in ("lost_commits", "leases")]
    assert {"staged_batches", "quarantined_batches", "bad_row_batches", "tombstoned_files"} <= {*counted}
    assert [value_of(status, FIGURES[name][0]) for name in counted] == [getattr(status, name) for name in counted]


def test_open_erasures_and_the_age_of_the_oldest(tables, exporter, registry, warehouse, clock):
    tables.create()
    paths = warehouse.table("events").paths
    for age_ms in (5000, 90_000):
        old = FakeClock(clock.ms - age_ms)
        warehouse.store.put(paths.erasure_key(new_batch_id(old)), b"{}")
    warehouse.store.put(paths.erasure_key("what-is-this"), b"{}")
    exporter.export_once()
    assert registry.get_sample_value("icedb_table_open_erasures", {"table": "events"}) == 3
    assert registry.get_sample_value("icedb_table_oldest_erasure_seconds", {"table": "events"}) == 90


def test_leases_and_how_far_back_they_hold(tables, exporter, registry, store, warehouse, clock):
    tables.create()
    for back_ms in (7_000, 3_000):
        put_lease(
            TableStore(store, warehouse.table("events").paths), at_ms=clock.ms - back_ms, ttl_ms=60_000, clock=clock
        )
    exporter.export_once()
    labels = {"table": "events"}
    assert registry.get_sample_value("icedb_table_leases", labels) == 2
    assert registry.get_sample_value("icedb_table_oldest_lease_seconds", labels) == 7
    clock.ms += 60_000 + MAX_STORE_GAP_MS
    exporter.export_once()
    assert registry.get_sample_value("icedb_table_leases", labels) == 0
    assert registry.get_sample_value("icedb_table_oldest_lease_seconds", labels) == 0


def test_a_lost_commit_is_counted(tables, exporter, registry, warehouse, clock):
    """F5: the fence says that it landed, and the log does not have it."""
    tables.create()
    paths = warehouse.table("events").paths
    state = FenceState(1, "me", None, landed=(f"{clock.ms:013d}_{'ab' * 16}",))
    write_fence(warehouse.store, paths.fence_key("merge"), state, etag=None, clock=FakeClock(clock.ms))
    exporter.export_once()
    assert registry.get_sample_value("icedb_table_lost_commits", {"table": "events"}) == 1


def test_back_pressure_is_computed_from_the_log(tables, exporter, registry, monkeypatch):
    monkeypatch.setattr(pressure, "LOG_FILES", Bounds(2, 4))
    tables.create()

    def export():
        exporter.export_once()
        names = ("level", "stretch")
        return [registry.get_sample_value(f"icedb_table_pressure_{name}", {"table": "events"}) for name in names]

    assert export() == [0, 1]
    for _ in range(3):
        tables.commit(files=[("d=2026-01-02", 1)])
    assert export() == [1, pytest.approx(60**0.5)]
    tables.commit(files=[("d=2026-01-02", 1)])
    assert export() == [2, pytest.approx(60)]


def test_what_waits_in_staging_has_a_size_and_an_age(tables, exporter, registry, store, warehouse, clock):
    tables.create()
    batch_id = "018bcfe5-6800-7000-8000-000000000000"
    stage_batch(
        TableStore(store, warehouse.table("events").paths), body=b"{}", staging_format="ndjson", batch_id=batch_id
    )
    clock.ms += 7000
    exporter.export_once()
    figures = ("staged_batches", "staged_bytes", "staged_lag_seconds")
    assert [registry.get_sample_value(f"icedb_table_{what}", {"table": "events"}) for what in figures] == [1, 2, 7]


def test_what_is_not_known_is_absent(tables, exporter, registry):
    tables.create()
    tables.commit(files=[("d=2026-01-02", 1)])
    exporter.export_once()
    tables.commit(files=[("d=2026-01-02", None)])
    exporter.export_once()
    assert registry.get_sample_value("icedb_table_live_rows", {"table": "events"}) is None
    tables.create("empty")
    exporter.export_once()
    assert registry.get_sample_value("icedb_table_last_commit_timestamp_seconds", {"table": "empty"}) is None
    assert registry.get_sample_value("icedb_table_data_files", {"table": "empty"}) == 0


def test_a_halted_table_does_not_hide_the_others(tables, exporter, registry, store, warehouse):
    for name in ("bad", "good"):
        tables.create(name)
        tables.commit(name, files=[("d=2026-01-02", 1)])
    exporter.export_once()
    broken = f"{warehouse.table('bad').paths.log_prefix}1767312000000_ab.jsonl"
    store.put(broken, b"{")
    tables.commit("good", files=[("d=2026-01-02", 1)])
    assert exporter.export_once() == {"good": "shown", "bad": "halted"}
    assert registry.get_sample_value("icedb_table_halted", {"table": "bad"}) == 1
    assert registry.get_sample_value("icedb_table_halted", {"table": "good"}) == 0
    assert registry.get_sample_value("icedb_table_data_files", {"table": "good"}) == 2
    assert registry.get_sample_value("icedb_snapshot_exporter_failures_total", {"what": "halted"}) == 1
    store.delete([broken])
    exporter.export_once()
    assert registry.get_sample_value("icedb_table_halted", {"table": "bad"}) == 0


def test_a_table_that_is_gone_loses_its_series(tables, exporter, registry, store, warehouse):
    tables.create()
    exporter.export_once()
    store.delete([warehouse.table("events").paths.config_key])
    exporter.export_once()
    assert not [
        sample for family in registry.collect() for sample in family.samples if sample.labels.get("table") == "events"
    ]


def test_an_unreachable_store_is_counted_and_the_last_figures_stay(tables, exporter, registry, store, clock):
    tables.create()
    exporter.export_once()
    last = registry.get_sample_value("icedb_snapshot_exporter_last_success_timestamp_seconds")
    clock.ms += 5000
    store.failure = Unavailable("no answer")
    store.list_folders = _raise(store.failure)
    assert exporter.export_once() is None
    assert registry.get_sample_value("icedb_snapshot_exporter_failures_total", {"what": "list"}) == 1
    assert registry.get_sample_value("icedb_snapshot_exporter_last_success_timestamp_seconds") == last
    assert registry.get_sample_value("icedb_table_data_files", {"table": "events"}) == 0


def test_a_table_that_is_not_read_keeps_its_figures_and_the_round_is_no_success(tables, exporter, registry, clock):
    for name in ("bad", "good"):
        tables.create(name)
    exporter.export_once()
    success_ms, clock.ms = clock.ms, clock.ms + 5000
    read = exporter._statuses.read
    exporter._statuses.read = lambda name: read(name) if name == "good" else _raise(Unavailable("no answer"))()
    assert exporter.export_once() == {"bad": "failed", "good": "shown"}
    assert registry.get_sample_value("icedb_snapshot_exporter_failures_total", {"what": "table"}) == 1
    when = "icedb_snapshot_exporter_last_success_timestamp_seconds"
    assert registry.get_sample_value(when) == success_ms / 1000
    times = [registry.get_sample_value("icedb_table_read_timestamp_seconds", {"table": n}) for n in ("bad", "good")]
    assert times == [success_ms / 1000, clock.ms / 1000]


def _raise(error):
    def fail(*_args):
        raise error

    return fail


def test_a_view_shows_how_far_it_is_behind_and_a_table_shows_nothing_of_it(
    tables, exporter, registry, warehouse, clock
):
    tables.create()
    config = TableConfig.create(name="hourly", view_of="events", view_query="select * from _rows")
    create_view(warehouse.table("hourly"), config, clock=clock)
    tables.commit(files=[("d=2026-01-02", 10)])
    clock.ms += 30_000
    tables.commit(files=[("d=2026-01-02", 10)])
    assert exporter.export_once() == {"events": "shown", "hourly": "shown"}

    def value(what, table="hourly"):
        return registry.get_sample_value(f"icedb_table_view_{what}", {"table": table})

    assert (value("waiting_commits"), value("refused_commits")) == (2, 0)
    assert value("lag_seconds") >= 30
    assert value("lag_seconds", table="events") is None
    detach_view(warehouse.table("events"), "hourly", clock=clock)
    exporter.export_once()
    assert value("lag_seconds") == value("waiting_commits") == 0
    warehouse.store.delete([warehouse.table("events").paths.config_key])
    assert exporter.export_once()["hourly"] == "shown"


def test_the_backlog_of_a_compact_log_is_that_of_a_whole_one(tables, warehouse, clock, monkeypatch):
    config = tables.create(target_file_bytes=1 << 20, merge_fan_in=2)
    _, (dead, *_) = tables.commit(files=[("d=2026-01-02", 1), ("d=2026-01-02", 2), ("d=2026-01-03", 3)])
    tables.commit(files=[("d=2026-01-02", 1), ("d=2026-01-04", 1)], dead=[dead])
    paths = warehouse.table("events").paths
    whole, compact = (
        LogState.of(LogReader(TableStore(warehouse.store, paths), clock=clock, is_compact=is_compact).read())
        for is_compact in (False, True)
    )
    expected = {marker.path for marker in list_backlog(whole, paths=paths, config=config)}
    assert len(expected) == 2
    assert {marker.path for marker in list_backlog(compact, paths=paths, config=config)} == expected
    planned = measure_backlog(compact, paths=paths, config=config)
    assert planned == measure_backlog(whole, paths=paths, config=config) == Backlog(2, 200, clock.ms - 1)
    monkeypatch.setattr(status, "MANY_SMALL_FILES", 1)
    assert measure_backlog(compact, paths=paths, config=config) == planned
    large = config.model_copy(update={"target_file_bytes": 50})
    assert list_backlog(compact, paths=paths, config=large) == list_backlog(whole, paths=paths, config=large) == ()
