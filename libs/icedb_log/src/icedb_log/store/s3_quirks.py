"""What answers of S3 mean, and where servers that speak its protocol differ: the place for a quirk of a store.

Owns the translation of botocore's answers and errors. The rule that everything rests on: of a conditional write, only
an answer that says so, or a connection that never came about, means "it did not happen"; all else is unknown (W2).

Servers are known to differ in this:

* ETags come with quotes or without, and some match only the bare form: in here they have none (:func:`info_of`).
* A range is ignored, and the whole object sent (:func:`part_of`).
* A ``Date`` header is missing, behind some proxies (:func:`date_ms_of`); it is what ages are told by (J1).
* A conditional write that meets another request for its key is answered 409, and is sent again
  (:func:`is_conflict_in_progress`).
* A replace whose object is gone is answered 404 instead of 412 (:func:`explain_conditional_write`).
* A load balancer without servers says 404 to everything (:func:`names_no_error`).
* A delete is answered 200 and nothing was deleted, or its error names no key (:func:`read_delete_answer`). Servers of
  before 2025 want an MD5 of it (:func:`add_content_md5`).
* Uploads cannot be listed at all (:func:`is_unknown_request`), only by the exact key, or without an end
  (:meth:`icedb_log.store.s3.S3ObjectStore.abort_stale_uploads`).
* Newer checksums and buckets in host names are for AWS only (:data:`ENDPOINT_CONFIG`).
* Conditions of a copy, or of a HEAD, are ignored or want another form of ETag: neither is relied on.
* Conditions of a write are ignored: :func:`icedb_log.store.object_store.probe_conditional_writes` refuses such a store.
  Times that are not the store's own: :func:`icedb_log.store.store_clock.check_store_clock` does.
"""

import base64
import contextlib
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    EndpointProviderError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProxyConnectionError,
    SSLError,
)
from botocore.utils import parse_timestamp

from icedb_log.errors import (
    CommitOutcomeUnknown,
    IceDBError,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    StoreRefused,
    Unavailable,
    UnsupportedFormat,
)
from icedb_log.store.deletes import BatchAnswer
from icedb_log.store.object_store import DeleteFailure, FailedDelete, ObjectInfo, StoredObject
from icedb_log.store.request_failures import reason_of_status

ENDPOINT_CONFIG: Final[Mapping[str, Any]] = {
    "s3": {"addressing_style": "path"},
    "request_checksum_calculation": "when_required",
    "response_checksum_validation": "when_required",
}
"""What a client of any server but AWS is configured with: the bucket in the path, checksums only where S3 requires
them."""

_HTTP_CONFLICT: Final = 409
_HTTP_NOT_FOUND: Final = 404
_HTTP_PRECONDITION_FAILED: Final = 412
_HTTP_RANGE_NOT_SATISFIABLE: Final = 416
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
_NO_TLS: Final = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL", "HTTP_REQUEST")
"""What OpenSSL says of an answer that is no TLS, by its age."""
_NO_TRUST: Final = "CERTIFICATE_VERIFY_FAILED"
_UNKNOWN_REQUEST: Final = frozenset({"NotImplemented", "MethodNotAllowed"})
_NOT_S3: Final = (
    "answered 404 without an error of S3's: something else answers there, such as a proxy that has lost its servers; "
    "check ICEDB_S3_ENDPOINT and what stands before the store"
)
# Answers of status 400 that the same call may survive later.
_PASSING_CODES: Final = _CREDENTIAL_CODES | {"RequestTimeout", "IncompleteBody", "BadDigest"}

_DELETE_KINDS: Final[Mapping[str, DeleteFailure]] = {
    **dict.fromkeys(
        ("AccessDenied", "AllAccessDisabled", "AccountProblem", "AccessForbidden", "InvalidObjectState"), "denied"
    ),
    **dict.fromkeys(
        (
            "SlowDown",
            "ServiceUnavailable",
            "Throttling",
            "ThrottlingException",
            "RequestThrottled",
            "RequestLimitExceeded",
            "TooManyRequests",
            "TooManyRequestsException",
            "BandwidthLimitExceeded",
        ),
        "throttled",
    ),
    **dict.fromkeys(("InternalError", "InternalFailure", "RequestTimeout", "OperationAborted"), "unanswered"),
}
"""What S3's names of errors mean for a key that was to be deleted; all others are ``other``."""


# --- objects ---------------------------------------------------------------------------------------------------------


def info_of(key: str, answer: Mapping[str, Any], *, size_bytes: int) -> ObjectInfo:
    """Describe an object as an answer or an entry of a listing does."""
    modified: datetime = answer["LastModified"]
    return ObjectInfo(key, strip_quotes(answer["ETag"]), size_bytes, int(modified.timestamp()) * 1000)


def part_of(key: str, answer: Mapping[str, Any], body: bytes, *, start: int, length: int) -> StoredObject:
    """Return what a read of a range found; a server that ignores ranges has sent the whole object."""
    content_range = answer.get("ContentRange")
    if content_range is None:
        return StoredObject(info_of(key, answer, size_bytes=len(body)), body[start : start + length])
    return StoredObject(info_of(key, answer, size_bytes=int(content_range.rpartition("/")[2])), body)


def strip_quotes(etag: str) -> str:
    """Return an ETag without quotes."""
    return etag.strip('"')


def parse_time(value: Any) -> datetime:
    """Return a time as botocore's own parser does, a listing's ``2026-11-22T10:11:12.000Z`` fifty times as fast."""
    if isinstance(value, str) and value.endswith("Z"):
        with contextlib.suppress(ValueError):
            return datetime.fromisoformat(value)
    parsed: datetime = parse_timestamp(value)
    return parsed


def date_ms_of(headers: Mapping[str, str]) -> int:
    """Return the time of an answer's ``Date`` header, unix ms, in whole seconds. Raises ValueError."""
    return int(parsedate_to_datetime(headers.get("date", "")).timestamp()) * 1000


# --- errors ----------------------------------------------------------------------------------------------------------


def status_of(error: ClientError) -> int:
    """Return the HTTP status of an answer; 0 if it had none."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def code_of(error: ClientError) -> str:
    """Return S3's name of an error, such as ``NoSuchKey``; for a HEAD it is the status."""
    return str(error.response.get("Error", {}).get("Code", ""))


def names_no_error(operation: str, answer: Mapping[str, Any]) -> bool:
    """Return whether an answer of status 404, as botocore has read it, says nothing of S3's, or was cut off.

    A load balancer that has lost its servers says 404 to everything. Taken for S3's, every object of every table would
    be gone, and a table that cannot be looked at would be one that does not exist. The 404 of a HEAD has no body to
    name an error.
    """
    status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    code = str(answer.get("Error", {}).get("Code", ""))
    return operation != "HeadObject" and status == _HTTP_NOT_FOUND and code in ("", str(_HTTP_NOT_FOUND))


def is_denied(error: ClientError) -> bool:
    """Return whether a person has to give permission, or other credentials."""
    return status_of(error) in _DENIED_STATUS or code_of(error) in _CREDENTIAL_CODES


def is_beyond_the_end(error: BaseException | None) -> bool:
    """Return whether S3 says that a range of bytes begins where the object has ended."""
    return isinstance(error, ClientError) and status_of(error) == _HTTP_RANGE_NOT_SATISFIABLE


def is_conflict_in_progress(error: BaseException | None) -> bool:
    """Return whether a conditional write met another request for the same key, and certainly wrote nothing (409).

    S3 calls it ``ConditionalRequestConflict`` or ``OperationAborted`` and asks for the same request again.
    """
    return isinstance(error, ClientError) and status_of(error) == _HTTP_CONFLICT


def is_unknown_request(error: BaseException | None) -> bool:
    """Return whether the server does not know the request."""
    return isinstance(error, ClientError) and code_of(error) in _UNKNOWN_REQUEST


@contextlib.contextmanager
def explained(where: str, key: str) -> Iterator[None]:
    """Raise what :func:`explain_read` makes of a failed request."""
    try:
        yield
    except (BotoCoreError, ClientError) as error:
        raise explain_read(error, where=where, key=key) from error


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
        return StoreRefused(f"{where}: no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")
    if isinstance(error, (SSLError, *_NOT_SENT)):
        is_tls = isinstance(error, SSLError)
        words = _explain_tls(str(error)) if is_tls else "cannot connect; check that it runs, and ICEDB_S3_ENDPOINT"
        kind = StoreRefused if is_lasting(error) else Unavailable
        return kind(f"{where}: {words} ({error})")
    return Unavailable(f"{key}: {where}: no usable answer; try again later ({error})")


def is_lasting(error: BaseException | None) -> bool:
    """Whether a try that failed so fails again, whoever repeats it: nothing of TLS is agreed on."""
    return isinstance(error, SSLError) and any(words in str(error) for words in (*_NO_TLS, _NO_TRUST))


def _explain_tls(words: str) -> str:
    if any(each in words for each in _NO_TLS):
        return "no TLS is spoken there; make it http:// in ICEDB_S3_ENDPOINT, or correct its port"
    if _NO_TRUST in words:
        return "its certificate is not trusted; name the authority's file in AWS_CA_BUNDLE"
    return "the TLS connection broke; try again later"


def explain_conditional_write(error: Exception, *, where: str, key: str) -> IceDBError:
    """Return what a failed conditional write, sent once, means (W2). Arguments as for :func:`explain_read`.

    404 means "lost" as 412 does: a replace whose object was deleted meanwhile, as some servers put it.
    """
    if isinstance(error, ClientError):
        status = status_of(error)
        if names_no_error(error.operation_name, error.response):
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
    if isinstance(error, (*_NOT_SENT, ParamValidationError, EndpointProviderError)) or is_lasting(error):
        return explain_read(error, where=where, key=key)
    return CommitOutcomeUnknown(
        f"{key}: {where}: no usable answer ({error}): the write may still land; read it back (W2)"
    )


def _explain_answer(error: ClientError, *, where: str, key: str) -> IceDBError:
    """Return what an answer with an error status means."""
    status, code = status_of(error), code_of(error)
    words = f"{code} {error.response.get('Error', {}).get('Message', '')}".strip()
    is_strange = names_no_error(error.operation_name, error.response)
    setup = _NOT_S3 if is_strange else _explain_setup(status, code, words)
    if setup is not None:
        kind = Unavailable if is_strange else StoreRefused  # a proxy may find its servers again
        return kind(f"{key}: {where}: {setup}")
    if status == _HTTP_NOT_FOUND:
        return NotFound(f"{key}: {where}: no such object")
    if status == _HTTP_PRECONDITION_FAILED:
        return PreconditionFailed(f"{key}: {where}: its ETag is another; list and read again")
    if status == _HTTP_NOT_IMPLEMENTED:
        return UnsupportedFormat(
            f"{key}: {where}: does not know this request ({words}); use a store with conditional writes"
        )
    is_passing = status in (0, _HTTP_CONFLICT) or code in _PASSING_CODES
    if is_passing or reason_of_status(status) is not None:
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


# --- deletes ---------------------------------------------------------------------------------------------------------


def add_content_md5(params: dict[str, Any], **_: Any) -> None:
    """Add the checksum that S3 asked for until 2025, and that servers of that age still ask for.

    A handler of botocore's event ``before-call``. Current versions of boto3 send a CRC32 only, which such servers do
    not know: they refuse each DeleteObjects with ``MissingContentMD5``.
    """
    digest = hashlib.md5(params["body"], usedforsecurity=False).digest()
    params["headers"]["Content-MD5"] = base64.b64encode(digest).decode()


def read_delete_answer(keys: Sequence[str], answer: Mapping[str, Any], *, where: str) -> BatchAnswer:
    """Return what an answer of 200 to a DeleteObjects says of the keys that were asked for. Pure.

    200 is no proof. It may hold errors for some keys, and there are servers and proxies that answered 200 and had
    deleted nothing. So the full answer is asked for (not ``Quiet``), and a key is gone only if it is named as deleted.
    A key with a delete marker in a bucket that keeps versions counts as deleted: no reader sees it any more. A key that
    is named twice failed.
    """
    deleted = {entry.get("Key") for entry in answer.get("Deleted", ())}
    errors = {entry.get("Key"): entry for entry in answer.get("Errors", ())}
    asked = frozenset(keys)
    # Some servers answer for the request as a whole, with an empty key.
    stray = next((entry for key, entry in errors.items() if key not in asked), None)
    failed: list[FailedDelete] = []
    for key in keys:
        error = errors.get(key)
        if error is None and key not in deleted:
            failed.append(_explain_key(key, stray) if stray else _explain_silence(key, where))
        elif error is not None and error.get("Code") != "NoSuchKey":
            failed.append(_explain_key(key, error))
    is_overload = any(each.kind == "throttled" for each in failed)
    return BatchAnswer(failed, overload="throttled" if is_overload else None)


def read_delete_refusal(error: BotoCoreError | ClientError, keys: Sequence[str], *, where: str) -> BatchAnswer:
    """Return what it means that a DeleteObjects as a whole was refused, or not answered.

    Raises:
        InvalidRequest: It was never sent: the address or the name of the bucket is none.
    """
    explained = explain_read(error, where=where, key=keys[0])
    kind, is_final = _kind_of_refusal(error)
    if kind == "unanswered" and isinstance(explained, InvalidRequest):
        raise explained
    overload = None if is_final or kind not in ("throttled", "unanswered") else kind
    return BatchAnswer([FailedDelete(key, str(explained), kind) for key in keys], overload=overload, is_final=is_final)


def _kind_of_refusal(error: BotoCoreError | ClientError) -> tuple[DeleteFailure, bool]:
    """Return the kind, and whether every other request would be refused, too."""
    if not isinstance(error, ClientError) or code_of(error) == "NoSuchBucket":
        return "unanswered", isinstance(error, ClientError)
    if is_denied(error):
        return "denied", True
    status, kind = status_of(error), _DELETE_KINDS.get(code_of(error), "other")
    if reason_of_status(status) == "throttled":
        kind = "throttled"
    elif kind == "other" and (status >= _HTTP_SERVER_ERROR or not status) and status != _HTTP_NOT_IMPLEMENTED:
        kind = "unanswered"
    return kind, kind == "denied" or status == _HTTP_NOT_IMPLEMENTED


def _explain_key(key: str, error: Mapping[str, Any]) -> FailedDelete:
    code = str(error.get("Code", ""))
    words, kind = f"{code} {error.get('Message', '')}".strip(), _DELETE_KINDS.get(code, "other")
    if kind == "denied":
        words += "; allow s3:DeleteObject on it, and look for an object lock"
    return FailedDelete(key, words, kind)


def _explain_silence(key: str, where: str) -> FailedDelete:
    return FailedDelete(
        key,
        f"{where}: answered 200 and did not say that it is deleted; look for a proxy that cuts or caches answers, and "
        "whether the object is still there",
        "ignored",
    )
