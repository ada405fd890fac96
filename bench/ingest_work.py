"""What every system of the ingest benchmark has in common, ours and peers. Imports nothing of ours."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench.figures import CORE_COUNT, Figure, TakesTurns

SORT: Final = ("event", "ts")


@dataclass(frozen=True, slots=True)
class IngestInput:
    """The batches of one case.

    Attributes:
        files: One NDJSON file a batch.
        row_count: Events in all of them.
        duration_sum: Sum of the column ``duration_ms``: what every system must find again.
        day_count: Days of ``ts``, each with rows.
        size_bytes: Bytes of all files.
    """

    files: tuple[Path, ...]
    row_count: int
    duration_sum: int
    day_count: int
    size_bytes: int


class IngestSystem(TakesTurns):
    """What all have in common: an input, a fresh folder for each turn, and the check of its Parquet files."""

    name = ""
    keeps_order = True

    def __init__(self, source: IngestInput, folder: Path) -> None:
        self._source = source
        self._folder = folder

    def take(self, source: IngestInput) -> None:
        """Go on with another input."""
        self._source = source

    def prepare(self) -> None:
        """Begin with an empty folder."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        pa.set_cpu_count(CORE_COUNT)

    def check(self) -> Sequence[Figure]:
        """Count rows, add up a column, and look that each file is sorted."""
        files = self._files()
        sorted_count = check_files(self.name, files, SORT, (self._source.row_count, self._source.duration_sum))
        if self.keeps_order and sorted_count < len(files):
            raise AssertionError(f"{self.name}: {len(files) - sorted_count} files are not sorted by {', '.join(SORT)}")
        output, size = output_figures(files)
        return (output, Figure("sorted_files", "files", sorted_count), size)

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob("out/*/*.parquet"))


def check_files(name: str, files: Sequence[Path], sort: Sequence[str], expected: tuple[int, int]) -> int:
    """Return how many Parquet files are sorted.

    Raises:
        AssertionError: Their rows and the sum of ``duration_ms`` are not those that are expected.
    """
    row_count = duration_sum = sorted_count = 0
    for file in files:
        table = pq.ParquetFile(file).read([*sort, "duration_ms"])
        row_count += table.num_rows
        duration_sum += pc.sum(table["duration_ms"]).as_py()
        keys = table.select(list(sort))
        sorted_count += keys.equals(keys.sort_by([(column, "ascending") for column in sort]))
    if (row_count, duration_sum) != expected:
        raise AssertionError(f"{name}: {row_count} rows, durations {duration_sum}: not what went in")
    return sorted_count


def output_figures(files: Sequence[Path]) -> tuple[Figure, Figure]:
    """Return how many files came out, and their size."""
    size_bytes = sum(file.stat().st_size for file in files)
    return Figure("output_files", "files", len(files)), Figure("output_size", "MB", size_bytes / 1e6)
