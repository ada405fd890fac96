"""WatchSnapshots over real gRPC on loopback: what is waited for is a message, never a time."""

import grpc
from icedb_log.table.table_config import CONFIG_CACHE_TTL_MS
from icedb_log.trash.drop import drop_table
from icedb_proto import snapshot_pb2 as pb
from icedb_sim.rigs.access_rig import token_entry, write_access
from snapshot_stub import LEASE_MS, other, refused
from waiting import LIMIT_S, wait_until


def watch(stub, *tables):
    return stub.WatchSnapshots(pb.WatchSnapshotsRequest(tables=tables), timeout=LIMIT_S)


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
    rig = serve()
    table.append(1)
    streams = [watch(rig.stub, "events") for _ in range(8)]
    assert [next(events).row_count for events in streams] == [1] * 8
    watched = ("icedb_snapshot_watchers", "icedb_snapshot_watched_tables")
    assert list(map(rig.metric, watched)) == [8, 1]
    for events in streams:
        events.cancel()
    wait_until(lambda: not any(map(rig.metric, watched)))  # the server hears of it a moment later
    calls = {"method": "WatchSnapshots", "code": "CANCELLED"}
    wait_until(lambda: rig.metric("icedb_snapshot_requests_total", **calls) == len(streams))


def test_who_watches_all_tables_hears_of_new_ones_and_of_those_that_go(table, stub, clock):
    table.append(1)
    events = watch(stub)
    assert next(events).table == "events"
    logs = other(table, "logs")
    created = next(events)
    assert (created.table, created.file_count, created.HasField("last_commit_ms")) == ("logs", 0, False)
    logs.append(1)
    assert next(events).row_count == 1
    drop_table(logs, clock=logs.clock)
    clock.ahead_ms = CONFIG_CACHE_TTL_MS + 1
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
    rig = serve()
    events = watch(rig.stub, "events")
    next(events)
    rig.service.stop()
    with refused(grpc.StatusCode.UNAVAILABLE, "another replica"):
        next(events)


def test_no_more_watch_than_are_allowed(serve):
    stub = serve(snapshot_max_watchers=1).stub
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
    stub = serve(access_file=str(access_file)).stub
    ann, app = ([("authorization", f"Bearer {token}")] for token in (reads, writes))
    events = stub.WatchSnapshots(pb.WatchSnapshotsRequest(), timeout=LIMIT_S, metadata=ann)
    silent = stub.WatchSnapshots(pb.WatchSnapshotsRequest(), timeout=LIMIT_S, metadata=app)
    assert next(events).table == "events"
    table.append(1)
    assert next(events).row_count == 1
    for metadata, listed in ((ann, ["events"]), (app, [])):
        answer = stub.ListTables(pb.ListTablesRequest(page_size=1), timeout=LIMIT_S, metadata=metadata)
        assert (list(answer.tables), answer.HasField("next_page_token")) == (listed, False)
    for metadata, tables, code in (
        (ann, ["events", "payroll"], grpc.StatusCode.NOT_FOUND),
        (app, ["events"], grpc.StatusCode.PERMISSION_DENIED),
        ([], [], grpc.StatusCode.UNAUTHENTICATED),
    ):
        with refused(code):
            next(stub.WatchSnapshots(pb.WatchSnapshotsRequest(tables=tables), timeout=LIMIT_S, metadata=metadata))
    request = pb.AcquireLeaseRequest(table="events", ttl_ms=LEASE_MS)
    stub.AcquireLease(request, timeout=LIMIT_S, metadata=ann)
    assert [waiting.holder for waiting in table.status().leases] == ["ann"]
    assert silent.cancel()
