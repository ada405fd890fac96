"""The client: what a program does with IceDB.

Owns no rule of its own: it joins staging (I1), wake-ups (I4), snapshots and DuckDB. An enqueued batch is durable
when ``enqueue`` returns, whether or not Redis or any worker is there.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Self

from icedb_log.clock import Clock, SystemClock, new_batch_id
from icedb_log.ingest.formats import DataFormat
from icedb_log.names import INGEST_FLUSH
from icedb_log.table.stored_config import read_table_config
from icedb_log.table.table_config import TableConfig
from icedb_log.units import SECOND_MS
from icedb_log.warehouse import Warehouse

from icedb_client.arrow_bodies import open_arrow, split_arrow
from icedb_client.delivery import (
    DEFAULT_RETRY_MS,
    CommitReport,
    Delivery,
    EnqueuedBatch,
    StagingGate,
    Wait,
    wait_committed,
)
from icedb_client.files import DEFAULT_BATCH_BYTES, DEFAULT_BATCH_ROWS, split_file, to_body
from icedb_client.producer import Producer, ProducerOptions, UnsentBatch
from icedb_client.reads import QueryResult, Reads
from icedb_client.requests import Answerer, AnswerT, Request
from icedb_client.settings import ClientSettings, load_client_settings

if TYPE_CHECKING:
    from icedb_client.grpc_snapshots import GrpcSnapshots
    from icedb_client.store_reads import StoreReads
    from icedb_client.wakeups import WakeupSender

DEFAULT_ARROW_BATCH_ROWS: Final = 1_000_000


__all__ = ["Client", "QueryResult"]


class Client(Reads):
    """A connection to a warehouse. Thread-safe; a context manager.

    What is not given is read from the environment (``ICEDB_STORE``, ``ICEDB_SNAPSHOT_ADDRESS``, …), see
    :class:`icedb_client.ClientSettings`. Nothing is contacted before it is needed.

    Args:
        store: ``file:///abs/folder`` or ``s3://bucket/prefix``.
        snapshot_address: ``host:port`` of the snapshot service, or several with commas between; without it snapshots
            are read from the store.
        token: Bearer token for the snapshot service.
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
        token: str | None = None,
        redis_url: str | None = None,
        settings: ClientSettings | None = None,
        clock: Clock | None = None,
        warehouse: Warehouse | None = None,
    ) -> None:
        self.settings = settings or load_client_settings(
            store=store, snapshot_address=snapshot_address, token=token, redis_url=redis_url
        )
        self.clock: Clock = clock or SystemClock()
        self._warehouse = warehouse
        self._grpc: GrpcSnapshots | None = None
        self._from_store: StoreReads | None = None
        self._sender: WakeupSender | None = None
        self._gate: StagingGate | None = None
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

                self._sender = WakeupSender(self.settings, clock=self.clock)
            return self._sender

    @property
    def gate(self) -> StagingGate:
        """Where every batch goes through. Raises InvalidRequest if no store is set."""
        with self._lock:
            if self._gate is None:
                self._gate = StagingGate(self.warehouse, clock=self.clock, wake=self._wake)
            return self._gate

    def table_config(self, table: str) -> TableConfig:
        """Read a table's configuration. Raises InvalidRequest, NotFound, Unavailable."""
        return read_table_config(self.warehouse.table(table))

    def enqueue(
        self,
        table: str,
        rows: Iterable[Mapping[str, Any]] | bytes | Path | Any,
        *,
        batch_id: str | None = None,
        data_format: DataFormat | None = None,
    ) -> EnqueuedBatch:
        """Accept one batch: one PUT, then the ingest worker is woken. The batch is durable when this returns (I1).

        Idempotency: calling again with the same ``batch_id`` and the same rows is safe within the table's retry
        window; the batch is committed once.

        Args:
            table: Name of the table.
            rows: One of: objects of column to value; a pyarrow Table, RecordBatch or RecordBatchReader, a Polars
                DataFrame, or whatever else offers ``__arrow_c_stream__``; a pandas DataFrame (its index is left out
                unless it has a name); bytes of NDJSON, a JSON array, CSV, Parquet or Arrow IPC (not parsed here:
                what is wrong with them shows in quarantine); a file of one of these, small enough for one batch.
            batch_id: A UUIDv7 chosen by the caller, who means to retry; a fresh one by default.
            data_format: What bytes or a file hold; by default what they begin with shows, and a file's name. CSV in
                bytes has to be said.

        Raises:
            InvalidRequest: A bad table name, batch id or row, or no pyarrow for Arrow data; nothing was accepted.
            NotFound: No such table.
            Overloaded: The table takes no batches now; call again after its ``retry_after_ms``.
            Unavailable: The store did not confirm; call again with the same ``batch_id``.
        """
        self.gate.check(table)
        return self.gate.stage(table, to_body(rows, data_format), batch_id or new_batch_id(self.gate.clock))

    def enqueue_file(
        self,
        table: str,
        source: Path | BinaryIO,
        *,
        batch_rows: int = DEFAULT_BATCH_ROWS,
        batch_bytes: int = DEFAULT_BATCH_BYTES,
        first_row: int = 1,
        batch_id: str | None = None,
        data_format: DataFormat | None = None,
        retry_ms: int = DEFAULT_RETRY_MS,
        on_wait: Callable[[Wait], None] | None = None,
    ) -> Iterator[EnqueuedBatch]:
        """Accept a file of any size in many batches, reading as it goes.

        A batch that is not confirmed, or for which the table has no room, is sent again under its id. The call itself
        is not idempotent: each makes new batches. After an error go on with ``first_row`` = last row accepted + 1, and
        with the ``batch_id`` of the error if it has one.

        Args:
            table: Name of the table.
            source: NDJSON, a JSON array or CSV, plain, gzip or zstd; Parquet or Arrow IPC; a file or a binary stream.
            batch_rows: Most rows of a batch. A Parquet or Arrow file of at most ``batch_bytes`` is one batch as it is;
                larger ones are cut, which needs pyarrow.
            batch_bytes: Most bytes of a batch before compression.
            first_row: Number of the row to begin with, from 1.
            batch_id: Id of the first batch: that of :class:`Undelivered`, to go on after it. Others get fresh ones.
            data_format: What it is; by default what its content and its name show.
            retry_ms: How long one batch is tried; 0 tries once.
            on_wait: Told before each pause.

        Yields:
            Each batch once it is accepted.

        Raises:
            InvalidRequest: The file or a line of it is not readable; names the line.
            NotFound: No such table.
            Overloaded: The table had no room for a batch in time; it was not sent.
            Undelivered: The store did not confirm a batch in time; it may be there all the same.
        """
        self.gate.config(table)
        bodies = split_file(
            source, batch_rows=batch_rows, batch_bytes=batch_bytes, first_row=first_row, data_format=data_format
        )
        for body in bodies:
            delivery = Delivery(self.gate, table, body, retry_ms=retry_ms, on_wait=on_wait, batch_id=batch_id)
            yield delivery.run()
            batch_id = None

    def enqueue_arrow(
        self,
        table: str,
        data: Any,
        *,
        batch_rows: int = DEFAULT_ARROW_BATCH_ROWS,
        batch_bytes: int = DEFAULT_BATCH_BYTES,
        retry_ms: int = DEFAULT_RETRY_MS,
    ) -> Iterator[EnqueuedBatch]:
        """Accept Arrow data or a DataFrame of any size in many batches, each as :meth:`enqueue` takes it.

        Args:
            table: Name of the table.
            data: As for :meth:`enqueue`; a reader is read as it comes.
            batch_rows: Most rows of a batch.
            batch_bytes: Most bytes of a batch, as its columns lie in memory.
            retry_ms: How long one batch is tried; 0 tries once.

        Yields:
            Each batch once it is accepted.

        Raises:
            InvalidRequest: pyarrow is missing, or the data are no table.
            NotFound: No such table.
            Overloaded: The table had no room for a batch in time; it was not sent.
            Undelivered: The store did not confirm a batch in time; it may be there all the same.
        """
        self.gate.config(table)
        schema, batches = open_arrow(data)
        bodies = split_arrow(
            schema, ((batch, 0) for batch in batches), batch_rows=batch_rows, batch_bytes=batch_bytes, first_row=1
        )
        for body in bodies:
            yield Delivery(self.gate, table, body, retry_ms=retry_ms).run()

    def producer(
        self,
        /,
        table: str,
        *,
        options: ProducerOptions | None = None,
        on_accepted: Callable[[EnqueuedBatch], None] | None = None,
        on_failed: Callable[[UnsentBatch], None] | None = None,
        **bounds: int,
    ) -> Producer:
        """Return a buffered sender for rows that come one by one. Use it in a ``with`` block.

        Args:
            table: Name of the table.
            options: Its bounds, all at once.
            on_accepted: Told of each accepted batch, by a thread of the producer.
            on_failed: Told of each batch that was given up, by a thread of the producer.
            bounds: Fields of :class:`ProducerOptions`, e.g. ``max_rows=10_000, max_age_ms=500``.

        Raises:
            InvalidRequest: A bound is unknown or out of its range, or a bad table name.
            NotFound: No such table.
            Unavailable: The store did not answer.
        """
        self.gate.config(table)
        chosen = options if options is not None else ProducerOptions.of(bounds)
        return Producer(self.gate, table, options=chosen, on_accepted=on_accepted, on_failed=on_failed)

    def wait_committed(self, table: str, batch_ids: Iterable[str], *, timeout_ms: int = 60 * SECOND_MS) -> CommitReport:
        """Wait until batches are committed or quarantined, at most ``timeout_ms``; 0 looks once.

        Ends at once where the table is halted: the report says why.

        Raises:
            NotFound: No such table.
            Unavailable: The store did not answer.
        """
        self.gate.config(table)
        return wait_committed(self.warehouse.table(table), batch_ids, clock=self.clock, timeout_ms=timeout_ms)

    def _ask(self, request: Request[AnswerT]) -> AnswerT:
        return self.answerer.ask(request)

    @property
    def answerer(self) -> Answerer:
        """Who answers readers: the snapshot service, or the store."""
        with self._lock:
            if self.settings.snapshot_address is None:
                if self._from_store is None:
                    from icedb_client.store_reads import StoreReads  # noqa: PLC0415 - its SQL parser takes a while

                    self._from_store = StoreReads(
                        self.warehouse,
                        clock=self.clock,
                        timeout_ms=self.settings.snapshot_timeout_ms,
                        s3=self.settings.s3,
                    )
                return self._from_store
            if self._grpc is None:
                from icedb_client.grpc_snapshots import GrpcSnapshots  # noqa: PLC0415 - gRPC only if it is used

                self._grpc = GrpcSnapshots(self.settings, clock=self.clock)
            return self._grpc

    def _wake(self, table: str) -> bool:
        return self.workers.wake(INGEST_FLUSH, table)
