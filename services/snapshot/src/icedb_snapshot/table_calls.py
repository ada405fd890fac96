"""ListTables, GetTable, GetChanges, and the calls about leases: all calls about a table but its files.

GetChanges names the data files that came and went between two times. Both states are folded from one read of the log,
so that what lies between them is exact. Pages are made as the caller takes them: a slow one holds two compact lists of
the files that differ, and one page. The cost goes with what changed.

Leases hold a table at a time (rule J4). They are all that this service writes: :mod:`icedb_log.clean.leases`.
"""

import base64
import binascii
from collections.abc import AsyncIterator, Iterable, Iterator
from itertools import islice
from typing import Any, Final

import grpc
from cachetools import LRUCache
from icedb_log.clean.leases import MAX_HOLDER_CHARS, Lease, LeaseReader, acquire_lease, release_lease, renew_lease
from icedb_log.errors import InvalidRequest
from icedb_log.keys import TABLE_NAME, check_table_name
from icedb_log.model import FileMarker
from icedb_log.serving.changes import SnapshotChanges, compare_snapshots
from icedb_log.serving.table_cache import TableState
from icedb_log.store.known_objects import FETCH_THREADS
from icedb_log.store.store_clock import check_has_come
from icedb_log.store.table_store import TableStore
from icedb_log.table.partitions import read_partition_values
from icedb_log.table.retention import find_time_field
from icedb_log.table.table import Table
from icedb_log.units import MIB
from icedb_proto import snapshot_pb2 as pb
from icedb_service.access.access_file import ANYBODY, Identity, Verb
from icedb_service.readers import TableNames

from icedb_snapshot.requests import check_time_ms, read_glob, read_max_staleness_ms
from icedb_snapshot.server import ServiceParts

MAX_PAGE_SIZE: Final = 1000


class TableCalls:
    """Answers ListTables and GetTable.

    Args:
        parts: What handlers share.
        names: Which tables there are.
    """

    def __init__(self, parts: ServiceParts, names: TableNames) -> None:
        self._parts = parts
        self._access = parts.access
        self._names = names

    def methods(self) -> dict[str, Any]:
        """Return the handlers by method."""
        return {
            "ListTables": grpc.unary_unary_rpc_method_handler(
                self.list_tables,
                request_deserializer=pb.ListTablesRequest.FromString,
                response_serializer=pb.ListTablesResponse.SerializeToString,
            ),
            "GetTable": grpc.unary_unary_rpc_method_handler(
                self.get_table,
                request_deserializer=pb.GetTableRequest.FromString,
                response_serializer=pb.Table.SerializeToString,
            ),
        }

    async def list_tables(self, request: pb.ListTablesRequest, context: Any) -> pb.ListTablesResponse:
        """Return one page of the names that the caller may read, ascending.

        A page goes on behind the last name of the one before: tables that come and go meanwhile shift nothing.

        Raises:
            IceDBError: Whatever is wrong; the interceptor turns it into a status code.
        """
        identity = self._access.identify(context)
        page_size = _read_page_size(request)
        after = _decode_token(request.page_token) if request.HasField("page_token") else ""
        fits = read_glob(request.glob).match if request.HasField("glob") else None
        guard = self._access.guard
        found = (
            name
            for name in await self._names.read()
            if name > after and (fits is None or fits(name)) and guard.allows(identity, Verb.READ, name)
        )
        page = list(islice(found, page_size + 1))
        has_more = len(page) > page_size
        del page[page_size:]
        return pb.ListTablesResponse(tables=page, next_page_token=_encode_token(page[-1]) if has_more else None)

    async def get_table(self, request: pb.GetTableRequest, context: Any) -> pb.Table:
        """Return what a table is.

        Raises:
            IceDBError: Whatever is wrong; the interceptor turns it into a status code.
        """
        self._access.require(context, Verb.READ, request.table)
        max_staleness_ms = read_max_staleness_ms(request, default_ms=self._parts.settings.snapshot_max_staleness_ms)
        table = check_table_name(request.table)
        return describe_table(await self._parts.reads.read(table, max_staleness_ms=max_staleness_ms))


def describe_table(state: TableState) -> pb.Table:
    """Return the configuration and the columns of a table as the wire has them. Pure."""
    config, snapshot = state.config, state.snapshot
    time_field = None if config.retention_ms is None else find_time_field(config)
    return pb.Table(
        name=config.name,
        schema=[
            pb.Column(name=name, type=sql_type, narrow_type=snapshot.narrow_types.get(name))
            for name, sql_type in snapshot.schema.items()
        ],
        partition_fields=[
            pb.PartitionField(name=field.name, transform=field.transform, column=field.column, width=field.width)
            for field in config.partition
        ],
        sort_columns=config.sort,
        data_grace_ms=config.data_grace_ms,
        log_grace_ms=config.log_grace_ms,
        retention_ms=config.retention_ms,
        retention_field=None if time_field is None else time_field.name,
        horizon_ms=snapshot.horizon_ms or None,
    )


def _read_page_size(request: pb.ListTablesRequest) -> int:
    if not request.HasField("page_size"):
        return MAX_PAGE_SIZE
    size = int(request.page_size)
    if not 1 <= size <= MAX_PAGE_SIZE:
        raise InvalidRequest(f"page_size {size} is not allowed: use 1 to {MAX_PAGE_SIZE}, or leave it out")
    return size


def _encode_token(name: str) -> str:
    return base64.urlsafe_b64encode(name.encode()).decode()


def _decode_token(token: str) -> str:
    try:
        name = base64.urlsafe_b64decode(token).decode()
    except (binascii.Error, ValueError):
        name = ""
    if not TABLE_NAME.fullmatch(name):
        raise InvalidRequest(
            f"page_token {token[:80]!r} is not one that this service returned: use next_page_token as it is, or leave "
            "it out to begin"
        )
    return name


MAX_PAGE_BYTES: Final = MIB


class ChangeCalls:
    """Answers GetChanges.

    Args:
        parts: What handlers share.
        max_page_bytes: Largest page; a single file that is larger is a page of its own.
    """

    def __init__(self, parts: ServiceParts, *, max_page_bytes: int = MAX_PAGE_BYTES) -> None:
        self._parts = parts
        self._access = parts.access
        self._max_page_bytes = max_page_bytes

    def methods(self) -> dict[str, Any]:
        """Return the handlers by method."""
        return {
            "GetChanges": grpc.unary_stream_rpc_method_handler(
                self.get_changes, request_deserializer=pb.GetChangesRequest.FromString
            ),
        }

    async def get_changes(self, request: pb.GetChangesRequest, context: Any) -> AsyncIterator[bytes]:
        """Send serialized pages.

        Raises:
            IceDBError: Whatever is wrong; the interceptor turns it into a status code.
        """
        self._access.require(context, Verb.READ, request.table)
        parts = self._parts
        paths = parts.warehouse.table(check_table_name(request.table)).paths
        from_ms, to_ms = _read_times(request)
        max_staleness_ms = read_max_staleness_ms(request, default_ms=parts.settings.snapshot_max_staleness_ms)
        state = await parts.reads.read(paths.name, max_staleness_ms=max_staleness_ms)
        now_ms = state.view.store_now_ms + max(0, parts.clock.monotonic_ms() - state.started_ms)
        changes = await parts.reads.work.run_compute(
            lambda: find_changes(state, from_ms=from_ms, to_ms=to_ms, now_ms=now_ms)
        )
        pages = render_pages(TableStore(parts.warehouse.store, paths), changes, max_page_bytes=self._max_page_bytes)
        while (page := await parts.reads.work.run_compute(lambda: next(pages, None))) is not None:
            yield page


def find_changes(state: TableState, *, from_ms: int, to_ms: int | None, now_ms: int) -> SnapshotChanges:
    """Return what differs between two times of a table. Computes, but reads nothing.

    Args:
        state: One read of the table.
        from_ms: The earlier time, unix ms.
        to_ms: The later time; ``None``: the newest state.
        now_ms: The store's clock, as far as is known.

    Raises:
        InvalidRequest: A time in the future, or the earlier one is later.
        BelowHorizon: Log files that say what was live at the earlier time are deleted.
    """
    for name, value_ms in (("from_ms", from_ms), ("to_ms", to_ms)):
        if value_ms is not None:
            check_has_come(state.view.table, name, value_ms, store_now_ms=now_ms)
    return compare_snapshots(state.at(from_ms), state.at(to_ms))


def render_pages(table: TableStore, changes: SnapshotChanges, *, max_page_bytes: int) -> Iterator[bytes]:
    """Yield serialized GetChangesResponses; the first one has everything but the rest of the files.

    Fields of serialized messages may be joined: a page is a head and the entries of its files, each a message of one.
    """
    page = [
        pb.GetChangesResponse(
            table=changes.after.table,
            from_snapshot_id=changes.before.snapshot_id,
            to_snapshot_id=changes.after.snapshot_id,
            added_count=len(changes.added),
            removed_count=len(changes.removed),
            changed_columns=[
                pb.Column(name=name, type=sql_type, narrow_type=changes.after.narrow_types.get(name))
                for name, sql_type in changes.changed_columns.items()
            ],
            is_stable=changes.is_stable,
        ).SerializeToString()
    ]
    page_bytes = len(page[0])
    for entry in _serialize_files(table, changes):
        if page and page_bytes + len(entry) > max_page_bytes:
            yield b"".join(page)
            page, page_bytes = [], 0
        page.append(entry)
        page_bytes += len(entry)
    yield b"".join(page)


def _serialize_files(table: TableStore, changes: SnapshotChanges) -> Iterator[bytes]:
    for file in _files(table, changes.added):
        yield pb.GetChangesResponse(added=(file,)).SerializeToString()
    for file in _files(table, changes.removed):
        yield pb.GetChangesResponse(removed=(file,)).SerializeToString()


def _files(table: TableStore, markers: Iterable[FileMarker]) -> Iterator[pb.DataFile]:
    partition: str | None = None
    values: list[pb.PartitionValue] = []
    for marker in markers:
        found = table.paths.partition_of(marker.path)
        if found != partition:  # paths ascend: files of one partition come one after the other
            partition = found
            values = [pb.PartitionValue(name=name, value=value) for name, value in read_partition_values(found).items()]
        yield pb.DataFile(
            path=marker.path,
            uri=table.store.uri(marker.path),
            size_bytes=marker.size_bytes,
            row_count=marker.row_count,
            partition_values=values,
            created_ms=marker.created_ms,
        )


def _read_times(request: pb.GetChangesRequest) -> tuple[int, int | None]:
    from_ms = check_time_ms("from_ms", request.from_ms)
    to_ms = check_time_ms("to_ms", request.to_ms) if request.HasField("to_ms") else None
    if to_ms is not None and from_ms > to_ms:
        raise InvalidRequest(f"from_ms {from_ms} is later than to_ms {to_ms}: from_ms is the earlier one")
    return from_ms, to_ms


_HANDLER: Final = grpc.unary_unary_rpc_method_handler


class LeaseCalls:
    """Answers the calls about leases.

    Args:
        parts: What handlers share.
    """

    def __init__(self, parts: ServiceParts) -> None:
        self._parts = parts
        self._access = parts.access
        self._readers: LRUCache[str, LeaseReader] = LRUCache(parts.settings.snapshot_max_tables)

    def methods(self) -> dict[str, Any]:
        """Return the handlers by method."""
        lease = pb.Lease.SerializeToString
        return {
            "AcquireLease": _HANDLER(self.acquire, pb.AcquireLeaseRequest.FromString, lease),
            "RenewLease": _HANDLER(self.renew, pb.RenewLeaseRequest.FromString, lease),
            "ReleaseLease": _HANDLER(
                self.release, pb.ReleaseLeaseRequest.FromString, pb.ReleaseLeaseResponse.SerializeToString
            ),
        }

    async def acquire(self, request: pb.AcquireLeaseRequest, context: Any) -> pb.Lease:
        """Take a lease that certainly holds. Each call takes one of its own.

        Raises:
            IceDBError: Whatever is wrong; the interceptor turns it into a status code.
        """
        identity = self._access.require(context, Verb.READ, request.table)
        parts = self._parts
        paths = parts.warehouse.table(check_table_name(request.table)).paths
        self._check_ttl(request.ttl_ms)
        at_ms = check_time_ms("at_ms", request.at_ms) if request.HasField("at_ms") else None
        table, leases = parts.reads.tables.table(paths.name), self._reader_of(paths.name)
        holder = _name_holder(identity, context)
        lease = await parts.reads.work.run_blocking(
            paths.name,
            lambda: acquire_lease(
                Table.open(
                    TableStore(parts.warehouse.store, paths), clock=parts.clock, reader=table.read_source().reader
                ),
                ttl_ms=request.ttl_ms,
                at_ms=at_ms,
                holder=holder,
                leases=leases,
                max_leases=parts.settings.snapshot_max_leases,
            ),
        )
        return _to_wire(paths.name, lease)

    async def renew(self, request: pb.RenewLeaseRequest, context: Any) -> pb.Lease:
        """Let a lease last for ``ttl_ms`` from now on.

        Raises:
            IceDBError: Whatever is wrong; the interceptor turns it into a status code.
        """
        self._access.require(context, Verb.READ, request.table)
        parts = self._parts
        paths = parts.warehouse.table(check_table_name(request.table)).paths
        self._check_ttl(request.ttl_ms)
        lease = await parts.reads.work.run_blocking(
            paths.name,
            lambda: renew_lease(
                TableStore(parts.warehouse.store, paths), request.lease_id, clock=parts.clock, ttl_ms=request.ttl_ms
            ),
        )
        return _to_wire(paths.name, lease)

    async def release(self, request: pb.ReleaseLeaseRequest, context: Any) -> pb.ReleaseLeaseResponse:
        """End a lease.

        Raises:
            IceDBError: Whatever is wrong; the interceptor turns it into a status code.
        """
        self._access.require(context, Verb.READ, request.table)
        paths = self._parts.warehouse.table(check_table_name(request.table)).paths
        await self._parts.reads.work.run_blocking(
            paths.name, lambda: release_lease(TableStore(self._parts.warehouse.store, paths), request.lease_id)
        )
        return pb.ReleaseLeaseResponse()

    def _check_ttl(self, ttl_ms: int) -> None:
        most_ms = self._parts.settings.snapshot_max_lease_ttl_ms
        if ttl_ms > most_ms:
            raise InvalidRequest(
                f"ttl_ms {ttl_ms} is more than {most_ms}, the most that this server gives "
                "(ICEDB_SNAPSHOT_MAX_LEASE_TTL_MS); renew the lease while it is needed"
            )

    def _reader_of(self, table: str) -> LeaseReader:
        return self._readers.setdefault(table, LeaseReader(fetch_threads=FETCH_THREADS))


def _name_holder(identity: Identity, context: Any) -> str:
    """Return who holds a lease, for people: its name, or where the call came from if nobody has to say a name."""
    name = str(context.peer()) if identity == ANYBODY else identity.name
    return "".join(character for character in name if character.isprintable())[:MAX_HOLDER_CHARS]


def _to_wire(table: str, lease: Lease) -> pb.Lease:
    return pb.Lease(table=table, lease_id=lease.lease_id, at_ms=lease.at_ms, expires_ms=lease.expires_ms)
