"""Answers readers straight from the store, with the reader, fold and pruning that the snapshot service uses.

Log files are kept in memory between calls, so that a repeated call costs a listing and what is new. Writes nothing but
leases.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import translate
from typing import Final

from icedb_log.clock import Clock
from icedb_log.commit.table import Table
from icedb_log.errors import HaltError, InvalidRequest, NotFound, Unavailable
from icedb_log.holds.leases import Lease, acquire_lease, release_lease, renew_lease
from icedb_log.holds.tags import read_tagged
from icedb_log.keys import check_table_name
from icedb_log.log.fold import Snapshot as LogSnapshot
from icedb_log.log.live_files import LiveFiles
from icedb_log.serving.arrow_files import FileColumns
from icedb_log.serving.batch_commits import CommitWait, await_commit, check_batch_id, check_commit_time, find_commit
from icedb_log.serving.changes import compare_snapshots
from icedb_log.serving.selection import select_files
from icedb_log.serving.table_cache import TableCache, TableState
from icedb_log.store.s3_options import S3Options
from icedb_log.store.store_clock import check_has_come
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import read_table_config
from icedb_log.table.table_config import TableConfig, unite_columns
from icedb_log.warehouse import Warehouse

from icedb_client.file_list import MarkerFiles
from icedb_client.requests import Changes, LeaseInfo, SnapshotEvent, SnapshotRequest, TableInfo
from icedb_client.snapshots import Snapshot, can_lead_to, describe_changes

MAX_TABLES: Final = 1000
WATCH_INTERVAL_MS: Final = 1000


class StoreReads:
    """Answers from a warehouse; implements :class:`icedb_client.requests.Answerer`. Thread-safe.

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

    def snapshot(self, request: SnapshotRequest) -> Snapshot:
        """Return which files are live."""
        place = self._warehouse.table(request.table)
        if request.tag is not None:
            config = read_table_config(place)
            _, tagged = read_tagged(place, request.tag)
            return self._describe(place, config, tagged, request)
        batch_id = None if request.min_commit is None else check_batch_id(request.min_commit)
        read = self._read(request.table, request.max_staleness_ms)
        if batch_id is not None:
            if find_commit(read, batch_id) is None:
                wait = CommitWait(batch_id, self._clock, self._timeout_ms, "ICEDB_SNAPSHOT_TIMEOUT_MS")
                table, config = self._tables.table(place.name), read.config
                read = await_commit(place, wait, read=lambda: replace(table.read(max_staleness_ms=0), config=config))
            if request.as_of_ms is not None:
                check_commit_time(read, batch_id, "as_of", request.as_of_ms)
        return self._describe(place, read.config, _fold_at(read, request.as_of_ms, "as_of"), request)

    def tables(self, glob: str | None) -> tuple[str, ...]:
        """Return which tables there are, ascending."""
        fits = re.compile(translate("*" if glob is None else glob))
        return tuple(name for name in self._warehouse.list_tables() if fits.match(name))

    def table(self, table: str, max_staleness_ms: int | None = None) -> TableInfo:
        """Return what a table is."""
        read = self._read(table, max_staleness_ms)
        config, state = read.config, read.snapshot
        time_field = None if config.retention_ms is None else config.age_field
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
            promoted=config.promoted,
        )

    def changes(self, table: str, *, from_ms: int, to_ms: int | None, max_staleness_ms: int | None) -> Changes:
        """Return which files came and went between two times."""
        place, read = self._warehouse.table(table), self._read(table, max_staleness_ms)
        if to_ms is not None and to_ms < from_ms:
            raise InvalidRequest(f"table {table}: from_={from_ms} lies after to={to_ms}; give the earlier first")
        before, after = _fold_at(read, from_ms, "from_"), _fold_at(read, to_ms, "to")
        found = compare_snapshots(before, after)
        return Changes(
            table=table,
            from_snapshot_id=before.snapshot_id,
            to_snapshot_id=after.snapshot_id,
            added=_files(place, read.config, found.added),
            removed=_files(place, read.config, found.removed),
            changed_columns=found.changed_columns,
            is_stable=found.is_stable,
        )

    def acquire_lease(self, table: str, *, ttl_ms: int, at_ms: int | None) -> LeaseInfo:
        """Hold a table as it was at a time, and at any time since; ``None``: from now on."""
        reader = self._tables.table(table).read_source().reader
        opened = Table.open(self._warehouse.table(table), clock=self._clock, reader=reader)
        return _lease(table, acquire_lease(opened, ttl_ms=ttl_ms, at_ms=at_ms))

    def renew_lease(self, table: str, lease_id: str, *, ttl_ms: int) -> LeaseInfo:
        """Let a lease last for ``ttl_ms`` from now on, and never shorter than before."""
        place = self._warehouse.table(table)
        return _lease(table, renew_lease(place, lease_id, clock=self._clock, ttl_ms=ttl_ms))

    def release_lease(self, table: str, lease_id: str) -> None:
        """End a lease."""
        release_lease(self._warehouse.table(table), lease_id)

    def find_lost_commits(self, table: str) -> tuple[str, ...]:
        """Return the commits whose log files are gone: their rows are missing in each snapshot (F5)."""
        from icedb_log.serving.status import find_lost_commits  # noqa: PLC0415 - it knows all that a table may wait for

        reader = self._tables.table(table).read_source().reader
        return find_lost_commits(Table.open(self._warehouse.table(table), clock=self._clock, reader=reader))

    def watch(self, tables: Sequence[str]) -> Iterator[SnapshotEvent]:
        """Look at the tables again and again, and yield what is new."""
        names = tuple(check_table_name(name) for name in tables)
        for name in names:
            read_table_config(self._warehouse.table(name))
        last: dict[str, SnapshotEvent] = {}
        while True:
            present = names or self._warehouse.list_tables()
            gone = [SnapshotEvent(name, None) for name in last if name not in present]
            for event in (*map(self._look, present), *gone):
                known = last.get(event.table)
                if known is None or (known.snapshot_id, known.problem) != (event.snapshot_id, event.problem):
                    last[event.table] = event
                    yield event
            self._clock.sleep_ms(WATCH_INTERVAL_MS)

    def _look(self, table: str) -> SnapshotEvent:
        try:
            state = self._read(table).snapshot
        except NotFound:
            return SnapshotEvent(table, None)
        except (HaltError, Unavailable) as error:
            return SnapshotEvent(table, None, problem=str(error))
        return SnapshotEvent(
            table, state.snapshot_id, len(state.live), state.size_bytes, state.row_count, state.last_commit_ms or None
        )

    def _read(self, table: str, max_staleness_ms: int | None = None) -> TableState:
        """Read a table: its configuration always, its log if what is known is older than allowed."""
        try:
            config = read_table_config(self._warehouse.table(table))
        except NotFound:
            self._tables.drop(table)
            raise
        return replace(self._tables.table(table).read(max_staleness_ms=max_staleness_ms or 0), config=config)

    def _describe(
        self, place: TableStore, config: TableConfig, state: LogSnapshot, request: SnapshotRequest
    ) -> Snapshot:
        markers = select_files(place.paths, config, state, filters=request.filters, where=request.where)
        files = _files(place, config, markers, presign_ms=request.presign_ms, bounds=request.bounds)
        known, changes, schema = request.since, None, unite_columns(state.schema, config)
        if known is not None and can_lead_to(known, request) and isinstance(known.files, MarkerFiles):
            before = known.files.markers
            added, removed = (_files(place, config, each) for each in (markers.minus(before), before.minus(markers)))
            changes = describe_changes(known, state.snapshot_id, schema, added=added, removed=removed)
        return Snapshot(
            table=place.name,
            snapshot_id=state.snapshot_id,
            schema=schema,
            files=files,
            total_file_count=len(state.live),
            as_of_ms=state.as_of_ms,
            is_stable=state.is_stable,
            last_commit_ms=state.last_commit_ms or None,
            horizon_ms=state.horizon_ms or None,
            narrow_types=state.narrow_types,
            where=request.where,
            s3=self._s3,
            answerer=self,
            changes=changes,
        )


def _files(
    place: TableStore, config: TableConfig, markers: LiveFiles, *, presign_ms: int | None = None, bounds: bool = False
) -> MarkerFiles:
    store, columns = place.store, FileColumns.of(place.paths, config, with_bounds=bounds)
    presign = None if presign_ms is None else lambda key: store.presign(key, expires_ms=presign_ms)
    return MarkerFiles(markers, columns=columns, uri=store.uri, presign=presign)


def _fold_at(read: TableState, time_ms: int | None, what: str) -> LogSnapshot:
    if time_ms is not None:
        check_has_come(read.view.table, what, time_ms, store_now_ms=read.view.store_now_ms)
    return read.at(time_ms)


def _lease(table: str, lease: Lease) -> LeaseInfo:
    return LeaseInfo(table, lease.lease_id, lease.at_ms, lease.expires_ms)
