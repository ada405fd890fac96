"""What a query of a user gives: which of DuckDB's types become which of ours, and which columns a table can have."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from icedb_log.errors import InvalidRequest
from icedb_log.table.table_config import TableConfig, check_column_name
from icedb_log.table.transforms import find_type_problem

from icedb_engine.reading.types import EXACT_DOUBLE_MAX
from icedb_engine.sql.quoting import quote_name, quote_text

ROWS_VIEW: Final = "_rows"
SOURCE_FILES_VIEW: Final = "source_files"
"""What a ``merge_query`` reads."""
INSERT_QUERY: Final = "insert_query"

_SQL_TYPES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER"), "BIGINT"),
    **dict.fromkeys(("UBIGINT", "HUGEINT", "UHUGEINT"), "BIGINT"),
    **dict.fromkeys(("FLOAT", "DOUBLE"), "DOUBLE"),
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP WITH TIME ZONE"), "TIMESTAMP"),
    **dict.fromkeys(("VARCHAR", "JSON"), "VARCHAR"),
    "BOOLEAN": "BOOLEAN",
    "DATE": "DATE",
}
_SAFE_INTEGERS: Final = frozenset({"TINYINT", "SMALLINT", "INTEGER", "UTINYINT", "USMALLINT", "UINTEGER"})
"""Every value of them fits into a BIGINT and a DOUBLE."""
_WIDE_INTEGERS: Final = frozenset({"UBIGINT", "HUGEINT", "UHUGEINT"})
_DECIMAL: Final = re.compile(r"DECIMAL\((\d+),(\d+)\)")
_NESTED: Final = re.compile(r"(STRUCT|MAP|UNION|VARIANT)\b.*|.*\[\d*\]")
_UNTYPED: Final = ("NULL", '"NULL"', "UNKNOWN")
_SHOWN_CHARS: Final = 300
_COERCIONS: Final = {("BIGINT", "DOUBLE"), ("DATE", "TIMESTAMP")}


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """A column of a query's result.

    Attributes:
        name: Its name.
        found_type: DuckDB's type of what the query gives.
        sql_type: SQL type that the table stores.
    """

    name: str
    found_type: str
    sql_type: str

    @property
    def expression(self) -> str:
        """The column as the table stores it; a value that does not fit is an error that names the column."""
        value, stored = quote_name(self.name), self.sql_type
        cast = f"CAST({value} AS {stored})"
        if stored == "DOUBLE" and _is_whole(self.found_type):
            fits = f"{value} BETWEEN -{EXACT_DOUBLE_MAX} AND {EXACT_DOUBLE_MAX}"
        elif _DECIMAL.fullmatch(self.found_type) or self.found_type in _WIDE_INTEGERS:
            fits = f"CAST(TRY_CAST({value} AS {stored}) AS {self.found_type}) = {value}"
        else:
            return f"{cast} AS {value}"
        what = f"column {self.name} is {stored}, which cannot hold this {self.found_type} exactly"
        what += "; integers beyond 2^53 lose digits: " if stored == "DOUBLE" and _is_whole(self.found_type) else ": "
        problem = quote_text(what)
        lost = f"error({problem} || CAST({value} AS VARCHAR))"
        tried = f"TRY_CAST({value} AS {stored})"
        return (
            f"CASE WHEN {value} IS NULL THEN NULL WHEN coalesce({fits}, false) THEN {tried} ELSE {lost} END AS {value}"
        )


def _is_whole(found_type: str) -> bool:
    decimal = _DECIMAL.fullmatch(found_type)
    return found_type == "BIGINT" or found_type in _WIDE_INTEGERS or (decimal is not None and decimal[2] == "0")


def read_output_columns(
    found: Sequence[tuple[str, str]],
    config: TableConfig,
    *,
    known: Mapping[str, str],
    max_columns: int,
    widens: bool,
    what: str = INSERT_QUERY,
    is_closed: bool = False,
) -> tuple[OutputColumn, ...]:
    """Check the columns of a query's result against a table.

    Args:
        found: Name and DuckDB's type of each column of the result.
        config: Configuration of the table.
        known: Columns whose type is fixed.
        max_columns: Most columns of a table.
        widens: Whether a BIGINT may go into a known DOUBLE, and a DATE into a known TIMESTAMP.
        what: What the query is, for messages.
        is_closed: Whether the known columns are all that there are: no other may be given, and what partitions and
            sort order need must be given if it is among them.

    Raises:
        InvalidRequest: With the first thing that is wrong, and what to write instead.
    """
    columns: list[OutputColumn] = []
    spelling = {name.lower(): name for name in known}
    seen: set[str] = set()
    reserved = {field.name.lower(): field for field in config.partition if field.name != field.column}
    for found_name, found_type in found:
        name = _check_name(found_name, what)
        if name.lower() in seen:
            raise InvalidRequest(f"the {what} gives column {name!r} twice (case does not count): rename one")
        seen.add(name.lower())
        if is_closed and name.lower() not in spelling:
            raise InvalidRequest(
                f"the {what} gives column {name!r}, which the table does not have: it has {_list(known)}; name the "
                "one that is meant (… AS name), or leave it out"
            )
        if spelling.setdefault(name.lower(), name) != name:
            raise InvalidRequest(
                f"the {what} gives column {name!r}, and the table has {spelling[name.lower()]!r}: "
                "query engines cannot tell them apart; use the table's spelling"
            )
        if not is_closed and name.lower() in reserved:
            raise InvalidRequest(
                f"the {what} gives column {name!r}, which is named like the partition {reserved[name.lower()]}: "
                "readers of Hive partitions would take one for the other; rename the column"
            )
        columns.append(_read_type(name, found_type, known, widens=widens, what=what))
    if len(spelling) > max_columns:
        raise InvalidRequest(f"with the {what} the table would have {len(spelling)} columns, {max_columns} at most")
    _check_needed({column.name: column.sql_type for column in columns}, config, known if is_closed else None, what)
    return tuple(columns)


def _read_type(name: str, found_type: str, known: Mapping[str, str], *, widens: bool, what: str) -> OutputColumn:
    if found_type in _UNTYPED and name in known:
        return OutputColumn(name, found_type, known[name])  # NULL is of every type
    made_type = find_sql_type(name, found_type, what=what)
    sql_type = known.get(name, made_type)
    is_number = sql_type in ("BIGINT", "DOUBLE") and (
        found_type in _SAFE_INTEGERS | _WIDE_INTEGERS or _DECIMAL.fullmatch(found_type) is not None
    )  # of these each value is looked at, unless all fit
    if made_type != sql_type and not is_number and not (widens and (made_type, sql_type) in _COERCIONS):
        raise InvalidRequest(
            f"the {what} gives column {name!r} as {made_type}, and the table has {sql_type}: "
            f"write CAST(… AS {sql_type}) AS {name}"
        )
    return OutputColumn(name, found_type, sql_type)


def find_sql_type(name: str, found_type: str, *, what: str = INSERT_QUERY) -> str:
    """Return our type for one of DuckDB's. Raises InvalidRequest with the cast that the query needs."""
    decimal = _DECIMAL.fullmatch(found_type)
    if decimal is not None:
        return "BIGINT" if decimal[2] == "0" else "DOUBLE"
    if found_type in _SQL_TYPES:
        return _SQL_TYPES[found_type]
    if found_type.startswith("ENUM("):
        return "VARCHAR"
    if found_type in _UNTYPED:
        raise InvalidRequest(f"the {what} gives column {name!r} no type: write CAST(NULL AS …) AS {name}")
    found = f"the {what} gives column {name!r} as {found_type[:80]}"
    if _NESTED.fullmatch(found_type):
        raise InvalidRequest(f"{found}: write to_json(…) AS {name}, or take its fields as columns of their own")
    raise InvalidRequest(f"{found}, which a table cannot hold: write CAST(… AS VARCHAR) AS {name}")


def _list(names: Iterable[str]) -> str:
    text = ", ".join(names)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}…"


def _check_name(name: str, what: str) -> str:
    try:
        return check_column_name(name)
    except ValueError as error:
        raise InvalidRequest(f"the {what} gives a column without a usable name ({error}): write … AS name") from error


def _check_needed(types: Mapping[str, str], config: TableConfig, known: Mapping[str, str] | None, what: str) -> None:
    """See that what partitions and sort order need is there; of a table that is known, only what it has itself."""
    for field in config.partition:
        if field.column not in types:
            if known is not None and field.column not in known:
                continue
            raise InvalidRequest(f"the {what} drops column {field.column!r}, which partition {field} needs: select it")
        problem = find_type_problem(field, types[field.column])
        if problem:
            raise InvalidRequest(f"with the {what} {problem}")
    for column in config.sort:
        if column not in types and (known is None or column in known):
            raise InvalidRequest(f"the {what} drops column {column!r}, which the table is sorted by: select it")
