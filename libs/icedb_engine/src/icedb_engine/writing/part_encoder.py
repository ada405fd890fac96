"""One data file: Parquet, with the encoding that fits each column, its row groups encoded side by side.

A dictionary makes columns of few values small and quick; on others it costs time, and size as well. Which is which
is seen from a sample of the first row group.
"""

import contextlib
from dataclasses import dataclass
from io import BufferedWriter
from pathlib import Path
from threading import Event
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from icedb_log.errors import InvariantViolated

from icedb_engine.writing.column_stats import StatsCollector
from icedb_engine.writing.parquet_join import MAGIC, TAIL_BYTES, FooterJoiner
from icedb_engine.writing.part_layout import PartLayout

COMPRESSION_LEVEL: Final = 1
SAMPLE_ROWS: Final = 2048
MAX_DISTINCT_SHARE: Final = 0.5
"""A column of which a larger share of the sample is distinct gets no dictionary."""


@dataclass(frozen=True, slots=True)
class EncodedGroup:
    """One row group, encoded as a Parquet file of its own.

    Attributes:
        rows: Its rows.
        body: The file.
    """

    rows: pa.Table
    body: pa.Buffer


class PartEncoder:
    """Writes one Parquet file. Row groups may be encoded side by side; appending them follows one after the other.

    Attributes:
        path: The file.
        row_count: Rows appended so far.
        size_bytes: Bytes written so far.
        stats: Statistics of the rows.
        footer: What :meth:`close` wrote last, without its length and the magic bytes.
    """

    def __init__(self, path: Path, layout: PartLayout) -> None:
        self.path = path
        self.row_count = 0
        self.size_bytes = 0
        self.stats = StatsCollector(layout.stats_columns)
        self.footer = b""
        self._sort_columns = layout.sort_columns
        self._options: dict[str, Any] = {}
        self._has_chosen = Event()
        self._joiner = FooterJoiner()
        self._sink: BufferedWriter | None = None

    def write_group(self, rows: pa.Table) -> None:
        """Encode and append one row group."""
        self.append_group(self.encode_group(rows, is_first=self._sink is None))

    def encode_group(self, rows: pa.Table, *, is_first: bool) -> EncodedGroup:
        """Encode one row group, while others are encoded.

        Args:
            rows: Its rows, at least one.
            is_first: Whether it is the file's first one, which decides how all are encoded; the others wait for that,
                so it must have begun before them.
        """
        if is_first:
            try:
                self._choose(rows)
            finally:
                self._has_chosen.set()
        self._has_chosen.wait()
        if not self._options:
            raise InvariantViolated(f"{self.path}: its first row group could not be encoded")
        sink = pa.BufferOutputStream()
        with pq.ParquetWriter(sink, rows.schema, **self._options) as writer:
            writer.write_table(rows, row_group_size=rows.num_rows)
        return EncodedGroup(rows, sink.getvalue())

    def append_group(self, group: EncodedGroup) -> None:
        """Append a row group after those before it."""
        if self._sink is None:
            self._sink = self.path.open("wb")
            self.size_bytes += self._sink.write(MAGIC)
        self.stats.add(group.rows)
        body = self._joiner.add(group.body, row_count=group.rows.num_rows, place=self.size_bytes)
        self.row_count += group.rows.num_rows
        self.size_bytes += self._sink.write(body)

    def close(self, footer: dict[str, str]) -> None:
        """Write the footer."""
        if self._sink is None:
            raise InvariantViolated(f"{self.path}: a data file without rows")
        end = self._joiner.make_footer(footer)
        self.footer = end[:-TAIL_BYTES]
        self.size_bytes += self._sink.write(end)
        self._sink.close()

    def abandon(self) -> None:
        """Let go of the file without finishing it. Idempotent, and harmless after :meth:`close`."""
        if self._sink is not None:
            with contextlib.suppress(OSError):  # what is buffered may not fit on the disk
                self._sink.close()

    def _choose(self, rows: pa.Table) -> None:
        """Choose the encodings of all row groups by the first one."""
        numbers = {name: number for number, name in enumerate(rows.column_names)}
        sorting = [pq.SortingColumn(numbers[name], nulls_first=False) for name in self._sort_columns]
        self._options = {
            "compression": "zstd",
            "compression_level": COMPRESSION_LEVEL,
            "use_dictionary": find_dictionary_columns(rows),
            "store_schema": False,
            "write_statistics": True,
            "write_page_checksum": True,
            "sorting_columns": sorting or None,
        }


def find_dictionary_columns(rows: pa.Table) -> list[str]:
    """Return the columns of few different values, as far as an even sample tells; nested ones are not compared."""
    places = np.linspace(0, rows.num_rows - 1, min(rows.num_rows, SAMPLE_ROWS)).astype(np.int64)
    sample = rows.take(pa.array(places))
    return [
        name
        for name, values in zip(sample.column_names, sample.columns, strict=True)
        if not (pa.types.is_boolean(values.type) or pa.types.is_nested(values.type))
        and pc.count_distinct(values, mode="all").as_py() <= MAX_DISTINCT_SHARE * len(places)
    ]
