"""SQL that changes the rows of a table, before it is used: a deletion's condition, and queries that make rows anew.

A condition is one Boolean expression over a row's columns. A query reads one view, and gives columns of the table with
the table's types; columns that partitions and sort order need must be among them, others that it leaves out are NULL
in the new rows. Both are analysed by Spark over no row at all, so that a mistake shows before anything is read.
"""

from collections.abc import Mapping
from typing import Any, Final

from icedb_log.errors import InvalidRequest
from icedb_log.jobs import ChangeKind, RowChange
from icedb_log.table.table_config import TableConfig
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf
from pyspark.sql import types as spark_types

from icedb_engine.limits import FlushUnitLimits
from icedb_engine.query.guarded_query import guard_condition, run_query
from icedb_engine.query.insert_query import QueryProblem, make_spark_schema, query_errors, rows_view
from icedb_engine.query.query_types import (
    ROWS_VIEW,
    SOURCE_FILES_VIEW,
    SPARK_TYPES,
    OutputColumn,
    read_output_columns,
)
from icedb_engine.query.user_sql import check_condition, check_user_sql

VIEWS: Final[Mapping[ChangeKind, str]] = {"rewrite": ROWS_VIEW, "merge_query": SOURCE_FILES_VIEW}
"""What a query of each kind reads."""
WORDS: Final[Mapping[ChangeKind, str]] = {
    "delete": "condition",
    "rewrite": "rewrite query",
    "merge_query": "merge_query",
}


def check_row_change(
    spark: SparkSession, config: TableConfig, schema: Mapping[str, str], change: RowChange
) -> tuple[OutputColumn, ...]:
    """Check a change against a table; nothing is read or written.

    Returns:
        The columns that a query gives; none for a deletion.

    Raises:
        InvalidRequest: The SQL is wrong, reaches beyond its view, drops a partition or sort column, adds a column, or
            changes a type.
        Unavailable: Spark did not answer.
    """
    _check_text(change)
    require_known_types(config, schema)
    what = f"table {config.name}: {WORDS[change.kind]}"
    try:
        rows = spark.createDataFrame([], schema=make_spark_schema(schema))
        with query_errors(f"a check of a {WORDS[change.kind]}"):
            if change.kind == "delete":
                is_gone = sf.expr(guard_condition(spark, change.sql))
                _check_boolean(rows.select(is_gone.alias("gone")))
                rows.where(is_gone).schema  # noqa: B018 - lets Spark analyse it
                return ()
            with rows_view(rows, name=VIEWS[change.kind]):
                result = run_query(spark, change.sql, view=VIEWS[change.kind])
                return read_change_columns(result, config, schema, change)
    except QueryProblem as problem:
        raise InvalidRequest(f"{what}: {problem}") from problem


def read_change_columns(
    result: Any, config: TableConfig, schema: Mapping[str, str], change: RowChange
) -> tuple[OutputColumn, ...]:
    """Check what a query of a change gives, and return its columns.

    Raises:
        InvalidRequest: Not the table's columns and types.
    """
    return read_output_columns(
        result.schema,
        config,
        known=schema,
        max_columns=max(len(schema), FlushUnitLimits().table_columns),
        widens=True,
        what=WORDS[change.kind],
        is_closed=True,
    )


def find_used_columns(change: RowChange, schema: Mapping[str, str]) -> dict[str, str]:
    """Return the table's columns that a deletion's condition names, with types. Raises InvalidRequest."""
    named = check_condition(change.sql, what=WORDS["delete"])
    return {name: sql_type for name, sql_type in schema.items() if name.lower() in named}


def require_known_types(config: TableConfig, schema: Mapping[str, str]) -> None:
    """Raise InvalidRequest for a table with a column of a type that Spark SQL would not get unchanged."""
    for name, sql_type in schema.items():
        if sql_type not in SPARK_TYPES:
            raise InvalidRequest(
                f"table {config.name}: column {name!r} is {sql_type}, and rows can only be changed by SQL in a table "
                f"whose columns are {', '.join(sorted(SPARK_TYPES))}"
            )


def check_merge_query(spark: SparkSession, config: TableConfig, schema: Mapping[str, str]) -> None:
    """Check a table's ``merge_query`` before the table gets it; nothing is read or written.

    Args:
        spark: The session.
        config: The configuration that the table will have.
        schema: Columns that the log has already, if the table exists; declared ones come on top.

    Raises:
        InvalidRequest: No query, one that does not fit, or types that must be known for that are not declared.
        Unavailable: Spark did not answer.
    """
    if config.merge_query is None:
        raise InvalidRequest(f"table {config.name} has no merge_query to check")
    known = {**config.declared, **schema}
    for column in dict.fromkeys((*(field.column for field in config.partition), *config.sort)):
        if column not in known:
            raise InvalidRequest(
                f"table {config.name}: a merge_query can only be checked if the type of column {column!r}, by which "
                f"data files are laid out, is known: declare it (--column {column}:TYPE), and every other one that "
                "the query names"
            )
    check_row_change(spark, config, known, RowChange("merge_query", config.merge_query))


def _check_text(change: RowChange) -> None:
    what = WORDS[change.kind]
    if change.kind == "delete":
        check_condition(change.sql, what=what)
    else:
        check_user_sql(change.sql, view=VIEWS[change.kind], what=what, is_repeatable=True)


def _check_boolean(frame: Any) -> None:
    found = frame.schema.fields[0].dataType
    if not isinstance(found, spark_types.BooleanType):
        raise InvalidRequest(f"the condition is {found.simpleString().upper()}, not BOOLEAN: write a comparison")
