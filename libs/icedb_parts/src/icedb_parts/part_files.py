"""From a sorted stream of rows to data files: cut, written, uploaded, described.

The stream carries an ordinal in its first column, ascending: rows of one ordinal belong to one partition. At most
one file is being written at a time, and a bounded number waits for its upload, so neither memory nor disk grows with
the number of partitions. Within a file rows keep the order of the stream.
"""

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from icedb_log.clock import Clock
from icedb_log.keys import TablePaths
from icedb_log.model import FileMarker
from icedb_log.object_store import ObjectStore

from icedb_parts.column_stats import StatsCollector

ORDINAL: Final = "__ordinal"
"""Name of the stream's first column."""

COMPRESSION_LEVEL: Final = 3


@dataclass(frozen=True, slots=True)
class PartLayout:
    """How data files are written.

    Attributes:
        paths: Keys of the table.
        partitions: Encoded partition path of each ordinal.
        footer: Gives the footer's key-value metadata for a partition path.
        sort_columns: Sorted by these, nulls last; columns of the stream.
        stats_columns: Columns of the stream whose statistics go into the markers.
        row_group_rows: Rows of a row group.
        split_bytes: A file above this size ends with its row group, and the next run begins.
        created_ms: Goes into the markers.
    """

    paths: TablePaths
    partitions: Sequence[str]
    footer: Callable[[str], dict[str, str]]
    sort_columns: Sequence[str]
    stats_columns: Sequence[str]
    row_group_rows: int
    split_bytes: int
    created_ms: int


class PartFileWriter:
    """Writes one sorted stream as data files and uploads them under fresh names (W1)."""

    def __init__(
        self, store: ObjectStore, layout: PartLayout, *, clock: Clock, folder: Path, transfer_count: int
    ) -> None:
        self._store = store
        self._layout = layout
        self._clock = clock
        self._folder = folder
        self._transfer_count = transfer_count
        self._pending: list[Future[FileMarker]] = []
        self._markers: list[FileMarker] = []
        self._file: _OpenFile | None = None
        self._ordinal = -1

    def write_all(self, chunks: Iterable[pa.RecordBatch]) -> tuple[FileMarker, ...]:
        """Write every row of the stream; return the markers of the uploaded files, in order.

        Not idempotent: each call makes new files. After an error uploaded files are orphans (J5).

        Raises:
            Unavailable: The store did not take a file.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(self._transfer_count, thread_name_prefix="icedb-upload") as pool:
            try:
                for chunk in chunks:
                    self._write_chunk(pool, chunk)
                self._close_file(pool)
                self._settle(0)
            finally:
                for future in self._pending:
                    future.cancel()
                if self._file is not None:
                    self._file.abandon()
        return tuple(self._markers)

    def _write_chunk(self, pool: ThreadPoolExecutor, chunk: pa.RecordBatch) -> None:
        if not chunk.num_rows:
            return
        ordinals = chunk.column(0).to_numpy()
        starts = np.concatenate(([0], np.flatnonzero(np.diff(ordinals)) + 1, [chunk.num_rows]))
        rows = pa.Table.from_batches([chunk]).remove_column(0)
        for start, end in pairwise(starts):
            self._write_rows(pool, int(ordinals[start]), rows.slice(int(start), int(end - start)))

    def _write_rows(self, pool: ThreadPoolExecutor, ordinal: int, rows: pa.Table) -> None:
        if ordinal != self._ordinal:
            self._close_file(pool)
            self._ordinal = ordinal
        while rows.num_rows:
            if self._file is None:
                self._file = _OpenFile(self._layout, self._folder / f"{self._clock.new_id()}.parquet", rows.schema)
            taken = self._file.add(rows)
            rows = rows.slice(taken)
            if self._file.size_bytes >= self._layout.split_bytes:
                self._close_file(pool)

    def _close_file(self, pool: ThreadPoolExecutor) -> None:
        if self._file is None:
            return
        file, self._file = self._file, None
        partition = self._layout.partitions[self._ordinal]
        file.close(self._layout.footer(partition))
        self._pending.append(pool.submit(self._upload, file, partition))
        self._settle(2 * self._transfer_count)

    def _settle(self, waiting_count: int) -> None:
        """Wait for the oldest uploads until at most ``waiting_count`` are left."""
        while len(self._pending) > waiting_count:
            self._markers.append(self._pending.pop(0).result())

    def _upload(self, file: "_OpenFile", partition: str) -> FileMarker:
        key = self._layout.paths.data_key(partition=partition, file_id=file.path.stem)
        size_bytes = file.path.stat().st_size
        self._store.upload(key, file.path)
        file.path.unlink()
        return FileMarker(
            path=key,
            size_bytes=size_bytes,
            created_ms=self._layout.created_ms,
            row_count=file.row_count,
            stats=file.stats.finish(),
        )


class _OpenFile:
    """One data file that is being written."""

    def __init__(self, layout: PartLayout, path: Path, schema: pa.Schema) -> None:
        self.path = path
        self.row_count = 0
        self.stats = StatsCollector(layout.stats_columns)
        self._row_group_rows = layout.row_group_rows
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0
        self._sink: Any = pa.OSFile(str(path), "wb")
        self._writer: Any = pq.ParquetWriter(
            self._sink,
            schema,
            compression="zstd",
            compression_level=COMPRESSION_LEVEL,
            store_schema=False,
            write_statistics=True,
            sorting_columns=[
                pq.SortingColumn(schema.get_field_index(column), nulls_first=False) for column in layout.sort_columns
            ]
            or None,
        )

    @property
    def size_bytes(self) -> int:
        """Bytes written so far, whole row groups only."""
        return int(self._sink.tell())

    def add(self, rows: pa.Table) -> int:
        """Take rows up to the end of the row group; return how many."""
        taken = rows.slice(0, self._row_group_rows - self._waiting_rows)
        self.stats.add(taken)
        self._waiting.append(taken)
        self._waiting_rows += taken.num_rows
        self.row_count += taken.num_rows
        if self._waiting_rows == self._row_group_rows:
            self._flush_row_group()
        return int(taken.num_rows)

    def close(self, footer: dict[str, str]) -> None:
        """Write what waits, and the footer."""
        self._flush_row_group()
        self._writer.add_key_value_metadata(footer)
        self._writer.close()
        self._sink.close()

    def abandon(self) -> None:
        """Let go of the file without finishing it."""
        self._sink.close()

    def _flush_row_group(self) -> None:
        if self._waiting_rows:
            self._writer.write_table(pa.concat_tables(self._waiting), row_group_size=self._row_group_rows)
        self._waiting, self._waiting_rows = [], 0
