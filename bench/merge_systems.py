"""The competitors of the merge benchmark. Each runs in a process of its own, see :mod:`bench.processes`.

All read copies of the same Parquet files, with the same codec (zstd, level 1), rows in a row group, and two threads.
"""

import logging
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import structlog
from deltalake import DeltaTable, WriterProperties, convert_to_deltalake
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

from bench.harness import OURS, Figure
from bench.merge_events import TABLE, MergeInput
from bench.processes import CORE_COUNT

LEVEL: Final = 1
ROW_GROUP_ROWS: Final = 122_880
NO_LIMIT_BYTES: Final = 1 << 33


class _System:
    """What all have in common: an input, fresh copies for each turn, and the check of what came out."""

    name = ""
    sorts = True

    def __init__(self, source: MergeInput, folder: Path) -> None:
        self._source = source
        self._folder = folder

    def prepare(self) -> None:
        """Copy the files."""
        shutil.rmtree(self._folder, ignore_errors=True)
        (self._folder / "in").mkdir(parents=True)
        for file in self._source.files:
            shutil.copy(file, self._folder / "in")

    def check(self) -> Sequence[Figure]:
        """Count rows, add up a column, and look that each file is sorted."""
        files = self._files()
        row_count = duration_sum = 0
        for file in files:
            table = pq.ParquetFile(file).read([*self._source.sort, "duration_ms"])
            row_count += table.num_rows
            duration_sum += pc.sum(table["duration_ms"]).as_py()
            if self.sorts and not _is_sorted(table, self._source.sort):
                raise AssertionError(f"{self.name}: {file} is not sorted by {', '.join(self._source.sort)}")
        if (row_count, duration_sum) != (self._source.row_count, self._source.duration_sum):
            raise AssertionError(f"{self.name}: {row_count} rows, durations {duration_sum}: not what went in")
        size_bytes = sum(file.stat().st_size for file in files)
        return (Figure("output_files", "files", len(files)), Figure("output_size", "MB", size_bytes / 1e6))

    def close(self) -> None:
        """Nothing stays open."""

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("out/*.parquet"))


class IceDB(_System):
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


class DuckDBAlone(_System):
    """DuckDB: one sorted ``COPY``. No log, no commit, no statistics beyond Parquet's."""

    name = "duckdb"

    def run(self) -> None:
        """One statement."""
        (self._folder / "out").mkdir()
        listed = ", ".join(f"'{file}'" for file in sorted((self._folder / "in").iterdir()))
        with duckdb.connect(config={"threads": CORE_COUNT}) as connection:
            connection.execute("SET enable_progress_bar = false")
            connection.execute(
                f"COPY (SELECT * FROM read_parquet([{listed}], union_by_name=true, hive_partitioning=false) "
                f"ORDER BY {', '.join(self._source.sort)}) TO '{self._folder / 'out' / 'merged.parquet'}' "
                f"(FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL {LEVEL}, ROW_GROUP_SIZE {ROW_GROUP_ROWS})"
            )


class DeltaRs(_System):
    """delta-rs: ``optimize.compact`` of a table of the same files. It does not sort, and commits."""

    name = "delta-rs"
    sorts = False

    def prepare(self) -> None:
        """Copy the files, and make a table of them."""
        super().prepare()
        convert_to_deltalake(str(self._folder / "in"))

    def run(self) -> None:
        """Compact."""
        properties = WriterProperties(compression="ZSTD", compression_level=LEVEL, max_row_group_size=ROW_GROUP_ROWS)
        DeltaTable(self._folder / "in").optimize.compact(
            target_size=NO_LIMIT_BYTES, max_concurrent_tasks=CORE_COUNT, writer_properties=properties
        )

    def _files(self) -> list[Path]:
        return [Path(uri) for uri in DeltaTable(self._folder / "in").file_uris()]


class SparkAlone(_System):
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


def _is_sorted(table: pa.Table, sort: Sequence[str]) -> bool:
    return bool(
        table.select(list(sort)).equals(table.select(list(sort)).sort_by([(name, "ascending") for name in sort]))
    )
