"""Tables of ours that grow, in memory and in simulated time: flush, merge and vacuum are real, rows are left out.

Data files are sizes: the path of the data is left out, but what it would ask the store for is counted. Requests are
counted as S3 bills them: a listing by its pages, a deletion by thousands of keys, a large upload by its parts.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from icedb_log.clean.deletion import AuditLog
from icedb_log.clean.vacuum import vacuum_table
from icedb_log.clock import new_batch_id
from icedb_log.commit.table import Table
from icedb_log.content import hash_content
from icedb_log.ingest.flush import flush_table
from icedb_log.ingest.groups import OfferedBatch
from icedb_log.ingest.staging import stage_batch, stage_group
from icedb_log.jobs import FlushJob, FlushOutput, MergedGroup, MergeJob
from icedb_log.keys import TablePaths
from icedb_log.log.codec import encode_log_file
from icedb_log.merge.merge import merge_table
from icedb_log.merge.merge_plan import Lane, MergeIndex, MergeOptions
from icedb_log.model import FileMarker, LogFile
from icedb_log.serving.table_cache import TableCache
from icedb_log.store.object_store import ObjectInfo, list_all
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import PartitionField, TableConfig
from icedb_log.units import MIB, MINUTE_MS, SECOND_MS
from icedb_log.warehouse import Warehouse
from icedb_sim.fakes.fake_clock import FakeClock
from icedb_sim.fakes.memory_store import MemoryObjectStore

ROWS_PER_BATCH: Final = 10
ROW_BYTES: Final = 40
"""Of a data file, compressed: what the demo's events take."""
PART_BYTES: Final = 8 * MIB
KEYS_A_REQUEST: Final = 1000
SCHEMA: Final = {"ts": "TIMESTAMP", "event": "VARCHAR", "user_id": "VARCHAR", "amount": "DOUBLE"}
STATS: Final = {
    "ts": ("2026-11-01T00:00:00.000000Z", "2026-11-01T00:00:01.000000Z", 0),
    "event": ("add_to_cart", "view", 0),
}
MERGE_EVERY_MS: Final = 10 * SECOND_MS
COLD_EVERY_MS: Final = 10 * MINUTE_MS
VACUUM_EVERY_MS: Final = 30 * SECOND_MS
"""As the services do by default."""


@dataclass(slots=True)
class Usage:
    """What somebody asked of a store, and the processor time that it took to ask.

    Attributes:
        requests: By kind: ``put``, ``get``, ``list``, ``delete``.
        sent_bytes: Written to the store.
        received_bytes: Read from it.
        cpu_s: Processor time.
        calls: How often it worked.
    """

    requests: Counter[str] = field(default_factory=Counter)
    sent_bytes: int = 0
    received_bytes: int = 0
    cpu_s: float = 0.0
    calls: int = 0

    def add(self, other: "Usage") -> None:
        """Add what somebody else used; calls stay as they are."""
        self.requests += other.requests
        self.sent_bytes += other.sent_bytes
        self.received_bytes += other.received_bytes
        self.cpu_s += other.cpu_s

    @property
    def request_count(self) -> int:
        """All requests."""
        return sum(self.requests.values())

    @property
    def moved_bytes(self) -> int:
        """Both ways."""
        return self.sent_bytes + self.received_bytes


class CountingStore:
    """An object store that notes what it is asked for; see :class:`icedb_log.store.object_store.ObjectStore`."""

    def __init__(self, store: MemoryObjectStore) -> None:
        self._store = store
        self.usage = Usage()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def get(self, key: str, **options: Any) -> Any:
        return self._received(self._store.get(key, **options))

    def get_range(self, key: str, **options: Any) -> Any:
        return self._received(self._store.get_range(key, **options))

    def head(self, key: str) -> Any:
        self.usage.requests["get"] += 1
        return self._store.head(key)

    def put(self, key: str, body: bytes) -> str:
        self.note_put(len(body))
        return self._store.put(key, body)

    def put_if_absent(self, key: str, body: bytes) -> str:
        self.note_put(len(body))
        return self._store.put_if_absent(key, body)

    def put_if_match(self, key: str, body: bytes, *, etag: str) -> str:
        self.note_put(len(body))
        return self._store.put_if_match(key, body, etag=etag)

    def list_page(self, prefix: str, **options: Any) -> Any:
        self.usage.requests["list"] += 1
        return self._store.list_page(prefix, **options)

    def list_folders(self, prefix: str) -> tuple[str, ...]:
        folders = self._store.list_folders(prefix)
        self.usage.requests["list"] += max(1, -(-len(folders) // KEYS_A_REQUEST))
        return folders

    def delete(self, keys: Sequence[str]) -> Any:
        self.usage.requests["delete"] += -(-len(keys) // KEYS_A_REQUEST)
        return self._store.delete(keys)

    def note_put(self, size_bytes: int) -> None:
        """Count an upload: one request, or one a part and two around them."""
        self.usage.requests["put"] += 1 if size_bytes < PART_BYTES else -(-size_bytes // PART_BYTES) + 2
        self.usage.sent_bytes += size_bytes

    def note_get(self, size_bytes: int) -> None:
        """Count a download."""
        self.usage.requests["get"] += 1
        self.usage.received_bytes += size_bytes

    def _received(self, stored: Any) -> Any:
        self.note_get(len(stored.body))
        return stored


@dataclass(slots=True)
class GrowingTable:
    """A table that is written, merged and vacuumed as services do it, one simulated second after the other.

    Attributes:
        store: Of all tables.
        clock: The simulated time.
        name: Of the table.
        batches_per_commit: Batches of ten rows that are staged between two commits.
        batches_per_object: Batches that a front end stages as one object: those that come within its linger time.
        interval_ms: Between two commits.
        upkeep_pace: How many times as seldom as services do it merges and vacuums come.
        used: By whom the store was used how much: ``stage``, ``flush``, ``merge``, ``vacuum``.
        staging_requests: What it takes to make batches safe before they are committed, and to read them again.
    """

    store: CountingStore
    clock: FakeClock
    name: str = "events"
    batches_per_commit: int = 100
    batches_per_object: int = 1
    interval_ms: int = SECOND_MS
    upkeep_pace: int = 1
    used: dict[str, Usage] = field(default_factory=dict)
    staging_requests: Counter[str] = field(default_factory=Counter)
    commit_count: int = 0
    appended_bytes: int = 0
    rewritten_bytes: int = 0
    _table: Table = field(init=False)
    _index: MergeIndex = field(init=False)
    _audit: AuditLog = field(init=False)
    _due_ms: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        place = TableStore(self.store, TablePaths(self.name, self.name))
        config = TableConfig.create(
            name=self.name, partition=(PartitionField.parse("d=day(ts)"),), sort=("event", "ts")
        )
        create_table(place, config)
        self._table = Table.open(place, clock=self.clock, owner="growth")
        self._index = MergeIndex(place.paths, self._table.config)
        self._audit = AuditLog(place, clock=self.clock, owner="growth")

    @property
    def event_count(self) -> int:
        """Rows that were committed."""
        return self.commit_count * self.batches_per_commit * ROWS_PER_BATCH

    def fill(self, file_count: int, *, log_file_count: int = 100) -> None:
        """Add live data files, large enough to be left alone, in so many log files."""
        for _ in range(log_file_count):
            markers = [self._marker(129 * MIB) for _ in range(file_count // log_file_count)]
            log = LogFile(self.clock.now_ms(), SCHEMA, tuple(markers), commit_id=self.clock.new_id(), inexact={})
            key = self._table.paths.log_key(time_ms=log.time_ms, commit_id=log.commit_id or "", is_merged=True)
            self.store.put_if_absent(key, encode_log_file(log))
            self.clock.advance(1)

    def step(self, *, with_upkeep: bool = True) -> None:
        """Let the time between two commits pass, with what is staged in it; commit; merge and vacuum if it is time."""
        self.clock.advance(self.interval_ms)
        self.stage()
        self.flush()
        if with_upkeep:
            self.keep_up()

    def stage(self) -> None:
        """Stage batches, each object by a request of its own."""
        place = TableStore(self.store, self._table.paths)
        with self._using("stage") as usage:
            for count in self._object_sizes():
                batches = [OfferedBatch(new_batch_id(self.clock), "ndjson", _BODY, _BODY_SHA256) for _ in range(count)]
                if count > 1:
                    stage_group(place, batches)
                else:
                    stage_batch(place, body=_BODY, staging_format="ndjson", batch_id=batches[0].batch_id)
                self.staging_requests["get"] += 1 if count == 1 else 2  # a group's index is read before its bodies
        self.staging_requests["put"] += usage.requests["put"]

    def _object_sizes(self) -> Iterator[int]:
        for begin in range(0, self.batches_per_commit, self.batches_per_object):
            yield min(self.batches_per_object, self.batches_per_commit - begin)

    def flush(self) -> None:
        """Commit what is staged."""
        with self._using("flush"):
            self._table = self._table.renewed()
            result = flush_table(self._table, self)
        if result.committed_key is None or result.batch_count != self.batches_per_commit:
            raise AssertionError(f"{result.batch_count} batches in a commit, not {self.batches_per_commit}")
        self.commit_count += 1

    def keep_up(self) -> None:
        """Merge and vacuum, if it is time."""
        if self._is_due("hot", MERGE_EVERY_MS):
            self.merge("hot")
        if self._is_due("cold", COLD_EVERY_MS):
            self.merge("cold")
        if self._is_due("vacuum", VACUUM_EVERY_MS):
            with self._using("vacuum"):
                self._table = self._table.renewed()
                vacuum_table(self._table, audit=self._audit)

    def merge(self, lane: Lane) -> Usage:
        """Let a merger look at the table, as a sweep does; return what it used."""
        with self._using("merge") as usage:
            self._table = self._table.renewed()
            merge_table(self._table, self, options=MergeOptions(lane), index=self._index)
        return usage

    def log_bytes(self) -> int:
        """Return the bytes of the log now."""
        return sum(info.size_bytes for info in self._log_files())

    def log_file_count(self) -> int:
        """Return the objects of the log now."""
        return len(self._log_files())

    def live_files(self) -> Sequence[FileMarker]:
        """Return the live data files."""
        return self._index.log.live

    def write_batches(self, job: FlushJob) -> FlushOutput:
        """Stand for the Spark job of a flush: get each staged object, put one data file."""
        size_bytes: Counter[str] = Counter()
        for batch in job.batches:
            size_bytes[batch.key] += batch.size_bytes
        for key, size in size_bytes.items():
            self.store.get_range(key, start=0, length=size)  # of a group: the bodies, without the index
        row_count = len(job.batches) * ROWS_PER_BATCH
        marker = self._written(row_count * ROW_BYTES, row_count)
        self.appended_bytes += marker.size_bytes
        return FlushOutput((marker,), SCHEMA, job.batches, (), (), row_count)

    def merge_groups(self, job: MergeJob) -> tuple[MergedGroup, ...]:
        """Stand for the Spark job of a merge: get each data file, put one."""
        merged = []
        for group in job.groups:
            for marker in group.inputs:
                self.store.note_get(marker.size_bytes)
            row_count = sum(marker.row_count or 0 for marker in group.inputs)
            output = self._written(group.size_bytes, row_count, partition=group.partition)
            self.rewritten_bytes += output.size_bytes
            merged.append(MergedGroup(group, (output,), row_count))
        return tuple(merged)

    def _written(self, size_bytes: int, row_count: int, *, partition: str | None = None) -> FileMarker:
        marker = self._marker(size_bytes, row_count=row_count, partition=partition)
        self.store.note_put(size_bytes)
        self.store._store.put(marker.path, b"")  # noqa: SLF001 - its bytes are counted, not kept
        return marker

    def _marker(self, size_bytes: int, *, row_count: int = 1000, partition: str | None = None) -> FileMarker:
        now_ms = self.clock.now_ms()
        if partition is None:
            partition = f"d={time.strftime('%Y-%m-%d', time.gmtime(now_ms / 1000))}"
        key = self._table.paths.data_key(partition=partition, file_id=self.clock.new_id())
        return FileMarker(key, size_bytes, now_ms, row_count=row_count, stats=STATS)

    def _log_files(self) -> Sequence[ObjectInfo]:
        return list_all(self.store._store, self._table.paths.log_prefix).objects  # noqa: SLF001 - nobody pays for it

    def _is_due(self, what: str, every_ms: int) -> bool:
        now_ms, pause_ms = self.clock.now_ms(), every_ms * self.upkeep_pace
        if now_ms < self._due_ms.setdefault(what, now_ms + pause_ms):
            return False
        self._due_ms[what] = now_ms + pause_ms
        return True

    @contextmanager
    def _using(self, who: str) -> Iterator[Usage]:
        with measuring(self.store) as usage:
            yield usage
        total = self.used.setdefault(who, Usage())
        total.add(usage)
        total.calls += 1


def open_store() -> tuple[CountingStore, FakeClock]:
    """Return an empty store, and the time."""
    clock = FakeClock(seed="growth")
    return CountingStore(MemoryObjectStore(clock.now_ms)), clock


def read_snapshot(store: CountingStore, clock: FakeClock) -> Callable[[str], int]:
    """Return what counts the live data files of a table as they are now, by a cache of tables, empty at first."""
    warehouse = Warehouse(store)
    cache = TableCache(warehouse, clock=clock, max_tables=10, wait_ms=60_000, on_refresh=lambda _: None)
    return lambda name: len(cache.table(name).read(max_staleness_ms=0).snapshot.live)


@contextmanager
def measuring(store: CountingStore, usage: Usage | None = None) -> Iterator[Usage]:
    """Add what happens in the block to ``usage``, or to a new one; a block within counts for itself alone."""
    usage = Usage() if usage is None else usage
    before, store.usage = store.usage, usage
    began_s = time.process_time()
    try:
        yield usage
    finally:
        usage.cpu_s += time.process_time() - began_s
        usage.calls += 1
        store.usage = before


_BODY: Final = b'{"ts":"2026-11-01T00:00:00Z","event":"page_view","user_id":"u1","amount":9.75}\n' * ROWS_PER_BATCH
_BODY_SHA256: Final = hash_content(_BODY, "ndjson")
