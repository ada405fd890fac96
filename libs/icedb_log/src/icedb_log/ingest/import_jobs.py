"""What an import job is handed and must give back: existing Parquet files become data files of a table.

:mod:`icedb_log.ingest.imports` decides what is imported and how it is committed; :mod:`icedb_engine` reads footers and
copies objects. Nothing is ever deleted here, and no row is read.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from icedb_log.ingest.import_sources import SourceFile
from icedb_log.keys import TablePaths
from icedb_log.model import EMPTY, ColumnStats, FileMarker
from icedb_log.table.table_config import TableConfig

ImportMode = Literal["copy", "in_place"]


@dataclass(frozen=True, slots=True)
class InspectJob:
    """Read the footers of some files, and tell which of them can be data files of a table.

    Attributes:
        paths: Keys of the table.
        config: Its configuration.
        sources: The files.
        partition: Values of partition fields, decoded, that the caller vouches for: they fill in for statistics that a
            file lacks, and never overrule those that it has.
        mode: How the files are to become data files.
    """

    paths: TablePaths
    config: TableConfig
    sources: tuple[SourceFile, ...]
    partition: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    mode: ImportMode = "copy"


@dataclass(frozen=True, slots=True)
class InspectedFile:
    """What a footer says.

    Attributes:
        source: The file.
        columns: Column to the SQL type that it is read as, in the file's order.
        partition: Encoded partition path that all its rows belong to.
        row_count: Rows.
        stats: Of partition sources and sort columns, as far as the footer has them.
        is_sorted: Whether the file says that it is sorted as the table is.
        inexact: Columns of which some value would change if the column became wider, or may: see :class:`FileMarker`.
        has_field_ids: Whether its columns have numbers of another writer (N6).
    """

    source: SourceFile
    columns: Mapping[str, str]
    partition: str
    row_count: int
    stats: Mapping[str, ColumnStats]
    is_sorted: bool
    inexact: tuple[str, ...] | None = None
    has_field_ids: bool = False


@dataclass(frozen=True, slots=True)
class RefusedFile:
    """A file that cannot be imported, and why, in words for the caller."""

    url: str
    reason: str


@dataclass(frozen=True, slots=True)
class InspectOutput:
    """Every source of the job is in exactly one of the two."""

    files: tuple[InspectedFile, ...]
    refused: tuple[RefusedFile, ...]


@dataclass(frozen=True, slots=True)
class PlacedFile:
    """A file with its rows in a data file of the table: a copy, or the file itself.

    Attributes:
        file: What was inspected.
        path: Key of the data file.
        size_bytes: Its size.
    """

    file: InspectedFile
    path: str
    size_bytes: int

    def make_marker(self, created_ms: int) -> FileMarker:
        """Return what the log says of it."""
        file = self.file
        return FileMarker(
            self.path, self.size_bytes, created_ms, row_count=file.row_count, stats=file.stats, inexact=file.inexact
        )


@dataclass(frozen=True, slots=True)
class CopyOutput:
    """Every file of the job is in exactly one of the two."""

    files: tuple[PlacedFile, ...]
    refused: tuple[RefusedFile, ...]


class FileImporter(Protocol):
    """Runs import jobs."""

    def inspect_files(self, job: InspectJob) -> InspectOutput:
        """Read footers. Changes nothing. Raises Unavailable when a store or the engine did not answer."""
        ...

    def copy_files(self, paths: TablePaths, files: tuple[InspectedFile, ...]) -> CopyOutput:
        """Copy files, each to a fresh key of its partition; refuse one that is not what was inspected any more.

        A copy has the bytes of the file, but for field ids, which it has not (N6).

        Not idempotent: each call makes new objects; after an error they are orphans (J5).

        Raises:
            Unavailable: A store or the engine did not answer.
        """
        ...
