"""Conditions as callers write them: one SQL expression in DuckDB's dialect. Loads DuckDB."""

import duckdb
from icedb_log.errors import InvalidRequest
from icedb_log.texts import first_line, is_text


def check_condition(where: str) -> str:
    """Return a condition that is one SQL expression. Raises InvalidRequest."""
    if not is_text(where):
        raise InvalidRequest(f"where={where[:200]!r} has half a character (a lone surrogate): give text in UTF-8")
    try:
        duckdb.SQLExpression(where)
    except duckdb.Error as error:
        raise InvalidRequest(
            f"where={where[:200]!r} is not understood: {first_line(error)}; give one SQL condition in DuckDB's "
            "dialect, e.g. \"event = 'signup' AND amount >= 10\""
        ) from error
    return where
