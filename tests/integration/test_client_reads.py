"""One suite for every way to read: over gRPC and straight from the store, waiting and awaiting. Same calls, same answers."""

import asyncio
import inspect
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, date, datetime

import duckdb
import pyarrow as pa
import pytest
from icedb_client import AsyncClient, AsyncSnapshot, Client
from icedb_client.read_lease import hold_while_reading
from icedb_client.settings import ClientSettings
from icedb_client.testing.parquet_warehouse import ParquetWarehouse
from icedb_log.cleaning.leases import read_leases
from icedb_log.cleaning.pin_creation import create_pin
from icedb_log.clock import SystemClock, new_batch_id
from icedb_log.errors import BelowHorizon, CorruptLog, InvalidRequest, NotFound, Unavailable
from icedb_log.storage.local_store import LocalObjectStore
from icedb_log.tables.partition_filter import PartitionFilter
from icedb_log.warehouse import Warehouse
from icedb_snapshot.__main__ import start_service
from icedb_snapshot.settings import SnapshotSettings

SCHEMA = {"ts": "TIMESTAMP", "event": "VARCHAR", "n": "BIGINT", "ok": "BOOLEAN", "day": "DATE"}
WIDE = {"n": "DOUBLE", "day": "TIMESTAMP"}
FIRST_MS = 1_767_312_000_000
CLOCK = SystemClock()
CONDITIONS = [
    "event = 'view'",
    "event = 'view' or n >= 2.5",
    "n between 1 and 2",
    "n is null",
    "not ok",
    "ok is not true and n > 0",
    "ts >= timestamp '2026-01-03'",
    "ts::date = date '2026-01-02'",
    "event like 'v%' and ts < '2026-01-03'",
    "event in ('click', 'nope')",
    "n = 1 and false",
    "length(event) = 4 -- four letters",
    "day = timestamp '2026-01-01 12:00:00'",
    "lower(event) <> 'view' and (n > 1 or n is null)",
]


class Waiting:
    """An asynchronous client or snapshot that is waited for, so that one suite tests both."""

    def __init__(self, wrapped, runner):
        self._wrapped = wrapped
        self._runner = runner

    def __getattr__(self, name):
        found = getattr(self._wrapped, name)
        if not callable(found) or isinstance(found, type):
            return found

        def call(*args, **kwargs):
            answer = found(*args, **kwargs)
            if hasattr(answer, "__aenter__"):
                return self._enter(answer)
            if hasattr(answer, "__anext__"):
                return self._iterate(answer)
            return self._wrap(self._wait(answer) if inspect.isawaitable(answer) else answer)

        return call

    def _wait(self, awaitable):
        async def run():
            return await awaitable

        return self._runner.run(run())

    def _wrap(self, answer):
        return Waiting(answer, self._runner) if isinstance(answer, AsyncSnapshot) else answer

    @contextmanager
    def _enter(self, block):
        answer = self._wait(block.__aenter__())
        try:
            yield self._wrap(answer)
        except BaseException as error:
            if not self._wait(block.__aexit__(type(error), error, error.__traceback__)):
                raise
        else:
            self._wait(block.__aexit__(None, None, None))

    def _iterate(self, items):
        try:
            while True:
                yield self._wait(items.__anext__())
        except StopAsyncIteration:
            return
        finally:
            self._wait(items.aclose())


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
def all_rows(parquet):
    """Every row of `events`, by a plain union of the files: what the readers are held against."""
    with Client(settings=ClientSettings(), warehouse=parquet.warehouse) as client:
        uris = ", ".join(f"'{uri}'" for uri in client.snapshot("events").files.uris)
    con = duckdb.connect()
    columns = "ts::timestamp as ts, event, n::double as n, ok, day::timestamp as day, country"
    con.execute(f"create table events as select {columns} from read_parquet([{uris}], union_by_name = true)")
    return con


@pytest.fixture(scope="module")
def service(parquet):
    settings = SnapshotSettings(
        store="file:///unused", snapshot_address="127.0.0.1:0", snapshot_lag_interval_ms=600_000, s3_endpoint=None
    )
    service = start_service(parquet.warehouse, settings=settings, clock=CLOCK)
    yield service
    service.stop()


@contextmanager
def open_way(way, parquet, service):
    over_grpc = ClientSettings(snapshot_address=f"127.0.0.1:{service.server.port}")
    ways = {"settings": over_grpc} if "grpc" in way else {"settings": ClientSettings(), "warehouse": parquet.warehouse}
    if not way.startswith("async"):
        with Client(**ways) as client:
            yield client
        return
    with asyncio.Runner() as runner:
        client = AsyncClient(**ways)
        yield Waiting(client, runner)
        runner.run(client.close())


@pytest.fixture(scope="module", params=["store", "grpc", "async store", "async grpc"])
def client(request, parquet, service):
    """Every way in."""
    with open_way(request.param, parquet, service) as client:
        yield client


@pytest.fixture(scope="module", params=["store", "async grpc"])
def reader(request, parquet, service):
    """Two of them, which are all there is of each kind: for what happens after a snapshot has been answered."""
    with open_way(request.param, parquet, service) as client:
        yield client


def naive(table):
    """Rows as DuckDB has them: times without their zone, which is UTC."""
    return [
        tuple(value.replace(tzinfo=None) if isinstance(value, datetime) else value for value in row.values())
        for row in table.to_pylist()
    ]


def expected(all_rows, where):
    return all_rows.execute(f"select * from events where ({where}\n) order by ts, event").fetchall()


def test_conditions_mean_what_they_say(reader, all_rows):
    for where in CONDITIONS:
        found = naive(reader.snapshot("events", where=where).to_arrow())
        assert _same(found, expected(all_rows, where)), where


def test_a_condition_means_the_same_to_every_reader(client, all_rows):
    where = CONDITIONS[1]
    snapshot = client.snapshot("events", where=where)
    wanted = expected(all_rows, where)
    assert _same(naive(pa.Table.from_batches(snapshot.to_batches())), wanted)
    assert _same(naive(pa.Table.from_pandas(snapshot.to_pandas())), wanted)
    assert _same(naive(snapshot.to_polars().to_arrow()), wanted)
    assert _same([row[:6] for row in snapshot.sql("select * from events").fetchall()], wanted)
    with duckdb.connect() as con:
        snapshot.duckdb(con, view="v")
        assert _same(con.execute("select * exclude (d, c) from v").fetchall(), wanted)


def test_conditions_on_widened_columns_of_a_view(reader, all_rows):
    with duckdb.connect() as con:
        reader.snapshot("events").duckdb(con)
        for where in (*CONDITIONS, "n <> 2.75", "day > timestamp '2026-01-01 06:00:00'", "n in (2.75, 1)"):
            found = con.execute(f"select * exclude (d, c) from events where ({where}\n)").fetchall()
            assert _same(found, expected(all_rows, where)), where


def _same(found, wanted):
    return sorted(map(repr, found)) == sorted(map(repr, wanted))


def test_files_are_left_out_too(client):
    snapshot = client.snapshot("events", where="ts >= timestamp '2026-01-03'")
    assert (len(snapshot.files), snapshot.total_file_count) == (2, 3)
    assert len(client.snapshot("events", where="n = 1 and false").files) == 0


def test_types_do_not_depend_on_the_rows(reader):
    types = {
        "ts": pa.timestamp("us", "UTC"),
        "event": pa.string(),
        "n": pa.float64(),
        "ok": pa.bool_(),
        "day": pa.timestamp("us", "UTC"),
        "country": pa.string(),
    }
    for where in (None, "event = 'click'", "n is null", "false"):
        table = reader.snapshot("events", where=where).to_arrow()
        assert dict(zip(table.schema.names, table.schema.types, strict=True)) == types
    snapshot = reader.snapshot("events")
    assert dict(snapshot.schema) == {**SCHEMA, **WIDE, "country": "VARCHAR"}
    frame = snapshot.to_pandas()
    assert {name: str(kind) for name, kind in frame.dtypes.items()} == {
        "ts": "datetime64[us, UTC]",
        "event": "object",
        "n": "float64",
        "ok": "boolean",
        "day": "datetime64[us, UTC]",
        "country": "object",
    }
    polars = snapshot.to_polars()
    assert {name: str(kind) for name, kind in polars.schema.items()} == {
        "ts": "Datetime(time_unit='us', time_zone='UTC')",
        "event": "String",
        "n": "Float64",
        "ok": "Boolean",
        "day": "Datetime(time_unit='us', time_zone='UTC')",
        "country": "String",
    }
    assert len(frame) == len(polars) == 6


def test_columns_are_chosen_and_ordered_and_partition_fields_may_be_among_them(reader):
    snapshot = reader.snapshot("events", where="event = 'nine'")
    assert snapshot.to_arrow(columns=["c", "EVENT", "d"]).to_pylist() == [
        {"c": "a/b", "event": "nine", "d": "2026-01-03"}
    ]
    assert list(snapshot.to_pandas(columns=["n"]).columns) == ["n"]
    for columns in ([], "n", ["nope"], ["n", "x"]):
        with pytest.raises(InvalidRequest, match="column"):
            snapshot.to_arrow(columns=columns)
    with pytest.raises(InvalidRequest, match="batch_rows"):
        snapshot.to_arrow_reader(batch_rows=0)


def test_views_have_the_partition_fields_and_leave_out_files_by_them(client):
    snapshot = client.snapshot("events")
    found = snapshot.sql("select distinct d, c, country from events order by all").fetchall()
    assert found == [("2026-01-02", "São", "São"), ("2026-01-03", "a/b", "a/b"), ("2026-01-03", None, None)]
    plan = snapshot.sql("explain analyze select event from events where d = '2026-01-02'").fetchall()[0][1]
    assert "Total Files Read: 1 " in plan
    empty = client.snapshot("events", partitions={"d": "1999-01-01"})
    assert empty.sql("select count(*) from events where d = '2026-01-02' and c is null").fetchall() == [(0,)]
    assert empty.to_arrow(columns=["d", "n"]).num_rows == 0


def test_tables_without_files_and_without_columns(reader):
    empty = reader.snapshot("bare")
    assert (len(empty.files), dict(empty.schema), empty.row_count) == (0, {}, 0)
    assert (empty.to_arrow().num_columns, empty.to_arrow_reader().read_all().num_rows) == (0, 0)
    assert (len(empty.to_pandas()), empty.to_polars().shape) == (0, (0, 0))
    assert empty.sql("select count(*) from bare").fetchall() == [(0,)]
    none = reader.snapshot("events", where="event = 'none at all'")
    assert none.to_arrow().num_rows == 0


def test_columns_that_are_only_declared_are_columns(reader, parquet):
    empty = reader.snapshot("empty", where="ts >= '2026-01-01'")
    assert (dict(empty.schema), empty.to_arrow().schema.names, len(empty.files)) == ({"ts": "TIMESTAMP"}, ["ts"], 0)
    snapshot = reader.snapshot("declared", where="later is null and event = 'a'")
    assert dict(snapshot.schema) == {"event": "VARCHAR", "later": "BIGINT"}
    assert snapshot.to_arrow().to_pylist() == [{"event": "a", "later": None}]
    assert reader.snapshot("declared", where="later = 3").to_arrow().num_rows == 0


def test_big_results_come_in_batches(reader):
    reader = reader.snapshot("events").to_arrow_reader(batch_rows=1)
    assert reader.schema.field("ts").type == pa.timestamp("us", "UTC")
    assert sum(batch.num_rows for batch in reader) == 6


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


@pytest.mark.parametrize(
    ("partitions", "rows"),
    [
        ({"d": "2026-01-02"}, 4),
        ({"d": date(2026, 1, 3)}, 2),
        ({"d": [date(2026, 1, 2), "2026-01-03"]}, 6),
        ({"c": None}, 1),
        ({"c": "São", "d": "2026-01-02"}, 4),
        ([PartitionFilter("d", at_least="2026-01-03")], 2),
        ([PartitionFilter("c", is_null=False), PartitionFilter("d", above="2026-01-02")], 1),
        ([PartitionFilter("c", glob="S*o")], 4),
    ],
)
def test_partitions(client, partitions, rows):
    assert client.snapshot("events", partitions=partitions).row_count == rows


def test_bad_requests_say_what_is_wrong(client):
    for error, words, call in [
        (NotFound, "nope", lambda: client.snapshot("nope")),
        (InvalidRequest, "a-z", lambda: client.snapshot("No such name")),
        (InvalidRequest, "no partition field 'x'", lambda: client.snapshot("events", partitions={"x": "1"})),
        (InvalidRequest, "nope", lambda: client.snapshot("events", where="nope = 1")),
        (InvalidRequest, "where=", lambda: client.snapshot("events", where="event = ")),
        (InvalidRequest, "where=", lambda: client.snapshot("events", where="true) union select (1")),
        (InvalidRequest, "where=", lambda: client.snapshot("events", where="n > (select 1)")),
        (InvalidRequest, "a pin", lambda: client.snapshot("events", pin="q", as_of=1)),
        (InvalidRequest, "pin", lambda: client.snapshot("events", pin="q", min_commit="x")),
        (NotFound, "no pin", lambda: client.snapshot("events", pin="nope")),
        (InvalidRequest, "min_commit 'x' is no batch id", lambda: client.snapshot("events", min_commit="x")),
        (NotFound, "never accepted", lambda: client.snapshot("events", min_commit=new_batch_id(CLOCK))),
        (CorruptLog, "line 0", lambda: client.snapshot("damaged")),
        (InvalidRequest, "director", lambda: client.snapshot("events", presign_ms=60_000).files.uris),
        (NotFound, "nope", lambda: client.table("nope")),
        (NotFound, "nope", lambda: client.changes("nope", from_=1)),
        (InvalidRequest, "future", lambda: client.changes("past", from_=CLOCK.now_ms() + 60_000)),
        (InvalidRequest, "earlier", lambda: client.changes("past", from_=2, to=1)),
        (NotFound, "nope", lambda: next(client.watch(["nope"]))),
        (InvalidRequest, "list of names", lambda: next(client.watch("events"))),
        (InvalidRequest, "names 'past'", lambda: client.snapshot("events").sql("select * from past")),
        (InvalidRequest, "INSERT", lambda: client.snapshot("events").sql("insert into events values (1)")),
    ]:
        with pytest.raises(error, match=words):
            call()


def test_a_condition_that_only_duckdb_can_refuse(reader):
    snapshot = reader.snapshot("events", where="date_trunc('nonsense', ts) = ts")
    for read in (snapshot.to_arrow, lambda: list(snapshot.to_batches())):
        with pytest.raises(InvalidRequest, match="where="):
            read()


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


def test_tables_and_what_they_are(client):
    assert {"damaged", "empty", "events", "past"} <= set(client.tables())
    assert client.tables(glob="e*s") == ("events",)
    assert client.tables(glob="[!a-d]mpty") == ("empty",)
    table = client.table("events")
    assert (table.name, dict(table.schema)["n"]) == ("events", "DOUBLE")
    assert [str(field) for field in table.partition_fields] == ["d=day(ts)", "c=country"]
    assert table.data_grace_ms > table.log_grace_ms > 0
    assert (table.retention_ms, table.retention_field, table.horizon_ms) == (None, None, None)


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


def test_pins(client, parquet):
    name = f"p{CLOCK.new_id()[-8:]}"
    before = client.snapshot("growing", max_staleness_ms=0)
    create_pin(parquet.warehouse.store, parquet.warehouse.table("growing"), name, clock=CLOCK, ttl_ms=60_000)
    parquet.commit("growing", "select timestamp '2026-01-02' as ts", partition="d=2026-01-02")
    pinned = client.snapshot("growing", pin=name)
    assert list(pinned.files) == list(before.files)
    result = client.query("select count(*) from growing", pin=name)
    assert result.relation.fetchall() == [(before.row_count,)]
    result.relation.close()


def test_a_lease_lasts_as_long_as_the_block(client, parquet):
    store, paths = parquet.warehouse.store, parquet.warehouse.table("leased")
    with client.reading("leased", where="ts is not null") as snapshot:
        assert [lease.lease_id for lease in read_leases(store, paths)] == [snapshot.lease.lease_id]
        assert snapshot.to_arrow().num_rows == 1
        assert snapshot.sql("select count(*) from leased").fetchall() == [(1,)]
    assert read_leases(store, paths) == ()
    with pytest.raises(ZeroDivisionError), client.reading("leased"):
        raise ZeroDivisionError
    assert read_leases(store, paths) == ()


@pytest.mark.parametrize("way", ["store", "grpc"])
def test_a_long_read_takes_a_lease_from_now_on_or_of_its_last_commit_if_there_is_another(
    way, parquet, service, monkeypatch
):
    monkeypatch.setattr("icedb_client.read_lease.may_take_long", lambda _: True)
    store, paths = parquet.warehouse.store, parquet.warehouse.table("leased")
    with open_way(way, parquet, service) as client:
        snapshot = client.snapshot("leased")
        with hold_while_reading(replace(snapshot, last_commit_ms=1)):
            assert [lease.at_ms > snapshot.last_commit_ms for lease in read_leases(store, paths)] == [True]
        assert read_leases(store, paths) == ()
        with hold_while_reading(replace(snapshot, last_commit_ms=1, snapshot_id="overtaken")):
            assert [lease.at_ms for lease in read_leases(store, paths)] == [1]


def test_a_lost_lease_fails_the_read(reader, parquet):
    store, paths = parquet.warehouse.store, parquet.warehouse.table("leased")

    def lose(snapshot):
        store.delete([paths.lease_key(snapshot.lease.lease_id)])
        snapshot.hold.renew()

    with pytest.raises(Unavailable, match=r"lease .* was\s+lost.*read again"), reader.reading("leased") as snapshot:
        batches = iter(snapshot.to_batches(batch_rows=1))
        lose(snapshot)
        for read in (
            snapshot.to_arrow,
            lambda: list(batches),
            lambda: snapshot.sql("select * from leased").fetchall(),
            snapshot.to_polars,
        ):
            with pytest.raises(Unavailable, match=r"was lost"):
                read()


def test_a_file_that_is_gone_names_the_remedy(reader, parquet):
    name = f"gone_{CLOCK.new_id()[-8:]}"
    parquet.create(name)
    done = parquet.commit(name, "select 1 as a", schema={"a": "BIGINT"})
    parquet.commit(name, "select 2 as a", schema={"a": "BIGINT"})
    snapshot = reader.snapshot(name)
    parquet.warehouse.store.delete([done.data_key])
    for read in (
        snapshot.to_arrow,
        lambda: list(snapshot.to_batches()),
        snapshot.to_polars,
        lambda: snapshot.sql(f"select * from {name}").fetchall(),
        lambda: reader.query(f"select * from {name}").relation.fetchall(),
    ):
        with pytest.raises(Unavailable, match=r"grace period.*client\.reading"):
            read()


def test_queries_over_several_tables(client):
    result = client.query("select count(*), (select count(*) from past) from events where d = '2026-01-03'", as_of=None)
    with result.relation as rows:
        assert rows.fetchall() == [(2, 2)]
    assert set(result.snapshots) == {"events", "past"}
