"""The competitors of the ingest benchmark. Each runs in a process of its own, see :mod:`bench.processes`."""

import logging
import shutil
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import duckdb
import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.parquet as pq
import structlog
from deltalake import DeltaTable, WriterProperties, write_deltalake
from icedb_engine.spark.spark_flush import SparkBatchWriter
from icedb_engine.spark.spark_runner import warm_up
from icedb_engine.spark.spark_session import SparkSettings, close_spark, open_spark
from icedb_log.clock import SystemClock, new_batch_id
from icedb_log.ingest.flush import flush_table
from icedb_log.ingest.staging import stage_batch
from icedb_log.log.fold import fold
from icedb_log.log.reader import LogReader
from icedb_log.store.stores import StoreSettings
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import create_table
from icedb_log.table.table import Table
from icedb_log.table.table_config import PartitionField, TableConfig

from bench.harness import OURS, Figure
from bench.ingest_events import IngestInput
from bench.processes import CORE_COUNT

SORT: Final = ("event", "ts")
TABLE: Final = "events"


class _System:
    """What all have in common: an input, a fresh folder for each turn, and the check of its Parquet files."""

    name = ""
    keeps_order = True

    def __init__(self, source: IngestInput, folder: Path) -> None:
        self._source = source
        self._folder = folder

    def prepare(self) -> None:
        """Begin with an empty folder."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        pa.set_cpu_count(CORE_COUNT)

    def check(self) -> Sequence[Figure]:
        """Count rows, add up a column, and look that each file is sorted."""
        files = self._files()
        row_count = duration_sum = sorted_count = 0
        for file in files:
            table = pq.ParquetFile(file).read(["event", "ts", "duration_ms"])
            row_count += table.num_rows
            duration_sum += pc.sum(table["duration_ms"]).as_py()
            sorted_count += _is_sorted(table)
        if (row_count, duration_sum) != (self._source.row_count, self._source.duration_sum):
            raise AssertionError(f"{self.name}: {row_count} rows, durations {duration_sum}: not what was staged")
        if self.keeps_order and sorted_count < len(files):
            raise AssertionError(f"{self.name}: {len(files) - sorted_count} files are not sorted by {', '.join(SORT)}")
        size_bytes = sum(file.stat().st_size for file in files)
        return (
            Figure("output_files", "files", len(files)),
            Figure("sorted_files", "files", sorted_count),
            Figure("output_size", "MB", size_bytes / 1e6),
        )

    def close(self) -> None:
        """Nothing stays open."""

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("out/*/*.parquet"))


class SparkWork:
    """A warm Spark session, and the flushes of the ingest service on a directory store."""

    def __init__(self, folder: Path) -> None:
        self._root = folder
        self._spark: Any = None

    @property
    def settings(self) -> StoreSettings:
        """The store."""
        return StoreSettings(f"file://{self._root}")

    def open_session(self) -> None:
        """Start Spark and its workers, if they do not run yet."""
        if self._spark is None:
            self._spark = open_spark(SparkSettings())
            warm_up(self._spark)
            structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))

    def flush_to_the_end(self) -> None:
        """Flush until nothing is staged."""
        warehouse = self.settings.open()
        clock = SystemClock()
        writer = SparkBatchWriter(self._spark, self.settings, clock=clock)
        has_more = True
        while has_more:
            has_more = flush_table(Table.open(warehouse.table(TABLE), clock=clock, owner="bench"), writer).has_more

    def close(self) -> None:
        """End Spark."""
        if self._spark is not None:
            close_spark(self._spark)


class IceDB(_System):
    """Ours: flushes until nothing is staged, on a warm session in this process."""

    name = OURS

    def __init__(self, source: IngestInput, folder: Path) -> None:
        super().__init__(source, folder)
        self._work = SparkWork(folder)

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


class DuckDBAlone(_System):
    """DuckDB: ``read_json``, ``ORDER BY``, ``COPY … PARTITION_BY``. No checks, no log, no commit.

    With two threads ``PARTITION_BY`` writes what each thread holds of a partition when it is full: many files come out
    unsorted although the rows were sorted. The figure ``sorted_files`` tells how many did not.
    """

    name = "duckdb"
    keeps_order = False

    def run(self) -> None:
        """One statement."""
        listed = ", ".join(f"'{file}'" for file in self._source.files)
        with duckdb.connect(config={"threads": CORE_COUNT}) as connection:
            connection.execute("SET enable_progress_bar = false")
            connection.execute(
                f"COPY (SELECT *, strftime(ts, '%Y-%m-%d') AS d FROM read_json([{listed}], "
                f"format='newline_delimited', union_by_name=true) ORDER BY d, {', '.join(SORT)}) "
                f"TO '{self._folder / 'out'}' (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (d))"
            )


class DeltaRs(_System):
    """delta-rs: Arrow's JSON reader, Arrow's sort, one append to a partitioned table."""

    name = "delta-rs"

    def run(self) -> None:
        """Read every batch, sort, append."""
        table = pa.concat_tables([pj.read_json(file) for file in self._source.files], promote_options="default")
        table = table.append_column("d", pc.utf8_slice_codeunits(table["ts"], 0, len("2025-06-01")))
        times = pc.cast(table["ts"], pa.timestamp("us", "UTC"))  # the JSON reader takes no fractions of a second
        table = table.set_column(table.schema.get_field_index("ts"), "ts", times)
        table = table.sort_by([(column, "ascending") for column in ("d", *SORT)])
        properties = WriterProperties(compression="ZSTD")
        write_deltalake(self._folder / "table", table, partition_by=["d"], writer_properties=properties)

    def _files(self) -> list[Path]:
        return [Path(uri) for uri in DeltaTable(self._folder / "table").file_uris()]


class PyarrowLoader(_System):
    """A single process that works as the original did: Python rows, a table and a sorted copy a partition."""

    name = "pyarrow-rows"

    def run(self) -> None:
        """Parse, group by day, and write one file a day."""
        rows_by_day: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
        for file in self._source.files:
            for line in file.read_bytes().splitlines():
                row = orjson.loads(line)
                rows_by_day[row["ts"][:10]].append(row)
        for day, rows in rows_by_day.items():
            folder = self._folder / "out" / f"d={day}"
            folder.mkdir(parents=True)
            columns = dict.fromkeys(column for row in rows for column in row)
            table = pa.Table.from_pylist([{column: row.get(column) for column in columns} for row in rows])
            table = table.sort_by([(column, "ascending") for column in SORT])
            pq.write_table(table, folder / "rows.parquet", compression="zstd")


def _is_sorted(table: pa.Table) -> bool:
    if table.num_rows < 2:
        return True
    event, ts = (pc.cast(table[column], pa.string()) for column in SORT)
    later_event, earlier_event = event[1:], event[:-1]
    wrong = pc.or_(
        pc.less(later_event, earlier_event),
        pc.and_(pc.equal(later_event, earlier_event), pc.less(ts[1:], ts[:-1])),
    )
    return not pc.any(wrong).as_py()
