"""The files that a merge could take, of logs that are held compactly: the others are never decoded. Pure.

A file has one size in all log files that name it: it is left out of all of them, or of none.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from icedb_log.log.compact_markers import CompactMarkers
from icedb_log.model import FileMarker, ListedLogFile, LogView
from icedb_log.tables.table_config import TableConfig

MANY_SMALL_FILES: Final = 200_000


def count_small(view: LogView, config: TableConfig) -> int:
    """Count the markers below the target size that are held compactly."""
    target_bytes = config.target_file_bytes
    return sum(size_bytes < target_bytes for markers in _compact(view) for size_bytes in markers.sizes)


def drop_large_files(view: LogView, config: TableConfig) -> LogView:
    """Return a view without files of the target size, which no merge takes; of compact logs without statistics, too."""
    return replace(view, files=tuple(_shrink(file, config.target_file_bytes) for file in view.files))


def list_small_files(view: LogView, config: TableConfig) -> tuple[FileMarker, ...]:
    """Return the small live files of each partition that has at least the fan-in of them, without statistics."""
    dead = {markers.path(at) for markers in _compact(view) for at in markers.dead}
    folders: dict[bytes, dict[bytes, FileMarker]] = {}
    for markers in _compact(view):
        for at, size_bytes in enumerate(markers.sizes):
            if size_bytes < config.target_file_bytes and (path := markers.path(at)) not in dead:
                folders.setdefault(path.rpartition(b"/")[0], {})[path] = markers.light(at)
    return tuple(marker for files in folders.values() if len(files) >= config.merge_fan_in for marker in files.values())


def _compact(view: LogView) -> Iterator[CompactMarkers]:
    return (file.log.markers for file in view.files if isinstance(file.log.markers, CompactMarkers))


def _shrink(file: ListedLogFile, target_bytes: int) -> ListedLogFile:
    markers = file.log.markers
    if not isinstance(markers, CompactMarkers):
        return file
    small = tuple(markers.light(at) for at, size_bytes in enumerate(markers.sizes) if size_bytes < target_bytes)
    return replace(file, log=replace(file.log, markers=small))
