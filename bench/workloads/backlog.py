"""Backlog: memory of an ingest worker that finds gigabytes staged, and flushes all of them with default limits.

One turn, no rivals: it takes minutes. The worker is a process of its own, as the service has it: a warm Spark session,
the real ``FlushDriver``, flushes until nothing is staged. Its memory is told apart: driver, JVM, Python workers.
"""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from icedb_local.generator import EventGenerator
from icedb_log.clock import SystemClock, new_batch_id
from icedb_log.ingest.staging import stage_batch
from icedb_log.log.fold import fold
from icedb_log.log.reader import LogReader
from icedb_log.store.table_store import TableStore
from icedb_log.store_settings import StoreSettings
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import PartitionField, TableConfig

from bench.figures import Figure
from bench.harness import ONE_TURN_S, Case, Options, Workload
from bench.ingest_systems import TABLE, SparkWork
from bench.ingest_work import SORT
from bench.processes import started

BATCH_EVENTS = 10_000
GB = 1_000_000_000


class BacklogWorkload(Workload):
    """One case, whose worker is started when all is staged."""

    def __init__(self, folder: Path, options: Options) -> None:
        super().__init__(folder / "warehouse", options)
        sample = EventGenerator(BATCH_EVENTS * 100, 100).make_batch(50)
        self.event_count = int(options.size_gb * GB * sample.row_count / len(sample.body))
        self.description = (
            f"{self.event_count:,} events of the demo, staged while no worker ran, flushed with default limits"
        )

    def cases(self) -> Iterator[Case]:
        """Stage the backlog, batch by batch, then start the worker."""
        size_bytes = _stage(self.folder, self.event_count)
        with started(Worker(self.folder, self.event_count), split=(Worker,)) as systems:
            name = f"{size_bytes / GB:.2f} GB in {-(-self.event_count // BATCH_EVENTS):,} batches"
            yield Case(name, self.event_count, systems, warm_turn_count=0, patience_s=ONE_TURN_S)
        shutil.rmtree(self.folder)


def _stage(folder: Path, event_count: int) -> int:
    warehouse = StoreSettings(f"file://{folder}").open()
    folder.mkdir(parents=True)
    paths = warehouse.table(TABLE).paths
    config = TableConfig.create(name=TABLE, partition=(PartitionField.parse("d=day(ts)"),), sort=SORT)
    create_table(TableStore(warehouse.store, paths), config)
    clock = SystemClock()
    size_bytes = 0
    for batch in EventGenerator(event_count, -(-event_count // BATCH_EVENTS)).batches():
        batch_id = new_batch_id(clock)
        stage_batch(TableStore(warehouse.store, paths), body=batch.body, staging_format="ndjson", batch_id=batch_id)
        size_bytes += len(batch.body)
    return size_bytes


class Worker(SparkWork):
    """Flushes the backlog to its end."""

    name = "icedb"

    def __init__(self, folder: Path, row_count: int) -> None:
        super().__init__(StoreSettings(f"file://{folder}"))
        self._row_count = row_count

    def prepare(self) -> None:
        """Start Spark; the backlog lies there already."""
        self.open_session()

    def run(self) -> None:
        """Flush as the ingest service does."""
        self.flush_to_the_end()

    def check(self) -> Sequence[Figure]:
        """Count the rows of all live files, and the commits."""
        warehouse = self.settings.open()
        view = LogReader(warehouse.table(TABLE), clock=SystemClock()).read()
        live: Any = fold(view).live
        rows = sum(pq.read_metadata(warehouse.store.uri(marker.path)).num_rows for marker in live)
        if rows != self._row_count:
            raise AssertionError(f"{rows} rows instead of {self._row_count}")
        return (Figure("commits", "log files", len(view.files)), Figure("output_files", "files", len(live)))
