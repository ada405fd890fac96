"""Which type of Iceberg a column has, given its SQL type as the log says it, and its values in Iceberg's forms. Pure.

The log of this project's own tables knows six types; tables of other writers of the log format may have any that DuckDB
has. A type counts by what Parquet files of it hold, since these files are what engines read:

==============================================  ===============  =====================================================
SQL type                                        Iceberg          notes
==============================================  ===============  =====================================================
``BOOLEAN``                                     ``boolean``
``TINYINT`` … ``INTEGER``, ``U(TINY|SMALL)INT`` ``int``
``BIGINT``, ``UINTEGER``                        ``long``
``FLOAT``, ``DOUBLE``                           ``float``, ``double``
``HUGEINT``, ``UHUGEINT``                       ``double``       DuckDB writes them so
``DECIMAL(p, s)``                               ``decimal(p,s)`` up to 38 digits
``DATE``, ``TIME``                              ``date``, ``time``
``TIMESTAMP``, ``TIMESTAMP_S``, ``TIMESTAMP_MS`` ``timestamp``   files say isAdjustedToUTC false (decision 0036)
``TIMESTAMP WITH TIME ZONE``                    ``timestamptz``  files say isAdjustedToUTC true
``VARCHAR``, ``JSON``, ``ENUM(…)``              ``string``
``BLOB``                                        ``binary``
``UUID``                                        ``uuid``
``STRUCT(…)``, ``T[]``, ``T[n]``, ``MAP(…)``    ``struct``, ``list``, ``map``
==============================================  ===============  =====================================================

Format version 2 has nothing for the others (``UBIGINT``, ``TIMESTAMP_NS``, ``INTERVAL``, ``BIT``, ``UNION``, …): such a
column is left out whole, and the publication says so. It has a field id all the same: engines want one for each column
that they find in a file.

Source of the binary form that single values have in bounds: the specification of Iceberg, appendix D, "Binary
single-value serialization".
"""

import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

from icedb_log.table.file_domains import Domain
from icedb_log.table.table_config import PartitionField
from icedb_log.table.transforms import canonical_text, read_time_span

MAX_DECIMAL_DIGITS: Final = 38
UNKNOWN: Final = "unknown"
"""Stands for a type that Iceberg cannot say."""

_PRIMITIVES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("BOOLEAN", "BOOL", "LOGICAL"), "boolean"),
    **dict.fromkeys(("TINYINT", "SMALLINT", "INTEGER", "INT", "UTINYINT", "USMALLINT"), "int"),
    **dict.fromkeys(("BIGINT", "LONG", "INT8", "UINTEGER"), "long"),
    **dict.fromkeys(("FLOAT", "REAL", "FLOAT4"), "float"),
    **dict.fromkeys(("DOUBLE", "FLOAT8", "HUGEINT", "UHUGEINT"), "double"),
    "DATE": "date",
    "TIME": "time",
    **dict.fromkeys(("TIMESTAMP", "DATETIME", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_US"), "timestamp"),
    **dict.fromkeys(("TIMESTAMP WITH TIME ZONE", "TIMESTAMPTZ"), "timestamptz"),
    **dict.fromkeys(("VARCHAR", "TEXT", "STRING", "CHAR", "BPCHAR", "JSON"), "string"),
    **dict.fromkeys(("BLOB", "BYTEA", "BINARY", "VARBINARY"), "binary"),
    "UUID": "uuid",
    "DECIMAL": "decimal(18,3)",
}
_DECIMAL: Final = re.compile(r"(?:DECIMAL|NUMERIC)\(\s*([0-9]+)\s*(?:,\s*([0-9]+)\s*)?\)", re.IGNORECASE)
_ARRAY: Final = re.compile(r"(.*)\[[0-9]*\]", re.DOTALL)
_CALL: Final = re.compile(r"(STRUCT|MAP|ENUM)\s*\((.*)\)", re.DOTALL | re.IGNORECASE)
_QUOTED: Final = re.compile(r'"((?:[^"]|"")+)"\s+(.*)', re.DOTALL)
_PLAIN: Final = re.compile(r"(\S+)\s+(.*)", re.DOTALL)
_OPEN: Final = "(["
_CLOSE: Final = ")]"
_PAIR: Final = 2


@dataclass(frozen=True, slots=True)
class NestedType:
    """A type that has others in it.

    Attributes:
        kind: Which one: ``struct``, ``list`` or ``map``.
        parts: What is in it, by name; of a list ``element``, of a map ``key`` and ``value``.
    """

    kind: str
    parts: tuple[tuple[str, "IcebergType"], ...]


IcebergType = str | NestedType
"""A primitive type by its name in Iceberg, or a nested one."""


def find_type(sql_type: str) -> IcebergType | None:
    """Return the type of Iceberg that files of an SQL type have; ``None``: format version 2 cannot say it.

    Args:
        sql_type: As a schema line has it: DuckDB's spelling.
    """
    found = parse_type(sql_type)
    return found if _is_known(found) else None


def parse_type(sql_type: str) -> IcebergType:
    """Return the same, with :data:`UNKNOWN` for each part that Iceberg cannot say."""
    text = sql_type.strip()
    found = _PRIMITIVES.get(" ".join(text.upper().split()))
    if found is not None:
        return found
    if decimal := _DECIMAL.fullmatch(text):
        digits, scale = int(decimal[1]), int(decimal[2] or 0)
        return f"decimal({digits},{scale})" if scale <= digits <= MAX_DECIMAL_DIGITS and digits else UNKNOWN
    if array := _ARRAY.fullmatch(text):
        return NestedType("list", (("element", parse_type(array[1])),))
    call = _CALL.fullmatch(text)
    if call is None:
        return UNKNOWN
    kind = call[1].lower()
    return "string" if kind == "enum" else _parse_nested(kind, _split(call[2]))


def _is_known(kind: IcebergType) -> bool:
    if isinstance(kind, str):
        return kind != UNKNOWN
    return all(_is_known(part) for _, part in kind.parts)


def _parse_nested(kind: str, texts: list[str]) -> IcebergType:
    """Return a struct or a map of what stands in its brackets."""
    if kind == "map":
        named = list(zip(("key", "value"), texts, strict=False)) if len(texts) == _PAIR else []
    else:
        named = [pair for text in texts if (pair := _split_name(text)) is not None]
    is_whole = bool(named) and len(named) == len(texts)
    return NestedType(kind, tuple((name, parse_type(text)) for name, text in named)) if is_whole else UNKNOWN


def _split_name(text: str) -> tuple[str, str] | None:
    """Return name and type of a field of a struct."""
    if quoted := _QUOTED.fullmatch(text):
        return quoted[1].replace('""', '"'), quoted[2]
    plain = _PLAIN.fullmatch(text)
    return None if plain is None else (plain[1], plain[2])


def _split(text: str) -> list[str]:
    """Split at the commas that stand in no brackets and no quotes."""
    parts, depth, begin, quote = [], 0, 0, ""
    for at, char in enumerate(text):
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth -= 1
        elif char == "," and not depth:
            parts.append(text[begin:at].strip())
            begin = at + 1
    return [*parts, text[begin:].strip()]


_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - values of this project are naive UTC
_EPOCH_DAY: Final = _EPOCH.date()
_TICK: Final = timedelta(microseconds=1)
_HOUR: Final = timedelta(hours=1)
_MONTHS: Final = 12
_LONGS: Final = range(-(2**63), 2**63)


def count_days(day: date) -> int:
    """Return days since 1970-01-01."""
    return (day - _EPOCH_DAY).days


def count_micros(moment: datetime) -> int:
    """Return microseconds since 1970-01-01T00:00Z of a naive UTC datetime."""
    return (moment - _EPOCH) // _TICK


_PACKERS: Final[Mapping[str, Callable[[Any], bytes]]] = {
    "boolean": lambda value: b"\1" if value else b"\0",
    "int": struct.Struct("<i").pack,
    "long": struct.Struct("<q").pack,
    "double": struct.Struct("<d").pack,
    "date": lambda value: struct.pack("<i", value if isinstance(value, int) else count_days(value)),
    "timestamp": lambda value: struct.pack("<q", value if isinstance(value, int) else count_micros(value)),
    "string": str.encode,
}


def _pack_decimal(value: Decimal) -> bytes:
    """Return the digits without the point as a number, its highest byte first, in as few bytes as there can be."""
    sign, digits, _ = value.as_tuple()
    number = int("".join(map(str, digits))) * (-1 if sign else 1)
    size = ((~number if number < 0 else number).bit_length() // 8) + 1
    return number.to_bytes(size, "big", signed=True)


_NUMBERS: Final[Mapping[str, Callable[[Any], int]]] = {"date": count_days, "timestamp": count_micros}


def _count_hours(moment: datetime) -> int:
    return (moment - _EPOCH) // _HOUR


_TIMES: Final[Mapping[str, Callable[[Any], int]]] = {
    "year": lambda day: int(day.year - _EPOCH.year),
    "month": lambda day: (day.year - _EPOCH.year) * _MONTHS + day.month - 1,
    "day": lambda day: count_days(day.date() if isinstance(day, datetime) else day),
    "hour": _count_hours,
}
"""Of days and moments."""


def pack_value(kind: str, value: Any) -> bytes:
    """Return the binary form of a value; of dates and timestamps also of their numbers."""
    return _PACKERS[kind](value)


def pack_bounds(kind: object, domain: Domain) -> tuple[bytes, bytes] | None:
    """Return lower and upper bound of a column in a file; ``None``: there are none that are certain.

    Texts were cut when the log got them, the upper one rounded up. Of a zero nobody knows the sign: Iceberg says that
    the negative one lies below.
    """
    if not isinstance(kind, str) or domain.low is None or domain.high is None:
        return None
    low, high = domain.low, domain.high
    if isinstance(low, Decimal) and isinstance(high, Decimal):
        return _pack_decimal(low), _pack_decimal(high)
    if kind not in _PACKERS:
        return None
    if kind == "double":
        low, high = low or -0.0, high or 0.0
    try:
        return pack_value(kind, low), pack_value(kind, high)
    except (struct.error, OverflowError, UnicodeEncodeError, TypeError):
        return None  # another writer's marker says something that is no value of the column


@dataclass(frozen=True, slots=True)
class SpecField:
    """One field of a partition spec.

    Attributes:
        field: Of our table.
        name: In the spec; another than ``field.name`` where a column has that.
        transform: As Iceberg writes it.
        source_id: Number of the column.
        field_id: Number of the partition field.
        source_type: Type of the column.
        result_type: Type of the values.
    """

    field: PartitionField
    name: str
    transform: str
    source_id: int
    field_id: int
    source_type: str
    result_type: str

    @property
    def json(self) -> dict[str, Any]:
        """As Iceberg's JSON has it."""
        return {
            "source-id": self.source_id,
            "field-id": self.field_id,
            "transform": self.transform,
            "name": self.name,
        }


def transform_value(spec: SpecField, value: Any) -> Any:
    """Return the partition value of a column's value, as manifests hold it.

    Args:
        spec: A field of a partition spec.
        value: Of Python's type for the column: str, int, bool, date or naive UTC datetime.
    """
    if spec.field.transform == "identity":
        return _NUMBERS[spec.source_type](value) if spec.source_type in _NUMBERS else value
    return _TIMES[spec.field.transform](value)


def read_partition_value(spec: SpecField, text: str) -> Any:
    """Return the partition value that a text of a path stands for.

    Args:
        spec: A field of a partition spec.
        text: Decoded, not that of null.

    Raises:
        ValueError: It stands for none: another writer's.
    """
    transform, kind = spec.field.transform, spec.source_type
    if transform != "identity":
        span = read_time_span(transform, text)
        if span is None:
            raise ValueError(text)
        return transform_value(spec, span[0])
    value = _read_identity(kind, text)
    if canonical_text(value) != text or (kind == "long" and value not in _LONGS):
        raise ValueError(text)
    return transform_value(spec, value)


def _read_identity(kind: str, text: str) -> Any:
    if kind == "string":
        return text
    if kind == "boolean":
        return text == "true"
    if kind == "long":
        return int(text)
    if kind == "date":
        return date.fromisoformat(text)
    return datetime.fromisoformat(text.removesuffix("Z"))
