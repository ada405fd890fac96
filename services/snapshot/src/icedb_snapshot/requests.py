"""What all calls have in common: what they share, and how requests on the wire become checked values."""

import re
from dataclasses import dataclass, replace
from fnmatch import translate
from typing import Any, Final

from icedb_log.clock import Clock
from icedb_log.errors import InvalidRequest
from icedb_log.keys import MAX_MS, check_table_name
from icedb_log.serving.batch_commits import check_batch_id
from icedb_log.serving.table_cache import TableState
from icedb_log.store.object_store import MAX_PRESIGN_MS, MIN_PRESIGN_MS
from icedb_log.store.table_store import TableStore
from icedb_log.table.partitions import PartitionFilter
from icedb_log.warehouse import Warehouse
from icedb_proto import snapshot_pb2
from icedb_service.access.access_file import Verb
from icedb_service.access.credentials import GrpcAccess
from icedb_service.readers import TableNames, TableReads

from icedb_snapshot.metrics import SnapshotMetrics
from icedb_snapshot.settings import MAX_STALENESS_MS, SnapshotSettings

MAX_GLOB_CHARS: Final = 1024


@dataclass(frozen=True, slots=True)
class ServiceParts:
    """What handlers share; ``access`` is what every one of them asks first."""

    warehouse: Warehouse
    settings: SnapshotSettings
    metrics: SnapshotMetrics
    clock: Clock
    reads: TableReads
    names: TableNames
    access: GrpcAccess

    def open(self, request: Any, context: Any) -> TableStore:
        """Return the table that a request names, if its caller may read it; it need not exist.

        Raises:
            IceDBError: Nobody knows the caller, it may not read the table, or this is no name of one.
        """
        self.access.require(context, Verb.READ, request.table)
        return self.warehouse.table(request.table)

    def max_staleness_ms(self, request: Any) -> int:
        """Return how old the knowledge behind an answer may be. Raises InvalidRequest."""
        if not request.HasField("max_staleness_ms"):
            return self.settings.snapshot_max_staleness_ms
        value_ms = int(request.max_staleness_ms)
        if not 0 <= value_ms <= MAX_STALENESS_MS:
            raise InvalidRequest(f"max_staleness_ms {value_ms} is not allowed: use 0 (read now) to {MAX_STALENESS_MS}")
        return value_ms

    def store_now_ms(self, state: TableState) -> int:
        """Return the store's time now, as far as is known from a read."""
        return state.view.store_now_ms + max(0, self.clock.monotonic_ms() - state.started_ms)


def optional(request: Any, field: str) -> Any:
    """Return a field of a message; ``None`` if it is not there."""
    return getattr(request, field) if request.HasField(field) else None


def check_time_ms(name: str, value_ms: int) -> int:
    """Return a time if it is one, else raise InvalidRequest."""
    if not 0 <= value_ms <= MAX_MS:
        raise InvalidRequest(f"{name} {value_ms} is not a time: use unix milliseconds, 0 to {MAX_MS}")
    return value_ms


def read_time_ms(request: Any, field: str) -> int | None:
    """Return a time of a request; ``None`` if it is not there. Raises InvalidRequest."""
    return check_time_ms(field, getattr(request, field)) if request.HasField(field) else None


def read_glob(text: str) -> re.Pattern[str]:
    """Return what a glob means: ``*`` any characters, ``?`` one, ``[a-z]``, ``[!a-z]``. Raises InvalidRequest."""
    if not text or len(text) > MAX_GLOB_CHARS:
        raise InvalidRequest(f"glob of {len(text)} characters: use 1 to {MAX_GLOB_CHARS}; leave it out for all")
    return re.compile(translate(text))


@dataclass(frozen=True, slots=True)
class SnapshotQuery:
    """A checked GetSnapshotRequest.

    Attributes:
        table: A well-formed table name; the table need not exist.
        as_of_ms: Time travel, unix ms; ``None`` for the newest state.
        filters: Conditions on partition values, all of which must hold.
        where: A condition on columns, not checked yet.
        min_commit: Id of a batch that the answer must have.
        presign_ms: How long URLs of files last.
        tag: Name of a tag that is asked for.
        is_columnar: Whether files are named in record batches.
        with_bounds: Whether these have the bounds of columns.
        since_snapshot_id: What the caller has already; ``None``: the answer is whole.
        request_bytes: How large the request is: what is remembered by a large one costs memory.
    """

    table: str
    as_of_ms: int | None
    filters: tuple[PartitionFilter, ...]
    where: str | None
    min_commit: str | None
    presign_ms: int | None
    tag: str | None
    is_columnar: bool
    with_bounds: bool
    since_snapshot_id: str | None
    request_bytes: int


def parse_request(request: snapshot_pb2.GetSnapshotRequest) -> SnapshotQuery:
    """Check a request.

    Raises:
        InvalidRequest: Names the field, the value and what is allowed.
    """
    query = SnapshotQuery(
        table=check_table_name(request.table),
        as_of_ms=read_time_ms(request, "as_of_ms"),
        filters=tuple(_parse_filter(condition) for condition in request.partition_filters),
        where=optional(request, "where"),
        min_commit=check_batch_id(request.min_commit) if request.HasField("min_commit") else None,
        presign_ms=optional(request, "presign_ms"),
        tag=optional(request, "tag"),
        is_columnar=request.columnar,
        with_bounds=request.with_bounds,
        since_snapshot_id=optional(request, "since_snapshot_id"),
        request_bytes=request.ByteSize(),
    )
    if query.presign_ms is not None and not MIN_PRESIGN_MS <= query.presign_ms <= MAX_PRESIGN_MS:
        raise InvalidRequest(f"presign_ms {query.presign_ms} is not allowed: use {MIN_PRESIGN_MS} to {MAX_PRESIGN_MS}")
    if query.is_columnar and query.presign_ms is not None:
        raise InvalidRequest(f"table {query.table}: record batches have no URLs: leave columnar or presign_ms out")
    if query.with_bounds and not query.is_columnar:
        raise InvalidRequest(f"table {query.table}: with_bounds is for record batches: set columnar, too")
    if query.tag is not None and (query.as_of_ms is not None or query.min_commit is not None):
        raise InvalidRequest(
            f"table {query.table}: tag {query.tag[:80]!r} says which time is read: leave as_of_ms and min_commit out"
        )
    if query.filters or (query.where, query.as_of_ms, query.tag, query.presign_ms) != (None, None, None, None):
        return replace(query, since_snapshot_id=None)  # what is remembered is of whole tables
    return query


def _parse_filter(condition: snapshot_pb2.PartitionFilter) -> PartitionFilter:
    match condition.WhichOneof("condition"):
        case "equals":
            return PartitionFilter.equals(condition.field, condition.equals)
        case "any_of":
            return PartitionFilter.equals(condition.field, *condition.any_of.values)
        case "is_null":
            return PartitionFilter(condition.field, is_null=condition.is_null)
        case "glob":
            return PartitionFilter(condition.field, glob=condition.glob)
        case "range":
            bounds = condition.range
            given = (bounds.WhichOneof("lower"), bounds.WhichOneof("upper"))
            return PartitionFilter(condition.field, **{name: getattr(bounds, name) for name in given if name})
    raise InvalidRequest(
        f"the filter on partition field {condition.field[:80]!r} has no condition that this server knows; "
        "it knows equals, any_of, range, is_null and glob: set one, or upgrade the server"
    )
