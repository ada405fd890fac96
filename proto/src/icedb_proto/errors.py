"""How errors travel over gRPC: which status code each kind has, and in which metadata its name, its wait and its table stand.

Servers write it, clients read it. A client that does not know the name goes by the code.
"""

from collections.abc import Mapping
from typing import Final

import grpc
from icedb_log import errors
from icedb_log.errors import IceDBError

ERROR_METADATA_KEY: Final = "icedb-error"
"""Name of the class of :mod:`icedb_log.errors`."""
RETRY_METADATA_KEY: Final = "retry-after-ms"
"""How long to wait before the same call is made again, milliseconds."""
TABLE_METADATA_KEY: Final = "icedb-table"
"""Which table was not found."""

STATUS_CODES: Final[tuple[tuple[type[IceDBError], grpc.StatusCode], ...]] = (
    # From the special to the general: the first that fits counts.
    (errors.BelowHorizon, grpc.StatusCode.OUT_OF_RANGE),
    (errors.InvalidRequest, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.Unauthenticated, grpc.StatusCode.UNAUTHENTICATED),
    (errors.PermissionDenied, grpc.StatusCode.PERMISSION_DENIED),
    (errors.NotFound, grpc.StatusCode.NOT_FOUND),
    (errors.Overloaded, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.Unavailable, grpc.StatusCode.UNAVAILABLE),
    (errors.HaltError, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.CommitConflict, grpc.StatusCode.ABORTED),
    (errors.Fenced, grpc.StatusCode.ABORTED),
    (errors.CommitOutcomeUnknown, grpc.StatusCode.UNKNOWN),
)

_AMBIGUOUS: Final = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN)
"""Codes that gRPC itself gives, too: for a message that is too large, a server that is away, a bug."""

ERRORS_BY_CODE: Final[Mapping[grpc.StatusCode, type[IceDBError]]] = {
    code: kind for kind, code in reversed(STATUS_CODES) if code not in _AMBIGUOUS
}
"""What a code says by itself, of a server that names no error."""


def status_code(error: Exception) -> grpc.StatusCode:
    """Return the status code of an error; INTERNAL for one that is not ours."""
    return next((code for kind, code in STATUS_CODES if isinstance(error, kind)), grpc.StatusCode.INTERNAL)
