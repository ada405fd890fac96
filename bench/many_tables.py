"""A warehouse of many tables on a store that counts requests, commits to it, and the services that only look at it.

Commits are written to a directory; services read the same files through an S3 server that waits 15 ms before each
answer and counts (:mod:`bench.slow_s3`). So what is counted is theirs alone.
"""

import os
import random
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Final

import psutil
from icedb_local.chaos.metric_history import read_metrics
from icedb_log.clock import SystemClock, new_batch_id
from icedb_log.commit.table import Table
from icedb_log.ingest.flush import flush_table
from icedb_log.ingest.staging import stage_batch
from icedb_log.log.codec import encode_log_file
from icedb_log.log.reader import LogReader
from icedb_log.model import FileMarker, LogFile
from icedb_log.store.s3_options import S3Options
from icedb_log.store_settings import StoreSettings
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import TableConfig
from icedb_log.units import DAY_MS, MIB
from icedb_log.warehouse import Warehouse
from icedb_service.celery_app import make_app
from icedb_service.redis_clients import open_redis
from icedb_service.settings import ServiceSettings
from icedb_service.wakeup import Wakeups
from icedb_sim.tables.row_files import RowFileWriter, encode_rows

from bench.counting_s3 import take_counts
from bench.servers import KEY, running, store_environment
from bench.slow_s3 import running_slow_s3

BUCKET: Final = "many"
LATENCY_MS: Final = 15
POLL_S: Final = 0.1


class ManyTables:
    """The tables.

    Attributes:
        names: Of all of them.
        directory: The store as who commits sees it.
        bucket: The store as services see it.
    """

    def __init__(self, folder: Path, endpoint: str, *, count: int) -> None:
        self.names = [f"t{number:04d}" for number in range(count)]
        self.directory = StoreSettings(f"file://{folder / BUCKET}")
        self.bucket = StoreSettings(f"s3://{BUCKET}", S3Options(endpoint, access_key_id=KEY, secret_access_key=KEY))
        self._endpoint = endpoint
        self._clock = SystemClock()
        self._warehouse: Warehouse = self.directory.open()
        self._readers: dict[str, LogReader] = {}

    def create(self) -> None:
        """Create all, with a commit of yesterday each, so that they rest."""
        time_ms = self._clock.now_ms() - DAY_MS
        for name in self.names:
            place = self._warehouse.table(name)
            create_table(place, TableConfig.create(name=name))
            commit_id, batch_id = (new_batch_id(self._clock).replace("-", "") for _ in range(2))
            data_key = place.paths.data_key(partition="", file_id=commit_id)
            marker = FileMarker(data_key, size_bytes=100_000, created_ms=time_ms, row_count=1000)
            log = LogFile(
                time_ms, {"n": "BIGINT"}, (marker,), commit_id=commit_id, batch_ids=(batch_id,), change="append"
            )
            log_key = place.paths.log_key(time_ms=time_ms, commit_id=commit_id, is_merged=False)
            place.store.put_if_absent(log_key, encode_log_file(log))
        self.take_counts()

    def commit(self, name: str) -> None:
        """Commit a row."""
        place, clock = self._warehouse.table(name), self._clock
        reader = self._readers.setdefault(name, LogReader(place, clock=clock, max_refresh_ms=60_000))
        stage_batch(place, body=encode_rows([{"n": 1}]), staging_format="ndjson", batch_id=new_batch_id(clock))
        flush_table(Table.open(place, clock=clock, owner="bench", reader=reader), RowFileWriter(place.store, clock))

    def take_counts(self) -> Mapping[str, int]:
        """Return how often each operation was asked for since the last time, by services."""
        return take_counts(self._endpoint)


@contextmanager
def many_tables(folder: Path, *, count: int) -> Iterator[ManyTables]:
    """Make the warehouse, and serve it."""
    (folder / "store" / BUCKET).mkdir(parents=True)
    with running_slow_s3(folder / "store", folder / "s3", latency_ms=LATENCY_MS, is_live=True) as endpoint:
        tables = ManyTables(folder / "store", endpoint, count=count)
        tables.create()
        yield tables


@contextmanager
def committing(tables: ManyTables, names: Sequence[str], redis_url: str, *, per_second: float) -> Iterator[list[str]]:
    """Commit to one table after another, at a pace, and announce it; yield the tables of these commits."""
    settings = ServiceSettings(store=tables.directory.url, redis_url=redis_url)
    wakeups = Wakeups(make_app(settings), open_redis(redis_url, timeout_ms=1000), settings=settings)
    rng, done, stopped = random.Random(1), list[str](), threading.Event()

    def work() -> None:
        begin_s = monotonic()
        while not stopped.wait(max(0.0, begin_s + len(done) / per_second - monotonic())):
            name = rng.choice(names)
            tables.commit(name)
            wakeups.announce_commit(name)
            done.append(name)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield done
    finally:
        stopped.set()
        thread.join()


@dataclass(frozen=True, slots=True)
class Server:
    """A service, seen from outside.

    Attributes:
        process: Its process.
        address: Where it is served.
        metrics_port: Where its metrics are.
    """

    process: psutil.Process
    address: str
    metrics_port: int

    def read(self, name: str) -> float:
        """Return a metric, all its series together; 0 if it has none yet."""
        while (found := read_metrics(self.metrics_port, kept=(name,))) is None:
            sleep(POLL_S)  # the machine is busy
        return sum(found.values())

    def cpu_s(self) -> float:
        """Return the processor time that it has taken."""
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def memory_mb(self) -> float:
        """Return what it holds now, MiB."""
        return float(self.process.memory_info().rss) / MIB


@contextmanager
def serving(
    name: str, store: StoreSettings, folder: Path, *, ports: tuple[int, int], env: Mapping[str, str]
) -> Iterator[Server]:
    """Run a service, ``snapshot`` or ``console``, until the block ends.

    Args:
        name: Its name.
        store: Where its tables lie.
        folder: For its log.
        ports: Where it serves, and where it shows its metrics.
        env: Its settings besides these.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port, metrics_port = ports
    settings = {**store_environment(store), "ICEDB_METRICS_PORT": str(metrics_port), "ICEDB_ACCESS_LOG": "none", **env}
    log = folder / f"{name}.log"
    find = lambda: f"{name}_served" in log.read_text() or None  # noqa: E731
    with running([f"icedb_{name}"], log, find=find, env=settings) as server:
        yield Server(psutil.Process(server.process_id), f"127.0.0.1:{port}", metrics_port)


def set_keys() -> None:
    """Let processes that are started from here open the bucket."""
    os.environ |= {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": KEY}
