"""WatchSnapshots, GetChanges, ListTables, GetTable and leases over real gRPC on loopback, on a store in memory.

The store's clock is moved by hand; what is waited for is a message, never a time.
"""

import asyncio
from contextlib import contextmanager

import grpc
import pytest
from icedb_log.clock import SystemClock
from icedb_log.serving.table_cache import CONFIG_MAX_AGE_MS
from icedb_log.storage.store_clock import MAX_STORE_GAP_MS
from icedb_log.testing.scripted_store import Effect, Fault
from icedb_log.testing.small_table import SmallTable
from icedb_log.trash.drop import drop_table
from icedb_log.warehouse import Warehouse
from icedb_proto import snapshot_pb2 as pb
from icedb_proto import snapshot_pb2_grpc
from icedb_service.testing.access_rig import token_entry, write_access
from icedb_snapshot.__main__ import start_service
from icedb_snapshot.settings import SnapshotSettings

DEADLINE_S = 30
ROUNDS = 20_000
POLL_MS = 20
DAY_MS = 24 * 60 * 60 * 1000
LEASE_MS = 600_000


@pytest.fixture
def table():
    return SmallTable(name="events")


class MovableClock(SystemClock):
    """This host's clock, which a test can put forward."""

    ahead_ms = 0

    def monotonic_ms(self):
        return super().monotonic_ms() + self.ahead_ms


@pytest.fixture
def clock():
    return MovableClock()


@pytest.fixture
def serve(table, clock):
    running = []

    def serve(**fields):
        settings = SnapshotSettings(
            store="file:///unused",
            snapshot_address="127.0.0.1:0",
            snapshot_lag_interval_ms=600_000,
            snapshot_watch_interval_ms=POLL_MS,
            snapshot_max_staleness_ms=0,
            **fields,
        )
        service = start_service(Warehouse(table.store, "wh"), settings=settings, clock=clock)
        channel = grpc.insecure_channel(f"127.0.0.1:{service.server.port}")
        running.append((service, channel))
        return service, snapshot_pb2_grpc.SnapshotServiceStub(channel)

    yield serve
    for service, channel in running:
        channel.close()
        service.stop()


@pytest.fixture
def stub(serve):
    return serve()[1]


@contextmanager
def refused(code, *words):
    with pytest.raises(grpc.RpcError) as caught:
        yield
    assert caught.value.code() == code, caught.value.details()
    for word in words:
        assert word in caught.value.details()


def other(table, name):
    """Return another table of the same warehouse."""
    return SmallTable(store=table.store.inner, name=name, start_ms=table.clock.now_ms())


def watch(stub, *tables):
    return stub.WatchSnapshots(pb.WatchSnapshotsRequest(tables=tables), timeout=DEADLINE_S)


def changes(stub, **fields):
    pages = list(stub.GetChanges(pb.GetChangesRequest(table="events", **fields), timeout=DEADLINE_S))
    joined = pb.GetChangesResponse()
    for page in pages:
        joined.MergeFrom(page)
    return joined, pages


def acquire(stub, ttl_ms=LEASE_MS, **fields):
    return stub.AcquireLease(pb.AcquireLeaseRequest(table="events", ttl_ms=ttl_ms, **fields), timeout=DEADLINE_S)


def renew(stub, lease_id, ttl_ms=LEASE_MS):
    request = pb.RenewLeaseRequest(table="events", lease_id=lease_id, ttl_ms=ttl_ms)
    return stub.RenewLease(request, timeout=DEADLINE_S)


def release(stub, lease_id):
    return stub.ReleaseLease(pb.ReleaseLeaseRequest(table="events", lease_id=lease_id), timeout=DEADLINE_S)


def list_tables(stub, **fields):
    return stub.ListTables(pb.ListTablesRequest(**fields), timeout=DEADLINE_S)


# WatchSnapshots.


def test_a_watcher_is_told_the_state_at_once_and_then_each_change(table, stub):
    table.append(1)
    events = watch(stub, "events")
    first = next(events)
    snapshot = table.snapshot()
    assert (first.table, first.snapshot_id, first.file_count, first.row_count) == (
        "events",
        snapshot.snapshot_id,
        1,
        1,
    )
    assert first.last_commit_ms == snapshot.last_commit_ms
    table.append(2)
    second = next(events)
    assert (second.snapshot_id, second.row_count) == (table.snapshot().snapshot_id, 2)
    table.merge(full=True)
    third = next(events)
    assert (third.file_count, third.row_count, third.snapshot_id) == (1, 2, table.snapshot().snapshot_id)


def test_watchers_that_go_leave_nothing_behind(table, serve):
    service, stub = serve()
    table.append(1)
    streams = [watch(stub, "events") for _ in range(8)]
    assert [next(events).row_count for events in streams] == [1] * 8
    watches = service.server.calls[1].watches
    assert (watches.watcher_count, watches.table_count) == (8, 1)
    for events in streams:
        events.cancel()

    for _ in range(ROUNDS):
        if not watches.watcher_count:
            break
        service.server.loop.run(asyncio.sleep(0.001))  # the server hears of it a moment later
    assert watches.table_count == 0


def test_who_watches_all_tables_hears_of_new_ones_and_of_those_that_go(table, stub, clock):
    table.append(1)
    events = watch(stub)
    assert next(events).table == "events"
    logs = other(table, "logs")
    created = next(events)
    assert (created.table, created.file_count, created.HasField("last_commit_ms")) == ("logs", 0, False)
    logs.append(1)
    assert next(events).row_count == 1
    drop_table(logs.store, logs.paths, clock=logs.clock)
    clock.ahead_ms = CONFIG_MAX_AGE_MS + 1  # so long a configuration is believed
    gone = next(events)
    assert (gone.table, gone.HasField("snapshot_id"), gone.HasField("problem")) == ("logs", False, False)
    table.append(2)
    assert next(events).table == "events"


def test_a_table_that_breaks_is_told_as_a_problem_and_the_others_go_on(table, stub):
    logs = other(table, "logs")
    events = watch(stub, "events", "logs")
    assert {next(events).table, next(events).table} == {"events", "logs"}
    bad = logs.paths.log_key(time_ms=1, commit_id="aa", is_merged=False)
    table.store.put(bad, b"{")
    broken = next(events)
    assert broken.table == "logs"
    assert broken.problem.startswith("CorruptLog: ")
    assert bad in broken.problem
    table.append(1)
    assert (next(events).table, table.store.delete([bad]).failed) == ("events", ())
    healed = next(events)
    assert (healed.table, healed.problem, healed.HasField("snapshot_id")) == ("logs", "", True)


def test_a_watcher_of_a_table_that_is_not_there_is_refused(stub):
    with refused(grpc.StatusCode.NOT_FOUND, "'nothing'"):
        next(watch(stub, "nothing"))
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "table name"):
        next(watch(stub, "No Table"))
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "name none to watch all"):
        next(watch(stub, *(f"t{number}" for number in range(1001))))
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "name none to watch all"):
        next(watch(stub, *["events"] * 1001))  # each would be asked of the policy


def test_a_server_that_stops_ends_its_watchers_with_unavailable(serve):
    service, stub = serve()
    events = watch(stub, "events")
    next(events)
    service.server.stop(grace_ms=DEADLINE_S * 1000)
    with refused(grpc.StatusCode.UNAVAILABLE, "another replica"):
        next(events)


def test_no_more_watch_than_are_allowed(serve):
    _, stub = serve(snapshot_max_watchers=1)
    events = watch(stub, "events")
    next(events)
    with refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "ICEDB_SNAPSHOT_MAX_WATCHERS"):
        next(watch(stub, "events"))


def test_nobody_is_told_of_tables_that_it_may_not_read(table, serve, tmp_path):
    other(table, "payroll").append(1)
    reads, writes = "icedbt_reads-0123456789abcdef", "icedbt_writes-0123456789abcdef"
    access_file = write_access(
        tmp_path / "access.json",
        {
            "identities": {"ann": {"tokens": [token_entry(reads)]}, "app": {"tokens": [token_entry(writes)]}},
            "grants": [
                {"identities": ["ann"], "tables": ["events"], "verbs": ["read"]},
                {"identities": ["app"], "tables": ["events"], "verbs": ["append"]},
            ],
        },
    )
    _, stub = serve(access_file=str(access_file))
    ann, app = ([("authorization", f"Bearer {token}")] for token in (reads, writes))
    events = stub.WatchSnapshots(pb.WatchSnapshotsRequest(), timeout=DEADLINE_S, metadata=ann)
    silent = stub.WatchSnapshots(pb.WatchSnapshotsRequest(), timeout=DEADLINE_S, metadata=app)
    assert next(events).table == "events"
    table.append(1)
    assert next(events).row_count == 1
    for metadata, listed in ((ann, ["events"]), (app, [])):
        answer = stub.ListTables(pb.ListTablesRequest(page_size=1), timeout=DEADLINE_S, metadata=metadata)
        assert (list(answer.tables), answer.HasField("next_page_token")) == (listed, False)
    for metadata, tables, code in (
        (ann, ["events", "payroll"], grpc.StatusCode.NOT_FOUND),
        (app, ["events"], grpc.StatusCode.PERMISSION_DENIED),
        ([], [], grpc.StatusCode.UNAUTHENTICATED),
    ):
        with refused(code):
            next(stub.WatchSnapshots(pb.WatchSnapshotsRequest(tables=tables), timeout=DEADLINE_S, metadata=metadata))
    request = pb.AcquireLeaseRequest(table="events", ttl_ms=LEASE_MS)
    stub.AcquireLease(request, timeout=DEADLINE_S, metadata=ann)
    assert [waiting.holder for waiting in table.status().leases] == ["ann"]
    assert silent.cancel()


# GetChanges.


def test_changes_between_two_times(table, stub):
    table.append(1)
    table.append(2, p="b")
    from_ms = table.clock.now_ms() - 1
    before = table.snapshot()
    table.merge(full=True)
    table.stage([{"id": 3, "p": "b", "amount": 1.5}])
    table.flush()
    to_ms = table.clock.now_ms() - 1
    table.append(4)
    found, _ = changes(stub, from_ms=from_ms, to_ms=to_ms)
    assert found.from_snapshot_id == before.snapshot_id
    assert found.to_snapshot_id == table.snapshot(as_of_ms=to_ms).snapshot_id
    old, new = ({m.path for m in table.snapshot(as_of_ms=ms).live} for ms in (from_ms, to_ms))
    assert [file.path for file in found.added] == sorted(new - old)
    assert [file.path for file in found.removed] == sorted(old - new)
    assert (found.added_count, found.removed_count) == (len(found.added), len(found.removed))
    assert [(c.name, c.type) for c in found.changed_columns] == [("amount", "DOUBLE")]
    values = {(v.name, v.value) for file in found.added for v in file.partition_values}
    assert values <= {("p", "a"), ("p", "b")}
    assert all(file.uri and file.size_bytes and file.row_count for file in found.added)
    assert not found.is_stable  # an hour has to pass until nothing can land with such a time any more
    newest, _ = changes(stub, from_ms=to_ms)
    assert (newest.to_snapshot_id, newest.added_count) == (table.snapshot().snapshot_id, 1)
    none, _ = changes(stub, from_ms=to_ms, to_ms=to_ms)
    assert (none.added_count, none.removed_count, len(none.changed_columns)) == (0, 0, 0)
    table.clock.advance(2 * 60 * 60 * 1000)
    assert changes(stub, from_ms=from_ms, to_ms=to_ms)[0].is_stable


def test_changes_at_times_that_cannot_be_answered(table, stub):
    table.append(1)
    table.append(2)
    from_ms, now_ms = table.clock.now_ms() - 1, table.clock.now_ms()
    far_ms = now_ms + MAX_STORE_GAP_MS + 60_000
    for fields, word in (
        ({"from_ms": from_ms, "to_ms": from_ms - 1}, "from_ms is the earlier one"),
        ({"from_ms": far_ms}, "in the future"),
        ({"from_ms": from_ms, "to_ms": far_ms}, "in the future"),
        ({"from_ms": -1}, "not a time"),
        ({"from_ms": from_ms, "max_staleness_ms": -1}, "max_staleness_ms"),
    ):
        with refused(grpc.StatusCode.INVALID_ARGUMENT, word):
            changes(stub, **fields)
    table.merge(full=True)
    table.clock.advance(DAY_MS)
    table.vacuum()
    with refused(grpc.StatusCode.OUT_OF_RANGE, "the oldest time still readable"):
        changes(stub, from_ms=from_ms)
    with refused(grpc.StatusCode.NOT_FOUND):
        list(stub.GetChanges(pb.GetChangesRequest(table="nothing", from_ms=1), timeout=DEADLINE_S))


# ListTables, GetTable.


def test_tables_are_listed_in_pages_without_those_that_are_dropped(table, stub):
    for name in ("access", "errors", "web_logs"):
        other(table, name)
    gone = other(table, "gone")
    drop_table(gone.store, gone.paths, clock=gone.clock)
    table.store.put("wh/not_a_table/x", b"")
    assert list(list_tables(stub).tables) == ["access", "errors", "events", "web_logs"]
    first = list_tables(stub, page_size=3)
    assert list(first.tables) == ["access", "errors", "events"]
    last = list_tables(stub, page_size=3, page_token=first.next_page_token)
    assert (list(last.tables), last.HasField("next_page_token")) == (["web_logs"], False)
    exact = list_tables(stub, page_size=4)
    assert not exact.HasField("next_page_token")
    assert list(list_tables(stub, glob="e*").tables) == ["errors", "events"]
    assert list(list_tables(stub, glob="[!e]*", page_size=1).tables) == ["access"]
    for fields, word in (
        ({"page_size": 0}, "use 1 to 1000"),
        ({"page_size": 1001}, "use 1 to 1000"),
        ({"page_token": "x"}, "as it is"),
        ({"page_token": "Li4vLi4="}, "as it is"),
        ({"glob": ""}, "leave it out"),
    ):
        with refused(grpc.StatusCode.INVALID_ARGUMENT, word):
            list_tables(stub, **fields)


def test_the_names_cost_one_listing_however_many_ask_and_no_read_of_what_is_known(table, serve):
    _, stub = serve()
    list_tables(stub)
    table.store.calls.clear()
    list_tables(stub)
    assert (len(table.store.keys_of("list_folders")), table.store.keys_of("get")) == (1, [])
    table.store.script = [Fault("list_folders", Effect.UNAVAILABLE)]
    with refused(grpc.StatusCode.UNAVAILABLE):
        list_tables(stub)


def test_what_a_table_is(table, stub):
    table.append(1)
    found = stub.GetTable(pb.GetTableRequest(table="events"), timeout=DEADLINE_S)
    assert [(c.name, c.type) for c in found.schema] == [("id", "BIGINT"), ("p", "VARCHAR")]
    assert [(f.name, f.transform, f.column, f.HasField("width")) for f in found.partition_fields] == [
        ("p", "identity", "p", False)
    ]
    assert list(found.sort_columns) == ["id"]
    assert (found.data_grace_ms, found.log_grace_ms) == (table.config.data_grace_ms, table.config.log_grace_ms)
    assert not any(found.HasField(name) for name in ("retention_ms", "retention_field", "horizon_ms"))
    with refused(grpc.StatusCode.NOT_FOUND, "'nothing'"):
        stub.GetTable(pb.GetTableRequest(table="nothing"), timeout=DEADLINE_S)


# Leases.


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
    held = stub.GetSnapshot(request, timeout=DEADLINE_S)
    assert held.row_count == 2
    assert {file.path for file in held.files} <= set(table.keys(table.paths.data_prefix))
    (waiting,) = {w.held_by for w in table.vacuum(dry_run=True).waiting}
    assert waiting.startswith(f"{lease.lease_id} (")  # who holds it is named
    release(stub, lease.lease_id)
    release(stub, lease.lease_id)
    table.vacuum()
    with refused(grpc.StatusCode.OUT_OF_RANGE):
        stub.GetSnapshot(request, timeout=DEADLINE_S)


def test_a_lease_that_has_ended_says_what_to_do(table, stub):
    lease = acquire(stub, ttl_ms=5000)
    table.clock.advance(5000)
    with refused(grpc.StatusCode.NOT_FOUND, "Take another lease"):
        renew(stub, lease.lease_id)
    assert release(stub, lease.lease_id) == pb.ReleaseLeaseResponse()


def test_leases_that_cannot_be_given(table, serve):
    _, stub = serve(snapshot_max_leases=2, snapshot_max_lease_ttl_ms=LEASE_MS)
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
        stub.AcquireLease(pb.AcquireLeaseRequest(table="nothing", ttl_ms=LEASE_MS), timeout=DEADLINE_S)
    acquire(stub)
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
    table.store.script = [Fault("put_if_absent", Effect.LOSE_ANSWER, "/leases/")]
    lease = acquire(stub)  # the answer got lost, and it was found
    renew(stub, lease.lease_id)
    table.store.script = [Fault("list_page", Effect.UNAVAILABLE, "/leases/")]
    with refused(grpc.StatusCode.UNAVAILABLE):
        acquire(stub)
    assert len(table.keys(table.paths.leases_prefix)) == 2
