"""What every system of the merge benchmark has in common, ours and peers. Imports nothing of ours.

All read copies of the same Parquet files, with the same codec (zstd, level 1), rows in a row group, and two threads.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.figures import Figure

LEVEL: Final = 1
ROW_GROUP_ROWS: Final = 122_880


@dataclass(frozen=True, slots=True)
class MergeInput:
    """A table with its small data files.

    Attributes:
        root: Folder of the store.
        files: The data files.
        sort: The table's sort columns.
        row_count: Rows in all of them.
        size_bytes: Bytes of all of them.
        duration_sum: Sum of the column ``duration_ms``: what every system must find again.
    """

    root: Path
    files: tuple[Path, ...]
    sort: tuple[str, ...]
    row_count: int
    size_bytes: int
    duration_sum: int


class MergeSystem:
    """What all have in common: an input, fresh copies for each turn, and the check of what came out."""

    name = ""
    sorts = True

    def __init__(self, source: MergeInput, folder: Path) -> None:
        self._source = source
        self._folder = folder

    def prepare(self) -> None:
        """Copy the files."""
        shutil.rmtree(self._folder, ignore_errors=True)
        (self._folder / "in").mkdir(parents=True)
        for file in self._source.files:
            shutil.copy(file, self._folder / "in")

    def check(self) -> Sequence[Figure]:
        """Count rows, add up a column, and look that each file is sorted."""
        files = self._files()
        row_count = duration_sum = 0
        for file in files:
            table = pq.ParquetFile(file).read([*self._source.sort, "duration_ms"])
            row_count += table.num_rows
            duration_sum += pc.sum(table["duration_ms"]).as_py()
            if self.sorts and not _is_sorted(table, self._source.sort):
                raise AssertionError(f"{self.name}: {file} is not sorted by {', '.join(self._source.sort)}")
        if (row_count, duration_sum) != (self._source.row_count, self._source.duration_sum):
            raise AssertionError(f"{self.name}: {row_count} rows, durations {duration_sum}: not what went in")
        size_bytes = sum(file.stat().st_size for file in files)
        return (Figure("output_files", "files", len(files)), Figure("output_size", "MB", size_bytes / 1e6))

    def close(self) -> None:
        """Nothing stays open."""

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("out/*.parquet"))


def _is_sorted(table: pa.Table, sort: Sequence[str]) -> bool:
    return bool(
        table.select(list(sort)).equals(table.select(list(sort)).sort_by([(name, "ascending") for name in sort]))
    )
