"""Tiny batches: 16 producers send batches of 10 rows; how many a second are in a snapshot.

Ours enqueues and flushes as in production: durable when acknowledged, at most one commit a second. The peers append one
batch after the other, since their appends conflict with each other; fewer of them, for they would take minutes.

And how long one batch takes, sent when the one before is visible: a real ingest worker, warm, without its flush
interval.
"""

import os
from collections.abc import Iterator

from icedb_log.store.s3_options import S3Options
from icedb_log.store_settings import StoreSettings

from bench.counting_s3 import BUCKET, running_counting_s3
from bench.harness import Case, Workload
from bench.processes import started
from bench.serve import Peer
from bench.servers import KEY, delta_options, duckdb_options, iceberg_options
from bench.tiny_systems import WARM_BATCHES, IceDB, StoreAlone, TinyLoad, WarmWorker

PRODUCERS = 16
EVENTS_A_BATCH = 100
"""Of those that are asked for: 1,000,000 make 10,000 batches."""
APPENDS = {"DeltaRs": 40, "DeltaRsKeptOpen": 40, "PyIceberg": 100, "DuckLakeFiles": 40}
"""A peer makes one append for so many of our batches."""
S3_SHARE = 5
WARM_CASES = {"a warm worker, no partitions": (), "a warm worker, partitions by day": ("d=day(ts)",)}


class TinyWorkload(Workload):
    """A directory, the development S3 server, and one batch at a time."""

    description = "batches of 10 rows until they are visible in a snapshot"

    def cases(self) -> Iterator[Case]:
        """Start the systems of a case, and end them after it."""
        os.environ |= {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": KEY}
        count = max(PRODUCERS, self.options.event_count // EVENTS_A_BATCH // PRODUCERS * PRODUCERS)
        if self.wants("a directory"):
            load = TinyLoad(StoreSettings(f"file://{self.folder / 'warehouse'}"), count, PRODUCERS)
            appends = APPENDS | {"DuckLake": 40}
            peers = [Peer(f"bench.peers.tiny:{kind}", self.folder / kind, count // n) for kind, n in appends.items()]
            yield from _case("a directory", load, peers)
        if self.wants("S3 over HTTP"):
            with running_counting_s3(self.folder / "s3") as endpoint:
                store = StoreSettings(f"s3://{BUCKET}/warehouse", S3Options(endpoint))
                few = max(PRODUCERS, count // S3_SHARE // PRODUCERS * PRODUCERS)
                options = {"PyIceberg": iceberg_options(endpoint), "DuckLakeFiles": duckdb_options(endpoint)}
                peers = [
                    Peer(
                        f"bench.peers.tiny:{kind}", self.folder / kind, few // n, f"s3://{BUCKET}/{kind}",
                        options.get(kind, delta_options(endpoint)),
                    )
                    for kind, n in APPENDS.items()
                ]  # fmt: skip
                yield from _case("S3 over HTTP", TinyLoad(store, few, PRODUCERS), peers)
        for name, partition in WARM_CASES.items():
            if self.wants(name):
                with started(WarmWorker(self.folder / f"warm {len(partition)}", partition=partition)) as systems:
                    yield Case(name, WARM_BATCHES, systems, warm_turn_count=1, is_timed=False)


def _case(name: str, load: TinyLoad, peers: list[Peer]) -> Iterator[Case]:
    with started(IceDB(load), *peers, StoreAlone(load)) as systems:
        yield Case(name, load.batch_count, systems, warm_turn_count=1, is_timed=False)
