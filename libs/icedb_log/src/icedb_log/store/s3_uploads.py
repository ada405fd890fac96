"""Multipart uploads that were begun and never finished. The client is ``s3``'s.

Their parts are stored and paid for, and no listing of objects shows them. A rule of the bucket
(``AbortIncompleteMultipartUpload``) does the same without us; some servers list uploads only by the exact key, and
end old ones by themselves.
"""

from collections.abc import Iterator
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from icedb_log.errors import IceDBError, NotFound, UnsupportedFormat
from icedb_log.store.s3_errors import code_of, explain_read

_UNKNOWN_REQUEST: Final = frozenset({"NotImplemented", "MethodNotAllowed"})


def abort_stale_uploads(client: Any, bucket: str, prefix: str, *, before_ms: int, where: str) -> int:
    """End the uploads below a prefix that began before a time; return how many there were.

    One that somebody else ends or finishes meanwhile does not count. A part that is just arriving may stay behind after
    the abort: then the upload is listed again, and the next call ends it.

    Args:
        client: A boto3 client that repeats requests.
        bucket: The bucket.
        prefix: A string prefix of keys.
        before_ms: Unix ms, compared with the server's own time of the beginning.
        where: The store in words.

    Raises:
        Unavailable: No usable answer, or no permission; what could be ended is.
    """
    count = 0
    first_error: IceDBError | None = None
    try:
        stale = [each for each in _list_uploads(client, bucket, prefix) if _began_ms(each) < before_ms]
    except (BotoCoreError, ClientError) as error:
        if isinstance(error, ClientError) and code_of(error) in _UNKNOWN_REQUEST:
            return 0
        raise explain_read(error, where=where, key=prefix) from error
    for upload in stale:
        try:
            client.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
            count += 1
        except (BotoCoreError, ClientError) as error:
            explained = explain_read(error, where=where, key=upload["Key"])
            if not isinstance(explained, NotFound | UnsupportedFormat):
                first_error = first_error or explained
    if first_error is not None:
        raise first_error
    return count


def _list_uploads(client: Any, bucket: str, prefix: str) -> Iterator[dict[str, Any]]:
    """Yield all uploads, page after page; the markers name the last one of the page before."""
    resume: dict[str, str] = {}
    while True:
        answer = client.list_multipart_uploads(Bucket=bucket, Prefix=prefix, **resume)
        yield from answer.get("Uploads", ())
        following = {"KeyMarker": answer.get("NextKeyMarker"), "UploadIdMarker": answer.get("NextUploadIdMarker")}
        before, resume = resume, {name: value for name, value in following.items() if value}
        # A server that says there is more and does not say where from would be asked for ever.
        if not answer.get("IsTruncated") or not resume or resume == before:
            return


def _began_ms(upload: dict[str, Any]) -> int:
    return int(upload["Initiated"].timestamp() * 1000)
