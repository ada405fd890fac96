"""Places in the sort order of a table: tuples that compare as the engine sorts, nulls last, and how footers say them.

Every data file of ours says of each row group the first and the last tuple of its sort columns, exactly, in the
key-value metadata of its footer (:data:`ORDER_KEY`), decimals as whole numbers. Statistics of single columns prove
less: of the first sort column alone they say between which values a row group lies, and nothing of a tie. Text compares
by its UTF-8 bytes, NaN is above all other numbers, both zeros are one. Pure.
"""

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, Literal

import pyarrow as pa
from icedb_log.model import ColumnStats
from icedb_log.table.decimals import DecimalType, find_decimal

from icedb_engine.arrow_types import REPEATED_TEXT, name_arrow_type
from icedb_engine.writing.parquet_join import ChunkBounds

ORDER_KEY: Final = "icedb.order"
MAX_TEXT_CHARS: Final = 256
"""A row group whose first or last tuple has a longer text says nothing: footers stay small."""

Key = tuple[tuple[Any, ...], ...]
"""A place in the order: for each sort column a tuple of one or two."""

Tuples = tuple[list[Any], list[Any]]
"""The first and the last tuple of a row group, as stored: times, dates and decimals are integers."""

BELOW: Final = (-1,)
NAN: Final = (1,)
NULL: Final = (2,)
ABOVE: Final = (3,)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SPECIAL: Final = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
_INTEGERS: Final = ("BIGINT", "DATE", "TIMESTAMP")
_SCALARS: Final[Mapping[str, type | tuple[type, ...]]] = {
    "BIGINT": int,
    "BOOLEAN": bool,
    "DOUBLE": (int, float),
    "VARCHAR": str,
}
"""Of what types bounds of the log are that need no conversion."""
_STORED_BYTES: Final = {"BOOLEAN": 1, "DATE": 4, "BIGINT": 8, "TIMESTAMP": 8}
_MAX_DECIMAL_BYTES: Final = 16
_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Span:
    """Between which places all rows of something lie; both are of as many columns as the table sorts by."""

    low: Key
    high: Key

    @classmethod
    def anywhere(cls, column_count: int) -> "Span":
        """Return the span of rows without statistics."""
        return cls((BELOW,) * column_count, (ABOVE,) * column_count)

    @classmethod
    def of_first(cls, low: tuple[Any, ...], high: tuple[Any, ...], column_count: int) -> "Span":
        """Return the span of rows with statistics of the first sort column only."""
        return cls((low, *((BELOW,) * (column_count - 1))), (high, *((ABOVE,) * (column_count - 1))))


def make_place(value: Any) -> tuple[Any, ...]:
    """Return where a value stands: an integer, a boolean, a float, text or ``None``."""
    if value is None:
        return NULL
    if isinstance(value, str):
        return (0, value.encode())
    if isinstance(value, float) and math.isnan(value):
        return NAN
    return (0, value)


def read_tuples(rows: pa.Table, sort: Sequence[str]) -> Tuples | None:
    """Return the first and the last tuple of sorted rows as they are stored.

    ``None`` if one has a text that is too long, or a type that we never write.
    """
    kinds = [rows.schema.field(name).type for name in sort]
    if not all(kind == REPEATED_TEXT or name_arrow_type(kind) is not None for kind in kinds):
        return None
    first, last = ([_read_value(rows.column(name)[place]) for name in sort] for place in (0, rows.num_rows - 1))
    is_long = any(isinstance(value, str) and len(value) > MAX_TEXT_CHARS for value in (*first, *last))
    return None if is_long else (first, last)


def _read_value(found: Any) -> Any:
    if pa.types.is_timestamp(found.type):
        found = found.cast(pa.int64())
    elif pa.types.is_date(found.type):
        found = found.cast(pa.int32())
    value = found.as_py()
    is_decimal = value is not None and pa.types.is_decimal(found.type)
    return DecimalType(found.type.precision, found.type.scale).scale_up(value) if is_decimal else value


def encode_order(sort: Sequence[str], groups: Sequence[Tuples | None]) -> dict[str, str]:
    """Return the metadata of a footer: the tuples of each row group, or ``None``; nothing without a sort order."""
    if not sort:
        return {}
    told = [found and [[_as_json(value) for value in each] for each in found] for found in groups]
    return {ORDER_KEY: json.dumps({"by": list(sort), "groups": told}, separators=(",", ":"), ensure_ascii=False)}


def _as_json(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def decode_order(
    key_values: Mapping[str, str], sort: Sequence[str], types: Mapping[str, str], *, group_count: int
) -> list[Tuples | None]:
    """Return what a footer says of each row group; ``None`` for each if it cannot be understood.

    Args:
        key_values: Its metadata.
        sort: The sort columns that the file has.
        types: Their types.
        group_count: Row groups of it.
    """
    nothing: list[Tuples | None] = [None] * group_count
    try:
        found = json.loads(key_values.get(ORDER_KEY, "null"))
        if found is None or tuple(found["by"]) != tuple(sort) or len(found["groups"]) != group_count:
            return nothing
        kinds = [types[name] for name in sort]
        return [None if each is None else _decode_tuples(each, kinds) for each in found["groups"]]
    except (ValueError, TypeError, KeyError, RecursionError):
        return nothing


def _decode_tuples(found: Any, kinds: Sequence[str]) -> Tuples:
    first, last = ([_decode_value(*pair) for pair in zip(each, kinds, strict=True)] for each in found)
    return first, last


def _decode_value(value: Any, kind: str) -> Any:
    """Return a value of a type. Raises ValueError."""
    if value is None:
        return None
    if kind == "DOUBLE":
        return float(_SPECIAL.get(value, value))
    is_integer = kind in _INTEGERS or find_decimal(kind) is not None
    wanted = int if is_integer else bool if kind == "BOOLEAN" else str
    if type(value) is not wanted:
        raise ValueError(f"{value!r} is no {kind}")
    return value


def make_key(values: Sequence[Any]) -> Key:
    """Return the place of a tuple."""
    return tuple(map(make_place, values))


def decode_bound(data: bytes | None, kind: str) -> Any:
    """Return a bound of a column as statistics have it; ``None`` if it says nothing that can be used.

    Times, dates and decimals are integers, as stored.
    """
    digits = find_decimal(kind)
    if digits is not None:
        order: Literal["big", "little"] = "big" if digits.physical == "FIXED_LEN_BYTE_ARRAY" else "little"
        return int.from_bytes(data, order, signed=True) if data and len(data) <= _MAX_DECIMAL_BYTES else None
    try:
        if data is None or kind == "VARCHAR":
            return None if data is None else data.decode()
        if kind == "DOUBLE":
            (value,) = struct.unpack("<d", data)
            return value if math.isfinite(value) else None
    except (UnicodeDecodeError, struct.error):
        return None
    if len(data) != _STORED_BYTES[kind]:
        return None
    return bool(data[0]) if kind == "BOOLEAN" else int.from_bytes(data, "little", signed=True)


def as_value(stored: Any, kind: str) -> Any:
    """Return a stored bound as a Python value, as statistics of markers are made of. Raises OverflowError."""
    if stored is not None and kind == "TIMESTAMP":
        return (_EPOCH + timedelta(microseconds=stored)).replace(tzinfo=None)
    if stored is not None and kind == "DATE":
        return (_EPOCH + timedelta(days=stored)).date()
    digits = find_decimal(kind)
    return stored if stored is None or digits is None else digits.scale_down(stored)


def span_of_bounds(bounds: ChunkBounds, kind: str, row_count: int, column_count: int) -> Span:
    """Return the span of a row group by the statistics of its first sort column."""
    if bounds.null_count is None:
        return Span.anywhere(column_count)
    if bounds.null_count == row_count:
        return Span.of_first(NULL, NULL, column_count)
    low, high = decode_bound(bounds.low, kind), decode_bound(bounds.high, kind)
    if low is None or high is None:
        return Span.anywhere(column_count)
    # Statistics say nothing of NaN, which is above every other number.
    top = NULL if bounds.null_count else NAN if kind == "DOUBLE" else make_place(high)
    return Span.of_first(make_place(low), top, column_count)


def span_of_stats(stats: ColumnStats | None, kind: str, row_count: int, column_count: int) -> Span:
    """Return the span of a data file by what the log says of its first sort column."""
    low, high, null_count = stats or (None, None, None)
    if null_count is None:
        return Span.anywhere(column_count)
    if null_count == row_count:
        return Span.of_first(NULL, NULL, column_count)
    try:
        places = make_place(_read_scalar(low, kind)), make_place(_read_scalar(high, kind))
    except (ValueError, TypeError, OverflowError):
        return Span.anywhere(column_count)
    if NULL in places:
        return Span.anywhere(column_count)
    return Span.of_first(places[0], NULL if null_count else places[1], column_count)


def _read_scalar(value: Any, kind: str) -> Any:
    """Return a bound of the log as it is stored. Raises ValueError, TypeError, OverflowError."""
    if value is None:
        return None
    if kind == "TIMESTAMP":
        time = datetime.fromisoformat(value)  # of a column that was a DATE without a zone: midnight in UTC
        return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND
    if kind == "DATE":
        return (date.fromisoformat(value) - _EPOCH.date()).days
    digits = find_decimal(kind)
    if digits is not None:
        read = digits.read(value)
        if read is None:
            raise ValueError(f"{value!r} is no {kind}")
        return digits.scale_up(read)
    if not isinstance(value, _SCALARS[kind]):  # nobody checks what other writers put into the log
        raise TypeError(f"{value!r} is no {kind}")
    return value
