"""ListTables, GetTable, GetChanges, and the calls about leases: all calls about a table but its files.

GetChanges names the data files that came and went between two times. Both states are folded from one read of the log,
so that what lies between them is exact. Pages are made as the caller takes them: a slow one holds two compact lists of
the files that differ, and one page. The cost goes with what changed.

Leases hold a table at a time (rule J4). They are all that this service writes: :mod:`icedb_log.holds.leases`.
"""

import base64
import binascii
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from itertools import chain, groupby, islice
from typing import Any, Final

from cachetools import LRUCache
from icedb_log.commit.table import Table
from icedb_log.errors import InvalidRequest
from icedb_log.holds.leases import MAX_HOLDER_CHARS, Lease, acquire_lease, release_lease, renew_lease
from icedb_log.holds.stored_holds import HoldReader
from icedb_log.keys import TABLE_NAME
from icedb_log.model import FileMarker
from icedb_log.serving.changes import SnapshotChanges, compare_snapshots
from icedb_log.serving.table_cache import TableState
from icedb_log.store.store_clock import check_has_come
from icedb_log.store.table_store import TableStore
from icedb_log.units import MIB
from icedb_proto import snapshot_pb2 as pb
from icedb_service.access.access_file import ANYBODY, Identity, Verb
from icedb_service.access.guard import Places

from icedb_snapshot.answers import describe_columns, describe_values
from icedb_snapshot.lag import Document
from icedb_snapshot.requests import ServiceParts, check_time_ms, read_glob, read_time_ms

MAX_LISTED_TABLES: Final = 1000
MAX_PAGE_BYTES: Final = MIB
"""Of GetChanges; a single file that is larger is a page of its own."""


class TableCalls:
    """Answers the calls about tables. Each raises an IceDBError for whatever is wrong."""

    def __init__(self, parts: ServiceParts, documents: Mapping[str, Document]) -> None:
        self._parts = parts
        self._documents = documents
        self._holds: LRUCache[str, HoldReader] = LRUCache(parts.settings.read_max_tables)

    async def list_tables(self, request: pb.ListTablesRequest, context: Any) -> pb.ListTablesResponse:
        """Return one page of the names that the caller may read, ascending.

        A page goes on behind the last name of the one before: tables that come and go meanwhile shift nothing.
        """
        access = self._parts.access
        identity = access.identify(context)
        page_size = int(request.page_size) if request.HasField("page_size") else MAX_LISTED_TABLES
        if not 1 <= page_size <= MAX_LISTED_TABLES:
            raise InvalidRequest(f"page_size {page_size} is not allowed: use 1 to {MAX_LISTED_TABLES}, or leave it out")
        after = _decode_token(request.page_token) if request.HasField("page_token") else ""
        fits = read_glob(request.glob).match if request.HasField("glob") else None
        found = (
            name
            for name in await self._parts.names.read()
            if name > after and (fits is None or fits(name)) and access.guard.allows(identity, Verb.READ, name)
        )
        page = list(islice(found, page_size + 1))
        token = _encode_token(page[page_size - 1]) if len(page) > page_size else None
        answer = pb.ListTablesResponse(tables=page[:page_size], next_page_token=token)
        for name in answer.tables if request.with_figures else ():
            document = self._documents.get(name)
            if document is not None:
                may_see_source = not document.source or access.guard.can_see(identity, document.source)
                age_ms = max(0, self._parts.clock.monotonic_ms() - document.read_ms)
                answer.figures.add(table=name, figures=document.text(with_view=may_see_source), age_ms=age_ms)
        return answer

    async def get_table(self, request: pb.GetTableRequest, context: Any) -> pb.Table:
        """Return what a table is."""
        table, max_staleness_ms = self._parts.open(request, context), self._parts.max_staleness_ms(request)
        return describe_table(await self._parts.reads.read(table.name, max_staleness_ms=max_staleness_ms))

    async def get_changes(self, request: pb.GetChangesRequest, context: Any) -> AsyncIterator[bytes]:
        """Send serialized pages."""
        parts, table = self._parts, self._parts.open(request, context)
        from_ms, to_ms = _read_times(request)
        state = await parts.reads.read(table.name, max_staleness_ms=parts.max_staleness_ms(request))
        now_ms, compute = parts.store_now_ms(state), parts.reads.work.run_compute
        changes = await compute(lambda: find_changes(state, from_ms=from_ms, to_ms=to_ms, now_ms=now_ms))
        pages = render_pages(table, changes)
        while (page := await compute(lambda: next(pages, None))) is not None:
            yield page

    async def acquire_lease(self, request: pb.AcquireLeaseRequest, context: Any) -> pb.Lease:
        """Take a lease that certainly holds. Each call takes one of its own."""
        parts = self._parts
        identity = parts.access.require(context, Verb.READ, request.table)
        table = parts.warehouse.table(request.table)
        self._check_ttl(request.ttl_ms)
        at_ms = read_time_ms(request, "at_ms")
        cached = parts.reads.tables.table(table.name)
        reader = self._holds.setdefault(table.name, HoldReader())
        holder, max_leases = _name_holder(identity, context), parts.settings.snapshot_max_leases
        places = Places(f"leases of table {table.name}", setting="ICEDB_SNAPSHOT_MAX_LEASES", size=max_leases)
        lease = await parts.reads.work.run_blocking(
            table.name,
            lambda: acquire_lease(
                Table.open(table, clock=parts.clock, reader=cached.read_source().reader),
                ttl_ms=request.ttl_ms,
                at_ms=at_ms,
                holder=holder,
                reader=reader,
                max_leases=max_leases,
                check_share=lambda held: parts.access.guard.check_share(identity, places, held=held),
            ),
        )
        return _to_wire(table, lease)

    async def renew_lease(self, request: pb.RenewLeaseRequest, context: Any) -> pb.Lease:
        """Let a lease last for ``ttl_ms`` from now on."""
        parts, table = self._parts, self._parts.open(request, context)
        self._check_ttl(request.ttl_ms)
        lease = await parts.reads.work.run_blocking(
            table.name, lambda: renew_lease(table, request.lease_id, clock=parts.clock, ttl_ms=request.ttl_ms)
        )
        return _to_wire(table, lease)

    async def release_lease(self, request: pb.ReleaseLeaseRequest, context: Any) -> pb.ReleaseLeaseResponse:
        """End a lease."""
        table = self._parts.open(request, context)
        await self._parts.reads.work.run_blocking(table.name, lambda: release_lease(table, request.lease_id))
        return pb.ReleaseLeaseResponse()

    def _check_ttl(self, ttl_ms: int) -> None:
        most_ms = self._parts.settings.snapshot_max_lease_ttl_ms
        if ttl_ms > most_ms:
            raise InvalidRequest(
                f"ttl_ms {ttl_ms} is more than {most_ms}, the most that this server gives "
                "(ICEDB_SNAPSHOT_MAX_LEASE_TTL_MS); renew the lease while it is needed"
            )


def describe_table(state: TableState) -> pb.Table:
    """Return the configuration and the columns of a table as the wire has them. Pure."""
    config, snapshot = state.config, state.snapshot
    time_field = None if config.retention_ms is None else config.age_field
    return pb.Table(
        name=config.name,
        schema=describe_columns(snapshot, snapshot.schema),
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
        promoted=[pb.PromotedColumn(column=column, path=path) for column, path in config.promoted.items()],
    )


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


def render_pages(
    table: TableStore, changes: SnapshotChanges, *, max_page_bytes: int = MAX_PAGE_BYTES
) -> Iterator[bytes]:
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
            changed_columns=describe_columns(changes.after, changes.changed_columns),
            is_stable=changes.is_stable,
        ).SerializeToString()
    ]
    page_bytes = len(page[0])
    added = (pb.GetChangesResponse(added=(file,)) for file in _describe_files(table, changes.added))
    removed = (pb.GetChangesResponse(removed=(file,)) for file in _describe_files(table, changes.removed))
    for response in chain(added, removed):
        entry = response.SerializeToString()
        if page and page_bytes + len(entry) > max_page_bytes:
            yield b"".join(page)
            page, page_bytes = [], 0
        page.append(entry)
        page_bytes += len(entry)
    yield b"".join(page)


def _describe_files(table: TableStore, markers: Iterable[FileMarker]) -> Iterator[pb.DataFile]:
    for _, files in groupby(markers, lambda marker: table.paths.partition_of(marker.path)):  # paths ascend
        values: list[pb.PartitionValue] | None = None
        for marker in files:
            values = values or describe_values(table, marker.path)
            yield pb.DataFile(
                path=marker.path,
                uri=table.store.uri(marker.path),
                size_bytes=marker.size_bytes,
                row_count=marker.row_count,
                partition_values=values,
                created_ms=marker.created_ms,
            )


def _read_times(request: pb.GetChangesRequest) -> tuple[int, int | None]:
    from_ms, to_ms = check_time_ms("from_ms", request.from_ms), read_time_ms(request, "to_ms")
    if to_ms is not None and from_ms > to_ms:
        raise InvalidRequest(f"from_ms {from_ms} is later than to_ms {to_ms}: from_ms is the earlier one")
    return from_ms, to_ms


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


def _name_holder(identity: Identity, context: Any) -> str:
    """Return who holds a lease, for people: its name, or where the call came from if nobody has to say a name."""
    name = str(context.peer()) if identity == ANYBODY else identity.name
    return "".join(character for character in name if character.isprintable())[:MAX_HOLDER_CHARS]


def _to_wire(table: TableStore, lease: Lease) -> pb.Lease:
    return pb.Lease(table=table.name, lease_id=lease.lease_id, at_ms=lease.at_ms, expires_ms=lease.expires_ms)
