"""Snapshots from a snapshot service: one gRPC call each. Owns the channel, and turns status codes into our errors."""

from collections.abc import Sequence
from typing import Any, Final

import grpc
from icedb_log import errors
from icedb_log.errors import IceDBError, InvalidRequest, Unavailable
from icedb_log.storage.stores import S3Options
from icedb_log.tables.partition_filter import PartitionFilter
from icedb_proto import snapshot_pb2, snapshot_pb2_grpc

from icedb_client.snapshots import DataFile, Snapshot

MAX_MESSAGE_BYTES: Final = 64 * 1024 * 1024
ERROR_METADATA_KEY: Final = "icedb-error"

_BY_CODE: Final[dict[grpc.StatusCode, type[IceDBError]]] = {
    grpc.StatusCode.INVALID_ARGUMENT: errors.InvalidRequest,
    grpc.StatusCode.OUT_OF_RANGE: errors.BelowHorizon,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.InvalidRequest,
    grpc.StatusCode.NOT_FOUND: errors.NotFound,
    grpc.StatusCode.FAILED_PRECONDITION: errors.HaltError,
    grpc.StatusCode.ABORTED: errors.CommitConflict,
}


class GrpcSnapshots:
    """Asks a snapshot service. Thread-safe; close it when done.

    Args:
        address: ``host:port``.
        timeout_ms: How long one call may take.
        s3: How an engine reaches the files, passed on in each snapshot that lies on S3.
    """

    def __init__(self, address: str, *, timeout_ms: int, s3: S3Options | None) -> None:
        self._address = address
        self._timeout_s = timeout_ms / 1000
        self._s3 = s3
        self._channel = grpc.insecure_channel(
            address,
            options=(
                ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
                ("grpc.enable_http_proxy", 0),
            ),
        )
        self._stub = snapshot_pb2_grpc.SnapshotServiceStub(self._channel)

    def close(self) -> None:
        """Close the channel. May be called again."""
        self._channel.close()

    def get(
        self,
        table: str,
        *,
        as_of_ms: int | None,
        filters: Sequence[PartitionFilter],
        max_staleness_ms: int | None,
    ) -> Snapshot:
        """Return a snapshot.

        Raises:
            InvalidRequest: The call is wrong, its time lies below the horizon, or the answer is too large.
            NotFound: No such table.
            HaltError: The table is halted.
            Unavailable: The service, or the store behind it, did not answer.
        """
        request = snapshot_pb2.GetSnapshotRequest(
            table=table,
            as_of_ms=as_of_ms,
            partition_filters=[to_wire(condition) for condition in filters],
            max_staleness_ms=max_staleness_ms,
        )
        try:
            answer = self._stub.GetSnapshot(request, timeout=self._timeout_s)
        except grpc.RpcError as error:
            raise self._translate(error) from error
        return _read_answer(answer, self._s3)

    def _translate(self, error: Any) -> IceDBError:
        code, details = error.code(), str(error.details())
        named = dict(error.trailing_metadata() or ()).get(ERROR_METADATA_KEY)
        if named is not None:
            kind = getattr(errors, str(named), None)
            if isinstance(kind, type) and issubclass(kind, IceDBError):
                return kind(details)
        if code in _BY_CODE:
            return _BY_CODE[code](f"snapshot service at {self._address}: {details}")
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return Unavailable(
                f"snapshot service at {self._address}: no answer within {self._timeout_s:g} s; "
                "try again, or raise ICEDB_SNAPSHOT_TIMEOUT_MS"
            )
        if code is grpc.StatusCode.UNAVAILABLE:
            return Unavailable(
                f"snapshot service at {self._address} does not answer ({_first_words(details)}); start it, correct "
                "ICEDB_SNAPSHOT_ADDRESS, or unset that to read straight from the store"
            )
        return Unavailable(f"snapshot service at {self._address}: {code.name}: {details}")


def to_wire(condition: PartitionFilter) -> snapshot_pb2.PartitionFilter:
    """Return a filter as the protocol has it.

    Raises:
        InvalidRequest: It has more than one kind of condition; write them as several filters.
    """
    has_range = bool(condition.bounds())
    if (condition.any_of is not None) + (condition.is_null is not None) + has_range != 1:
        raise InvalidRequest(
            f"the filter on partition field {condition.field[:80]} needs one kind of condition; write several filters"
        )
    if condition.any_of is not None:
        values = sorted(condition.any_of)
        if len(values) == 1:
            return snapshot_pb2.PartitionFilter(field=condition.field, equals=values[0])
        return snapshot_pb2.PartitionFilter(field=condition.field, any_of=snapshot_pb2.ValueList(values=values))
    if condition.is_null is not None:
        return snapshot_pb2.PartitionFilter(field=condition.field, is_null=condition.is_null)
    if condition.at_least is not None and condition.above is not None:
        raise InvalidRequest(f"the filter on partition field {condition.field[:80]} has two lower bounds")
    if condition.at_most is not None and condition.below is not None:
        raise InvalidRequest(f"the filter on partition field {condition.field[:80]} has two upper bounds")
    bounds = snapshot_pb2.ValueRange()
    for name in ("at_least", "above", "at_most", "below"):
        value = getattr(condition, name)
        if value is not None:
            setattr(bounds, name, value)
    return snapshot_pb2.PartitionFilter(field=condition.field, range=bounds)


def _read_answer(answer: snapshot_pb2.GetSnapshotResponse, s3: S3Options | None) -> Snapshot:
    files = tuple(
        DataFile(
            path=file.path,
            uri=file.uri,
            size_bytes=file.size_bytes,
            row_count=file.row_count if file.HasField("row_count") else None,
            partition={value.name: value.value if value.HasField("value") else None for value in file.partition_values},
            created_ms=file.created_ms,
        )
        for file in answer.files
    )
    is_on_s3 = any(file.uri.startswith("s3://") for file in files)
    return Snapshot(
        table=answer.table,
        snapshot_id=answer.snapshot_id,
        schema={column.name: column.type for column in answer.schema},
        files=files,
        total_file_count=answer.total_file_count,
        as_of_ms=answer.as_of_ms if answer.HasField("as_of_ms") else None,
        is_stable=answer.is_stable,
        last_commit_ms=answer.last_commit_ms if answer.HasField("last_commit_ms") else None,
        horizon_ms=answer.horizon_ms if answer.HasField("horizon_ms") else None,
        s3=(s3 or S3Options()) if is_on_s3 else None,
    )


def _first_words(details: str) -> str:
    return details.partition(":")[0][:120] if details else "no connection"
