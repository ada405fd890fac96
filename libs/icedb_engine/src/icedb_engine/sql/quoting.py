"""Quoting for the SQL that is handed to DuckDB: names and literals come from users' data."""

from collections.abc import Collection, Mapping
from typing import Final

from icedb_log.texts import quote_name, quote_text

__all__ = ["CLOSED", "among", "quote_name", "quote_text"]

CLOSED: Final[Mapping[str, str]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "lock_configuration": "true",
}
"""Configuration of a DuckDB that can open nothing: no file, no address, no extension, and no way to change that."""


def among(batches: Collection[int]) -> str:
    """Return the condition that a row is of one of some batches, each named once."""
    if not batches:
        return "false"
    first, last = min(batches), max(batches)
    if last - first + 1 == len(batches):  # mostly all of thousands: a long list takes longer to read than the rows
        return f"batch BETWEEN {first} AND {last}"
    return f"batch IN ({', '.join(map(str, batches))})"
