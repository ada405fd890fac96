"""From our errors to gRPC: status code, details and trailing metadata. Needs the extra ``grpc`` of this package.

A typed error survives the wire: its class name travels as trailing metadata, its message as the status details. One
that says when to try again carries that twice: as google.rpc.RetryInfo, which retry libraries read, and as plain
metadata. Unknown errors are INTERNAL, without their text.
"""

from dataclasses import dataclass
from typing import Final

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status
from icedb_log.errors import (
    BelowHorizon,
    CommitConflict,
    CommitOutcomeUnknown,
    Fenced,
    HaltError,
    IceDBError,
    InvalidRequest,
    NotFound,
    Overloaded,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
)

ERROR_METADATA_KEY: Final = "icedb-error"
RETRY_METADATA_KEY: Final = "retry-after-ms"
MAX_DETAILS_CHARS: Final = 2000
"""Details travel in a header, and headers are limited to 8 KiB."""

_CODES: Final[tuple[tuple[type[IceDBError], grpc.StatusCode], ...]] = (
    # From the special to the general: the first that fits counts.
    (BelowHorizon, grpc.StatusCode.OUT_OF_RANGE),
    (InvalidRequest, grpc.StatusCode.INVALID_ARGUMENT),
    (Unauthenticated, grpc.StatusCode.UNAUTHENTICATED),
    (PermissionDenied, grpc.StatusCode.PERMISSION_DENIED),
    (NotFound, grpc.StatusCode.NOT_FOUND),
    (Overloaded, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (Unavailable, grpc.StatusCode.UNAVAILABLE),
    (HaltError, grpc.StatusCode.FAILED_PRECONDITION),
    (CommitConflict, grpc.StatusCode.ABORTED),
    (Fenced, grpc.StatusCode.ABORTED),
    (CommitOutcomeUnknown, grpc.StatusCode.UNKNOWN),
)


@dataclass(frozen=True, slots=True)
class CallStatus:
    """How a call ends.

    Attributes:
        code: Status code.
        details: For people.
        trailing_metadata: Names to values.
    """

    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, str | bytes], ...]


def status_code(error: Exception) -> grpc.StatusCode:
    """Return the status code of an error; INTERNAL for one that is not ours."""
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return grpc.StatusCode.INTERNAL


def call_status(error: IceDBError, *, code: grpc.StatusCode | None = None) -> CallStatus:
    """Return how a call ends that raised an error of ours.

    Args:
        error: The error.
        code: Instead of the code of its kind.
    """
    code = code or status_code(error)
    details = str(error)[:MAX_DETAILS_CHARS]
    metadata: list[tuple[str, str | bytes]] = [(ERROR_METADATA_KEY, error_name(error))]
    if isinstance(error, Overloaded):
        metadata.append((RETRY_METADATA_KEY, str(error.retry_after_ms)))
        metadata.extend(_retry_info(code, details, error.retry_after_ms))
    return CallStatus(code, details, tuple(metadata))


def error_name(error: IceDBError) -> str:
    """Return the name of the nearest class of :mod:`icedb_log.errors`: what clients know."""
    for kind in type(error).__mro__:
        if kind.__module__ == IceDBError.__module__:
            return kind.__name__
    return IceDBError.__name__


def _retry_info(code: grpc.StatusCode, details: str, retry_after_ms: int) -> tuple[tuple[str, bytes], ...]:
    info = error_details_pb2.RetryInfo()
    info.retry_delay.FromMilliseconds(retry_after_ms)
    packed = any_pb2.Any()
    packed.Pack(info)
    status = rpc_status.to_status(status_pb2.Status(code=code.value[0], message=details, details=[packed]))
    return tuple(status.trailing_metadata)
