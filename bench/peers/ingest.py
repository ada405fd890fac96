"""The peers of the ingest benchmark."""

from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
from deltalake import DeltaTable, WriterProperties, write_deltalake

from bench.figures import CORE_COUNT
from bench.ingest_work import SORT, IngestSystem


class DuckDBAlone(IngestSystem):
    """DuckDB: ``read_json``, ``ORDER BY``, ``COPY … PARTITION_BY``. No checks, no log, no commit.

    With two threads ``PARTITION_BY`` writes what each thread holds of a partition when it is full: many files come out
    unsorted although the rows were sorted. The figure ``sorted_files`` tells how many did not.
    """

    name = "duckdb"
    keeps_order = False

    def run(self) -> None:
        """One statement."""
        listed = ", ".join(f"'{file}'" for file in self._source.files)
        rows = f"read_json([{listed}], format='newline_delimited', union_by_name=true)"
        with duckdb.connect(config={"threads": CORE_COUNT}) as connection:
            connection.execute("SET enable_progress_bar = false")
            connection.execute(self._statement(rows))

    def _statement(self, rows: str) -> str:
        return (
            f"COPY (SELECT *, strftime(ts, '%Y-%m-%d') AS d FROM {rows} ORDER BY d, {', '.join(SORT)}) "
            f"TO '{self._folder / 'out'}' (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (d))"
        )


class DecodeEncode(DuckDBAlone):
    """The bound of whatever parses with the same library: DuckDB reads all rows and writes them in any order."""

    name = "decode+encode"

    def _statement(self, rows: str) -> str:
        out = self._folder / "out" / "all"
        out.mkdir(parents=True)
        return (
            "SET preserve_insertion_order = false; "
            f"COPY (SELECT * FROM {rows}) TO '{out / 'rows.parquet'}' (FORMAT parquet, COMPRESSION zstd)"
        )


class DeltaRs(IngestSystem):
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
