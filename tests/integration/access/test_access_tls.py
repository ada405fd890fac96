"""Both services over TLS: which certificates they ask for, whom they take them for, and new ones while they run."""

import contextlib
import http.client
import json
import socket
import ssl

import grpc
import pytest
from access_servers import ALL, CODE, ROW, TABLE, TOKENS, WRITER, Servers, bearer, call
from icedb_proto import ingest_pb2, snapshot_pb2
from icedb_service.tls import ssl_context
from icedb_sim.rigs.access_rig import Authority
from icedb_sim.rigs.frontend_rig import CLOCK, LIMIT_S, NDJSON
from prometheus_client import generate_latest


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
    port = mutual.rig.frontend.port
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
                by_http = post(https(place, servers.rig.frontend.port, None, ca), Authorization=f"Bearer {ALL}") == 202
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


def test_nothing_that_was_written_over_tls_has_a_credential(mutual, logs):
    text = "\n".join([*map(str, logs), generate_latest(mutual.rig.frontend.metrics.registry).decode()])
    assert "access_denied" in text
    assert not any(token in text for token in TOKENS)
