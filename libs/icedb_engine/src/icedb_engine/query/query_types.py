"""What a user's query gives: which of Spark's types become which of ours, and which columns a table can have."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from icedb_log.errors import InvalidRequest
from icedb_log.table.table_config import TableConfig, check_column_name
from icedb_log.table.transforms import find_type_problem
from pyspark.sql import functions as sf
from pyspark.sql import types as spark_types

from icedb_engine.reading.types import EXACT_DOUBLE_MAX

ROWS_VIEW: Final = "_rows"
SOURCE_FILES_VIEW: Final = "source_files"
"""What a ``merge_query`` reads."""

INSERT_QUERY: Final = "insert_query"
SPARK_TYPES: Final[Mapping[str, Any]] = {
    "BIGINT": spark_types.LongType(),
    "BOOLEAN": spark_types.BooleanType(),
    "DATE": spark_types.DateType(),
    "DOUBLE": spark_types.DoubleType(),
    "TIMESTAMP": spark_types.TimestampType(),
    "VARCHAR": spark_types.StringType(),
}
"""The Spark type of each of ours. Sessions run in UTC: a Spark TIMESTAMP is our UTC TIMESTAMP."""

_SQL_TYPES: Final[Mapping[str, str]] = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), "BIGINT"),
    **dict.fromkeys(("float", "double"), "DOUBLE"),
    **dict.fromkeys(("timestamp", "timestamp_ntz"), "TIMESTAMP"),
    "boolean": "BOOLEAN",
    "date": "DATE",
}
_TEXT: Final = re.compile(r"(string|char|varchar)\b.*")
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
_NESTED: Final = re.compile(r"(struct|array|map|variant)\b.*")
_EXACT_BIGINT_DIGITS: Final = 18
_EXACT_DOUBLE_DIGITS: Final = 15
"""A decimal of so many digits reads back the same from a DOUBLE."""
_SHOWN_CHARS: Final = 300
_COERCIONS: Final = {("BIGINT", "DOUBLE"), ("DATE", "TIMESTAMP")}


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """A column of a query's result.

    Attributes:
        name: Its name.
        found_type: SQL type of what the query gives.
        sql_type: SQL type that the table stores; wider where the table has it so.
    """

    name: str
    found_type: str
    sql_type: str


def read_output_columns(
    schema: Any,
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
        schema: Spark's schema of the result.
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
    for field in schema.fields:
        name = _check_name(field.name, what)
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
        columns.append(_read_type(name, field.dataType.simpleString(), known, widens=widens, what=what))
    if len(spelling) > max_columns:
        raise InvalidRequest(f"with the {what} the table would have {len(spelling)} columns, {max_columns} at most")
    _check_needed({column.name: column.sql_type for column in columns}, config, known if is_closed else None, what)
    return tuple(columns)


def _read_type(name: str, spark_type: str, known: Mapping[str, str], *, widens: bool, what: str) -> OutputColumn:
    if spark_type == "void" and name in known:
        return OutputColumn(name, known[name], known[name])  # NULL is of every type
    found_type = find_sql_type(name, spark_type, what=what)
    sql_type = known.get(name, found_type)
    if found_type != sql_type and not (widens and (found_type, sql_type) in _COERCIONS):
        raise InvalidRequest(
            f"the {what} gives column {name!r} as {found_type}, and the table has {sql_type}: "
            f"write CAST(… AS {SPARK_TYPES[sql_type].simpleString().upper()}) AS {name}"
        )
    return OutputColumn(name, found_type, sql_type)


def store_column(column: OutputColumn, *, alias: str | None = None) -> Any:
    """Return a column of a query's result as the table stores it; an integer that a DOUBLE cannot hold is an error.

    Args:
        column: Which.
        alias: Another name for it.
    """
    value: Any = sf.col(quote_spark(column.name))
    if (column.found_type, column.sql_type) == ("BIGINT", "DOUBLE"):
        whole = value.cast(SPARK_TYPES["BIGINT"])
        problem = sf.raise_error(sf.lit(f"column {column.name} is DOUBLE; integers beyond 2^53 lose digits"))
        fits = whole.isNull() | whole.between(-EXACT_DOUBLE_MAX, EXACT_DOUBLE_MAX)
        value = sf.when(fits, whole).otherwise(problem.cast(SPARK_TYPES["BIGINT"]))
    return value.cast(SPARK_TYPES[column.sql_type]).alias(alias or column.name)


def quote_spark(name: str) -> str:
    """Return a column's name as Spark SQL takes it, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def find_sql_type(name: str, spark_type: str, *, what: str = INSERT_QUERY) -> str:
    """Return our type for one of Spark's. Raises InvalidRequest with the cast that the query needs."""
    if spark_type in _SQL_TYPES:
        return _SQL_TYPES[spark_type]
    if _TEXT.fullmatch(spark_type):
        return "VARCHAR"
    found = f"the {what} gives column {name!r} as {spark_type.upper()[:80]}"
    decimal = _DECIMAL.fullmatch(spark_type)
    if decimal:
        precision, scale = int(decimal[1]), int(decimal[2])
        if scale == 0 and precision <= _EXACT_BIGINT_DIGITS:
            return "BIGINT"
        if precision <= _EXACT_DOUBLE_DIGITS:
            return "DOUBLE"
        raise InvalidRequest(
            f"{found}, of which a DOUBLE would lose digits: write CAST(… AS DOUBLE) or CAST(… AS STRING) AS {name}"
        )
    if _NESTED.fullmatch(spark_type):
        raise InvalidRequest(f"{found}: write to_json(…) AS {name}, or take its fields as columns of their own")
    if spark_type == "void":
        raise InvalidRequest(f"the {what} gives column {name!r} no type: write CAST(NULL AS …) AS {name}")
    raise InvalidRequest(f"{found}, which a table cannot hold: write CAST(… AS STRING) AS {name}")


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
