"""The S3 gateway when a store hangs or fails, and when a client leaves or stands still; its probes."""

import http.client
import socket
from contextlib import contextmanager

import pytest
from gateway_boto import DAYS, client, listed, refused
from icedb_log.errors import Unavailable
from icedb_sim.rigs.gateway_rig import BUCKET, LOOPBACK, start_gateway
from waiting import wait_until


def test_probes(rig):
    assert rig.call("GET", "/healthz").status == 200
    assert rig.call("GET", "/readyz").body.startswith(b'{"status":"ok"')


@pytest.fixture
def start(rig):
    """Starts another gateway on the same tables."""
    started = []

    def start(**fields):
        started.append(start_gateway(rig.warehouse, **fields))
        return started[-1]

    yield start
    rig.warehouse.store.gate.set()
    for each in started:
        each.gateway.stop()


def test_a_store_that_hangs_is_answered_503_and_the_others_go_on(rig, start):
    hasty = start(gateway_staleness_ms=0, read_wait_ms=500)
    rig.warehouse.store.gate.clear()
    assert refused(client(hasty).list_objects_v2, Bucket=BUCKET, Prefix="events/") == ("ServiceUnavailable", 503)
    wait_until(lambda: hasty.call("GET", "/").status == 200, "buckets are listed")
    assert hasty.call("GET", "/healthz").status == 200


def open_wide(rig, s3):
    table = rig.table("huge")
    if not listed(s3, Prefix="huge/")[0]:
        table.create("d=day(ts)").commit([table.write(DAYS[0], bytes(8 * 1024 * 1024))])
    return listed(s3, Prefix="huge/")[0][0]


def test_a_store_that_fails_in_the_middle_breaks_the_connection_off(rig, s3):
    key = open_wide(rig, s3)
    rig.warehouse.store.failure = Unavailable("the store went away")
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        rig.call("GET", f"/{BUCKET}/{key}")
    wait_until(lambda: rig.metric("icedb_gateway_broken_bodies_total") == 1)


def test_a_client_that_leaves_ends_the_reading(rig, s3):
    key = open_wide(rig, s3)
    rig.warehouse.store.data_reads = 0
    before = rig.metric("icedb_gateway_requests_total", operation="get", outcome="abandoned")
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((LOOPBACK, rig.gateway.port))
        connection.sendall(f"GET /{BUCKET}/{key} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        rig.warehouse.store.gate.clear()
    try:
        wait_until(lambda: rig.metric("icedb_gateway_requests_total", operation="get", outcome="abandoned") > before)
    finally:
        rig.warehouse.store.gate.set()
    wait_until(lambda: rig.metric("icedb_gateway_open_bodies") == 0)
    assert rig.warehouse.store.data_reads < 128


@contextmanager
def standing_still(rig, key):
    """A client that asks for a body and reads none of it, in a block."""
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((LOOPBACK, rig.gateway.port))
        connection.sendall(f"GET /{BUCKET}/{key} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        yield


def test_clients_that_stand_still_are_bounded(rig, s3, start, monkeypatch):
    monkeypatch.setattr("icedb_gateway.bodies.BODY_WAIT_MS", 0)
    key = open_wide(rig, s3)
    patient = start(gateway_max_bodies=1, gateway_part_kb=64)
    with standing_still(patient, key):
        wait_until(lambda: patient.metric("icedb_gateway_open_bodies") == 1)
        assert refused(client(patient).get_object, Bucket=BUCKET, Key=key) == ("SlowDown", 503)
    wait_until(lambda: patient.metric("icedb_gateway_open_bodies") == 0)
    assert len(client(patient).get_object(Bucket=BUCKET, Key=key)["Body"].read()) == 8 * 1024 * 1024


def test_clients_that_stand_still_are_let_go(rig, s3, start):
    key = open_wide(rig, s3)
    hasty = start(gateway_send_timeout_ms=400, gateway_part_kb=64)
    with standing_still(hasty, key):
        wait_until(lambda: hasty.metric("icedb_gateway_requests_total", operation="get", outcome="abandoned") == 1)
        wait_until(lambda: hasty.metric("icedb_gateway_open_bodies") == 0)
