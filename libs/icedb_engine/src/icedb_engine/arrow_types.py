"""The Arrow type of each SQL type, as the native engine hands rows over and as data files have them."""

from collections.abc import Collection, Mapping
from typing import Any, Final

import pyarrow as pa

ARROW_TYPES: Final[Mapping[str, Any]] = {
    "BIGINT": pa.int64(),
    "BOOLEAN": pa.bool_(),
    "DATE": pa.date32(),
    "DOUBLE": pa.float64(),
    "TIMESTAMP": pa.timestamp("us"),
    "VARCHAR": pa.string(),
}


REPEATED_TEXT: Final = pa.dictionary(pa.int32(), pa.string())
"""Of text columns that are kept as dictionaries between one data file and another."""


def make_schema(columns: Mapping[str, str], *, repeated: Collection[str] = ()) -> Any:
    """Return the Arrow schema of columns with SQL types; ``repeated``: text that is kept as a dictionary."""
    return pa.schema(
        [(name, REPEATED_TEXT if name in repeated else ARROW_TYPES[kind]) for name, kind in columns.items()]
    )


def number_columns(columns: Mapping[str, str]) -> tuple[dict[str, str], Any]:
    """Return names of ours for columns with SQL types, ``c0``, ``c1``, …, and the Arrow schema under these."""
    names = {name: f"c{place}" for place, name in enumerate(columns)}
    return names, make_schema(dict(zip(names.values(), columns.values(), strict=True)))


def fit(rows: pa.RecordBatch, schema: Any) -> pa.RecordBatch:
    """Return rows with the names and types of a schema, column by column: Spark's timestamps have a zone, UTC."""
    arrays = [
        array if array.type == wanted.type else array.cast(wanted.type)
        for array, wanted in zip(rows.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def align(rows: pa.RecordBatch, schema: Any) -> pa.RecordBatch:
    """Return rows with all columns of a schema; NULL where they have no column of that name."""
    found = dict(zip(rows.schema.names, rows.columns, strict=True))
    arrays = [found[each.name] if each.name in found else pa.nulls(rows.num_rows, each.type) for each in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
