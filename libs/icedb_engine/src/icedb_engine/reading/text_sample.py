"""Reads a sample of a text column from data files in the store: the ranges that it needs, and no whole file."""

import io
from collections.abc import Iterable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from icedb_log.errors import NotFound
from icedb_log.model import FileMarker
from icedb_log.store.object_store import ObjectStore
from icedb_log.units import MIB

SAMPLED_FILES: Final = 4
SAMPLED_ROWS: Final = 2048
"""Of one file."""
SAMPLED_BYTES: Final = 64 * MIB
"""Decoded size of the column above which no further row group is read."""


class _RangeFile(io.RawIOBase):
    """An object of the store as a file that is read."""

    def __init__(self, store: ObjectStore, marker: FileMarker) -> None:
        super().__init__()
        self._store = store
        self._marker = marker
        self._place = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._marker.size_bytes}[whence]
        self._place = base + offset
        return self._place

    def read(self, size: int = -1, /) -> bytes:
        rest = self._marker.size_bytes - self._place
        length = rest if size < 0 else min(size, rest)
        if length <= 0:
            return b""
        body = self._store.get_range(self._marker.path, start=self._place, length=length).body
        self._place += len(body)
        return body


def sample_texts(store: ObjectStore, files: Iterable[FileMarker], column: str) -> list[str | None]:
    """See :meth:`icedb_log.jobs.TextSampler.sample_texts`."""
    found: list[str | None] = []
    file_count, room_bytes = 0, SAMPLED_BYTES
    for marker in files:
        if file_count == SAMPLED_FILES or room_bytes <= 0:
            break
        try:
            with pq.ParquetFile(pa.PythonFile(_RangeFile(store, marker), "r")) as file:
                texts, size_bytes = _sample_file(file, column, room_bytes)
        except (NotFound, pa.ArrowException):  # vacuumed meanwhile; a damaged file is for the merge to find
            continue
        found += texts
        room_bytes -= size_bytes
        file_count += 1
    return found


def _sample_file(file: pq.ParquetFile, column: str, room_bytes: int) -> tuple[list[str | None], int]:
    """Return texts of one file, and the size of what was decoded for them: one row group at least."""
    names = [file.schema.column(place).path for place in range(file.metadata.num_columns)]
    if column not in names:
        return [None] * min(SAMPLED_ROWS, file.metadata.num_rows), 0
    place = names.index(column)
    chunks = [file.metadata.row_group(number).column(place) for number in range(file.num_row_groups)]
    sizes = np.array([chunk.total_uncompressed_size for chunk in chunks])
    count = max(1, min(len(sizes), int(room_bytes // max(1, sizes.max(initial=0)))))
    numbers = sorted({len(sizes) * at // count for at in range(count)}) if len(sizes) else []
    values = file.read_row_groups(numbers, columns=[column], use_threads=False).column(0)
    step = -(-len(values) // SAMPLED_ROWS) or 1
    return values.take(pa.array(range(0, len(values), step), pa.int64())).to_pylist(), int(sizes[numbers].sum())
