"""The files that a merge could take, of logs that are held compactly: the others are never decoded. Pure.

A file has one size in all log files that name it: it is left out of all of them, or of none.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from icedb_log.log.compact_markers import CompactMarkers
from icedb_log.log.live_files import LiveFiles
from icedb_log.model import ListedLogFile, LogView
from icedb_log.table.table_config import TableConfig

MANY_SMALL_FILES: Final = 200_000


@dataclass(frozen=True, slots=True)
class Backlog:
    """Files that wait for a merge.

    Attributes:
        file_count: How many.
        size_bytes: Their bytes.
        oldest_ms: When the oldest was made; ``None``: there is none.
    """

    file_count: int = 0
    size_bytes: int = 0
    oldest_ms: int | None = None

    def plus(self, other: "Backlog") -> "Backlog":
        """Return both together."""
        times = [each.oldest_ms for each in (self, other) if each.oldest_ms is not None]
        return Backlog(self.file_count + other.file_count, self.size_bytes + other.size_bytes, min(times, default=None))


def count_small(view: LogView, config: TableConfig) -> int:
    """Count the markers below the target size that are held compactly."""
    target_bytes = config.target_file_bytes
    return sum(size_bytes < target_bytes for markers in _compact(view) for size_bytes in markers.sizes)


def drop_large_files(view: LogView, config: TableConfig) -> LogView:
    """Return a view without files of the target size, which no merge takes; of compact logs without statistics, too."""
    return replace(view, files=tuple(_shrink(file, config.target_file_bytes) for file in view.files))


def measure_small_files(live: LiveFiles, config: TableConfig) -> Backlog:
    """Sum up the small files of each partition that has at least the fan-in of them. Decodes and keeps none."""
    folders: dict[bytes, Backlog] = {}
    for chunk in live.chunks:
        sizes = [
            (at, size) for at in range(len(chunk)) if (size := chunk.file_size_bytes(at)) < config.target_file_bytes
        ]
        if sizes:
            found = Backlog(
                len(sizes), sum(size for _, size in sizes), min(chunk.file_created_ms(at) for at, _ in sizes)
            )
            folders[chunk.prefix] = found if chunk.prefix not in folders else folders[chunk.prefix].plus(found)
    total = Backlog()
    for found in folders.values():
        if found.file_count >= config.merge_fan_in:
            total = total.plus(found)
    return total


def _compact(view: LogView) -> Iterator[CompactMarkers]:
    return (file.log.markers for file in view.files if isinstance(file.log.markers, CompactMarkers))


def _shrink(file: ListedLogFile, target_bytes: int) -> ListedLogFile:
    markers = file.log.markers
    if not isinstance(markers, CompactMarkers):
        return file
    small = tuple(markers.light(at) for at, size_bytes in enumerate(markers.sizes) if size_bytes < target_bytes)
    return replace(file, log=replace(file.log, markers=small))
