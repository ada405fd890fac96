"""How many files wait for a merge where there are too many of them to plan it. Pure."""

from dataclasses import dataclass
from functools import partial, reduce
from typing import Final

from icedb_log.log.live_files import LiveChunk, LiveFiles
from icedb_log.merge.merge_policy import fewest_files
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


def measure_small_files(live: LiveFiles, config: TableConfig) -> Backlog:
    """Sum up the small files of each partition that has enough for a merge. Decodes and keeps none."""
    folders: dict[str, Backlog] = {}
    for chunk in live.chunks:
        found = measure_small(chunk, config)
        folders[chunk.prefix] = found.plus(folders.get(chunk.prefix, Backlog()))
    return reduce(
        Backlog.plus, (found for found in folders.values() if found.file_count >= fewest_files(config)), Backlog()
    )


def measure_small(chunk: LiveChunk, config: TableConfig) -> Backlog:
    """Sum up the files of a chunk that are below the target size, once for each chunk."""
    target_bytes = config.target_file_bytes
    return chunk.once(f"small {target_bytes}", partial(_measure, chunk, target_bytes))


def _measure(chunk: LiveChunk, target_bytes: int) -> Backlog:
    small = [at for at in range(len(chunk)) if chunk.size_of(at) < target_bytes]
    return Backlog(len(small), sum(map(chunk.size_of, small)), min(map(chunk.created_ms, small), default=None))
