"""Where the pages of a Parquet file lie, and what stands before each of them: read without a Parquet library.

Pure Python on purpose, as :mod:`icedb_log.thrift`: a damaged file cannot end the process. Nothing is decompressed here.
Field numbers are those of parquet.thrift (parquet-format 2.11).
"""

import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Final

from icedb_log.thrift import STRUCT, ThriftError, ThriftReader

MAX_UNPACKED_BYTES: Final = 64 * 1024 * 1024
"""A page without a checksum that says to be larger is not decompressed: writers make them of a megabyte."""

DICTIONARY_PAGE: Final = 2
DATA_PAGE: Final = 0
_DATA_PAGES: Final = (DATA_PAGE, 3)
_FOOTER_TAIL_BYTES: Final = 8
_LENGTH_BYTES: Final = 4
_ROW_GROUPS: Final = 4
_GROUP_CHUNKS: Final = 1
_CHUNK_METADATA: Final = 3
_CHUNK_ENCRYPTED: Final = (8, 9)
"""How a column is encrypted, and its metadata, encrypted: the footer itself may be plain."""
_NAMES, _CODEC, _VALUE_COUNT, _TOTAL_COMPRESSED, _DATA_OFFSET, _DICTIONARY_OFFSET = 3, 4, 5, 7, 9, 11
_PAGE_KIND, _PAGE_UNCOMPRESSED, _PAGE_COMPRESSED, _PAGE_CRC = 1, 2, 3, 4
_PAGE_DETAILS: Final = (5, 7, 8)
"""Of a data page, a dictionary, a data page of version 2; each begins with its number of values."""


@dataclass(frozen=True, slots=True)
class ColumnChunk:
    """One column of one row group.

    Attributes:
        column: Its name; of a nested one with those above it, by dots.
        start: Where its first page begins; with ``end`` 0 if it has no values.
        end: Where its last page ends.
        value_count: Values of it, nulls too.
        codec: How its pages are compressed.
        is_encrypted: Whether nobody can read it without a key.
    """

    column: str
    start: int
    end: int
    value_count: int
    codec: int
    is_encrypted: bool


@dataclass(frozen=True, slots=True)
class Page:
    """What stands before a page.

    Attributes:
        kind: :data:`DATA_PAGE`, :data:`DICTIONARY_PAGE`, or another one.
        start: Where its bytes begin, behind the header.
        end: Where they end.
        size_bytes: Their length without compression.
        value_count: Values in it, nulls too; 0 if it does not say.
        crc: Checksum of the bytes as they are, as a signed integer; ``None`` if the writer made none.
    """

    kind: int
    start: int
    end: int
    size_bytes: int
    value_count: int
    crc: int | None


@dataclass(frozen=True, slots=True)
class PageCounts:
    """Pages of a file.

    Attributes:
        pages: All of them.
        unsummed: Those without a checksum.
    """

    pages: int
    unsummed: int


Unpack = Callable[[int, bytes, int], str | None]
"""Takes codec, bytes and length without compression of a page without a checksum, says what is wrong with it."""


class DamagedPages(Exception):
    """A file whose pages are not what was written; the message says which one and why."""


def read_chunks(body: bytes | mmap) -> Iterator[ColumnChunk]:
    """Yield the columns of all row groups. Raises ThriftError: the footer is damaged."""
    tail = len(body) - _FOOTER_TAIL_BYTES
    start = tail - int.from_bytes(body[max(0, tail) : tail + _LENGTH_BYTES], "little")
    if start < 0 or tail < 0:
        raise ThriftError("the footer is longer than the file")
    reader = ThriftReader(body[start:tail])
    for number, kind in reader.fields():
        if number != _ROW_GROUPS:
            reader.skip(kind)
            continue
        for _group in reader.items(kind):
            for group_field, group_kind in reader.fields():
                if group_field != _GROUP_CHUNKS:
                    reader.skip(group_kind)
                    continue
                for _chunk in reader.items(group_kind):
                    yield _read_chunk(reader, start)


def _read_chunk(reader: ThriftReader, data_end: int) -> ColumnChunk:
    found: dict[int, int] = {}
    names: list[str] = []
    is_encrypted = False
    for number, kind in reader.fields():
        if number in _CHUNK_ENCRYPTED:
            is_encrypted = True
        if number != _CHUNK_METADATA or kind != STRUCT:
            reader.skip(kind)
            continue
        for name, field_kind in reader.fields():
            if name in (_CODEC, _VALUE_COUNT, _TOTAL_COMPRESSED, _DATA_OFFSET, _DICTIONARY_OFFSET):
                found[name] = reader.integer(field_kind)
            elif name == _NAMES:
                names = [reader.text(item) for item in reader.items(field_kind)]
            else:
                reader.skip(field_kind)
    start, length = found.get(_DATA_OFFSET, -1), found.get(_TOTAL_COMPRESSED, -1)
    if found.get(_DICTIONARY_OFFSET, 0) > 0:
        start = min(start, found[_DICTIONARY_OFFSET])
    if is_encrypted or found.get(_VALUE_COUNT) == 0:
        start = length = 0  # no page of it is read, and what else is said of it may be nonsense
    elif start < 0 or length < 0 or start + length > data_end:
        raise ThriftError("a column lies outside of the file")
    codec, value_count = found.get(_CODEC, 0), found.get(_VALUE_COUNT, -1)
    return ColumnChunk(".".join(names), start, start + length, value_count, codec, is_encrypted)


def read_pages(body: bytes | mmap, chunk: ColumnChunk) -> Iterator[Page]:
    """Yield the pages of a column chunk. Raises ThriftError: one does not say how large it is."""
    place = chunk.start
    while place < chunk.end:
        page = _read_page(body, place)
        place = page.end
        yield page


def _read_page(body: bytes | mmap, place: int) -> Page:
    reader = ThriftReader(body, start=place)
    found: dict[int, int] = {}
    value_count = 0
    for number, kind in reader.fields():
        if number in (_PAGE_KIND, _PAGE_UNCOMPRESSED, _PAGE_COMPRESSED, _PAGE_CRC):
            found[number] = reader.integer(kind)
        elif number in _PAGE_DETAILS and kind == STRUCT:
            value_count = _read_value_count(reader)
        else:
            reader.skip(kind)
    size_bytes, stored_bytes = found.get(_PAGE_UNCOMPRESSED, -1), found.get(_PAGE_COMPRESSED, -1)
    if size_bytes < 0 or stored_bytes < 0:
        raise ThriftError("a page does not say how large it is")
    start = reader.position
    return Page(found.get(_PAGE_KIND, -1), start, start + stored_bytes, size_bytes, value_count, found.get(_PAGE_CRC))


def _read_value_count(reader: ThriftReader) -> int:
    value_count = 0
    for number, kind in reader.fields():
        if number == 1:
            value_count = reader.integer(kind)
        else:
            reader.skip(kind)
    return value_count


def check_page_sums(body: bytes | mmap, *, unpack: Unpack | None = None) -> PageCounts:
    """Read every page of a file and compare it with its checksum, and the values of all with what the footer says.

    Args:
        body: The whole file; it may be mapped.
        unpack: Looks at pages that have no checksum.

    Raises:
        DamagedPages: A page is not what was written, or the file cannot be walked through.
    """
    pages = unsummed = 0
    where = "its footer"
    try:
        for number, chunk in enumerate(read_chunks(body)):
            where = f"column {chunk.column!r} (chunk {number})"
            values = 0
            for page in read_pages(body, chunk):
                pages += 1
                unsummed += page.crc is None
                values += page.value_count if page.kind in _DATA_PAGES else 0
                problem = _find_problem(body, chunk, page, unpack)
                if problem:
                    raise DamagedPages(f"{where}: the page at byte {page.start} {problem}")
            if chunk.end and values != chunk.value_count:
                raise DamagedPages(f"{where}: its pages have {values} values, its footer says {chunk.value_count}")
    except ThriftError as error:
        raise DamagedPages(f"{where}: {error}") from error
    return PageCounts(pages, unsummed)


def check_file_sums(path: Path, *, unpack: Unpack | None = None) -> PageCounts:
    """Do the same with a file, which is mapped: memory stays small. Raises DamagedPages, OSError."""
    with path.open("rb") as file:
        if not file.seek(0, os.SEEK_END):
            raise DamagedPages("it is empty")
        with mmap(file.fileno(), 0, access=ACCESS_READ) as body:
            return check_page_sums(body, unpack=unpack)


def _find_problem(body: bytes | mmap, chunk: ColumnChunk, page: Page, unpack: Unpack | None) -> str | None:
    if page.end > chunk.end:
        return "is longer than its column"
    if page.crc is not None:
        is_right = zlib.crc32(memoryview(body)[page.start : page.end]) == page.crc % (1 << 32)  # not copied
        return None if is_right else "has another checksum than its bytes"
    if unpack is None or page.kind not in (DATA_PAGE, DICTIONARY_PAGE) or page.size_bytes > MAX_UNPACKED_BYTES:
        return None
    return unpack(chunk.codec, body[page.start : page.end], page.size_bytes)
