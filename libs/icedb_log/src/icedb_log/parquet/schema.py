"""The columns of a Parquet file as SQL types.

A type is taken only if every engine reads it as the SQL type, or as a narrower one that loses nothing beside it:
``INT32`` beside ``BIGINT``, ``FLOAT`` beside ``DOUBLE``. So a table may have data files of both, and merges write the
table's type. What would have to be changed to fit is *odd*: timestamps of a time zone (beside our UTC timestamps
without one, engines would shift them by the session's zone), nanoseconds, nested columns, binary. Decimals of up to 38
digits are ``DECIMAL(p,s)``, however they are stored.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from icedb_log.parquet.field_ids import FIELD_ID
from icedb_log.parquet.thrift import STRUCT, Shape, ThriftError, ThriftReader, each, struct
from icedb_log.table.decimals import DecimalType

# Field numbers and values are those of parquet.thrift (parquet-format 2.11).
PHYSICAL: Final = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
_LOGICAL: Final = {
    1: "STRING", 2: "MAP", 3: "LIST", 4: "ENUM", 5: "DECIMAL", 6: "DATE", 7: "TIME", 8: "TIMESTAMP", 10: "INT",
    11: "NULL", 12: "JSON", 13: "BSON", 14: "UUID", 15: "FLOAT16", 16: "VARIANT", 17: "GEOMETRY", 18: "GEOGRAPHY",
}  # fmt: skip
_CONVERTED: Final = {
    0: "STRING", 1: "MAP", 2: "MAP", 3: "LIST", 4: "ENUM", 5: "DECIMAL", 6: "DATE", 7: "TIME", 8: "TIME",
    # The older annotation of timestamps says UTC-adjusted: another type than ours.
    9: "TIMESTAMP milliseconds UTC", 10: "TIMESTAMP microseconds UTC",
    **dict.fromkeys((11, 12, 13), "INT unsigned"), 14: "INT unsigned 64", **dict.fromkeys((15, 16, 17, 18), "INT"),
    19: "JSON", 20: "BSON", 21: "INTERVAL",
}  # fmt: skip
_UNITS: Final = {1: "milliseconds", 2: "microseconds", 3: "nanoseconds"}
_LONG_BITS: Final = 64
_SQL_TYPES: Final = {
    ("BOOLEAN", ""): "BOOLEAN",
    ("INT32", ""): "BIGINT",
    ("INT64", ""): "BIGINT",
    ("INT32", "INT"): "BIGINT",
    ("INT64", "INT"): "BIGINT",
    ("INT32", "INT unsigned"): "BIGINT",
    ("INT64", "INT unsigned"): "BIGINT",
    ("FLOAT", ""): "DOUBLE",
    ("DOUBLE", ""): "DOUBLE",
    ("BYTE_ARRAY", "STRING"): "VARCHAR",
    ("BYTE_ARRAY", "ENUM"): "VARCHAR",
    ("INT32", "DATE"): "DATE",
    ("INT64", "TIMESTAMP milliseconds"): "TIMESTAMP",
    ("INT64", "TIMESTAMP microseconds"): "TIMESTAMP",
}
_DECIMALS: Final = ("INT32", "INT64", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
_REQUIRED, _REPEATED = 0, 2
_KEPT_BYTES: Final = 64 * 1024
"""A schema of more bytes is read each time anew."""


class DamagedFile(Exception):
    """A file that is not the Parquet that was written; the message says why, as the end of a sentence."""


@dataclass(slots=True)
class Leaf:
    """A column as row groups count them: only leaves of the schema, which is a tree.

    Attributes:
        name: Name of the column of which it is, or is a part.
        physical: Physical type; empty for a part of a nested column.
        kind: Logical type in words; empty if none is given.
        sql_type: Its SQL type; ``None`` if it has none.
        is_required: Whether it has no nulls by its type.
        length: Bytes of each value, where all have as many by the physical type.
    """

    name: str
    physical: str = ""
    kind: str = ""
    sql_type: str | None = None
    is_required: bool = False
    length: int = 0


@dataclass(slots=True)
class ParquetSchema:
    """All columns of a file.

    Attributes:
        columns: Column to SQL type.
        odd_columns: Columns that are no column of a table without a conversion: the type in words.
        leaves: As row groups have them.
        has_field_ids: Whether some column, or a part of one, has a number of somebody else's.
    """

    columns: dict[str, str] = field(default_factory=dict)
    odd_columns: dict[str, str] = field(default_factory=dict)
    leaves: list[Leaf] = field(default_factory=list)
    has_field_ids: bool = False

    def add(self, elements: list[dict[int, Any]]) -> None:
        """Add a column, and take its elements off the end; of a nested one all parts. Raises DamagedFile."""
        top = _pop(elements)
        name, physical, kind = top.get(_NAME, ""), _name_physical(top), _name_logical(top)
        if name in self.columns or name in self.odd_columns:
            raise DamagedFile(f"it has two columns {name[:80]!r}: which one counts is not defined")
        left = _child_count(top)
        if not left and top.get(_REPETITION) != _REPEATED:
            sql_type = _SQL_TYPES.get((physical, kind))
            if kind == "DECIMAL" and physical in _DECIMALS:
                digits = DecimalType(top.get(_PRECISION, 0), top.get(_SCALE, 0))
                kind, sql_type = str(digits), str(digits) if digits.is_valid else None
            if sql_type is None:
                self.odd_columns[name] = f"{physical} {kind}".strip()
            else:
                self.columns[name] = sql_type
            is_required = top.get(_REPETITION, _REQUIRED) == _REQUIRED
            self.leaves.append(Leaf(name, physical, kind, sql_type, is_required, top.get(_LENGTH, 0)))
            return
        self.odd_columns[name] = "nested (a list, map or struct)"
        if not left:
            self.leaves.append(Leaf(name))
        while left:
            children = _child_count(_pop(elements))
            if not children:
                self.leaves.append(Leaf(name))
            left += children - 1


_TYPE, _LENGTH, _REPETITION, _NAME, _CHILDREN, _CONVERTED_TYPE, _SCALE, _PRECISION = 1, 2, 3, 4, 5, 6, 7, 8
_LOGICAL_TYPE: Final = 10
_UTC_ADJUSTED, _UNIT = 1, 2
_BITS, _SIGNED = 1, 2
_TIMESTAMP: Final = struct(
    {_UTC_ADJUSTED: ThriftReader.boolean, _UNIT: struct(dict.fromkeys(_UNITS, ThriftReader.place))}
)
_INT: Final = struct({_BITS: ThriftReader.integer, _SIGNED: ThriftReader.boolean})


def _read_logical(reader: ThriftReader, kind: int) -> str:
    """Return a logical type in words: the one field of a union."""
    if kind != STRUCT:
        raise ThriftError(f"a struct was expected, not kind {kind}")
    name = ""
    for number, field_kind in reader.fields():
        name = _LOGICAL.get(number, f"logical type {number}")
        if name == "TIMESTAMP":
            found = _TIMESTAMP(reader, field_kind)
            unit = next((_UNITS[unit] for unit in found.get(_UNIT, ())), "an unknown unit")
            name = f"TIMESTAMP {unit}{' UTC' if found.get(_UTC_ADJUSTED, True) else ''}"
        elif name == "INT":
            found = _INT(reader, field_kind)
            if not found.get(_SIGNED, True):
                name = "INT unsigned 64" if found.get(_BITS) == _LONG_BITS else "INT unsigned"
        else:
            reader.skip(field_kind)
    return name


_ELEMENT: Final[Shape] = {
    **dict.fromkeys((_TYPE, _LENGTH, _REPETITION, _SCALE, _PRECISION), ThriftReader.integer),
    _NAME: ThriftReader.text,
    _CHILDREN: ThriftReader.integer,
    _CONVERTED_TYPE: ThriftReader.integer,
    FIELD_ID: ThriftReader.place,
    _LOGICAL_TYPE: _read_logical,
}


def read_schema(reader: ThriftReader, kind: int) -> ParquetSchema:
    """Read the schema that begins here: a tree, written from the root down. Raises DamagedFile, ThriftError.

    Thousands of files of one table have the same, so that it is mostly known: what is returned must not be changed.
    """
    start = reader.position
    reader.skip(kind)
    data = reader.cut(start)
    return _parse_known(data, kind) if len(data) <= _KEPT_BYTES else _parse(data, kind)


def _parse(data: bytes, kind: int) -> ParquetSchema:
    elements = each(struct(_ELEMENT))(ThriftReader(data), kind)[::-1]
    found = ParquetSchema(has_field_ids=any(FIELD_ID in element for element in elements))
    for _ in range(_child_count(_pop(elements))):
        found.add(elements)
    if elements:
        raise DamagedFile(_NOT_WHOLE)
    return found


_parse_known: Final = lru_cache(maxsize=16)(_parse)
_NOT_WHOLE: Final = "its footer is damaged: its schema is not whole"


def _pop(elements: list[dict[int, Any]]) -> dict[int, Any]:
    if not elements:
        raise DamagedFile(_NOT_WHOLE)
    return elements.pop()


def _child_count(element: dict[int, Any]) -> int:
    return int(max(element.get(_CHILDREN, 0), 0))


def _name_physical(element: dict[int, Any]) -> str:
    number = element.get(_TYPE)
    if number is None:
        return ""
    return PHYSICAL[number] if 0 <= number < len(PHYSICAL) else f"physical type {number}"


def _name_logical(element: dict[int, Any]) -> str:
    number = element.get(_CONVERTED_TYPE)
    converted = "" if number is None else _CONVERTED.get(number, f"converted type {number}")
    return str(element.get(_LOGICAL_TYPE, converted))
