"""GetSnapshot and StreamSnapshot over real gRPC: conditions, batches to wait for, pages, URLs, and a store that hangs."""

import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import parse_qsl, urlsplit

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status
from icedb_gateway.errors import S3Error
from icedb_gateway.signature import SignedRequest, check_signature, check_time, read_claim
from icedb_log.clock import SystemClock, new_batch_id
from icedb_log.commit.table import Table
from icedb_log.holds.tags import create_tag
from icedb_log.ingest.quarantine import quarantine_batch
from icedb_log.ingest.staging import list_staged, stage_batch
from icedb_log.jobs import RejectedBatch
from icedb_log.log.codec import encode_log_file
from icedb_log.model import FileMarker, LogFile
from icedb_log.store.local_store import LocalObjectStore
from icedb_log.store.table_store import TableStore
from icedb_log.store_settings import open_warehouse
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import PartitionField, TableConfig
from icedb_log.warehouse import Warehouse
from icedb_proto import snapshot_pb2 as pb
from icedb_sim.rigs.snapshot_rig import start_snapshot
from structlog.testing import capture_logs
from waiting import LIMIT_S, wait_until

SCHEMA = {"ts": "TIMESTAMP", "event": "VARCHAR", "amount": "DOUBLE"}
MIB = 1 << 20


class HangingStore(LocalObjectStore):
    """Holds the listings of some tables' logs while their gates are closed."""

    def __init__(self, folder):
        super().__init__(folder)
        self.gates = {}
        self.listings = 0

    def list_page(self, prefix, *, token=None, limit=1000):
        for name, gate in self.gates.items():
            if prefix == f"{name}/_log/":
                self.listings += 1
                assert gate.wait(LIMIT_S)
        return super().list_page(prefix, token=token, limit=limit)


class Rig:
    """One service over one warehouse, and logs written by hand."""

    def __init__(self, warehouse, **fields):
        self.warehouse = warehouse
        self.clock = SystemClock()
        self.running = start_snapshot(warehouse, clock=self.clock, **fields)
        self.service, self.stub = self.running.service, self.running.stub

    def create(self, name):
        spec = (PartitionField.parse("d=day(ts)"),)
        create_table(self.warehouse.table(name), TableConfig.create(name=name, partition=spec))

    def commit(self, name="events", *, days=(1,), count=1, batch_ids=(), refused_ids=()):
        paths, now_ms = self.warehouse.table(name).paths, self.clock.now_ms()
        markers = tuple(
            FileMarker(
                paths.data_key(partition=f"d=2026-01-{day:02d}", file_id=self.clock.new_id()),
                100,
                now_ms,
                row_count=10,
                stats={"ts": (f"2026-01-{day:02d}T00:00:00.000000Z", f"2026-01-{day:02d}T01:00:00.000000Z", 0)},
            )
            for day in days
            for _ in range(count)
        )
        log = LogFile(
            time_ms=now_ms, schema=SCHEMA, markers=markers, batch_ids=tuple(batch_ids), refused_ids=tuple(refused_ids)
        )
        key = paths.log_key(time_ms=now_ms, commit_id=self.clock.new_id(), is_merged=False)
        self.warehouse.store.put_if_absent(key, encode_log_file(log))
        return now_ms

    def get(self, table="events", *, timeout=LIMIT_S, **fields):
        return self.stub.GetSnapshot(pb.GetSnapshotRequest(table=table, **fields), timeout=timeout)

    def pages(self, table="events", **fields):
        return list(self.stub.StreamSnapshot(pb.GetSnapshotRequest(table=table, **fields), timeout=LIMIT_S))


@pytest.fixture
def store(tmp_path):
    folder = tmp_path / "warehouse"
    folder.mkdir()
    return HangingStore(folder)


@pytest.fixture
def start(store):
    rigs = []

    def start(warehouse=None, tables=("events",), **fields):
        rigs.append(Rig(warehouse or Warehouse(store), **fields))
        for name in tables:
            rigs[-1].create(name)
        return rigs[-1]

    yield start
    for gate in store.gates.values():
        gate.set()
    for rig in rigs:
        rig.running.stop()


@pytest.fixture
def rig(start):
    return start()


def refused(call, *args, **kwargs):
    with pytest.raises(grpc.RpcError) as caught:
        call(*args, **kwargs)
    return caught.value.code(), caught.value.details()


def test_pages_joined_are_the_answer_and_one_message_may_be_too_small_for_it(start):
    rig = start(snapshot_max_message_bytes=2 * MIB)
    rig.commit(days=range(1, 11), count=1000)
    code, details = refused(rig.get, max_staleness_ms=0)
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "10000 data files" in details
    assert "call StreamSnapshot" in details
    pages = rig.pages()
    assert len(pages) > 2
    assert max(page.ByteSize() for page in pages) <= MIB
    assert pages[0].file_count == 10_000
    assert [column.name for column in pages[0].schema] == list(SCHEMA)
    assert all(not page.table and not page.HasField("row_count") for page in pages[1:])
    joined = pb.GetSnapshotResponse()
    for page in pages:
        joined.MergeFrom(page)
    paths = [file.path for file in joined.files]
    assert len(paths) == 10_000
    assert paths == sorted(paths)
    narrow = rig.get(where="ts < '2026-01-02'")
    assert (narrow.file_count, narrow.total_file_count, narrow.snapshot_id) == (1000, 10_000, joined.snapshot_id)
    assert [file.path for file in narrow.files] == paths[:1000]


def test_a_condition_leaves_out_files_by_partition_and_statistics(rig):
    rig.commit(days=(1, 2, 3))
    for where, days in {
        "ts >= '2026-01-02'": [2, 3],
        "\"TS\" > TIMESTAMP '2026-01-02 00:30:00'": [2, 3],
        "ts > '2026-01-02 02:00:00'": [3],
        "event = 'a' AND ts::DATE = '2026-01-02'": [2],
        "event ILIKE 'a%'": [1, 2, 3],
        "ts IS NULL": [],
    }.items():
        answer = rig.get(where=where, max_staleness_ms=0)
        assert [int(file.partition_values[0].value[-2:]) for file in answer.files] == days, where
        assert (answer.file_count, answer.row_count, answer.total_file_count) == (len(days), 10 * len(days), 3)
    both = rig.get(where="ts >= '2026-01-02'", partition_filters=[pb.PartitionFilter(field="d", glob="*-0[12]")])
    assert [file.partition_values[0].value for file in both.files] == ["2026-01-02"]


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("nope = 1", "no column 'nope'; the columns are amount, event, ts"),
        ("event = ", "is not understood at line 1"),
        ("event = 'a'; DROP TABLE events", "more than one statement"),
        ("event = 'a';", "semicolon"),
        ("ts > (SELECT max(ts) FROM events)", "a subquery"),
        ("count(*) > 1", "an aggregate"),
        ("event = 'a' OR", "is not understood"),
        ("1 = 1) OR (1 = 1", "is not understood"),
        ("", "is empty"),
        ('event = "a"', "Text stands in single quotes"),
        ("(" * 3000 + "TRUE" + ")" * 3000, "nested too deeply"),
        ("array[" * 15 + "amount" + "]" * 15 + " = 1", "nested too deeply"),
        ("amount = 1 OR " * 10_000 + "TRUE", "at most 65536"),
    ],
)
def test_a_bad_condition_is_refused_with_what_and_where(rig, where, words):
    rig.commit()
    code, details = refused(rig.get, where=where, max_staleness_ms=0)
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert "table events: where=" in details
    assert words in details
    assert len(details) < 600


def test_answers_to_large_requests_are_not_kept_by_what_they_asked(rig):
    rig.commit()
    kept = rig.service.calls.answers
    many = pb.PartitionFilter(
        field="d", any_of=pb.ValueList(values=[f"20{n // 28:02d}-01-{n % 28 + 1:02d}" for n in range(2000)])
    )
    assert rig.get(partition_filters=[many], max_staleness_ms=0).file_count == 1
    assert len(kept) == 0
    assert rig.get(where="event = 'a'").file_count == 1
    assert len(kept) == 1


def test_the_future_is_refused_by_the_stores_clock(rig):
    now_ms = rig.commit()
    assert rig.get(as_of_ms=now_ms + 2000, max_staleness_ms=0).file_count == 1
    code, details = refused(rig.get, as_of_ms=now_ms + 3_600_000)
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert "lies in the future: the store's clock says" in details


def test_a_batch_is_waited_for_until_its_commit_is_read(rig):
    rig.commit()
    assert rig.get(max_staleness_ms=60_000).file_count == 1
    store, paths, batch_id = rig.warehouse.store, rig.warehouse.table("events").paths, new_batch_id(rig.clock)
    stage_batch(TableStore(store, paths), body=b"{}", staging_format="ndjson", batch_id=batch_id)
    code, _ = refused(rig.get, min_commit=batch_id, timeout=0.3)
    assert code == grpc.StatusCode.DEADLINE_EXCEEDED
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(rig.get, min_commit=batch_id, max_staleness_ms=60_000) for _ in range(4)]
        rig.commit(batch_ids=[batch_id])
        store.delete([batch.key for batch in list_staged(TableStore(store, paths)).batches])
        assert {each.result(LIMIT_S).file_count for each in waiting} == {2}
    code, details = refused(rig.get, min_commit=batch_id, as_of_ms=1_767_312_000_000)
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert "after as_of_ms" in details


def test_a_batch_that_will_never_come_is_told_from_one_that_nobody_knows(rig):
    store, paths = rig.warehouse.store, rig.warehouse.table("events").paths
    ids = [new_batch_id(rig.clock) for _ in range(3)]
    stage_batch(TableStore(store, paths), body=b"nonsense", staging_format="ndjson", batch_id=ids[0])
    (staged,) = list_staged(TableStore(store, paths)).batches
    quarantine_batch(TableStore(store, paths), rejected=RejectedBatch(staged, "line 1 is not JSON"), clock=rig.clock)
    rig.commit(refused_ids=[ids[1]])
    for batch_id, words in ((ids[0], "line 1 is not JSON"), (ids[1], "icedb quarantine list events")):
        code, details = refused(rig.get, min_commit=batch_id)
        assert code == grpc.StatusCode.INVALID_ARGUMENT
        assert "is in quarantine" in details
        assert words in details
    code, details = refused(rig.get, min_commit=ids[2])
    assert code == grpc.StatusCode.NOT_FOUND
    assert "never accepted for this table" in details


def test_a_batch_that_stays_staged_ends_the_wait_with_the_reason(start):
    rig = start(snapshot_commit_wait_ms=150)
    batch_id = new_batch_id(rig.clock)
    stage_batch(rig.warehouse.table("events"), body=b"{}", staging_format="ndjson", batch_id=batch_id)
    code, details = refused(rig.get, min_commit=batch_id)
    assert code == grpc.StatusCode.UNAVAILABLE
    assert "still staged after 150 ms (ICEDB_SNAPSHOT_COMMIT_WAIT_MS)" in details


def test_a_tag_is_read_however_the_table_has_changed(rig):
    rig.commit(days=(1, 2))
    paths = rig.warehouse.table("events").paths
    create_tag(Table.open(TableStore(rig.warehouse.store, paths), clock=rig.clock), "q3")
    rig.commit(days=(3,))
    for _ in range(2):
        tagged = rig.get(tag="q3", partition_filters=[pb.PartitionFilter(field="d", glob="2026*")])
        assert (tagged.file_count, tagged.row_count, tagged.is_stable) == (2, 20, True)
    assert rig.get(tag="q3", where="ts > '2026-01-02'").file_count == 1
    assert sum(len(page.files) for page in rig.pages(tag="q3")) == 2
    assert refused(rig.get, tag="nope")[0] == grpc.StatusCode.NOT_FOUND


def test_a_table_whose_store_hangs_costs_one_thread_and_nobody_else(start, store):
    rig = start(read_threads=3)
    names = ("slow", "slower", "slowest", "last")
    for name in names:
        rig.create(name)
    rig.commit()
    assert rig.get(max_staleness_ms=0).file_count == 1
    store.gates = {name: threading.Event() for name in names[:3]}
    work = rig.service.parts.reads.work
    threads = threading.active_count()
    patient = rig.stub.GetSnapshot.future(pb.GetSnapshotRequest(table="slow"), timeout=LIMIT_S)
    wait_until(lambda: store.listings)
    with ThreadPoolExecutor(40) as pool:
        short = [pool.submit(refused, rig.get, "slow", timeout=0.5) for _ in range(40)]
        assert rig.get(max_staleness_ms=60_000).file_count == 1
        assert {each.result(LIMIT_S)[0] for each in short} == {grpc.StatusCode.DEADLINE_EXCEEDED}
    assert patient.cancel()
    assert (work.job_count, store.listings) == (1, 1)
    assert threading.active_count() - threads < 20, "not one for each caller; health looks have their own"
    with ThreadPoolExecutor(2) as pool:
        others = [pool.submit(rig.get, name) for name in names[1:3]]
        wait_until(lambda: work.job_count == 3)
        with pytest.raises(grpc.RpcError) as caught:
            rig.get("last")
        assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        info = error_details_pb2.RetryInfo()
        assert rpc_status.from_call(caught.value).details[0].Unpack(info)
        assert info.retry_delay.ToMilliseconds() > 0
        assert rig.get(max_staleness_ms=60_000).file_count == 1
        for gate in store.gates.values():
            gate.set()
        assert [other.result(LIMIT_S).file_count for other in others] == [0, 0]
    wait_until(lambda: work.job_count == 0)
    assert rig.get("last").file_count == 0


def test_a_reader_that_does_not_read_holds_no_answer_and_is_told_so(start, monkeypatch):
    monkeypatch.setattr("icedb_snapshot.server.WRITE_TIMEOUT_MS", 2000)
    rig = start()
    rig.commit(days=range(1, 29), count=1500)
    with capture_logs() as logs:
        stream = rig.stub.StreamSnapshot(pb.GetSnapshotRequest(table="events", max_staleness_ms=0), timeout=LIMIT_S)
        assert next(stream).file_count == 42_000
        wait_until(lambda: any(entry["event"] == "reader_too_slow" for entry in logs))
    code, details = refused(list, stream)
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "took no message for 2000 ms" in details
    monkeypatch.undo()
    rig = start(tables=())  # on a busy machine, who does read may take longer, too
    assert sum(len(page.files) for page in rig.pages()) == 42_000


def test_a_directory_has_no_urls_and_too_many_are_refused(start, monkeypatch):
    monkeypatch.setattr("icedb_snapshot.snapshot_calls.MAX_PRESIGNED_FILES", 3)
    rig = start()
    rig.commit(count=4)
    code, details = refused(rig.get, presign_ms=60_000, max_staleness_ms=0)
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert "4 data files would get a URL; at most 3: narrow it" in details
    rig.commit("events", days=(2,), count=3)
    code, details = refused(rig.get, presign_ms=60_000, where="ts >= '2026-01-02'", max_staleness_ms=0)
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert "files of a directory have no URLs" in details


@pytest.mark.s3
def test_a_url_reads_the_file_without_credentials_until_it_ends(start, s3_server):
    store = f"s3://{s3_server.bucket}/urls/{SystemClock().new_id()}"
    rig = start(open_warehouse(store, s3_server.options))
    rig.commit()
    (file,) = rig.get(presign_ms=90_000, max_staleness_ms=0).files
    rig.warehouse.store.put(file.path, b"the file")
    assert len(rig.service.calls.answers) == 0  # who asks for the same later gets a URL that lasts as long
    with urllib.request.urlopen(file.presigned_url, timeout=LIMIT_S) as answer:
        assert answer.read() == b"the file"
    parts = urlsplit(file.presigned_url)
    request = SignedRequest("GET", parts.path.encode(), parse_qsl(parts.query), [("host", parts.netloc)])
    claim = read_claim(request)
    check_signature(request, claim, secret=s3_server.options.secret_access_key)
    now_ms = SystemClock().now_ms()
    check_time(claim, now_ms=now_ms + 80_000)
    with pytest.raises(S3Error, match="expired"):
        check_time(claim, now_ms=now_ms + 91_000)
    again = rig.pages(presign_ms=5000)[0].files[0].presigned_url
    assert "X-Amz-Expires=5&" in again
