"""Imports on a store in memory: source files are lines of JSON, as in :mod:`icedb_sim.tables.row_files`."""

from dataclasses import dataclass

from icedb_log.clock import Clock
from icedb_log.errors import NotFound
from icedb_log.jobs import CopyOutput, InspectedFile, InspectJob, InspectOutput, PlacedFile, RefusedFile, SourceFile
from icedb_log.keys import TablePaths
from icedb_log.store.object_store import ObjectStore

from icedb_sim.tables.row_files import read_rows

_TYPES = {int: "BIGINT", str: "VARCHAR", float: "DOUBLE", bool: "BOOLEAN"}


@dataclass(frozen=True, slots=True)
class RowFileImporter:
    """Reads and copies files of JSON lines of one store; each file's rows must have one value of column ``p``."""

    store: ObjectStore
    clock: Clock

    def inspect_files(self, job: InspectJob) -> InspectOutput:
        """Run an inspection."""
        files: list[InspectedFile] = []
        refused: list[RefusedFile] = []
        for source in job.sources:
            rows = read_rows(self.store, source.key)
            partitions = {str(row.get("p")) for row in rows}
            if len(partitions) > 1:
                refused.append(RefusedFile(source.url, f"partition p: {sorted(partitions)}"))
                continue
            columns = {name: _TYPES[type(value)] for row in rows for name, value in row.items()}
            partition = f"p={partitions.pop()}" if partitions else ""
            files.append(InspectedFile(source, columns, partition, len(rows), {}, is_sorted=False))
        return InspectOutput(tuple(files), tuple(refused))

    def copy_files(self, paths: TablePaths, files: tuple[InspectedFile, ...]) -> CopyOutput:
        """Copy files under fresh names."""
        placed: list[PlacedFile] = []
        refused: list[RefusedFile] = []
        for file in files:
            try:
                stored = self.store.get(file.source.key)
            except NotFound:
                refused.append(RefusedFile(file.source.url, "it is gone"))
                continue
            key = paths.data_key(partition=file.partition, file_id=self.clock.new_id())
            self.store.put(key, stored.body)
            placed.append(PlacedFile(file, key, len(stored.body)))
        return CopyOutput(tuple(placed), tuple(refused))


def describe_source(store: ObjectStore, key: str) -> SourceFile:
    """Return an object of the store as a source."""
    info = store.head(key)
    return SourceFile("mem://", key, store.uri(key), info.etag, info.size_bytes, info.modified_ms)
