"""The peers of the merge benchmark."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import duckdb
import polars as pl
from deltalake import DeltaTable, WriterProperties, convert_to_deltalake

from bench.figures import CORE_COUNT
from bench.merge_work import LEVEL, ROW_GROUP_ROWS, MergeSystem
from bench.peers.duck import Lake

NO_LIMIT_BYTES: Final = 1 << 33


class DuckDBAlone(MergeSystem):
    """DuckDB: one sorted ``COPY``. No log, no commit, no statistics beyond Parquet's."""

    name = "duckdb"

    def run(self) -> None:
        """One statement."""
        (self._folder / "out").mkdir()
        listed = ", ".join(f"'{file}'" for file in sorted((self._folder / "in").iterdir()))
        order = f"ORDER BY {', '.join(self._source.sort)}" if self.sorts else ""
        with duckdb.connect(config={"threads": CORE_COUNT}) as connection:
            connection.execute("SET enable_progress_bar = false")
            connection.execute(f"SET preserve_insertion_order = {str(self.sorts).lower()}")
            connection.execute(
                f"COPY (SELECT * FROM read_parquet([{listed}], union_by_name=true, hive_partitioning=false) {order}) "
                f"TO '{self._folder / 'out' / 'merged.parquet'}' "
                f"(FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL {LEVEL}, ROW_GROUP_SIZE {ROW_GROUP_ROWS})"
            )


class DecodeEncode(DuckDBAlone):
    """The bound of whatever decodes: DuckDB reads all rows and writes them in any order."""

    name = "decode+encode"
    sorts = False


class Polars(MergeSystem):
    """Polars: one streaming scan, sort and sink. No log, no commit, no checksums of pages."""

    name = "polars"

    def run(self) -> None:
        """One query."""
        (self._folder / "out").mkdir()
        files = sorted((self._folder / "in").iterdir())
        pl.scan_parquet(files).sort(list(self._source.sort)).sink_parquet(
            self._folder / "out" / "merged.parquet",
            compression="zstd",
            compression_level=LEVEL,
            row_group_size=ROW_GROUP_ROWS,
        )


class DeltaRs(MergeSystem):
    """delta-rs: ``optimize.compact`` of a table of the same files. It does not sort, and commits."""

    name = "delta-rs"
    sorts = False

    def prepare(self) -> None:
        """Copy the files, and make a table of them."""
        super().prepare()
        convert_to_deltalake(str(self._folder / "in"))

    def run(self) -> None:
        """Compact."""
        self._rewrite(DeltaTable(self._folder / "in").optimize.compact)

    def _rewrite(self, optimize: Callable[..., Any]) -> None:
        properties = WriterProperties(compression="ZSTD", compression_level=LEVEL, max_row_group_size=ROW_GROUP_ROWS)
        optimize(target_size=NO_LIMIT_BYTES, max_concurrent_tasks=CORE_COUNT, writer_properties=properties)

    def _files(self) -> list[Path]:
        return [Path(uri) for uri in DeltaTable(self._folder / "in").file_uris()]


class DeltaRsZOrder(DeltaRs):
    """delta-rs: ``optimize.z_order`` by the sort columns, its only rewrite that sorts; by their interleaved bits."""

    name = "delta-rs z-order"

    def run(self) -> None:
        """Rewrite."""
        self._rewrite(partial(DeltaTable(self._folder / "in").optimize.z_order, list(self._source.sort)))


class DuckLake(MergeSystem):
    """DuckLake: ``merge_adjacent_files`` of a sorted table of the same files. It commits."""

    name = "ducklake"

    def prepare(self) -> None:
        """Copy the files, and make a table of them."""
        super().prepare()
        options = {
            "parquet_compression": "zstd",
            "parquet_compression_level": LEVEL,
            "parquet_row_group_size": ROW_GROUP_ROWS,
            "target_file_size": f"{NO_LIMIT_BYTES // 1024**3}GB",
        }
        self._lake = Lake(self._folder, str(self._folder / "out"), options=options, threads=CORE_COUNT)
        run = self._lake.connection.execute
        files = f"{self._folder / 'in'}/*.parquet"
        run(f"CREATE TABLE lake.events AS FROM read_parquet('{files}', hive_partitioning=false) LIMIT 0")
        run(f"ALTER TABLE lake.events SET SORTED BY ({', '.join(self._source.sort)})")
        run(f"CALL ducklake_add_data_files('lake', 'events', '{files}')")

    def run(self) -> None:
        """Merge."""
        self._lake.connection.execute("CALL ducklake_merge_adjacent_files('lake')")

    def _files(self) -> list[Path]:
        files = list(self._lake.files())
        self._lake.close()
        return files
