"""The static check of SQL that users give: one query over our own view, and nothing that reaches beyond it.

It looks at the query's tree before Spark sees a word of it, and says best what is wrong. It is not what keeps the
query inside: this parser and Spark's read some texts differently. :mod:`icedb_engine.query.guarded_query` looks at what
Spark has parsed, and Spark's own settings (no SQL on files, no variables) stand behind that.
"""

import itertools
from typing import Any, Final

import sqlglot
from icedb_log.errors import InvalidRequest
from icedb_log.table.bounded_parser import PARSERS, TooMuchWork
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import TokenType

from icedb_engine.query.spark_functions import ALLOWED, FORBIDDEN, GENERATORS, MAX_ARGUMENTS

MAX_QUERY_CHARS: Final = 65_536
_MAX_STEPS: Final = 400_000
"""Of the parser: a query may be longer than a condition."""
_FORBIDDEN_NODES: Final = (
    (exp.Hint, "hints do not belong into it: each flush is planned anew"),
    (exp.QueryTransform, "TRANSFORM would run a program on the workers"),
    (exp.Into, "it must only read"),
    (exp.Parameter, "parameters have no value here"),
    (exp.Placeholder, "parameters have no value here"),
    (exp.Command, "it must be one query"),
)
_NOT_OF_ONE_ROW: Final = (
    ((exp.Query, exp.Table), "it must be about one row: no query inside"),
    (exp.Window, "it must be about one row: no window"),
    (exp.AggFunc, "it must be about one row: no aggregate"),
    ((exp.UDTF, exp.Explode, exp.Inline), "it must be about one row: no generator"),
    (exp.Star, "name the columns"),
)


_CHANCE: Final = frozenset(
    {
        *("rand", "randn", "random", "randstr", "uniform", "uuid", "shuffle"),
        *("monotonically_increasing_id", "spark_partition_id"),
    }
)
"""Functions of which nobody can tell the value: when Spark runs a task again, it is another one."""

_MOMENT: Final = frozenset(
    {
        *("current_date", "curdate", "current_timestamp", "now", "localtimestamp", "current_time", "unix_timestamp"),
        *("current_user", "session_user", "user", "current_timezone", "current_catalog", "current_database"),
        *("current_schema", "version"),
    }
)
"""Functions whose value depends on when, and by whom, the query is run."""


def check_user_sql(query: str, *, view: str, what: str, is_repeatable: bool = False) -> None:
    """Check that a text is one query that reads nothing but a view.

    Args:
        query: Spark SQL.
        view: The one relation that it may, and must, read.
        what: What the query is, for messages, e.g. ``insert_query``.
        is_repeatable: Whether it must give the same when a part of it is run again: no functions of chance.

    Raises:
        InvalidRequest: With the first thing that is wrong and where.
    """
    try:
        tree = _parse(query)
        _check_nodes(tree)
        _check_relations(tree, view)
        if is_repeatable:
            _check_functions(tree, _CHANCE, "when Spark runs a part of the query again, its value is another one")
            sample = tree.find(exp.TableSample)
            if sample is not None:
                raise _Problem(f"{_show(sample)}: when Spark runs a part of the query again, the sample is another one")
    except _Problem as problem:
        raise InvalidRequest(f"{what}: {problem}; write one SELECT over {view}") from problem


def check_condition(condition: str, *, what: str) -> frozenset[str]:
    """Check that a text is one Boolean expression over the columns of a row, and nothing more.

    Args:
        condition: Spark SQL.
        what: What the condition is, for messages, e.g. ``condition``.

    Returns:
        Every name in it that may be a column, in lower case.

    Raises:
        InvalidRequest: With the first thing that is wrong and where.
    """
    try:
        tree = _parse_condition(condition)
        _check_nodes(tree)
        for node in tree.walk():
            for kind, reason in _NOT_OF_ONE_ROW:
                if isinstance(node, kind):
                    raise _Problem(f"{_show(node)}: {reason}")
            if node.comments:
                raise _Problem("it has a comment, which can hide a part of it")
        reason = "rows are counted first and removed then, and it may differ; write the value itself"
        _check_functions(tree, _CHANCE | _MOMENT, reason)
    except _Problem as problem:
        raise InvalidRequest(
            f"{what}: {problem}; write one condition over the table's columns, as behind WHERE"
        ) from problem
    return frozenset(node.name.lower() for node in tree.find_all(exp.Identifier))


def blank_comments(text: str) -> str:
    """Return SQL without its comments and semicolons, all else at its place.

    WARN: Spark must not see comments. It lets one go on where its line ends in a backslash, the parser of this check
    does not, so that what is text to the one is SQL to the other.
    """
    kept: list[str] = []
    place = 0
    for token in _dialect.tokenize(text):
        kept.append(_blank(text[place : token.start]))
        is_semicolon = token.token_type is TokenType.SEMICOLON
        kept.append(" " if is_semicolon else text[max(place, token.start) : token.end + 1])
        place = max(place, token.end + 1)
    kept.append(_blank(text[place:]))
    return "".join(kept)


def _blank(text: str) -> str:
    return "".join(character if character.isspace() else " " for character in text)


class _Problem(Exception):
    pass


_dialect: Final[Any] = sqlglot.Dialect.get_or_raise("spark")


def _parse(query: str) -> Any:
    statements = _parse_bounded(query, None)
    if len(statements) != 1:
        raise _Problem(f"{len(statements)} statements instead of one query")
    (tree,) = statements
    if not isinstance(tree, exp.Query):
        raise _Problem(f"a {type(tree).__name__.upper()} statement instead of a query")
    return tree


def _parse_condition(text: str) -> Any:
    if not text.strip():
        raise _Problem("it is empty")
    conditions = _parse_bounded(text, exp.Condition)
    if len(conditions) != 1:
        raise _Problem("it is no single expression")
    return conditions[0]


def _parse_bounded(text: str, into: Any) -> list[Any]:
    """Return the statements of a text, or what of another kind it holds."""
    if len(text) > MAX_QUERY_CHARS:
        raise _Problem(f"the text has {len(text)} characters; the limit is {MAX_QUERY_CHARS}")
    prefix = "" if into is None else "it is no single expression: "
    try:
        tokens = _dialect.tokenize(text)
        _check_tokens(tokens)
        parser = PARSERS["spark"](dialect=_dialect)
        parser.bound(len(tokens), max_steps=_MAX_STEPS)
        found = parser.parse(tokens, text) if into is None else parser.parse_into(into, tokens, text)
    except SqlglotError as error:
        raise _Problem(prefix + _describe(error)) from error
    except (RecursionError, TooMuchWork) as error:
        raise _Problem("it is nested too deeply") from error
    return [each for each in found if each is not None]


def _check_tokens(tokens: Any) -> None:
    """Refuse calls of forbidden functions whatever the parser takes them for."""
    for token, following in itertools.pairwise(tokens):
        if following.token_type is TokenType.L_PAREN and token.text.lower() in FORBIDDEN:
            raise _Problem(f"{token.text}(…): this function reaches beyond the query")


def _check_functions(tree: Any, forbidden: frozenset[str], reason: str) -> None:
    for node in tree.walk():
        if isinstance(node, exp.Func) and _function_name(node) in forbidden:
            raise _Problem(f"{_show(node)}: {reason}")


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
        if isinstance(node, exp.Func):
            _check_call(node)
        if isinstance(node, exp.Lateral):
            _check_lateral(node)


def _check_call(node: Any) -> None:
    name = _function_name(node)
    if name in FORBIDDEN:
        raise _Problem(f"{_show(node)}: this function reaches beyond the query")
    if isinstance(node, exp.Anonymous) and not isinstance(node.parent, exp.Table):
        if name not in ALLOWED and name not in GENERATORS:
            raise _Problem(f"{_show(node)}: {name[:80]} is none of the functions that can be called")
        if len(node.expressions) > MAX_ARGUMENTS.get(name, len(node.expressions)):
            raise _Problem(f"{_show(node)}: {name} takes {MAX_ARGUMENTS[name]} arguments here: its options name files")


def _check_lateral(node: Any) -> None:
    source = node.this
    if isinstance(source, exp.Func) and _function_name(source) not in GENERATORS:
        raise _Problem(f"{_show(node)}: only {', '.join(sorted(GENERATORS))} make rows")


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
