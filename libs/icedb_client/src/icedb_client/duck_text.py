"""Text of SQL, and what DuckDB says."""


def quote_name(name: str) -> str:
    """Return an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def quote_text(text: str) -> str:
    """Return an SQL string."""
    return "'" + text.replace("'", "''") + "'"


def first_line(error: BaseException) -> str:
    """Return what DuckDB says, without the drawing of where."""
    return str(error).strip().partition("\n")[0]
