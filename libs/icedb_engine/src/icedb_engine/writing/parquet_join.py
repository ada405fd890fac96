"""Joins row groups of other Parquet files into one file, as bytes: nothing is decoded.

Two kinds come here. Arrow encodes the row groups of a file one after the other; encoded apart, by several threads, each
as a file of its own, their bytes are the same but for where they lie. And a merge takes row groups over from data files
that live already. A footer names the place of each column in its file, so the bytes are put one after the other, and
the footer is made anew: what is said of values is carried as it is, places are moved. Left out as a whole is what lies
elsewhere in the file and speaks of it by place: page indexes, bloom filters, metadata of single columns. A footer is a
Thrift struct in the compact protocol. Source:
https://github.com/apache/parquet-format/blob/master/src/main/thrift/parquet.thrift and
https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md.
"""

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from mmap import mmap
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from icedb_log.parquet.field_ids import ARROW_KEY, FIELD_ID
from icedb_log.parquet.footer import TAIL_BYTES
from icedb_log.parquet.pages import DATA_PAGE, DICTIONARY_PAGE, check_chunk
from icedb_log.parquet.schema import PHYSICAL, DamagedFile, Leaf, read_schema
from icedb_log.parquet.thrift import BINARY, FALSE, I32, I64, LIST, STRUCT, ThriftError, ThriftReader, each, struct
from icedb_log.parquet.thrift import Shape as ThriftShape

MAGIC: Final = b"PAR1"
MAX_GROUPS: Final = 32_767
"""Row groups of one file: what counts them has 16 bits."""
_UNCOMPRESSED, _HADOOP_LZ4, _ZSTD = 0, 5, 6
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_CODECS: Final = {1: "snappy", 2: "gzip", 4: "brotli", 7: "lz4_raw"}
_LONG_LIST: Final = 15
_MAX_DELTA: Final = 15

_SCHEMA, _NUM_ROWS, _ROW_GROUPS, _KEY_VALUES, _CREATED_BY, _COLUMN_ORDERS, _ENCRYPTION = 2, 3, 4, 5, 6, 7, 8
_GROUP_CHUNKS, _GROUP_BYTES, _GROUP_ROWS, _GROUP_SORTING, _GROUP_PLACE, _GROUP_STORED = 1, 2, 3, 4, 5, 6
_FILE_PATH, _CHUNK_PLACE, _METADATA, _CRYPTO, _ENCRYPTED_METADATA = 1, 2, 3, 8, 9
_TYPE, _ENCODINGS, _PATH, _CODEC, _VALUES, _UNPACKED, _STORED = 1, 2, 3, 4, 5, 6, 7
_DATA_PLACE, _DICTIONARY_PLACE, _STATISTICS, _ENCODING_STATS, _SIZE_STATISTICS = 9, 11, 12, 13, 16
_CARRIED: Final = frozenset(
    (_TYPE, _ENCODINGS, _PATH, _CODEC, _VALUES, _UNPACKED, _STORED, _STATISTICS, _ENCODING_STATS, _SIZE_STATISTICS)
)
_COUNTED: Final = frozenset((_CODEC, _VALUES, _UNPACKED, _STORED, _DATA_PLACE, _DICTIONARY_PLACE))
_NULL_COUNT, _HIGH, _LOW, _HIGH_EXACT, _LOW_EXACT = 3, 5, 6, 7, 8
_STATISTICS_SHAPE: Final[ThriftShape] = {
    _NULL_COUNT: ThriftReader.integer,
    _HIGH: ThriftReader.binary,
    _LOW: ThriftReader.binary,
    _HIGH_EXACT: ThriftReader.boolean,
    _LOW_EXACT: ThriftReader.boolean,
}
_REST: Final[ThriftShape] = {
    _CREATED_BY: ThriftReader.text,
    _COLUMN_ORDERS: each(struct({1: ThriftReader.place})),
}
_KEY_VALUE: Final = struct({1: ThriftReader.text, 2: ThriftReader.text})
_SORTING: Final = struct({1: ThriftReader.integer, 2: ThriftReader.boolean, 3: ThriftReader.boolean})


@dataclass(frozen=True, slots=True)
class SourceChunk:
    """A column of a row group: where its pages are, and what the footer says of them.

    Attributes:
        data_place: Where its first data page begins.
        dictionary_place: Where its dictionary begins; 0: it has none, or does not say.
        stored_bytes: Bytes of its pages as they are.
        unpacked_bytes: The same without compression.
        value_count: Values of it, nulls too.
        codec: How its pages are compressed.
        carried: Fields of its metadata that are the same wherever it lies, by number: kind and bytes.
    """

    data_place: int
    dictionary_place: int
    stored_bytes: int
    unpacked_bytes: int
    value_count: int
    codec: int
    carried: Mapping[int, tuple[int, bytes]]

    @property
    def start(self) -> int:
        """Where its first page begins."""
        return min(self.data_place, self.dictionary_place) if self.dictionary_place else self.data_place

    @property
    def end(self) -> int:
        """Where its last page ends."""
        return self.start + self.stored_bytes

    def read_bounds(self) -> "ChunkBounds":
        """Return what its statistics say. Raises DamagedFile."""
        _, data = self.carried.get(_STATISTICS, (0, b"\0"))
        try:
            found = ThriftReader(data).read(_STATISTICS_SHAPE)
        except ThriftError as error:
            raise DamagedFile(f"its footer is damaged: {error}") from error
        is_exact = bool(found.get(_LOW_EXACT)) and bool(found.get(_HIGH_EXACT))
        return ChunkBounds(found.get(_LOW), found.get(_HIGH), found.get(_NULL_COUNT), is_exact=is_exact)

    def without_bounds(self) -> "SourceChunk":
        """Return it with nothing said of its values but how many are null. Raises DamagedFile.

        Bounds leave NaN out, and readers of DuckDB and its kin, for whom NaN is above every number, believe them.
        """
        null_count = self.read_bounds().null_count
        carried = {number: value for number, value in self.carried.items() if number != _STATISTICS}
        if null_count is not None:
            carried[_STATISTICS] = (STRUCT, _struct({_NULL_COUNT: (I64, _zigzag(null_count))}))
        return replace(self, carried=carried)

    def move(self, start: int) -> "SourceChunk":
        """Return it as it is in a file where its first page begins elsewhere."""
        shift = start - self.start
        place = self.dictionary_place
        return replace(self, data_place=self.data_place + shift, dictionary_place=place + shift if place else 0)

    def check(self, body: mmap | bytes) -> None:
        """See that its pages are in a file where it says, whole, and what their checksums say. Raises DamagedFile."""
        pages = check_chunk(body, self)
        if self.data_place not in {page.place for page in pages}:
            raise DamagedFile(f"no page begins at byte {self.data_place}, where its footer has the first data page")
        if self.dictionary_place and (self.dictionary_place != self.start or pages[0].kind != DICTIONARY_PAGE):
            raise DamagedFile(f"no dictionary begins at byte {self.dictionary_place}, where its footer has one")
        first = pages[0]
        if first.kind in (DATA_PAGE, DICTIONARY_PAGE):
            _require_codec(self.codec, body[first.start : first.end], first.size_bytes)


def _require_codec(codec: int, page: bytes, size_bytes: int) -> None:
    """See that a page is compressed as a footer says: checksums are of the bytes as they are. Raises DamagedFile."""
    if codec == _UNCOMPRESSED:
        fits = len(page) == size_bytes
    elif codec == _ZSTD:
        fits = page.startswith(_ZSTD_MAGIC)
    else:  # only other writers have these; Arrow's name of an unknown one is an error, too
        try:
            fits = codec == _HADOOP_LZ4 or len(pa.decompress(page, size_bytes, _CODECS.get(codec, ""))) == size_bytes
        except (OSError, ValueError, pa.ArrowException):
            fits = False
    if not fits:
        raise DamagedFile(f"a page is not compressed as its footer says (codec {codec})")


@dataclass(frozen=True, slots=True)
class ChunkBounds:
    """The statistics of a column of a row group, as Parquet encodes values; ``None``: they do not say."""

    low: bytes | None
    high: bytes | None
    null_count: int | None
    is_exact: bool


@dataclass(frozen=True, slots=True)
class SourceGroup:
    """A row group.

    Attributes:
        row_count: Its rows.
        chunks: Its columns by name.
        sorted_by: Columns by which it says to be sorted, ascending, nulls last; empty if it says nothing, or otherwise.
    """

    row_count: int
    chunks: Mapping[str, SourceChunk]
    sorted_by: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of its pages."""
        return sum(chunk.stored_bytes for chunk in self.chunks.values())


@dataclass(slots=True)
class SourceFile:
    """What a footer says of row groups that may be taken over.

    Attributes:
        leaves: The columns.
        groups: The row groups.
        key_values: Its metadata.
        created_by: The writer that its footer names.
        has_order: Whether bounds of all columns are in the order of their types.
        base: Other fields of the footer, by number: kind and bytes.
    """

    leaves: Mapping[str, Leaf] = field(default_factory=dict)
    groups: list[SourceGroup] = field(default_factory=list)
    key_values: Mapping[str, str] = field(default_factory=dict)
    created_by: str = ""
    has_order: bool = False
    base: dict[int, tuple[int, bytes]] = field(default_factory=dict)


class CannotCopy(Exception):
    """A file of which no row group can be taken over as bytes: it is encrypted. Not damage."""


def parse_source(footer: bytes, *, data_bytes: int) -> SourceFile:
    """Parse a footer for its row groups.

    Args:
        footer: Its bytes, without its length and the magic bytes.
        data_bytes: Length of the file before it.

    Raises:
        CannotCopy: Its row groups cannot be taken over.
        DamagedFile: It contradicts itself, or names bytes that are not there.
    """
    try:
        return _parse(footer, data_bytes)
    except ThriftError as error:
        raise DamagedFile(f"its footer is damaged: {error}") from error


def _parse(footer: bytes, data_bytes: int) -> SourceFile:
    found = SourceFile()
    reader = ThriftReader(footer)
    leaves: list[Leaf] = []
    row_count = -1
    for number, kind in reader.fields():
        start = reader.position
        if number == _ROW_GROUPS:
            found.groups = [_read_group(reader, item, leaves, data_bytes) for item in reader.items(kind)]
        elif number == _KEY_VALUES:
            pairs = each(_KEY_VALUE)(reader, kind)
            found.key_values = {pair.get(1, ""): pair.get(2, "") for pair in pairs}
        elif number == _SCHEMA:
            leaves = read_schema(reader, kind).leaves
        elif number == _NUM_ROWS:
            row_count = reader.integer(kind)
        else:
            reader.skip(kind)
        if number not in (_ROW_GROUPS, _KEY_VALUES):
            found.base[number] = (kind, footer[start : reader.position])
    if _ENCRYPTION in found.base:
        raise CannotCopy("it is encrypted")
    rest = ThriftReader(_struct(found.base)).read(_REST)
    found.created_by, orders = rest.get(_CREATED_BY, ""), rest.get(_COLUMN_ORDERS, ())
    found.has_order = len(orders) == len(leaves) and all(orders)
    if row_count != sum(group.row_count for group in found.groups):
        raise DamagedFile(f"its footer contradicts itself: {row_count} rows, and others in its row groups")
    found.leaves = dict(zip(_name_leaves(leaves), leaves, strict=True))
    _require_apart(found.groups)
    return found


def _name_leaves(leaves: Sequence[Leaf]) -> list[str]:
    """Return a name for each leaf; of a nested column, which has several, such as no column has."""
    return [leaf.name if leaf.physical else f"{leaf.name}\0{place}" for place, leaf in enumerate(leaves)]


def _require_apart(groups: Iterable[SourceGroup]) -> None:
    """See that no two columns of all row groups share a byte. Raises DamagedFile."""
    ranges = sorted((chunk.start, chunk.end) for group in groups for chunk in group.chunks.values())
    before = 0
    for start, end in ranges:
        if start < before:
            raise DamagedFile(f"its footer has two columns at byte {start}")
        before = end


def _read_group(reader: ThriftReader, kind: int, leaves: Sequence[Leaf], data_bytes: int) -> SourceGroup:
    if kind != STRUCT:
        raise ThriftError(f"a struct was expected, not kind {kind}")
    chunks: list[SourceChunk] = []
    sorting: list[dict[int, Any]] = []
    row_count = -1
    for number, field_kind in reader.fields():
        if number == _GROUP_CHUNKS:
            chunks = [_read_chunk(reader, item) for item in reader.items(field_kind)]
        elif number == _GROUP_ROWS:
            row_count = reader.integer(field_kind)
        elif number == _GROUP_SORTING:
            sorting = each(_SORTING)(reader, field_kind)
        else:
            reader.skip(field_kind)
    if len(chunks) != len(leaves) or row_count < 0:
        raise DamagedFile("its footer is damaged: a row group does not have the columns of the schema")
    if not row_count:
        return SourceGroup(0, {}, ())  # no page of it is read, and what else is said of it may be nonsense
    for leaf, chunk in zip(leaves, chunks, strict=True):
        _require_sound(leaf, chunk, row_count, data_bytes)
    numbers = [by.get(1, -1) for by in sorting if not by.get(2, True) and not by.get(3, True)]
    is_ours = len(numbers) == len(sorting) and all(0 <= number < len(leaves) for number in numbers)
    sorted_by = tuple(leaves[number].name for number in numbers) if is_ours else ()
    return SourceGroup(row_count, dict(zip(_name_leaves(leaves), chunks, strict=True)), sorted_by)


def _read_chunk(reader: ThriftReader, kind: int) -> SourceChunk:
    found = struct(_CHUNK)(reader, kind)
    if _CRYPTO in found or _ENCRYPTED_METADATA in found:
        raise CannotCopy("it is encrypted")
    if found.get(_FILE_PATH):
        raise DamagedFile("it is a summary of other files, and has no rows itself")
    if _METADATA not in found:
        raise DamagedFile("its footer is damaged: it says nothing of a column")
    return found[_METADATA]  # type: ignore[no-any-return]


def _read_metadata(reader: ThriftReader, kind: int) -> SourceChunk:
    if kind != STRUCT:
        raise ThriftError(f"a struct was expected, not kind {kind}")
    counts: dict[int, int] = {}
    carried: dict[int, tuple[int, bytes]] = {}
    for number, field_kind in reader.fields():
        start = reader.position
        if number in _COUNTED:
            counts[number] = reader.integer(field_kind)
        else:
            reader.skip(field_kind)
        if number in _CARRIED:
            carried[number] = (field_kind, reader.cut(start))
    return SourceChunk(
        data_place=counts.get(_DATA_PLACE, -1),
        dictionary_place=max(0, counts.get(_DICTIONARY_PLACE, 0)),
        stored_bytes=counts.get(_STORED, -1),
        unpacked_bytes=counts.get(_UNPACKED, -1),
        value_count=counts.get(_VALUES, -1),
        codec=counts.get(_CODEC, -1),
        carried=carried,
    )


_CHUNK: Final[ThriftShape] = {
    _FILE_PATH: ThriftReader.binary,
    _METADATA: _read_metadata,
    _CRYPTO: ThriftReader.place,
    _ENCRYPTED_METADATA: ThriftReader.place,
}


def _require_sound(leaf: Leaf, chunk: SourceChunk, row_count: int, data_bytes: int) -> None:
    """See that a column is of the type of the schema, as long as its row group, and in the file. Raises DamagedFile."""
    name = leaf.name
    if min(chunk.stored_bytes, chunk.unpacked_bytes, chunk.codec) < 0 or chunk.start < len(MAGIC):
        raise DamagedFile(f"its footer is damaged: it does not say where column {name!r} is")
    if chunk.end > data_bytes:
        raise DamagedFile("its footer names bytes that the file does not have: it is damaged or cut")
    if not leaf.physical:
        return  # nested: of its values there may be more, or fewer, than rows
    physical = PHYSICAL.index(leaf.physical) if leaf.physical in PHYSICAL else -1
    if chunk.carried.get(_TYPE) != (I32, _zigzag(physical)):
        raise DamagedFile(f"its footer is damaged: column {name!r} has another type in a row group than in the schema")
    if chunk.carried.get(_PATH) != (LIST, _list(BINARY, [_binary(name)])):
        raise DamagedFile(f"its footer is damaged: a row group has another column in the place of {name!r}")
    if chunk.value_count != row_count:
        raise DamagedFile(f"its footer contradicts itself: {chunk.value_count} of {row_count} values of {name!r}")


def parse_file(body: Any) -> SourceFile:
    """Parse the footer of a whole file. Raises as :func:`parse_source`."""
    view = memoryview(body)
    end = len(view) - TAIL_BYTES
    start = end - int.from_bytes(view[end : end + 4], "little")
    return parse_source(bytes(view[start:end]), data_bytes=start)


class FooterJoiner:
    """Gathers row groups of one schema, and makes the footer of the file that has them all.

    Args:
        sort: Columns by which each row group is sorted, ascending, nulls last.
    """

    def __init__(self, sort: Sequence[str] = ()) -> None:
        self._sort = sort
        self._names: list[str] = []
        self._base: Mapping[int, tuple[int, bytes]] = {}
        self._row_groups: list[bytes] = []
        self._row_count = 0
        self._sorting = b""

    @property
    def has_base(self) -> bool:
        """Whether :meth:`set_base` was called."""
        return bool(self._base)

    def set_base(self, source: SourceFile) -> None:
        """Take the schema, the order of columns and the writer's name; all row groups have that schema."""
        names = list(source.leaves)
        if self._base and names != self._names:
            raise ValueError(f"row groups of columns {names} and of {self._names} cannot be joined")
        if self._base:
            return
        self._base, self._names = source.base, names
        places = [names.index(name) for name in self._sort]
        items = [_struct({1: (I32, _zigzag(place)), 2: (FALSE, b""), 3: (FALSE, b"")}) for place in places]
        self._sorting = _list(STRUCT, items) if items else b""

    def add(self, body: Any, *, place: int, unbounded: Collection[str] = ()) -> memoryview:
        """Take the footer of a file of one row group in, and return the bytes of that.

        Args:
            body: The file.
            place: Where its row group will begin in the joined file.
            unbounded: Columns of which the joined file says no bounds.
        """
        found = parse_file(body)
        if len(found.groups) != 1:
            raise ValueError(f"a file of {len(found.groups)} row groups cannot be joined")
        self.set_base(found)
        (group,) = found.groups
        chunks = [each.without_bounds() if name in unbounded else each for name, each in group.chunks.items()]
        start, end = min(chunk.start for chunk in chunks), max(chunk.end for chunk in chunks)
        self.add_group([chunk.move(chunk.start - start + place) for chunk in chunks], row_count=group.row_count)
        return memoryview(body)[start:end]

    def add_group(self, chunks: Sequence[SourceChunk], *, row_count: int) -> None:
        """Take a row group in, whose columns, in the schema's order, lie where they say in the joined file."""
        stored_bytes = sum(chunk.stored_bytes for chunk in chunks)
        values = {
            _GROUP_CHUNKS: (LIST, _list(STRUCT, [_make_chunk(chunk) for chunk in chunks])),
            _GROUP_BYTES: (I64, _zigzag(sum(chunk.unpacked_bytes for chunk in chunks))),
            _GROUP_ROWS: (I64, _zigzag(row_count)),
            _GROUP_PLACE: (I64, _zigzag(chunks[0].start)),
            _GROUP_STORED: (I64, _zigzag(stored_bytes)),
        }
        if self._sorting:
            values[_GROUP_SORTING] = (LIST, self._sorting)
        self._row_groups.append(_struct(values))
        self._row_count += row_count

    def make_footer(self, key_values: Mapping[str, str]) -> bytes:
        """Return what comes after the last row group: the footer, its length, the magic bytes."""
        if not self._base or not self._row_groups:
            raise ValueError("a file without row groups has no schema")
        values = dict(self._base)
        values[_NUM_ROWS] = (I64, _zigzag(self._row_count))
        values[_ROW_GROUPS] = (LIST, _list(STRUCT, self._row_groups))
        pairs = [_struct({1: (BINARY, _binary(key)), 2: (BINARY, _binary(value))}) for key, value in key_values.items()]
        if pairs:
            values[_KEY_VALUES] = (LIST, _list(STRUCT, pairs))
        joined = _struct(values)
        return joined + len(joined).to_bytes(4, "little") + MAGIC


def remove_field_ids(path: Path) -> None:
    """Give a Parquet file a footer without field ids, and without Arrow's schema, which has them, too.

    All else stays where it is, and says what it said. Idempotent. Raises ThriftError: the footer is damaged.
    """
    with path.open("r+b") as file:
        file.seek(-TAIL_BYTES, os.SEEK_END)
        tail = file.read(TAIL_BYTES)
        start = file.seek(-TAIL_BYTES - int.from_bytes(tail[:4], "little"), os.SEEK_END)
        reader = ThriftReader(file.read()[:-TAIL_BYTES])
        values: dict[int, tuple[int, bytes]] = {}
        for number, kind in reader.fields():
            place = reader.position
            if number == _SCHEMA:
                items = [_struct(_read_raw(reader, but=FIELD_ID)) for _ in reader.items(kind)]
                values[number] = (LIST, _list(STRUCT, items))
            elif number == _KEY_VALUES:
                pairs = [_read_raw(reader) for _ in reader.items(kind)]
                kept = [_struct(pair) for pair in pairs if pair.get(1) != (BINARY, _binary(ARROW_KEY))]
                values |= {number: (LIST, _list(STRUCT, kept))} if kept else {}
            else:
                reader.skip(kind)
                values[number] = (kind, reader.cut(place))
        footer = _struct(values)
        file.seek(start)
        file.truncate()
        file.write(footer + len(footer).to_bytes(4, "little") + tail[4:])


def _read_raw(reader: ThriftReader, *, but: int = 0) -> dict[int, tuple[int, bytes]]:
    """Return the fields of the struct that begins here as they are, without one."""
    found: dict[int, tuple[int, bytes]] = {}
    for number, kind in reader.fields():
        place = reader.position
        reader.skip(kind)
        if number != but:
            found[number] = (kind, reader.cut(place))
    return found


def _make_chunk(chunk: SourceChunk) -> bytes:
    values = dict(chunk.carried)
    values[_DATA_PLACE] = (I64, _zigzag(chunk.data_place))
    if chunk.dictionary_place:
        values[_DICTIONARY_PLACE] = (I64, _zigzag(chunk.dictionary_place))
    return _struct({_CHUNK_PLACE: (I64, _zigzag(0)), _METADATA: (STRUCT, _struct(values))})


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:  # noqa: PLR2004 - seven bits a byte
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _zigzag(value: int) -> bytes:
    return _varint(value << 1 if value >= 0 else (-value << 1) - 1)


def _binary(text: str) -> bytes:
    data = text.encode()
    return _varint(len(data)) + data


def _list(kind: int, items: Sequence[bytes]) -> bytes:
    short = len(items) < _LONG_LIST
    header = bytes([len(items) << 4 | kind]) if short else bytes([_LONG_LIST << 4 | kind]) + _varint(len(items))
    return header + b"".join(items)


def _struct(values: Mapping[int, tuple[int, bytes]]) -> bytes:
    out = bytearray()
    before = 0
    for number, (kind, value) in sorted(values.items()):
        delta = number - before
        out += bytes([delta << 4 | kind]) if 0 < delta <= _MAX_DELTA else bytes([kind]) + _zigzag(number)
        out += value
        before = number
    out.append(0)
    return bytes(out)
