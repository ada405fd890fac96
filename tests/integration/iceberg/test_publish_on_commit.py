"""Tables of ``iceberg = on-commit`` are published by the gateway and by ``icedb work``, while nobody asks; what is held back is said."""

import duckdb
import pytest
from iceberg_engines import Engines
from iceberg_rig import load, start_catalog
from icedb import connect
from icedb.work import PUBLISH, Worker
from icedb_log.changes.table_changes import alter_table_config
from icedb_log.publish.head import read_publication
from waiting import wait_until


@pytest.fixture
def lake(tmp_path):
    with connect(tmp_path / "lake") as lake:
        yield lake


@pytest.fixture(scope="module")
def engines():
    return Engines()


def is_shown(engines, events, wanted):
    """Whether DuckDB finds these rows in the table's folder: no catalog tells it which metadata is the newest."""
    folder = events.place.store.uri(f"{events.place.paths.prefix}/_icedb/iceberg")
    query = f"SELECT n FROM iceberg_scan('{folder}', version_name_format => '%s%s.metadata.json') ORDER BY n"
    try:
        return [n for (n,) in engines.duckdb.execute(query).fetchall()] == wanted
    except duckdb.Error:  # nothing was published yet
        return False


def test_the_gateway_publishes_what_is_committed_and_says_what_it_holds_back(lake, engines):
    events = lake.create_table("events", iceberg="on-commit")
    other = lake.create_table("other")
    for table in (events, other):
        table.append([{"n": 1}])
    rig = start_catalog(lake.warehouse, gateway_iceberg_publish_interval_ms=20)

    try:
        wait_until(lambda: is_shown(engines, events, [1]))
        events.append([{"n": 2}])
        wait_until(lambda: is_shown(engines, events, [1, 2]))
        assert read_publication(other.place) is None
        late = lake.create_table("late", iceberg="on-commit")
        late.append([{"n": 3}])
        wait_until(lambda: is_shown(engines, late, [3]))
        before = load(rig, "events")
        assert "icedb.held-back" not in before.json["metadata"]["properties"]

        events.append([{"n": 2.5}])
        answer = load(rig, "events").json
        assert answer["metadata-location"] == before.json["metadata-location"]
        assert "column 'n' is BIGINT in it" in answer["metadata"]["properties"]["icedb.held-back"]
        again = load(rig, "events", query="?snapshots=refs", headers={"If-None-Match": before.headers["etag"]})
        assert "icedb.held-back" in again.json["metadata"]["properties"]
        wait_until(lambda: rig.metric("icedb_gateway_publications_total", outcome="held_back") > 0)
        assert is_shown(engines, events, [1, 2])

        events.merge()
        wait_until(lambda: is_shown(engines, events, [1, 2, 2.5]))
        assert "icedb.held-back" not in load(rig, "events").json["metadata"]["properties"]
    finally:
        rig.gateway.stop()


def test_a_worker_publishes_too(lake, engines):
    events = lake.create_table("events")
    events.append([{"n": 1}])
    done = []
    Worker(lake, lake.table).work(done.append, until_idle=True)
    assert PUBLISH not in [each.task for each in done]
    alter_table_config(events.place, {"iceberg": "on-commit"}, clock=lake.clock)
    Worker(lake, lake.table).work(done.append, until_idle=True)
    assert [each.problem for each in done if each.task == PUBLISH] == [None]
    assert is_shown(engines, events, [1])
