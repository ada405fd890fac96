"""Whether a condition that a user gave is one: a single SQL condition over the columns of a table. Pure.

Pruning itself keeps all files where it does not understand a condition. That is right for safety and wrong for people:
a misspelt column would read the whole table. So what users give is checked first, and refused with what is known.
"""

from collections.abc import Mapping
from typing import Any, Final

from sqlglot import exp
from sqlglot.errors import SqlglotError

from icedb_log.errors import InvalidRequest
from icedb_log.table.bounded_parser import MAX_CONDITION_CHARS, TooMuchWork, parse_condition
from icedb_log.texts import is_text

_MAX_NAMED_COLUMNS: Final = 50
_SHOWN_CHARS: Final = 120
_EXAMPLE: Final = "for example event = 'signup' and amount >= 10"

_REFUSED: Final[tuple[tuple[tuple[type, ...], str], ...]] = (
    ((exp.Query, exp.Subquery, exp.Exists, exp.Table, exp.From), "a subquery"),
    ((exp.AggFunc,), "an aggregate"),
    ((exp.Window,), "a window function"),
    ((exp.Placeholder, exp.Parameter), "a parameter"),
    ((exp.Star,), "a star"),
    ((exp.DDL, exp.DML, exp.Command), "a statement"),
)
_OF_THE_ENGINE: Final = frozenset(
    {"current_setting", "getvariable", "getenv", "nextval", "currval", "current_database", "current_schemas", "version"}
)
"""Functions that say nothing of a row, but of the engine and the machine that evaluate the condition."""


def check_condition(condition: str, schema: Mapping[str, str], *, table: str) -> None:
    """Return if a text is one condition over columns that are there.

    Args:
        condition: SQL in DuckDB's dialect, without ``WHERE``.
        schema: The table's columns. Names compare without regard to case, as in DuckDB.
        table: Its name, for messages.

    Raises:
        InvalidRequest: It is not: names what, where, and the columns that are known.
    """
    where = f"table {table}: where={condition[:_SHOWN_CHARS]!r}"
    if not condition.strip():
        raise InvalidRequest(f"{where} is empty: leave it out, or give a condition, {_EXAMPLE}")
    if not is_text(condition):
        raise InvalidRequest(f"{where} has a character that is half of one (a lone surrogate): send text in UTF-8")
    if len(condition) > MAX_CONDITION_CHARS:
        raise InvalidRequest(f"{where}… has {len(condition)} characters; at most {MAX_CONDITION_CHARS}")
    tree = _parse(condition, where)
    for node in tree.walk():
        for kinds, what in _REFUSED:
            if isinstance(node, kinds):
                raise InvalidRequest(
                    f"{where} has {what} in it ({_show(node)}): give one condition over the columns of the table, "
                    f"{_EXAMPLE}"
                )
        if isinstance(node, exp.Anonymous) and node.name.lower() in _OF_THE_ENGINE:
            raise InvalidRequest(f"{where} asks the engine ({_show(node)}), not the row: write the value itself")
    _check_columns(tree, schema, where)


def _parse(condition: str, where: str) -> Any:
    several = f"{where} has a semicolon, or more than one statement: give one condition, {_EXAMPLE}"
    try:
        parts = parse_condition(condition)
    except SqlglotError as error:
        raise InvalidRequest(f"{where} is not understood{_place(error)}: give one SQL condition, {_EXAMPLE}") from error
    except TooMuchWork:
        raise InvalidRequest(f"{where} is nested too deeply; write it flatter, e.g. with IN") from None
    if len(parts) != 1 or parts[0] is None:
        raise InvalidRequest(several)
    return parts[0]


def _check_columns(tree: Any, schema: Mapping[str, str], where: str) -> None:
    known = {column.lower() for column in schema}
    for column in tree.find_all(exp.Column):
        if column.table:
            raise InvalidRequest(f"{where}: write {column.name!r} without {column.table!r} before it")
        if column.name.lower() not in known:
            names = sorted(schema)
            shown = ", ".join(names[:_MAX_NAMED_COLUMNS]) or "none yet: nothing was committed, and none is declared"
            more = f" and {len(names) - _MAX_NAMED_COLUMNS} more" if len(names) > _MAX_NAMED_COLUMNS else ""
            raise InvalidRequest(
                f"{where}: no column {column.name[:80]!r}; the columns are {shown}{more}. Text stands in single quotes"
            )


def _place(error: SqlglotError) -> str:
    details: list[dict[str, Any]] = getattr(error, "errors", None) or []
    if not details:
        return ""
    first = details[0]
    near = first.get("highlight")
    place = f" at line {first.get('line')}, character {first.get('col')}" if first.get("line") else ""
    return f"{place}, near {str(near)[:40]!r}" if near else place


def _show(node: Any) -> str:
    return str(node.sql(dialect="duckdb"))[:_SHOWN_CHARS]
