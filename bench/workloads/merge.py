"""Merging: the demo's data, committed in many small files, into one sorted file for each day.

Every system reads copies of the same Parquet files and writes one file for each partition, sorted by event and ts
where it can (delta-rs compacts without sorting). Ours does what production does: fence, plan, Spark job, row
parity, commit to the log.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from icedb_local.generator import EventGenerator
from icedb_log.clock import SystemClock, new_batch_id
from icedb_log.flush import flush_table
from icedb_log.fold import fold
from icedb_log.merge import merge_table
from icedb_log.reader import LogReader
from icedb_log.staging import stage_batch
from icedb_log.stores import StoreSettings
from icedb_log.table_config import PartitionField, TableConfig, create_table
from icedb_parts.spark.spark_jobs import SparkBatchWriter, SparkGroupMerger
from icedb_parts.spark.spark_session import SparkSettings, close_spark, open_spark

from bench.harness import OURS, Case, Figure, Options

SORT = ("event", "ts")
TABLE = "events"


@dataclass(frozen=True)
class MergeWorkload:
    """The systems and what they work on, in one case."""

    name: str
    description: str
    case: Case

    def cases(self) -> Sequence[Case]:
        """Return the one case."""
        return [self.case]


@dataclass(frozen=True)
class Inputs:
    """The small files: a table of ours, and its data files by partition path."""

    root: Path
    by_partition: dict[str, list[Path]]
    row_count: int

    def copy_files(self, folder: Path) -> dict[str, list[Path]]:
        """Copy the data files below ``folder``, keeping the Hive layout."""
        shutil.rmtree(folder, ignore_errors=True)
        copies: dict[str, list[Path]] = {}
        for partition, files in self.by_partition.items():
            target = folder / partition
            target.mkdir(parents=True)
            copies[partition] = [Path(shutil.copy(file, target)) for file in files]
        return copies


@contextmanager
def open_workload(folder: Path, options: Options) -> Iterator[MergeWorkload]:
    """Make the input once, start Spark once, and offer the systems."""
    spark = open_spark(SparkSettings())
    try:
        inputs = _make_inputs(spark, folder / "input", options)
        file_count = sum(len(files) for files in inputs.by_partition.values())
        yield MergeWorkload(
            name="merge",
            description=(
                f"merge {inputs.row_count:,} events in {file_count} files, {len(inputs.by_partition)} partitions, "
                "into one sorted file each"
            ),
            case=Case(
                name="",
                row_count=inputs.row_count,
                systems=[
                    IceDB(spark, inputs, folder / "icedb"),
                    DuckDBAlone(inputs, folder / "duckdb"),
                    SparkAlone(spark, inputs, folder / "spark"),
                    DeltaRs(inputs, folder / "delta"),
                ],
            ),
        )
    finally:
        close_spark(spark)


def _make_inputs(spark: object, root: Path, options: Options) -> Inputs:
    root.mkdir(parents=True)
    settings = StoreSettings(f"file://{root}", None)
    warehouse = settings.open()
    paths = warehouse.table(TABLE)
    clock = SystemClock()
    config = TableConfig.create(name=TABLE, partition=(PartitionField.parse("d=day(ts)"),), sort=SORT)
    create_table(warehouse.store, paths, config)
    writer = SparkBatchWriter(spark, settings, clock=clock)
    for batch in EventGenerator(event_count=options.event_count, batch_count=options.batch_count).batches():
        stage_batch(warehouse.store, paths, body=batch.body, staging_format="ndjson", batch_id=new_batch_id(clock))
        flush_table(warehouse.store, paths, clock=clock, writer=writer, owner="bench")
    snapshot = fold(LogReader(warehouse.store, paths, clock=clock).read())
    by_partition: dict[str, list[Path]] = {}
    for marker in snapshot.live:
        by_partition.setdefault(paths.partition_of(marker.path), []).append(root / marker.path)
    return Inputs(root, by_partition, snapshot.row_count or 0)


def _check_files(files: Sequence[Path], row_count: int, system: str) -> Sequence[Figure]:
    metadata = [pq.read_metadata(file) for file in files]
    rows = sum(footer.num_rows for footer in metadata)
    if rows != row_count:
        raise AssertionError(f"{system}: {rows} rows instead of {row_count}")
    size_bytes = sum(file.stat().st_size for file in files)
    return (Figure("output_files", "files", len(files)), Figure("output_size", "bytes", size_bytes))


class IceDB:
    """Ours: the whole merge run, as the merger service does it."""

    name = OURS

    def __init__(self, spark: object, inputs: Inputs, folder: Path) -> None:
        self._spark, self._inputs, self._folder = spark, inputs, folder

    def prepare(self) -> None:
        """Copy the table."""
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.copytree(self._inputs.root, self._folder)

    def run(self) -> None:
        """Fence, plan, one Spark job, parity, commit."""
        settings = StoreSettings(f"file://{self._folder}", None)
        warehouse = settings.open()
        merger = SparkGroupMerger(self._spark, settings, clock=SystemClock())
        merge_table(
            warehouse.store, warehouse.table(TABLE), clock=SystemClock(), merger=merger, owner="bench", full=True
        )

    def check(self) -> Sequence[Figure]:
        """Count the rows of the live files."""
        warehouse = StoreSettings(f"file://{self._folder}", None).open()
        snapshot = fold(LogReader(warehouse.store, warehouse.table(TABLE), clock=SystemClock()).read())
        return _check_files([self._folder / m.path for m in snapshot.live], self._inputs.row_count, self.name)


class DuckDBAlone:
    """DuckDB in this process, no Spark, no log."""

    name = "duckdb"

    def __init__(self, inputs: Inputs, folder: Path) -> None:
        self._inputs, self._folder = inputs, folder

    def prepare(self) -> None:
        """Copy the files."""
        self._files = self._inputs.copy_files(self._folder / "in")
        shutil.rmtree(self._folder / "out", ignore_errors=True)

    def run(self) -> None:
        """One COPY for each partition."""
        with duckdb.connect() as connection:
            for partition, files in self._files.items():
                target = self._folder / "out" / partition
                target.mkdir(parents=True)
                listed = ", ".join(f"'{file}'" for file in files)
                connection.execute(
                    f"COPY (SELECT * FROM read_parquet([{listed}], union_by_name=true, hive_partitioning=false) "
                    f"ORDER BY {', '.join(SORT)}) TO '{target}/merged.parquet' (FORMAT parquet, COMPRESSION zstd)"
                )

    def check(self) -> Sequence[Figure]:
        """Count rows."""
        return _check_files(sorted(self._folder.glob("out/*/*.parquet")), self._inputs.row_count, self.name)


class SparkAlone:
    """Spark SQL reading and writing Parquet itself."""

    name = "spark-sql"

    def __init__(self, spark: object, inputs: Inputs, folder: Path) -> None:
        self._spark, self._inputs, self._folder = spark, inputs, folder

    def prepare(self) -> None:
        """Copy the files."""
        self._files = self._inputs.copy_files(self._folder / "in")
        shutil.rmtree(self._folder / "out", ignore_errors=True)

    def run(self) -> None:
        """One shuffle by partition, sorted within, one file each."""
        frame = (
            self._spark.read.option("mergeSchema", "true")  # type: ignore[attr-defined]
            .option("basePath", str(self._folder / "in"))
            .parquet(str(self._folder / "in"))
        )
        (
            frame.repartition(len(self._files), "d")
            .sortWithinPartitions("d", *SORT)
            .write.option("compression", "zstd")
            .partitionBy("d")
            .parquet(str(self._folder / "out"))
        )

    def check(self) -> Sequence[Figure]:
        """Count rows."""
        return _check_files(sorted(self._folder.glob("out/*/*.parquet")), self._inputs.row_count, self.name)


class DeltaRs:
    """delta-rs: one append for each small file, then ``optimize.compact``. It does not sort."""

    name = "delta-rs"

    def __init__(self, inputs: Inputs, folder: Path) -> None:
        self._inputs, self._folder = inputs, folder
        self._source = folder / "source"

    def prepare(self) -> None:
        """Build the table once, then copy it."""
        if not self._source.exists():
            self._build()
        shutil.rmtree(self._folder / "table", ignore_errors=True)
        shutil.copytree(self._source, self._folder / "table")

    def _build(self) -> None:
        for partition, files in self._inputs.by_partition.items():
            day = partition.removeprefix("d=")
            for file in files:
                data = pq.read_table(file, partitioning=None)
                data = data.append_column("d", [[day] * data.num_rows])
                write_deltalake(self._source, data, mode="append", partition_by=["d"], schema_mode="merge")

    def run(self) -> None:
        """Compact."""
        DeltaTable(self._folder / "table").optimize.compact()

    def check(self) -> Sequence[Figure]:
        """Count the rows of the live files."""
        uris = DeltaTable(self._folder / "table").file_uris()
        return _check_files([Path(uri) for uri in uris], self._inputs.row_count, self.name)
