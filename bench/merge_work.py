"""What every system of the merge benchmark has in common, ours and peers. Imports nothing of ours.

All read copies of the same Parquet files, with the same codec (zstd, level 1), rows in a row group, and two threads.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.figures import Figure, TakesTurns
from bench.ingest_work import check_files, output_figures

LEVEL: Final = 1
ROW_GROUP_ROWS: Final = 524_288


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


class MergeSystem(TakesTurns):
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
        source = self._source
        sorted_count = check_files(self.name, files, source.sort, (source.row_count, source.duration_sum))
        if self.sorts and sorted_count < len(files):
            raise AssertionError(f"{self.name}: {len(files) - sorted_count} files are not sorted by {source.sort}")
        return output_figures(files)

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("out/*.parquet"))
