"""Text of SQL, and what DuckDB says."""

import duckdb


def quote_name(name: str) -> str:
    """Return an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def quote_text(text: str) -> str:
    """Return an SQL string; of several where a NUL stands, which no literal can hold."""
    parts = ["'" + part.replace("'", "''") + "'" for part in text.split("\0")]
    return parts[0] if len(parts) == 1 else f"({' || chr(0) || '.join(parts)})"


def first_line(error: BaseException) -> str:
    """Return what DuckDB says, without the drawing of where."""
    return str(error).strip().partition("\n")[0]


def why_it_failed(error: BaseException) -> str:
    """Return why a query failed. What DuckDB has no class for comes from its Parquet reader, and names no file."""
    line = first_line(error)
    if type(error) is not duckdb.Error:
        return line
    return f"{line}: a data file may be damaged; `icedb fsck TABLE --pages` reads all bytes and names it"
