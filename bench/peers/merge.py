"""The peers of the merge benchmark."""

from pathlib import Path
from typing import Final

import duckdb
from deltalake import DeltaTable, WriterProperties, convert_to_deltalake

from bench.figures import CORE_COUNT
from bench.merge_work import LEVEL, ROW_GROUP_ROWS, MergeSystem

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
        properties = WriterProperties(compression="ZSTD", compression_level=LEVEL, max_row_group_size=ROW_GROUP_ROWS)
        DeltaTable(self._folder / "in").optimize.compact(
            target_size=NO_LIMIT_BYTES, max_concurrent_tasks=CORE_COUNT, writer_properties=properties
        )

    def _files(self) -> list[Path]:
        return [Path(uri) for uri in DeltaTable(self._folder / "in").file_uris()]
