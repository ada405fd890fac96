"""URLs that read one object of a bucket without credentials for a while (SigV4 in the query string)."""

from typing import Any

from botocore.exceptions import BotoCoreError

from icedb_log.errors import Unavailable
from icedb_log.store.object_store import check_presign_ms


def presign_get(client: Any, bucket: str, key: str, *, expires_ms: int, where: str) -> str:
    """Return the URL; see :meth:`icedb_log.store.object_store.ObjectStore.presign`. Sends no request."""
    seconds = check_presign_ms(expires_ms)
    try:
        url = client.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": key}, ExpiresIn=seconds)
    except BotoCoreError as error:
        raise Unavailable(f"{where}: cannot sign a URL for {key}: {error}; give the service credentials") from error
    return str(url)
