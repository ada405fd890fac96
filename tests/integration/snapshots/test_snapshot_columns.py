"""Lists of files as record batches, and what came and went since a snapshot, over real gRPC and without a service."""

import contextlib
import random
import sys
from dataclasses import replace

import grpc
import pyarrow as pa
import pytest
from icedb_client import Client
from icedb_client.settings import ClientSettings
from icedb_client.store_reads import StoreReads
from icedb_log.errors import InvalidRequest
from icedb_log.log.codec import encode_log_file
from icedb_log.warehouse import Warehouse
from icedb_proto import snapshot_pb2 as pb
from snapshot_stub import other, refused
from waiting import LIMIT_MS, LIMIT_S

GRPC, STORE = "a client of the service", "a client of the store"


@pytest.fixture
def connect(table, serve):
    clients = []

    def connect(kind, address=None):
        address = address or f"127.0.0.1:{serve().port}"
        if kind == GRPC:
            client = Client(settings=ClientSettings(snapshot_address=address))
        else:
            client = Client(settings=ClientSettings(store="file:///nowhere"))
            client._from_store = StoreReads(Warehouse(table.store, "wh"), clock=table.clock, timeout_ms=LIMIT_MS)
        clients.append(client)
        return client

    yield connect
    for client in clients:
        client.close()


def ask(stub, **fields):
    return stub.GetSnapshot(pb.GetSnapshotRequest(table="events", **fields), timeout=LIMIT_S)


def read_batches(batches):
    table = pa.ipc.open_stream(b"".join(batches)).read_all()
    table.validate(full=True)
    return table


def names_of(table):
    return [(row["path"], row["size_bytes"], row["row_count"], row["created_ms"]) for row in table.to_pylist()]


def test_record_batches_name_the_files_that_messages_name(table, stub):
    table.append(1, 2)
    table.append(3, p="b_ü")
    table.stage([{"id": 4, "p": None}])
    table.flush()
    plain, columnar = ask(stub), ask(stub, columnar=True, with_bounds=True)
    found = read_batches(columnar.file_batches)
    assert names_of(found) == [(f.path, f.size_bytes, f.row_count, f.created_ms) for f in plain.files]
    assert [columnar.uri_prefix + path for path in found["path"].to_pylist()] == [f.uri for f in plain.files]
    assert found["partition.p"].to_pylist() == [
        value.value if value.HasField("value") else None for f in plain.files for value in f.partition_values
    ]
    assert found.column_names[-6:] == [
        f"{what}.{name}" for name in ("p", "id") for what in ("min", "max", "null_count")
    ]
    assert not columnar.files
    assert not plain.file_batches
    for message in (plain, columnar):
        message.ClearField("files")
        message.ClearField("file_batches")
        message.ClearField("staleness_ms")
    assert columnar.uri_prefix
    assert not plain.HasField("uri_prefix")
    columnar.ClearField("uri_prefix")
    assert plain == columnar


def test_pages_and_filters_of_record_batches(table, stub):
    for number in range(40):
        table.append(number, p=f"p{number % 7}")
    pages = list(stub.StreamSnapshot(pb.GetSnapshotRequest(table="events", columnar=True), timeout=LIMIT_S))
    found = read_batches(batch for page in pages for batch in page.file_batches)
    assert found["path"].to_pylist() == [marker.path for marker in table.snapshot().live]
    one = ask(stub, columnar=True, partition_filters=[pb.PartitionFilter(field="p", equals="p3")])
    assert set(read_batches(one.file_batches)["partition.p"].to_pylist()) == {"p3"}
    pruned = ask(stub, columnar=True, with_bounds=True, where="p = 'p5'")
    assert set(read_batches(pruned.file_batches)["partition.p"].to_pylist()) == {"p5"}
    none = ask(stub, columnar=True, where="p = 'p9'")
    assert read_batches(none.file_batches).num_rows == none.file_count == 0


@pytest.mark.parametrize("kind", [GRPC, STORE])
@pytest.mark.parametrize("seed", range(3))
def test_what_came_and_went_since_any_snapshot_makes_the_new_one(table, connect, kind, seed):
    chance, client = random.Random(seed), connect(kind)
    table.append(-1)
    known = [client.snapshot("events", bounds=True, max_staleness_ms=0)]
    steps = 0
    for number in range(25):
        action = chance.choice(("append", "append", "append", "merge", "delete", "remove", "read"))
        if action == "append":
            table.append(number, number + 1000, p=chance.choice("abc"))
        elif action == "merge":
            table.merge(full=True)
        elif action == "delete":
            table.delete(f"id = {chance.randint(0, number)}")
        elif action == "remove":
            with contextlib.suppress(InvalidRequest):  # no such partition now
                table.drop(f"p={chance.choice('abc')}")
        since = chance.choice(known)
        new = client.snapshot("events", since=since, bounds=True, max_staleness_ms=0)
        whole = client.snapshot("events", bounds=True, max_staleness_ms=0)
        assert new.snapshot_id == whole.snapshot_id
        assert new.files.to_arrow().to_pylist() == whole.files.to_arrow().to_pylist()
        assert new.files.paths == [marker.path for marker in table.snapshot().live]
        assert (new.schema, new.row_count, new.size_bytes) == (whole.schema, whole.row_count, whole.size_bytes)
        assert new.changes is not None
        before, after = set(since.files.paths), set(new.files.paths)
        assert (set(new.changes.added.paths), set(new.changes.removed.paths)) == (after - before, before - after)
        assert (new.changes.from_snapshot_id, new.changes.to_snapshot_id) == (since.snapshot_id, new.snapshot_id)
        assert {file.path for file in new.changes.removed} == before - after
        steps += before != after
        known.append(new)
    assert steps > 5


def test_a_server_that_does_not_know_a_snapshot_answers_whole_and_says_so(table, serve, connect):
    table.append(1)
    client = connect(GRPC)
    since = client.snapshot("events", columnar=True)
    table.append(2)
    fresh = connect(GRPC, f"127.0.0.1:{serve().port}")  # another replica: it has never seen the first state
    new = fresh.snapshot("events", since=since)
    assert new.changes is None
    assert new.files.paths == [marker.path for marker in table.snapshot().live]
    assert client.snapshot("events", since=since).changes is not None
    assert client.snapshot("events", since=new).files.paths == new.files.paths


@pytest.mark.parametrize(
    "narrowed",
    [{"partitions": {"p": "a"}}, {"where": "p = 'a'"}, {"as_of": 10**13}],
    ids=["a filter", "a condition", "a time"],
)
@pytest.mark.parametrize("kind", [GRPC, STORE])
def test_a_part_of_a_table_is_answered_whole(table, connect, kind, narrowed):
    table.append(1)
    client = connect(kind)
    since = client.snapshot("events", columnar=True)
    table.append(2, p="b")
    if "as_of" in narrowed:
        narrowed = {"as_of": table.clock.now_ms() - 1}
    part = client.snapshot("events", columnar=True, **narrowed)
    new = client.snapshot("events", since=since, **narrowed)
    assert (new.changes, new.files.paths) == (None, part.files.paths)
    if "as_of" not in narrowed:
        later = client.snapshot("events", since=part)
        assert (later.changes, len(later.files)) == (None, 2)


def test_a_server_that_is_asked_for_changes_of_a_part_answers_the_part(table, stub):
    table.append(1)
    since = ask(stub)
    table.append(2)
    table.append(3, p="b")
    as_of_ms = table.clock.now_ms() - 2
    for narrowed, count in (
        ({"where": "p = 'a'"}, 2),
        ({"where": "p = 'b'"}, 1),
        ({"partition_filters": [pb.PartitionFilter(field="p", equals="a")]}, 2),
        ({"as_of_ms": as_of_ms}, 2),
    ):
        part = ask(stub, since_snapshot_id=since.snapshot_id, **narrowed)
        assert (part.HasField("since_snapshot_id"), len(part.files), part.file_count) == (False, count, count)
    came = ask(stub, since_snapshot_id=since.snapshot_id)
    assert (came.since_snapshot_id, len(came.files), came.file_count, len(came.removed_paths)) == (
        *(since.snapshot_id, 2, 3, 0),
    )


def test_changes_say_which_columns_are_new_and_come_after_a_commit_that_is_waited_for(table, connect):
    table.append(1)
    client = connect(GRPC)
    since = client.snapshot("events", columnar=True)
    batch_id = table.stage([{"id": 2, "p": "a", "amount": 1.5}])
    table.flush()
    new = client.snapshot("events", since=since, min_commit=batch_id)
    assert dict(new.changes.changed_columns) == {"amount": "DOUBLE"}
    assert len(new.changes.added) == 1
    again = client.snapshot("events", since=new)
    assert (len(again.changes.added), len(again.changes.removed)) == (0, 0)
    assert again.files.paths == new.files.paths


@pytest.mark.parametrize("wrong", ["files that are gone", "too many files", "other columns", "other rows"])
def test_changes_that_do_not_fit_what_the_client_has_are_asked_for_again_whole(table, connect, wrong, monkeypatch):
    table.append(1)
    client = connect(GRPC)
    since = client.snapshot("events", columnar=True)
    table.append(2)
    asked, service = [], client.answerer
    truly_ask = service._ask

    def ask(method, message, **fields):
        answer = truly_ask(method, message, **fields)
        if message.HasField("since_snapshot_id"):
            asked.append(message.since_snapshot_id)
            if wrong == "files that are gone":
                answer.removed_paths.append("wh/events/_data/p=a/never-there.parquet")
            elif wrong == "too many files":
                answer.file_count += 1
            elif wrong == "other rows":
                answer.row_count += 1
            else:
                whole = pb.GetSnapshotRequest(table="events", columnar=True, with_bounds=True)
                answer.file_batches[:] = truly_ask(method, whole).file_batches
        return answer

    monkeypatch.setattr(service, "_ask", ask)
    new = client.snapshot("events", since=since)
    assert asked == [since.snapshot_id]
    assert (new.changes, len(new.files)) == (None, 2)


def test_another_table_is_no_beginning(table, connect):
    table.append(1)
    other(table, "more").append(5)
    client = connect(GRPC)
    new = client.snapshot("events", since=client.snapshot("more", columnar=True))
    assert (new.changes, len(new.files)) == (None, 1)


def test_calls_that_are_not_possible(table, stub, connect):
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "columnar", "presign_ms"):
        ask(stub, columnar=True, presign_ms=5000)
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "with_bounds", "columnar"):
        ask(stub, with_bounds=True)
    with pytest.raises(InvalidRequest, match="presign_ms"):
        connect(STORE).snapshot("events", columnar=True, presign_ms=5000)


def count_calls(work):
    """Return how many functions of Python run in a piece of work."""
    count = 0

    def note(_frame, event, _argument):
        nonlocal count
        count += event == "call"

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def test_a_caller_runs_no_loop_over_files(table, connect):
    client, counts = connect(GRPC), []
    for ids in (range(3), range(3, 60)):
        for number in ids:
            table.append(number)
        client.snapshot("events", columnar=True, max_staleness_ms=0)
        counts.append(count_calls(lambda: client.snapshot("events", columnar=True).files.to_arrow().num_rows))
    assert counts[1] - counts[0] < 30


def test_rows_that_a_log_file_tells_later_are_in_what_is_made_of_changes(table, connect):
    table.append(1)
    (marker,) = table.snapshot().live
    ((key, log),) = [(file.key, file.log) for file in table.view().files]
    table.store.inner.delete([key])
    table.store.inner.put(key, encode_log_file(replace(log, markers=(replace(marker, row_count=None),))))
    client = connect(GRPC)
    since = client.snapshot("events", columnar=True, max_staleness_ms=0)
    assert since.files.row_count is None
    table.append(2)
    table.store.inner.put(key, encode_log_file(log))
    new = client.snapshot("events", since=since, max_staleness_ms=0)
    assert (new.files.row_count, [file.row_count for file in new.files]) == (2, [1, 1])
