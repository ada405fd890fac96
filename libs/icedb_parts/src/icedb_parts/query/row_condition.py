"""The check of a condition that users give to choose rows: DuckDB's SQL, over the columns of one row, nothing more.

Two looks, before any task sees it. Its tree must hold no query, aggregate, window or parameter, so that it can reach no
file, table or other row; and DuckDB has to bind it to the table's columns, on a connection that can open nothing. The
connections of tasks can open nothing but their own scratch folder either, whatever this check thought of it.
"""

import re
from collections.abc import Mapping
from typing import Final

import duckdb
import sqlglot
from icedb_log.errors import InvalidRequest
from sqlglot import exp
from sqlglot.errors import SqlglotError

from icedb_parts.sql import quote_name

_COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
MAX_CONDITION_CHARS: Final = 65_536
_REMEDY: Final = "write one condition over the table's columns, as behind WHERE, in DuckDB's SQL"
_FORBIDDEN: Final = (
    ((exp.Query, exp.Table, exp.Subquery), "no query may stand in it"),
    (exp.Window, "it must be about one row: no window"),
    (exp.AggFunc, "it must be about one row: no aggregate"),
    ((exp.UDTF, exp.Explode), "it must be about one row: no generator"),
    ((exp.Parameter, exp.Placeholder), "parameters have no value here"),
    (exp.Command, "it must be one condition"),
)


def check_row_condition(condition: str, schema: Mapping[str, str], *, what: str) -> None:
    """Check that a text is one condition over the columns of a row.

    Args:
        condition: DuckDB's SQL.
        schema: Columns of the rows, with SQL types.
        what: What the condition is, for messages, e.g. ``option where``.

    Raises:
        InvalidRequest: With the first thing that is wrong.
    """
    problem = _find_problem(condition)
    if problem is None and schema:
        problem = _find_bind_problem(condition, schema)
    if problem is not None:
        raise InvalidRequest(f"{what}: {problem}; {_REMEDY}")


def _find_problem(condition: str) -> str | None:
    if not condition.strip() or len(condition) > MAX_CONDITION_CHARS:
        return f"{len(condition)} characters: it is empty, or longer than {MAX_CONDITION_CHARS}"
    try:
        parsed = [tree for tree in sqlglot.parse(f"SELECT 1 WHERE ({condition}\n)", read="duckdb") if tree is not None]
    except (SqlglotError, RecursionError) as error:
        return f"it cannot be read ({' '.join(_COLOURS.sub('', str(error)).split())[:200]})"
    if len(parsed) != 1 or not isinstance(parsed[0], exp.Select) or parsed[0].args.get("where") is None:
        return "it is more than one condition"
    where = parsed[0].args["where"]
    if any(value for name, value in parsed[0].args.items() if name not in ("where", "expressions", "kind")):
        return "it is more than one condition"
    for node in where.this.walk():
        for kinds, reason in _FORBIDDEN:
            if isinstance(node, kinds):
                return f"{node.sql('duckdb')[:80]!r}: {reason}"
    return None


def _find_bind_problem(condition: str, schema: Mapping[str, str]) -> str | None:
    columns = ", ".join(f"CAST(NULL AS {kind}) AS {quote_name(name)}" for name, kind in schema.items())
    with duckdb.connect(config={"enable_external_access": "false", "autoload_known_extensions": "false"}) as engine:
        try:
            engine.sql(f"SELECT {columns} WHERE false").filter(condition)
        except duckdb.Error as error:
            return str(error).strip().partition("\n")[0][:300]
    return None
