"""What DuckDB says."""

import duckdb


def first_line(error: BaseException) -> str:
    """Return what DuckDB says, without the drawing of where."""
    return str(error).strip().partition("\n")[0]


def why_it_failed(error: BaseException) -> str:
    """Return why a query failed. What DuckDB has no class for comes from its Parquet reader, and names no file."""
    line = first_line(error)
    if type(error) is not duckdb.Error:
        return line
    return f"{line}: a data file may be damaged; `icedb fsck TABLE --pages` reads all bytes and names it"
