"""How a request is asked over gRPC: which calls, one after the other, and what their answers mean. Does no I/O.

A plan is a generator: it yields a call, is sent the answer, and returns what the caller gets. The same plans are run
by the client that waits (:mod:`icedb_client.grpc_snapshots`) and by the one that awaits
(:mod:`icedb_client.grpc_snapshots`).
"""

from collections.abc import Generator, Iterable
from dataclasses import dataclass
from typing import Any, Final

from icedb_log.errors import InvalidRequest, Unavailable
from icedb_log.store.stores import S3Options
from icedb_log.table.partitions import PartitionFilter
from icedb_log.table.table_config import PartitionField
from icedb_proto import snapshot_pb2 as pb

from icedb_client.file_list import WireFiles
from icedb_client.requests import (
    AcquireLease,
    Answerer,
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

MAX_PAGES_OF_TABLES: Final = 100_000


class TooLarge(InvalidRequest):
    """An answer does not fit one message. What the caller does: nothing; the plan goes on with a stream."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a method; ``is_stream``: it is answered by a list of messages, else by one."""

    method: str
    message: Any
    is_stream: bool = False


Plan = Generator[Call, Any, Any]


class Plans:
    """Makes plans, and remembers which tables are too large for one message.

    Args:
        s3: How engines reach files on S3, passed on in each snapshot.
    """

    def __init__(self, s3: S3Options | None) -> None:
        self._s3 = s3
        self._large: set[str] = set()

    def plan(self, request: Request[Any], answerer: Answerer) -> Plan:  # noqa: PLR0911 - one for each request
        """Return the plan of a request; snapshots will ask ``answerer`` for leases."""
        match request:
            case SnapshotRequest():
                return self._get_snapshot(request, answerer)
            case TablesRequest():
                return _list_tables(request)
            case TableRequest(table=table, max_staleness_ms=max_staleness_ms):
                return _get_table(pb.GetTableRequest(table=table, max_staleness_ms=max_staleness_ms))
            case ChangesRequest():
                return _get_changes(request)
            case AcquireLease(table=table, ttl_ms=ttl_ms, at_ms=at_ms):
                return _lease("AcquireLease", pb.AcquireLeaseRequest(table=table, ttl_ms=ttl_ms, at_ms=at_ms))
            case RenewLease(table=table, lease_id=lease_id, ttl_ms=ttl_ms):
                return _lease("RenewLease", pb.RenewLeaseRequest(table=table, lease_id=lease_id, ttl_ms=ttl_ms))
            case ReleaseLease(table=table, lease_id=lease_id):
                return _release(pb.ReleaseLeaseRequest(table=table, lease_id=lease_id))
        raise TypeError(f"no request: {request!r}")

    def _get_snapshot(self, request: SnapshotRequest, answerer: Answerer) -> Plan:
        message = pb.GetSnapshotRequest(
            table=request.table,
            as_of_ms=request.as_of_ms,
            partition_filters=[to_wire(condition) for condition in request.filters],
            max_staleness_ms=request.max_staleness_ms,
            where=request.where,
            min_commit=request.min_commit,
            presign_ms=request.presign_ms,
            pin=request.pin,
        )
        pages: list[Any] = []
        is_narrow = request.where is not None or bool(request.filters)
        if is_narrow or request.table not in self._large:
            try:
                pages = [(yield Call("GetSnapshot", message))]
            except TooLarge:
                if not is_narrow:
                    self._large.add(request.table)
        if not pages:
            pages = yield Call("StreamSnapshot", message, is_stream=True)
        return _read_snapshot(pages, request, answerer, self._s3)


def to_wire(condition: PartitionFilter) -> pb.PartitionFilter:
    """Return a filter as the protocol has it.

    Raises:
        InvalidRequest: It has more than one kind of condition; write them as several filters.
    """
    glob = getattr(condition, "glob", None)
    kinds = (condition.any_of is not None, condition.is_null is not None, bool(condition.bounds()), glob is not None)
    if sum(kinds) != 1:
        raise InvalidRequest(
            f"the filter on partition field {condition.field[:80]} needs one kind of condition; write several filters"
        )
    if glob is not None:
        return pb.PartitionFilter(field=condition.field, glob=glob)
    if condition.any_of is not None:
        values = sorted(condition.any_of)
        if len(values) == 1:
            return pb.PartitionFilter(field=condition.field, equals=values[0])
        return pb.PartitionFilter(field=condition.field, any_of=pb.ValueList(values=values))
    if condition.is_null is not None:
        return pb.PartitionFilter(field=condition.field, is_null=condition.is_null)
    if condition.at_least is not None and condition.above is not None:
        raise InvalidRequest(f"the filter on partition field {condition.field[:80]} has two lower bounds")
    if condition.at_most is not None and condition.below is not None:
        raise InvalidRequest(f"the filter on partition field {condition.field[:80]} has two upper bounds")
    bounds = pb.ValueRange()
    for name in ("at_least", "above", "at_most", "below"):
        value = getattr(condition, name)
        if value is not None:
            setattr(bounds, name, value)
    return pb.PartitionFilter(field=condition.field, range=bounds)


def read_event(event: pb.SnapshotEvent) -> SnapshotEvent:
    """Return an event of the watch."""
    return SnapshotEvent(
        event.table,
        _maybe(event, "snapshot_id"),
        event.file_count,
        event.size_bytes,
        _maybe(event, "row_count"),
        _maybe(event, "last_commit_ms"),
        _maybe(event, "problem"),
    )


def _read_snapshot(
    pages: list[pb.GetSnapshotResponse], request: SnapshotRequest, answerer: Answerer, s3: S3Options | None
) -> Snapshot:
    head = pages[0] if pages else pb.GetSnapshotResponse()
    files = WireFiles([page.files for page in pages], size_bytes=head.size_bytes, row_count=_maybe(head, "row_count"))
    _require_all(request.table, len(files), head.file_count if pages else -1)
    is_on_s3 = len(files) > 0 and files[0].uri.startswith("s3://")
    return Snapshot(
        table=head.table,
        snapshot_id=head.snapshot_id,
        schema={column.name: column.type for column in head.schema},
        files=files,
        total_file_count=head.total_file_count,
        as_of_ms=_maybe(head, "as_of_ms"),
        is_stable=head.is_stable,
        last_commit_ms=_maybe(head, "last_commit_ms"),
        horizon_ms=_maybe(head, "horizon_ms"),
        narrow_types={column.name: column.narrow_type for column in head.schema if column.HasField("narrow_type")},
        staleness_ms=head.staleness_ms,
        where=request.where,
        s3=(s3 or S3Options()) if is_on_s3 else None,
        answerer=answerer,
    )


def _list_tables(request: TablesRequest) -> Plan:
    names: list[str] = []
    token: str | None = None
    for _ in range(MAX_PAGES_OF_TABLES):
        answer = yield Call("ListTables", pb.ListTablesRequest(page_token=token, glob=request.glob))
        names += answer.tables
        token = _maybe(answer, "next_page_token")
        if token is None:
            return tuple(names)
    raise Unavailable(f"the list of tables does not end after {MAX_PAGES_OF_TABLES} pages")


def _get_table(message: pb.GetTableRequest) -> Plan:
    table = yield Call("GetTable", message)
    return TableInfo(
        name=table.name,
        schema={column.name: column.type for column in table.schema},
        partition_fields=tuple(
            PartitionField(name=f.name, transform=f.transform, column=f.column, width=_maybe(f, "width"))
            for f in table.partition_fields
        ),
        sort_columns=tuple(table.sort_columns),
        data_grace_ms=table.data_grace_ms,
        log_grace_ms=table.log_grace_ms,
        retention_ms=_maybe(table, "retention_ms"),
        retention_field=_maybe(table, "retention_field"),
        horizon_ms=_maybe(table, "horizon_ms"),
    )


def _get_changes(request: ChangesRequest) -> Plan:
    message = pb.GetChangesRequest(
        table=request.table,
        from_ms=request.from_ms,
        to_ms=request.to_ms,
        max_staleness_ms=request.max_staleness_ms,
    )
    pages = yield Call("GetChanges", message, is_stream=True)
    head = pages[0] if pages else pb.GetChangesResponse()
    added, removed = [page.added for page in pages], [page.removed for page in pages]
    _require_all(request.table, sum(map(len, added)), head.added_count if pages else -1)
    _require_all(request.table, sum(map(len, removed)), head.removed_count if pages else -1)
    return Changes(
        table=head.table,
        from_snapshot_id=head.from_snapshot_id,
        to_snapshot_id=head.to_snapshot_id,
        added=_files(added),
        removed=_files(removed),
        changed_columns={column.name: column.type for column in head.changed_columns},
        is_stable=head.is_stable,
    )


def _files(pages: list[Any]) -> WireFiles:
    return WireFiles(pages, size_bytes=None, row_count=_sum_rows(pages))


def _sum_rows(pages: Iterable[Any]) -> int | None:
    files = [file for page in pages for file in page]
    return sum(file.row_count for file in files) if all(file.HasField("row_count") for file in files) else None


def _require_all(table: str, found: int, said: int) -> None:
    if found != said:
        raise Unavailable(f"table {table}: the service announced {max(said, 0)} data files and sent {found}; try again")


def _lease(method: str, message: Any) -> Plan:
    lease = yield Call(method, message)
    return LeaseInfo(lease.table, lease.lease_id, lease.at_ms, lease.expires_ms)


def _release(message: pb.ReleaseLeaseRequest) -> Plan:
    yield Call("ReleaseLease", message)


def _maybe(message: Any, name: str) -> Any:
    return getattr(message, name) if message.HasField(name) else None
