"""Quoting for the SQL that is handed to DuckDB: names and literals come from users' data."""

from collections.abc import Collection, Mapping
from typing import Any, Final

import duckdb
from icedb_log.texts import quote_name, quote_text

__all__ = ["CLOSED", "among", "open_closed", "quote_name", "quote_text", "sort_sql"]

CLOSED: Final[Mapping[str, str]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "lock_configuration": "true",
}
"""Configuration of a DuckDB that can open nothing: no file, no address, no extension, and no way to change that."""


def open_closed() -> Any:
    """Return a DuckDB of one thread with this configuration, for a ``with`` block; its moments are text in UTC."""
    engine: Any = duckdb.connect(config={"threads": 1})
    engine.execute("SET TimeZone = 'UTC'")
    for name, value in CLOSED.items():  # the lock is the last of them
        engine.execute(f"SET {name} = {value}")
    return engine


def sort_sql(column: str, sql_type: str) -> str:
    """Return by what rows are sorted for a column, nulls last.

    DuckDB gives a column back as it compares it, where it sorts by the column itself: -0.0 would be 0.0.
    """
    return f"{f'CASE WHEN {column} = 0 THEN 0 ELSE {column} END' if sql_type == 'DOUBLE' else column} NULLS LAST"


def among(batches: Collection[int]) -> str:
    """Return the condition that a row is of one of some batches, each named once."""
    if not batches:
        return "false"
    first, last = min(batches), max(batches)
    if last - first + 1 == len(batches):  # mostly all of thousands: a long list takes longer to read than the rows
        return f"batch BETWEEN {first} AND {last}"
    return f"batch IN ({', '.join(map(str, batches))})"
