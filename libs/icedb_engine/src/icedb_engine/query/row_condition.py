"""The check of a condition that chooses rows in tasks: DuckDB's SQL, over the columns of one row, nothing more.

Two looks, before any task sees it. Its tree must hold no query, aggregate, window or parameter, so that it can reach no
file, table or other row (:mod:`icedb_log.table.condition_check`); and DuckDB has to bind it to the columns, on a
connection that can open nothing. The connections of tasks can open nothing but their own scratch folder either,
whatever this check thought of it.
"""

from collections.abc import Mapping

import duckdb
from icedb_log.errors import InvalidRequest
from icedb_log.table.condition_check import check_condition

from icedb_engine.sql import CLOSED, quote_name


def check_row_condition(condition: str, schema: Mapping[str, str], *, table: str) -> None:
    """Check that a text is one condition over the columns of a row.

    Args:
        condition: DuckDB's SQL.
        schema: Columns of the rows, with SQL types; at least one.
        table: Name of the table, for messages.

    Raises:
        InvalidRequest: With the first thing that is wrong.
    """
    check_condition(condition, schema, table=table)
    columns = ", ".join(f"CAST(NULL AS {kind}) AS {quote_name(name)}" for name, kind in schema.items())
    with duckdb.connect(config={"threads": 1, **CLOSED}) as engine:
        try:
            engine.sql(f"SELECT {columns} WHERE false").filter(condition)
        except duckdb.Error as error:
            raise InvalidRequest(
                f"table {table}: where={condition[:120]!r}: {str(error).strip().partition(chr(10))[0][:300]}; give one "
                "condition over the table's columns, as behind WHERE"
            ) from error
