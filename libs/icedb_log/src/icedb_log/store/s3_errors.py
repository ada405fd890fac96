"""What an answer of S3, or its absence, means to the caller.

Owns the translation of botocore's errors. The rule that everything rests on: of a conditional write, only an
answer that says so, or a connection that never came about, means "it did not happen"; all else is unknown (W2).
"""

from collections.abc import Mapping
from typing import Any, Final

from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    EndpointProviderError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProxyConnectionError,
)

from icedb_log.errors import (
    CommitOutcomeUnknown,
    IceDBError,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    Unavailable,
    UnsupportedFormat,
)

HTTP_CONFLICT: Final = 409
_HTTP_NOT_FOUND: Final = 404
_HTTP_PRECONDITION_FAILED: Final = 412
_HTTP_RANGE_NOT_SATISFIABLE: Final = 416
_HTTP_TOO_MANY_REQUESTS: Final = 429
_HTTP_SERVER_ERROR: Final = 500
_HTTP_NOT_IMPLEMENTED: Final = 501

_NOT_SENT: Final = (
    EndpointConnectionError,
    ConnectTimeoutError,
    ProxyConnectionError,
    NoCredentialsError,
    PartialCredentialsError,
)
_WRONG_REGION_STATUS: Final = (301, 307)
_DENIED_STATUS: Final = (401, 403)
_CREDENTIAL_CODES: Final = frozenset({"ExpiredToken", "InvalidToken", "TokenRefreshRequired"})
_NOT_S3: Final = (
    "answered 404 without an error of S3's: something else answers there, such as a proxy that has lost its servers; "
    "check ICEDB_S3_ENDPOINT and what stands before the store"
)
# Answers of status 400 that the same call may survive later.
_PASSING_CODES: Final = _CREDENTIAL_CODES | {"RequestTimeout", "IncompleteBody", "BadDigest"}


def status_of(error: ClientError) -> int:
    """Return the HTTP status of an answer; 0 if it had none."""
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return int(status)


def code_of(error: ClientError) -> str:
    """Return S3's name of an error, such as ``NoSuchKey``; for a HEAD it is the status."""
    return str(error.response.get("Error", {}).get("Code", ""))


def is_none_of_s3(error: ClientError) -> bool:
    """Return whether a 404 is none of S3's: it names no error. That of a HEAD has no body to name one.

    A load balancer that has lost its servers says 404 to everything. Taken for S3's, every object of every table would
    be gone, and a table that cannot be looked at would be one that does not exist.
    """
    return error.operation_name != "HeadObject" and names_no_error(error.response)


def names_no_error(answer: Mapping[str, Any]) -> bool:
    """Return whether an answer of status 404, as botocore has read it, says nothing of S3's, or was cut off."""
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    code = str(answer.get("Error", {}).get("Code", ""))
    return status == _HTTP_NOT_FOUND and code in ("", str(_HTTP_NOT_FOUND))


def is_denied(error: ClientError) -> bool:
    """Return whether a person has to give permission, or other credentials."""
    return status_of(error) in _DENIED_STATUS or code_of(error) in _CREDENTIAL_CODES


def is_beyond_the_end(error: BaseException | None) -> bool:
    """Return whether S3 says that a range of bytes begins where the object has ended."""
    return isinstance(error, ClientError) and status_of(error) == _HTTP_RANGE_NOT_SATISFIABLE


def explain_read(error: Exception, *, where: str, key: str) -> IceDBError:
    """Return what a failed read, listing, delete or unconditional write means.

    Args:
        error: What botocore raised after its own retries.
        where: The store in words, ``bucket events at http://...``.
        key: Key or prefix.
    """
    if isinstance(error, ClientError):
        return _explain_answer(error, where=where, key=key)
    if isinstance(error, ParamValidationError):
        return InvalidRequest(f"{key}: {where}: {error}")
    if isinstance(error, EndpointProviderError):
        return InvalidRequest(f"{where}: {error}; correct ICEDB_S3_ENDPOINT and ICEDB_S3_REGION")
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return Unavailable(f"{where}: no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    if isinstance(error, _NOT_SENT):
        return Unavailable(f"{where}: cannot connect; check that it runs, and ICEDB_S3_ENDPOINT ({error})")
    return Unavailable(f"{key}: {where}: no usable answer; try again later ({error})")


def explain_conditional_write(error: Exception, *, where: str, key: str) -> IceDBError:
    """Return what a failed conditional write, sent once, means (W2). Arguments as for :func:`explain_read`.

    404 means "lost" as 412 does: a replace whose object was deleted meanwhile, as some servers put it.
    """
    if isinstance(error, ClientError):
        status = status_of(error)
        if status == _HTTP_NOT_FOUND and is_none_of_s3(error):
            return CommitOutcomeUnknown(
                f"{key}: {where}: {_NOT_S3}; whether the write landed is not known: read it back (W2)"
            )
        is_refused = status == _HTTP_PRECONDITION_FAILED
        if is_refused or (status == _HTTP_NOT_FOUND and code_of(error) != "NoSuchBucket"):
            return PreconditionFailed(
                f"{key}: {where}: the condition does not hold ({code_of(error)}); read the object and decide (W2)"
            )
        if status >= _HTTP_SERVER_ERROR and status != _HTTP_NOT_IMPLEMENTED:
            return CommitOutcomeUnknown(
                f"{key}: {where}: answered {status} {code_of(error)}: the write may have landed; read it back (W2)"
            )
        return _explain_answer(error, where=where, key=key)
    if isinstance(error, (*_NOT_SENT, ParamValidationError, EndpointProviderError)):
        return explain_read(error, where=where, key=key)
    return CommitOutcomeUnknown(
        f"{key}: {where}: no usable answer ({error}): the write may still land; read it back (W2)"
    )


def _explain_answer(error: ClientError, *, where: str, key: str) -> IceDBError:
    """Return what an answer with an error status means."""
    status, code = status_of(error), code_of(error)
    words = f"{code} {error.response.get('Error', {}).get('Message', '')}".strip()
    setup = _NOT_S3 if status == _HTTP_NOT_FOUND and is_none_of_s3(error) else _explain_setup(status, code, words)
    if setup is not None:
        return Unavailable(f"{key}: {where}: {setup}")
    if status == _HTTP_NOT_FOUND:
        return NotFound(f"{key}: {where}: no such object")
    if status == _HTTP_PRECONDITION_FAILED:
        return PreconditionFailed(f"{key}: {where}: its ETag is another; list and read again")
    if status == _HTTP_NOT_IMPLEMENTED:
        return UnsupportedFormat(
            f"{key}: {where}: does not know this request ({words}); use a store with conditional writes"
        )
    is_passing = status in (HTTP_CONFLICT, _HTTP_TOO_MANY_REQUESTS) or code in _PASSING_CODES
    if is_passing or status >= _HTTP_SERVER_ERROR or not status:
        return Unavailable(f"{key}: {where}: answered {status} {words}; try again later")
    return InvalidRequest(f"{key}: {where}: refused the request: {status} {words}; correct the call")


def _explain_setup(status: int, code: str, words: str) -> str | None:
    """Return what an operator has to set right, with the remedy, or ``None``."""
    if code == "NoSuchBucket":
        return "no such bucket; create it, or correct ICEDB_STORE"
    if code == "RequestTimeTooSkewed":
        return f"this host's clock and the store's are too far apart ({words}); set the one that is wrong (NTP)"
    if status in _DENIED_STATUS:
        return (
            f"access denied ({words}); check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and that they may get, put, "
            "delete and list objects in this bucket"
        )
    if status in _WRONG_REGION_STATUS or code == "AuthorizationHeaderMalformed":
        return f"the bucket lies in another region ({words}); set ICEDB_S3_REGION"
    return None
