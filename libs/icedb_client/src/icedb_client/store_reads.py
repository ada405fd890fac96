"""Answers readers straight from the store, with the reader, fold and pruning that the snapshot service uses.

Log files are kept in memory between calls, so that a repeated call costs a listing and what is new. Writes nothing but
leases.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import translate
from typing import Any, Final, cast

from icedb_log.clean.leases import Lease, acquire_lease, release_lease, renew_lease
from icedb_log.clean.pins import read_pinned
from icedb_log.clock import Clock
from icedb_log.errors import HaltError, InvalidRequest, NotFound, Unavailable
from icedb_log.keys import TablePaths, check_table_name
from icedb_log.log.live_files import LiveFiles
from icedb_log.model import Snapshot as LogSnapshot
from icedb_log.serving.batch_commits import check_batch_id, check_commit_time, find_commit
from icedb_log.serving.changes import compare_snapshots
from icedb_log.serving.commit_wait import await_commit
from icedb_log.serving.selection import select_files
from icedb_log.serving.table_cache import TableCache, TableState
from icedb_log.store.store_clock import check_has_come
from icedb_log.store.stores import S3Options
from icedb_log.store.table_store import TableStore
from icedb_log.table.retention import find_time_field
from icedb_log.table.stored_config import read_table_config
from icedb_log.table.table import Table
from icedb_log.table.table_config import TableConfig, unite_columns
from icedb_log.warehouse import Warehouse

from icedb_client.file_list import MarkerFiles
from icedb_client.requests import (
    AcquireLease,
    AnswerT,
    Changes,
    ChangesRequest,
    LeaseInfo,
    ReleaseLease,
    RenewLease,
    Request,
    SnapshotEvent,
    TableInfo,
    TableRequest,
    TablesRequest,
)
from icedb_client.snapshots import Snapshot, SnapshotRequest

MAX_TABLES: Final = 1000
WATCH_INTERVAL_MS: Final = 1000


@dataclass(frozen=True, slots=True)
class _Read:
    """One read of a table's log."""

    paths: TablePaths
    config: TableConfig
    state: TableState


class StoreReads:
    """Answers requests from a warehouse. Thread-safe.

    Args:
        warehouse: Where the tables lie.
        clock: For ids, back-off and waiting.
        timeout_ms: How long ``min_commit`` is waited for.
        s3: How engines reach the files, passed on in each snapshot.
    """

    def __init__(self, warehouse: Warehouse, *, clock: Clock, timeout_ms: int, s3: S3Options | None = None) -> None:
        self._warehouse = warehouse
        self._clock = clock
        self._timeout_ms = timeout_ms
        self._s3 = s3
        self._tables = TableCache(
            warehouse, clock=clock, max_tables=MAX_TABLES, wait_ms=timeout_ms, on_refresh=lambda _ms: None
        )

    def ask(self, request: Request[AnswerT]) -> AnswerT:
        """Return the answer; see :class:`icedb_client.requests.Answerer`."""
        return cast("AnswerT", self._answer(request))

    def watch(self, tables: Sequence[str]) -> Iterator[SnapshotEvent]:
        """Look at the tables again and again; see :class:`icedb_client.requests.Answerer`."""
        names = tuple(check_table_name(name) for name in tables)
        for name in names:
            read_table_config(self._warehouse.table(name))
        last: dict[str, SnapshotEvent] = {}
        while True:
            present = names or self._warehouse.list_tables()
            gone = [name for name in last if name not in present]
            for event in (*map(self._look, present), *map(_gone, gone)):
                if _is_news(last.get(event.table), event):
                    last[event.table] = event
                    yield event
            self._clock.sleep_ms(WATCH_INTERVAL_MS)

    def _answer(self, request: Request[Any]) -> Any:  # noqa: PLR0911 - one for each request
        store = self._warehouse.store
        match request:
            case SnapshotRequest():
                return self._snapshot(request)
            case TablesRequest(glob=glob):
                fits = re.compile(translate("*" if glob is None else glob))
                return tuple(name for name in self._warehouse.list_tables() if fits.match(name))
            case TableRequest(table=table, max_staleness_ms=max_staleness_ms):
                return _describe_table(self._read(table, max_staleness_ms=max_staleness_ms))
            case ChangesRequest():
                return self._changes(request)
            case AcquireLease(table=table, ttl_ms=ttl_ms, at_ms=at_ms):
                reader = self._tables.table(table).read_source().reader
                paths = self._warehouse.table(table).paths
                lease = acquire_lease(
                    Table.open(TableStore(store, paths), clock=self._clock, reader=reader), ttl_ms=ttl_ms, at_ms=at_ms
                )
                return _lease(table, lease)
            case RenewLease(table=table, lease_id=lease_id, ttl_ms=ttl_ms):
                paths = self._warehouse.table(table).paths
                return _lease(table, renew_lease(TableStore(store, paths), lease_id, clock=self._clock, ttl_ms=ttl_ms))
            case ReleaseLease(table=table, lease_id=lease_id):
                return release_lease(TableStore(store, self._warehouse.table(table).paths), lease_id)
        raise TypeError(f"no request: {request!r}")

    def _read(self, table: str, *, max_staleness_ms: int | None = None) -> _Read:
        """Read a table: its configuration always, its log if what is known is older than allowed."""
        paths = self._warehouse.table(table).paths
        try:
            config = read_table_config(TableStore(self._warehouse.store, paths))
        except NotFound:
            self._tables.drop(table)
            raise
        return _Read(paths, config, self._tables.table(table).read(max_staleness_ms=max_staleness_ms or 0))

    def _snapshot(self, request: SnapshotRequest) -> Snapshot:
        if request.pin is not None:
            paths = self._warehouse.table(request.table).paths
            config = read_table_config(TableStore(self._warehouse.store, paths))
            _, state = read_pinned(TableStore(self._warehouse.store, paths), request.pin)
            return self._describe(paths, config, state, request)
        batch_id = None if request.min_commit is None else check_batch_id(request.min_commit)
        read = self._read(request.table, max_staleness_ms=request.max_staleness_ms)
        if batch_id is not None:
            read = self._await_commit(read, batch_id, request)
        return self._describe(read.paths, read.config, _fold_at(read, request.as_of_ms, "as_of"), request)

    def _await_commit(self, read: _Read, batch_id: str, request: SnapshotRequest) -> _Read:
        if find_commit(read.state, batch_id) is None:
            table = self._tables.table(request.table)
            state = await_commit(
                TableStore(self._warehouse.store, read.paths),
                batch_id,
                read=lambda: table.read(max_staleness_ms=0),
                clock=self._clock,
                timeout_ms=self._timeout_ms,
                setting="ICEDB_SNAPSHOT_TIMEOUT_MS",
            )
            read = _Read(read.paths, read.config, state)
        if request.as_of_ms is not None:
            check_commit_time(read.state, batch_id, "as_of", request.as_of_ms)
        return read

    def _describe(
        self, paths: TablePaths, config: TableConfig, state: LogSnapshot, request: SnapshotRequest
    ) -> Snapshot:
        markers = select_files(paths, config, state, filters=request.filters, where=request.where)
        return Snapshot(
            table=paths.name,
            snapshot_id=state.snapshot_id,
            schema=unite_columns(state.schema, config),
            files=self._files(paths, markers, presign_ms=request.presign_ms),
            total_file_count=len(state.live),
            as_of_ms=state.as_of_ms,
            is_stable=state.is_stable,
            last_commit_ms=state.last_commit_ms or None,
            horizon_ms=state.horizon_ms or None,
            narrow_types=state.narrow_types,
            where=request.where,
            s3=self._s3,
            answerer=self,
        )

    def _files(self, paths: TablePaths, markers: LiveFiles, *, presign_ms: int | None = None) -> MarkerFiles:
        store = self._warehouse.store
        presign = None if presign_ms is None else lambda key: store.presign(key, expires_ms=presign_ms)
        return MarkerFiles(markers, partition_of=paths.partition_of, uri=store.uri, presign=presign)

    def _changes(self, request: ChangesRequest) -> Changes:
        read = self._read(request.table, max_staleness_ms=request.max_staleness_ms)
        if request.to_ms is not None and request.to_ms < request.from_ms:
            raise InvalidRequest(
                f"table {request.table}: from_={request.from_ms} lies after to={request.to_ms}; give the earlier first"
            )
        before, after = _fold_at(read, request.from_ms, "from_"), _fold_at(read, request.to_ms, "to")
        found = compare_snapshots(before, after)
        return Changes(
            table=request.table,
            from_snapshot_id=before.snapshot_id,
            to_snapshot_id=after.snapshot_id,
            added=self._files(read.paths, found.added),
            removed=self._files(read.paths, found.removed),
            changed_columns=found.changed_columns,
            is_stable=found.is_stable,
        )

    def _look(self, table: str) -> SnapshotEvent:
        try:
            state = self._read(table).state.snapshot
        except NotFound:
            return _gone(table)
        except (HaltError, Unavailable) as error:
            return SnapshotEvent(table, None, problem=str(error))
        return SnapshotEvent(
            table,
            state.snapshot_id,
            len(state.live),
            state.size_bytes,
            state.row_count,
            state.last_commit_ms or None,
        )


def _fold_at(read: _Read, time_ms: int | None, what: str) -> LogSnapshot:
    if time_ms is not None:
        check_has_come(read.paths.name, what, time_ms, store_now_ms=read.state.view.store_now_ms)
    return read.state.at(time_ms)


def _describe_table(read: _Read) -> TableInfo:
    config, state = read.config, read.state.snapshot
    time_field = None if config.retention_ms is None else find_time_field(config)
    return TableInfo(
        name=config.name,
        schema=state.schema,
        partition_fields=config.partition,
        sort_columns=config.sort,
        data_grace_ms=config.data_grace_ms,
        log_grace_ms=config.log_grace_ms,
        retention_ms=config.retention_ms,
        retention_field=None if time_field is None else time_field.name,
        horizon_ms=state.horizon_ms or None,
    )


def _lease(table: str, lease: Lease) -> LeaseInfo:
    return LeaseInfo(table, lease.lease_id, lease.at_ms, lease.expires_ms)


def _gone(table: str) -> SnapshotEvent:
    return SnapshotEvent(table, None)


def _is_news(last: SnapshotEvent | None, event: SnapshotEvent) -> bool:
    return last is None or (last.snapshot_id, last.problem) != (event.snapshot_id, event.problem)
