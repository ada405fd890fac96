"""The facts in a Parquet footer: rows, columns as SQL types, writer, bounds of columns. Pure, no engine.

The layout is Parquet's ``FileMetaData`` (parquet.thrift of parquet-format 2.11). A footer that contradicts itself or
the length of its file is :class:`~icedb_log.parquet.schema.DamagedFile`; nothing else is ever raised, whatever the
bytes are. Owns the meaning of the ``icedb.*`` key-value metadata that the data path writes into each footer. A footer
is the word of a file about itself: whether the file is live is said by the log alone (S1).
"""

import json
import math
import struct as packing
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import takewhile
from typing import Any, Final, Literal, Protocol, get_args

from icedb_log.model import EMPTY, ColumnStats
from icedb_log.parquet.field_ids import keeps_field_ids
from icedb_log.parquet.schema import DamagedFile, Leaf, ParquetSchema, read_schema
from icedb_log.parquet.thrift import STRUCT, Shape, ThriftError, ThriftReader, each, struct
from icedb_log.store.object_store import ObjectInfo
from icedb_log.table.column_bounds import Scalar, cut_bounds, encode_time
from icedb_log.table.decimals import DecimalType, find_decimal, show_decimal

FooterKind = Literal["flush", "merge", "delete", "rewrite", "foreign"]
"""Which job wrote a data file; ``foreign``: none of ours, the file was imported."""

UnreadableCause = Literal["gone", "changed", "damaged", "unanswered"]
"""Why there is no footer: no such object; another one than was listed; no whole Parquet file, or one that contradicts
itself; the store did not answer (which says nothing of the file: ask again)."""

OWN_KINDS: Final = tuple(kind for kind in get_args(FooterKind) if kind != "foreign")
TAIL_BYTES: Final = 8
"""Behind a footer: its length, and the magic bytes."""
ENCRYPTED: Final = -1
_MAX_DECIMAL_BYTES: Final = 16
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ColumnBounds:
    """What a footer says of the values of one column, over all row groups.

    Attributes:
        low: Not above any value; a JSON scalar in the form that markers have (times as ISO text); ``None`` if unknown.
        high: Not below any value; ``None`` if unknown.
        null_count: Number of nulls; ``None`` if unknown.
        is_exact: Whether ``low`` and ``high`` are values of the column, not cut ones.
        has_odd_time: Whether a bound is a date or time outside the years 1 to 9999; then there is no ``low``.
    """

    low: Scalar
    high: Scalar
    null_count: int | None
    is_exact: bool
    has_odd_time: bool = False

    def to_stats(self) -> ColumnStats | None:
        """Return it as a marker has it, long text cut so that the bounds stay bounds; ``None`` if it cannot say so."""
        if self.null_count is None:
            return None
        if isinstance(self.low, float):  # footers say nothing of NaN, which engines sort above everything
            return None, None, self.null_count
        return (*cut_bounds(self.low, self.high), self.null_count)


@dataclass(frozen=True, slots=True)
class FileOrigin:
    """The writer of a data file, and its inputs: its ``icedb.*`` metadata.

    Attributes:
        kind: Which job; ``foreign`` for files without this metadata, and for such that a later release may understand.
        table: Name of the table that it was written for; a copy that was imported keeps the name of the first one.
        partition: Encoded partition path; empty without partitions.
        commit_id: Id of the commit that was to make it live.
        inputs: Full keys of the data files whose rows it has; a flush has none.
    """

    kind: FooterKind
    table: str = ""
    partition: str = ""
    commit_id: str = ""
    inputs: tuple[str, ...] = ()


FOREIGN: Final = FileOrigin("foreign")


@dataclass(frozen=True, slots=True)
class Footer:
    """What the footer of one data file says.

    Attributes:
        info: The file, as it was listed.
        row_count: Rows of it.
        columns: Column to SQL type in the log's spelling; without columns that have no such type.
        odd_columns: Columns of which no column of a table is without a conversion, with the type in words.
        origin: Its writer.
        bounds: Of the columns that were asked for, as far as the file has them and says something.
        has_field_ids: Whether its columns have field ids, which another writer assigned.
        written_for: Name of the table that some release wrote it for, be its origin understood or not; empty: none did.
        sorted_by: Columns that each row group says it is sorted by, ascending, nulls last, as far as all say the same.
        codecs: How its columns are compressed, by Parquet's numbers; :data:`ENCRYPTED`: nobody can read one of them.
    """

    info: ObjectInfo
    row_count: int
    columns: Mapping[str, str]
    odd_columns: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    origin: FileOrigin = FOREIGN
    bounds: Mapping[str, ColumnBounds] = field(default_factory=lambda: EMPTY)
    has_field_ids: bool = False
    written_for: str = ""
    sorted_by: tuple[str, ...] = ()
    codecs: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class UnreadableFooter:
    """A file whose footer cannot be had: why, and the same in words, with what to do."""

    info: ObjectInfo
    cause: UnreadableCause
    reason: str


class FooterReader(Protocol):
    """Reads the footers of data files."""

    def read_footers(
        self, infos: Iterable[ObjectInfo], *, bounds_of: Iterable[str] = ()
    ) -> Iterator[Footer | UnreadableFooter]:
        """Read the footers of any number of files, several at once, and return one result each, in the same order.

        Reads ahead by a bounded number of files, never a whole file. Nothing that a file holds makes it raise:
        what cannot be read is an :class:`UnreadableFooter`.

        Args:
            infos: Files as a listing names them; an empty ETag stands for any.
            bounds_of: Columns whose minimum, maximum and nulls are wanted.
        """
        ...


def read_origin(texts: Mapping[str, str]) -> FileOrigin:
    """Return what the key-value metadata of a footer says of a file's origin.

    Metadata that is only partly there, or not understood, is none of ours: ``foreign``.
    """
    kind = next((known for known in OWN_KINDS if known == texts.get("icedb.kind")), None)
    if texts.get("icedb.format") != "1" or kind is None:
        return FOREIGN
    try:
        inputs = json.loads(texts.get("icedb.inputs", "[]"))
    except (ValueError, RecursionError):
        return FOREIGN
    if not isinstance(inputs, list) or not all(isinstance(key, str) for key in inputs):
        return FOREIGN
    table, partition, commit_id = (texts.get(f"icedb.{name}", "") for name in ("table", "partition", "commit"))
    return FileOrigin(kind, table, partition, commit_id, tuple(inputs))


_SCHEMA, _ROW_COUNT, _ROW_GROUPS, _KEY_VALUES = 2, 3, 4, 5
_GROUP_CHUNKS, _GROUP_ROWS, _GROUP_ORDER = 1, 3, 4
_ORDER_LEAF, _ORDER_DESCENDS, _ORDER_NULLS_FIRST = 1, 2, 3
_FILE_PATH, _METADATA, _CRYPTO, _ENCRYPTED_METADATA = 1, 3, 8, 9
_NAMES, _CODEC, _VALUE_COUNT, _STORED_BYTES, _DATA_PLACE, _DICTIONARY_PLACE, _STATISTICS = 3, 4, 5, 7, 9, 11, 12
_OLD_HIGH, _OLD_LOW, _NULL_COUNT, _HIGH, _LOW, _HIGH_EXACT, _LOW_EXACT = 1, 2, 3, 5, 6, 7, 8
_KEY, _VALUE = 1, 2


def _place_of_struct(reader: ThriftReader, kind: int) -> int | None:
    place = reader.place(kind)
    return place if kind == STRUCT else None


_NUMBERS: Final = dict.fromkeys(
    (_CODEC, _VALUE_COUNT, _STORED_BYTES, _DATA_PLACE, _DICTIONARY_PLACE), ThriftReader.integer
)
_CHUNK: Final[Shape] = {
    _FILE_PATH: ThriftReader.binary,
    _METADATA: struct({_NAMES: each(ThriftReader.text), **_NUMBERS, _STATISTICS: _place_of_struct}),
    # How a column is encrypted, and its metadata, encrypted: the footer itself may be plain.
    _CRYPTO: ThriftReader.place,
    _ENCRYPTED_METADATA: ThriftReader.place,
}
_ORDER: Final = struct(
    {
        _ORDER_LEAF: ThriftReader.integer,
        _ORDER_DESCENDS: ThriftReader.boolean,
        _ORDER_NULLS_FIRST: ThriftReader.boolean,
    }
)
_GROUP: Final = struct(
    {_GROUP_CHUNKS: each(struct(_CHUNK)), _GROUP_ROWS: ThriftReader.integer, _GROUP_ORDER: each(_ORDER)}
)
_PAIR: Final = struct({_KEY: ThriftReader.text, _VALUE: ThriftReader.text})
_STATISTICS_SHAPE: Final[Shape] = {
    _NULL_COUNT: ThriftReader.integer,
    **dict.fromkeys((_OLD_HIGH, _OLD_LOW, _HIGH, _LOW), ThriftReader.binary),
    _HIGH_EXACT: ThriftReader.boolean,
    _LOW_EXACT: ThriftReader.boolean,
}


@dataclass(slots=True)
class ColumnChunk:
    """One column of one row group.

    Attributes:
        column: Its name; of a nested one with those above it, by dots.
        start: Where its first page begins; with ``end`` 0 if it has no pages that can be read.
        end: Where its last page ends.
        value_count: Values of it, nulls too.
        codec: How its pages are compressed.
        is_encrypted: Whether nobody can read it without a key.
        stats_place: Where in the footer its statistics begin; ``None``: it has none.
    """

    column: str
    start: int
    end: int
    value_count: int
    codec: int
    is_encrypted: bool
    stats_place: int | None


@dataclass(slots=True)
class RowGroup:
    """One row group: its rows, -1 if it does not say, its columns, and places of those that it is sorted by."""

    row_count: int
    chunks: list[ColumnChunk]
    sorted_by: list[int]


def read_row_groups(reader: ThriftReader, kind: int, *, data_bytes: int) -> Iterator[RowGroup]:
    """Yield the row groups of the list that begins here.

    Args:
        reader: Of the footer.
        kind: Of the field.
        data_bytes: Length of the file before the footer: columns must lie in there.

    Raises:
        ThriftError: It is damaged.
        DamagedFile: A column lies outside of the file, or in another one.
    """
    for item in reader.items(kind):
        group = _GROUP(reader, item)
        yield RowGroup(
            group.get(_GROUP_ROWS, 0),
            [_make_chunk(chunk, data_bytes) for chunk in group.get(_GROUP_CHUNKS, ())],
            [each.get(_ORDER_LEAF, 0) for each in takewhile(_is_ascending, group.get(_GROUP_ORDER, ()))],
        )


def _is_one(places: tuple[int, ...]) -> bool:
    return len(set(places)) == 1


def _is_ascending(order: dict[int, Any]) -> bool:
    return not (order.get(_ORDER_DESCENDS) or order.get(_ORDER_NULLS_FIRST))


def _make_chunk(chunk: dict[int, Any], data_bytes: int) -> ColumnChunk:
    if chunk.get(_FILE_PATH):
        raise DamagedFile("it is a summary of other files, and has no rows itself")
    found = chunk.get(_METADATA, {})
    is_encrypted = _CRYPTO in chunk or _ENCRYPTED_METADATA in chunk
    value_count = found.get(_VALUE_COUNT, -1)
    start, length = found.get(_DATA_PLACE, -1), found.get(_STORED_BYTES, -1)
    if found.get(_DICTIONARY_PLACE, 0) > 0:
        start = min(start, found[_DICTIONARY_PLACE])
    if is_encrypted or value_count == 0:
        start = length = 0  # no page of it is read, and what else is said of it may be nonsense
    elif start < 0 or length < 0 or start + length > data_bytes:
        raise DamagedFile("its footer names bytes that the file does not have: it is damaged or cut")
    return ColumnChunk(
        column=".".join(found.get(_NAMES, ())),
        start=start,
        end=start + length,
        value_count=value_count,
        codec=found.get(_CODEC, 0),
        is_encrypted=is_encrypted,
        stats_place=found.get(_STATISTICS),
    )


def parse_footer(data: bytes, info: ObjectInfo, *, bounds_of: Collection[str] | None = ()) -> Footer:
    """Parse a footer.

    Args:
        data: Its bytes, without the length and the magic bytes behind it.
        info: The file.
        bounds_of: Columns whose bounds are wanted; ``None``: all.

    Raises:
        DamagedFile: It cannot be read, or cannot be true.
    """
    try:
        return _FooterParser(data, info.size_bytes - len(data) - TAIL_BYTES, bounds_of).parse(info)
    except ThriftError as error:
        raise DamagedFile(f"its footer is damaged: {error}") from error


class _FooterParser:
    """Parses one footer."""

    def __init__(self, data: bytes, data_bytes: int, bounds_of: Collection[str] | None) -> None:
        self._data = data
        self._data_bytes = data_bytes
        self._bounds_of = bounds_of
        self._schema: ParquetSchema | None = None
        self._bounds: dict[int, _Bounds] = {}
        self._group_rows = 0
        self._codecs: set[int] = set()
        self._orders: list[list[int]] = []

    def parse(self, info: ObjectInfo) -> Footer:
        shape: Shape = {
            _SCHEMA: self._read_schema,
            _ROW_COUNT: ThriftReader.integer,
            _ROW_GROUPS: self._read_groups,
            _KEY_VALUES: each(_PAIR),
        }
        found = ThriftReader(self._data).read(shape)
        row_count: int = found.get(_ROW_COUNT, -1)
        if row_count < 0 or self._schema is None:
            raise DamagedFile("its footer is damaged: it lacks the schema or the number of rows")
        if row_count != self._group_rows:
            raise DamagedFile(f"its footer contradicts itself: {row_count} rows, {self._group_rows} in its row groups")
        texts = {pair.get(_KEY, ""): pair.get(_VALUE, "") for pair in found.get(_KEY_VALUES, ())}
        bounds = {known.leaf.name: known.finish(row_count) for known in self._bounds.values()}
        schema = self._schema
        shared = takewhile(_is_one, zip(*self._orders, strict=False))
        return Footer(
            info,
            row_count,
            schema.columns,
            schema.odd_columns,
            read_origin(texts),
            bounds,
            has_field_ids=schema.has_field_ids or keeps_field_ids(texts),
            written_for=texts.get("icedb.table", "?") if "icedb.format" in texts else "",
            sorted_by=tuple(schema.leaves[places[0]].name for places in shared),
            codecs=frozenset(self._codecs),
        )

    def _read_schema(self, reader: ThriftReader, kind: int) -> None:
        if self._schema is not None:
            raise DamagedFile("its footer is damaged: it has two schemas")
        self._schema = read_schema(reader, kind)
        for place, leaf in enumerate(self._schema.leaves):
            if leaf.sql_type is not None and (self._bounds_of is None or leaf.name in self._bounds_of):
                self._bounds[place] = _Bounds(leaf)

    def _read_groups(self, reader: ThriftReader, kind: int) -> None:
        for group in read_row_groups(reader, kind, data_bytes=self._data_bytes):
            if self._schema is None or group.row_count < 0 or len(group.chunks) != len(self._schema.leaves):
                raise DamagedFile("its footer is damaged: a row group does not have the columns of the schema")
            if not all(0 <= place < len(group.chunks) for place in group.sorted_by):
                raise DamagedFile("its footer is damaged: a row group is sorted by columns that are not there")
            self._group_rows += group.row_count
            self._codecs.update(ENCRYPTED if chunk.is_encrypted else chunk.codec for chunk in group.chunks)
            self._orders.append(group.sorted_by)
            for place, known in self._bounds.items():
                start = group.chunks[place].stats_place
                stats = {} if start is None else ThriftReader(self._data, start=start).read(_STATISTICS_SHAPE)
                known.add(stats, group.row_count)


@dataclass(slots=True)
class _Bounds:
    """The bounds of one column, while row groups are read."""

    leaf: Leaf
    low: Any = None
    high: Any = None
    null_count: int | None = 0
    is_bounded: bool = True
    is_exact: bool = True
    has_odd_time: bool = False

    def add(self, known: Mapping[int, Any], rows: int) -> None:
        """Take the statistics of a row group of ``rows`` rows into account; empty: it has none."""
        nulls = 0 if self.leaf.is_required else known.get(_NULL_COUNT)
        self.null_count = None if nulls is None or self.null_count is None else self.null_count + nulls
        if rows == 0 or (nulls is not None and nulls == rows):
            return  # only nulls: no bounds, and none are needed
        # Older writers have bounds in an order that is right for signed integers alone.
        has_old = self.leaf.physical in ("INT32", "INT64") and not self.leaf.kind.startswith("INT unsigned")
        old_low, old_high = (known.get(_OLD_LOW), known.get(_OLD_HIGH)) if has_old else (None, None)
        raw = known.get(_LOW, old_low), known.get(_HIGH, old_high)
        low, high = (_decode(data, self.leaf) for data in raw)
        is_time = self.leaf.sql_type in ("DATE", "TIMESTAMP")
        self.has_odd_time |= is_time and None not in raw and None in (low, high)
        if low is None or high is None:
            self.is_bounded = False
            return
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)
        # Writers cut text alone, and newer ones say so.
        is_text = self.leaf.sql_type == "VARCHAR"
        is_exact = not is_text or (known.get(_LOW_EXACT) and known.get(_HIGH_EXACT))
        self.is_exact = self.is_exact and bool(is_exact)

    def finish(self, row_count: int) -> ColumnBounds:
        """Return the bounds of the whole file. Raises DamagedFile."""
        nulls = self.null_count
        if nulls is not None and not 0 <= nulls <= row_count:
            raise DamagedFile(f"its footer contradicts itself: {nulls} nulls in {row_count} rows")
        if not self.is_bounded or self.low is None:
            return ColumnBounds(None, None, nulls, is_exact=False, has_odd_time=self.has_odd_time)
        low, high = (show_decimal(bound) if isinstance(bound, Decimal) else bound for bound in (self.low, self.high))
        return ColumnBounds(low, high, nulls, is_exact=self.is_exact)


def _decode(data: bytes | None, leaf: Leaf) -> Scalar | Decimal:
    """Return a bound as a JSON scalar, of a decimal as one that compares; ``None`` if it says nothing."""
    if data is None:
        return None
    digits = find_decimal(leaf.sql_type)
    try:
        if digits is not None:
            return _decode_decimal(data, leaf.physical, digits)
        if leaf.physical in ("INT32", "INT64"):
            return _decode_integer(data, leaf.kind)
        if leaf.physical in ("FLOAT", "DOUBLE"):
            (value,) = packing.unpack("<d" if len(data) == 8 else "<f", data)  # noqa: PLR2004 - bytes of a DOUBLE
            return value if math.isfinite(value) else None
        # A text that was cut may be no UTF-8: ValueError.
        return data.decode() if leaf.physical != "BOOLEAN" else bool(data[0]) if len(data) == 1 else None
    except (packing.error, OverflowError, ValueError):
        return None


def _decode_decimal(data: bytes, physical: str, digits: DecimalType) -> Decimal | None:
    if physical == "BYTE_ARRAY" or not 1 <= len(data) <= _MAX_DECIMAL_BYTES:
        return None  # of any length: some writers have compared their bytes as text
    order: Literal["big", "little"] = "big" if physical == "FIXED_LEN_BYTE_ARRAY" else "little"
    return digits.read(show_decimal(digits.scale_down(int.from_bytes(data, order, signed=True))))


def _decode_integer(data: bytes, kind: str) -> Scalar:
    if len(data) not in (4, 8):
        return None
    value = int.from_bytes(data, "little", signed=kind != "INT unsigned")
    if kind == "DATE":
        return encode_time((_EPOCH + timedelta(days=value)).date())
    if kind.startswith("TIMESTAMP"):
        time = _EPOCH + (timedelta(milliseconds=value) if "milli" in kind else timedelta(microseconds=value))
        return encode_time(time.replace(tzinfo=None))
    return value
