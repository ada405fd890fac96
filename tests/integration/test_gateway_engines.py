"""What query engines read through the S3 gateway, row by row: DuckDB, PyArrow and Polars, with no client of ours."""

from pathlib import Path

import duckdb
import polars as pl
import pyarrow.dataset as ds
import pytest
from icedb_client.duck import load_httpfs
from icedb_log.clock import SystemClock
from icedb_log.store.local_store import LocalObjectStore
from icedb_log.warehouse import Warehouse
from icedb_sim.rigs.access_rig import write_access
from icedb_sim.rigs.gateway_rig import BUCKET, LOOPBACK, start_gateway
from icedb_sim.rigs.parquet_warehouse import ParquetWarehouse
from pyarrow import fs

KEY_ID, SECRET = "READER", "a-secret-of-the-test"
MANY = 1100
CLOCK = SystemClock()


@pytest.fixture(scope="module")
def rig(tmp_path_factory):
    """Two days of events, merged once; another table of 1,100 files with one row each; callers have to sign."""
    folder = tmp_path_factory.mktemp("engines")
    warehouse = Warehouse(LocalObjectStore(folder / "store"))
    tables = ParquetWarehouse(warehouse)
    tables.create("events", "d=day(ts)")
    select = "select timestamp '2026-01-0{0} 10:00:00' as ts, 'e{0}' as event, {0}.5 as amount from range({1})"
    first = tables.commit("events", select.format(1, 3), partition="d=2026-01-01")
    tables.commit("events", select.format(2, 4), partition="d=2026-01-02")
    between_ms = CLOCK.now_ms()
    CLOCK.sleep_ms(2)
    tables.commit("events", select.format(1, 5), partition="d=2026-01-01", replaces=(first,))
    access = {
        "identities": {"reader": {"access_keys": [{"id": KEY_ID, "secret": SECRET}]}},
        "grants": [{"identities": ["reader"], "tables": ["*"], "verbs": ["read"]}],
    }
    file = write_access(folder / "access.json", access)
    rig = start_gateway(warehouse, access_file=str(file), gateway_staleness_ms=0)
    yield rig, between_ms
    rig.gateway.stop()


EVENTS = [("e1", "2026-01-01", 5), ("e2", "2026-01-02", 4)]
BEFORE = [("e1", "2026-01-01", 3), ("e2", "2026-01-02", 4)]


@pytest.fixture(scope="module")
def duck(rig):
    con = duckdb.connect()
    load_httpfs(con)
    endpoint = f"{LOOPBACK}:{rig[0].gateway.port}"
    con.execute(
        f"create secret (type s3, key_id '{KEY_ID}', secret '{SECRET}', endpoint '{endpoint}', url_style 'path', "
        "use_ssl false, region 'us-east-1')"
    )
    yield con
    con.close()


@pytest.mark.parametrize("when", ["now", "before"])
def test_duckdb(rig, duck, when):
    folder = "events" if when == "now" else f"events@{rig[1]}"
    rows = duck.execute(
        f"select event, d::varchar, count(*) from read_parquet('s3://{BUCKET}/{folder}/**/*.parquet', "
        "hive_partitioning = true) group by all order by all"
    ).fetchall()
    assert rows == (EVENTS if when == "now" else BEFORE)
    pruned = duck.execute(
        f"select sum(amount) from read_parquet('s3://{BUCKET}/{folder}/*/*.parquet', hive_partitioning = true) "
        "where d = '2026-01-02'"
    ).fetchone()
    assert pruned == (10.0,)


@pytest.fixture(scope="module")
def by_country(rig):
    """A table whose partition field has the name of a column, with a value that the path has encoded."""
    rig[0].table("places").create("country")
    tables = ParquetWarehouse(rig[0].table("places").warehouse)
    tables.commit("places", "select 'São' as country, 1 as n", partition="country=S_c3_a3o")
    return "places"


def test_without_hive_partitions_columns_come_from_the_files_as_docs_say(rig, duck, by_country):
    """docs/gateway.md, "Copy and paste"."""
    found = duck.execute(
        f"select event, count(*) from read_parquet('s3://{BUCKET}/events/**/*.parquet', hive_partitioning = false, "
        "union_by_name = true) where ts >= '2026-01-01' group by all order by all"
    ).fetchall()
    assert found == [(event, count) for event, _, count in EVENTS]
    path = f"s3://{BUCKET}/{by_country}/**/*.parquet"
    assert duck.execute(f"select * from read_parquet('{path}', hive_partitioning = false)").fetchall() == [("São", 1)]
    rows = ds.dataset(f"{BUCKET}/{by_country}", filesystem=arrow(rig), format="parquet").to_table().to_pylist()
    assert rows == [{"country": "São", "n": 1}]
    frame = pl.scan_parquet(path, hive_partitioning=False, storage_options=polars_options(rig)).collect()
    assert frame.rows() == [("São", 1)]


def test_with_hive_partitions_the_path_takes_the_place_of_a_column_as_docs_say(duck, by_country):
    """Why docs/gateway.md says when to switch them on."""
    path = f"s3://{BUCKET}/{by_country}/**/*.parquet"
    found = duck.execute(f"select country from read_parquet('{path}', hive_partitioning = true)").fetchall()
    assert found == [("S_c3_a3o",)]


def arrow(rig):
    return fs.S3FileSystem(
        access_key=KEY_ID, secret_key=SECRET, scheme="http", endpoint_override=f"{LOOPBACK}:{rig[0].gateway.port}",
        region="us-east-1",
    )  # fmt: skip


@pytest.mark.parametrize("when", ["now", "before"])
def test_pyarrow(rig, when):
    folder = "events" if when == "now" else f"events@{rig[1]}"
    data = ds.dataset(f"{BUCKET}/{folder}", filesystem=arrow(rig), format="parquet", partitioning="hive")
    found = data.to_table(columns=["event", "d"]).group_by(["event", "d"]).aggregate([([], "count_all")])
    rows = sorted((row["event"], str(row["d"]), row["count_all"]) for row in found.to_pylist())
    assert rows == (EVENTS if when == "now" else BEFORE)
    assert data.count_rows(filter=ds.field("d") == "2026-01-02") == 4


def test_pyarrow_looks_around(rig):
    there = arrow(rig)
    assert there.get_file_info(f"{BUCKET}/events").type == fs.FileType.Directory
    assert there.get_file_info(f"{BUCKET}/no_table").type == fs.FileType.NotFound
    found = there.get_file_info(fs.FileSelector(BUCKET))
    assert "events" in {info.base_name for info in found}
    with pytest.raises(OSError, match="not allowed"):
        there.open_output_stream(f"{BUCKET}/events/d=2026-01-01/x.parquet").close()


def polars_options(rig):
    return {
        "aws_access_key_id": KEY_ID,
        "aws_secret_access_key": SECRET,
        "aws_endpoint_url": rig[0].url,
        "aws_region": "us-east-1",
        "aws_allow_http": "true",
    }


def test_polars(rig):
    options = polars_options(rig)
    frame = pl.scan_parquet(f"s3://{BUCKET}/events/**/*.parquet", hive_partitioning=True, storage_options=options)
    found = frame.group_by("event", pl.col("d").cast(pl.String)).len().collect().sort("event").rows()
    assert found == EVENTS


@pytest.fixture(scope="module")
def many(rig):
    """A table of 1,100 files with one body; the paths of all of them."""
    table = rig[0].table("many").create("d=day(ts)")
    paths = table.warehouse.table("many").paths
    store = table.warehouse.store
    source = next(info.key for info in store.list_page("events/_data/d=2026-01-02/").objects)
    body = store.get(source).body
    added = [paths.data_key(partition=f"d=2026-02-{1 + at % 28:02}", file_id=f"{at:032x}") for at in range(MANY)]
    for path in added:  # not through the store, that makes each one durable
        file = Path(store.uri(path))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(body)
    table.commit(added, size_bytes=len(body))
    return added


def test_more_than_a_thousand_files(rig, duck, many):
    """One page has a thousand keys: engines that stop there read too little."""
    (count,) = duck.execute(f"select count(*) from glob('s3://{BUCKET}/many/**/*.parquet')").fetchone()
    assert count == MANY
    data = ds.dataset(f"{BUCKET}/many", filesystem=arrow(rig), format="parquet", partitioning="hive")
    assert len(data.files) == MANY
    of_day = [path for path in many if "/d=2026-02-07/" in path]
    rows = duck.execute(
        f"select event, amount, count(*) from read_parquet('s3://{BUCKET}/many/d=2026-02-07/*.parquet') group by all"
    ).fetchall()
    assert rows == [("e2", 2.5, 4 * len(of_day))]


@pytest.mark.soak
def test_all_rows_of_more_than_a_thousand_files(duck, many):
    rows = duck.execute(
        f"select event, amount, count(*) from 's3://{BUCKET}/many/**/*.parquet' group by all"
    ).fetchall()
    assert rows == [("e2", 2.5, 4 * MANY)]


def test_without_a_key_there_is_nothing(rig):
    con = duckdb.connect()
    load_httpfs(con)
    con.execute(
        f"create secret (type s3, key_id '{KEY_ID}', secret 'wrong', endpoint '{LOOPBACK}:{rig[0].gateway.port}', "
        "url_style 'path', use_ssl false)"
    )
    with pytest.raises(duckdb.Error, match="403"):
        con.execute(f"select * from read_parquet('s3://{BUCKET}/events/**/*.parquet')")
    con.close()
