"""What S3's answer to a DeleteObjects says of each key. The client is ``s3``'s, the one that sends once.

An answer of 200 is no proof. It may hold errors for some keys, and there are servers and proxies that answered 200 and
had deleted nothing. So the full answer is asked for (not ``Quiet``), and a key is gone only if it is named as deleted.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from icedb_log.errors import InvalidRequest
from icedb_log.store.batch_deletes import BatchAnswer
from icedb_log.store.object_store import DeleteFailure, FailedDelete
from icedb_log.store.s3_errors import code_of, explain_read, is_denied, status_of

_GONE: Final = "NoSuchKey"
_THROTTLED: Final = frozenset(
    {
        "SlowDown",
        "ServiceUnavailable",
        "Throttling",
        "ThrottlingException",
        "RequestThrottled",
        "RequestLimitExceeded",
        "TooManyRequests",
        "TooManyRequestsException",
        "BandwidthLimitExceeded",
    }
)
_SERVER_FAILED: Final = frozenset({"InternalError", "InternalFailure", "RequestTimeout", "OperationAborted"})
_DENIED: Final = frozenset(
    {"AccessDenied", "AllAccessDisabled", "AccountProblem", "AccessForbidden", "InvalidObjectState"}
)
_THROTTLED_STATUS: Final = (429, 503)
_SERVER_ERROR: Final = 500
_NOT_IMPLEMENTED: Final = 501


def send_delete(client: Any, bucket: str, keys: Sequence[str], *, where: str) -> BatchAnswer:
    """Send one DeleteObjects, once, and say what became of each key. What S3 or the network cause is no error.

    Args:
        client: A boto3 client that never repeats a request: its own back-off would hide what the pace has to see.
        bucket: The bucket.
        keys: 1 to 1,000.
        where: The store in words.

    Raises:
        InvalidRequest: The address or the name of the bucket cannot be one; nothing is sent.
    """
    request = {"Objects": [{"Key": key} for key in keys], "Quiet": False}
    try:
        answer = client.delete_objects(Bucket=bucket, Delete=request)
    except (BotoCoreError, ClientError) as error:
        return _read_refusal(error, keys, where=where)
    return read_delete_answer(keys, answer, where=where)


def read_delete_answer(keys: Sequence[str], answer: Mapping[str, Any], *, where: str) -> BatchAnswer:
    """Return what an answer of 200 says of the keys that were asked for. Pure.

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
        elif error is not None and error.get("Code") != _GONE:
            failed.append(_explain_key(key, error))
    is_overload = any(each.kind == "throttled" for each in failed)
    return BatchAnswer(failed, overload="throttled" if is_overload else None)


def add_content_md5(params: dict[str, Any], **_: Any) -> None:
    """Add the checksum that S3 asked for until 2025, and that servers of that age still ask for.

    A handler of botocore's event ``before-call``. Current versions of boto3 send a CRC32 only, which such servers do
    not know: they refuse each DeleteObjects with ``MissingContentMD5``.
    """
    digest = hashlib.md5(params["body"], usedforsecurity=False).digest()
    params["headers"]["Content-MD5"] = base64.b64encode(digest).decode()


def _read_refusal(error: Exception, keys: Sequence[str], *, where: str) -> BatchAnswer:
    """Return what it means that a request as a whole was refused, or not answered."""
    explained = explain_read(error, where=where, key=keys[0])
    kind, is_final = _kind_of_refusal(error)
    if kind == "unanswered" and isinstance(explained, InvalidRequest):
        raise explained  # never sent: the address or the name of the bucket is none
    overload = None if is_final or kind not in ("throttled", "unanswered") else kind
    return BatchAnswer([FailedDelete(key, str(explained), kind) for key in keys], overload=overload, is_final=is_final)


def _kind_of_refusal(error: Exception) -> tuple[DeleteFailure, bool]:
    """Return the kind, and whether every other request would be refused, too."""
    if not isinstance(error, ClientError) or code_of(error) == "NoSuchBucket":
        return "unanswered", isinstance(error, ClientError)
    status, kind = status_of(error), _kind_of_code(code_of(error))
    if is_denied(error):
        kind = "denied"
    elif status in _THROTTLED_STATUS:
        kind = "throttled"
    elif kind == "other" and (status >= _SERVER_ERROR or not status) and status != _NOT_IMPLEMENTED:
        kind = "unanswered"
    return kind, kind == "denied" or status == _NOT_IMPLEMENTED


def _kind_of_code(code: str) -> DeleteFailure:
    if code in _DENIED:
        return "denied"
    if code in _THROTTLED:
        return "throttled"
    return "unanswered" if code in _SERVER_FAILED else "other"


def _explain_key(key: str, error: Mapping[str, Any]) -> FailedDelete:
    code = str(error.get("Code", ""))
    words, kind = f"{code} {error.get('Message', '')}".strip(), _kind_of_code(code)
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
