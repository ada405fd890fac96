"""A tiny language for changes of rows in tests that have no Spark: what it takes, Spark SQL takes in the same meaning.

A condition is comparisons of a column with a literal, joined with ``and``: ``id = 3 and p != 'a' and n is null``;
``true`` holds for all rows. A query is ``select [distinct] * from _rows [where <condition>]``, or over
``source_files`` for a ``merge_query``.
"""

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson
from icedb_log.errors import InvalidRequest
from icedb_log.jobs import RowChange

_TERM: Final = re.compile(
    r"(?P<column>\w+)\s*(?:(?P<op><=|>=|!=|=|<|>)\s*(?P<value>-?[0-9]+(?:\.[0-9]+)?|true|false|'[^']*')"
    r"|is\s+(?P<negated>not\s+)?null)"
)
_QUERY: Final = re.compile(
    r"select\s+(?P<distinct>distinct\s+)?\*\s+from\s+(?P<view>\w+)(?:\s+where\s+(?P<where>.+))?", re.DOTALL
)
_AND: Final = re.compile(r"\s+and\s+")
_OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_VIEWS: Final = {"rewrite": "_rows", "merge_query": "source_files"}


@dataclass(frozen=True, slots=True)
class Term:
    """One comparison; ``operator`` may also be ``is null`` or ``is not null``."""

    column: str
    operator: str
    value: Any

    def holds(self, row: Mapping[str, Any]) -> bool:
        """Whether it is true for a row. Raises InvalidRequest when a text is compared with a number."""
        value = row.get(self.column)
        if self.operator in ("is null", "is not null"):
            return (value is None) == (self.operator == "is null")
        if value is None:
            return False
        if isinstance(value, str) != isinstance(self.value, str):
            raise InvalidRequest(
                f"column {self.column!r} holds {value!r}, which cannot be compared with {self.value!r}"
            )
        return _OPERATORS[self.operator](value, self.value)


@dataclass(frozen=True, slots=True)
class Condition:
    """Comparisons that must all be true."""

    terms: tuple[Term, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns in it."""
        return tuple(term.column for term in self.terms)

    def holds(self, row: Mapping[str, Any]) -> bool:
        """Whether it is true for a row."""
        return all(term.holds(row) for term in self.terms)


@dataclass(frozen=True, slots=True)
class RowQuery:
    """A query that keeps some of the rows."""

    is_distinct: bool
    condition: Condition

    def run(self, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the rows that are left."""
        kept = [row for row in rows if self.condition.holds(row)]
        if not self.is_distinct:
            return kept
        return list({orjson.dumps(row, option=orjson.OPT_SORT_KEYS): row for row in kept}.values())


def parse_condition(sql: str) -> Condition:
    """Parse a condition. Raises InvalidRequest."""
    return Condition(() if sql.strip() == "true" else tuple(_parse_term(text) for text in _AND.split(sql.strip())))


def parse_row_query(change: RowChange) -> RowQuery:
    """Parse the query of a rewrite or a ``merge_query``. Raises InvalidRequest."""
    match = _QUERY.fullmatch(change.sql.strip())
    view = _VIEWS[change.kind]
    if match is None or match["view"] != view:
        raise InvalidRequest(f"query {change.sql[:200]!r}: write select [distinct] * from {view} [where ...]")
    return RowQuery(match["distinct"] is not None, parse_condition(match["where"] or "true"))


def _parse_term(text: str) -> Term:
    match = _TERM.fullmatch(text)
    if match is None:
        raise InvalidRequest(f"condition {text[:200]!r} is not understood: write column = literal, joined with and")
    if match["op"] is None:
        return Term(match["column"], "is not null" if match["negated"] else "is null", None)
    literal = match["value"]
    value = literal[1:-1] if literal.startswith("'") else orjson.loads(literal)
    return Term(match["column"], match["op"], value)
