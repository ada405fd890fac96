"""The data files of a snapshot, kept as they came: an object for a file is made when somebody asks for that file.

A snapshot of 100,000 files is mostly asked for its paths, or only counted. Nothing here copies what the service or the
log already holds in memory.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import chain, islice
from typing import Any, overload

from icedb_log.log.live_files import LiveFiles
from icedb_log.model import FileMarker
from icedb_log.table.partitions import read_partition_values


@dataclass(frozen=True, slots=True)
class DataFile:
    """One live data file.

    Attributes:
        path: Full key in the object store.
        uri: Where an engine opens it: ``s3://bucket/key`` or an absolute file path.
        size_bytes: Its size.
        row_count: Its rows; ``None`` when its writer did not say.
        partition: Partition values by field name, ``None`` for null.
        created_ms: When it was made, unix ms.
        presigned_url: Reads it without credentials, if that was asked for.
    """

    path: str
    uri: str
    size_bytes: int
    row_count: int | None
    partition: Mapping[str, str | None]
    created_ms: int
    presigned_url: str | None = None


class FileList(Sequence[DataFile]):
    """Data files, ascending by path. A sequence of :class:`DataFile`; equal to any sequence of the same files."""

    @abstractmethod
    def _entries(self) -> Iterator[Any]:
        """Yield each file as it came."""

    @abstractmethod
    def _entry(self, index: int) -> Any:
        """Return one file as it came."""

    @abstractmethod
    def _describe(self, entry: Any, known: dict[str, Mapping[str, str | None]]) -> DataFile:
        """Return a file; those of one partition share what ``known`` has of it."""

    def __iter__(self) -> Iterator[DataFile]:
        known: dict[str, Mapping[str, str | None]] = {}
        return (self._describe(entry, known) for entry in self._entries())

    @property
    @abstractmethod
    def paths(self) -> list[str]:
        """The key of each file in the object store."""

    @property
    @abstractmethod
    def uris(self) -> list[str]:
        """Where an engine opens each file: its presigned URL where there is one."""

    @property
    @abstractmethod
    def size_bytes(self) -> int:
        """Bytes of all files."""

    @property
    @abstractmethod
    def row_count(self) -> int | None:
        """Rows of all files; ``None`` when some file does not say."""

    @cached_property
    def partition_names(self) -> tuple[str, ...]:
        """Names of the partition fields that these files have values of, in the order of the paths."""
        names: dict[str, None] = {}
        for folder in dict.fromkeys(path.rpartition("/")[0] for path in self.paths):
            names.update(dict.fromkeys(read_partition_values(folder.rpartition("/_data/")[2])))
        return tuple(names)

    @overload
    def __getitem__(self, index: int) -> DataFile: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[DataFile, ...]: ...

    def __getitem__(self, index: int | slice) -> DataFile | tuple[DataFile, ...]:
        if isinstance(index, slice):
            return tuple(self._describe(self._entry(place), {}) for place in range(*index.indices(len(self))))
        place = index + len(self) if index < 0 else index
        if not 0 <= place < len(self):
            raise IndexError(f"file {index} of {len(self)}")
        return self._describe(self._entry(place), {})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str):
            return NotImplemented
        return len(self) == len(other) and all(mine == yours for mine, yours in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]  # equal to lists, which have none

    def __repr__(self) -> str:
        shown = ", ".join(file.path.rpartition("/")[2] for file in islice(self, 3))
        return f"<{len(self)} files: {shown}{', …' if len(self) > 3 else ''}>"  # noqa: PLR2004 - a few


class WireFiles(FileList):
    """Files of the pages of an answer of the snapshot service.

    Args:
        pages: The ``files`` of each page, as protocol buffers.
        size_bytes: What the answer says of all of them.
        row_count: The same.
    """

    def __init__(self, pages: Sequence[Sequence[Any]], *, size_bytes: int | None, row_count: int | None) -> None:
        self._pages = pages
        self._count = sum(len(page) for page in pages)
        self._size_bytes = size_bytes
        self._row_count = row_count

    def __len__(self) -> int:
        return self._count

    def _entries(self) -> Iterator[Any]:
        return chain.from_iterable(self._pages)

    def _entry(self, index: int) -> Any:
        for page in self._pages:
            if index < len(page):
                return page[index]
            index -= len(page)
        raise IndexError(index)

    def _describe(self, entry: Any, known: dict[str, Mapping[str, str | None]]) -> DataFile:
        folder = entry.path.rpartition("/")[0]
        if folder not in known:
            known[folder] = {
                each.name: each.value if each.HasField("value") else None for each in entry.partition_values
            }
        return DataFile(
            path=entry.path,
            uri=entry.uri,
            size_bytes=entry.size_bytes,
            row_count=entry.row_count if entry.HasField("row_count") else None,
            partition=known[folder],
            created_ms=entry.created_ms,
            presigned_url=entry.presigned_url if entry.HasField("presigned_url") else None,
        )

    @property
    def paths(self) -> list[str]:
        """See :class:`FileList`."""
        return [file.path for file in self._entries()]

    @property
    def uris(self) -> list[str]:
        """See :class:`FileList`."""
        return [file.presigned_url or file.uri for file in self._entries()]

    @property
    def size_bytes(self) -> int:
        """See :class:`FileList`."""
        return sum(file.size_bytes for file in self._entries()) if self._size_bytes is None else self._size_bytes

    @property
    def row_count(self) -> int | None:
        """See :class:`FileList`."""
        return self._row_count


class MarkerFiles(FileList):
    """Files as the log lists them.

    Args:
        markers: What the log says.
        partition_of: From a path to its partition.
        uri: From a path to where an engine opens it.
        presign: From a path to a URL, if URLs were asked for. Called once for each path: a query that is let open these
            URLs and no others must find the same ones.
    """

    def __init__(
        self,
        markers: LiveFiles,
        *,
        partition_of: Callable[[str], str],
        uri: Callable[[str], str],
        presign: Callable[[str], str] | None = None,
    ) -> None:
        self._markers = markers
        self._partition_of = partition_of
        self._uri = uri
        self._presign = None if presign is None else cache(presign)

    def __len__(self) -> int:
        return len(self._markers)

    def _entries(self) -> Iterator[FileMarker]:
        return iter(self._markers)

    def _entry(self, index: int) -> FileMarker:
        return self._markers[index]

    def _describe(self, entry: FileMarker, known: dict[str, Mapping[str, str | None]]) -> DataFile:
        folder = self._partition_of(entry.path)
        if folder not in known:
            known[folder] = read_partition_values(folder)
        return DataFile(
            entry.path,
            self._uri(entry.path),
            entry.size_bytes,
            entry.row_count,
            known[folder],
            entry.created_ms,
            self._presign(entry.path) if self._presign is not None else None,
        )

    @property
    def paths(self) -> list[str]:
        """See :class:`FileList`."""
        return self._markers.paths()

    @property
    def uris(self) -> list[str]:
        """See :class:`FileList`."""
        return list(map(self._presign or self._uri, self.paths))

    @property
    def size_bytes(self) -> int:
        """See :class:`FileList`."""
        return self._markers.size_bytes

    @property
    def row_count(self) -> int | None:
        """See :class:`FileList`."""
        return self._markers.row_count
