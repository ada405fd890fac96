"""From a request on the wire to checked values."""

from dataclasses import dataclass
from typing import Final

from icedb_log.errors import InvalidRequest
from icedb_log.keys import MAX_MS, check_table_name
from icedb_log.tables.partition_filter import PartitionFilter
from icedb_proto import snapshot_pb2

MAX_STALENESS_MS: Final = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class SnapshotQuery:
    """A checked GetSnapshotRequest.

    Attributes:
        table: A well-formed table name; the table need not exist.
        as_of_ms: Time travel, unix ms; ``None`` for the newest state.
        filters: Conditions on partition values, all of which must hold.
        max_staleness_ms: How old the read behind the answer may be.
    """

    table: str
    as_of_ms: int | None
    filters: tuple[PartitionFilter, ...]
    max_staleness_ms: int


def parse_request(request: snapshot_pb2.GetSnapshotRequest, *, default_max_staleness_ms: int) -> SnapshotQuery:
    """Check a request.

    Raises:
        InvalidRequest: Names the field, the value and what is allowed.
    """
    as_of_ms = request.as_of_ms if request.HasField("as_of_ms") else None
    if as_of_ms is not None and not 0 <= as_of_ms <= MAX_MS:
        raise InvalidRequest(f"as_of_ms {as_of_ms} is not a time: use unix milliseconds, 0 to {MAX_MS}")
    max_staleness_ms = default_max_staleness_ms
    if request.HasField("max_staleness_ms"):
        max_staleness_ms = request.max_staleness_ms
        if not 0 <= max_staleness_ms <= MAX_STALENESS_MS:
            raise InvalidRequest(
                f"max_staleness_ms {max_staleness_ms} is not allowed: use 0 (read now) to {MAX_STALENESS_MS}"
            )
    return SnapshotQuery(
        table=check_table_name(request.table),
        as_of_ms=as_of_ms,
        filters=tuple(_parse_filter(condition) for condition in request.partition_filters),
        max_staleness_ms=max_staleness_ms,
    )


def _parse_filter(condition: snapshot_pb2.PartitionFilter) -> PartitionFilter:
    kind = condition.WhichOneof("condition")
    if kind == "equals":
        return PartitionFilter.equals(condition.field, condition.equals)
    if kind == "any_of":
        return PartitionFilter.equals(condition.field, *condition.any_of.values)
    if kind == "is_null":
        return PartitionFilter(condition.field, is_null=condition.is_null)
    if kind == "range":
        bounds = condition.range
        lower, upper = bounds.WhichOneof("lower"), bounds.WhichOneof("upper")
        return PartitionFilter(
            condition.field,
            at_least=bounds.at_least if lower == "at_least" else None,
            above=bounds.above if lower == "above" else None,
            at_most=bounds.at_most if upper == "at_most" else None,
            below=bounds.below if upper == "below" else None,
        )
    raise InvalidRequest(
        f"the filter on partition field {condition.field[:80]!r} has no condition that this server knows; "
        "it knows equals, any_of, range and is_null: set one, or upgrade the server"
    )
