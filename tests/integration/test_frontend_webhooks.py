"""Webhooks of the tracking API over HTTP, and how the front end starts and ends."""

import base64
import gzip
import hashlib
import hmac
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from random import Random

import pytest
from frontend_fixtures import emptied, shared_frontend
from icedb_log.clock import parse_uuid7_ms
from icedb_log.errors import Unavailable
from icedb_sim.rigs.frontend_rig import LIMIT_S, start_rig
from waiting import wait_until

LINES = b'{"a":1}\n{"a":2}\n'


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with shared_frontend(tmp_path_factory.mktemp("http")) as rig:
        yield rig


@pytest.fixture
def rig(shared):
    with emptied(shared) as rig:
        yield rig


def test_a_hundred_webhooks_share_batches_and_every_event_is_there_once(rig):
    def send(number):
        event = {"type": "track", "event": "Paid", "messageId": f"m{number}", "userId": "7", "properties": {"x": 1}}
        return rig.segment(event)

    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(send, range(100)))
    assert {answer.status for answer in answers} == {200}
    staged = rig.staged()
    assert {answer.json["batch_id"] for answer in answers} == {name.partition(".")[0] for name in staged}
    assert len(staged) < 100
    rows = [json.loads(line) for body in staged.values() for line in body.splitlines()]
    assert sorted(row["messageId"] for row in rows) == sorted(f"m{number}" for number in range(100))
    received = datetime.fromisoformat(rows[0]["receivedAt"])
    assert abs((datetime.now(UTC) - received).total_seconds()) < LIMIT_S
    assert rows[0]["timestamp"] == rows[0]["receivedAt"]


def test_the_shapes_of_the_tracking_api(rig):
    event = {"event": "Paid", "anonymousId": "a", "timestamp": "2026-01-02T03:04:05Z", "writeKey": "k"}
    assert rig.segment(event, "/v1/track").status == 200
    batch = {
        "batch": [{"type": "identify", "userId": "7", "traits": {"plan": "x"}}, {"type": "page", "userId": "7"}],
        "sentAt": "2026-01-02T03:04:06Z",
        "context": {"library": "x"},
        "writeKey": "k",
    }
    assert rig.segment(gzip.compress(json.dumps(batch).encode()), "/v1/batch", Content_Encoding="gzip").status == 200
    rows = [json.loads(line) for body in rig.staged().values() for line in body.splitlines()]
    assert [row["type"] for row in rows] == ["track", "identify", "page"]
    assert rows[0]["timestamp"] == "2026-01-02T03:04:05Z"
    assert rows[1]["sentAt"] == "2026-01-02T03:04:06Z"
    assert rows[1]["context"] == {"library": "x"}
    assert not any("writeKey" in row for row in rows)


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        (b"no json", ""),
        ([], ""),
        ({"batch": {}}, "/v1/batch"),
        ({"batch": []}, "/v1/batch"),
        (b"", ""),
    ],
)
def test_what_is_no_event_is_refused(rig, payload, path):
    answer = rig.segment(payload, path)
    assert (answer.status, answer.json["type"]) == (400, "urn:icedb:problem:invalid-request")
    assert rig.staged() == {}


def test_good_events_are_taken_and_bad_ones_staged_apart_for_quarantine(rig):
    good = b'{"type":"track","userId":"7","properties":{"n":123456789012345678901234567890}}'
    half = b'{"type":"track","userId":"7","properties":{"half":"\\ud83d"}}'
    answer = rig.segment(b'{"batch":[%b,%b,{"type":"track"},5]}' % (good, half), "/v1/batch")
    assert (answer.status, answer.json.get("set_aside")) == (200, 3), answer.json
    assert [reason.split(" (")[0] for reason in answer.json["reasons"]] == [
        "event 2 cannot be read as JSON",
        "event 3 has neither userId nor anonymousId",
        "event 4 is not a JSON object",
    ]
    staged = sorted(rig.staged().values(), key=len)
    assert [len(body.splitlines()) for body in staged] == [1, 3]
    assert b'"n":123456789012345678901234567890' in staged[0]
    alone = rig.segment({"userId": "7"})
    assert (alone.status, alone.json["set_aside"]) == (200, 1)


def test_a_group_that_is_refused_is_refused_for_everybody(rig, monkeypatch):
    def fail(key, body):
        raise Unavailable("the store does not answer")

    monkeypatch.setattr(rig.store, "put_if_absent", fail)
    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(lambda _: rig.segment({"type": "track", "userId": "7"}), range(5)))
    assert {answer.status for answer in answers} == {503}


def test_webhooks_are_signed_when_there_is_a_secret(tmp_path, caplog, capfd):
    rig = start_rig(
        tmp_path / "store",
        frontend_segment_secret="top secret",
        frontend_segment_write_key="key-1",
        access_log="all",
        frontend_cors_origins=("https://shop.example",),
    )
    try:
        body = json.dumps({"type": "track", "userId": "7"}).encode()
        signature = hmac.new(b"top secret", body, hashlib.sha1).hexdigest()
        assert rig.segment(body, X_Signature=signature).status == 200
        packed = gzip.compress(body)  # the bytes that are sent are signed
        of_packed = hmac.new(b"top secret", packed, hashlib.sha1).hexdigest()
        assert rig.segment(packed, X_Signature=of_packed, Content_Encoding="gzip").status == 200
        refused = [
            rig.segment(packed, X_Signature=signature, Content_Encoding="gzip"),
            rig.segment(body),
            rig.segment(body, X_Signature=signature[:-1] + "x"),
            rig.segment(body + b" ", X_Signature=signature),
            rig.segment({"type": "track", "userId": "7", "writeKey": "key-2"}),
            rig.segment(body, Authorization="Basic ???"),
        ]
        assert {answer.status for answer in refused} == {401}
        assert len(rig.staged()) == 2
        basic = base64.b64encode(b"key-1:").decode()
        assert rig.segment(body, Authorization=f"Basic {basic}").status == 200
        assert rig.segment({"type": "track", "userId": "7", "writeKey": "key-1"}).status == 200
        # Batches of programs need no signature; whoever opens this port to the world puts a proxy before it.
        assert rig.post(LINES).status == 202
        asked = {"Origin": "https://shop.example", "Access_Control_Request_Method": "POST"}
        preflight = rig.call("OPTIONS", "/v1/tables/events/segment/v1/t", **asked)
        assert preflight.headers["access-control-allow-origin"] == "https://shop.example"
    finally:
        rig.frontend.stop()
    logged = caplog.text + "".join(capfd.readouterr())
    assert "http_request" in logged
    assert "top secret" not in logged
    assert "key-1" not in logged


def test_memory_is_bounded_and_what_has_no_room_is_told_when_to_come_again(tmp_path, monkeypatch):
    monkeypatch.setattr("icedb_ingest.frontend.async_gate.MEMORY_WAIT_MS", 50)
    rig = start_rig(tmp_path / "store", frontend_max_batch_mb=1, frontend_memory_mb=2)
    try:
        rig.store.gate.clear()
        with ThreadPoolExecutor(2) as pool:
            others = [pool.submit(rig.post, b'{"a":"' + b"x" * 700_000 + b'"}') for _ in range(2)]
            for _ in others:
                assert rig.store.arrived.acquire(timeout=LIMIT_S)
            assert rig.metric("icedb_frontend_held_bytes") > 1_400_000
            full = rig.post(b'{"a":"' + b"x" * 700_000 + b'"}')
            assert (full.status, full.json["type"], full.headers["retry-after"]) == (503, "urn:icedb:problem:busy", "1")
            rig.store.gate.set()
            assert [other.result(LIMIT_S).status for other in others] == [202, 202]
        wait_until(lambda: rig.metric("icedb_frontend_held_bytes") == 0)
    finally:
        rig.store.gate.set()
        rig.frontend.stop()


def test_compressed_bodies_are_taken_with_the_least_memory_and_never_wait_for_one_another(tmp_path, monkeypatch):
    """Each asked for room of the largest batch beside the body that it held: one was refused, and several waited."""
    # Whoever waits for room waits longer than the test.
    monkeypatch.setattr("icedb_ingest.frontend.async_gate.MEMORY_WAIT_MS", 60_000)
    rig = start_rig(tmp_path / "store", frontend_max_batch_mb=1, frontend_memory_mb=2)
    try:
        for text in ("x" * 900_000, Random(1).randbytes(400_000).hex()):
            event = {"type": "track", "userId": "7", "properties": {"x": text}}
            packed = gzip.compress(json.dumps(event).encode())
            assert rig.segment(packed, Content_Encoding="gzip").status == 200
        sent = threading.Barrier(4)

        def send(_):
            sent.wait(LIMIT_S)
            return rig.segment(packed, Content_Encoding="gzip").status

        with ThreadPoolExecutor(4) as pool:
            statuses = list(pool.map(send, range(4)))
        assert set(statuses) <= {200, 503}
        assert 200 in statuses
        wait_until(lambda: rig.metric("icedb_frontend_held_bytes") == 0)
    finally:
        rig.frontend.stop()


def test_stopping_answers_what_runs_and_loses_nothing(tmp_path):
    rig = start_rig(tmp_path / "store")
    rig.store.gate.clear()
    with ThreadPoolExecutor(3) as pool:
        batch = pool.submit(rig.post, LINES)
        event = pool.submit(rig.segment, {"type": "track", "userId": "7"})
        assert rig.store.arrived.acquire(timeout=LIMIT_S)
        assert rig.store.arrived.acquire(timeout=LIMIT_S)
        stopping = pool.submit(rig.frontend.stop)
        wait_until(lambda: not accepts_connections(rig.frontend.port))
        rig.store.gate.set()
        stopping.result(LIMIT_S)
        ids = {batch.result(LIMIT_S).json["batch_id"], event.result(LIMIT_S).json["batch_id"]}
    assert {name.partition(".")[0] for name in rig.staged()} == ids
    assert all(parse_uuid7_ms(batch_id) for batch_id in ids)


def test_a_port_that_is_taken_is_named(rig, tmp_path):
    with pytest.raises(Unavailable, match="ICEDB_FRONTEND_HTTP_PORT"):
        start_rig(tmp_path / "other", frontend_http_port=rig.frontend.port)
    with pytest.raises(Unavailable, match="ICEDB_FRONTEND_GRPC_PORT"):
        start_rig(tmp_path / "third", frontend_grpc_port=rig.frontend.grpc_port)


def accepts_connections(port):
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
