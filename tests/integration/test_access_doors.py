"""Every method of every gRPC service and every HTTP door, with every kind of wrong identity, over TLS and without."""

import contextlib
import http.client
import json
import socket
import ssl

import grpc
import pytest
import structlog
from google.protobuf import message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from icedb_client.testing.parquet_warehouse import ParquetWarehouse
from icedb_ingest.testing.frontend_rig import CLOCK, LIMIT_S, NDJSON, start_rig
from icedb_log.storage.local_store import LocalObjectStore
from icedb_log.tables.stored_config import create_table
from icedb_log.tables.table_config import TableConfig
from icedb_log.warehouse import Warehouse
from icedb_proto import ingest_pb2, snapshot_pb2
from icedb_service.testing.access_rig import ISSUER, Authority, TokenIssuer, token_entry, write_access
from icedb_service.tls import ssl_context
from icedb_snapshot.__main__ import start_service
from icedb_snapshot.settings import SnapshotSettings
from prometheus_client import generate_latest

CODE = grpc.StatusCode
TABLE, SECRET_TABLE = "events", "payroll"
ALL, READER, WRITER, STRANGER, SLOW = (
    f"icedbt_{name}-0123456789abcdef" for name in ("all", "reader", "writer", "stranger", "slow")
)
ROW = b'{"a":1}\n'
OPEN = {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}


class CountingStore(LocalObjectStore):
    """Counts requests that name a table."""

    asked = 0

    def get(self, key, **conditions):
        self.asked += 1
        return super().get(key, **conditions)

    def list_page(self, prefix, *, token=None, limit=1000):
        self.asked += 1
        return super().list_page(prefix, token=token, limit=limit)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("access")


@pytest.fixture(scope="module")
def issuer():
    return TokenIssuer()


@pytest.fixture(scope="module")
def access_file(folder, issuer):
    (folder / "keys.json").write_bytes(issuer.key_set())
    read, everything = ["read"], ["read", "append", "maintain", "erase"]
    return write_access(
        folder / "access.json",
        {
            "identities": {
                "all": {"tokens": [token_entry(ALL)], "certificates": ["all.internal"]},
                "reader": {"tokens": [token_entry(READER)], "certificates": ["reader"]},
                "writer": {"tokens": [token_entry(WRITER)]},
                "stranger": {"tokens": [token_entry(STRANGER)]},
                "slow": {"tokens": [token_entry(SLOW)], "rate": {"calls_per_s": 0.001, "burst": 1}},
                "segment": {},
            },
            "issuers": {
                "login": {
                    "issuer": ISSUER,
                    "audience": "icedb",
                    "keys_file": "keys.json",
                    "algorithms": ["ES256"],
                    "identity_claim": "sub",
                }
            },
            "grants": [
                {"identities": ["all", "login:boss", "slow"], "tables": [TABLE], "verbs": everything},
                {"identities": ["reader"], "tables": [TABLE], "verbs": read},
                {"identities": ["writer", "segment"], "tables": [TABLE], "verbs": ["append"]},
                {"identities": ["stranger"], "tables": ["other*"], "verbs": everything},
            ],
        },
    )


@pytest.fixture(scope="module")
def logs():
    """Every event of all servers here."""
    with structlog.testing.capture_logs() as found:
        yield found


@pytest.fixture(scope="module")
def store(folder):
    (folder / "warehouse").mkdir()
    store = CountingStore(folder / "warehouse")
    parquet = ParquetWarehouse(Warehouse(store))
    for table in (TABLE, SECRET_TABLE):
        parquet.create(table, "d=day(ts)")
        parquet.commit(table, "select timestamp '2026-01-02' as ts, 'x' as event", partition="d=2026-01-02")
    return store


class Servers:
    """Both services."""

    def __init__(self, store, folder, name, **fields):
        settings = SnapshotSettings(
            store="file:///unused", snapshot_address="127.0.0.1:0", snapshot_lag_interval_ms=600_000, **fields
        )
        self.snapshot = start_service(Warehouse(store), settings=settings, clock=CLOCK)
        self.settings = settings
        self.rig = start_rig(folder / name, **fields)
        own = self.rig.warehouse
        create_table(own.store, own.table(SECRET_TABLE), TableConfig.create(name=SECRET_TABLE))
        self.ports = {"SnapshotService": self.snapshot.server.port, "IngestService": self.rig.frontend.grpc_port}

    def stop(self):
        self.rig.frontend.stop()
        self.snapshot.stop()


@pytest.fixture(scope="module")
def plain(store, folder, access_file, logs):
    servers = Servers(store, folder, "plain", access_file=str(access_file), frontend_segment_write_key="wk")
    yield servers
    servers.stop()


@pytest.fixture(scope="module")
def authority(folder):
    authority = Authority()
    authority.write(folder / "ca.crt")
    authority.issue(folder, "server", dns=["localhost"])
    authority.issue(folder, "all", dns=["all.internal"])
    authority.issue(folder, "reader")
    authority.issue(folder, "nobody")
    (folder / "foreign").mkdir()
    other = Authority("another")
    other.write(folder / "foreign" / "ca.crt")
    other.issue(folder / "foreign", "all", dns=["all.internal"])
    return authority


@pytest.fixture(scope="module")
def mutual(store, folder, access_file, authority, logs):
    servers = Servers(
        store,
        folder,
        "mutual",
        access_file=str(access_file),
        tls_cert_file=str(folder / "server.crt"),
        tls_key_file=str(folder / "server.key"),
        tls_client_ca_file=str(folder / "ca.crt"),
    )
    yield servers
    servers.stop()


def methods():
    for descriptor in (snapshot_pb2.DESCRIPTOR, ingest_pb2.DESCRIPTOR):
        for service in descriptor.services_by_name.values():
            for method in service.methods:
                yield pytest.param(method, id=method.name)


def request_for(method, table):
    kind = message_factory.GetMessageClass(method.input_type)
    fields = method.input_type.fields_by_name
    request = kind(**({"table": table} if "table" in fields else {"tables": [table]} if "tables" in fields else {}))
    for name, value in {"ttl_ms": 60_000, "from_ms": 1, "data": ROW, "format": 1, "lease_id": "0" * 32}.items():
        if name in fields:
            setattr(request, name, value)
    return request


def call(servers, method, table, metadata=(), channel=None):
    """Return (code, details, trailing metadata) of a call's end, or of its first message."""
    service = method.containing_service
    answer = message_factory.GetMessageClass(method.output_type)
    kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    with contextlib.ExitStack() as stack:
        if channel is None:
            channel = stack.enter_context(grpc.insecure_channel(f"127.0.0.1:{servers.ports[service.name]}"))
        make = getattr(channel, kind)(
            f"/{service.full_name}/{method.name}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=answer.FromString,
        )
        request = request_for(method, table)
        try:
            result = make(iter([request]) if method.client_streaming else request, timeout=LIMIT_S, metadata=metadata)
            if method.server_streaming:
                first = next(result)
                result.cancel()
                return CODE.OK, first, ()
        except grpc.RpcError as error:
            ended = [(key, value) for key, value in error.trailing_metadata() or () if key != "retry-after-ms"]
            return error.code(), error.details(), ended
        return CODE.OK, result, ()


def bearer(token):
    return (("authorization", f"Bearer {token}"),)


def wrong_credentials(issuer):
    now_ms = CLOCK.now_ms()
    good = issuer.sign(now_ms, sub="boss")
    header, _, signature = good.split(".")
    return {
        "none": (),
        "empty": (("authorization", ""),),
        "malformed": (("authorization", ALL),),
        "basic": (("authorization", f"Basic {ALL}"),),
        "two": (*bearer(ALL), *bearer(ALL)),
        "wrong token": bearer(ALL + "x"),
        "expired": bearer(issuer.sign(now_ms - 2 * 3600_000, sub="boss")),
        "not yet": bearer(issuer.sign(now_ms, sub="boss", nbf=now_ms // 1000 + 3600)),
        "foreign": bearer(TokenIssuer().sign(now_ms, sub="boss")),
        "alg none": bearer(f"eyJhbGciOiJub25lIn0.{good.split('.')[1]}."),
        "unsigned": bearer(f"{header}.{good.split('.')[1]}."),
        "claims of another": bearer(f"{header}.{issuer.sign(now_ms, sub='chief').split('.')[1]}.{signature}"),
        "wrong audience": bearer(issuer.sign(now_ms, sub="boss", aud="other")),
        "wrong issuer": bearer(issuer.sign(now_ms, sub="boss", iss="https://evil.test/")),
    }  # fmt: skip


@pytest.mark.parametrize("method", list(methods()))
def test_a_method_lets_nobody_in_with_wrong_credentials(method, plain, issuer):
    for what, metadata in wrong_credentials(issuer).items():
        for table in (TABLE, SECRET_TABLE, "nothing"):
            code, details, _ = call(plain, method, table, metadata)
            assert code is CODE.UNAUTHENTICATED, (what, details)
            assert not any(value in details for _, value in metadata if value)


@pytest.mark.parametrize("method", list(methods()))
def test_a_method_does_what_is_granted_and_hides_the_rest(method, plain, store, issuer):
    is_read = method.containing_service.name == "SnapshotService"
    with_table = bool({"table", "tables"} & set(method.input_type.fields_by_name))
    allowed, denied = (READER, WRITER) if is_read else (WRITER, READER)
    for token in (ALL, allowed, issuer.sign(CLOCK.now_ms(), sub="boss")):
        code, details, _ = call(plain, method, TABLE, bearer(token))
        # What is behind the guard answers: the lease and the time of these requests may be wrong.
        expected = (CODE.OK, CODE.OUT_OF_RANGE, CODE.INVALID_ARGUMENT)
        assert code in expected or "lease" in str(details), (code, details)
    if not with_table:
        return
    code, details, _ = call(plain, method, TABLE, bearer(denied))
    assert code is CODE.PERMISSION_DENIED, details
    asked = store.asked + plain.rig.store.put_count
    hidden = {table: call(plain, method, table, bearer(STRANGER)) for table in (TABLE, SECRET_TABLE, "nothing")}
    assert store.asked + plain.rig.store.put_count == asked
    for table, (code, details, metadata) in hidden.items():
        assert code is CODE.NOT_FOUND
        assert (details.replace(table, "T"), metadata) == (
            hidden["nothing"][1].replace("nothing", "T"),
            hidden["nothing"][2],
        )
    missing = call(plain, method, "other1", bearer(STRANGER))
    if method.name not in ("ReleaseLease", "RenewLease"):  # these look for the lease
        assert (missing[0], missing[1].replace("other1", "T"), missing[2]) == (
            CODE.NOT_FOUND,
            hidden["nothing"][1].replace("nothing", "T"),
            hidden["nothing"][2],
        )


def test_lists_and_watches_name_no_foreign_table(plain):
    listing = snapshot_pb2.DESCRIPTOR.services_by_name["SnapshotService"].methods_by_name["ListTables"]
    assert list(call(plain, listing, "", bearer(ALL))[1].tables) == [TABLE]
    assert list(call(plain, listing, "", bearer(STRANGER))[1].tables) == []


def test_only_health_and_reflection_are_open(plain):
    for name, port in plain.ports.items():
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            answer = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(
                iter([reflection_pb2.ServerReflectionRequest(list_services="")]), timeout=LIMIT_S
            )
            served = {service.name for service in next(answer).list_services_response.service}
            assert served == OPEN | {f"icedb.v1.{name}"}  # each of it is in the tests above
            answer.cancel()
            health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=LIMIT_S)


def test_who_calls_too_often_waits(plain):
    method = snapshot_pb2.DESCRIPTOR.services_by_name["SnapshotService"].methods_by_name["GetTable"]
    assert call(plain, method, TABLE, bearer(SLOW))[0] is CODE.OK
    code, details, metadata = call(plain, method, TABLE, bearer(SLOW))
    assert code is CODE.RESOURCE_EXHAUSTED
    assert "slow makes more than 0.001 calls a second" in details
    assert dict(metadata)["icedb-error"] == "Overloaded"
    assert "grpc-status-details-bin" in dict(metadata)


def test_http_doors_ask_the_same(plain, issuer):
    rig = plain.rig

    def status(path, method="POST", **headers):
        return rig.call(method, f"/v1/tables/{path}", ROW if method == "POST" else None, Content_Type=NDJSON, **headers)

    batch = "00000000-0000-7000-8000-000000000000"
    doors = [("POST", "batches"), ("POST", "segment"), ("POST", "segment/v1/track"), ("GET", f"batches/{batch}")]
    for method, door in doors:
        for what, metadata in wrong_credentials(issuer).items():
            if len(metadata) > 1 or (
                door.startswith("segment") and not str(dict(metadata).get("authorization")).startswith("Bearer ")
            ):
                continue
            answer = status(f"{TABLE}/{door}", method, **dict(metadata))
            assert answer.status == 401, (what, door, answer.body)
            assert answer.headers["WWW-Authenticate"] == 'Bearer realm="icedb"'
        assert status(f"{TABLE}/{door}", method, Authorization=f"Bearer {READER}").status == 403
        hidden = [
            status(f"{table}/{door}", method, Authorization=f"Bearer {STRANGER}") for table in (TABLE, SECRET_TABLE)
        ]
        assert [answer.status for answer in hidden] == [404, 404]
        assert hidden[0].body.replace(TABLE.encode(), b"T") == hidden[1].body.replace(SECRET_TABLE.encode(), b"T")
    assert status(f"{TABLE}/batches", Authorization=f"Bearer {WRITER}").status == 202
    assert status(f"{TABLE}/batches/{batch}", "GET", Authorization=f"Bearer {WRITER}").status == 404
    for path in ("/healthz", "/readyz"):
        assert rig.call("GET", path).status in (200, 503)


def test_webhooks_show_their_own_signature_or_a_token(plain):
    event = {"type": "track", "userId": "u", "event": "x"}
    assert plain.rig.segment(event).status == 401
    assert plain.rig.segment({**event, "writeKey": "wrong"}).status == 401
    assert plain.rig.segment({**event, "writeKey": "wk"}).status == 200
    assert plain.rig.segment(event, Authorization=f"Bearer {WRITER}").status == 200
    assert plain.rig.segment({**event, "writeKey": "wk"}, Authorization="Bearer nobody").status == 401
    body = json.dumps({**event, "writeKey": "wk"}).encode()
    assert (
        plain.rig.call("POST", f"/v1/tables/{SECRET_TABLE}/segment", body, Content_Type="application/json").status
        == 404
    )


def credentials(folder, name, ca="ca.crt"):
    cert, key = (folder / f"{name}.crt", folder / f"{name}.key") if name else (None, None)
    return grpc.ssl_channel_credentials(
        (folder / ca).read_bytes() if ca else None, key and key.read_bytes(), cert and cert.read_bytes()
    )


def secure(servers, service, given):
    return grpc.secure_channel(f"localhost:{servers.ports[service]}", given)


@pytest.mark.parametrize("service", ["SnapshotService", "IngestService"])
def test_mutual_tls_lets_in_certificates_of_the_authority(service, mutual, folder):
    descriptor = (snapshot_pb2 if service == "SnapshotService" else ingest_pb2).DESCRIPTOR.services_by_name[service]
    method = descriptor.methods_by_name["GetTable" if service == "SnapshotService" else "Append"]
    reads = CODE.OK if service == "SnapshotService" else CODE.PERMISSION_DENIED
    for name, metadata, expected in (
        ("all", (), CODE.OK),
        ("reader", (), reads),  # by its common name: it has no other
        ("nobody", (), CODE.UNAUTHENTICATED),
        ("nobody", bearer(ALL), CODE.OK),
        ("all", bearer("wrong"), CODE.UNAUTHENTICATED),
        ("foreign/all", (), CODE.UNAVAILABLE),
        (None, bearer(ALL), CODE.UNAVAILABLE),
    ):
        with secure(mutual, service, credentials(folder, name)) as channel:
            code, details, _ = call(mutual, method, TABLE, metadata, channel)
            assert code is expected, (name, details)
    with grpc.insecure_channel(f"localhost:{mutual.ports[service]}") as channel:
        assert call(mutual, method, TABLE, bearer(ALL), channel)[0] is CODE.UNAVAILABLE


def https(folder, port, name, ca="ca.crt"):
    context = ssl.create_default_context(cafile=str(folder / ca))
    if name:
        context.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
    return http.client.HTTPSConnection("localhost", port, timeout=LIMIT_S, context=context)


def post(connection, door="batches", body=ROW, **headers):
    try:
        connection.request("POST", f"/v1/tables/{TABLE}/{door}", body, {"Content-Type": NDJSON, **headers})
        return connection.getresponse().status
    finally:
        connection.close()


def test_https_asks_for_the_same_certificates(mutual, folder, logs):
    port = mutual.rig.frontend.http_port
    assert post(https(folder, port, "all")) == 202
    assert post(https(folder, port, "reader")) == 403
    assert post(https(folder, port, "nobody")) == 401
    assert post(https(folder, port, "nobody"), Authorization=f"Bearer {WRITER}") == 202
    # A webhook that shows neither signature nor key, where none are set: it has to be known in another way.
    event = json.dumps({"type": "track", "userId": "u"}).encode()
    assert post(https(folder, port, "all"), "segment", event) == 200
    assert post(https(folder, port, "nobody"), "segment", event) == 401
    for name in ("foreign/all", None):
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
            post(https(folder, port, name))
    before = len(logs)
    with socket.create_connection(("localhost", port), LIMIT_S) as plain_text:
        plain_text.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            plain_text.recv(100)
    assert [log["reason"] for log in logs[before:] if log["event"] == "tls_handshake_failed"] == ["HTTP_REQUEST"]


def test_new_certificates_are_taken_up_by_new_connections(store, folder, access_file, authority, monkeypatch):
    place = folder / "renewed"
    place.mkdir()
    first, second = Authority("first"), Authority("second")
    monkeypatch.setattr("icedb_service.tls.LOOK_MS", 0)

    def install(authority, name):
        authority.write(place / f"{name}.crt")
        authority.issue(place, "server", dns=["localhost"])

    install(first, "one")
    servers = Servers(
        store,
        place,
        "w",
        access_file=str(access_file),
        tls_cert_file=str(place / "server.crt"),
        tls_key_file=str(place / "server.key"),
    )
    try:
        method = snapshot_pb2.DESCRIPTOR.services_by_name["SnapshotService"].methods_by_name["GetTable"]

        def trusts(ca):
            with secure(servers, "SnapshotService", credentials(place, None, ca)) as channel:
                by_grpc = call(servers, method, TABLE, bearer(ALL), channel)[0] is CODE.OK
            try:
                by_http = (
                    post(https(place, servers.rig.frontend.http_port, None, ca), Authorization=f"Bearer {ALL}") == 202
                )
            except ssl.SSLError:
                by_http = False
            return by_grpc, by_http

        assert ssl_context(servers.settings, clock=CLOCK).minimum_version is ssl.TLSVersion.TLSv1_2
        assert trusts("one.crt") == (True, True)
        (place / "server.key").write_text("broken")
        assert trusts("one.crt") == (True, True)
        install(second, "two")
        assert trusts("two.crt") == (True, True)
        assert trusts("one.crt") == (False, False)
        assert servers.rig.metric("icedb_access_certificate_expiry_timestamp_seconds") > CLOCK.now_ms() / 1000
    finally:
        servers.stop()


def test_nothing_that_was_written_here_has_a_credential(plain, logs, issuer):
    pages = [generate_latest(plain.rig.frontend.metrics.registry).decode()]
    text = "\n".join([*map(str, logs), *pages])
    assert "access_denied" in text and "icedb_access_denied_total" in text
    for token in (ALL, READER, WRITER, STRANGER, SLOW):
        assert token not in text
    assert "eyJ" not in text
    metrics = "\n".join(pages)
    assert "icedb_access_certificate_expiry_timestamp_seconds 0.0" in metrics
    assert SECRET_TABLE not in metrics and "stranger" not in metrics
