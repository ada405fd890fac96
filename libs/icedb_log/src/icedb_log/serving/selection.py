"""Which live files of a snapshot a query wants: by partition filters and by a condition on columns. Pure.

The one place that prunes for readers: the snapshot service, the S3 gateway and the client without a service. Both
kinds of conditions leave out only files that cannot hold a row that is wanted.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Final

from icedb_log.keys import TablePaths
from icedb_log.log.fold import Snapshot
from icedb_log.log.live_files import LiveChunk, LiveFiles, sum_rows
from icedb_log.model import FileMarker
from icedb_log.table.partitions import PartitionFilter, PartitionMatcher, read_partition_values
from icedb_log.table.table_config import TableConfig, unite_columns

if TYPE_CHECKING:
    from icedb_log.table.file_pruning import FilePruner

MAX_TESTS: Final = 10_000_000
"""Most comparisons with statistics for one query; each costs some microseconds, and holds up everybody else's answer. A
condition with ten of them is tried on a million files. The files that are left then are kept, as any may be."""


@dataclass(frozen=True, slots=True)
class ChunkSelection:
    """What is wanted of one chunk of live files.

    Attributes:
        chunk: The chunk.
        indexes: Which of its files, ascending; ``None``: all.
    """

    chunk: LiveChunk
    indexes: tuple[int, ...] | None = None

    @property
    def files(self) -> LiveChunk:
        """The files."""
        return self.chunk if self.indexes is None else self.chunk.only(self.indexes)

    @property
    def file_count(self) -> int:
        """Number of files."""
        return len(self.chunk) if self.indexes is None else len(self.indexes)

    @property
    def size_bytes(self) -> int:
        """Bytes of the files."""
        if self.indexes is None:
            return self.chunk.size_bytes
        return sum(map(self.chunk.size_of, self.indexes))

    @property
    def row_count(self) -> int | None:
        """Rows of the files; ``None`` when some file does not say."""
        if self.indexes is None:
            return self.chunk.row_count
        return sum_rows(map(self.chunk.rows_of, self.indexes))


class FileSelector:
    """Conditions of one query, checked against a table and ready to use.

    Args:
        paths: Keys of the table.
        config: The table's configuration.
        snapshot: For the columns, beside those that are only declared.
        filters: Conditions on partition values, all of which must hold.
        where: A condition on columns, SQL in DuckDB's dialect; leaves out files in which it cannot be true.

    Raises:
        InvalidRequest: A filter or the condition is malformed, or names a field or column that is not there.
    """

    def __init__(
        self,
        paths: TablePaths,
        config: TableConfig,
        snapshot: Snapshot,
        *,
        filters: Sequence[PartitionFilter] = (),
        where: str | None = None,
    ) -> None:
        self._paths = paths
        self._matcher = PartitionMatcher(filters, config)
        self._pruner: FilePruner | None = None
        if where is not None:
            from icedb_log.table import conditions, file_pruning  # noqa: PLC0415 - sqlglot takes 0.4 s to load

            schema = unite_columns(snapshot.schema, config)
            conditions.check_condition(where, schema, table=paths.name)
            self._pruner = file_pruning.FilePruner(where, config, schema=schema)
        self._wanted: dict[str, bool] = {}
        self._tests_left = MAX_TESTS

    def select_chunks(self, live: LiveFiles) -> list[ChunkSelection]:
        """Return what is wanted of each chunk; chunks without a wanted file are left out. Raises CorruptLog."""
        if self._pruner is None:
            keeps_all = self._matcher.keeps_all
            return [ChunkSelection(each) for each in live.chunks if keeps_all or self._wants_partition(each.first)]
        selected: list[ChunkSelection] = []
        for chunk in live.chunks:
            if self._wants_partition(chunk.first):
                indexes = tuple(at for at in range(len(chunk)) if self._may_be_true(chunk.marker(at)))
                selected.append(ChunkSelection(chunk, None if len(indexes) == len(chunk) else indexes))
        return [each for each in selected if each.file_count]

    def _wants_partition(self, path: str) -> bool:
        """Whether the partition of a file fits the filters, and can hold a row for which the condition is true."""
        partition = self._paths.partition_of(path)
        if partition not in self._wanted:
            fits = self._matcher.keeps_all or self._matcher.matches(read_partition_values(partition))
            # A file of which nothing is known but its partition: what cannot be in it is in none of the partition's.
            self._wanted[partition] = fits and self._may_be_true(FileMarker(path, 0, 0))
        return self._wanted[partition]

    def _may_be_true(self, marker: FileMarker) -> bool:
        """Whether the condition can be true in a file, as far as there is work left for it."""
        if self._pruner is None or self._tests_left <= 0:
            return True
        self._tests_left -= self._pruner.test_count
        return self._pruner.may_be_true(marker)


def select_paths(live: LiveFiles, paths: Iterable[str]) -> list[ChunkSelection]:
    """Return the live files among these; none is looked at that has another path."""
    found = [place for path in sorted(paths) if (place := live.locate(path)) is not None]
    return [
        ChunkSelection(places[0][0], tuple(at for _, at in places))
        for _, places in ((first, list(group)) for first, group in groupby(found, lambda place: place[0].first))
    ]


def select_files(
    paths: TablePaths,
    config: TableConfig,
    snapshot: Snapshot,
    *,
    filters: Sequence[PartitionFilter] = (),
    where: str | None = None,
) -> LiveFiles:
    """Return the live files that can hold rows of a query, ascending by path. All else as of FileSelector."""
    selections = FileSelector(paths, config, snapshot, filters=filters, where=where).select_chunks(snapshot.live)
    return LiveFiles(each.files for each in selections)
