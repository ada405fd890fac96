"""Leases over real gRPC on loopback."""

import grpc
from icedb_log.units import DAY_MS
from icedb_proto import snapshot_pb2 as pb
from icedb_sim.fakes.scripted_store import Effect, Fault
from snapshot_stub import LEASE_MS, acquire, refused
from waiting import LIMIT_S


def renew(stub, lease_id, ttl_ms=LEASE_MS):
    request = pb.RenewLeaseRequest(table="events", lease_id=lease_id, ttl_ms=ttl_ms)
    return stub.RenewLease(request, timeout=LIMIT_S)


def release(stub, lease_id):
    return stub.ReleaseLease(pb.ReleaseLeaseRequest(table="events", lease_id=lease_id), timeout=LIMIT_S)


def test_a_lease_keeps_what_is_read_under_it_until_it_ends(table, stub):
    table.append(1)
    table.append(2)
    lease = acquire(stub)
    assert (lease.table, lease.expires_ms - lease.at_ms) == ("events", LEASE_MS)
    table.clock.advance(1)
    table.merge(full=True)
    for _ in range(3):
        table.clock.advance(LEASE_MS - 10)
        renewed = renew(stub, lease.lease_id)
        assert (renewed.at_ms, renewed.expires_ms) == (lease.at_ms, table.clock.now_ms() + LEASE_MS)
        table.vacuum()
    request = pb.GetSnapshotRequest(table="events", as_of_ms=lease.at_ms)
    held = stub.GetSnapshot(request, timeout=LIMIT_S)
    assert held.row_count == 2
    assert {file.path for file in held.files} <= set(table.keys(table.paths.data_prefix))
    (waiting,) = {w.held_by for w in table.vacuum(dry_run=True).waiting}
    assert waiting.startswith(f"{lease.lease_id} (")  # who holds it is named
    release(stub, lease.lease_id)
    release(stub, lease.lease_id)
    table.vacuum()
    with refused(grpc.StatusCode.OUT_OF_RANGE):
        stub.GetSnapshot(request, timeout=LIMIT_S)


def test_a_lease_that_has_ended_says_what_to_do(table, stub):
    lease = acquire(stub, ttl_ms=5000)
    table.clock.advance(5000)
    with refused(grpc.StatusCode.NOT_FOUND, "Take another lease"):
        renew(stub, lease.lease_id)
    assert release(stub, lease.lease_id) == pb.ReleaseLeaseResponse()


def test_leases_that_cannot_be_given(table, serve):
    stub = serve(snapshot_max_leases=2, snapshot_max_lease_ttl_ms=LEASE_MS).stub
    now_ms = table.clock.now_ms()
    for fields, word in (
        ({"ttl_ms": LEASE_MS + 1}, "ICEDB_SNAPSHOT_MAX_LEASE_TTL_MS"),
        ({"ttl_ms": 0}, "1000 to"),
        ({"at_ms": now_ms + 5000}, "in the future"),
        ({"at_ms": -1}, "not a time"),
    ):
        with refused(grpc.StatusCode.INVALID_ARGUMENT, word):
            acquire(stub, **fields)
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "32 hex digits"):
        release(stub, "../../table")
    with refused(grpc.StatusCode.NOT_FOUND):
        stub.AcquireLease(pb.AcquireLeaseRequest(table="nothing", ttl_ms=LEASE_MS), timeout=LIMIT_S)
    lease = acquire(stub)
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "ICEDB_SNAPSHOT_MAX_LEASE_TTL_MS"):
        renew(stub, lease.lease_id, ttl_ms=LEASE_MS + 1)
    acquire(stub)
    with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "2 leases last already"):
        acquire(stub)
    table.append(1)
    table.append(2)
    table.merge(full=True)
    table.clock.advance(DAY_MS)
    table.vacuum()
    with refused(grpc.StatusCode.OUT_OF_RANGE, "cannot be held"):
        acquire(stub, at_ms=now_ms)


def test_a_store_that_does_not_answer_is_told_and_leaves_no_lease(table, stub):
    acquire(stub)
    table.store.script = [Fault("put_if_absent", Effect.LOSE_ANSWER, "/holds/lease.")]
    lease = acquire(stub)  # the answer got lost, and it was found
    renew(stub, lease.lease_id)
    table.store.script = [Fault("list_page", Effect.UNAVAILABLE, "/holds/lease.")]
    with refused(grpc.StatusCode.UNAVAILABLE):
        acquire(stub)
    assert len(table.keys(table.paths.holds_of("lease"))) == 2
