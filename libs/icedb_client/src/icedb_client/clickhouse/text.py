"""How ClickHouse writes names, text, and the types of our columns. Pure."""

import re
from typing import Final

from icedb_log.errors import InvalidRequest

_TYPES: Final = {
    "VARCHAR": "String",
    "BIGINT": "Int64",
    "DOUBLE": "Float64",
    "BOOLEAN": "Bool",
    "DATE": "Date32",
    "TIMESTAMP": "DateTime64(6, 'UTC')",
    # What other writers of the log format have.
    "TINYINT": "Int8",
    "SMALLINT": "Int16",
    "INTEGER": "Int32",
    "UTINYINT": "UInt8",
    "USMALLINT": "UInt16",
    "UINTEGER": "UInt32",
    "UBIGINT": "UInt64",
    "FLOAT": "Float32",
    "BLOB": "String",
    "TIMESTAMP WITH TIME ZONE": "DateTime64(6, 'UTC')",
}
_DECIMAL: Final = re.compile(r"DECIMAL\((\d{1,2}), ?(\d{1,2})\)")


def quote_name(name: str) -> str:
    """Return an identifier."""
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def quote_text(text: str) -> str:
    """Return a string literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def clickhouse_type(table: str, column: str, sql_type: str) -> str:
    """Return the type of a column, nullable.

    Raises:
        InvalidRequest: A type that has no counterpart here.
    """
    decimal = _DECIMAL.fullmatch(sql_type)
    found = f"Decimal({decimal[1]}, {decimal[2]})" if decimal else _TYPES.get(sql_type)
    if found is None:
        raise InvalidRequest(
            f"table {table}: column {column!r} has the type {sql_type[:80]}, which has no ClickHouse type here; "
            "list the files with --format paths and write the query by hand"
        )
    return f"Nullable({found})"
