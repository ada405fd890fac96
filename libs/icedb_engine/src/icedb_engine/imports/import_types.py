"""From Parquet types to SQL types, for files that are imported as they are.

A type is taken only if every engine reads it as the SQL type, or as a narrower one that loses nothing beside it:
``INT32`` beside ``BIGINT``, ``FLOAT`` beside ``DOUBLE``. So a table may have data files of both, and merges write the
table's type. What would have to be changed to fit is refused: timestamps of a time zone (beside our UTC timestamps
without one, engines would shift them by the session's zone), nanoseconds, decimals, nested columns, binary.
"""

import json
from typing import Any, Final

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
