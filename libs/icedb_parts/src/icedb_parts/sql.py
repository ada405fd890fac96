"""Quoting for the SQL that is handed to DuckDB: names and literals come from users' data."""

from collections.abc import Collection


def quote_name(name: str) -> str:
    """Return ``name`` as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def quote_text(text: str) -> str:
    """Return ``text`` as an SQL string literal."""
    return "'" + text.replace("'", "''") + "'"


def among(batches: Collection[int]) -> str:
    """Return the condition that a row is of one of some batches."""
    return f"batch IN ({', '.join(str(batch) for batch in batches)})" if batches else "false"
