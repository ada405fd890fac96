"""A plain reader of our log: list, then one GET after another, then a fold over lines. The way of the original project.

No check, no cache, no second look at the listing: what remains is what the place takes for one request after another.
"""

import http.client
import json
import re
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import local
from typing import Any, Final
from urllib.parse import quote, urlsplit

from icedb_log.store.object_store import MAX_KEYS_PER_PAGE

THREADS: Final = 32


class RequestsAlone:
    """Gets every object below a prefix from a server that asks for no signature, and looks at none.

    Args:
        endpoint: The server.
        bucket: The bucket.
        prefix: Below which.
    """

    def __init__(self, endpoint: str, bucket: str, prefix: str) -> None:
        self._host = urlsplit(endpoint).netloc
        self._bucket = bucket
        self._prefix = prefix
        self._kept = local()

    def get_all(self) -> int:
        """List, get all side by side, and return how many there were."""
        keys: list[str] = []
        more = ""
        while True:
            page = self._get(f"?list-type=2&prefix={quote(self._prefix)}{more}").decode()
            keys += re.findall("<Key>([^<]+)</Key>", page)
            token = re.search("<NextContinuationToken>([^<]+)<", page)
            if token is None:
                break
            more = f"&continuation-token={quote(token[1])}"
        with ThreadPoolExecutor(THREADS) as pool:
            return sum(1 for _ in pool.map(lambda key: self._get(f"/{quote(key)}"), keys))

    def _get(self, target: str) -> bytes:
        if not hasattr(self._kept, "connection"):
            self._kept.connection = http.client.HTTPConnection(self._host)
        self._kept.connection.request("GET", f"/{self._bucket}{target}")
        answer = self._kept.connection.getresponse()
        body: bytes = answer.read()
        if answer.status != http.client.OK:
            raise RuntimeError(f"{target}: {answer.status}")
        return body


def read_live_paths(client: Any, bucket: str, prefix: str) -> list[str]:
    """Return the live data files of a table in a bucket, by boto3."""
    pages = client.get_paginator("list_objects_v2").paginate(
        Bucket=bucket, Prefix=prefix, PaginationConfig={"PageSize": MAX_KEYS_PER_PAGE}
    )
    keys = [entry["Key"] for page in pages for entry in page.get("Contents", ())]
    return fold_lines(client.get_object(Bucket=bucket, Key=key)["Body"].read() for key in keys)


def fold_lines(bodies: Iterable[bytes]) -> list[str]:
    """Return the live data files that log files name."""
    live: dict[str, bool] = {}
    for body in bodies:
        lines = body.decode().split("\n")
        for line in lines[json.loads(lines[0])["f"] :]:
            marker = json.loads(line)
            live[marker["p"]] = live.get(marker["p"], True) and not marker.get("tmb")
    return sorted(path for path, is_live in live.items() if is_live)
