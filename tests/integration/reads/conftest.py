"""A warehouse, the service that answers for it, and every way to read: the fixtures of the suite for all clients."""

import asyncio
import inspect
from contextlib import contextmanager

import pytest
from icedb_client import AsyncClient, AsyncSnapshot, Client
from icedb_client.settings import ClientSettings
from icedb_log.store.local_store import LocalObjectStore
from icedb_log.warehouse import Warehouse
from icedb_sim.rigs.parquet_warehouse import ParquetWarehouse
from icedb_sim.rigs.snapshot_rig import start_snapshot

FIRST_MS = 1_767_312_000_000  # 2026-01-02T00:00:00Z
SCHEMA = {"ts": "TIMESTAMP", "event": "VARCHAR", "n": "BIGINT", "ok": "BOOLEAN", "day": "DATE"}
WIDE = {"n": "DOUBLE", "day": "TIMESTAMP"}


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
def service(parquet):
    rig = start_snapshot(parquet.warehouse)
    yield rig
    rig.stop()


@pytest.fixture(scope="module")
def open_way(parquet, service):
    """Opens a client: ``store`` or ``grpc``, ``async`` before it or not."""
    over_grpc = ClientSettings(snapshot_address=service.address)

    @contextmanager
    def open_way(way):
        ways = (
            {"settings": over_grpc} if "grpc" in way else {"settings": ClientSettings(), "warehouse": parquet.warehouse}
        )
        if not way.startswith("async"):
            with Client(**ways) as client:
                yield client
            return
        with asyncio.Runner() as runner:
            client = AsyncClient(**ways)
            yield Waiting(client, runner)
            runner.run(client.close())

    return open_way


@pytest.fixture(scope="module", params=["store", "grpc", "async store", "async grpc"])
def client(request, open_way):
    """Every way in."""
    with open_way(request.param) as client:
        yield client


@pytest.fixture(scope="module", params=["store", "async grpc"])
def reader(request, open_way):
    """Two of them, which are all there is of each kind: for what happens after a snapshot has been answered."""
    with open_way(request.param) as client:
        yield client
