"""The client's side of the wire: retries, replicas, streams, tokens, TLS, and what is said when they do not fit."""

import re
import select
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import grpc
import pytest
from icedb_client import Client
from icedb_client.settings import ClientSettings
from icedb_log.clock import SystemClock
from icedb_log.errors import IceDBError, InvalidRequest, NotFound, Overloaded, Unauthenticated, Unavailable
from icedb_log.store.local_store import LocalObjectStore
from icedb_log.warehouse import Warehouse
from icedb_proto import snapshot_pb2 as pb
from icedb_proto import snapshot_pb2_grpc
from icedb_sim.rigs.access_rig import Authority, token_entry, write_access
from icedb_sim.rigs.parquet_warehouse import ParquetWarehouse
from icedb_sim.rigs.snapshot_rig import start_snapshot
from waiting import LIMIT_MS, LIMIT_S, wait_until

TOKEN = "icedbt_reader-0123456789abcdef"
CODE = grpc.StatusCode


class RecordingClock(SystemClock):
    """Sleeps not at all, and says how long it was to."""

    def __init__(self):
        self.slept = []

    def sleep_ms(self, duration_ms):
        self.slept.append(duration_ms)


class Scripted(snapshot_pb2_grpc.SnapshotServiceServicer):
    """Ends calls as its script says, then answers."""

    def __init__(self):
        self.script = []
        self.calls = []
        self.events = []
        self.announced = 2
        self.left_s = []

    def _next(self, context, method):
        self.left_s.append(context.time_remaining())
        self.calls.append((method, dict(context.invocation_metadata()).get("authorization")))
        if self.script:
            code, metadata = self.script.pop(0)
            context.set_trailing_metadata(metadata)
            context.abort(code, "as the script says")

    def GetSnapshot(self, request, context):
        self._next(context, "GetSnapshot")
        return pb.GetSnapshotResponse(table=request.table, snapshot_id="s")

    def StreamSnapshot(self, request, context):
        self._next(context, "StreamSnapshot")
        files = [pb.DataFile(path=f"t/_data/d=1/{n}.parquet", uri=f"/x/{n}", size_bytes=1, row_count=n) for n in (1, 2)]
        yield pb.GetSnapshotResponse(table=request.table, file_count=self.announced, size_bytes=2, row_count=3)
        for file in files:
            yield pb.GetSnapshotResponse(files=[file])

    def WatchSnapshots(self, request, context):
        self._next(context, "WatchSnapshots")
        yield from self.events
        context.abort(CODE.UNAVAILABLE, "the server stops")


class Quiet(snapshot_pb2_grpc.SnapshotServiceServicer):
    """Tells of one table, then nothing until the caller goes away."""

    def __init__(self):
        self.has_ended = threading.Event()

    def WatchSnapshots(self, request, context):
        context.add_callback(self.has_ended.set)
        yield pb.SnapshotEvent(table="events", snapshot_id="s")
        self.has_ended.wait(LIMIT_S)


@pytest.fixture
def serve():
    running = []

    def serve(servicer):
        server = grpc.server(ThreadPoolExecutor(2))
        snapshot_pb2_grpc.add_SnapshotServiceServicer_to_server(servicer, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        running.append(server)
        return f"127.0.0.1:{port}"

    yield serve
    for server in running:
        server.stop(None).wait()


@pytest.fixture
def connect():
    clients = []

    def connect(address, **fields):
        client = Client(settings=ClientSettings(snapshot_address=address, **fields), clock=RecordingClock())
        clients.append(client)
        return client

    yield connect
    for client in clients:
        client.close()


def methods(servicer):
    return [method for method, _ in servicer.calls]


def test_what_passes_is_tried_again_and_as_late_as_the_server_asks(serve, connect):
    servicer = Scripted()
    client = connect(serve(servicer))
    servicer.script = [
        (CODE.UNAVAILABLE, ()),
        (CODE.RESOURCE_EXHAUSTED, (("icedb-error", "Overloaded"), ("retry-after-ms", "1234"))),
    ]
    assert client.snapshot("events").snapshot_id == "s"
    assert client.clock.slept[1] == 1234
    assert 100 <= client.clock.slept[0] <= 200
    servicer.script = [(CODE.RESOURCE_EXHAUSTED, (("icedb-error", "Overloaded"), ("retry-after-ms", "20")))] * 9
    with pytest.raises(Overloaded) as caught:
        client.snapshot("events")
    assert caught.value.retry_after_ms == 20
    assert len(servicer.script) == 5


def test_what_does_not_pass_is_not_tried_again(serve, connect):
    servicer = Scripted()
    client = connect(serve(servicer))
    for code, error in [
        (CODE.NOT_FOUND, NotFound),
        (CODE.DEADLINE_EXCEEDED, Unavailable),
        (CODE.INTERNAL, Unavailable),
    ]:
        servicer.script = [(code, ())]
        with pytest.raises(error):
            client.snapshot("events")
    assert len(servicer.calls) == 3
    assert client.clock.slept == []


def test_a_wait_that_the_time_out_does_not_allow_is_not_begun(serve, connect):
    servicer = Scripted()
    client = connect(serve(servicer), snapshot_timeout_ms=LIMIT_MS)
    wait = ("retry-after-ms", str(2 * LIMIT_MS))
    servicer.script = [(CODE.RESOURCE_EXHAUSTED, (("icedb-error", "Overloaded"), wait))]
    with pytest.raises(Overloaded):
        client.snapshot("events")
    assert client.clock.slept == []


def test_a_call_has_the_time_that_is_left_of_its_time_out_and_a_watch_has_any(serve, connect):
    servicer = Scripted()
    client = connect(serve(servicer), snapshot_timeout_ms=70_000)
    client.snapshot("events")
    # gRPC rounds what it sends up, and the server counts from a clock that it reads now and then: 8 ms more were seen.
    assert 0 < servicer.left_s[0] < 70 + 1
    servicer.events = [pb.SnapshotEvent(table="events", snapshot_id="s")]
    events = client.watch(["events"])
    next(events)
    events.close()
    assert servicer.left_s[1] is None or servicer.left_s[1] > 3600


def test_answers_that_are_too_large_are_streamed_and_at_once_the_next_time(serve, connect):
    servicer = Scripted()
    client = connect(serve(servicer))
    servicer.script = [(CODE.RESOURCE_EXHAUSTED, (("icedb-error", "InvalidRequest"),))]
    found = client.snapshot("events")
    assert ([file.row_count for file in found.files], found.row_count, found.size_bytes) == ([1, 2], 3, 2)
    assert found.files[-1].path.endswith("2.parquet")
    assert found.files.uris == ["/x/1", "/x/2"]
    client.snapshot("events")
    assert methods(servicer) == ["GetSnapshot", "StreamSnapshot", "StreamSnapshot"]
    servicer.announced = 3
    with pytest.raises(Unavailable, match="announced 3 data files and sent 2"):
        client.snapshot("events")


def test_replicas_are_asked_in_turn_and_one_of_them_may_be_gone(serve, connect):
    replicas = [Scripted(), Scripted()]
    client = connect(", ".join([*map(serve, replicas), "127.0.0.1:1"]))
    for _ in range(6):
        assert client.snapshot("events").snapshot_id == "s"
    assert min(len(replica.calls) for replica in replicas) >= 2


def test_a_watch_goes_on_elsewhere_and_tells_nothing_twice(serve, connect):
    servicer = Scripted()
    client = connect(serve(servicer))
    first, second = (pb.SnapshotEvent(table="events", snapshot_id=name) for name in "ab")
    servicer.events = [first]
    events = client.watch(["events"])
    assert next(events).snapshot_id == "a"
    servicer.events = [first, second]
    assert next(events).snapshot_id == "b"
    servicer.script = [(CODE.NOT_FOUND, ())]
    with pytest.raises(NotFound):
        next(events)


def test_tokens_go_with_each_call_and_files_of_them_are_read_again(serve, connect, tmp_path):
    servicer = Scripted()
    address = serve(servicer)
    connect(address, token=TOKEN).snapshot("events")
    file = tmp_path / "token"
    file.write_text("one\n")
    client = connect(address, token_file=file)
    client.snapshot("events")
    file.write_text("second\n")
    client.snapshot("events")
    assert [token for _, token in servicer.calls] == [f"Bearer {TOKEN}", "Bearer one", "Bearer second"]
    file.unlink()
    with pytest.raises(Unauthenticated, match="ICEDB_TOKEN_FILE"):
        client.snapshot("events")


def test_a_token_does_not_go_over_the_network_in_plain_text(connect):
    with pytest.raises(InvalidRequest, match=r"192\.0\.2\.1:50051 in plain text.*ICEDB_TLS") as caught:
        connect("127.0.0.1:50051,192.0.2.1:50051", token=TOKEN).snapshot("events")
    assert TOKEN not in str(caught.value)
    with pytest.raises(InvalidRequest, match="in plain text"):
        connect("127.0.0.1.example.org:50051", token=TOKEN).snapshot("events")
    assert TOKEN not in repr(ClientSettings(token=TOKEN))
    with pytest.raises(Unavailable, match="does not answer"):
        connect("localhost:1", token=TOKEN).snapshot("events")
    open_client = connect("127.1.1.1:1", token=TOKEN, token_over_plaintext=True)
    with pytest.raises(Unavailable, match="does not answer"):
        open_client.snapshot("events")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("tls")


@pytest.fixture(scope="module")
def authority():
    return Authority()


@pytest.fixture(scope="module")
def warehouse(folder):
    (folder / "warehouse").mkdir()
    parquet = ParquetWarehouse(Warehouse(LocalObjectStore(folder / "warehouse")))
    parquet.create("events", "d=day(ts)")
    for day in range(1, 10):
        parquet.commit("events", f"select timestamp '2026-01-0{day}' as ts", partition=f"d=2026-01-0{day}")
    return parquet.warehouse


@pytest.fixture(scope="module")
def services(folder, authority, warehouse):
    """Ports of real services: plain text, TLS with tokens, and TLS with client certificates."""
    cert_file, key_file = authority.issue(folder, "server", dns=("localhost",))
    grants = [{"identities": ["reader"], "tables": ["*"], "verbs": ["read"]}]
    identities = {"reader": {"tokens": [token_entry(TOKEN)], "certificates": ["reader"]}}
    access = write_access(folder / "access.json", {"identities": identities, "grants": grants})
    tls = {"tls_cert_file": str(cert_file), "tls_key_file": str(key_file), "access_file": str(access)}
    running = {}
    for name, fields in {
        "plain": {"snapshot_max_message_bytes": 1024},
        "tls": tls,
        "mtls": {**tls, "tls_client_ca_file": str(authority.write(folder / "ca.pem"))},
    }.items():
        running[name] = start_snapshot(warehouse, **fields)
    yield {name: rig.address for name, rig in running.items()}
    for rig in running.values():
        rig.stop()


def test_a_real_answer_that_is_too_large_is_streamed(services, connect):
    found = connect(services["plain"]).snapshot("events")
    assert (len(found.files), found.row_count, len(set(found.files.paths))) == (9, 9, 9)
    assert found.to_arrow().num_rows == 9


def test_tls_with_a_token_and_with_a_certificate(services, connect, authority, folder):
    ca_file = authority.write(folder / "ca.pem")
    cert_file, key_file = authority.issue(folder, "reader")
    mutual = {"client_cert_file": cert_file, "client_key_file": key_file}
    for address, fields in [(services["tls"], {"token": TOKEN}), (services["mtls"], mutual)]:
        assert connect(address, ca_file=ca_file, **fields).snapshot("events").row_count == 9


class SlowRoad:
    """A way to a server on which the first words of a client take half a second; counts who came."""

    HOLD_S = 0.5

    def __init__(self, address):
        self.target = address.rsplit(":", 1)
        self.came = 0
        self.given_up = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        with suppress(OSError):  # closed: the test is over
            while True:
                client, _ = self.listener.accept()
                self.came += 1
                threading.Thread(target=self.lead, args=(client,), daemon=True).start()

    def lead(self, client):
        with suppress(OSError), client, socket.create_connection(self.target) as server:
            hello = client.recv(65536)
            if select.select([client], [], [], self.HOLD_S)[0]:  # it says no more before it has an answer: it leaves
                self.given_up += 1
                return
            server.sendall(hello)
            threading.Thread(target=self.pump, args=(server, client), daemon=True).start()
            self.pump(client, server)

    def pump(self, source, target):
        with suppress(OSError):
            while piece := source.recv(65536):
                target.sendall(piece)
            target.shutdown(socket.SHUT_WR)


def test_a_handshake_over_a_slow_road_is_waited_for(services, connect, authority, folder):
    """Each attempt to connect was given up after 100 ms, handshake included: a distant server was hardly reached."""
    road = SlowRoad(services["tls"])
    with road.listener:
        client = connect(
            road.address.replace("127.0.0.1", "localhost"), ca_file=authority.write(folder / "ca.pem"), token=TOKEN
        )
        assert client.snapshot("events").row_count == 9
        assert (road.came, road.given_up) == (1, 0)
        client.close()


def test_what_does_not_fit_is_told_apart(services, connect, authority, folder):
    ca_file = authority.write(folder / "ca.pem")
    other_ca = Authority("another authority").write(folder / "other.pem")
    for address, fields, error, words in [
        (services["tls"], {}, Unavailable, "speaks TLS, this client does not.*ICEDB_TLS"),
        (services["plain"], {"ca_file": ca_file}, Unavailable, "speaks no TLS.*unset ICEDB_TLS"),
        (services["tls"], {"ca_file": other_ca, "token": TOKEN}, Unavailable, "not trusted.*ICEDB_CA_FILE"),
        (services["tls"], {"tls": True, "token": TOKEN}, Unavailable, "not trusted.*ICEDB_CA_FILE"),
        (services["mtls"], {"ca_file": ca_file, "token": TOKEN}, Unavailable, "client certificate.*ICEDB_CLIENT_CERT"),
        (services["tls"], {"ca_file": ca_file, "token": "wrong"}, Unauthenticated, "ICEDB_TOKEN"),
        (services["tls"], {"ca_file": ca_file}, Unauthenticated, "ICEDB_TOKEN"),
        (services["plain"], {"ca_file": folder / "nope"}, InvalidRequest, "ICEDB_CA_FILE .*cannot be read"),
        ("127.0.0.1:1", {"ca_file": ca_file}, Unavailable, "does not answer"),
    ]:
        client = connect(address, **fields)

        def is_told(client=client, error=error, words=words):
            """On a busy machine a connection may be given up before it is made; that is told, too, and not meant."""
            with pytest.raises(IceDBError) as caught:
                client.snapshot("events")
            assert TOKEN not in str(caught.value)
            return isinstance(caught.value, error) and re.search(words, str(caught.value))

        wait_until(is_told, words)
