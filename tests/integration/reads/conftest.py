"""A warehouse, the service that answers for it, and every way to read: the fixtures of the suite for all clients."""

import pytest
from icedb_client import Client
from icedb_client.settings import ClientSettings
from icedb_log.store.local_store import LocalObjectStore
from icedb_log.warehouse import Warehouse
from icedb_sim.rigs.parquet_warehouse import ParquetWarehouse
from icedb_sim.rigs.snapshot_rig import start_snapshot

FIRST_MS = 1_767_312_000_000  # 2026-01-02T00:00:00Z
SCHEMA = {"ts": "TIMESTAMP", "event": "VARCHAR", "n": "BIGINT", "ok": "BOOLEAN", "day": "DATE"}
WIDE = {"n": "DOUBLE", "day": "TIMESTAMP"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("reads")


@pytest.fixture(scope="module")
def parquet(folder):
    parquet = ParquetWarehouse(Warehouse(LocalObjectStore(folder), "wh"))
    parquet.create("events", "d=day(ts)", "c=country", declared={"country": "VARCHAR"})
    for name in ("empty", "damaged", "past", "growing", "leased"):
        parquet.create(name, "d=day(ts)")
    parquet.create("bare")
    parquet.create("declared", declared={"later": "BIGINT"})
    parquet.commit("declared", "select 'a' as event", partition="", schema={"event": "VARCHAR"})
    parquet.damage("damaged")

    def commit(select, partition, **options):
        schema = {**SCHEMA, "country": "VARCHAR"}
        return parquet.commit("events", select, partition=partition, schema=schema, **options)

    commit(
        "select timestamp '2026-01-02' + to_hours(i) as ts, case when i % 2 = 0 then 'view' else 'click' end as event, "
        "i as n, i > 1 as ok, date '2026-01-01' as day, 'São' as country from range(4) t(i)",
        "d=2026-01-02/c=S_c3_a3o",
    )
    commit("select timestamp '2026-01-03' as ts, 'view' as event", "d=2026-01-03/c=__HIVE_DEFAULT_PARTITION__")
    commit(
        "select timestamp '2026-01-03 10:00:00' as ts, 'nine' as event, 2.75::double as n, null::boolean as ok, "
        "timestamp '2026-01-01 12:00:00' as day, 'a/b' as country",
        "d=2026-01-03/c=a_2fb",
        widened=WIDE,
    )
    parquet.commit("leased", "select timestamp '2026-01-02' as ts", partition="d=2026-01-02")
    for at_ms in (FIRST_MS, FIRST_MS + 60_000):
        parquet.commit("past", "select timestamp '2026-01-02' as ts", partition="d=2026-01-02", time_ms=at_ms)
    return parquet


@pytest.fixture(scope="module")
def service(parquet):
    rig = start_snapshot(parquet.warehouse)
    yield rig
    rig.stop()


@pytest.fixture(scope="module", params=["store", "grpc"])
def client(request, parquet, service):
    """Every way in."""
    if request.param == "grpc":
        found = Client(settings=ClientSettings(snapshot_address=service.address))
    else:
        found = Client(settings=ClientSettings(), warehouse=parquet.warehouse)
    with found as client:
        yield client
