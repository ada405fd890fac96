"""Text of SQL, and what DuckDB says."""


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
