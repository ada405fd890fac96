"""The footer of a Parquet file that somebody else wrote: read with ranged GETs, never a row of data.

Two requests for most files are one: the last :data:`TAIL_BYTES` usually hold the whole footer.

A type is taken only if every engine reads it as the SQL type, or as a narrower one that loses nothing beside it:
``INT32`` beside ``BIGINT``, ``FLOAT`` beside ``DOUBLE``. So a table may have data files of both, and merges write the
table's type. What would have to be changed to fit is refused: timestamps of a time zone (beside our UTC timestamps
without one, engines would shift them by the session's zone), nanoseconds, decimals, nested columns, binary.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from icedb_log.errors import NotFound, PreconditionFailed
from icedb_log.ingest.import_sources import SourceFile
from icedb_log.parquet.field_ids import has_field_ids
from icedb_log.parquet.thrift import ThriftError
from icedb_log.store.object_store import ObjectStore

TAIL_BYTES: Final = 64 * 1024
MAX_FOOTER_BYTES: Final = 64 * 1024 * 1024
"""A footer above it is refused: it would cost more memory than it is worth."""

_MAGIC: Final = b"PAR1"
_ENCRYPTED_MAGIC: Final = b"PARE"
_END_BYTES: Final = 8
_CODECS: Final = frozenset({"UNCOMPRESSED", "SNAPPY", "GZIP", "BROTLI", "ZSTD", "LZ4"})
"""What merges and common engines can decompress."""


NARROW_TYPES: Final[dict[str, str]] = {
    **dict.fromkeys(("TINYINT", "SMALLINT", "INTEGER", "UTINYINT", "USMALLINT", "UINTEGER"), "BIGINT"),
    "FLOAT": "DOUBLE",
}
"""DuckDB's name of a narrower type that an imported file may have, to the table's type."""

_PLAIN: Final[dict[tuple[str, str], str]] = {
    ("BOOLEAN", "None"): "BOOLEAN",
    ("INT32", "None"): "BIGINT",
    ("INT64", "None"): "BIGINT",
    ("FLOAT", "None"): "DOUBLE",
    ("DOUBLE", "None"): "DOUBLE",
    ("BYTE_ARRAY", "String"): "VARCHAR",
    ("BYTE_ARRAY", "Enum"): "VARCHAR",
    ("INT32", "Date"): "DATE",
}
_UNSIGNED_LONG_BITS: Final = 64
_REWRITE: Final = "send the file with `icedb ingest`, which rewrites it"


def read_sql_type(column: Any) -> tuple[str | None, str]:
    """Return the SQL type that a column of a Parquet schema is read as, and what it is in the file, in words.

    Args:
        column: A :class:`pyarrow.parquet.ColumnSchema` without nesting.
    """
    logical: dict[str, Any] = json.loads(column.logical_type.to_json())
    physical, kind = str(column.physical_type), str(logical["Type"])
    words = physical if kind == "None" else f"{physical} {_describe(logical)}"
    if kind == "Int":
        is_too_wide = logical["bitWidth"] == _UNSIGNED_LONG_BITS and not logical["isSigned"]
        return (None if is_too_wide else "BIGINT"), words
    if kind == "Timestamp":
        is_ours = not logical["isAdjustedToUTC"] and logical["timeUnit"] in ("milliseconds", "microseconds")
        return ("TIMESTAMP" if is_ours else None), words
    return _PLAIN.get((physical, kind)), words


def explain_refusal(name: str, words: str) -> str:
    """Return why a column of this type cannot be imported, and the remedy."""
    remedy = _REWRITE
    if "UTC" in words:
        remedy = f"write timestamps as UTC without a time zone (isAdjustedToUTC false), or {_REWRITE}"
    elif "nanoseconds" in words or words == "INT96":
        remedy = f"write microseconds, or {_REWRITE}"
    return f"column {name!r} is {words}, which no column of a table is without a conversion: {remedy}"


def _describe(logical: dict[str, Any]) -> str:
    kind = str(logical["Type"])
    if kind == "Int":
        return f"{'' if logical['isSigned'] else 'U'}INT({logical['bitWidth']})"
    if kind == "Timestamp":
        zone = " of a time zone (UTC)" if logical["isAdjustedToUTC"] else ""
        return f"TIMESTAMP in {logical['timeUnit']}{zone}"
    if kind == "Decimal":
        return f"DECIMAL({logical.get('precision')}, {logical.get('scale')})"
    return kind.upper()


class FileRefused(Exception):
    """A file that cannot be imported; the message says why, in words for the caller."""


@dataclass(frozen=True, slots=True)
class ColumnBounds:
    """What a footer proves of one column.

    Attributes:
        low: Not above any value; ``None`` if not known.
        high: Not below any value; ``None`` if not known.
        null_count: Number of nulls; ``None`` if not known.
    """

    low: Any
    high: Any
    null_count: int | None


class Footer:
    """A parsed footer of a file with flat columns.

    Attributes:
        has_field_ids: Whether its columns have numbers of another writer.
    """

    def __init__(self, metadata: Any, *, has_field_ids: bool = False) -> None:
        self._metadata = metadata
        self.has_field_ids: Final = has_field_ids
        # Without rows it does not matter what the columns are: tools write untyped ones then.
        self.columns: Mapping[str, str] = _read_columns(metadata) if metadata.num_rows else {}
        self._numbers = {name: number for number, name in enumerate(self.columns)}

    @property
    def row_count(self) -> int:
        """Rows of the file."""
        return int(self._metadata.num_rows)

    @property
    def texts(self) -> Mapping[bytes, bytes]:
        """Key-value metadata."""
        found: Mapping[bytes, bytes] = self._metadata.metadata or {}
        return found

    def bounds_of(self, column: str) -> ColumnBounds:
        """Return what the statistics of all row groups together say about a column."""
        number = self._numbers[column]
        is_required = self._metadata.schema.column(number).max_definition_level == 0
        lows: list[Any] = []
        highs: list[Any] = []
        null_count: int | None = 0
        is_bounded = True
        for group in range(self._metadata.num_row_groups):
            row_group = self._metadata.row_group(group)
            statistics = row_group.column(number).statistics
            nulls = _null_count(statistics, is_required=is_required)
            null_count = None if nulls is None or null_count is None else null_count + nulls
            if nulls is not None and nulls == row_group.num_rows:
                continue  # only nulls: no bounds, and none are needed
            bounds = _read_bounds(statistics)
            if bounds is None:
                is_bounded = False
                continue
            lows.append(bounds[0])
            highs.append(bounds[1])
        if not is_bounded or not lows:
            return ColumnBounds(None, None, null_count)
        return ColumnBounds(min(lows), max(highs), null_count)

    def is_sorted_by(self, columns: Sequence[str]) -> bool:
        """Whether each row group says that it is sorted by these columns, ascending, nulls last."""
        wanted = [(self._numbers.get(column), False, False) for column in columns]
        for group in range(self._metadata.num_row_groups):
            said = [
                (s.column_index, s.descending, s.nulls_first) for s in self._metadata.row_group(group).sorting_columns
            ]
            if said[: len(wanted)] != wanted:
                return False
        return True


def read_footer(store: ObjectStore, source: SourceFile) -> Footer:
    """Read and check the footer of a file.

    Raises:
        FileRefused: It is gone, changed, no Parquet file, or one that cannot be a data file.
        Unavailable: The store did not answer.
    """
    body = _fetch(store, source)
    try:
        metadata = pq.read_metadata(pa.BufferReader(_MAGIC + body))
        has_ids = has_field_ids(body[:-_END_BYTES])
    except (pa.ArrowException, OSError, ValueError, ThriftError) as error:
        raise FileRefused(
            f"its footer is not readable as Parquet ({str(error)[:200]}): write the file again"
        ) from error
    _check_row_groups(metadata, data_bytes=source.size_bytes - len(body))
    return Footer(metadata, has_field_ids=has_ids)


def _fetch(store: ObjectStore, source: SourceFile) -> bytes:
    """Return the footer with its length and the magic bytes behind it."""
    no_parquet = "it does not end as a Parquet file does: narrow the pattern, or write the file again"
    if source.size_bytes <= len(_MAGIC) + _END_BYTES:
        raise FileRefused(no_parquet)
    length = min(TAIL_BYTES, source.size_bytes)
    try:
        tail = _get_range(store, source, length)
        if tail.endswith(_ENCRYPTED_MAGIC):
            raise FileRefused("its footer is encrypted: engines that read the table have no key for it")
        if not tail.endswith(_MAGIC):
            raise FileRefused(no_parquet)
        wanted = int.from_bytes(tail[-_END_BYTES : -len(_MAGIC)], "little") + _END_BYTES
        if wanted > source.size_bytes - len(_MAGIC):
            raise FileRefused(no_parquet)
        if wanted > MAX_FOOTER_BYTES:
            raise FileRefused(f"its footer has {wanted} bytes; the limit is {MAX_FOOTER_BYTES}: use larger row groups")
        return tail[-wanted:] if wanted <= len(tail) else _get_range(store, source, wanted)
    except NotFound as error:
        raise FileRefused("it is gone since it was listed: run the import again") from error
    except PreconditionFailed as error:
        raise FileRefused("it changed since it was listed: run the import again when nobody writes it") from error


def _get_range(store: ObjectStore, source: SourceFile, length: int) -> bytes:
    start = source.size_bytes - length
    return store.get_range(source.key, start=start, length=length, if_match=source.etag or None).body


def _read_columns(metadata: Any) -> dict[str, str]:
    columns: dict[str, str] = {}
    for number in range(metadata.num_columns):
        column = metadata.schema.column(number)
        if column.path != column.name or column.max_repetition_level:
            name = str(column.path).partition(".")[0]
            raise FileRefused(explain_refusal(name, "nested (a list, map or struct)"))
        sql_type, words = read_sql_type(column)
        if sql_type is None:
            raise FileRefused(explain_refusal(column.name, words))
        if column.name in columns:
            raise FileRefused(f"it has two columns {column.name!r}: which one counts is not defined")
        columns[column.name] = sql_type
    return columns


def _check_row_groups(metadata: Any, *, data_bytes: int) -> None:
    """Refuse a footer that does not describe the file that it stands in."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    if sum(group.num_rows for group in groups) != metadata.num_rows:
        raise FileRefused("its footer contradicts itself about the number of rows: write the file again")
    for group in {0, len(groups) - 1} if groups else ():
        for number in range(metadata.num_columns):
            chunk = groups[group].column(number)
            if chunk.file_path:
                raise FileRefused("it is a summary of other files, and has no rows itself: import those")
            if chunk.compression not in _CODECS:
                raise FileRefused(f"column {chunk.path_in_schema!r} is compressed with {chunk.compression}: use zstd")
            start = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
            if start < len(_MAGIC) or start + chunk.total_compressed_size > data_bytes:
                raise FileRefused("its footer names bytes that the file does not have: it is damaged or cut")


def _null_count(statistics: Any, *, is_required: bool) -> int | None:
    if is_required:
        return 0
    return int(statistics.null_count) if statistics is not None and statistics.has_null_count else None


def _read_bounds(statistics: Any) -> tuple[Any, Any] | None:
    if statistics is None or not statistics.has_min_max:
        return None
    try:
        low, high = statistics.min, statistics.max
    except (ValueError, OverflowError, pa.ArrowException):
        return None  # a cut text that is no UTF-8, a date beyond what Python knows
    if isinstance(low, float) or isinstance(high, float):
        return None  # statistics say nothing about NaN, which engines sort above everything
    if isinstance(low, bytes) or (isinstance(low, datetime) and low.tzinfo is not None):
        return None
    return low, high
