"""Errors as S3 clients know them: a code, a status, a message.

Owns the mapping from the errors of :mod:`icedb_log.errors` to S3's. Clients decide by code and status whether they try
again, so nothing that will not mend itself may be a 5xx, and nothing that will may be a 4xx.
"""

from typing import Final

from icedb_log.errors import (
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

_BY_ERROR: Final[tuple[tuple[type[IceDBError], str, int], ...]] = (
    (Unavailable, "ServiceUnavailable", 503),
    (PermissionDenied, "AccessDenied", 403),
    (Unauthenticated, "AccessDenied", 403),
    (NotFound, "NoSuchKey", 404),
    (InvalidRequest, "InvalidArgument", 400),
    (HaltError, "InternalError", 500),
)
"""A halted table stays so until a person has looked; its words say why."""


class S3Error(IceDBError):
    """An answer that is an error. What the caller does: what its code says.

    Args:
        code: S3's name of it.
        message: For people.
        status: HTTP status.
        headers: Further headers of the answer.
    """

    def __init__(self, code: str, message: str, *, status: int = 400, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.status = status
        self.headers = headers or {}


def access_denied(message: str) -> S3Error:
    """Return the answer to a caller who may not do this."""
    return S3Error("AccessDenied", message, status=403)


def invalid_argument(message: str) -> S3Error:
    """Return what a request gets that can never be answered."""
    return S3Error("InvalidArgument", message)


def no_such_key(key: str, why: str = "no live file of a table that you may read has this key") -> S3Error:
    """Return what a request for an object gets that is not there."""
    return S3Error("NoSuchKey", f"{key[:200]}: {why}", status=404)


def not_published(key: str) -> S3Error:
    """Return what a request gets for whatever it may not read by the keys of Iceberg's metadata."""
    return access_denied(
        f"{key[:200]}: is not in a published state of a table that you may read; load the table from the catalog again"
    )


def no_such_bucket(bucket: str) -> S3Error:
    """Return what a request for another bucket gets."""
    return S3Error("NoSuchBucket", f"The bucket {bucket[:80]!r} does not exist here.", status=404)


def not_implemented(what: str) -> S3Error:
    """Return what a request gets that S3 knows and this server does not."""
    return S3Error("NotImplemented", f"{what} is not offered by this read-only endpoint.", status=501)


def to_s3_error(error: Exception) -> S3Error:
    """Return the answer that an error becomes. What is not ours becomes an InternalError without its words."""
    if isinstance(error, S3Error):
        return error
    if isinstance(error, Overloaded):
        seconds = str(max(1, -(-error.retry_after_ms // SECOND_MS)))
        return S3Error("SlowDown", str(error), status=503, headers={"Retry-After": seconds})
    for kind, code, status in _BY_ERROR:
        if isinstance(error, kind):
            return S3Error(code, str(error), status=status)
    return S3Error("InternalError", "We encountered an internal error. Please try again.", status=500)
