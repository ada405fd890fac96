"""Ours in the ingest benchmark. It runs in a process of its own, see :mod:`bench.processes`."""

import logging
from pathlib import Path
from typing import Any, Final

import structlog
from icedb_engine.jobs.flush_driver import FlushDriver
from icedb_engine.spark.spark_jobs import warm_up
from icedb_engine.spark.spark_runner import SparkRunner
from icedb_engine.spark.spark_session import SparkSettings, close_spark, open_spark
from icedb_log.clock import SystemClock, new_batch_id
from icedb_log.commit.table import Table
from icedb_log.ingest.flush import FlushResult, flush_table
from icedb_log.ingest.staging import stage_batch
from icedb_log.log.fold import fold
from icedb_log.log.reader import LogReader
from icedb_log.store.table_store import TableStore
from icedb_log.store_settings import StoreSettings
from icedb_log.table.stored_config import create_table
from icedb_log.table.table_config import PartitionField, TableConfig

from bench.figures import OURS
from bench.ingest_work import SORT, IngestInput, IngestSystem

TABLE: Final = "events"


class SparkWork:
    """A warm Spark session, and the flushes of the ingest service.

    Args:
        settings: The store.
    """

    def __init__(self, settings: StoreSettings) -> None:
        self.settings = settings
        self._spark: Any = None

    def open_session(self) -> None:
        """Start Spark and its workers, if they do not run yet."""
        if self._spark is None:
            self._spark = open_spark(SparkSettings(purges_memory=True))
            warm_up(self._spark)
            structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))

    def flush(self, table: str = TABLE) -> FlushResult:
        """Flush what is staged for a table, once."""
        clock = SystemClock()
        writer = FlushDriver(SparkRunner(self._spark, self.settings), clock=clock)
        return flush_table(Table.open(self.settings.open().table(table), clock=clock, owner="bench"), writer)

    def flush_to_the_end(self) -> None:
        """Flush until nothing is staged."""
        while self.flush().has_more:
            pass

    def close(self) -> None:
        """End Spark."""
        if self._spark is not None:
            close_spark(self._spark)


class IceDB(IngestSystem):
    """Ours: flushes until nothing is staged, on a warm session in this process."""

    name = OURS

    def __init__(self, source: IngestInput, folder: Path) -> None:
        super().__init__(source, folder)
        self._work = SparkWork(StoreSettings(f"file://{folder}"))

    def prepare(self) -> None:
        """Stage every batch of a fresh table."""
        super().prepare()
        self._work.open_session()
        warehouse = self._work.settings.open()
        paths = warehouse.table(TABLE).paths
        config = TableConfig.create(name=TABLE, partition=(PartitionField.parse("d=day(ts)"),), sort=SORT)
        create_table(TableStore(warehouse.store, paths), config)
        clock = SystemClock()
        for file in self._source.files:
            batch_id = new_batch_id(clock)
            stage_batch(
                TableStore(warehouse.store, paths), body=file.read_bytes(), staging_format="ndjson", batch_id=batch_id
            )

    def run(self) -> None:
        """Flush as the ingest service does."""
        self._work.flush_to_the_end()

    def close(self) -> None:
        """End Spark."""
        self._work.close()

    def _files(self) -> list[Path]:
        warehouse = self._work.settings.open()
        snapshot = fold(LogReader(warehouse.table(TABLE), clock=SystemClock()).read())
        return [self._folder / marker.path for marker in snapshot.live]
