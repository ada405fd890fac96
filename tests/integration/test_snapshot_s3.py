"""Snapshots and queries over a real S3 server: URIs, DuckDB's secret, partitions, both ways to a snapshot."""

import pytest
from icedb_client.client import Client
from icedb_client.settings import ClientSettings
from icedb_log.clock import SystemClock
from icedb_log.commit.table import Table
from icedb_log.errors import InvalidRequest, Unavailable
from icedb_log.holds.tags import create_tag, delete_tag, list_tags
from icedb_log.store.table_store import TableStore
from icedb_log.store_settings import open_warehouse
from icedb_sim.rigs.parquet_warehouse import ParquetWarehouse
from icedb_sim.rigs.snapshot_rig import start_snapshot

pytestmark = pytest.mark.s3


@pytest.fixture
def settings(s3_server, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "dev")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "dev")
    prefix = SystemClock().new_id()
    return ClientSettings(store=f"s3://{s3_server.bucket}/snapshot/{prefix}", s3_endpoint=s3_server.endpoint_url)


@pytest.fixture
def parquet(settings, s3_server):
    parquet = ParquetWarehouse(open_warehouse(settings.store, s3_server.options))
    parquet.create("events", "d=day(ts)")
    parquet.create("empty")
    for day in (1, 2, 2):
        parquet.commit("events", f"select {day}.5 as amount from range(10)", partition=f"d=2026-01-0{day}")
    return parquet


@pytest.fixture(params=["store", "grpc"])
def client(request, settings, parquet):
    if request.param == "store":
        with Client(settings=settings) as client:
            yield client
        return
    rig = start_snapshot(parquet.warehouse, store=settings.store)
    # No store: the service knows where the files are, the endpoint says how to reach them.
    without_store = settings.model_copy(update={"store": None, "snapshot_address": rig.address})
    with Client(settings=without_store) as client:
        yield client
    rig.stop()


def rows(client, sql, **options):
    result = client.query(sql, **options)
    try:
        return result.fetchall()
    finally:
        result.close()


def test_queries_read_the_bucket_and_nothing_else(client, settings, parquet, s3_server):
    files = client.snapshot("events").files
    assert all(file.uri.startswith(f"{settings.store}/events/_data/d=2026-01-0") for file in files)
    assert rows(client, "select count(*), sum(amount) from events") == [(30, 65.0)]
    assert rows(client, "select count(*) from empty") == [(0,)]
    assert client.snapshot("events", partitions={"d": "2026-01-02"}).row_count == 20
    other = f"s3://{s3_server.bucket}/{files[0].path}"
    with pytest.raises(InvalidRequest, match="nothing else"):
        rows(client, f"select * from read_parquet('{other}')")
    parquet.warehouse.store.delete([files[0].path])
    with pytest.raises(Unavailable, match="data grace period"):
        rows(client, "select * from events")


def test_what_is_tagged_is_read_with_and_without_a_service(client, parquet):
    store, paths = parquet.warehouse.store, parquet.warehouse.table("events").paths
    create_tag(Table.open(TableStore(store, paths), clock=SystemClock()), "q3", ttl_ms=60_000)
    parquet.commit("events", "select 1 as amount", partition="d=2026-01-03")
    assert rows(client, "select count(*) from events", tag="q3") == [(30,)]
    with pytest.raises(InvalidRequest, match="exists already"):
        create_tag(Table.open(TableStore(store, paths), clock=SystemClock()), "q3")
    assert delete_tag(TableStore(store, paths), "q3")
    with pytest.raises(InvalidRequest, match="has ended"):
        client.snapshot("events", tag="q3")
    assert [tag.state for tag in list_tags(TableStore(store, paths)).holds] == ["ended"]
    client.close()


def test_conditions_and_readers_over_s3(client):
    snapshot = client.snapshot("events", where="amount > 2")
    assert (len(snapshot.files), snapshot.total_file_count) == (3, 3)  # no statistics in this log: the rows decide
    assert snapshot.to_arrow().column("amount").to_pylist() == [2.5] * 20
    assert sum(batch.num_rows for batch in snapshot.to_arrow_reader(columns=["d"])) == 20
    with client.reading("events", partitions={"d": "2026-01-02"}) as held:
        assert held.sql("select d, sum(amount) from events group by all").fetchall() == [("2026-01-02", 50.0)]


def test_presigned_files_are_read_without_credentials(client, monkeypatch):
    snapshot = client.snapshot("events", presign_ms=60_000)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert all(file.presigned_url.startswith("http://") for file in snapshot.files)
    assert snapshot.to_arrow().num_rows == 30
    rows = snapshot.sql("select d, count(*) from events group by all order by d").fetchall()
    assert rows == [("2026-01-01", 10), ("2026-01-02", 20)]
