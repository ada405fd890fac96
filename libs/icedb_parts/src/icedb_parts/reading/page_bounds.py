"""How large the pages of a Parquet file become, as each page says itself, before anything is decompressed.

A footer says how large its row groups are, and nobody has to believe it: a file of twenty kilobytes whose footer says
little can hold pages of two gigabytes, one for each column. What a reader allocates is what stands before each page, so
that is what is added up. Field numbers are those of parquet.thrift (parquet-format 2.11).
"""

from collections.abc import Iterator
from typing import Final

from icedb_log.thrift import STRUCT, ThriftError, ThriftReader

from icedb_parts.errors import BatchRejected, BatchTooLarge

ENCRYPTED: Final = "an encrypted Parquet file cannot be read: send it without encryption"
MAX_PAGES: Final = 200_000
"""Pages of a batch; writers make them of 8 KiB and more."""
_FOOTER_TAIL_BYTES: Final = 8
_LENGTH_BYTES: Final = 4
_ROW_GROUPS: Final = 4
_GROUP_CHUNKS: Final = 1
_CHUNK_METADATA: Final = 3
_CHUNK_ENCRYPTED: Final = (8, 9)
"""How a column is encrypted, and its metadata, encrypted: the footer itself may be plain."""
_VALUE_COUNT, _TOTAL_COMPRESSED, _DATA_OFFSET, _DICTIONARY_OFFSET = 5, 7, 9, 11
_PAGE_UNCOMPRESSED, _PAGE_COMPRESSED = 2, 3


def check_pages(body: bytes, *, limit_bytes: int) -> None:
    """Return if the pages of a Parquet file are no larger than this together.

    Args:
        body: The whole file.
        limit_bytes: Of all pages without compression.

    Raises:
        BatchRejected: They are larger, or too many, or encrypted.
        ThriftError: The file is damaged.
    """
    total_bytes = page_count = 0
    for start, end in _chunks(body):
        place = start
        while place < end:
            size_bytes, place = _read_page(body, place)
            total_bytes += size_bytes
            page_count += 1
            if total_bytes > limit_bytes:
                raise BatchTooLarge(
                    f"the Parquet file has more than {limit_bytes} bytes without compression; send smaller batches"
                )
            if page_count > MAX_PAGES:
                raise BatchRejected(
                    f"the Parquet file has more than {MAX_PAGES} pages; let its writer make larger ones"
                )


def _read_page(body: bytes, place: int) -> tuple[int, int]:
    """Return how large the page here is without compression, and where the next one begins."""
    reader = ThriftReader(body, start=place)
    size_bytes = stored_bytes = -1
    for number, kind in reader.fields():
        if number == _PAGE_UNCOMPRESSED:
            size_bytes = reader.integer(kind)
        elif number == _PAGE_COMPRESSED:
            stored_bytes = reader.integer(kind)
        else:
            reader.skip(kind)
    if size_bytes < 0 or stored_bytes < 0:
        raise ThriftError("a page does not say how large it is")
    return size_bytes, reader.position + stored_bytes


def _chunks(body: bytes) -> Iterator[tuple[int, int]]:
    """Yield where each column chunk begins and ends."""
    tail = len(body) - _FOOTER_TAIL_BYTES
    start = tail - int.from_bytes(body[max(0, tail) : tail + _LENGTH_BYTES], "little")
    if start < 0 or tail < 0:
        raise ThriftError("the footer is longer than the file")
    reader = ThriftReader(body[:tail], start=start)
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


def _read_chunk(reader: ThriftReader, data_end: int) -> tuple[int, int]:
    found: dict[int, int] = {}
    for number, kind in reader.fields():
        if number in _CHUNK_ENCRYPTED:
            raise BatchRejected(ENCRYPTED)
        if number != _CHUNK_METADATA or kind != STRUCT:
            reader.skip(kind)
            continue
        for name, field_kind in reader.fields():
            if name in (_VALUE_COUNT, _TOTAL_COMPRESSED, _DATA_OFFSET, _DICTIONARY_OFFSET):
                found[name] = reader.integer(field_kind)
            else:
                reader.skip(field_kind)
    if found.get(_VALUE_COUNT) == 0:  # no page of it is read, and what else is said of it may be nonsense
        return 0, 0
    start, length = found.get(_DATA_OFFSET, -1), found.get(_TOTAL_COMPRESSED, -1)
    if found.get(_DICTIONARY_OFFSET, 0) > 0:
        start = min(start, found[_DICTIONARY_OFFSET])
    if start < 0 or length < 0 or start + length > data_end:
        raise ThriftError("a column lies outside of the file")
    return start, start + length
