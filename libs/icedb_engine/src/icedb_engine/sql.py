"""Quoting for the SQL that is handed to DuckDB: names and literals come from users' data."""

from collections.abc import Collection, Mapping
from typing import Final

CLOSED: Final[Mapping[str, str]] = {
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "lock_configuration": "true",
}
"""Configuration of a DuckDB that can open nothing: no file, no address, no extension, and no way to change that."""


def quote_name(name: str) -> str:
    """Return ``name`` as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def quote_text(text: str) -> str:
    """Return ``text`` as SQL: a string literal, or several where a NUL stands, which no literal can hold."""
    parts = ["'" + part.replace("'", "''") + "'" for part in text.split("\0")]
    return parts[0] if len(parts) == 1 else f"({' || chr(0) || '.join(parts)})"


def among(batches: Collection[int]) -> str:
    """Return the condition that a row is of one of some batches."""
    return f"batch IN ({', '.join(str(batch) for batch in batches)})" if batches else "false"
