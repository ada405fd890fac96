"""The client: what a program does with IceDB.

Owns no rule of its own: it joins staging (I1), wake-ups (I4), snapshots and DuckDB. An enqueued batch is durable
when ``enqueue`` returns, whether or not Redis or any worker is there.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Self

from icedb_log.clock import Clock, SystemClock, new_batch_id
from icedb_log.errors import InvalidRequest, NotFound
from icedb_log.object_store import list_all
from icedb_log.quarantine import QuarantinedBatch, list_quarantined
from icedb_log.staging import stage_batch
from icedb_log.table_config import TableConfig, read_table_config
from icedb_log.warehouse import Warehouse

from icedb_client.batches import (
    DEFAULT_BATCH_BYTES,
    DEFAULT_BATCH_ROWS,
    MAX_BATCH_BYTES,
    BatchBody,
    encode_rows,
    split_file,
    wrap_bytes,
)
from icedb_client.settings import SECOND_MS, ClientSettings, load_client_settings
from icedb_client.snapshots import Partitions, Snapshot, SnapshotSource, StoreSnapshots, to_filters

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

    from icedb_client.grpc_snapshots import GrpcSnapshots
    from icedb_client.wakeups import WakeupSender

FIRST_POLL_MS: Final = 50
LONGEST_POLL_MS: Final = 1000
CONFIG_MAX_AGE_MS: Final = 60 * SECOND_MS


@dataclass(frozen=True, slots=True)
class EnqueuedBatch:
    """An accepted batch: durable, to be committed or quarantined.

    Attributes:
        table: Name of the table.
        batch_id: Its id; enqueue it again with this id after a lost answer, and it is taken once.
        key: Key of the staged object.
        row_count: Rows; ``None`` for a compressed body that was passed through.
        raw_bytes: Size before compression.
        staged_bytes: Size as staged.
        is_woken: Whether the ingest worker was told; if not, its periodic sweep finds the batch.
        last_row: Number of its last row in the file it came from; ``None`` if not counted.
        position: Bytes of the file read so far, as stored.
    """

    table: str
    batch_id: str
    key: str
    row_count: int | None
    raw_bytes: int
    staged_bytes: int
    is_woken: bool
    last_row: int | None = None
    position: int = 0


@dataclass(frozen=True, slots=True)
class CommitReport:
    """What became of batches.

    Attributes:
        committed: Ids of batches whose rows every new snapshot has.
        quarantined: Batches that cannot be committed, with the reason.
        waiting: Ids of batches that are still staged.
    """

    committed: tuple[str, ...]
    quarantined: tuple[QuarantinedBatch, ...]
    waiting: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The answer of a query.

    Attributes:
        relation: DuckDB's lazy result: ``.fetchall()``, ``.df()``, ``.arrow()``, iterate with ``.fetchmany(n)``.
        snapshots: What each table was read from, by name.
        connection: Owns the result; close it when done.
    """

    relation: "DuckDBPyRelation"
    snapshots: Mapping[str, Snapshot]
    connection: "DuckDBPyConnection"


class Client:
    """A connection to a warehouse. Thread-safe; a context manager.

    What is not given is read from the environment (``ICEDB_STORE``, ``ICEDB_SNAPSHOT_ADDRESS``, …), see
    :class:`icedb_client.ClientSettings`. Nothing is contacted before it is needed.

    Args:
        store: ``file:///abs/folder`` or ``s3://bucket/prefix``.
        snapshot_address: ``host:port`` of the snapshot service; without it snapshots are read from the store.
        redis_url: Redis that wakes the workers.
        settings: All settings at once; excludes the others.
        clock: Time and ids; another one only in tests.
        warehouse: An open warehouse instead of ``store``; only in tests.

    Raises:
        InvalidRequest: A setting is wrong.
    """

    def __init__(
        self,
        *,
        store: str | None = None,
        snapshot_address: str | None = None,
        redis_url: str | None = None,
        settings: ClientSettings | None = None,
        clock: Clock | None = None,
        warehouse: Warehouse | None = None,
    ) -> None:
        self.settings = settings or load_client_settings(
            store=store, snapshot_address=snapshot_address, redis_url=redis_url
        )
        self._clock: Clock = clock or SystemClock()
        self._warehouse = warehouse
        self._grpc: GrpcSnapshots | None = None
        self._from_store: StoreSnapshots | None = None
        self._sender: WakeupSender | None = None
        self._known_tables: dict[str, int] = {}
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close connections. May be called again; a closed client may be used again."""
        with self._lock:
            if self._grpc is not None:
                self._grpc.close()
            if self._sender is not None:
                self._sender.close()
            self._grpc = self._sender = None

    @property
    def warehouse(self) -> Warehouse:
        """The open warehouse. Raises InvalidRequest if no store is set."""
        with self._lock:
            if self._warehouse is None:
                self._warehouse = self.settings.store_settings.open()
            return self._warehouse

    @property
    def workers(self) -> "WakeupSender":
        """Wakes workers and asks them to run tasks."""
        with self._lock:
            if self._sender is None:
                from icedb_client.wakeups import WakeupSender  # noqa: PLC0415 - redis takes a third of a second

                self._sender = WakeupSender(self.settings, clock=self._clock)
            return self._sender

    def table_config(self, table: str) -> TableConfig:
        """Read a table's configuration. Raises InvalidRequest, NotFound, Unavailable."""
        return read_table_config(self.warehouse.store, self.warehouse.table(table))

    def enqueue(
        self,
        table: str,
        rows: Iterable[Mapping[str, Any]] | bytes | Path,
        *,
        batch_id: str | None = None,
    ) -> EnqueuedBatch:
        """Accept one batch: one PUT, then the ingest worker is woken. The batch is durable when this returns (I1).

        Idempotency: calling again with the same ``batch_id`` and the same rows is safe within the table's retry
        window; the batch is committed once.

        Args:
            table: Name of the table.
            rows: Objects of column to value; or NDJSON bytes, plain, gzip or zstd (not parsed here: what is wrong
                with them shows in quarantine); or a file small enough for one batch.
            batch_id: A UUIDv7 chosen by the caller, who means to retry; a fresh one by default.

        Raises:
            InvalidRequest: A bad table name, batch id or row; nothing was accepted.
            NotFound: No such table.
            Unavailable: The store did not confirm; call again with the same ``batch_id``.
        """
        self._check_table(table)
        return self._stage(table, _to_body(rows), batch_id or new_batch_id(self._clock))

    def enqueue_file(
        self,
        table: str,
        source: Path | BinaryIO,
        *,
        batch_rows: int = DEFAULT_BATCH_ROWS,
        batch_bytes: int = DEFAULT_BATCH_BYTES,
        first_row: int = 1,
    ) -> Iterator[EnqueuedBatch]:
        """Accept a file of any size in many batches, reading as it goes.

        Not idempotent: each call makes new batches. After an error go on with ``first_row`` = last row accepted + 1.

        Args:
            table: Name of the table.
            source: NDJSON or a JSON array, plain, gzip or zstd; a file, or a binary stream.
            batch_rows: Most rows of a batch.
            batch_bytes: Most bytes of a batch before compression.
            first_row: Number of the row to begin with, from 1.

        Yields:
            Each batch once it is accepted.

        Raises:
            InvalidRequest: The file or a line of it is not readable; names the line.
            NotFound: No such table.
            Unavailable: The store did not confirm a batch.
        """
        self._check_table(table)
        for body in split_file(source, batch_rows=batch_rows, batch_bytes=batch_bytes, first_row=first_row):
            yield self._stage(table, body, new_batch_id(self._clock))

    def wait_committed(self, table: str, batch_ids: Iterable[str], *, timeout_ms: int = 60 * SECOND_MS) -> CommitReport:
        """Wait until batches are committed or quarantined, at most ``timeout_ms``; 0 looks once.

        Raises:
            NotFound: No such table.
            Unavailable: The store did not answer.
        """
        self._check_table(table)
        store, paths = self.warehouse.store, self.warehouse.table(table)
        asked = tuple(dict.fromkeys(batch_ids))
        deadline_ms = self._clock.monotonic_ms() + timeout_ms
        pause_ms = FIRST_POLL_MS
        while True:
            names = (info.key.rpartition("/")[2] for info in list_all(store, paths.staging_prefix).objects)
            staged = {name.partition(".")[0] for name in names}
            waiting = tuple(batch_id for batch_id in asked if batch_id in staged)
            left_ms = deadline_ms - self._clock.monotonic_ms()
            if not waiting or left_ms <= 0:
                break
            self._clock.sleep_ms(min(pause_ms, left_ms))
            pause_ms = min(LONGEST_POLL_MS, pause_ms * 2)
        # The reason is written before the staged object goes: what is neither staged nor in quarantine is committed.
        gone = set(asked) - set(waiting)
        quarantined = tuple(batch for batch in list_quarantined(store, paths) if batch.batch_id in gone)
        gone -= {batch.batch_id for batch in quarantined}
        return CommitReport(tuple(batch_id for batch_id in asked if batch_id in gone), quarantined, waiting)

    def snapshot(
        self,
        table: str,
        *,
        as_of_ms: int | None = None,
        partitions: Partitions = None,
        max_staleness_ms: int | None = None,
    ) -> Snapshot:
        """Return the live data files of a table.

        Args:
            table: Name of the table.
            as_of_ms: Time travel, unix ms; ``None`` for the newest state.
            partitions: Which partitions: ``{"d": ["2026-01-30", "2026-01-31"]}``, or filters.
            max_staleness_ms: How old the service's knowledge may be; 0 sees every commit that landed before the call.
                ``None``: the service's default. Without a service the log is read now.

        Raises:
            InvalidRequest: The call is wrong, or its time lies below the table's horizon.
            NotFound: No such table.
            HaltError: The table's log is damaged.
            Unavailable: The service or the store did not answer.
        """
        return self._snapshots().get(
            table, as_of_ms=as_of_ms, filters=to_filters(partitions), max_staleness_ms=max_staleness_ms
        )

    def query(self, sql: str, *, as_of_ms: int | None = None, max_staleness_ms: int | None = None) -> QueryResult:
        """Run one reading statement with DuckDB; each table it names is a view of that table's snapshot.

        The connection can open the data files of those snapshots and nothing else.

        Args:
            sql: SELECT, WITH, FROM, DESCRIBE, SUMMARIZE or EXPLAIN.
            as_of_ms: Time travel for all tables.
            max_staleness_ms: As for :meth:`snapshot`.

        Raises:
            InvalidRequest: Not one reading statement, or DuckDB refuses it.
            NotFound: It names an unknown table.
            Unavailable: A server or a file could not be read.
        """
        from icedb_client import duck  # noqa: PLC0415 - DuckDB is loaded by those who query

        snapshots = duck.find_snapshots(
            sql, lambda table: self.snapshot(table, as_of_ms=as_of_ms, max_staleness_ms=max_staleness_ms)
        )
        con = duck.open_duckdb()
        try:
            for snapshot in snapshots.values():
                snapshot.to_duckdb(con)
            duck.lock(con, tuple(snapshots.values()))
            return QueryResult(duck.run(con, sql), snapshots, con)
        except BaseException:
            con.close()
            raise

    def _snapshots(self) -> SnapshotSource:
        address = self.settings.snapshot_address
        with self._lock:
            if address is not None:
                if self._grpc is None:
                    from icedb_client.grpc_snapshots import GrpcSnapshots  # noqa: PLC0415 - gRPC only if it is used

                    self._grpc = GrpcSnapshots(
                        address, timeout_ms=self.settings.snapshot_timeout_ms, s3=self.settings.s3
                    )
                return self._grpc
            if self._from_store is None:
                self._from_store = StoreSnapshots(self.warehouse, clock=self._clock, s3=self.settings.s3)
            return self._from_store

    def _stage(self, table: str, body: BatchBody, batch_id: str) -> EnqueuedBatch:
        key = stage_batch(
            self.warehouse.store,
            self.warehouse.table(table),
            body=body.body,
            staging_format=body.format,
            batch_id=batch_id,
        )
        return EnqueuedBatch(
            table=table,
            batch_id=batch_id,
            key=key,
            row_count=body.row_count,
            raw_bytes=body.raw_bytes,
            staged_bytes=len(body.body),
            is_woken=self._wake(table),
            last_row=None if body.row_count is None else body.first_row + body.row_count - 1,
            position=body.position,
        )

    def _wake(self, table: str) -> bool:
        return self.workers.wake("icedb.ingest.flush", table)

    def _check_table(self, table: str) -> None:
        """Staging does not look at the table: a batch for an unknown one would wait for ever."""
        now_ms = self._clock.monotonic_ms()
        known_ms = self._known_tables.get(table)
        if known_ms is None or now_ms - known_ms > CONFIG_MAX_AGE_MS:
            self._known_tables.pop(table, None)
            self.table_config(table)
            self._known_tables[table] = now_ms


def _to_body(rows: Iterable[Mapping[str, Any]] | bytes | Path) -> BatchBody:
    if isinstance(rows, bytes | bytearray | memoryview):
        return wrap_bytes(bytes(rows))
    if isinstance(rows, Path):
        bodies: Sequence[BatchBody] = tuple(_first_two(rows))
        if len(bodies) != 1:
            what = "is empty" if not bodies else f"is larger than {MAX_BATCH_BYTES} bytes: use enqueue_file"
            raise InvalidRequest(f"{rows}: {what}")
        return bodies[0]
    if isinstance(rows, str | Mapping):
        raise InvalidRequest("rows are an iterable of objects, bytes of NDJSON, or a Path; see Client.enqueue")
    return encode_rows(rows)


def _first_two(path: Path) -> Iterator[BatchBody]:
    for number, body in enumerate(split_file(path, batch_rows=1 << 62, batch_bytes=MAX_BATCH_BYTES), start=1):
        yield body
        if number > 1:
            return


def describe_unknown_table(client: Client, table: str, error: NotFound) -> str:
    """Return what to tell a person who named an unknown table, with names that are close."""
    from difflib import get_close_matches  # noqa: PLC0415 - only on this path

    names = client.warehouse.list_tables()
    close = get_close_matches(table, names, n=3, cutoff=0.5)
    if close:
        return f"table {table!r} does not exist; did you mean {' or '.join(close)}?"
    return str(error)
