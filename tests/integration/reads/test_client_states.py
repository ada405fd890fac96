"""One suite for every way to read: states of a table (times, tags, changes, watches), and what keeps their files."""

from dataclasses import replace
from datetime import UTC, date, datetime

import pytest
from icedb_client.read_leases import hold_while_reading
from icedb_log.clock import SystemClock, new_batch_id
from icedb_log.commit.table import Table
from icedb_log.errors import BelowHorizon, InvalidRequest, Unavailable
from icedb_log.holds.leases import read_leases
from icedb_log.holds.tags import create_tag
from icedb_log.store.table_store import TableStore

FIRST_MS = 1_767_312_000_000  # 2026-01-02T00:00:00Z
CLOCK = SystemClock()


@pytest.mark.parametrize(
    "as_of",
    [
        FIRST_MS,
        str(FIRST_MS),
        "2026-01-02T00:00:00Z",
        "2026-01-02T01:00:00+01:00",
        "2026-01-02",
        date(2026, 1, 2),
        datetime(2026, 1, 2),
        datetime(2026, 1, 2, tzinfo=UTC),
    ],
)
def test_time_travel_takes_every_form_of_a_time(client, as_of):
    snapshot = client.snapshot("past", as_of=as_of)
    assert (snapshot.row_count, snapshot.as_of_ms, snapshot.is_stable) == (1, FIRST_MS, True)


def test_times_that_cannot_be_read(client, parquet):
    assert client.snapshot("past", as_of=FIRST_MS - 1).row_count == 0
    with pytest.raises(InvalidRequest, match="future"):
        client.snapshot("past", as_of=CLOCK.now_ms() + 60_000)
    for wrong in ("yesterday", -1, True, 10**16):
        with pytest.raises(InvalidRequest, match="not a time"):
            client.snapshot("past", as_of=wrong)
    if "shrunk" not in client.tables():
        parquet.create("shrunk")
        parquet.commit("shrunk", "select 1 as a", schema={"a": "BIGINT"}, horizon_ms=FIRST_MS)
    with pytest.raises(BelowHorizon, match="oldest"):
        client.snapshot("shrunk", as_of=FIRST_MS - 1, max_staleness_ms=0)


def test_read_your_own_writes(client, parquet):
    batch_id = new_batch_id(CLOCK)
    stamp = CLOCK.now_ms()
    parquet.commit(
        "growing", "select timestamp '2026-01-02' as ts", partition="d=2026-01-02", batch_ids=(batch_id,), time_ms=stamp
    )
    snapshot = client.snapshot("growing", min_commit=batch_id)
    assert snapshot.last_commit_ms >= stamp
    with pytest.raises(InvalidRequest, match="was committed at"):
        client.snapshot("growing", min_commit=batch_id, as_of=FIRST_MS)


def test_changes_between_two_times(client):
    changes = client.changes("past", from_="2026-01-02", to=FIRST_MS + 60_000)
    assert (len(changes.added), len(changes.removed), changes.is_stable) == (1, 0, True)
    assert (changes.added.row_count, changes.added[0].partition) == (1, {"d": "2026-01-02"})
    assert changes.from_snapshot_id != changes.to_snapshot_id
    assert client.changes("past", from_=FIRST_MS + 60_000).added == ()
    from_nothing = client.changes("past", from_=FIRST_MS - 1)
    assert len(from_nothing.added) == 2
    assert dict(from_nothing.changed_columns)["ts"] == "TIMESTAMP"


def test_a_watch_tells_each_state_once(client, parquet):
    watch = client.watch(["growing", "damaged"])
    first = {event.table: event for event in (next(watch), next(watch))}
    assert first["damaged"].problem is not None
    assert first["growing"].snapshot_id == client.snapshot("growing", max_staleness_ms=0).snapshot_id
    parquet.commit("growing", "select timestamp '2026-01-02' as ts", partition="d=2026-01-02")
    event = next(watch)
    assert (event.table, event.file_count) == ("growing", first["growing"].file_count + 1)
    watch.close()


def test_tags(client, parquet):
    name = f"p{CLOCK.new_id()[-8:]}"
    before = client.snapshot("growing", max_staleness_ms=0)
    create_tag(Table.open(parquet.warehouse.table("growing"), clock=CLOCK), name, ttl_ms=60_000)
    parquet.commit("growing", "select timestamp '2026-01-02' as ts", partition="d=2026-01-02")
    tagged = client.snapshot("growing", tag=name)
    assert list(tagged.files) == list(before.files)
    result = client.query("select count(*) from growing", tag=name)
    assert result.fetchall() == [(before.row_count,)]
    result.close()


def test_a_lease_lasts_as_long_as_the_block(client, parquet):
    store, paths = parquet.warehouse.store, parquet.warehouse.table("leased").paths
    with client.reading("leased", where="ts is not null") as snapshot:
        assert [lease.lease_id for lease in read_leases(TableStore(store, paths))] == [snapshot.lease.lease_id]
        assert snapshot.to_arrow().num_rows == 1
        assert snapshot.sql("select count(*) from leased").fetchall() == [(1,)]
    assert read_leases(TableStore(store, paths)) == ()
    with pytest.raises(ZeroDivisionError), client.reading("leased"):
        raise ZeroDivisionError
    assert read_leases(TableStore(store, paths)) == ()


def test_a_long_read_takes_a_lease_from_now_on_or_of_its_last_commit_if_there_is_another(client, parquet, monkeypatch):
    monkeypatch.setattr("icedb_client.read_leases.may_take_long", lambda _: True)
    store, paths = parquet.warehouse.store, parquet.warehouse.table("leased").paths
    snapshot = client.snapshot("leased")
    with hold_while_reading(replace(snapshot, last_commit_ms=1)):
        assert [lease.at_ms > snapshot.last_commit_ms for lease in read_leases(TableStore(store, paths))] == [True]
    assert read_leases(TableStore(store, paths)) == ()
    with hold_while_reading(replace(snapshot, last_commit_ms=1, snapshot_id="overtaken")):
        assert [lease.at_ms for lease in read_leases(TableStore(store, paths))] == [1]


def test_a_lost_lease_fails_the_read(client, parquet):
    store, paths = parquet.warehouse.store, parquet.warehouse.table("leased").paths

    def lose(snapshot):
        store.delete([paths.hold_key("lease", snapshot.lease.lease_id)])
        snapshot.hold.renew()

    with pytest.raises(Unavailable, match=r"lease .* was\s+lost.*read again"), client.reading("leased") as snapshot:
        batches = iter(snapshot.to_arrow_reader(batch_rows=1))
        lose(snapshot)
        for read in (
            snapshot.to_arrow,
            lambda: list(batches),
            lambda: snapshot.sql("select * from leased").fetchall(),
            snapshot.to_polars,
        ):
            with pytest.raises(Unavailable, match=r"was lost"):
                read()


def test_a_file_that_is_gone_names_the_remedy(client, parquet):
    name = f"gone_{CLOCK.new_id()[-8:]}"
    parquet.create(name)
    done = parquet.commit(name, "select 1 as a", schema={"a": "BIGINT"})
    parquet.commit(name, "select 2 as a", schema={"a": "BIGINT"})
    snapshot = client.snapshot(name)
    parquet.warehouse.store.delete([done.data_key])
    for read in (
        snapshot.to_arrow,
        lambda: list(snapshot.to_arrow_reader()),
        snapshot.to_polars,
        lambda: snapshot.sql(f"select * from {name}").fetchall(),
        lambda: client.query(f"select * from {name}").fetchall(),
    ):
        with pytest.raises(Unavailable, match=r"grace period.*client\.reading"):
            read()
