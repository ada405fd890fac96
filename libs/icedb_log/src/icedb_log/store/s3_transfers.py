"""Files that are moved in parts, some at once. The client is ``s3``'s, the one that repeats requests."""

from pathlib import Path
from typing import Any, Final

from boto3.exceptions import Boto3Error
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import BotoCoreError, ClientError

from icedb_log.store.s3_errors import explain_read

SINGLE_REQUEST_BYTES: Final = 8 * 1024 * 1024
"""Up to this size a file is moved by one request; above it in parts, by ``TRANSFER_THREADS`` threads."""

TRANSFER_THREADS: Final = 4

_TRANSFER: Final = TransferConfig(
    multipart_threshold=2 * SINGLE_REQUEST_BYTES,
    multipart_chunksize=2 * SINGLE_REQUEST_BYTES,
    max_concurrency=TRANSFER_THREADS,
    preferred_transfer_client="classic",
)


def download_in_parts(client: Any, bucket: str, key: str, path: Path, *, where: str) -> None:
    """Copy an object to a local file. Raises NotFound, Unavailable, and OSError for the file."""
    try:
        client.download_file(bucket, key, str(path), Config=_TRANSFER)
    except (BotoCoreError, ClientError, Boto3Error) as error:
        raise explain_read(error, where=where, key=key) from error


def upload_in_parts(client: Any, bucket: str, key: str, path: Path, *, where: str) -> None:
    """Copy a local file to an object. Raises Unavailable, InvalidRequest, and OSError for the file."""
    try:
        client.upload_file(str(path), bucket, key, Config=_TRANSFER)
    except Boto3Error as error:
        # boto3 wraps what S3 answered, and keeps it as the context.
        inner = error.__context__ if isinstance(error.__context__, ClientError) else error
        raise explain_read(inner, where=where, key=key) from error
    except (BotoCoreError, ClientError) as error:
        raise explain_read(error, where=where, key=key) from error
