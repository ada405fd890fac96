"""The Arrow type of each SQL type, as the native engine hands rows over and as data files have them."""

from collections.abc import Collection, Mapping
from typing import Any, Final

import pyarrow as pa
from icedb_log.table.decimals import DecimalType, find_decimal

ARROW_TYPES: Final[Mapping[str, Any]] = {
    "BIGINT": pa.int64(),
    "BOOLEAN": pa.bool_(),
    "DATE": pa.date32(),
    "DOUBLE": pa.float64(),
    "TIMESTAMP": pa.timestamp("us"),
    "VARCHAR": pa.string(),
}
"""Of all but decimals: :func:`find_arrow_type` knows these, too."""
_SQL_TYPES: Final = {arrow_type: sql_type for sql_type, arrow_type in ARROW_TYPES.items()}


REPEATED_TEXT: Final = pa.dictionary(pa.int32(), pa.string())
"""Of text columns that are kept as dictionaries between one data file and another."""


def find_arrow_type(sql_type: str) -> Any:
    """Return the Arrow type of an SQL type. Raises KeyError: this project writes no such columns."""
    digits = find_decimal(sql_type)
    return ARROW_TYPES[sql_type] if digits is None else pa.decimal128(digits.precision, digits.scale)


def name_arrow_type(arrow_type: Any) -> str | None:
    """Return the SQL type of which columns of data files are of an Arrow type; ``None``: we write no such ones."""
    if pa.types.is_decimal(arrow_type):
        digits = DecimalType(arrow_type.precision, arrow_type.scale)
        return str(digits) if digits.is_valid else None
    return _SQL_TYPES.get(arrow_type)


def make_schema(columns: Mapping[str, str], *, repeated: Collection[str] = ()) -> Any:
    """Return the Arrow schema of columns with SQL types; ``repeated``: text that is kept as a dictionary."""
    return pa.schema(
        [(name, REPEATED_TEXT if name in repeated else find_arrow_type(kind)) for name, kind in columns.items()]
    )


def number_columns(columns: Mapping[str, str]) -> tuple[dict[str, str], Any]:
    """Return names of ours for columns with SQL types, ``c0``, ``c1``, …, and the Arrow schema under these."""
    names = {name: f"c{place}" for place, name in enumerate(columns)}
    return names, make_schema(dict(zip(names.values(), columns.values(), strict=True)))


def fit(rows: pa.RecordBatch, schema: Any) -> pa.RecordBatch:
    """Return rows with the names and types of a schema, column by column: Spark's timestamps have a zone, UTC."""
    arrays = [convert(array, wanted.type) for array, wanted in zip(rows.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def convert(values: Any, to: Any) -> Any:
    """Return values as another type; of decimals with a fraction the nearest doubles.

    Raises:
        pa.ArrowInvalid: A value would be lost.
    """
    if pa.types.is_decimal(values.type) and pa.types.is_floating(to):
        # By their text: Arrow multiplies by a double, and 19.99 would be 19.990000000000002.
        values = values.cast(pa.string() if values.type.scale > 0 else pa.int64())
    return values if values.type == to else values.cast(to)


def align(rows: pa.RecordBatch, schema: Any) -> pa.RecordBatch:
    """Return rows with all columns of a schema; NULL where they have no column of that name."""
    found = dict(zip(rows.schema.names, rows.columns, strict=True))
    arrays = [found[each.name] if each.name in found else pa.nulls(rows.num_rows, each.type) for each in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def encode_texts(rows: pa.RecordBatch, names: Collection[str]) -> pa.RecordBatch:
    """Return rows with some of their text columns as dictionaries."""
    for place, name in enumerate(rows.schema.names):
        if name in names:
            rows = rows.set_column(place, name, rows.column(place).dictionary_encode())
    return rows
