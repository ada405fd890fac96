"""Ours, and Spark alone, in the merge benchmark. Each runs in a process of its own, see :mod:`bench.processes`."""

import logging
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import structlog
from icedb_engine.jobs.merge_driver import MergeDriver
from icedb_engine.spark.spark_jobs import warm_up
from icedb_engine.spark.spark_runner import SparkRunner
from icedb_engine.spark.spark_session import SparkSettings, close_spark, open_spark
from icedb_log.clock import SystemClock
from icedb_log.commit.table import Table
from icedb_log.log.fold import fold
from icedb_log.log.reader import LogReader
from icedb_log.merge.merge import MergeResult, merge_table
from icedb_log.merge.merge_plan import MergeOptions
from icedb_log.store_settings import StoreSettings

from bench.figures import CORE_COUNT, OURS, Figure
from bench.merge_events import TABLE
from bench.merge_work import LEVEL, MergeSystem

COPY_BYTES: Final = 8 << 20


class _OnSpark(MergeSystem):
    """What works on a warm session."""

    _spark: Any = None

    def _open_session(self, settings: SparkSettings) -> None:
        """Start Spark and its workers, if they do not run yet."""
        if self._spark is None:
            self._spark = open_spark(settings)
            warm_up(self._spark)
            structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))

    def close(self) -> None:
        """End Spark."""
        if self._spark is not None:
            close_spark(self._spark)


class IceDB(_OnSpark):
    """Ours: the whole merge run as the merger service does it, on a warm session."""

    name = OURS
    _result = MergeResult()

    def prepare(self) -> None:
        """Copy the table."""
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.copytree(self._source.root, self._folder)
        self._open_session(SparkSettings())

    def run(self) -> None:
        """Fence, plan, one Spark job, parity, commit."""
        settings = StoreSettings(f"file://{self._folder}")
        warehouse = settings.open()
        clock = SystemClock()
        merger = MergeDriver(SparkRunner(self._spark, settings), clock=clock)
        table = self._adapt(Table.open(warehouse.table(TABLE), clock=clock, owner="bench"))
        self._result = merge_table(table, merger, options=MergeOptions(full=True))

    def _adapt(self, table: Table) -> Table:
        """Return the table as it is merged."""
        return table

    def check(self) -> Sequence[Figure]:
        """As for all, and how many of the bytes were copied as they are."""
        copied = self._result.copied_bytes / max(1, self._result.input_bytes)
        return (*super().check(), Figure("bytes_copied", "%", 100 * copied))

    def _files(self) -> list[Path]:
        warehouse = StoreSettings(f"file://{self._folder}").open()
        snapshot = fold(LogReader(warehouse.table(TABLE), clock=SystemClock()).read())
        return [self._folder / marker.path for marker in snapshot.live]


class Cp(MergeSystem):
    """The bound of whatever merges: each byte is read and written once, durably, as a store does."""

    name = "cp"
    sorts = False

    def run(self) -> None:
        """Write the bytes of all files into one."""
        (self._folder / "out").mkdir()
        with (self._folder / "out" / "all").open("wb") as out:
            for file in sorted((self._folder / "in").iterdir()):
                with file.open("rb") as content:
                    shutil.copyfileobj(content, out, COPY_BYTES)
            out.flush()
            os.fsync(out.fileno())

    def check(self) -> Sequence[Figure]:
        """See that all bytes came."""
        size_bytes = (self._folder / "out" / "all").stat().st_size
        if size_bytes != self._source.size_bytes:
            raise AssertionError(f"cp: {size_bytes} of {self._source.size_bytes} bytes")
        return (Figure("output_size", "MB", size_bytes / 1e6),)


class SparkAlone(_OnSpark):
    """Spark SQL on a warm session: ``read.parquet``, a global sort, ``write``; one sorted file a core."""

    name = "spark-sql"

    def prepare(self) -> None:
        """Copy the files."""
        super().prepare()
        self._open_session(SparkSettings(options={"spark.sql.shuffle.partitions": str(CORE_COUNT)}))

    def run(self) -> None:
        """One sort of everything."""
        frame = self._spark.read.parquet(str(self._folder / "in"))
        (
            frame.sort(*self._source.sort)
            .write.option("compression", "zstd")
            .option("parquet.compression.codec.zstd.level", str(LEVEL))
            .parquet(str(self._folder / "out"))
        )
