"""A plain reader of our log: list, then one GET after another, then a fold over lines. The way of the original project.

No check, no cache, no second look at the listing: what remains is what the place takes for one request after another.
"""

import json
from collections.abc import Iterable
from typing import Any

from icedb_log.store.object_store import MAX_KEYS_PER_PAGE


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
