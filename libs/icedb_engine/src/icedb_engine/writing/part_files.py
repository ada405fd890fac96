"""From a sorted stream of rows to data files: cut, encoded, uploaded, described.

The stream carries an ordinal in its first column, ascending: rows of one ordinal belong to one partition. Files are
encoded side by side, a row group at a time; a bounded number of row groups waits for that, and a bounded number of
files for its upload, so neither memory nor disk grows with the number of partitions. Within a file rows keep the
order of the stream.
"""

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeVar

import numpy as np
import pyarrow as pa
from icedb_log.clock import Clock
from icedb_log.model import FileMarker
from icedb_log.store.object_store import ObjectStore

from icedb_engine.limits import EngineLimits
from icedb_engine.writing.part_encoder import PartEncoder
from icedb_engine.writing.part_layout import PartLayout

ORDINAL: Final = "__ordinal"
"""Name of the stream's first column."""

ROW_GROUP_BYTES: Final = 64 * 1024 * 1024
"""A row group ends early above this size in memory: rows may be wide."""

_Piece = TypeVar("_Piece", pa.RecordBatch, pa.Table)


class PartFileWriter:
    """Writes one sorted stream as data files and uploads them under fresh names (W1).

    Args:
        store: Where they go.
        layout: How they look.
        clock: Gives their ids.
        folder: Where they lie until they are uploaded.
        limits: How many row groups are encoded, and how many files uploaded, at once.

    Attributes:
        ordinals: The ordinal of each file that was begun, in order: as the markers.
        footers: The footer of each file that :meth:`write_partition` uploaded, by its key.
    """

    def __init__(
        self, store: ObjectStore, layout: PartLayout, *, clock: Clock, folder: Path, limits: EngineLimits
    ) -> None:
        self._store = store
        self._layout = layout
        self._clock = clock
        self._folder = folder
        self._limits = limits
        self._encoders = ThreadPoolExecutor(limits.thread_count, thread_name_prefix="icedb-encode")
        self._uploads = ThreadPoolExecutor(limits.transfer_count, thread_name_prefix="icedb-upload")
        self._encoding: deque[Future[None]] = deque()
        self._closing: deque[Future[Future[FileMarker]]] = deque()
        self._markers: list[FileMarker] = []
        self._file: _OpenFile | None = None
        self._opened: set[_OpenFile] = set()
        self._ordinal = -1
        self.ordinals: list[int] = []
        self.footers: dict[str, bytes] = {}
        self._keeps_footers = False

    def write_all(self, chunks: Iterable[pa.RecordBatch]) -> tuple[FileMarker, ...]:
        """Write every row of the stream; return the markers of the uploaded files, in order. Once.

        Not idempotent: each call makes new files. After an error uploaded files are orphans (J5).

        Raises:
            Unavailable: The store did not take a file.
        """
        return self._write(chunks, self._write_chunk)

    def write_partition(self, tables: Iterable[pa.Table]) -> tuple[FileMarker, ...]:
        """Write the rows of the only partition, which come without an ordinal. As :meth:`write_all`."""
        self._keeps_footers = True
        return self._write(tables, partial(self._write_rows, 0))

    def _write(self, pieces: Iterable[_Piece], write: Callable[[_Piece], None]) -> tuple[FileMarker, ...]:
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            for piece in pieces:
                write(piece)
            self._close_file()
            self._settle(0)
        finally:
            self._encoders.shutdown(cancel_futures=True)
            self._uploads.shutdown(cancel_futures=True)
            for file in self._opened:
                file.encoder.abandon()
        return tuple(self._markers)

    def _write_chunk(self, chunk: pa.RecordBatch) -> None:
        if not chunk.num_rows:
            return
        ordinals = chunk.column(0).to_numpy()
        starts = np.concatenate(([0], np.flatnonzero(np.diff(ordinals)) + 1, [chunk.num_rows]))
        rows = pa.Table.from_batches([chunk]).remove_column(0)
        for start, end in pairwise(starts):
            self._write_rows(int(ordinals[start]), rows.slice(int(start), int(end - start)))

    def _write_rows(self, ordinal: int, rows: pa.Table) -> None:
        if ordinal != self._ordinal:
            self._close_file()
            self._ordinal = ordinal
        while rows.num_rows:
            if self._file is None:
                path = self._folder / f"{self._clock.new_id()}.parquet"
                self._file = _OpenFile(PartEncoder(path, self._layout), self._layout.row_group_rows)
                self._opened.add(self._file)
                self.ordinals.append(ordinal)
            taken = self._file.add(rows)
            rows = rows.slice(taken)
            if self._file.is_group_full:
                self._encode_group(self._file)

    def _encode_group(self, file: "_OpenFile") -> None:
        """Have a row group encoded, and end the file if that makes it large enough."""
        self._encoding.append(file.encode_group(self._encoders))
        # No file is larger than its rows in memory: only then is it worth to wait for its size.
        if file.memory_bytes >= self._layout.split_bytes and file.read_size_bytes() >= self._layout.split_bytes:
            self._close_file()
        self._hold_back()

    def _hold_back(self) -> None:
        """Wait until no more row groups are in memory than are being encoded, and one."""
        while len(self._encoding) > self._limits.thread_count:
            self._encoding.popleft().result()

    def _close_file(self) -> None:
        if self._file is None:
            return
        file, self._file = self._file, None
        partition, footer = self._layout.partitions[self._ordinal], self._layout.footer(self._ordinal)
        last_group = file.encode_group(self._encoders)

        def close() -> Future[FileMarker]:
            last_group.result()  # it was queued before this, so it has begun at least: no deadlock
            file.encoder.close(footer)
            return self._uploads.submit(self._upload, file, partition)

        self._encoding.append(last_group)
        self._closing.append(self._encoders.submit(close))
        self._hold_back()
        self._settle(2 * self._limits.transfer_count)

    def _settle(self, waiting_count: int) -> None:
        """Wait for the oldest uploads until at most ``waiting_count`` are left."""
        while len(self._closing) > waiting_count:
            self._markers.append(self._closing.popleft().result().result())

    def _upload(self, file: "_OpenFile", partition: str) -> FileMarker:
        path, encoder = file.encoder.path, file.encoder
        key = self._layout.paths.data_key(partition=partition, file_id=path.stem)
        size_bytes = path.stat().st_size
        self._store.upload(key, path)
        path.unlink()
        if self._keeps_footers:
            self.footers[key] = encoder.footer
        return FileMarker(
            path=key,
            size_bytes=size_bytes,
            created_ms=self._layout.created_ms,
            row_count=encoder.row_count,
            stats=encoder.stats.finish(),
            inexact=encoder.stats.inexact,
        )


class _OpenFile:
    """One data file: the rows of its next row group, and its encoder, which takes one row group after the other."""

    def __init__(self, encoder: PartEncoder, row_group_rows: int) -> None:
        self.encoder = encoder
        self.memory_bytes = 0
        self._row_group_rows = row_group_rows
        self._waiting: list[pa.Table] = []
        self._waiting_rows = 0
        self._waiting_bytes = 0
        self._before: Future[None] | None = None

    @property
    def is_group_full(self) -> bool:
        """Whether the row group takes no more rows."""
        return self._waiting_rows == self._row_group_rows or self._waiting_bytes >= ROW_GROUP_BYTES

    def add(self, rows: pa.Table) -> int:
        """Take rows up to the end of the row group; return how many."""
        taken = rows.slice(0, self._row_group_rows - self._waiting_rows)
        self._waiting.append(taken)
        self._waiting_rows += taken.num_rows
        self._waiting_bytes += taken.nbytes
        return int(taken.num_rows)

    def encode_group(self, pool: ThreadPoolExecutor) -> Future[None]:
        """Have what waits encoded, after the row group before it."""
        rows, before, is_first = self._waiting, self._before, self._before is None

        def encode() -> None:
            group = self.encoder.encode_group(pa.concat_tables(rows), is_first=is_first) if rows else None
            if before is not None:
                before.result()  # it was queued earlier, so it has begun at least: no deadlock
            if group is not None:
                self.encoder.append_group(group)

        self.memory_bytes += self._waiting_bytes
        self._waiting, self._waiting_rows, self._waiting_bytes = [], 0, 0
        self._before = pool.submit(encode)
        return self._before

    def read_size_bytes(self) -> int:
        """Wait for the encoder; return the bytes written so far."""
        if self._before is not None:
            self._before.result()
        return self.encoder.size_bytes
