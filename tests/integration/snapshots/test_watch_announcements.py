"""Watchers that commits wake through a real Redis: every request to the store counted, and Redis going and coming."""

from functools import partial

import pytest
from icedb_log.units import HOUR_MS
from icedb_log.warehouse import Warehouse
from icedb_proto import snapshot_pb2 as pb
from icedb_service import announcements
from icedb_service.celery_app import make_app
from icedb_service.redis_clients import open_redis
from icedb_service.settings import ServiceSettings
from icedb_service.wakeup import Wakeups
from icedb_sim.fakes.scripted_store import ScriptedStore
from icedb_sim.rigs.redis_server import RedisServer
from icedb_sim.rigs.snapshot_rig import start_snapshot
from icedb_sim.tables.small_table import SmallTable
from snapshot_stub import POLL_MS, other
from waiting import LIMIT_MS, LIMIT_S, wait_until

pytestmark = pytest.mark.redis

TABLE_COUNT = 20
COMMIT_COUNT = 5
"""Of one table, each waited for: at least so many intervals pass."""


@pytest.fixture
def redis():
    with RedisServer() as running:
        yield running


@pytest.fixture
def announce(redis):
    settings = ServiceSettings(store="file:///unused", redis_url=redis.url)
    client, app = open_redis(redis.url, timeout_ms=LIMIT_MS), make_app(settings)
    yield Wakeups(app, client, settings=settings).announce_commit
    client.close()
    app.close()


@pytest.fixture
def tables():
    first = SmallTable(name="t0")
    return [first, *(other(first, f"t{number}") for number in range(1, TABLE_COUNT))]


@pytest.fixture
def store(tables):
    return ScriptedStore(tables[0].store.inner)


@pytest.fixture
def rig(store, redis):
    rig = start_snapshot(
        Warehouse(store, "wh"),
        redis_url=redis.url,
        snapshot_watch_interval_ms=POLL_MS,
        snapshot_watch_idle_interval_ms=HOUR_MS,
        snapshot_max_staleness_ms=0,
    )
    wait_until(lambda: rig.metric("icedb_snapshot_exporter_last_success_timestamp_seconds"))
    yield rig
    rig.stop()


def watch(rig, *tables):
    """Watch tables, and take the first message about each."""
    events = rig.stub.WatchSnapshots(pb.WatchSnapshotsRequest(tables=[table.name for table in tables]), timeout=LIMIT_S)
    assert {next(events).table for _ in tables} == {table.name for table in tables}
    wait_until(lambda: rig.metric("icedb_snapshot_hears_commits"))
    return events


def test_idle_tables_cost_no_request_and_a_commit_is_told_without_a_poll(rig, store, tables, announce):
    # What is watched when commits are first heard is read once more. So that is a table of its own.
    early = watch(rig, other(tables[0], "early"))
    events = watch(rig, *tables)
    announced = partial(rig.metric, "icedb_snapshot_watch_looks_total", cause="announced")
    announced_before = announced()
    store.calls.clear()
    for number in range(COMMIT_COUNT):
        tables[0].append(number)
        announce("t0")
        event = next(events)
        assert (event.table, event.row_count) == ("t0", number + 1)
    calls = [call for call in store.calls if "/early/" not in call.key]
    assert [call.key for call in calls if call.method == "list_page" and "/_log/" in call.key] == [
        "wh/t0/_log/"
    ] * COMMIT_COUNT
    assert not [call for call in calls if "/t0/" not in call.key and "/t" in call.key]
    assert announced() >= announced_before + COMMIT_COUNT
    early.cancel()


def test_without_redis_each_interval_tells_and_when_it_is_back_nothing_was_missed(rig, redis, tables):
    events = watch(rig, *tables)
    redis.stop()
    wait_until(lambda: not rig.metric("icedb_snapshot_hears_commits"))
    tables[1].append(1)
    assert next(events).table == "t1"
    redis.start()
    wait_until(lambda: rig.metric("icedb_snapshot_hears_commits"))
    tables[2].append(1)
    redis.stop()
    assert next(events).table == "t2"


def test_a_redis_that_hangs_counts_as_away_until_it_answers(rig, redis, tables, monkeypatch):
    monkeypatch.setattr(announcements, "SILENCE_S", 0.2)
    events = watch(rig, *tables)
    redis.freeze()
    try:
        wait_until(lambda: not rig.metric("icedb_snapshot_hears_commits"))
        tables[1].append(1)
        assert next(events).table == "t1"
    finally:
        redis.thaw()
    wait_until(lambda: rig.metric("icedb_snapshot_hears_commits"))
