"""The columns of a Parquet file as SQL types.

Types map as in imports (``icedb_engine.imports.import_types``; a test holds the two together): a narrower number counts
as the table's type, what would need a conversion is *odd*.
"""

from dataclasses import dataclass, field
from typing import Final

from icedb_log.parquet.errors import BadFooter
from icedb_log.thrift import STRUCT, ThriftReader

_NOT_WHOLE: Final = "its footer is damaged: its schema is not whole"
_PHYSICAL: Final = ("BOOLEAN", "INT32", "INT64", "INT96", "FLOAT", "DOUBLE", "BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY")
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
_REPEATED: Final = 2
_REQUIRED: Final = 0


@dataclass(slots=True)
class Leaf:
    """A column as row groups count them: only leaves of the schema, which is a tree.

    Attributes:
        name: Name of the column of which it is, or is a part.
        physical: Physical type; empty for a part of a nested column.
        kind: Logical type in words; empty if none is given.
        sql_type: Its SQL type; ``None`` if it has none.
        is_required: Whether it has no nulls by its type.
    """

    name: str
    physical: str
    kind: str
    sql_type: str | None
    is_required: bool


@dataclass(slots=True)
class ParquetSchema:
    """All columns of a file.

    Attributes:
        columns: Column to SQL type.
        odd_columns: Columns that are no column of a table without a conversion: the type in words.
        leaves: As row groups have them.
    """

    columns: dict[str, str] = field(default_factory=dict)
    odd_columns: dict[str, str] = field(default_factory=dict)
    leaves: list[Leaf] = field(default_factory=list)


@dataclass(slots=True)
class _Element:
    """One element of the schema, which is a tree written from the root down."""

    name: str = ""
    physical: str = ""
    kind: str = ""
    repetition: int = _REQUIRED
    child_count: int = 0
    has_logical: bool = False


def read_schema(reader: ThriftReader, kind: int) -> ParquetSchema:
    """Read the schema that begins here. Raises BadFooter, ThriftError."""
    elements = [_read_element(reader, item) for item in reader.items(kind)]
    if not elements:
        raise BadFooter(_NOT_WHOLE)
    found = ParquetSchema()
    place = 1
    for _ in range(elements[0].child_count):
        place = _add_column(found, elements, place)
    if place != len(elements):
        raise BadFooter(_NOT_WHOLE)
    return found


def _add_column(found: ParquetSchema, elements: list[_Element], place: int) -> int:
    """Add the column whose first element stands at ``place``; return where the next one begins."""
    if place >= len(elements):
        raise BadFooter(_NOT_WHOLE)
    top = elements[place]
    if top.name in found.columns or top.name in found.odd_columns:
        raise BadFooter(f"it has two columns {top.name[:80]!r}: which one counts is not defined")
    if not top.child_count and top.repetition != _REPEATED:
        sql_type = _SQL_TYPES.get((top.physical, top.kind))
        if sql_type is None:
            found.odd_columns[top.name] = f"{top.physical} {top.kind}".strip()
        else:
            found.columns[top.name] = sql_type
        found.leaves.append(Leaf(top.name, top.physical, top.kind, sql_type, top.repetition == _REQUIRED))
        return place + 1
    found.odd_columns[top.name] = "nested (a list, map or struct)"
    left = 1
    while left:
        if place >= len(elements):
            raise BadFooter(_NOT_WHOLE)
        children = elements[place].child_count
        if not children:
            found.leaves.append(Leaf(top.name, "", "", None, is_required=False))
        left += children - 1
        place += 1
    return place


def _read_element(reader: ThriftReader, kind: int) -> _Element:
    element = _Element()
    if kind != STRUCT:
        raise BadFooter("its footer is damaged: its schema is no list of structs")
    for number, field_kind in reader.fields():
        if number == 1:
            element.physical = _name(_PHYSICAL, reader.integer(field_kind))
        elif number == 3:  # noqa: PLR2004
            element.repetition = reader.integer(field_kind)
        elif number == 4:  # noqa: PLR2004
            element.name = reader.text(field_kind)
        elif number == 5:  # noqa: PLR2004
            element.child_count = max(reader.integer(field_kind), 0)
        elif number == 6:  # noqa: PLR2004
            converted = reader.integer(field_kind)
            if not element.has_logical:
                element.kind = _CONVERTED.get(converted, f"converted type {converted}")
        elif number == 10:  # noqa: PLR2004
            element.kind, element.has_logical = _read_logical(reader, field_kind), True
        else:
            reader.skip(field_kind)
    return element


def _read_logical(reader: ThriftReader, kind: int) -> str:
    if kind != STRUCT:
        raise BadFooter("its footer is damaged: a logical type is no struct")
    name = ""
    for number, field_kind in reader.fields():
        name = _LOGICAL.get(number, f"logical type {number}")
        if field_kind != STRUCT:
            reader.skip(field_kind)
        elif name == "TIMESTAMP":
            name = _read_timestamp(reader)
        elif name == "INT":
            name = _read_integer_type(reader)
        else:
            reader.skip(field_kind)
    return name


def _read_timestamp(reader: ThriftReader) -> str:
    unit, is_utc = "", True
    for number, kind in reader.fields():
        if number == 1:
            is_utc = reader.boolean(kind)
        elif number == 2 and kind == STRUCT:  # noqa: PLR2004
            for unit_number, unit_kind in reader.fields():
                unit = _UNITS.get(unit_number, "an unknown unit")
                reader.skip(unit_kind)
        else:
            reader.skip(kind)
    return f"TIMESTAMP {unit}{' UTC' if is_utc else ''}"


def _read_integer_type(reader: ThriftReader) -> str:
    bits, is_signed = 0, True
    for number, kind in reader.fields():
        if number == 1:
            bits = reader.integer(kind)
        elif number == 2:  # noqa: PLR2004
            is_signed = reader.boolean(kind)
        else:
            reader.skip(kind)
    if is_signed:
        return "INT"
    return "INT unsigned 64" if bits == _LONG_BITS else "INT unsigned"


def _name(names: tuple[str, ...], number: int) -> str:
    return names[number] if 0 <= number < len(names) else f"physical type {number}"
