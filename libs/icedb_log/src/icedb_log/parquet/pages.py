"""What stands before each page of a Parquet file, and whether its bytes are those that were written.

Pure Python on purpose, as :mod:`icedb_log.parquet.thrift`: a damaged file cannot end the process. Nothing is
decompressed here. Field numbers are those of parquet.thrift (parquet-format 2.11).
"""

import os
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from icedb_log.parquet.footer import TAIL_BYTES, ColumnChunk, UnreadableCause, read_row_groups
from icedb_log.parquet.schema import DamagedFile
from icedb_log.parquet.thrift import Shape, ThriftError, ThriftReader, struct
from icedb_log.store.object_store import ObjectInfo

MAX_UNPACKED_BYTES: Final = 64 * 1024 * 1024
"""A page without a checksum that says to be larger is not decompressed: writers make them of a megabyte."""

DATA_PAGE, DICTIONARY_PAGE, DATA_PAGE_2 = 0, 2, 3
_ROW_GROUPS: Final = 4
_LENGTH_BYTES: Final = 4
_KIND, _SIZE_BYTES, _STORED_BYTES, _CRC = 1, 2, 3, 4
_OF_DATA, _OF_DICTIONARY, _OF_DATA_2 = 5, 7, 8
"""Details of a data page, a dictionary, a data page of version 2; each begins with its number of values."""
_DETAIL: Final = struct({1: ThriftReader.integer})


def _read_value_count(reader: ThriftReader, kind: int) -> int:
    count: int = _DETAIL(reader, kind).get(1, 0)
    return count


_PAGE: Final[Shape] = {
    **dict.fromkeys((_KIND, _SIZE_BYTES, _STORED_BYTES, _CRC), ThriftReader.integer),
    **dict.fromkeys((_OF_DATA, _OF_DICTIONARY, _OF_DATA_2), _read_value_count),
}


class Page(NamedTuple):  # tens of thousands of them are made in a merge
    """What stands before a page.

    Attributes:
        kind: :data:`DATA_PAGE`, :data:`DICTIONARY_PAGE`, or another one.
        place: Where its header begins.
        start: Where its bytes begin, behind the header.
        end: Where they end.
        size_bytes: Their length without compression.
        value_count: Values in it, nulls too; 0 if it does not say.
        crc: Checksum of the bytes as they are, as a signed integer; ``None`` if the writer made none.
    """

    kind: int
    place: int
    start: int
    end: int
    size_bytes: int
    value_count: int
    crc: int | None


@dataclass(frozen=True, slots=True)
class PageLook:
    """What the pages of one data file are like.

    Attributes:
        info: The file.
        page_count: Pages that were read.
        unsummed_count: Those of them that have no checksum: not every change in them can be seen.
        cause: Why the file is not as it was written, or could not be read; ``None``: nothing is wrong with it.
        reason: The same in words.
    """

    info: ObjectInfo
    page_count: int = 0
    unsummed_count: int = 0
    cause: UnreadableCause | None = None
    reason: str = ""


class PageReader(Protocol):
    """Reads the pages of data files."""

    def read_pages(self, infos: Iterable[ObjectInfo]) -> Iterator[PageLook]:
        """Read all bytes of any number of files, and return one result each, in the same order.

        Nothing that a file holds makes it raise.
        """
        ...


Unpack = Callable[[int, bytes, int], str | None]
"""Takes codec, bytes and length without compression of a page without a checksum, says what is wrong with it."""


def read_chunks(body: bytes | mmap) -> Iterator[ColumnChunk]:
    """Yield the columns of all row groups of a file. Raises DamagedFile: its footer is damaged."""
    tail = len(body) - TAIL_BYTES
    start = tail - int.from_bytes(body[max(0, tail) : tail + _LENGTH_BYTES], "little")
    if start < 0 or tail < 0:
        raise DamagedFile("its footer is longer than the file")
    reader = ThriftReader(body[start:tail])
    try:
        for number, kind in reader.fields():
            if number != _ROW_GROUPS:
                reader.skip(kind)
                continue
            for group in read_row_groups(reader, kind, data_bytes=start):
                yield from group.chunks
    except ThriftError as error:
        raise DamagedFile(f"its footer is damaged: {error}") from error


class ChunkPlace(Protocol):
    """Where the pages of a column chunk are, and what is said of them: as :class:`ColumnChunk`."""

    @property
    def start(self) -> int: ...  # noqa: D102 - as there
    @property
    def end(self) -> int: ...  # noqa: D102
    @property
    def value_count(self) -> int: ...  # noqa: D102
    @property
    def codec(self) -> int: ...  # noqa: D102


def read_pages(body: bytes | mmap, chunk: ChunkPlace) -> Iterator[Page]:
    """Yield the pages of a column chunk. Raises ThriftError: one does not say how large it is."""
    reader, last = ThriftReader(body, start=chunk.start), chunk.end
    while (head := reader.position) < last:
        found = reader.read(_PAGE)
        size_bytes, stored_bytes = found.get(_SIZE_BYTES, -1), found.get(_STORED_BYTES, -1)
        if size_bytes < 0 or stored_bytes < 0:
            raise ThriftError("a page does not say how large it is")
        start = reader.position
        reader.position = end = start + stored_bytes
        value_count = found.get(_OF_DATA) or found.get(_OF_DICTIONARY) or found.get(_OF_DATA_2) or 0
        yield Page(found.get(_KIND, -1), head, start, end, size_bytes, value_count, found.get(_CRC))


def check_page_sums(body: bytes | mmap, *, unpack: Unpack | None = None) -> tuple[int, int]:
    """Read every page of a file and compare it with its checksum, and the values of all with what the footer says.

    Args:
        body: The whole file; it may be mapped.
        unpack: Looks at pages that have no checksum.

    Returns:
        Number of pages, and of those without a checksum.

    Raises:
        DamagedFile: A page is not what was written, or the file cannot be walked through; the message says which one.
    """
    pages = unsummed = 0
    for number, chunk in enumerate(read_chunks(body)):
        try:
            found = check_chunk(body, chunk, unpack=unpack)
        except DamagedFile as error:
            raise DamagedFile(f"column {chunk.column!r} (chunk {number}): {error}") from error
        pages += len(found)
        unsummed += sum(page.crc is None for page in found)
    return pages, unsummed


def check_chunk(body: bytes | mmap, chunk: ChunkPlace, *, unpack: Unpack | None = None) -> list[Page]:
    """Do the same with one column chunk; return its pages. Raises DamagedFile."""
    pages: list[Page] = []
    values = 0
    try:
        for page in read_pages(body, chunk):
            pages.append(page)
            values += page.value_count if page.kind in (DATA_PAGE, DATA_PAGE_2) else 0
            problem = _find_problem(body, chunk, page, unpack)
            if problem:
                raise DamagedFile(f"the page at byte {page.start} {problem}")
    except ThriftError as error:
        raise DamagedFile(str(error)) from error
    if chunk.end and values != chunk.value_count:
        raise DamagedFile(f"its pages have {values} values, its footer says {chunk.value_count}")
    return pages


def check_file_sums(path: Path, *, unpack: Unpack | None = None) -> tuple[int, int]:
    """Do the same with a file, which is mapped: memory stays small. Raises DamagedFile, OSError."""
    with path.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            raise DamagedFile("it is empty")
        with mmap(file.fileno(), 0, access=ACCESS_READ) as body:
            return check_page_sums(body, unpack=unpack)


def _find_problem(body: bytes | mmap, chunk: ChunkPlace, page: Page, unpack: Unpack | None) -> str | None:
    if page.end > chunk.end:
        return "is longer than its column"
    if page.crc is not None:
        is_right = zlib.crc32(memoryview(body)[page.start : page.end]) == page.crc % (1 << 32)  # not copied
        return None if is_right else "has another checksum than its bytes"
    if unpack is None or page.kind not in (DATA_PAGE, DICTIONARY_PAGE) or page.size_bytes > MAX_UNPACKED_BYTES:
        return None
    return unpack(chunk.codec, body[page.start : page.end], page.size_bytes)
