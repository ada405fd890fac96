"""One data file: Parquet, a row group at a time, with the encoding that fits each column.

A dictionary makes columns of few values small and quick; on others it costs time, and size as well. Which is which
is seen from a sample of the first row group.
"""

import contextlib
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icedb_parts.writing.column_stats import StatsCollector
from icedb_parts.writing.part_layout import PartLayout
from icedb_parts.writing.words import cast_rows, compact_dictionaries

COMPRESSION_LEVEL: Final = 1
SAMPLE_ROWS: Final = 2048
MAX_DISTINCT_SHARE: Final = 0.5
"""A column of which a larger share of the sample is distinct gets no dictionary."""


class PartEncoder:
    """Writes one Parquet file. Calls must follow each other, from whatever threads.

    Attributes:
        path: The file.
        row_count: Rows so far.
        stats: Statistics of them.
    """

    def __init__(self, path: Path, schema: pa.Schema, layout: PartLayout) -> None:
        self.path = path
        self.row_count = 0
        self.stats = StatsCollector(layout.stats_columns)
        self._schema = schema
        self._sort_columns = layout.sort_columns
        self._sink: Any = None
        self._writer: Any = None

    @property
    def size_bytes(self) -> int:
        """Bytes written so far."""
        return int(self._sink.tell()) if self._sink else 0

    def write_group(self, rows: pa.Table) -> None:
        """Append one row group."""
        rows = compact_dictionaries(rows)
        if self._writer is None:
            self._schema = choose_types(rows)
            self._open(cast_rows(rows, self._schema))
        rows = cast_rows(rows, self._schema)
        self.stats.add(rows)
        self.row_count += rows.num_rows
        self._writer.write_table(rows, row_group_size=rows.num_rows)

    def close(self, footer: dict[str, str]) -> None:
        """Write the footer."""
        self._writer.add_key_value_metadata(footer)
        self._writer.close()
        self._sink.close()

    def abandon(self) -> None:
        """Let go of the file without finishing it. Idempotent, and harmless after :meth:`close`."""
        if self._writer is not None:
            with contextlib.suppress(OSError, ValueError, pa.ArrowException):  # it may have failed before
                self._writer.close()
        if self._sink is not None:
            self._sink.close()

    def _open(self, rows: pa.Table) -> None:
        self._sink = pa.OSFile(str(self.path), "wb")
        sorting = [
            pq.SortingColumn(self._schema.get_field_index(column), nulls_first=False) for column in self._sort_columns
        ]
        self._writer = pq.ParquetWriter(
            self._sink,
            self._schema,
            compression="zstd",
            compression_level=COMPRESSION_LEVEL,
            use_dictionary=[*_find_words(rows), *find_dictionary_columns(rows.drop_columns(_find_words(rows)))],
            store_schema=False,
            write_statistics=True,
            sorting_columns=sorting or None,
        )


def choose_types(rows: pa.Table) -> pa.Schema:
    """Return the types of a file's columns: a dictionary that holds much of the row group's rows becomes text again."""
    limit = MAX_DISTINCT_SHARE * rows.num_rows
    return pa.schema(
        pa.field(field.name, field.type.value_type)
        if pa.types.is_dictionary(field.type) and len(rows.column(field.name).chunk(0).dictionary) > limit
        else field
        for field in rows.schema
    )


def _find_words(rows: pa.Table) -> list[str]:
    return [field.name for field in rows.schema if pa.types.is_dictionary(field.type)]


def find_dictionary_columns(rows: pa.Table) -> list[str]:
    """Return the columns of few different values, as far as an even sample tells."""
    places = np.linspace(0, rows.num_rows - 1, min(rows.num_rows, SAMPLE_ROWS)).astype(np.int64)
    sample = rows.take(pa.array(places))
    return [
        name
        for name, values in zip(sample.column_names, sample.columns, strict=True)
        if not pa.types.is_boolean(values.type)
        and pc.count_distinct(values, mode="all").as_py() <= MAX_DISTINCT_SHARE * len(places)
    ]
