"""The data files of a snapshot, kept as they came: an object for a file is made when somebody asks for that file.

A snapshot of 100,000 files is mostly asked for its paths, or only counted. Nothing here copies what the service or the
log already holds in memory.
"""

from abc import abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from itertools import chain, islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, overload

from icedb_log.errors import InvalidRequest
from icedb_log.log.live_files import LiveFiles, sum_rows
from icedb_log.model import FileMarker
from icedb_log.serving.arrow_files import FileColumns, group_chunks
from icedb_log.table.partitions import read_partition_values

if TYPE_CHECKING:
    import pyarrow as pa

MAX_BATCH_FILES: Final = 2048
"""A record batch to which changes have added more is cut: the next change looks at all of one."""
_PARTITION: Final = "partition."


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
    def paths(self) -> list[str]:
        """The key of each file in the object store."""
        return [entry.path for entry in self._entries()]

    @property
    def uris(self) -> list[str]:
        """Where an engine opens each file: its presigned URL where there is one."""
        return [entry.presigned_url or entry.uri for entry in self._entries()]

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(entry.size_bytes for entry in self._entries())

    @property
    def row_count(self) -> int | None:
        """Rows of all files; ``None`` when some file does not say."""
        return sum_rows(entry.row_count for entry in self._entries())

    def to_arrow(self) -> "pa.Table":
        """Return the list as an Arrow table, without a look at single files.

        Columns: ``path``, ``size_bytes``, ``row_count``, ``created_ms``, ``partition.<field>`` for each partition field
        and, with bounds, ``min.<column>``, ``max.<column>`` (text that SQL casts to the column's type) and
        ``null_count.<column>`` for each column that the table is partitioned or sorted by.

        Raises:
            InvalidRequest: The list came file by file, or pyarrow is missing.
        """
        raise InvalidRequest(
            "this list of files came file by file: take the snapshot with columnar=True, from a service that knows it"
        )

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
    def size_bytes(self) -> int:
        """See :class:`FileList`."""
        return super().size_bytes if self._size_bytes is None else self._size_bytes

    @property
    def row_count(self) -> int | None:
        """See :class:`FileList`."""
        return self._row_count


class PickedFiles(FileList):
    """Some files of a list, ascending by path."""

    def __init__(self, files: Iterable[DataFile]) -> None:
        self._files = tuple(files)

    def __len__(self) -> int:
        return len(self._files)

    def _entries(self) -> Iterator[DataFile]:
        return iter(self._files)

    def _entry(self, index: int) -> DataFile:
        return self._files[index]

    def _describe(self, entry: DataFile, known: dict[str, Mapping[str, str | None]]) -> DataFile:  # noqa: ARG002
        return entry


class MarkerFiles(FileList):
    """Files as the log lists them.

    Args:
        markers: What the log says.
        columns: How they are a table of Arrow.
        uri: From a path to where an engine opens it.
        presign: From a path to a URL, if URLs were asked for. Called once for each path: a query that is let open these
            URLs and no others must find the same ones.
    """

    def __init__(
        self,
        markers: LiveFiles,
        *,
        columns: FileColumns,
        uri: Callable[[str], str],
        presign: Callable[[str], str] | None = None,
    ) -> None:
        self.markers = markers
        self._columns = columns
        self._uri = uri
        self._presign = None if presign is None else cache(presign)

    def __len__(self) -> int:
        return len(self.markers)

    def _entries(self) -> Iterator[FileMarker]:
        return iter(self.markers)

    def _entry(self, index: int) -> FileMarker:
        return self.markers[index]

    def _describe(self, entry: FileMarker, known: dict[str, Mapping[str, str | None]]) -> DataFile:
        folder = self._columns.paths.partition_of(entry.path)
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
        return self.markers.paths()

    @property
    def uris(self) -> list[str]:
        """See :class:`FileList`."""
        return list(map(self._presign or self._uri, self.paths))

    @property
    def size_bytes(self) -> int:
        """See :class:`FileList`."""
        return self.markers.size_bytes

    @property
    def row_count(self) -> int | None:
        """See :class:`FileList`."""
        return self.markers.row_count

    def to_arrow(self) -> "pa.Table":
        """See :class:`FileList`."""
        columns = self._columns
        parts = (columns.once(part, bytes) for part in group_chunks(self.markers.chunks))
        return read_batches((columns.encode_schema(), *parts))


class ArrowFiles(FileList):
    """Files as record batches.

    Args:
        table: The batches.
        uri_prefix: What stands before each path where an engine opens it.
    """

    def __init__(self, table: "pa.Table", *, uri_prefix: str) -> None:
        self._table = table
        self._uri_prefix = uri_prefix

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def _entries(self) -> Iterator[Any]:
        return chain.from_iterable(batch.to_pylist() for batch in self._table.to_batches())

    def _entry(self, index: int) -> Any:
        return self._table.slice(index, 1).to_pylist()[0]

    def _describe(self, entry: Any, known: dict[str, Mapping[str, str | None]]) -> DataFile:
        folder = entry["path"].rpartition("/")[0]
        if folder not in known:
            known[folder] = {name: entry[_PARTITION + name] for name in self.partition_names}
        uri = self._uri_prefix + entry["path"]
        return DataFile(entry["path"], uri, entry["size_bytes"], entry["row_count"], known[folder], entry["created_ms"])

    @property
    def paths(self) -> list[str]:
        """See :class:`FileList`."""
        paths: list[str] = self._table["path"].to_pylist()
        return paths

    @property
    def uris(self) -> list[str]:
        """See :class:`FileList`."""
        return [self._uri_prefix + path for path in self.paths]

    @property
    def size_bytes(self) -> int:
        """See :class:`FileList`."""
        return self._sum("size_bytes")

    @property
    def row_count(self) -> int | None:
        """See :class:`FileList`."""
        return None if self._table["row_count"].null_count else self._sum("row_count")

    def _sum(self, name: str) -> int:
        total: int | None = import_module("pyarrow.compute").sum(self._table[name]).as_py()
        return total or 0

    @cached_property
    def partition_names(self) -> tuple[str, ...]:
        """Names of the table's partition fields."""
        names = self._table.column_names
        return tuple(name.removeprefix(_PARTITION) for name in names if name.startswith(_PARTITION))

    def to_arrow(self) -> "pa.Table":
        """See :class:`FileList`."""
        return self._table

    def change(self, came: "ArrowFiles", went: Collection[str]) -> "tuple[ArrowFiles, ArrowFiles]":
        """Return the files without those that went and with those that came; and those that went.

        Record batches in which nothing has changed are neither looked into nor copied.

        Args:
            came: Files that are not in the list, of the same columns.
            went: Paths of files that are; one that is not is left out of what is returned.
        """
        if not came and not went:
            return self, came
        if not self:
            return came, self
        batches = list(self._batches)
        edits: dict[int, list[tuple[str, int | None]]] = {}
        for path, at in (*((path, None) for path in went), *((path, at) for at, path in enumerate(came.paths))):
            edits.setdefault(max(0, bisect_right(batches, path, key=itemgetter(0)) - 1), []).append((path, at))
        gone: list[Any] = []
        for which in sorted(edits, reverse=True):
            old, pieces, begin = batches[which][1], [], 0
            for path, at in sorted(edits[which], key=itemgetter(0)):
                end = bisect_left(range(old.num_rows), path, lo=begin, key=lambda row: old["path"][row].as_py())
                pieces.append(old.slice(begin, end - begin))
                begin = end
                if at is not None:
                    pieces += came.to_arrow().slice(at, 1).to_batches()
                elif end < old.num_rows and old["path"][end].as_py() == path:
                    gone.append(old.slice(end, 1))
                    begin = end + 1
            pieces.append(old.slice(begin))
            now = self._of(pieces).to_arrow().combine_chunks()
            batches[which : which + 1] = _first_paths(now.to_batches(max_chunksize=MAX_BATCH_FILES))
        changed = self._of([batch for _, batch in batches])
        changed._batches = batches  # noqa: SLF001 - one of us; most of them as before
        return changed, self._of([batch for _, batch in sorted(_first_paths(gone), key=itemgetter(0))])

    @cached_property
    def _batches(self) -> list[tuple[str, Any]]:
        return _first_paths(self._table.to_batches())

    def _of(self, batches: Sequence[Any]) -> "ArrowFiles":
        return ArrowFiles(_arrow().Table.from_batches(batches, self._table.schema), uri_prefix=self._uri_prefix)


def _first_paths(batches: Iterable[Any]) -> list[tuple[str, Any]]:
    """Return record batches that have a row, each with the path that it begins with."""
    return [(batch["path"][0].as_py(), batch) for batch in batches if batch.num_rows]


def read_batches(parts: Iterable[bytes]) -> "pa.Table":
    """Return the table of an IPC stream that came in parts. Raises InvalidRequest: pyarrow is missing."""
    return _arrow().ipc.open_stream(_arrow().py_buffer(b"".join(parts))).read_all()


def _arrow() -> Any:
    try:
        return import_module("pyarrow")
    except ImportError as error:
        raise InvalidRequest(
            "a list of files as record batches needs pyarrow, which is not installed: pip install pyarrow"
        ) from error
