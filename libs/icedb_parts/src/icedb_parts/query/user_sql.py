"""The static check of SQL that users give: one query over our own view, and nothing that reaches beyond it.

It looks at the query's tree before Spark sees a word of it. Users of this are people who configure tables, so it
guards against mistakes and surprises; Spark's own settings (no SQL on files) stand behind it.
"""

from typing import Any, Final

import sqlglot
from icedb_log.errors import InvalidRequest
from sqlglot import exp
from sqlglot.errors import SqlglotError

MAX_QUERY_CHARS: Final = 65_536
_FORBIDDEN_FUNCTIONS: Final = frozenset(
    {
        *("reflect", "java_method", "try_reflect"),  # call into the JVM
        "identifier",  # names that no check can see
        *("from_avro", "to_avro", "schema_of_avro", "from_protobuf", "to_protobuf"),  # read schemas from files
        *("input_file_name", "input_file_block_start", "input_file_block_length"),
    }
)
_GENERATORS: Final = frozenset(
    {"explode", "explode_outer", "posexplode", "posexplode_outer", "inline", "inline_outer", "stack", "json_tuple"}
)
_FORBIDDEN_NODES: Final = (
    (exp.Hint, "hints do not belong into it: each flush is planned anew"),
    (exp.QueryTransform, "TRANSFORM would run a program on the workers"),
    (exp.Into, "it must only read"),
    (exp.Parameter, "parameters have no value here"),
    (exp.Placeholder, "parameters have no value here"),
    (exp.Command, "it must be one query"),
)


def check_user_sql(query: str, *, view: str, what: str) -> None:
    """Check that a text is one query that reads nothing but a view.

    Args:
        query: Spark SQL.
        view: The one relation that it may, and must, read.
        what: What the query is, for messages, e.g. ``insert_query``.

    Raises:
        InvalidRequest: With the first thing that is wrong and where.
    """
    try:
        tree = _parse(query)
        _check_nodes(tree)
        _check_relations(tree, view)
    except _Problem as problem:
        raise InvalidRequest(f"{what}: {problem}; write one SELECT over {view}") from problem


class _Problem(Exception):
    pass


def _parse(query: str) -> Any:
    if len(query) > MAX_QUERY_CHARS:
        raise _Problem(f"the text has {len(query)} characters; the limit is {MAX_QUERY_CHARS}")
    try:
        statements = [statement for statement in sqlglot.parse(query, read="spark") if statement is not None]
    except SqlglotError as error:
        raise _Problem(_describe(error)) from error
    except RecursionError as error:
        raise _Problem("it is nested too deeply") from error
    if len(statements) != 1:
        raise _Problem(f"{len(statements)} statements instead of one query")
    (tree,) = statements
    if not isinstance(tree, exp.Query):
        raise _Problem(f"a {type(tree).__name__.upper()} statement instead of a query")
    return tree


def _describe(error: SqlglotError) -> str:
    details = getattr(error, "errors", None)
    if details:
        first = details[0]
        return f"line {first['line']}, column {first['col']}: {first['description'].strip().rstrip('.')}"
    return str(error).partition("\n")[0][:200]


def _check_nodes(tree: Any) -> None:
    for node in tree.walk():
        for kind, reason in _FORBIDDEN_NODES:
            if isinstance(node, kind):
                raise _Problem(f"{_show(node)}: {reason}")
        if isinstance(node, exp.Dot) and isinstance(node.expression, exp.Func):
            raise _Problem(f"{_show(node)}: only Spark's own functions can be called, by their bare names")
        if isinstance(node, exp.Func) and _function_name(node) in _FORBIDDEN_FUNCTIONS:
            raise _Problem(f"{_show(node)}: this function reaches beyond the query")
        if isinstance(node, exp.Lateral):
            _check_lateral(node)


def _check_lateral(node: Any) -> None:
    source = node.this
    if isinstance(source, exp.Func) and _function_name(source) not in _GENERATORS:
        raise _Problem(f"{_show(node)}: only {', '.join(sorted(_GENERATORS))} make rows")


def _check_relations(tree: Any, view: str) -> None:
    named = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    if view.lower() in named:
        raise _Problem(f"a WITH clause hides {view}")
    reads_view = False
    for table in tree.find_all(exp.Table):
        if not isinstance(table.this, exp.Identifier):
            raise _Problem(f"{_show(table)}: table functions are not allowed")
        if table.db or table.catalog:
            raise _Problem(f"{_show(table)}: only {view} can be read, no table, no file")
        name = table.name.lower()
        if name != view.lower() and name not in named:
            raise _Problem(f"relation {table.name!r} does not exist: only {view} and names of a WITH clause do")
        reads_view = reads_view or name == view.lower()
    if not reads_view:
        raise _Problem(f"it does not read {view}")


def _function_name(node: Any) -> str:
    name = node.name if isinstance(node, exp.Anonymous) else node.sql_name()
    return str(name).lower()


def _show(node: Any) -> str:
    text = node.sql("spark")
    return text if len(text) <= 80 else f"{text[:80]}…"  # noqa: PLR2004 - what a message has room for
