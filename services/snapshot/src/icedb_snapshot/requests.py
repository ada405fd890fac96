"""From requests on the wire to checked values."""

import re
from dataclasses import dataclass
from fnmatch import translate
from typing import Any, Final

from icedb_log.errors import InvalidRequest
from icedb_log.keys import MAX_MS, check_table_name
from icedb_log.serving.batch_commits import check_batch_id
from icedb_log.store.object_store import MAX_PRESIGN_MS, MIN_PRESIGN_MS
from icedb_log.table.partitions import PartitionFilter
from icedb_proto import snapshot_pb2

from icedb_snapshot.settings import MAX_STALENESS_MS

MAX_GLOB_CHARS: Final = 1024


def read_max_staleness_ms(request: Any, *, default_ms: int) -> int:
    """Return how old the knowledge behind an answer may be. Raises InvalidRequest."""
    if not request.HasField("max_staleness_ms"):
        return default_ms
    value_ms = int(request.max_staleness_ms)
    if not 0 <= value_ms <= MAX_STALENESS_MS:
        raise InvalidRequest(f"max_staleness_ms {value_ms} is not allowed: use 0 (read now) to {MAX_STALENESS_MS}")
    return value_ms


def check_time_ms(name: str, value_ms: int) -> int:
    """Return a time if it is one, else raise InvalidRequest."""
    if not 0 <= value_ms <= MAX_MS:
        raise InvalidRequest(f"{name} {value_ms} is not a time: use unix milliseconds, 0 to {MAX_MS}")
    return value_ms


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
        max_staleness_ms: How old the read behind the answer may be.
        where: A condition on columns, not checked yet.
        min_commit: Id of a batch that the answer must have.
        presign_ms: How long URLs of files last.
        pin: Name of a pin that is asked for.
        request_bytes: How large the request is: what is remembered by a large one costs memory.
    """

    table: str
    as_of_ms: int | None
    filters: tuple[PartitionFilter, ...]
    max_staleness_ms: int
    where: str | None = None
    min_commit: str | None = None
    presign_ms: int | None = None
    pin: str | None = None
    request_bytes: int = 0


def parse_request(request: snapshot_pb2.GetSnapshotRequest, *, default_max_staleness_ms: int) -> SnapshotQuery:
    """Check a request.

    Raises:
        InvalidRequest: Names the field, the value and what is allowed.
    """
    query = SnapshotQuery(
        table=check_table_name(request.table),
        as_of_ms=check_time_ms("as_of_ms", request.as_of_ms) if request.HasField("as_of_ms") else None,
        filters=tuple(_parse_filter(condition) for condition in request.partition_filters),
        max_staleness_ms=read_max_staleness_ms(request, default_ms=default_max_staleness_ms),
        where=request.where if request.HasField("where") else None,
        min_commit=check_batch_id(request.min_commit) if request.HasField("min_commit") else None,
        presign_ms=_presign(request),
        pin=request.pin if request.HasField("pin") else None,
        request_bytes=request.ByteSize(),
    )
    if query.pin is not None and (query.as_of_ms is not None or query.min_commit is not None):
        raise InvalidRequest(
            f"table {query.table}: pin {query.pin[:80]!r} says which time is read: leave as_of_ms and min_commit out"
        )
    return query


def _presign(request: snapshot_pb2.GetSnapshotRequest) -> int | None:
    if not request.HasField("presign_ms"):
        return None
    presign_ms: int = request.presign_ms
    if not MIN_PRESIGN_MS <= presign_ms <= MAX_PRESIGN_MS:
        raise InvalidRequest(f"presign_ms {presign_ms} is not allowed: use {MIN_PRESIGN_MS} to {MAX_PRESIGN_MS}")
    return presign_ms


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
    if kind == "glob":
        return PartitionFilter(condition.field, glob=condition.glob)
    raise InvalidRequest(
        f"the filter on partition field {condition.field[:80]!r} has no condition that this server knows; "
        "it knows equals, any_of, range, is_null and glob: set one, or upgrade the server"
    )
