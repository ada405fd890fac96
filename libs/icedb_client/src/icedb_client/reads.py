"""What a client reads: one set of methods, whoever answers and whether the caller waits or awaits.

Each method checks what the caller wrote, makes one request of it and returns what ``_ask`` gives for it. That is an
answer in :class:`icedb_client.Client` and something to be awaited in :class:`icedb_client.AsyncClient`, which has no
code of its own for any of them. A read that may outlast the grace period holds the table by a lease.
"""

import threading
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from icedb_log.clock import Clock, SystemClock
from icedb_log.errors import IceDBError, InvalidRequest, NotFound, Unavailable

from icedb_client.requests import (
    AcquireLease,
    Answerer,
    AnswerT,
    Changes,
    ChangesRequest,
    LeaseInfo,
    Partitions,
    ReleaseLease,
    RenewLease,
    Request,
    SnapshotEvent,
    TableInfo,
    TableRequest,
    TablesRequest,
    Time,
    to_filters,
    to_ms,
)
from icedb_client.snapshots import Snapshot, SnapshotRequest

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from icedb_client.duck import Rows

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
            info = self._answerer.ask(RenewLease(self.info.table, self.info.lease_id, self._ttl_ms))
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
            self._answerer.ask(ReleaseLease(self.info.table, self.info.lease_id))
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
    lease = ReadLease(
        answerer,
        answerer.ask(AcquireLease(table, ttl_ms, at_ms)),
        ttl_ms=ttl_ms,
        asked_ms=asked_ms,
        clock=clock,
    )
    lease.start()
    return lease


@contextmanager
def hold_while_reading(snapshot: Snapshot) -> Iterator[None]:
    """Hold a snapshot's files while they are read, if that may take longer than they stay by themselves.

    Raises:
        Unavailable: A lease was lost meanwhile.
    """
    hold = take_hold(snapshot)
    try:
        if hold is not None:
            hold.check()
        yield
        if hold is not None:
            hold.check()
    finally:
        release_hold(snapshot, hold)


def take_hold(snapshot: Snapshot) -> ReadLease | None:
    """Return the lease of a read: the snapshot's own, a new one for a long read, or none."""
    if snapshot.hold is not None or snapshot.answerer is None or not may_take_long(snapshot):
        return snapshot.hold
    try:
        return _hold_newest(snapshot) if snapshot.as_of_ms is None else _hold_at(snapshot, snapshot.as_of_ms)
    except IceDBError:
        return None  # it is too late to hold that time, or not allowed: the read has the grace period, as any other


def _hold_newest(snapshot: Snapshot) -> ReadLease:
    """Take a lease from now on: it holds the snapshot's files if the table is still the same after that."""
    lease = _hold_at(snapshot, None)
    try:
        if _is_still_newest(snapshot):
            return lease
    except IceDBError:
        lease.close()
        raise
    lease.close()
    # A commit came in between: the time of the one before is held, if nothing that was live then may be going.
    return _hold_at(snapshot, snapshot.last_commit_ms)


def _hold_at(snapshot: Snapshot, at_ms: int | None) -> ReadLease:
    assert snapshot.answerer is not None  # noqa: S101 - whoever calls has looked
    return take_lease(snapshot.answerer, snapshot.table, at_ms=at_ms)


def _is_still_newest(snapshot: Snapshot) -> bool:

    assert snapshot.answerer is not None  # noqa: S101 - as above
    # Of the answer only the id counts, which is that of the whole table whatever files are asked for.
    now = snapshot.answerer.ask(SnapshotRequest(snapshot.table, where="FALSE", max_staleness_ms=0))
    return now.snapshot_id == snapshot.snapshot_id


def release_hold(snapshot: Snapshot, hold: ReadLease | None) -> None:
    """End a lease that :func:`take_hold` took."""
    if hold is not None and hold is not snapshot.hold:
        hold.close()


def may_take_long(snapshot: Snapshot) -> bool:
    """Whether a slow reader may need more than half of the time for which the files stay."""
    read_ms = snapshot.size_bytes * 1000 // SLOW_BYTES_PER_S
    if read_ms <= SHORT_READ_MS or snapshot.answerer is None:
        return False
    try:
        return 2 * read_ms > snapshot.answerer.ask(TableRequest(snapshot.table)).data_grace_ms
    except IceDBError:
        return True


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The answer of a query.

    Attributes:
        relation: DuckDB's lazy result: ``.fetchall()``, ``.df()``, ``.pl()``, ``.arrow()``, iterate with
            ``.fetchmany(n)``.
        snapshots: What each table was read from, by name.
        connection: Owns the result; close it when done, or the relation.
    """

    relation: "Rows"
    snapshots: Mapping[str, Snapshot]
    connection: "DuckDBPyConnection"


class Reads:
    """The reading methods of a client."""

    clock: Clock

    @abstractmethod
    def _ask(self, request: Request[AnswerT]) -> AnswerT:
        """Return the answer of whoever answers this client."""

    @property
    @abstractmethod
    def answerer(self) -> Answerer:
        """Return who answers this client, for callers that wait."""

    def snapshot(
        self,
        table: str,
        *,
        where: str | None = None,
        partitions: Partitions = None,
        as_of: Time | None = None,
        pin: str | None = None,
        min_commit: str | None = None,
        max_staleness_ms: int | None = None,
        presign_ms: int | None = None,
    ) -> Snapshot:
        """Return the live data files of a table, and every way to read its rows.

        Args:
            table: Name of the table.
            where: Condition on the table's columns, SQL in DuckDB's dialect: ``"event = 'signup' AND amount >= 10"``.
                Files that cannot hold such a row are left out, and every reader of the snapshot gives such rows alone.
            partitions: Which partitions: ``{"d": ["2026-01-30", "2026-01-31"]}``, or filters.
            as_of: Time travel: a datetime, ISO 8601 text or unix milliseconds (UTC if it names no zone). ``None``: the
                newest state.
            pin: Name of a pin: what it has pinned, however long ago. Excludes ``as_of`` and ``min_commit``.
            min_commit: Read your own writes: wait until the batch of this id is committed, and answer with it.
            max_staleness_ms: How old the service's knowledge may be; 0 sees every commit that landed before the call.
                ``None``: the service's default. Without a service the log is read now.
            presign_ms: Give each file a URL that reads it without credentials, for so long. Not for directories.

        Raises:
            InvalidRequest: The call is wrong, its time lies below the table's horizon, or the pin has ended.
            NotFound: No such table, or no such pin.
            HaltError: The table's log is damaged.
            Unavailable: The service or the store did not answer, or ``min_commit`` was not committed in time.
        """
        request = make_request(
            table,
            where=where,
            partitions=partitions,
            as_of=as_of,
            pin=pin,
            min_commit=min_commit,
            max_staleness_ms=max_staleness_ms,
            presign_ms=presign_ms,
        )
        return self._ask(request)

    def tables(self, *, glob: str | None = None) -> tuple[str, ...]:
        """Return the names of the tables that this client may read, ascending.

        Args:
            glob: Only names that match: ``*`` any text, ``?`` any character, ``[a-z]`` and ``[!a-z]``.

        Raises:
            Unavailable: The service or the store did not answer.
        """
        return self._ask(TablesRequest(glob))

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
        return self._ask(TableRequest(table, max_staleness_ms))

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
        return self._ask(ChangesRequest(table, to_ms(from_, what="from_"), to_time, max_staleness_ms))

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
        lease = take_lease(answerer, table, at_ms=request.as_of_ms, ttl_ms=lease_ms, clock=self.clock)
        try:
            # What was live at the lease's time or since is held: read after the lease, the newest state is.
            snapshot = replace(answerer.ask(request), hold=lease)
            yield snapshot
            lease.check()
        finally:
            lease.close()

    def query(
        self,
        sql: str,
        *,
        as_of: Time | None = None,
        pin: str | None = None,
        max_staleness_ms: int | None = None,
    ) -> QueryResult:
        """Run one reading statement with DuckDB; each table it names is a view of that table's snapshot.

        The connection can open the data files of those snapshots and nothing else. A view has the columns of its table,
        then its partition fields as text: a condition on one of them leaves out files.

        Args:
            sql: SELECT, WITH, FROM, DESCRIBE, SUMMARIZE or EXPLAIN.
            as_of: Time travel for all tables.
            pin: Name of a pin that each of the tables has; as for :meth:`snapshot`.
            max_staleness_ms: As for :meth:`snapshot`.

        Raises:
            InvalidRequest: Not one reading statement, or DuckDB refuses it.
            NotFound: It names an unknown table.
            Unavailable: A server or a file could not be read.
        """
        from icedb_client.duck_query import find_snapshots, run  # noqa: PLC0415 - DuckDB is loaded by those who query

        answerer = self.answerer
        snapshots = find_snapshots(
            sql,
            lambda table: answerer.ask(make_request(table, as_of=as_of, pin=pin, max_staleness_ms=max_staleness_ms)),
        )
        rows = run(sql, snapshots)
        return QueryResult(rows, snapshots, rows.connection)


def make_request(
    table: str,
    *,
    where: str | None = None,
    partitions: Partitions = None,
    as_of: Time | None = None,
    pin: str | None = None,
    min_commit: str | None = None,
    max_staleness_ms: int | None = None,
    presign_ms: int | None = None,
) -> SnapshotRequest:
    """Check what a caller wrote, as far as no table has to be known for it. Raises InvalidRequest."""
    if pin is not None and as_of is not None:
        raise InvalidRequest("a pin has its own time: give either a pin or a time")
    if min_commit is not None and pin is not None:
        raise InvalidRequest("a pin never changes: give either a pin or min_commit")
    if where is not None:
        from icedb_client.duck import check_condition  # noqa: PLC0415 - DuckDB is loaded by those who need it

        check_condition(where)
    return SnapshotRequest(
        table,
        as_of_ms=None if as_of is None else to_ms(as_of, what="as_of"),
        pin=pin,
        filters=to_filters(partitions),
        where=where,
        max_staleness_ms=max_staleness_ms,
        min_commit=min_commit,
        presign_ms=presign_ms,
    )


def check_names(tables: Sequence[str]) -> Sequence[str]:
    """Return the names if they are several, not one text. Raises InvalidRequest."""
    if isinstance(tables, str):
        raise InvalidRequest(f"tables={tables[:80]!r}: give a list of names")
    return tuple(tables)
