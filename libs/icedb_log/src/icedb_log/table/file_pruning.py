"""Which files can hold rows for which a condition is true, by partition values and statistics alone. Pure.

A condition is read as a tree, and each node answers for a file which of TRUE, FALSE and NULL it can be there. What is
not understood can be anything, so that an answer may keep a file in vain but never drops one that holds such a row.
FALSE and NULL are followed as carefully as TRUE, for the sake of NOT.

Understood are comparisons of a column with a literal, IN, BETWEEN, IS NULL, IS TRUE, LIKE with a fixed beginning,
``IS NOT DISTINCT FROM``, Boolean columns, the day of a timestamp, and AND, OR, NOT. Literals are compared as DuckDB
does; where it would convert the column, or a literal in a way that is not obvious, the comparison is not understood.
"""

import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from sqlglot import exp
from sqlglot.errors import SqlglotError

from icedb_log.model import FileMarker
from icedb_log.table.conditions import (
    ColumnTerm,
    DomainsOfFile,
    LiteralTerm,
    TooMuchWork,
    parse_condition,
    read_column,
    read_literal,
    read_literals,
)
from icedb_log.table.file_domains import Domain, DomainReader, may_hold
from icedb_log.table.table_config import PartitionField, TableConfig
from icedb_log.table.transforms import transform_value
from icedb_log.texts import is_text

TRUE: Final = 1
FALSE: Final = 2
NULL: Final = 4
ANY: Final = TRUE | FALSE | NULL

_Test = Callable[[DomainsOfFile], int]
"""Gives the truth values that a node can have, as a set of bits, for the domains of one file."""

_UNCLEAR: Final = re.compile(r"\\|''|\"\"|--|/\*|\$")
"""Escapes in literals, quotes beside each other, comments, dollar quotes: parsers differ in what they mean."""
_WILDCARD: Final = re.compile(r"[%_]")


class FilePruner:
    """Tells which files a condition can be true in.

    Args:
        condition: SQL over the table's columns. One that cannot be read keeps all files.
        config: The table's configuration.
        schema: Types of columns as the log has them, if at hand: without, some conditions keep more files.

    Attributes:
        test_count: How much work a file is: comparisons and what connects them.
    """

    def __init__(
        self,
        condition: str,
        config: TableConfig,
        *,
        schema: Mapping[str, str] | None = None,
    ) -> None:
        self._reader = DomainReader(config, schema)
        self.test_count = 0
        self._widths = {field.width for field in config.partition if field.transform == "bucket" and field.width}
        self._test = self._compile_text(condition)

    def may_be_true(self, marker: FileMarker) -> bool:
        """Whether the file can hold a row for which the condition is true."""
        found: dict[str, Domain] = {}

        def read(column: str) -> Domain:
            if column not in found:
                found[column] = self._reader.read(marker, column)
            return found[column]

        return bool(self._test(read) & TRUE)

    def select(self, markers: Iterable[FileMarker]) -> tuple[FileMarker, ...]:
        """Return the files in which the condition can be true, in their order."""
        return tuple(marker for marker in markers if self.may_be_true(marker))

    def _compile_text(self, condition: str) -> _Test:
        if _UNCLEAR.search(condition) or not is_text(condition):
            return _anything
        try:
            parts = parse_condition(condition)
            return self._compile(parts[0]) if len(parts) == 1 and parts[0] is not None else _anything
        except (SqlglotError, RecursionError, TooMuchWork):
            return _anything

    def _compile(self, node: Any) -> _Test:
        form = _FORMS.get(type(node))
        self.test_count += 1
        return form(self, node) if form is not None and _is_plain(node) else _anything

    def compile_inner(self, node: Any) -> _Test:
        """Return the test of what stands in parentheses."""
        return self._compile(node.this)

    def compile_constant(self, node: Any) -> _Test:
        """Return the test of TRUE, FALSE or NULL."""
        if isinstance(node, exp.Null):
            return _constant(NULL)
        return _constant(TRUE if node.this else FALSE)

    def compile_not(self, node: Any) -> _Test:
        """Return the test of NOT."""
        return _negate(self._compile(node.this))

    def compile_connector(self, node: Any) -> _Test:
        """Return the test of AND or OR."""
        tests = [self._compile(part) for part in node.flatten()]
        if isinstance(node, exp.And):
            return _conjoin(tests)
        return _negate(_conjoin([_negate(test) for test in tests]))

    def compile_flag(self, node: Any) -> _Test:
        """Return the test of a column that is a condition itself."""
        column = read_column(node)
        return _anything if column is None else lambda domains: _flag(column.domain(domains))

    def compile_comparison(self, node: Any) -> _Test:
        """Return the test of ``column < literal`` and its kin, whichever stands on the left."""
        kind = type(node)
        column, literal = read_column(node.this), read_literal(node.expression)
        if column is None:
            kind = _MIRRORED.get(kind, kind)
            column, literal = read_column(node.expression), read_literal(node.this)
        if column is None or literal is None:
            return _anything
        test = self._equal_any(column, [literal]) if kind in _EQUALITIES else _order(column, literal, kind)
        return _negate(test) if kind is exp.NEQ else test

    def compile_null_safe(self, node: Any) -> _Test:
        """Return the test of ``column IS NOT DISTINCT FROM literal``, which is never NULL."""
        column, literal = read_column(node.this), read_literal(node.expression)
        if column is None or literal is None:
            return _anything
        equal = self._equal_any(column, [literal])

        def test(domains: DomainsOfFile) -> int:
            if literal.is_null:
                return _is_null(column.domain(domains))
            found = equal(domains)
            return (found & (TRUE | FALSE)) | (FALSE if found & NULL else 0)

        return _negate(test) if isinstance(node, exp.NullSafeNEQ) else test

    def compile_in(self, node: Any) -> _Test:
        """Return the test of ``column IN (literals)``."""
        column = read_column(node.this)
        literals = read_literals(node.expressions)
        return self._equal_any(column, literals) if column is not None and literals else _anything

    def compile_between(self, node: Any) -> _Test:
        """Return the test of ``column BETWEEN literal AND literal``."""
        column, bounds = read_column(node.this), read_literals((node.args["low"], node.args["high"]))
        if column is None or bounds is None:
            return _anything
        low, high = bounds
        return _conjoin([_order(column, low, exp.GTE), _order(column, high, exp.LTE)])

    def compile_is(self, node: Any) -> _Test:
        """Return the test of ``IS NULL``, ``IS TRUE`` and ``IS FALSE``."""
        if isinstance(node.expression, exp.Null):
            column = read_column(node.this)
            return _anything if column is None else lambda domains: _is_null(column.domain(domains))
        if not isinstance(node.expression, exp.Boolean):
            return _anything
        inner, wanted = self._compile(node.this), TRUE if node.expression.this else FALSE

        def test(domains: DomainsOfFile) -> int:
            found = inner(domains)
            return (TRUE if found & wanted else 0) | (FALSE if found & ~wanted else 0)

        return test

    def compile_like(self, node: Any) -> _Test:
        """Return the test of ``column LIKE 'beginning%'``."""
        column, literal = read_column(node.this), read_literal(node.expression)
        if column is None or literal is None or not isinstance(literal.value, str):
            return _anything
        wildcard = _WILDCARD.search(literal.value)
        if wildcard is None:
            test = self._equal_any(column, [literal])
        else:
            prefix = literal.value[: wildcard.start()]
            test = _begins(column, prefix, is_all=literal.value == f"{prefix}%")
        return _negate(test) if node.args.get("negate") else test

    def compile_starts_with(self, node: Any) -> _Test:
        """Return the test of ``startswith(column, 'beginning')``."""
        column, literal = read_column(node.this), read_literal(node.expression)
        if column is None or literal is None or not isinstance(literal.value, str):
            return _anything
        return _begins(column, literal.value, is_all=True)

    def _equal_any(self, column: ColumnTerm, literals: Sequence[LiteralTerm]) -> _Test:
        """Return the test of a column being equal to one of some literals; each type of column reads them anew."""
        has_null = any(literal.is_null for literal in literals)
        known: dict[str, tuple[list[Any], dict[int, frozenset[str]]] | None] = {}

        def read(sql_type: str) -> tuple[list[Any], dict[int, frozenset[str]]] | None:
            values = [literal.read_as(sql_type) for literal in literals if not literal.is_null]
            if None in values:
                return None
            widths = self._widths if sql_type != "DOUBLE" else ()  # 0.0 and -0.0 are equal, and in other buckets
            buckets = {width: _find_buckets(column.name, width, values) for width in widths}
            return sorted(values), buckets

        def test(domains: DomainsOfFile) -> int:
            domain = column.domain(domains)
            if domain.sql_type is None:
                return ANY
            if domain.sql_type not in known:
                known[domain.sql_type] = read(domain.sql_type)
            found = known[domain.sql_type]
            if found is None:
                return ANY
            values, buckets = found
            can_differ = domain.has_values and not (
                domain.low is not None and domain.low == domain.high and domain.low in values
            )
            result = TRUE if may_hold(domain, values, buckets) else 0
            result |= (NULL if has_null else FALSE) if can_differ else 0
            return result | (NULL if domain.has_nulls else 0)

        return test


_FORMS: Final[Mapping[type, Callable[[FilePruner, Any], _Test]]] = {
    **dict.fromkeys((exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE), FilePruner.compile_comparison),
    **dict.fromkeys((exp.NullSafeEQ, exp.NullSafeNEQ), FilePruner.compile_null_safe),
    exp.In: FilePruner.compile_in,
    exp.Between: FilePruner.compile_between,
    exp.Is: FilePruner.compile_is,
    exp.Like: FilePruner.compile_like,
    exp.StartsWith: FilePruner.compile_starts_with,
    exp.Paren: FilePruner.compile_inner,
    **dict.fromkeys((exp.Boolean, exp.Null), FilePruner.compile_constant),
    exp.Not: FilePruner.compile_not,
    **dict.fromkeys((exp.And, exp.Or), FilePruner.compile_connector),
    exp.Column: FilePruner.compile_flag,
}
_PLAIN_ARGUMENTS: Final = frozenset({"this", "expression", "expressions", "low", "high"})
_MIRRORED: Final[Mapping[type, type]] = {exp.LT: exp.GT, exp.GT: exp.LT, exp.LTE: exp.GTE, exp.GTE: exp.LTE}
_EQUALITIES: Final = (exp.EQ, exp.NEQ)
_COMPARES: Final[Mapping[type, Callable[[Any, Any], Any]]] = {
    exp.LT: operator.lt, exp.LTE: operator.le, exp.GT: operator.gt, exp.GTE: operator.ge
}  # fmt: skip


def _is_plain(node: Any) -> bool:
    """Whether a node has no part that this module does not know, such as ``SYMMETRIC``."""
    known = {*_PLAIN_ARGUMENTS, "negate"} if isinstance(node, exp.Like) else _PLAIN_ARGUMENTS
    return all(name in known for name, value in node.args.items() if value)


def _order(column: ColumnTerm, literal: LiteralTerm, kind: type) -> _Test:
    if literal.is_null:
        return _constant(NULL)
    holds, is_below = _COMPARES[kind], kind in (exp.LT, exp.LTE)

    def test(domains: DomainsOfFile) -> int:
        domain = column.domain(domains)
        value = None if domain.sql_type is None else literal.read_as(domain.sql_type)
        if value is None:
            return ANY
        found = NULL if domain.has_nulls else 0
        if not domain.has_values:
            return found
        if domain.low is None or domain.high is None:
            return found | TRUE | FALSE
        best, worst = (domain.low, domain.high) if is_below else (domain.high, domain.low)
        found |= TRUE if holds(best, value) else 0
        return found | (0 if holds(worst, value) else FALSE)

    return test


def _begins(column: ColumnTerm, prefix: str, *, is_all: bool) -> _Test:
    """Return the test of a text that begins with ``prefix``; ``is_all``: nothing else is asked of it."""

    def test(domains: DomainsOfFile) -> int:
        domain = column.domain(domains)
        if domain.sql_type != "VARCHAR":
            return ANY
        found = NULL if domain.has_nulls else 0
        if not domain.has_values:
            return found
        if domain.low is None or domain.high is None:
            return found | TRUE | FALSE
        is_certain = is_all and domain.low.startswith(prefix) and domain.high.startswith(prefix)
        found |= TRUE if domain.low[: len(prefix)] <= prefix <= domain.high else 0
        return found | (0 if is_certain else FALSE)

    return test


def _flag(domain: Domain) -> int:
    if domain.sql_type != "BOOLEAN":
        return ANY
    found = NULL if domain.has_nulls else 0
    if domain.has_values:
        found |= TRUE if domain.high is not False else 0
        found |= FALSE if domain.low is not True else 0
    return found


def _is_null(domain: Domain) -> int:
    return (TRUE if domain.has_nulls else 0) | (FALSE if domain.has_values else 0)


def _find_buckets(column: str, width: int, values: Iterable[Any]) -> frozenset[str]:
    field = PartitionField(name="b", transform="bucket", column=column, width=width)
    return frozenset(transform_value(field, value) for value in values)


def _conjoin(tests: Sequence[_Test]) -> _Test:
    def test(domains: DomainsOfFile) -> int:
        result = TRUE
        for part in tests:
            found = part(domains)
            both = result & found & TRUE
            null = (result & NULL and found & (TRUE | NULL)) or (found & NULL and result & TRUE)
            result = both | ((result | found) & FALSE) | (NULL if null else 0)
        return result

    return test


def _negate(test: _Test) -> _Test:
    return lambda domains: _swap(test(domains))


def _swap(found: int) -> int:
    return (found & NULL) | (FALSE if found & TRUE else 0) | (TRUE if found & FALSE else 0)


def _constant(found: int) -> _Test:
    return lambda _domains: found


def _anything(_domains: DomainsOfFile) -> int:
    return ANY
