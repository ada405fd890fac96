"""What each partition of a table holds, for tables of a million data files. Pure.

Sums are made for each chunk of live files once, and go over to the next state with it: no marker is decoded.
:func:`icedb_log.table.partition_removal.list_partitions` says the same of files that a commit is going to remove.
"""

from collections import defaultdict
from dataclasses import dataclass

from icedb_log.keys import TablePaths
from icedb_log.log.live_files import LiveChunk, LiveFiles, sum_rows
from icedb_log.merge.small_files import measure_small
from icedb_log.table.table_config import TableConfig


@dataclass(frozen=True, slots=True)
class PartitionSize:
    """One partition with a live data file.

    Attributes:
        path: Encoded partition path; empty for a table without partitions.
        file_count: Live data files.
        small_count: Those of them that are below the target size.
        row_count: Rows in them; ``None`` when some file does not say.
        size_bytes: Bytes of them.
        newest_ms: When the youngest of them was made, by its committer's clock.
    """

    path: str
    file_count: int
    small_count: int
    row_count: int | None
    size_bytes: int
    newest_ms: int


def measure_partitions(live: LiveFiles, *, paths: TablePaths, config: TableConfig) -> tuple[PartitionSize, ...]:
    """Return all partitions with live data files, ascending by path."""
    folders: dict[str, list[LiveChunk]] = defaultdict(list)
    for chunk in live.chunks:
        folders[chunk.prefix].append(chunk)
    return tuple(
        PartitionSize(
            path=paths.partition_of(folder),
            file_count=sum(map(len, chunks)),
            small_count=sum(measure_small(chunk, config).file_count for chunk in chunks),
            row_count=sum_rows(chunk.row_count for chunk in chunks),
            size_bytes=sum(chunk.size_bytes for chunk in chunks),
            newest_ms=max(chunk.newest_ms for chunk in chunks),
        )
        for folder, chunks in sorted(folders.items())
    )
