"""A warehouse in memory whose log is written by hand, and a clock that only moves when told."""

import threading

import pytest
from icedb_log.log.codec import encode_log_file
from icedb_log.model import FileMarker, LogFile, LogTombstone
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import PartitionField, TableConfig
from icedb_log.warehouse import Warehouse
from icedb_sim.fakes.memory_store import MemoryObjectStore
from waiting import LIMIT_S

START_MS = 1_767_312_000_000  # 2026-01-02


class TestClock:
    """Time by hand."""

    __test__ = False

    def __init__(self):
        self.ms = START_MS
        self.ids = 0
        self.lock = threading.Lock()

    def now_ms(self):
        return self.ms

    def monotonic_ms(self):
        return self.ms

    def sleep_ms(self, duration_ms):
        with self.lock:
            self.ms += duration_ms

    def new_id(self):
        with self.lock:
            self.ids += 1
            return f"{self.ids:032x}"


class CountingStore(MemoryObjectStore):
    """Counts listings below ``_log``; can be told to fail, and to wait inside a listing."""

    def __init__(self, now_ms):
        super().__init__(now_ms)
        self.log_listings = 0
        self.failure = None
        self.entered = threading.Semaphore(0)
        self.gate = None

    def list_page(self, prefix, *, token=None, limit=1000):
        if self.failure is not None:
            raise self.failure
        if prefix.endswith("/_log/"):
            self.log_listings += 1
            if self.gate is not None:
                self.entered.release()
                assert self.gate.wait(LIMIT_S)
        return super().list_page(prefix, token=token, limit=limit)


class Tables:
    """Creates tables and commits to them without any worker."""

    def __init__(self, warehouse, clock):
        self.warehouse = warehouse
        self.clock = clock

    def create(self, name="events", partition=("d=day(ts)",), **fields):
        spec = tuple(PartitionField.parse(text) for text in partition)
        config = TableConfig.create(name=name, partition=spec, **fields)
        create_table(self.warehouse.table(name), config)
        return config

    def commit(self, name="events", files=(), dead=(), dead_logs=(), schema=None, horizon_ms=None):
        """Write one log file; ``files`` are (partition, rows) pairs. Returns (log key, data keys)."""
        paths = self.warehouse.table(name).paths
        self.clock.ms += 1
        now = self.clock.ms
        markers = [
            FileMarker(
                path=paths.data_key(partition=partition, file_id=self.clock.new_id()),
                size_bytes=100,
                created_ms=now,
                row_count=rows,
            )
            for partition, rows in files
        ]
        markers += [FileMarker(path=key, size_bytes=100, created_ms=now, tombstoned_ms=now) for key in dead]
        is_merged = bool(dead or dead_logs)
        commit_id = self.clock.new_id()
        key = paths.log_key(time_ms=now, commit_id=commit_id, is_merged=is_merged)
        log = LogFile(
            time_ms=now,
            schema=schema or {"ts": "TIMESTAMP", "event": "VARCHAR"},
            markers=tuple(markers),
            log_tombstones=tuple(LogTombstone(path=path, tombstoned_ms=now) for path in dead_logs),
            commit_id=commit_id,
            horizon_ms=horizon_ms,
        )
        self.warehouse.store.put_if_absent(key, encode_log_file(log))
        return key, [marker.path for marker in markers if marker.tombstoned_ms is None]


@pytest.fixture
def clock():
    return TestClock()


@pytest.fixture
def store(clock):
    return CountingStore(clock.now_ms)


@pytest.fixture
def warehouse(store):
    return Warehouse(store, "wh")


@pytest.fixture
def tables(warehouse, clock):
    return Tables(warehouse, clock)
