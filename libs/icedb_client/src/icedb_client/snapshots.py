"""What a table is at one time: its columns and its live data files, every way to read its rows, and leases.

A lease keeps the files while a slow reader is at them: it is taken, renewed, checked, released.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from icedb_log.clock import Clock, SystemClock
from icedb_log.errors import IceDBError, NotFound, Unavailable

from icedb_client.file_list import DataFile, FileList
from icedb_client.requests import Answerer, Changes, LeaseInfo, SnapshotRequest

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    from duckdb import DuckDBPyConnection
    from icedb_log.store.stores import S3Options

    from icedb_client.describe import TableDescription
    from icedb_client.duck import Rows

__all__ = ["DataFile", "Snapshot"]


def _duck() -> Any:
    """Return what reads rows: DuckDB and pyarrow are loaded by those who read."""
    return import_module("icedb_client.duck")


@dataclass(frozen=True)
class Snapshot:
    """The live data files of a table at one time. They stay readable for the table's data grace period.

    All readers give the same rows: those of the files, filtered by ``where``, with every column of the table and its
    type in ``schema``, also where some files lack the column or have a narrower type. They block; a read that may
    outlast the grace period holds the table by a lease while it lasts.

    Attributes:
        table: Name of the table.
        snapshot_id: Equal for equal live files and schema of the whole table, whatever the filters.
        schema: Column to SQL type (DuckDB's spelling), in a stable order. Files may lack columns: null there.
        files: Live data files that the filters left, ascending by path. They may hold rows that ``where`` excludes.
        total_file_count: Live data files before the filters.
        as_of_ms: The time asked for; ``None`` for the newest state.
        is_stable: Whether the same time must give the same files later.
        last_commit_ms: Time of the newest commit; ``None`` before the first one.
        horizon_ms: Time travel below this time is refused; ``None`` while the whole history is there.
        narrow_types: Widened columns, with the type that files from before have.
        staleness_ms: How old the knowledge behind it was when it was answered.
        where: Condition that each row meets; ``None``: all rows.
        s3: How an engine reaches the files; ``None`` for files of this machine.
        hold: The lease that keeps its files, where one was taken.
        answerer: Who answered; asked again for leases.
        changes: What came and went since the snapshot that was given; ``None``: nobody knows, or none was given.
    """

    table: str
    snapshot_id: str
    schema: Mapping[str, str]
    files: FileList
    total_file_count: int
    as_of_ms: int | None
    is_stable: bool
    last_commit_ms: int | None
    horizon_ms: int | None
    narrow_types: Mapping[str, str] = field(default_factory=dict)
    staleness_ms: int = field(default=0, compare=False)
    where: str | None = None
    s3: "S3Options | None" = field(default=None, repr=False, compare=False)
    hold: "ReadLease | None" = field(default=None, repr=False, compare=False)
    answerer: Answerer | None = field(default=None, repr=False, compare=False)
    changes: Changes | None = field(default=None, repr=False, compare=False)

    @property
    def row_count(self) -> int | None:
        """Rows of all files, before ``where``; ``None`` when some file does not say."""
        return self.files.row_count

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return self.files.size_bytes

    @property
    def lease(self) -> LeaseInfo | None:
        """The lease that keeps the files, where one was taken."""
        return self.hold.info if self.hold is not None else None

    @cached_property
    def partition_names(self) -> tuple[str, ...]:
        """Names of the table's partition fields."""
        if len(self.files) or self.answerer is None:
            return self.files.partition_names
        return tuple(field.name for field in self.answerer.table(self.table).partition_fields)

    def to_arrow(self, *, columns: Sequence[str] | None = None) -> "pa.Table":
        """Return all rows as an Arrow table. ``TIMESTAMP`` columns are timestamps in UTC.

        Args:
            columns: Which columns, in this order; partition fields may be among them. ``None``: the table's columns.

        Raises:
            InvalidRequest: No such column, a condition that DuckDB refuses, or pyarrow is missing.
            Unavailable: A data file could not be read, or a lease was lost.
        """
        return _duck().read_table(self, columns)

    def to_arrow_reader(
        self, *, columns: Sequence[str] | None = None, batch_rows: int = 100_000
    ) -> "pa.RecordBatchReader":
        """Return the rows as a stream of record batches, read while they are taken: memory stays bounded.

        Raises as :meth:`to_arrow`, also while batches are taken.

        Args:
            columns: As of :meth:`to_arrow`.
            batch_rows: Most rows of a batch.
        """
        return _duck().open_reader(self, columns, batch_rows=batch_rows)

    def to_batches(
        self, *, columns: Sequence[str] | None = None, batch_rows: int = 100_000
    ) -> "Iterator[pa.RecordBatch]":
        """Yield the batches of :meth:`to_arrow_reader`."""
        with self.to_arrow_reader(columns=columns, batch_rows=batch_rows) as reader:
            yield from reader

    def to_pandas(self, /, *, columns: Sequence[str] | None = None, **options: Any) -> "pd.DataFrame":
        """Return all rows as a pandas DataFrame.

        Types do not depend on the rows: ``BIGINT`` is ``Int64`` and ``BOOLEAN`` is ``boolean``, which have nulls;
        ``TIMESTAMP`` is ``datetime64[us, UTC]``.

        Raises as :meth:`to_arrow`; InvalidRequest also if pandas is missing.

        Args:
            columns: As of :meth:`to_arrow`.
            options: For :meth:`pyarrow.Table.to_pandas`, e.g. ``types_mapper``.
        """
        frame: pd.DataFrame = _duck().read_pandas(self, columns, options)
        return frame

    def to_polars(self, *, columns: Sequence[str] | None = None) -> "pl.DataFrame":
        """Return all rows as a Polars DataFrame. ``TIMESTAMP`` is ``Datetime("us", "UTC")``.

        Raises as :meth:`to_arrow`; InvalidRequest also if Polars is missing.

        Args:
            columns: As of :meth:`to_arrow`.
        """
        frame: pl.DataFrame = _duck().read_polars(self, columns)
        return frame

    def duckdb(self, con: "DuckDBPyConnection", *, view: str | None = None) -> str:
        """Make the snapshot a view of a DuckDB connection and return the view's name.

        The view has every column of the table with its type, then the partition fields (those that no column is
        called like) as text. Files are opened when the view is queried; a condition on a partition field leaves out
        files. Replaces a view of the same name. On S3 the connection gets a secret for the bucket.

        Whoever queries the view for longer than the table's data grace period takes the snapshot from
        :meth:`icedb_client.Client.reading`.

        Args:
            con: An open connection.
            view: Name of the view; the table's name by default.

        Raises:
            InvalidRequest: DuckDB refuses the snapshot's condition.
            Unavailable: DuckDB's httpfs extension cannot be loaded (S3 only).
        """
        return str(_duck().create_view(con, self, view=view or self.table))

    def sql(self, query: str) -> "Rows":
        """Run one reading statement over the snapshot, which it names as the table is named.

        It can read the snapshot's files and nothing else.

        Args:
            query: ``SELECT``, ``WITH``, ``FROM``, ``DESCRIBE``, ``SUMMARIZE`` or ``EXPLAIN``.

        Returns:
            The rows, computed when they are taken: ``.fetchall()``, ``.df()``, ``.pl()``, ``.to_arrow_table()``, …

        Raises:
            InvalidRequest: Not one reading statement, it names another table, or DuckDB refuses it.
            Unavailable: A data file could not be read, or a lease was lost.
        """
        rows: Rows = _duck().query_one(self, query)
        return rows

    def describe(self, *, files: int = 100, scan: bool | None = None) -> "TableDescription":
        """Return what is in each column: nulls, values, the least and the greatest, and how well each is known.

        What the log says is taken first: of a snapshot with ``bounds=True`` it says it of the columns that the table is
        partitioned or sorted by. The footers of data files say the rest. Rows are read of a small table alone (100,000
        rows, 16 MiB), to count distinct values.

        Args:
            files: Most data files that are opened, evenly spread; of more the figures are estimates.
            scan: Read the rows of these files instead, which also estimates the number of distinct values; false: read
                none, also of a small table.

        Raises:
            InvalidRequest: The snapshot has a condition, ``files`` is out of its range, pyarrow is missing, or the list
                of files came from a service without ``columnar=True``.
            Unavailable: A data file could not be read.
        """
        found: TableDescription = import_module("icedb_client.describe").describe_snapshot(self, files=files, scan=scan)
        return found

    def head(self, rows: int = 10) -> "Rows":
        """Return some of the newest rows, from at most eight data files.

        With ``bounds=True`` the files with the latest times are read, and rows come newest first; else some rows of the
        files that were made last. What is called newest is so by the first time column that the table is partitioned or
        sorted by.

        Args:
            rows: How many, 1 to 100,000.

        Raises as :meth:`describe`.
        """
        found: Rows = import_module("icedb_client.describe").plan_head(self, rows).read()
        return found

    def held(self) -> "AbstractContextManager[None]":
        """Hold the files while a reader of your own reads them, if that may outlast the grace period.

        Raises:
            Unavailable: At the end: the lease was lost meanwhile, and files may have been deleted under the reader.
        """
        return hold_while_reading(self)


def can_lead_to(known: Snapshot, request: SnapshotRequest) -> bool:
    """Whether what came and went since a snapshot makes the answer to a request: both are of all files of a table."""
    return known.table == request.table and len(known.files) == known.total_file_count and request.is_of_whole_table


def describe_changes(
    known: Snapshot, snapshot_id: str, schema: Mapping[str, str], *, added: FileList, removed: FileList
) -> Changes:
    """Return what leads from a snapshot to another."""
    columns = {name: sql_type for name, sql_type in schema.items() if known.schema.get(name) != sql_type}
    return Changes(known.table, known.snapshot_id, snapshot_id, added, removed, columns, is_stable=False)


DEFAULT_LEASE_MS: Final = 5 * 60 * 1000
RENEWALS_PER_LEASE: Final = 3
SLOW_BYTES_PER_S: Final = 8 * 1024 * 1024
"""A reader that is not slower than this needs no lease: one connection to an object store far away."""
SHORT_READ_MS: Final = 60_000
"""A read that is over sooner at that pace takes no lease, whatever the table's grace period."""


class ReadLease:
    """A lease of one read. Renews itself in a thread of its own once it is started. Thread-safe.

    Args:
        answerer: Where it was taken, and is renewed.
        info: The lease.
        ttl_ms: How long each renewal lasts.
        asked_ms: Monotonic time before it was asked for.
        clock: For its end.
    """

    def __init__(self, answerer: Answerer, info: LeaseInfo, *, ttl_ms: int, asked_ms: int, clock: Clock) -> None:
        self.info = info
        self._answerer = answerer
        self._ttl_ms = ttl_ms
        self._clock = clock
        self._ends_ms = asked_ms + ttl_ms
        self._lost: str | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew_until_end, name="icedb-read-lease", daemon=True)

    def start(self) -> None:
        """Begin to renew it."""
        self._thread.start()

    def check(self) -> None:
        """Raise Unavailable if the lease is lost: files of the snapshot may be gone."""
        if self._lost is None and self._clock.monotonic_ms() >= self._ends_ms:
            self._lost = "it could not be renewed in time"
        if self._lost is not None:
            raise Unavailable(
                f"table {self.info.table}: the lease {self.info.lease_id} that held the data files of this read was "
                f"lost ({self._lost}): some may be deleted by now. Take a new snapshot and read again"
            )

    def renew(self) -> None:
        """Renew it once. What cannot be renewed just now may be so later, as long as it lasts."""
        asked_ms = self._clock.monotonic_ms()
        try:
            info = self._answerer.renew_lease(self.info.table, self.info.lease_id, ttl_ms=self._ttl_ms)
        except NotFound as error:
            self._lost = str(error)
        except IceDBError:
            return  # check() tells when its time is over
        else:
            self.info, self._ends_ms = info, asked_ms + self._ttl_ms

    def close(self) -> None:
        """End it. May be called again; a lease that cannot be released ends by itself."""
        if self._ended.is_set():
            return
        self._ended.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()
        try:
            self._answerer.release_lease(self.info.table, self.info.lease_id)
        except IceDBError:
            return

    def _renew_until_end(self) -> None:
        pause_s = self._ttl_ms / RENEWALS_PER_LEASE / 1000
        while not self._ended.wait(pause_s) and self._lost is None:
            self.renew()


def take_lease(
    answerer: Answerer, table: str, *, at_ms: int | None, ttl_ms: int = DEFAULT_LEASE_MS, clock: Clock | None = None
) -> ReadLease:
    """Take a lease and keep it until it is closed.

    Raises:
        InvalidRequest: The time cannot be held, or lies below the horizon.
        NotFound: No such table.
        Unavailable: No answer.
    """
    clock = clock or SystemClock()
    asked_ms = clock.monotonic_ms()
    info = answerer.acquire_lease(table, ttl_ms=ttl_ms, at_ms=at_ms)
    lease = ReadLease(answerer, info, ttl_ms=ttl_ms, asked_ms=asked_ms, clock=clock)
    lease.start()
    return lease


@contextmanager
def hold_while_reading(snapshot: Snapshot) -> Iterator[None]:
    """Hold a snapshot's files while they are read, if that may take longer than they stay by themselves.

    Raises:
        Unavailable: A lease was lost meanwhile.
    """
    with take_hold(snapshot) as hold:
        if hold is not None:
            hold.check()
        yield
        if hold is not None:
            hold.check()


@contextmanager
def take_hold(snapshot: Snapshot) -> Iterator[ReadLease | None]:
    """Yield the lease of a read: the snapshot's own, one for the length of a long read, or none."""
    hold = snapshot.hold
    if hold is None and snapshot.answerer is not None and may_take_long(snapshot):
        # It may be too late to hold that time, or not allowed: the read has the grace period then, as any other.
        with suppress(IceDBError):
            hold = _take_new(snapshot.answerer, snapshot)
    try:
        yield hold
    finally:
        if hold is not None and hold is not snapshot.hold:
            hold.close()


def _take_new(answerer: Answerer, snapshot: Snapshot) -> ReadLease:
    """Take a lease at the time of a snapshot; from now on, if the table is still the same after that."""
    lease = take_lease(answerer, snapshot.table, at_ms=snapshot.as_of_ms)
    if snapshot.as_of_ms is not None:
        return lease
    try:
        # Of the answer only the id counts, which is that of the whole table whatever files are asked for.
        now = answerer.snapshot(SnapshotRequest(snapshot.table, where="FALSE", max_staleness_ms=0))
    except IceDBError:
        lease.close()
        raise
    if now.snapshot_id == snapshot.snapshot_id:
        return lease
    lease.close()
    # A commit came in between: the time of the one before is held, if nothing that was live then may be going.
    return take_lease(answerer, snapshot.table, at_ms=snapshot.last_commit_ms)


def may_take_long(snapshot: Snapshot) -> bool:
    """Whether a slow reader may need more than half of the time for which the files stay."""
    read_ms = snapshot.size_bytes * 1000 // SLOW_BYTES_PER_S
    if read_ms <= SHORT_READ_MS or snapshot.answerer is None:
        return False
    try:
        return 2 * read_ms > snapshot.answerer.table(snapshot.table).data_grace_ms
    except IceDBError:
        return True
