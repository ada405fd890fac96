"""The S3 gateway when a store hangs or fails, and when a client leaves or stands still; its probes."""

import http.client
import socket

import pytest
from gateway_boto import DAYS, client, listed, refused
from icedb_log.errors import Unavailable
from icedb_sim.rigs.gateway_rig import BUCKET, LOOPBACK, start_gateway
from waiting import wait_until


def test_probes(rig):
    assert rig.call("GET", "/healthz").status == 200
    assert rig.call("GET", "/readyz").body.startswith(b'{"status":"ok"')


def test_a_store_that_hangs_is_answered_503_and_the_others_go_on(rig, s3):
    rig.warehouse.store.gate.clear()
    assert refused(s3.list_objects_v2, Bucket=BUCKET, Prefix="events/") == ("ServiceUnavailable", 503)
    assert [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]] == [BUCKET]
    assert rig.call("GET", "/healthz").status == 200


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


def test_clients_that_stand_still_are_bounded_and_let_go(rig, s3):
    key = open_wide(rig, s3)
    slow = start_gateway(
        rig.warehouse, gateway_max_bodies=1, gateway_body_wait_ms=0, gateway_send_timeout_ms=400, gateway_part_kb=64
    )
    try:
        with socket.socket() as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.connect((LOOPBACK, slow.gateway.port))
            connection.sendall(f"GET /{BUCKET}/{key} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            wait_until(lambda: slow.metric("icedb_gateway_open_bodies") == 1)
            assert refused(client(slow).get_object, Bucket=BUCKET, Key=key) == ("SlowDown", 503)
            wait_until(lambda: slow.metric("icedb_gateway_open_bodies") == 0)
        assert slow.metric("icedb_gateway_requests_total", operation="get", outcome="abandoned") == 1
        assert len(client(slow).get_object(Bucket=BUCKET, Key=key)["Body"].read()) == 8 * 1024 * 1024
    finally:
        slow.gateway.stop()
