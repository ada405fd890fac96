"""What workers do with Spark, on three machines: the same rows as anywhere, spread over all, and none through the driver."""

import io
from datetime import datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cluster_rig import ROWS, make_rows
from icedb_log.changes.table_changes import alter_table_config
from icedb_log.clock import SystemClock
from icedb_log.table.promoted_paths import add_promotions, parse_promotions

pytestmark = [pytest.mark.spark, pytest.mark.s3, pytest.mark.redis, pytest.mark.soak]

CLOCK = SystemClock()
SOURCES = 6


@pytest.fixture(scope="module")
def driver(drivers):
    return drivers({})


@pytest.fixture(scope="module")
def events(rig):
    return rig.table("events")


@pytest.fixture
def spread(rig, driver):
    """What runs in the test ran on all machines, and no row went through the driver."""
    since, before = driver.count_events(), rig.traffic.by_machine.copy()
    yield
    tasks = driver.tasks(since)
    assert all(task.is_ok for task in tasks)
    places = {task.host if rig.nodes.are_isolated else task.executor for task in tasks}
    assert len(places) == len(rig.nodes.all), tasks
    moved = rig.traffic.by_machine - before
    assert moved.keys() == {node.name for node in rig.nodes.all}, moved
    assert sum(task.result_bytes for task in tasks) < sum(moved.values()) / 10, (tasks, moved)


@pytest.mark.usefixtures("spread")
def test_flush(driver, events):
    events.stage(range(ROWS))
    assert driver.do("flush", table="events") == 3
    assert events.rows() == make_rows(range(ROWS))


@pytest.mark.usefixtures("spread")
def test_merge(driver, events):
    events.stage(range(ROWS, 2 * ROWS))
    driver.do("flush", table="events")
    assert driver.do("merge", table="events") == 3
    assert len(events.live()) == 3
    assert events.rows() == make_rows(range(2 * ROWS))


@pytest.mark.usefixtures("spread")
def test_delete_by_condition(driver, events):
    assert driver.do("change", table="events", kind="delete", sql="n % 10 = 3") == 2 * ROWS // 10
    assert events.rows() == make_rows(n for n in range(2 * ROWS) if n % 10 != 3)


@pytest.mark.usefixtures("spread")
def test_rewrite(driver, events):
    query = "SELECT ts, event, n, properties FROM _rows WHERE n % 10 <> 4"
    driver.do("change", table="events", kind="rewrite", sql=query, partitions=[])
    assert events.rows() == make_rows(n for n in range(2 * ROWS) if n % 10 not in (3, 4))


@pytest.mark.usefixtures("spread")
def test_a_promoted_path_is_filled(driver, events):
    promotions = parse_promotions(["properties.country"], option="--promote")
    change = add_promotions({}, promotions, option="--promote", may_end=True)
    alter_table_config(events.inside, change, clock=CLOCK)
    driver.do("merge", table="events")
    rows = events.read().to_pylist()
    assert [row["properties__country"] for row in rows] == [("DE", "FR", "IT")[row["n"] % 3] for row in rows]
    assert events.rows() == make_rows(n for n in range(2 * ROWS) if n % 10 not in (3, 4))


@pytest.mark.usefixtures("spread")
def test_import(rig, driver):
    table, root = rig.table("imported"), rig.warehouse.root
    for number in range(SOURCES):
        rows = make_rows(range(number, ROWS, SOURCES))
        days = [row for row in rows if row[0] == datetime(2026, 1, 1 + number % 3)]
        columns = dict(zip(("ts", "event", "n", "properties"), map(list, zip(*days, strict=True)), strict=True))
        sink = io.BytesIO()
        pq.write_table(pa.table(columns), sink)
        rig.warehouse.store.put(f"{root}/in/{number}.parquet", sink.getvalue())
    assert driver.do("take_in", table="imported", sources=f"{rig.store_url}/in/*.parquet") == SOURCES
    assert table.rows() == make_rows(range(ROWS))


@pytest.mark.usefixtures("spread")
def test_the_data_source_reads_and_writes(rig, driver):
    table = rig.table("copied")
    assert driver.do("copy", table="imported", into="copied", where="n % 2 = 0") == ROWS // 2
    assert table.rows() == make_rows(range(0, ROWS, 2))
