"""The snapshot server in this process: real gRPC on loopback, health, reflection, every status code, shared reads."""

import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from icedb_client.client import Client
from icedb_client.settings import ClientSettings
from icedb_log.clock import SystemClock, format_ms
from icedb_log.errors import CorruptLog, InvalidRequest, NotFound, Unavailable
from icedb_log.keys import clock_key
from icedb_log.serving.table_cache import CachedTable
from icedb_log.store.local_store import LocalObjectStore
from icedb_log.table.partitions import PartitionFilter, parse_partition_filters
from icedb_log.trash.drop import drop_table
from icedb_log.warehouse import Warehouse
from icedb_proto import snapshot_pb2 as pb
from icedb_service import endpoints
from icedb_sim.rigs.parquet_warehouse import ParquetWarehouse
from icedb_sim.rigs.snapshot_rig import start_snapshot
from waiting import LIMIT_S, wait_until

SERVICE = "icedb.v1.SnapshotService"


class CountingStore(LocalObjectStore):
    """Counts listings of logs; can hold them, and can be unreachable."""

    listings = 0
    gate = stall = None
    is_down = False

    def get(self, key, **more):
        if self.is_down:
            raise Unavailable("the store does not answer")
        if self.stall is not None and key == clock_key(""):  # a look whether the store answers
            assert self.stall.wait(LIMIT_S)
        return super().get(key, **more)

    def list_page(self, prefix, *, token=None, limit=1000):
        if self.is_down:
            raise Unavailable("the store does not answer")
        if prefix.endswith("/_log/"):
            self.listings += 1
            if self.gate is not None:
                assert self.gate.wait(LIMIT_S)
        elif self.stall is not None:
            assert self.stall.wait(LIMIT_S)
        return super().list_page(prefix, token=token, limit=limit)

    def list_folders(self, prefix):
        if self.is_down:
            raise Unavailable("the store does not answer")
        return super().list_folders(prefix)


@pytest.fixture
def store(tmp_path):
    folder = tmp_path / "warehouse"
    folder.mkdir()
    return CountingStore(folder)


@pytest.fixture
def parquet(store):
    parquet = ParquetWarehouse(Warehouse(store))
    parquet.create("events", "d=day(ts)", "u=bucket[4](user)")
    return parquet


@pytest.fixture
def serve(store):
    running = []

    def serve(**fields):
        running.append(start_snapshot(Warehouse(store), **fields))
        await_serving(running[-1])
        return running[-1]

    yield serve
    for rig in running:
        rig.stop()


@pytest.fixture
def call(serve):
    stub = serve().stub

    def call(table="events", **fields):
        return stub.GetSnapshot(pb.GetSnapshotRequest(table=table, **fields), timeout=LIMIT_S)

    return call


def await_serving(rig, status=health_pb2.HealthCheckResponse.SERVING):
    stub, asked = health_pb2_grpc.HealthStub(rig.channel), health_pb2.HealthCheckRequest(service=SERVICE)
    wait_until(lambda: stub.Check(asked, timeout=LIMIT_S, wait_for_ready=True).status == status)


def refused(call, *args, **kwargs):
    with pytest.raises(grpc.RpcError) as caught:
        call(*args, **kwargs)
    error = caught.value
    return error.code(), error.details(), dict(error.trailing_metadata()).get("icedb-error")


def test_the_newest_state_pruned_and_whole(call, parquet):
    first = parquet.commit("events", "select 'a' as event from range(3)", partition="d=2026-01-02/u=1")
    parquet.commit("events", "select 'b' as event from range(4)", partition="d=2026-01-03/u=2")
    answer = call(max_staleness_ms=0)
    assert (answer.file_count, answer.row_count, answer.total_file_count) == (2, 7, 2)
    assert answer.files[0].path == first.data_key
    assert [(v.name, v.value) for v in answer.files[0].partition_values] == [("d", "2026-01-02"), ("u", "1")]
    assert not answer.is_stable
    assert not answer.HasField("as_of_ms")
    pruned = call(partition_filters=[pb.PartitionFilter(field="d", equals="2026-01-02")])
    assert (pruned.file_count, pruned.row_count, pruned.total_file_count) == (1, 3, 2)
    assert pruned.snapshot_id == answer.snapshot_id


def test_time_travel_and_its_horizon(call, parquet):
    now = parquet.clock.now_ms()
    first = parquet.commit("events", "select 1 as amount", partition="d=2026-01-02/u=1", time_ms=now - 9000)
    second = parquet.commit("events", "select 1 as amount", partition="d=2026-01-02/u=1", time_ms=now - 8000)
    parquet.commit(
        "events",
        "select 1 as amount from range(2)",
        partition="d=2026-01-02/u=1",
        time_ms=now - 7000,
        replaces=(first, second),
    )
    assert call(max_staleness_ms=0).file_count == 1
    past = call(as_of_ms=now - 8000)
    assert (past.file_count, past.row_count, past.as_of_ms) == (2, 2, now - 8000)
    assert call(as_of_ms=now - 9500).file_count == 0
    parquet.warehouse.store.delete([first.log_key])
    code, details, name = refused(call, as_of_ms=now - 8000, max_staleness_ms=0)
    assert (code, name) == (grpc.StatusCode.OUT_OF_RANGE, "BelowHorizon")
    assert f"{format_ms(now - 7000)} ({now - 7000}), the oldest time still readable" in details
    assert call(as_of_ms=now - 7000).file_count == 1


@pytest.mark.parametrize(
    ("request_fields", "code", "name", "words"),
    [
        ({"table": "nope"}, grpc.StatusCode.NOT_FOUND, "TableNotFound", "icedb table list"),
        ({"table": "dropped"}, grpc.StatusCode.NOT_FOUND, "NotFound", "`icedb table undrop dropped` brings it back"),
        ({"table": "tablé"}, grpc.StatusCode.INVALID_ARGUMENT, "InvalidRequest", "a-z"),
        (
            {"partition_filters": [pb.PartitionFilter(field="nope", equals="x")]},
            grpc.StatusCode.INVALID_ARGUMENT,
            "InvalidRequest",
            "d=day(ts), u=bucket[4](user)",
        ),
        (
            {"partition_filters": [pb.PartitionFilter(field="d", equals="é" * 10_000)]},
            grpc.StatusCode.INVALID_ARGUMENT,
            "InvalidRequest",
            "longer than 1024 bytes",
        ),
        (
            {"partition_filters": [pb.PartitionFilter(field="d", equals="../2026")]},
            grpc.StatusCode.INVALID_ARGUMENT,
            "InvalidRequest",
            "is not a day",
        ),
    ],
)
def test_bad_requests(call, parquet, request_fields, code, name, words):
    parquet.create("dropped")
    drop_table(parquet.warehouse.table("dropped"), clock=SystemClock())
    found = refused(call, **request_fields)
    assert found[0::2] == (code, name)
    assert words in found[1]
    assert len(found[1]) < 600


def test_a_damaged_table_halts_alone(call, parquet):
    parquet.create("broken")
    key = parquet.damage("broken")
    code, details, name = refused(call, "broken")
    assert (code, name) == (grpc.StatusCode.FAILED_PRECONDITION, "CorruptLog")
    assert key in details
    assert call().file_count == 0


def test_an_unreachable_store(call, store, parquet, serve):
    call(max_staleness_ms=0)
    store.is_down = True
    assert refused(call, max_staleness_ms=0)[0] == grpc.StatusCode.UNAVAILABLE
    # What was read before still serves those who accept its age.
    assert call(max_staleness_ms=60_000).file_count == 0
    store.is_down = False
    assert call(max_staleness_ms=0).file_count == 0


def test_health_follows_the_store(store, parquet, serve, monkeypatch):
    monkeypatch.setattr(endpoints, "LOOK_EVERY_S", 0.05)
    rig = serve()
    store.is_down = True
    await_serving(rig, health_pb2.HealthCheckResponse.NOT_SERVING)
    store.is_down = False
    await_serving(rig)


def test_health_tells_of_a_store_that_hangs_while_the_figures_of_a_table_are_read(store, parquet, serve, monkeypatch):
    """A request that is given up after 20 s is sent three times, for each table: that is a round of minutes."""
    monkeypatch.setattr(endpoints, "LOOK_EVERY_S", 0.05)
    monkeypatch.setattr(endpoints, "LOOK_LIMIT_S", 0.05)
    rig = serve(snapshot_lag_interval_ms=200)
    store.gate = store.stall = threading.Event()
    try:
        await_serving(rig, health_pb2.HealthCheckResponse.NOT_SERVING)
    finally:
        store.gate.set()
    store.gate = store.stall = None
    monkeypatch.setattr(endpoints, "LOOK_LIMIT_S", LIMIT_S)
    await_serving(rig)


def test_many_callers_share_one_read(call, store, parquet, monkeypatch):
    parquet.commit("events", "select 1 as amount", partition="d=2026-01-02/u=1")
    call(max_staleness_ms=0)
    arrived, ask = [], CachedTable.ask
    monkeypatch.setattr(CachedTable, "ask", lambda table, age_ms: arrived.append(age_ms) or ask(table, age_ms))
    store.listings, store.gate = 0, threading.Event()
    with ThreadPoolExecutor(24) as pool:
        answers = [pool.submit(call, max_staleness_ms=0) for _ in range(24)]
        wait_until(lambda: store.listings and len(arrived) >= 24)
        parquet.commit("events", "select 1 as amount", partition="d=2026-01-02/u=1")
        store.gate.set()
        counts = [answer.result(LIMIT_S).file_count for answer in answers]
    store.gate = None
    assert set(counts) <= {1, 2}
    assert store.listings <= 6, "all had arrived before the gate opened"
    assert call(max_staleness_ms=0).file_count == 2


def test_answers_within_the_staleness_cost_no_listing(call, store, parquet):
    call(max_staleness_ms=0)
    store.listings = 0
    for _ in range(50):
        call(max_staleness_ms=60_000)
    assert store.listings == 0


def test_more_calls_at_once_than_may_wait_are_refused_and_the_others_answered(serve, store, parquet):
    rig = serve(snapshot_max_pending_calls=2, snapshot_max_watchers=1)
    store.gate = threading.Event()
    asked = pb.GetSnapshotRequest(table="events", max_staleness_ms=0)
    calls = [rig.stub.GetSnapshot.future(asked, timeout=LIMIT_S) for _ in range(3)]
    wait_until(lambda: any(call.done() for call in calls))
    store.gate.set()
    codes = sorted(call.code().name for call in calls)
    assert codes == ["OK", "OK", "RESOURCE_EXHAUSTED"]


def test_a_request_has_a_bound(serve, parquet):
    code, details, _ = refused(serve().stub.GetSnapshot, pb.GetSnapshotRequest(table="x" * (5 << 20)), timeout=LIMIT_S)
    assert (code, "larger than max" in details) == (grpc.StatusCode.RESOURCE_EXHAUSTED, True)


def test_a_connection_ends_for_others_to_be_found(serve, parquet):
    rig = serve(snapshot_connection_age_ms=1000)
    seen, ready, idle = [], grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.IDLE
    note = seen.append

    def has_ended():
        if seen[-1:] == [idle] and ready not in seen:  # a busy machine may have missed that it was ready
            rig.channel.unsubscribe(note)
            rig.channel.subscribe(note, try_to_connect=True)
        return ready in seen and idle in seen[seen.index(ready) :]

    rig.channel.subscribe(note, try_to_connect=True)
    wait_until(has_ended)


def test_reflection_names_the_protocol(serve, parquet):
    stub = reflection_pb2_grpc.ServerReflectionStub(serve().channel)
    asked = iter(
        [
            reflection_pb2.ServerReflectionRequest(list_services=""),
            reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE),
        ]
    )
    services, file = stub.ServerReflectionInfo(asked, timeout=LIMIT_S)
    names = {service.name for service in services.list_services_response.service}
    assert names == {SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    assert b"icedb/v1/snapshot.proto" in file.file_descriptor_response.file_descriptor_proto[0]


def test_an_unknown_method(serve, parquet):
    method = serve().channel.unary_unary(f"/{SERVICE}/Nope")
    assert refused(method, b"")[0] == grpc.StatusCode.UNIMPLEMENTED


def test_two_servers_do_not_share_a_port(serve, store, parquet):
    with pytest.raises(Unavailable, match="ICEDB_SNAPSHOT_ADDRESS"):
        start_snapshot(Warehouse(store), snapshot_address=serve().address)


@pytest.fixture
def client(serve, parquet):
    with Client(settings=ClientSettings(snapshot_address=serve().address), warehouse=parquet.warehouse) as client:
        yield client


def test_the_client_over_grpc_says_the_same_as_straight_from_the_store(client, parquet):
    for day, user in (("02", 1), ("03", 2), ("03", 3)):
        parquet.commit("events", "select 1.5 as amount", partition=f"d=2026-01-{day}/u={user}")
    straight = Client(settings=ClientSettings(store="file:///unused"), warehouse=parquet.warehouse)
    for texts in ([], ["d=2026-01-03"], ["d>=2026-01-03", "u<3"], ["u=1", "u=2"], ["d is null"], ["d is not null"]):
        filters = parse_partition_filters(texts)
        over_grpc = client.snapshot("events", partitions=filters, max_staleness_ms=0)
        assert over_grpc == straight.snapshot("events", partitions=filters), texts
    result = client.query("select sum(amount) from events")
    assert result.fetchall() == [(4.5,)]
    result.close()


def test_typed_errors_survive_the_wire(client, parquet):
    with pytest.raises(NotFound, match="'nope' does not exist"):
        client.snapshot("nope")
    with pytest.raises(InvalidRequest, match="no partition field"):
        client.snapshot("events", partitions={"nope": 1})
    with pytest.raises(InvalidRequest, match="two lower bounds"):
        client.snapshot("events", partitions=[PartitionFilter("d", at_least="2026-01-01", above="2026-01-01")])
    parquet.create("broken")
    parquet.damage("broken")
    with pytest.raises(CorruptLog, match="line 0"):
        client.snapshot("broken")


def test_a_server_that_is_not_there_is_named_with_the_setting(parquet):
    client = Client(settings=ClientSettings(snapshot_address="127.0.0.1:1"), warehouse=parquet.warehouse)
    with client, pytest.raises(Unavailable, match=r"127\.0\.0\.1:1 does not answer.*ICEDB_SNAPSHOT_ADDRESS"):
        client.snapshot("events")
