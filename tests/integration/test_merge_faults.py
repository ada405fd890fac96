"""A merge whose surroundings fail: a full disk, a store that breaks off uploads, Redis that goes away."""

import json
import re
import socket
import subprocess
import sys
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest
from botocore.retries.standard import ExponentialBackoff
from icedb_engine.limits import EngineLimits
from icedb_engine.units.merge_unit import merge_unit
from icedb_engine.work import MergeUnit
from icedb_log.clock import SystemClock
from icedb_log.commit.table import Table
from icedb_log.errors import CommitOutcomeUnknown, Unavailable
from icedb_log.jobs import MergedGroup, never_stop
from icedb_log.log.fold import fold
from icedb_log.log.reader import LogReader
from icedb_log.merge.merge import merge_table
from icedb_log.merge.merge_plan import MergeOptions
from icedb_log.store.object_store import list_all
from icedb_log.store.s3_options import S3Options
from icedb_log.store.table_store import TableStore
from icedb_log.store_settings import StoreSettings
from icedb_service.redis_clients import LockLost, TableLock, open_redis
from icedb_sim.rigs.parquet_warehouse import ParquetWarehouse
from icedb_sim.rigs.redis_server import RedisServer
from threaded_server import serving_in_thread
from waiting import LIMIT_MS, LIMIT_S

CLOCK = SystemClock()
SCHEMA = {"n": "BIGINT"}
FILES, ROWS = 4, 1000


class UnitMerger:
    """Runs merge units here, as Spark's tasks do there."""

    def __init__(self, store, scratch):
        self._store = store
        self._engine = EngineLimits(thread_count=1, scratch_folder=str(scratch))

    def merge_groups(self, job):
        merged = []
        for group in job.groups:
            unit = MergeUnit.of(job, self._engine, group=group)
            result = merge_unit(unit, self._store, clock=CLOCK)
            merged.append(MergedGroup(group, result.outputs, result.rows_read))
        return tuple(merged)


class TableUnderTest:
    def __init__(self, warehouse, scratch):
        self.warehouse = warehouse
        self.store, self.paths = warehouse.store, warehouse.table("events").paths
        self.merger = UnitMerger(self.store, scratch)
        parquet = ParquetWarehouse(warehouse)
        parquet.create("events", sort=("n",))
        for number in range(FILES):
            parquet.commit("events", f"SELECT {number} + i * {FILES} AS n FROM range({ROWS}) t(i)", schema=SCHEMA)

    def merge(self, *, merger=None, check_alive=never_stop):
        table = Table.open(TableStore(self.store, self.paths), clock=CLOCK, owner="test").watched_by(check_alive)
        return merge_table(table, merger or self.merger, options=MergeOptions(full=True))

    def live(self):
        return fold(LogReader(TableStore(self.store, self.paths), clock=CLOCK).read()).live

    def data_keys(self):
        return {info.key for info in list_all(self.store, self.paths.data_prefix).objects}


FULL_DISK = """
import json, resource, sys
from pathlib import Path
from icedb_log.clock import SystemClock
from icedb_log.errors import IceDBError
from icedb_log.jobs import MergeGroup
from icedb_log.keys import TablePaths
from icedb_log.store.local_store import LocalObjectStore
from icedb_log.model import FileMarker
from icedb_log.commit.table import Table
from icedb_log.table.table_config import TableConfig
from icedb_engine.limits import EngineLimits
from icedb_engine.units.merge_unit import merge_unit
from icedb_engine.work import MergeUnit
import numpy, pyarrow, pyarrow.parquet

folder, memory_bytes, limit_bytes = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
store, paths = LocalObjectStore(folder / "store"), TablePaths("events", "events")
inputs = []
for name in "ab":
    key = paths.data_key(partition="", file_id=name)
    rows = pyarrow.table({"n": numpy.random.default_rng(ord(name)).integers(0, 2**62, 100_000)})
    (folder / "in").mkdir(exist_ok=True)
    pyarrow.parquet.write_table(rows, folder / "in" / name)
    store.upload(key, folder / "in" / name)
    inputs.append(FileMarker(key, store.head(key).size_bytes, 0, row_count=100_000))
engine = EngineLimits(memory_bytes=memory_bytes, thread_count=1, scratch_folder=str(folder / "scratch"))
group = MergeGroup("", tuple(inputs))
unit = MergeUnit(
    paths=paths, config=TableConfig(name="events", sort=("n",)), schema={"n": "BIGINT"}, commit_id="c1", time_ms=1,
    engine=engine, group=group,
)
resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes))  # no file may grow beyond: a disk that is full
try:
    merge_unit(unit, store, clock=SystemClock())
    print(json.dumps("no error"))
except IceDBError as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""
MIB = 1024 * 1024


@pytest.mark.parametrize(
    ("memory_bytes", "limit_bytes", "expected"),
    [(8 * MIB, 400_000, "StoreRefused"), (8 * MIB, 1_100_000, "Unavailable")],
    ids=["inputs", "output"],
)
def test_a_full_disk_is_told_with_clear_words_and_leaves_nothing(tmp_path, memory_bytes, limit_bytes, expected):
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path), str(memory_bytes), str(limit_bytes)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT_MS / 1000)
    kind, message = json.loads(done.stdout.splitlines()[-1])
    assert kind == expected, message
    assert str(tmp_path / "scratch") in message
    assert re.search("free (disk )?space|more of either", message), message
    assert list(tmp_path.glob("scratch/*")) == []
    assert sorted(file.name for file in tmp_path.glob("store/**/*.parquet")) == ["a.parquet", "b.parquet"]


class BreakingProxy(ThreadingHTTPServer):
    """Hands requests on to an S3 server; breaks off uploads of data files in the middle while it is told to."""

    daemon_threads = True

    def __init__(self, endpoint_url):
        super().__init__(("127.0.0.1", 0), ProxyHandler)
        self.target = urlsplit(endpoint_url)
        self.is_breaking = False
        self.broken_count = 0

    def handle_error(self, request, client_address):
        """A connection that was broken off is what the test wants."""


class ProxyHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def hand_on(self):
        length = int(self.headers.get("Content-Length") or 0)
        if self.server.is_breaking and self.command == "PUT" and "/_data/" in self.path:
            self.rfile.read(length // 2)
            self.server.broken_count += 1
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        body = self.rfile.read(length)
        connection = HTTPConnection(self.server.target.hostname, self.server.target.port, timeout=LIMIT_S)
        connection.request(self.command, self.path, body, dict(self.headers.items()))
        answer = connection.getresponse()
        content = answer.read()
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection"):
                self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
        connection.close()

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = hand_on

    def log_message(self, *arguments):
        """Say nothing."""


@pytest.mark.s3
def test_uploads_that_break_off_commit_nothing_and_the_next_run_succeeds(s3_server, tmp_path, monkeypatch):
    monkeypatch.setattr(ExponentialBackoff, "delay_amount", lambda self, context: 0)
    with serving_in_thread(BreakingProxy(s3_server.endpoint_url)) as proxy:
        url = f"http://127.0.0.1:{proxy.server_address[1]}"
        options = S3Options(url, access_key_id="dev", secret_access_key="dev")
        table = TableUnderTest(StoreSettings(f"s3://{s3_server.bucket}/breaks", options).open(), tmp_path / "scratch")
        before, inputs = table.live(), table.data_keys()
        proxy.is_breaking = True
        with pytest.raises((Unavailable, CommitOutcomeUnknown)):
            table.merge()
        assert proxy.broken_count > 1, "it was tried again"
        assert table.live() == before
        assert list(tmp_path.glob("scratch/*")) == []
        proxy.is_breaking = False
        done = table.merge()
        assert (done.input_count, done.output_count, done.row_count) == (FILES, 1, FILES * ROWS)
        (merged,) = table.live()
        assert table.data_keys() >= {*inputs, merged.path}


@pytest.mark.redis
def test_redis_that_goes_away_during_a_merge_stops_it_before_its_commit(tmp_path):
    table = TableUnderTest(StoreSettings(f"file://{tmp_path}/store").open(), tmp_path / "scratch")
    before = table.live()
    with RedisServer() as server:
        client = open_redis(server.url, timeout_ms=LIMIT_MS)

        class LosingMerger:
            """Redis goes away while its job works; asks whether it should stop, as Spark's watch does."""

            def merge_groups(self, job):
                server.stop()
                deadline_ms = CLOCK.monotonic_ms() + LIMIT_MS
                while CLOCK.monotonic_ms() < deadline_ms:
                    job.check_alive()
                    CLOCK.sleep_ms(20)
                raise AssertionError("the job was never told that its lock is lost")

        lock = TableLock([client], "merge:events", ttl_ms=3000, clock=CLOCK)
        with pytest.raises(LockLost, match="could not be renewed"), lock as held:
            table.merge(merger=LosingMerger(), check_alive=held.check_alive)
        assert table.live() == before
        server.start()
        with TableLock([client], "merge:events", ttl_ms=LIMIT_MS, clock=CLOCK) as held:
            assert table.merge(check_alive=held.check_alive).output_count == 1
        client.close()
    assert sum(marker.row_count for marker in table.live()) == FILES * ROWS
