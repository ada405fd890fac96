"""boto3 on a gateway over a directory whose reads can be made to wait and to fail, and what its tests ask of it."""

import threading
from contextlib import contextmanager

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from icedb_log.store.local_store import LocalObjectStore
from icedb_log.warehouse import Warehouse
from icedb_sim.rigs.gateway_rig import BUCKET, LIMIT_S, start_gateway

BODY = b"PAR1 one tiny body for all PAR1"
DAYS = tuple(f"d=2026-01-{day:02}" for day in range(1, 13))
FILES = 2500


class GatedStore(LocalObjectStore):
    """A directory whose reads of data files can be made to wait, and to fail; and its listings, too."""

    def __init__(self, folder):
        super().__init__(folder)
        self.gate = threading.Event()
        self.gate.set()
        self.failure = None
        self.data_reads = 0

    def get_range(self, key, *, start, length, if_match=None):
        if "/_data/" in key:
            self.data_reads += 1
            assert self.gate.wait(LIMIT_S)
            if self.failure is not None and start:
                raise self.failure
        return super().get_range(key, start=start, length=length, if_match=if_match)

    def list_page(self, prefix, *, token=None, limit=1000):
        if prefix.endswith("/_log/"):
            assert self.gate.wait(LIMIT_S)
        return super().list_page(prefix, token=token, limit=limit)


def client(rig, **config):
    return boto3.client(
        "s3",
        endpoint_url=rig.url,
        aws_access_key_id="any",
        aws_secret_access_key="thing",
        region_name="us-east-1",
        config=Config(retries={"total_max_attempts": 1}, **config),
    )


@contextmanager
def open_shared(folder):
    """Run a gateway over a small table, a large one, and one that is empty; the large one's files are never read."""
    store = GatedStore(folder / "store")
    rig = start_gateway(
        Warehouse(store, "wh"),
        gateway_staleness_ms=0,
        gateway_part_kb=64,
    )
    small = rig.table("events").create("d=day(ts)")
    small.commit([small.write(day, BODY + day.encode()) for day in DAYS])
    large = rig.table("large").create("d=day(ts)")
    paths = large.warehouse.table("large").paths
    large.commit(
        [paths.data_key(partition=DAYS[n % 12], file_id=f"{n:032x}") for n in range(FILES)], size_bytes=len(BODY)
    )
    rig.table("nothing").create("d=day(ts)")
    yield rig
    rig.gateway.stop()


def listed(s3, version=2, **arguments):
    pages = s3.get_paginator("list_objects_v2" if version == 2 else "list_objects").paginate(Bucket=BUCKET, **arguments)
    pages = list(pages)
    keys = [entry["Key"] for page in pages for entry in page.get("Contents", ())]
    prefixes = [entry["Prefix"] for page in pages for entry in page.get("CommonPrefixes", ())]
    return keys, prefixes, len(pages)


def refused(call, **arguments):
    with pytest.raises(ClientError) as caught:
        call(**arguments)
    error = caught.value.response
    assert error["ResponseMetadata"]["RequestId"]
    return error["Error"]["Code"], error["ResponseMetadata"]["HTTPStatusCode"]


def fresh(rig, name, count=4):
    """Return a new table with files of their own, and their keys."""
    table = rig.table(name).create("d=day(ts)")
    paths = [table.write(DAYS[at], BODY + b"%d" % at) for at in range(count)]
    table.commit(paths)
    return table, paths


def key_of(path):
    return path.removeprefix("wh/").replace("/_data/", "/")
