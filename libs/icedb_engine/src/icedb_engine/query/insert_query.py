"""An ``insert_query`` before it is used: what columns it gives, asked of Spark with no row at all."""

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from icedb_log.errors import InvalidRequest, Unavailable
from icedb_log.table.table_config import TableConfig
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import types as spark_types

from icedb_engine.limits import FlushUnitLimits
from icedb_engine.query.guarded_query import ReachesBeyond, run_query
from icedb_engine.query.query_types import ROWS_VIEW, SPARK_TYPES, read_output_columns
from icedb_engine.query.user_sql import check_user_sql
from icedb_engine.spark.spark_runner import summarize

_SQLSTATE: Final = re.compile(r"SQLSTATE: (?P<state>[0-9A-Z]{5})")
_CONDITION: Final = re.compile(r"(?s)\[[A-Z][A-Z0-9_.]+\].*?(?=\s*SQLSTATE: |\n|$)")
_QUERY_STATES: Final = ("0A", "21", "22", "42", "P0")
"""Classes of SQLSTATE that blame the query or the rows: unsupported, cardinality, data, names and syntax, raised."""
_SHOWN_CHARS: Final = 400
_OUT_OF_MEMORY: Final = "java.lang.OutOfMemoryError"

_view_lock = threading.RLock()
"""The view has one name in a session: one query at a time."""


class QueryProblem(Exception):
    """An ``insert_query`` cannot be run on certain rows. The message says why, in Spark's words or ours."""


def check_insert_query(spark: SparkSession, config: TableConfig) -> Mapping[str, str]:
    """Return the columns that a table's ``insert_query`` gives, with their types; they become declared columns.

    Nothing is written. The rows have the declared ``source`` columns; keys beyond them are not known here.

    Raises:
        InvalidRequest: No query, or one that this table cannot use, and why.
        Unavailable: Spark did not answer.
    """
    if config.insert_query is None:
        raise InvalidRequest(f"table {config.name} has no insert_query to check")
    if not config.source:
        raise InvalidRequest(
            f"table {config.name} has an insert_query and no source columns: declare what {ROWS_VIEW} has, "
            "so that the query can be checked"
        )
    check_user_sql(config.insert_query, view=ROWS_VIEW, what="insert_query")
    try:
        rows = spark.createDataFrame([], schema=make_spark_schema(config.source))
        with rows_view(rows), query_errors("a check of an insert_query"):
            result = run_query(spark, config.insert_query, view=ROWS_VIEW)
            columns = read_output_columns(
                result.schema,
                config,
                known=config.declared,
                max_columns=FlushUnitLimits().table_columns,
                widens=False,
            )
    except QueryProblem as problem:
        raise InvalidRequest(f"insert_query: {problem}") from problem
    return {column.name: column.sql_type for column in columns}


def make_spark_schema(types: Mapping[str, str]) -> Any:
    """Return Spark's schema of rows with these columns."""
    return spark_types.StructType([spark_types.StructField(name, SPARK_TYPES[kind]) for name, kind in types.items()])


@contextmanager
def rows_view(rows: Any, *, name: str = ROWS_VIEW) -> Iterator[None]:
    """Give rows the name that queries know them by. One at a time: others wait."""
    with _view_lock:
        rows.createOrReplaceTempView(name)
        try:
            yield
        finally:
            rows.sparkSession.catalog.dropTempView(name)


@contextmanager
def query_errors(what: str) -> Iterator[None]:
    """Tell errors that blame the query or its rows (QueryProblem) from those of Spark itself (Unavailable)."""
    try:
        yield
    except ReachesBeyond as error:
        raise QueryProblem(str(error)) from error
    except (PySparkException, Py4JError, OSError) as error:
        text = str(error)
        if _OUT_OF_MEMORY in text:
            raise QueryProblem(
                "it needs more memory than Spark has: let it make smaller values, or give Spark more "
                "(ICEDB_SPARK_MEMORY_MB)"
            ) from error
        state = _SQLSTATE.search(text)
        if state and state["state"].startswith(_QUERY_STATES):
            raise QueryProblem(_explain(text)) from error
        raise Unavailable(f"Spark lost {what}: {summarize(error)}") from error


def _explain(text: str) -> str:
    found = _CONDITION.search(text)
    message = found[0] if found else text
    return " ".join(message.split())[:_SHOWN_CHARS]
