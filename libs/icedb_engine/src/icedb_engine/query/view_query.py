"""A ``view_query`` before it is used: what columns it gives, asked of Spark with no row at all."""

from collections.abc import Mapping
from typing import Final

from icedb_log.errors import InvalidRequest
from icedb_log.table.table_config import TableConfig
from pyspark.sql import SparkSession

from icedb_engine.limits import FlushUnitLimits
from icedb_engine.query.guarded_query import run_query
from icedb_engine.query.insert_query import QueryProblem, make_spark_schema, query_errors, rows_view
from icedb_engine.query.query_types import ROWS_VIEW, read_output_columns
from icedb_engine.query.user_sql import check_user_sql

VIEW_QUERY: Final = "view_query"


def check_view_query(spark: SparkSession, config: TableConfig, source_schema: Mapping[str, str]) -> Mapping[str, str]:
    """Return the columns that a view's query gives, with their types; they become declared columns of the view.

    Nothing is written. The rows have the columns that the source has now.

    Args:
        spark: The session.
        config: The whole configuration of the view.
        source_schema: Column to SQL type of the source, logged and declared.

    Raises:
        InvalidRequest: No view, or a query that it cannot use, and why.
        Unavailable: Spark did not answer.
    """
    if config.view_query is None:
        raise InvalidRequest(f"table {config.name} has no {VIEW_QUERY} to check")
    if not source_schema:
        raise InvalidRequest(
            f"table {config.view_of} has no columns yet, so that a query over them cannot be checked: declare those "
            "that the view needs (icedb table alter --column NAME:TYPE), or send first events"
        )
    check_user_sql(config.view_query, view=ROWS_VIEW, what=VIEW_QUERY)
    try:
        rows = spark.createDataFrame([], schema=make_spark_schema(source_schema))
        with rows_view(rows), query_errors(f"a check of a {VIEW_QUERY}"):
            result = run_query(spark, config.view_query, view=ROWS_VIEW)
            columns = read_output_columns(
                result.schema,
                config,
                known=config.declared,
                max_columns=FlushUnitLimits().table_columns,
                widens=True,
                what=VIEW_QUERY,
            )
    except QueryProblem as problem:
        raise InvalidRequest(f"{VIEW_QUERY}: {problem}") from problem
    return {column.name: column.sql_type for column in columns}
