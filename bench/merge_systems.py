"""Ours, and Spark alone, in the merge benchmark. Each runs in a process of its own, see :mod:`bench.processes`."""

import logging
import shutil
from pathlib import Path
from typing import Any

import structlog
from icedb_engine.spark.spark_merge import SparkMerger
from icedb_engine.spark.spark_runner import warm_up
from icedb_engine.spark.spark_session import SparkSettings, close_spark, open_spark
from icedb_log.clock import SystemClock
from icedb_log.log.fold import fold
from icedb_log.log.reader import LogReader
from icedb_log.merge.merge import merge_table
from icedb_log.merge.merge_plan import MergeOptions
from icedb_log.store.stores import StoreSettings
from icedb_log.table.table import Table

from bench.figures import CORE_COUNT, OURS
from bench.merge_events import TABLE
from bench.merge_work import LEVEL, MergeSystem


class IceDB(MergeSystem):
    """Ours: the whole merge run as the merger service does it, on a warm session."""

    name = OURS
    _spark: Any = None

    def prepare(self) -> None:
        """Copy the table."""
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.copytree(self._source.root, self._folder)
        if self._spark is None:
            self._spark = open_spark(SparkSettings())
            warm_up(self._spark)
            structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))

    def run(self) -> None:
        """Fence, plan, one Spark job, parity, commit."""
        settings = StoreSettings(f"file://{self._folder}")
        warehouse = settings.open()
        clock = SystemClock()
        merger = SparkMerger(self._spark, settings, clock=clock)
        merge_table(
            Table.open(warehouse.table(TABLE), clock=clock, owner="bench"),
            merger,
            options=MergeOptions(full=True),
        )

    def close(self) -> None:
        """End Spark."""
        if self._spark is not None:
            close_spark(self._spark)

    def _files(self) -> list[Path]:
        warehouse = StoreSettings(f"file://{self._folder}").open()
        snapshot = fold(LogReader(warehouse.table(TABLE), clock=SystemClock()).read())
        return [self._folder / marker.path for marker in snapshot.live]


class SparkAlone(MergeSystem):
    """Spark SQL on a warm session: ``read.parquet``, a global sort, ``write``; one sorted file a core."""

    name = "spark-sql"
    _spark: Any = None

    def prepare(self) -> None:
        """Copy the files."""
        super().prepare()
        if self._spark is None:
            self._spark = open_spark(SparkSettings(shuffle_partition_count=CORE_COUNT))
            warm_up(self._spark)

    def run(self) -> None:
        """One sort of everything."""
        frame = self._spark.read.parquet(str(self._folder / "in"))
        (
            frame.sort(*self._source.sort)
            .write.option("compression", "zstd")
            .option("parquet.compression.codec.zstd.level", str(LEVEL))
            .parquet(str(self._folder / "out"))
        )

    def close(self) -> None:
        """End Spark."""
        if self._spark is not None:
            close_spark(self._spark)
