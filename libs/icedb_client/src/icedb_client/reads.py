"""What a client reads: one set of methods, whoever answers and whether the caller waits or awaits.

Each method checks what the caller wrote, makes one request of it and returns what ``_ask`` gives for it. That is an
answer in :class:`icedb_client.Client` and something to be awaited in :class:`icedb_client.AsyncClient`, which has no
code of its own for any of them.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from icedb_log.clock import Clock
from icedb_log.errors import InvalidRequest

from icedb_client.partitions import Partitions, to_filters
from icedb_client.read_lease import DEFAULT_LEASE_MS, take_lease
from icedb_client.read_requests import (
    Answerer,
    AnswerT,
    Changes,
    ChangesRequest,
    Request,
    SnapshotEvent,
    TableInfo,
    TableRequest,
    TablesRequest,
)
from icedb_client.snapshots import Snapshot, SnapshotRequest
from icedb_client.times import Time, to_ms

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

    from icedb_client.duck_rows import Rows


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
