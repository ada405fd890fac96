"""The client: what a program does with IceDB.

Owns no rule of its own: it joins sending (I1), wake-ups (I4), snapshots and DuckDB. An enqueued batch is durable
when ``enqueue`` returns, whether or not Redis or any worker is there.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Self

from icedb_log.clock import Clock, SystemClock
from icedb_log.errors import IceDBError, InvalidRequest, TableNotFound
from icedb_log.formats import DataFormat
from icedb_log.names import INGEST_FLUSH
from icedb_log.table.stored_config import read_table_config
from icedb_log.table.table_config import TableConfig, table_not_found
from icedb_log.units import SECOND_MS
from icedb_log.warehouse import Warehouse

from icedb_client.arrow_bodies import open_arrow, split_arrow
from icedb_client.delivery import DEFAULT_RETRY_MS, Delivery, Wait
from icedb_client.files import DEFAULT_BATCH_BYTES, DEFAULT_BATCH_ROWS, hash_file, split_file, to_body
from icedb_client.producer import Producer, ProducerOptions, UnsentBatch
from icedb_client.read_leases import DEFAULT_LEASE_MS, take_lease
from icedb_client.requests import (
    Changes,
    Parameters,
    Partitions,
    SnapshotEvent,
    TableInfo,
    Time,
    make_request,
    to_ms,
)
from icedb_client.settings import ClientSettings, load_client_settings
from icedb_client.snapshots import Snapshot, SnapshotAnswerer
from icedb_client.staging import StagingGate
from icedb_client.transport import CommitReport, EnqueuedBatch, Transport
from icedb_client.wakeups import WakeupSender

if TYPE_CHECKING:
    from icedb_client.duck import QueryResult
    from icedb_client.grpc_reads import GrpcReads
    from icedb_client.http_transport import HttpTransport
    from icedb_client.store_reads import StoreReads

DEFAULT_ARROW_BATCH_ROWS: Final = 1_000_000


class Client:
    """A connection to a warehouse. Thread-safe; a context manager.

    What is not given is read from the environment (``ICEDB_ADDRESS``, ``ICEDB_STORE``, …), see
    :class:`icedb_client.ClientSettings`. Nothing is contacted before it is needed.

    Args:
        address: Front end that batches are sent to, ``https://host:port``; without it they are staged in the store.
        store: ``file:///abs/folder`` or ``s3://bucket/prefix``.
        snapshot_address: ``host:port`` of the snapshot service, or several with commas between; without it snapshots
            are read from the store.
        token: Bearer token for the front end and the snapshot service.
        redis_url: Redis that wakes the workers.
        settings: All settings at once; excludes the others.
        clock: Time and ids; another one only in tests.
        warehouse: An open warehouse instead of ``store``; only in tests.

    Raises:
        InvalidRequest: A setting is wrong.
    """

    def __init__(
        self,
        address: str | None = None,
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
            address=address, store=store, snapshot_address=snapshot_address, token=token, redis_url=redis_url
        )
        self.clock: Clock = clock or SystemClock()
        self._warehouse = warehouse
        self._grpc: GrpcReads | None = None
        self._from_store: StoreReads | None = None
        self._sender: WakeupSender | None = None
        self._gate: StagingGate | None = None
        self._http: HttpTransport | None = None
        self._lock = threading.RLock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close connections. May be called again; a closed client may be used again."""
        with self._lock:
            if self._grpc is not None:
                self._grpc.close()
            if self._sender is not None:
                self._sender.close()
            if self._http is not None:
                self._http.close()
            self._grpc = self._sender = None

    @property
    def warehouse(self) -> Warehouse:
        """The open warehouse. Raises InvalidRequest if no store is set."""
        with self._lock:
            if self._warehouse is None:
                self._warehouse = self.settings.store_settings.open()
            return self._warehouse

    @property
    def workers(self) -> WakeupSender:
        """Wakes workers and asks them to run tasks."""
        with self._lock:
            if self._sender is None:
                self._sender = WakeupSender(self.settings, clock=self.clock)
            return self._sender

    @property
    def transport(self) -> Transport:
        """What carries batches: HTTP to the front end, or staging. Raises InvalidRequest if no store is set either."""
        if self.settings.address is None:
            return self.gate
        with self._lock:
            if self._http is None:
                from icedb_client.http_transport import HttpTransport  # noqa: PLC0415 - only if it is used

                self._http = HttpTransport(self.settings, clock=self.clock)
            return self._http

    @property
    def gate(self) -> StagingGate:
        """What stages batches in the store. Raises InvalidRequest if no store is set."""
        with self._lock:
            if self._gate is None:
                self._gate = StagingGate(self.warehouse, clock=self.clock, wake=self._wake)
            return self._gate

    def _describe_unknown(self, error: TableNotFound) -> str:
        is_served = self.settings.store is None and self._warehouse is None
        try:
            known = self.tables() if is_served else self.warehouse.list_tables()
        except IceDBError:
            return str(error)
        return str(table_not_found(error.table, known, empty="" if known or is_served else str(self.settings.store)))

    def _require_table(self, table: str) -> None:
        with naming_tables(self):
            self.transport.require_table(table)

    def table_config(self, table: str) -> TableConfig:
        """Read a table's configuration. Raises InvalidRequest, NotFound, Unavailable."""
        with naming_tables(self):
            return read_table_config(self.warehouse.table(table))

    def enqueue(
        self,
        table: str,
        rows: Iterable[Mapping[str, Any]] | bytes | Path | Any,
        *,
        batch_id: str | None = None,
        key: str | None = None,
        data_format: DataFormat | None = None,
    ) -> EnqueuedBatch:
        """Send one batch: one request. The batch is durable when this returns (I1), and the ingest worker is woken.

        Idempotency: calling again with the same ``batch_id`` and the same rows is safe within the table's retry
        window, with the same ``key`` as long as the table's ``key_memory`` says (I7); the batch is committed once.

        Args:
            table: Name of the table.
            rows: One of: objects of column to value; a pyarrow Table, RecordBatch or RecordBatchReader, a Polars
                DataFrame, or whatever else offers ``__arrow_c_stream__``; a pandas DataFrame (its index is left out
                unless it has a name); bytes of NDJSON, a JSON array, CSV, Parquet or Arrow IPC (not parsed here:
                what is wrong with them shows in quarantine); a file of one of these, small enough for one batch.
            batch_id: A UUIDv7 chosen by the caller, who means to retry; a fresh one by default.
            key: Any other name of the batch, 1 to 255 printable characters, instead of an id.
            data_format: What bytes or a file hold; by default what they begin with shows, and a file's name. CSV in
                bytes has to be said.

        Raises:
            InvalidRequest: A bad table name, batch id or row, or no pyarrow for Arrow data; nothing was accepted.
            NotFound: No such table.
            Overloaded: The table takes no batches now; call again after its ``retry_after_ms``.
            Unavailable: The batch was not confirmed; call again with the same ``batch_id``.
        """
        if key is not None and batch_id is not None:
            raise InvalidRequest("a batch has an id or a key: give one of them")
        transport, body = self.transport, to_body(rows, data_format)
        with naming_tables(self):
            return transport.send(transport.begin(table, body, batch_id=batch_id, key=key))

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
        once: bool = False,
    ) -> Iterator[EnqueuedBatch]:
        """Accept a file of any size in many batches, reading as it goes.

        A batch that is not confirmed, or for which the table has no room, is sent again under its id. The call itself
        is idempotent only with ``once``; otherwise each makes new batches. After an error go on with ``first_row`` =
        last row accepted + 1, and with the ``batch_id`` of the error if it has one.

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
            once: Whether batches of a file with the same bytes, cut with the same bounds, are accepted once within a
                day (I7), whoever sends them: the others come with ``is_repeated``. Not for streams.

        Yields:
            Each batch once it is accepted.

        Raises:
            InvalidRequest: The file or a line of it is not readable; names the line. Or the same file was cut
                otherwise before, with ``once``.
            NotFound: No such table.
            Overloaded: The table had no room for a batch in time; it was not sent.
            Undelivered: The store did not confirm a batch in time; it may be there all the same.
            StoreRefused: The store takes nothing until somebody mends it: no permission, no space.
        """
        self._require_table(table)
        digest = hash_file(source) if once else ""
        bodies = split_file(
            source, batch_rows=batch_rows, batch_bytes=batch_bytes, first_row=first_row, data_format=data_format
        )
        for body in bodies:
            key = f"file {digest} from row {body.first_row}" if once else None
            delivery = Delivery(
                self.transport, table, body, retry_ms=retry_ms, on_wait=on_wait, batch_id=batch_id, key=key
            )
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
        self._require_table(table)
        schema, batches = open_arrow(data)
        bodies = split_arrow(
            schema, ((batch, 0) for batch in batches), batch_rows=batch_rows, batch_bytes=batch_bytes, first_row=1
        )
        for body in bodies:
            yield Delivery(self.transport, table, body, retry_ms=retry_ms).run()

    def producer(
        self,
        /,
        table: str,
        *,
        on_accepted: Callable[[EnqueuedBatch], None] | None = None,
        on_failed: Callable[[UnsentBatch], None] | None = None,
        **bounds: int,
    ) -> Producer:
        """Return a buffered sender for rows that come one by one. Use it in a ``with`` block.

        Args:
            table: Name of the table.
            on_accepted: Told of each accepted batch, by a thread of the producer.
            on_failed: Told of each batch that was given up, by a thread of the producer.
            bounds: Fields of :class:`ProducerOptions`, e.g. ``max_rows=10_000, max_age_ms=500``.

        Raises:
            InvalidRequest: A bound is unknown or out of its range, or a bad table name.
            NotFound: No such table.
            Unavailable: The store did not answer.
        """
        self._require_table(table)
        options = ProducerOptions.of(bounds)
        return Producer(self.transport, table, options=options, on_accepted=on_accepted, on_failed=on_failed)

    def wait_committed(self, table: str, batch_ids: Iterable[str], *, timeout_ms: int = 60 * SECOND_MS) -> CommitReport:
        """Wait until batches are committed or quarantined, at most ``timeout_ms``; 0 looks once.

        Ends at once where the table is halted: the report says why.

        Raises:
            NotFound: No such table.
            Unavailable: The store did not answer.
        """
        self._require_table(table)
        return self.transport.wait_committed(table, tuple(batch_ids), timeout_ms=timeout_ms)

    def snapshot(
        self,
        table: str,
        *,
        where: str | None = None,
        partitions: Partitions = None,
        as_of: Time | None = None,
        tag: str | None = None,
        min_commit: str | None = None,
        max_staleness_ms: int | None = None,
        presign_ms: int | None = None,
        columnar: bool = False,
        bounds: bool = False,
        since: Snapshot | None = None,
    ) -> Snapshot:
        """Return the live data files of a table, and every way to read its rows.

        Args:
            table: Name of the table.
            where: Condition on the table's columns, SQL in DuckDB's dialect: ``"event = 'signup' AND amount >= 10"``.
                Files that cannot hold such a row are left out, and every reader of the snapshot gives such rows alone.
            partitions: Which partitions: ``{"d": ["2026-01-30", "2026-01-31"]}``, or filters.
            as_of: Time travel: a datetime, ISO 8601 text or unix milliseconds (UTC if it names no zone). ``None``: the
                newest state.
            tag: Name of a tag: what it has tagged, however long ago. Excludes ``as_of`` and ``min_commit``.
            min_commit: Read your own writes: wait until the batch of this id is committed, and answer with it.
            max_staleness_ms: How old the service's knowledge may be; 0 sees every commit that landed before the call.
                ``None``: the service's default. Without a service the log is read now.
            presign_ms: Give each file a URL that reads it without credentials, for so long. Not for directories.
            columnar: Let the list of files come as record batches: ``snapshot.files.to_arrow()``. Needs pyarrow.
            bounds: Let these have the least and greatest values of columns, too.
            since: A snapshot of the table that this client has returned, of all its files: where the service still
                knows it, only what came and went since is sent, and stands in ``snapshot.changes``. The snapshot is
                whole in any case.

        Raises:
            InvalidRequest: The call is wrong, its time lies below the table's horizon, or the tag has ended.
            NotFound: No such table, or no such tag.
            HaltError: The table's log is damaged.
            Unavailable: The service or the store did not answer, or ``min_commit`` was not committed in time.
        """
        request = make_request(
            table,
            where=where,
            partitions=partitions,
            as_of=as_of,
            tag=tag,
            min_commit=min_commit,
            max_staleness_ms=max_staleness_ms,
            presign_ms=presign_ms,
            columnar=columnar,
            bounds=bounds,
            since=since,
        )
        with naming_tables(self):
            return self.answerer.snapshot(request)

    def tables(self, *, glob: str | None = None) -> tuple[str, ...]:
        """Return the names of the tables that this client may read, ascending.

        Args:
            glob: Only names that match: ``*`` any text, ``?`` any character, ``[a-z]`` and ``[!a-z]``.

        Raises:
            Unavailable: The service or the store did not answer.
        """
        return self.answerer.tables(glob)

    def table(self, table: str, *, max_staleness_ms: int | None = None) -> TableInfo:
        """Return what a table is: columns, partition fields, sort order, policies.

        Args:
            table: Name of the table.
            max_staleness_ms: As of :meth:`snapshot`, for the columns.

        Raises:
            NotFound: No such table.
            HaltError: The table's log is damaged.
            Unavailable: The service or the store did not answer.
        """
        with naming_tables(self):
            return self.answerer.table(table, max_staleness_ms)

    def changes(
        self, table: str, *, from_: Time, to: Time | None = None, max_staleness_ms: int | None = None
    ) -> Changes:
        """Return which data files came and went between two times.

        Args:
            table: Name of the table.
            from_: The earlier time, as ``as_of`` of :meth:`snapshot`; above the table's horizon.
            to: The later time; ``None``: the newest state.
            max_staleness_ms: As of :meth:`snapshot`.

        Raises:
            InvalidRequest: Not times, in the wrong order, or below the horizon.
            NotFound: No such table.
            HaltError: The table's log is damaged.
            Unavailable: The service or the store did not answer.
        """
        to_time = None if to is None else to_ms(to, what="to")
        from_ms = to_ms(from_, what="from_")
        with naming_tables(self):
            return self.answerer.changes(table, from_ms=from_ms, to_ms=to_time, max_staleness_ms=max_staleness_ms)

    def watch(self, tables: Sequence[str] = ()) -> Iterator[SnapshotEvent]:
        """Yield an event for each table at once, then one after each change of a table; goes on until it is closed.

        Changes that follow each other closely may come as one event: the newest counts. A server that stops is
        replaced by the next that answers, without the same state coming twice.

        Args:
            tables: Which; none: all that this client may read, also those that are created later.

        Raises:
            NotFound: No such table.
            Unavailable: The service or the store did not answer for longer than a call may take.
        """
        return self.answerer.watch(check_names(tables))

    @contextmanager
    def reading(
        self,
        table: str,
        *,
        where: str | None = None,
        partitions: Partitions = None,
        as_of: Time | None = None,
        min_commit: str | None = None,
        presign_ms: int | None = None,
        lease_ms: int = DEFAULT_LEASE_MS,
    ) -> Iterator[Snapshot]:
        """Give a snapshot whose files stay until the block ends, however long that takes.

        A lease is taken first, renewed in the background, and released at the end. If it is lost, because the service
        or the store did not answer for ``lease_ms``, readers of the snapshot fail, and so does the end of the block:
        nobody goes on with what may miss files.

        Args:
            table: As of :meth:`snapshot`, like all others.
            where: See there.
            partitions: See there.
            as_of: See there; younger than the table's log grace period.
            min_commit: See there.
            presign_ms: See there.
            lease_ms: How long the lease outlasts a reader that died.

        Raises:
            InvalidRequest: As of :meth:`snapshot`, or the time cannot be held.
            NotFound: No such table.
            HaltError: The table's log is damaged.
            Unavailable: No answer, or the lease was lost.
        """
        answerer = self.answerer
        request = make_request(
            table,
            where=where,
            partitions=partitions,
            as_of=as_of,
            min_commit=min_commit,
            max_staleness_ms=0,
            presign_ms=presign_ms,
        )
        with naming_tables(self):
            lease = take_lease(answerer, table, at_ms=request.as_of_ms, ttl_ms=lease_ms, clock=self.clock)
        try:
            # What was live at the lease's time or since is held: read after the lease, the newest state is.
            yield replace(answerer.snapshot(request), hold=lease)
            lease.check()
        finally:
            lease.close()

    def query(
        self,
        sql: str,
        *,
        parameters: Parameters | None = None,
        as_of: Time | None = None,
        tag: str | None = None,
        max_staleness_ms: int | None = None,
    ) -> "QueryResult":
        """Run one reading statement with DuckDB; each table it names is a view of that table's snapshot.

        The connection can open the data files of those snapshots and nothing else. A view has the columns of its table,
        then its partition fields as text: a condition on one of them leaves out files.

        Args:
            sql: SELECT, WITH, FROM, DESCRIBE, SUMMARIZE or EXPLAIN.
            parameters: Values of its ``?`` in order, or of its ``$name`` by name.
            as_of: Time travel for all tables.
            tag: Name of a tag that each of the tables has; as for :meth:`snapshot`.
            max_staleness_ms: As for :meth:`snapshot`.

        Raises:
            InvalidRequest: Not one reading statement, its parameters have other values, or DuckDB refuses it.
            NotFound: It names an unknown table.
            Unavailable: A server or a file could not be read.
        """
        from icedb_client.duck import find_snapshots, run  # noqa: PLC0415 - DuckDB is loaded by those who query

        answerer = self.answerer
        with naming_tables(self):
            snapshots = find_snapshots(
                sql,
                lambda table: answerer.snapshot(
                    make_request(table, as_of=as_of, tag=tag, max_staleness_ms=max_staleness_ms)
                ),
                parameters=parameters,
            )
        return run(sql, snapshots, parameters=parameters)

    @property
    def answerer(self) -> SnapshotAnswerer:
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
                try:
                    from icedb_client.grpc_reads import GrpcReads  # noqa: PLC0415 - gRPC only if it is used
                except ModuleNotFoundError as error:
                    raise InvalidRequest(
                        f"the snapshot service at {self.settings.snapshot_address} speaks gRPC, and {error.name} is "
                        "not installed here: install icedb-client[stack], or unset ICEDB_SNAPSHOT_ADDRESS to read the "
                        "store"
                    ) from error
                self._grpc = GrpcReads(self.settings, clock=self.clock)
            return self._grpc

    def _wake(self, table: str) -> bool:
        return self.workers.wake(INGEST_FLUSH, table)


@contextmanager
def naming_tables(client: Client) -> Iterator[None]:
    """Say of an unknown table which names are close, or that there is no table at all."""
    try:
        yield
    except TableNotFound as error:
        error.args = (client._describe_unknown(error),)  # noqa: SLF001 - of this module
        raise


def check_names(tables: Sequence[str]) -> Sequence[str]:
    """Return the names if they are several, not one text. Raises InvalidRequest."""
    if isinstance(tables, str):
        raise InvalidRequest(f"tables={tables[:80]!r}: give a list of names")
    return tuple(tables)
