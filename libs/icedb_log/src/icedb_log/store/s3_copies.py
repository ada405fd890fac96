"""Copies from object to object within S3: no byte passes through the caller. The client is ``s3``'s."""

from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from icedb_log.store.object_store import ObjectInfo
from icedb_log.store.s3_errors import explain_read

SINGLE_COPY_BYTES: Final = 64 * 1024 * 1024
"""Up to this size one request copies an object, well within a read timeout; above it parts are copied."""


def copy_object(client: Any, bucket: str, key: str, *, source: dict[str, str], info: ObjectInfo, where: str) -> None:
    """Copy an object if its ETag is still that of ``info``, as far as the server looks.

    Some servers ignore the condition of a copy, and they disagree about the form of an ETag in the HEAD that precedes a
    copy in parts, which therefore has none: the caller looks at the source's ETag afterwards.

    Args:
        client: A boto3 client that repeats requests.
        bucket: Where to.
        key: The new key.
        source: Bucket and key of the object.
        info: What it was when it was looked at.
        where: The target store in words.

    Raises:
        NotFound: The source is gone.
        PreconditionFailed: The source has another ETag, says the server.
        Unavailable: No usable answer, or no access to the source.
    """
    try:
        if info.size_bytes <= SINGLE_COPY_BYTES:
            client.copy_object(Bucket=bucket, Key=key, CopySource=source, CopySourceIfMatch=info.etag)
        else:
            client.copy(source, bucket, key)
    except (BotoCoreError, ClientError) as error:
        raise explain_read(error, where=where, key=f"{source['Bucket']}/{source['Key']}") from error
