"""GetChanges, ListTables and GetTable over real gRPC on loopback, on a store in memory."""

import json

import grpc
from icedb_log.holds.tags import create_tag
from icedb_log.keys import clock_key
from icedb_log.store.store_clock import MAX_STORE_GAP_MS
from icedb_log.trash.drop import drop_table
from icedb_log.units import DAY_MS
from icedb_proto import snapshot_pb2 as pb
from icedb_sim.fakes.scripted_store import Effect, Fault
from snapshot_stub import other, refused
from waiting import LIMIT_S, wait_until


def changes(stub, **fields):
    pages = list(stub.GetChanges(pb.GetChangesRequest(table="events", **fields), timeout=LIMIT_S))
    joined = pb.GetChangesResponse()
    for page in pages:
        joined.MergeFrom(page)
    return joined, pages


def list_tables(stub, **fields):
    return stub.ListTables(pb.ListTablesRequest(**fields), timeout=LIMIT_S)


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
        list(stub.GetChanges(pb.GetChangesRequest(table="nothing", from_ms=1), timeout=LIMIT_S))


# GetSnapshot.


def test_answers_are_counted_by_where_what_they_say_came_from(table, serve, clock):
    table.append(1)
    rig = serve()
    for max_staleness_ms, counts in ((0, [0, 1]), (DAY_MS, [1, 1]), (0, [1, 2])):
        clock.ahead_ms += 10
        request = pb.GetSnapshotRequest(table="events", max_staleness_ms=max_staleness_ms)
        rig.stub.GetSnapshot(request, timeout=LIMIT_S)
        found = [rig.metric("icedb_snapshot_answers_total", source=source) for source in ("memory", "log")]
        assert found == counts


def test_an_answer_says_which_time_was_asked_for_although_nothing_changed_since_another(table, stub):
    table.append(1)
    times = [table.clock.now_ms() - 1, table.clock.now_ms()]
    asked = [pb.GetSnapshotRequest(table="events", as_of_ms=time_ms) for time_ms in times]
    assert [stub.GetSnapshot(request, timeout=LIMIT_S).as_of_ms for request in asked] == times


def test_a_tag_that_has_ended_by_itself_is_answered_from_memory_no_more(table, stub):
    table.append(1)
    create_tag(table.opened(), "q3", ttl_ms=DAY_MS)
    request = pb.GetSnapshotRequest(table="events", tag="q3")
    assert stub.GetSnapshot(request, timeout=LIMIT_S).row_count == 1
    table.clock.advance(DAY_MS + MAX_STORE_GAP_MS)
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "ended"):
        stub.GetSnapshot(request, timeout=LIMIT_S)


# ListTables, GetTable.


def test_figures_of_tables_come_with_their_names_as_the_exporter_has_read_them(table, serve, clock):
    table.append(1)
    damaged = other(table, "damaged")
    damaged.append(1)
    damaged.store.put(damaged.paths.log_key(time_ms=1, commit_id="0" * 32, is_merged=False), b"no log file")
    rig = serve()
    wait_until(lambda: rig.metric("icedb_snapshot_exporter_tables") == 2)
    other(table, "later")
    clock.ahead_ms += 7000
    answer = list_tables(rig.stub, with_figures=True)
    assert list(answer.tables) == ["damaged", "events", "later"]
    figures = {each.table: json.loads(each.figures) for each in answer.figures}
    assert {name: each["halted"] for name, each in figures.items()} == {"damaged": True, "events": False}
    assert (figures["events"]["live_files"], figures["events"]["table"]) == (1, "events")
    assert all(each.age_ms >= 7000 for each in answer.figures)
    assert not list_tables(rig.stub).figures


def test_tables_are_listed_in_pages_without_those_that_are_dropped(table, stub):
    for name in ("access", "errors", "web_logs"):
        other(table, name)
    gone = other(table, "gone")
    drop_table(gone, clock=gone.clock)
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
    stub = serve().stub
    list_tables(stub)
    table.store.calls.clear()
    list_tables(stub)
    read = [
        key for key in table.store.keys_of("get") if key != clock_key("wh/")
    ]  # whether it answers is looked at always
    assert (len(table.store.keys_of("list_folders")), read) == (1, [])
    table.store.script = [Fault("list_folders", Effect.UNAVAILABLE)]
    with refused(grpc.StatusCode.UNAVAILABLE):
        list_tables(stub)


def test_what_a_table_is(table, stub):
    table.append(1)
    found = stub.GetTable(pb.GetTableRequest(table="events"), timeout=LIMIT_S)
    assert [(c.name, c.type) for c in found.schema] == [("id", "BIGINT"), ("p", "VARCHAR")]
    assert [(f.name, f.transform, f.column, f.HasField("width")) for f in found.partition_fields] == [
        ("p", "identity", "p", False)
    ]
    assert list(found.sort_columns) == ["id"]
    assert (found.data_grace_ms, found.log_grace_ms) == (table.config.data_grace_ms, table.config.log_grace_ms)
    assert not any(found.HasField(name) for name in ("retention_ms", "retention_field", "horizon_ms"))
    with refused(grpc.StatusCode.NOT_FOUND, "'nothing'"):
        stub.GetTable(pb.GetTableRequest(table="nothing"), timeout=LIMIT_S)
