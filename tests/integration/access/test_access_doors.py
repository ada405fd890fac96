"""Every method of every gRPC service and every HTTP door, with every kind of wrong identity."""

import json
from contextlib import ExitStack, contextmanager

import grpc
import pytest
from access_servers import ALL, CODE, READER, ROW, SECRET_TABLE, SLOW, STRANGER, TABLE, TOKENS, WRITER, bearer, call
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from icedb_log.store.local_store import LocalObjectStore
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import TableConfig
from icedb_log.warehouse import Warehouse
from icedb_proto import ingest_pb2, ingest_pb2_grpc, snapshot_pb2
from icedb_sim.rigs.access_rig import TokenIssuer
from icedb_sim.rigs.frontend_rig import CLOCK, LIMIT_S, NDJSON, start_rig
from icedb_sim.rigs.snapshot_rig import start_snapshot
from prometheus_client import generate_latest
from waiting import wait_until

OPEN = {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}


def methods():
    for descriptor in (snapshot_pb2.DESCRIPTOR, ingest_pb2.DESCRIPTOR):
        for service in descriptor.services_by_name.values():
            for method in service.methods:
                yield pytest.param(method, id=method.name)


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


def without_name(answer, table):
    """An answer, with the table that was asked for called T."""
    code, details, metadata = answer
    return code, details.replace(table, "T"), [(key, "T" if value == table else value) for key, value in metadata]


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
    wait_until(plain.snapshot.is_at_rest, "the calls before are over on the server's side, too")
    asked = store.asked + plain.rig.store.put_count
    hidden = {table: call(plain, method, table, bearer(STRANGER)) for table in (TABLE, SECRET_TABLE, "nothing")}
    assert store.asked + plain.rig.store.put_count == asked
    if method.name not in ("ReleaseLease", "RenewLease"):  # these look for the lease
        hidden["other1"] = call(plain, method, "other1", bearer(STRANGER))
    answers = {table: without_name(answer, table) for table, answer in hidden.items()}
    assert answers["nothing"][0] is CODE.NOT_FOUND
    assert answers == dict.fromkeys(hidden, answers["nothing"])


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


def test_one_caller_leaves_half_of_the_watchers_to_others(store, access_file):
    service = start_snapshot(Warehouse(store), clock=CLOCK, access_file=str(access_file), snapshot_max_watchers=2)
    request = snapshot_pb2.WatchSnapshotsRequest(tables=[TABLE])

    def watch(token):
        stream = service.stub.WatchSnapshots(request, timeout=LIMIT_S, metadata=bearer(token))
        next(stream)
        return stream

    try:
        first = watch(ALL)
        with pytest.raises(
            grpc.RpcError, match="all has 1 watchers here already; nobody may have more than 1, half of all"
        ) as refused:
            watch(ALL)
        assert refused.value.code() is CODE.RESOURCE_EXHAUSTED
        second = watch(READER)
        for stream in (first, second):
            stream.cancel()
        with pytest.raises(grpc.RpcError):
            list(first)
    finally:
        service.stop()


def test_one_caller_leaves_half_of_a_tables_leases_to_others(folder, access_file):
    warehouse = Warehouse(LocalObjectStore(folder / "leases"))
    create_table(warehouse.table(TABLE), TableConfig.create(name=TABLE))
    service = start_snapshot(warehouse, clock=CLOCK, access_file=str(access_file), snapshot_max_leases=2)

    def acquire(token):
        request = snapshot_pb2.AcquireLeaseRequest(table=TABLE, ttl_ms=60_000)
        return service.stub.AcquireLease(request, timeout=LIMIT_S, metadata=bearer(token)).lease_id

    def release(lease_id, token):
        request = snapshot_pb2.ReleaseLeaseRequest(table=TABLE, lease_id=lease_id)
        service.stub.ReleaseLease(request, timeout=LIMIT_S, metadata=bearer(token))

    try:
        release(acquire(ALL), ALL)
        first = acquire(ALL)
        with pytest.raises(grpc.RpcError, match="all has 1 leases of table events here already") as refused:
            acquire(ALL)
        assert refused.value.code() is CODE.RESOURCE_EXHAUSTED
        assert "retry-after-ms" in dict(refused.value.trailing_metadata())
        second = acquire(READER)
        with pytest.raises(grpc.RpcError, match="2 leases last already"):
            acquire(READER)
        for lease, token in ((first, ALL), (second, READER)):
            release(lease, token)
        assert service.metric("icedb_access_denied_total", door="grpc", reason="share") == 1
    finally:
        service.stop()


@contextmanager
def slow_batch(rig, token, size_bytes):
    """A batch whose body does not come, in a block."""
    connection = rig.connect()
    connection.putrequest("POST", f"/v1/tables/{TABLE}/batches")
    headers = {"Content-Type": NDJSON, "Content-Length": str(size_bytes), "Authorization": f"Bearer {token}"}
    for name, value in headers.items():
        connection.putheader(name, value)
    connection.endheaders()
    try:
        yield
    finally:
        connection.close()


def post(rig, token, size_bytes=len(ROW)):
    body = ROW + b" " * (size_bytes - len(ROW))
    return rig.post(body, Authorization=f"Bearer {token}")


def test_bodies_that_do_not_come_leave_half_of_the_memory_to_others(folder, access_file):
    most = {"frontend_max_batch_mb": 1, "frontend_memory_mb": 2}
    rig = start_rig(folder / "memory", access_file=str(access_file), **most)
    try:
        with slow_batch(rig, WRITER, 700_000):
            wait_until(lambda: rig.metric("icedb_frontend_held_bytes") == 700_000)
            refused = post(rig, WRITER, 700_000)
            assert (refused.status, refused.json["type"]) == (429, "urn:icedb:problem:rate-limited")
            assert refused.headers["Retry-After"] == "1"
            assert "writer has 700000 bytes of bodies here already" in refused.json["detail"]
            assert post(rig, WRITER, 300_000).status == 202  # within its share
            assert post(rig, ALL, 700_000).status == 202
            with slow_batch(rig, ALL, 1_000_000):
                wait_until(lambda: rig.metric("icedb_frontend_held_bytes") == 1_700_000)
                assert post(rig, WRITER, 300_000).status == 202
        wait_until(lambda: rig.metric("icedb_frontend_held_bytes") == 0)
        assert post(rig, WRITER, 700_000).status == 202
        assert rig.metric("icedb_access_denied_total", door="http", reason="share") == 1
    finally:
        rig.frontend.stop()


def test_messages_of_a_store_that_hangs_leave_half_of_the_memory_to_others(folder, access_file):
    most = {"frontend_max_batch_mb": 1, "frontend_memory_mb": 2}
    rig = start_rig(folder / "messages", access_file=str(access_file), **most)
    request = ingest_pb2.AppendRequest(table=TABLE, format=ingest_pb2.FORMAT_NDJSON, data=ROW + b" " * 700_000)
    try:
        with grpc.insecure_channel(f"127.0.0.1:{rig.frontend.grpc_port}") as channel:
            stub = ingest_pb2_grpc.IngestServiceStub(channel)
            rig.store.gate.clear()
            sent = [stub.Append.future(request, timeout=LIMIT_S, metadata=bearer(WRITER))]
            wait_until(lambda: rig.metric("icedb_frontend_held_bytes") > 700_000)
            with pytest.raises(grpc.RpcError, match="bytes of bodies here already") as refused:
                stub.Append(request, timeout=LIMIT_S, metadata=bearer(WRITER))
            assert refused.value.code() is CODE.RESOURCE_EXHAUSTED
            assert post(rig, WRITER, 700_000).status == 429  # one share over all doors
            sent.append(stub.Append.future(request, timeout=LIMIT_S, metadata=bearer(ALL)))
            wait_until(lambda: rig.metric("icedb_frontend_held_bytes") > 1_400_000)
            rig.store.gate.set()
            assert [each.result().table for each in sent] == [TABLE, TABLE]
    finally:
        rig.store.gate.set()
        rig.frontend.stop()


def test_requests_that_do_not_end_leave_half_of_them_to_others(folder, access_file):
    rig = start_rig(folder / "requests", access_file=str(access_file), http_max_connections=10)
    try:
        with ExitStack() as slow:
            for _ in range(5):
                slow.enter_context(slow_batch(rig, WRITER, 1000))
            wait_until(lambda: rig.metric("icedb_frontend_held_bytes") == 5000)
            refused = post(rig, WRITER)
            assert (refused.status, refused.json["type"]) == (429, "urn:icedb:problem:rate-limited")
            assert "writer has 5 requests here already" in refused.json["detail"]
            assert "Retry-After" in refused.headers
            assert post(rig, ALL).status == 202
            assert rig.call("GET", "/readyz").status == 200
        wait_until(lambda: rig.metric("icedb_frontend_held_bytes") == 0)
        assert post(rig, WRITER).status == 202
    finally:
        rig.frontend.stop()


def test_without_an_access_file_one_caller_may_take_all_room(folder):
    most = {"frontend_max_batch_mb": 1, "frontend_memory_mb": 2}
    rig = start_rig(folder / "open", http_max_connections=10, **most)
    try:
        with slow_batch(rig, WRITER, 1_000_000), slow_batch(rig, WRITER, 1_000_000):
            wait_until(lambda: rig.metric("icedb_frontend_held_bytes") == 2_000_000)
            assert post(rig, WRITER).status == 202
    finally:
        rig.frontend.stop()


def test_http_doors_ask_the_same(plain, issuer):
    rig = plain.rig

    def status(path, method="POST", **headers):
        return rig.call(method, f"/v1/tables/{path}", ROW if method == "POST" else None, Content_Type=NDJSON, **headers)

    batch = "00000000-0000-7000-8000-000000000000"
    doors = [("POST", "batches"), ("POST", "segment"), ("POST", "segment/v1/track")]
    doors += [("GET", "batches"), ("GET", f"batches/{batch}")]
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
    assert status(f"{TABLE}/batches", "GET", Authorization=f"Bearer {WRITER}").status == 200
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


def test_nothing_that_was_written_here_has_a_credential(plain, logs, issuer):
    pages = [generate_latest(plain.rig.frontend.metrics.registry).decode()]
    text = "\n".join([*map(str, logs), *pages])
    assert "access_denied" in text and "icedb_access_denied_total" in text
    for token in TOKENS:
        assert token not in text
    assert "eyJ" not in text
    metrics = "\n".join(pages)
    assert "icedb_access_certificate_expiry_timestamp_seconds 0.0" in metrics
    assert SECRET_TABLE not in metrics and "stranger" not in metrics
