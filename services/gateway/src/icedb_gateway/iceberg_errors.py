"""Errors as Iceberg's REST clients know them: a status, and a JSON body with a type and a message.

Owns the mapping from the errors of :mod:`icedb_log.errors`. Clients show the message as it stands and decide by the
status whether they try again (429 and 503 only). Errors of ``/v1/oauth/tokens`` have the form of RFC 6749 instead.
"""

from typing import Any, Final

import orjson
from icedb_log.errors import (
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
from icedb_log.units import SECOND_MS
from icedb_service.access.guard import RateLimited
from starlette.responses import Response

JSON: Final = "application/json"
FORBIDDEN: Final = 403
_RETRY_AFTER_MS: Final = 1000
_BY_ERROR: Final[tuple[tuple[type[IceDBError], str, int], ...]] = (
    (RateLimited, "TooManyRequestsException", 429),
    (Overloaded, "ServiceUnavailableException", 503),
    (Unavailable, "ServiceUnavailableException", 503),
    (CommitConflict, "ServiceUnavailableException", 503),
    (Fenced, "ServiceUnavailableException", 503),
    (CommitOutcomeUnknown, "ServiceUnavailableException", 503),
    (PermissionDenied, "ForbiddenException", FORBIDDEN),
    (Unauthenticated, "NotAuthorizedException", 401),
    (NotFound, "NoSuchTableException", 404),
    (InvalidRequest, "BadRequestException", 400),
    (HaltError, "InternalServerError", 500),
)
"""A halted table stays so until a person has looked; its words say why."""
_RETRIED: Final = (429, 503)
_UNAUTHENTICATED: Final = 401


class IcebergError(IceDBError):
    """An answer that is an error. What the caller does: what its message says.

    Args:
        kind: Iceberg's name of it, e.g. ``NoSuchTableException``.
        message: For people.
        status: HTTP status.
    """

    def __init__(self, kind: str, message: str, *, status: int) -> None:
        super().__init__(message)
        self.kind = kind
        self.status = status


class TokenError(IceDBError):
    """A refused exchange of credentials for a token. What the caller does: mend its credentials.

    Args:
        code: ``invalid_request``, ``invalid_client`` or ``unsupported_grant_type`` (RFC 6749, section 5.2).
        message: For people.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def read_only() -> IcebergError:
    """Return what every request gets that would change something."""
    return IcebergError(
        "ForbiddenException",
        "this catalog is read-only: IceDB's log says what a table is. Rows come by ingest (HTTP, gRPC, `icedb ingest`) "
        "and go by `icedb delete`; tables are made by `icedb table create`, changed by `icedb table alter` and dropped "
        "by `icedb table drop`",
        status=FORBIDDEN,
    )


def no_such_namespace(name: str, own: str) -> IcebergError:
    """Return what a request gets for another namespace than the one there is."""
    shown = name.replace("\x1f", ".")[:80]
    return IcebergError(
        "NoSuchNamespaceException", f"namespace {shown!r} does not exist: all tables are in {own!r}", status=404
    )


def describe(error: Exception) -> tuple[int, str]:
    """Return the status and Iceberg's type that an error becomes."""
    if isinstance(error, IcebergError):
        return error.status, error.kind
    if isinstance(error, TokenError):
        return (_UNAUTHENTICATED if error.code == "invalid_client" else 400), error.code
    for kind, name, status in _BY_ERROR:
        if isinstance(error, kind):
            return status, name
    return 500, "InternalServerError"


def error_response(error: Exception) -> Response:
    """Return the answer that an error becomes. What is not ours is answered without its words."""
    status, kind = describe(error)
    message = str(error) if isinstance(error, IceDBError) else "an internal error; the gateway's log has the reason"
    headers = {}
    if status in _RETRIED:
        retry_after_ms = error.retry_after_ms if isinstance(error, Overloaded) else _RETRY_AFTER_MS
        headers["Retry-After"] = str(max(1, -(-retry_after_ms // SECOND_MS)))
    if status == _UNAUTHENTICATED:
        headers["WWW-Authenticate"] = 'Bearer realm="icedb"'
    body: dict[str, Any] = {"error": {"message": message, "type": kind, "code": status}}
    if isinstance(error, TokenError):
        body = {"error": kind, "error_description": message}
    return Response(orjson.dumps(body), status, headers, JSON)
