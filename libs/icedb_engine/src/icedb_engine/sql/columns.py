"""What a query of a user gives: which of DuckDB's types become which of ours, and which columns a table can have."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from icedb_log.errors import InvalidRequest
from icedb_log.table.column_names import ColumnNames
from icedb_log.table.decimals import find_decimal
from icedb_log.table.file_domains import EXACT_DOUBLE_MAX
from icedb_log.table.table_config import TableConfig
from icedb_log.table.transforms import find_type_problem

from icedb_engine.limits import FlushUnitLimits
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
_INTEGERS: Final = _SAFE_INTEGERS | _WIDE_INTEGERS | {"BIGINT"}
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
        elif stored == "DOUBLE" and find_decimal(self.found_type):
            return f"CAST(CAST({value} AS VARCHAR) AS DOUBLE) AS {value}"  # by its text: the nearest one
        elif find_decimal(self.found_type) or self.found_type in _WIDE_INTEGERS or find_decimal(stored):
            fits = f"TRY_CAST(TRY_CAST({value} AS {stored}) AS {self.found_type}) = {value}"
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
    digits = find_decimal(found_type)
    return found_type == "BIGINT" or found_type in _WIDE_INTEGERS or (digits is not None and digits.scale == 0)


@dataclass(frozen=True, slots=True)
class OutputRules:
    """Which columns a query may give.

    Attributes:
        config: Configuration of the table that gets them.
        known: Its columns whose type is fixed.
        what: What the query is, for messages.
        max_columns: Most columns of the table.
        widens: Whether a BIGINT may go into a known DOUBLE, and a DATE into a known TIMESTAMP.
        is_closed: Whether the known columns are all that there are: no other may be given, and what partitions and
            sort order need must be given if it is among them. Promoted ones among them are made anew: what is given
            of them is left out.
    """

    config: TableConfig
    known: Mapping[str, str]
    what: str = INSERT_QUERY
    max_columns: int = FlushUnitLimits().table_columns
    widens: bool = True
    is_closed: bool = False

    def read(self, found: Sequence[tuple[str, str]]) -> tuple[OutputColumn, ...]:
        """Check the columns of a query's result: name and DuckDB's type of each.

        Raises:
            InvalidRequest: With the first thing that is wrong, and what to write instead.
        """
        columns: list[OutputColumn] = []
        names = ColumnNames(self.config, self.known)
        seen: set[str] = set()
        for name, found_type in found:
            problem = names.find_problem(name)
            if problem is not None and not (self.is_closed and name in names):
                raise InvalidRequest(
                    f"the {self.what} gives a column without a usable name ({problem}): write … AS name"
                )
            gives = f"the {self.what} gives column {name!r}"
            if name.lower() in seen:
                raise InvalidRequest(f"{gives} twice (case does not count): rename one")
            seen.add(name.lower())
            if self.is_closed and name not in names:
                raise InvalidRequest(
                    f"{gives}, which the table does not have: it has {_list(self.known)}; name the "
                    "one that is meant (… AS name), or leave it out"
                )
            known = names.add(name)
            if known != name:
                raise InvalidRequest(
                    f"{gives}, and the table has {known!r}: "
                    "query engines cannot tell them apart; use the table's spelling"
                )
            columns.append(self._read_type(name, found_type))
        if len(names) > self.max_columns:
            raise InvalidRequest(
                f"with the {self.what} the table would have {len(names)} columns, {self.max_columns} at most"
            )
        columns = [column for column in columns if column.name not in self.config.promoted]
        types = {column.name: column.sql_type for column in columns}
        self._check_needed({**types, **self.config.find_promoted(types)})
        return tuple(columns)

    def _read_type(self, name: str, found_type: str) -> OutputColumn:
        if found_type in _UNTYPED and name in self.known:
            return OutputColumn(name, found_type, self.known[name])  # NULL is of every type
        made_type = find_sql_type(name, found_type, what=self.what)
        sql_type = self.known.get(name, made_type)
        is_number = (sql_type in ("BIGINT", "DOUBLE") or find_decimal(sql_type) is not None) and (
            found_type in _INTEGERS or find_decimal(found_type) is not None
        )  # of these each value is looked at, unless all fit
        if made_type != sql_type and not is_number and not (self.widens and (made_type, sql_type) in _COERCIONS):
            raise InvalidRequest(
                f"the {self.what} gives column {name!r} as {made_type}, and the table has {sql_type}: "
                f"write CAST(… AS {sql_type}) AS {name}"
            )
        return OutputColumn(name, found_type, sql_type)

    def _check_needed(self, types: Mapping[str, str]) -> None:
        """See that what partitions and sort order need is there; of a table that is known, only what it has itself."""
        drops = f"the {self.what} drops column"
        for field in self.config.partition:
            if field.column not in types:
                if self._needs(field.column):
                    name = self._find_source(field.column)
                    raise InvalidRequest(f"{drops} {name!r}, which partition {field} needs: select it")
                continue
            problem = find_type_problem(field, types[field.column])
            if problem:
                raise InvalidRequest(f"with the {self.what} {problem}")
        for column in self.config.sort:
            if column not in types and self._needs(column):
                name = self._find_source(column)
                raise InvalidRequest(f"{drops} {name!r}, which the table is sorted by: select it")

    def _find_source(self, column: str) -> str:
        """Return the column that a query has to give for one of the table: of a promoted one that of its text."""
        return self.config.promoted.get(column, (column,))[0]

    def _needs(self, column: str) -> bool:
        return not self.is_closed or column in self.known


def find_sql_type(name: str, found_type: str, *, what: str = INSERT_QUERY) -> str:
    """Return our type for one of DuckDB's. Raises InvalidRequest with the cast that the query needs."""
    if find_decimal(found_type) is not None:
        return found_type
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
