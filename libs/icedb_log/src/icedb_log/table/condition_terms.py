"""The terms of a condition that pruning understands: columns, and literals as DuckDB sees them. Pure.

A literal is understood only if there is no doubt what it means. DuckDB reads a
``TIMESTAMPTZ`` in the session's time zone, ``TRY_CAST`` gives NULL for what does not fit, and a list in which a number
is a double makes doubles of all of them.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from sqlglot import exp

from icedb_log.table.file_domains import EXACT_DOUBLE_MAX, UNKNOWN, Domain, parse_date

DomainsOfFile = Callable[[str], Domain]
"""Gives the domain of a column, named in lower case, in one file."""

_MAX_EXACT_DIGITS: Final = 15
_MAX_WHOLE_DIGITS: Final = 38
"""Of a whole number. DuckDB makes a double of a longer one, and of every number that is compared together with it."""
_TIMESTAMP: Final = re.compile(r"(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d:\d\d(?:\.\d{1,6})?)Z?)?", re.ASCII)
_TIMESTAMP_TYPES: Final = ("TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMPLTZ", "TIMESTAMPNTZ")
_DUCKDB_CASTS: Final = ("BIGINT", "DATE", "TIMESTAMP", "TIMESTAMPNTZ")
_WHOLE_TYPES: Final = ("BIGINT", "INT", "SMALLINT", "TINYINT")


@dataclass(frozen=True, slots=True)
class ColumnTerm:
    """A column, or the day of one."""

    name: str
    is_day: bool = False

    def domain(self, domains: DomainsOfFile) -> Domain:
        """Return its domain in a file."""
        found = domains(self.name)
        if not self.is_day or found.sql_type == "DATE":
            return found
        if found.sql_type != "TIMESTAMP":
            return UNKNOWN
        low, high = (bound.date() if isinstance(bound, datetime) else None for bound in (found.low, found.high))
        return Domain("DATE", low, high, has_values=found.has_values, has_nulls=found.has_nulls)


@dataclass(frozen=True, slots=True)
class LiteralTerm:
    """A literal: text, whole number, decimal, double, Boolean, date or timestamp; None is NULL."""

    value: Any

    @property
    def is_null(self) -> bool:
        """Whether it is NULL."""
        return self.value is None

    def read_as(self, sql_type: str) -> Any:
        """Return the literal as what DuckDB compares a column of a type with; None if that is not obvious."""
        return _READERS[sql_type](self.value) if sql_type in _READERS else None


def _read_text(value: Any) -> Any:
    return value if isinstance(value, str) else None


def _read_flag(value: Any) -> Any:
    return value if isinstance(value, bool) else None


def _read_number(value: Any) -> Any:
    """Return a number that a BIGINT compares with exactly; one without a fraction as an integer."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    if isinstance(value, float) and not abs(value) < EXACT_DOUBLE_MAX:
        return None
    whole = int(value)
    return whole if value == whole else value


def _read_double(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    number = float(value)
    return number if isinstance(value, float) or abs(number) < EXACT_DOUBLE_MAX else None


def _read_day(value: Any) -> Any:
    if isinstance(value, str):
        return parse_date(value)
    return value if isinstance(value, date) and not isinstance(value, datetime) else None


def _read_moment(value: Any) -> Any:
    if isinstance(value, str):
        return _parse_moment(value)
    if isinstance(value, datetime):
        return value
    return datetime.combine(value, time.min) if isinstance(value, date) else None


_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "VARCHAR": _read_text,
    "BOOLEAN": _read_flag,
    "BIGINT": _read_number,
    "DOUBLE": _read_double,
    "DATE": _read_day,
    "TIMESTAMP": _read_moment,
}


def _parse_moment(text: str) -> datetime | None:
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        return None
    try:
        return datetime.fromisoformat(f"{match[1]}T{match[2] or '00:00:00'}")
    except ValueError:
        return None


def read_column(node: Any) -> ColumnTerm | None:
    """Return the column, or the day of a column, that a node is; None for everything else."""
    if isinstance(node, exp.Paren):
        return read_column(node.this)
    if isinstance(node, exp.Column):
        is_bare = not node.table and isinstance(node.this, exp.Identifier)
        return ColumnTerm(node.name.lower()) if is_bare else None
    is_day = isinstance(node, exp.TsOrDsToDate) or (isinstance(node, exp.Cast) and node.to.this.name == "DATE")
    if is_day and not node.args.get("format"):
        inner = read_column(node.this)
        return None if inner is None else ColumnTerm(inner.name, is_day=True)
    return None


def read_literals(nodes: Iterable[Any]) -> list[LiteralTerm] | None:
    """Return the literals that are compared with one column together; None if one of them is something else."""
    literals = [read_literal(node) for node in nodes]
    if None in literals:
        return None
    known = [literal for literal in literals if literal is not None]
    numbers = [literal.value for literal in known if isinstance(literal.value, int | float | Decimal)]
    if any(isinstance(value, float) for value in numbers):
        return known if all(abs(float(value)) < EXACT_DOUBLE_MAX for value in numbers) else None
    return known


def read_literal(node: Any) -> LiteralTerm | None:
    """Return the literal that a node is; None for everything else."""
    if not _is_clear(node):
        return None
    return _read(node)


def _is_clear(node: Any) -> bool:
    casts = list(node.find_all(exp.Cast))
    return all(type(cast) is exp.Cast and cast.to.this.name in _DUCKDB_CASTS for cast in casts)


def _read(node: Any) -> LiteralTerm | None:
    while isinstance(node, exp.Paren):
        node = node.this
    reader = next((read for kind, read in _NODE_READERS if isinstance(node, kind)), None)
    return None if reader is None else reader(node)


def _read_negative(node: Any) -> LiteralTerm | None:
    inner = _read(node.this)
    is_number = inner is not None and isinstance(inner.value, int | float | Decimal) and inner.value is not True
    return LiteralTerm(-inner.value) if inner is not None and is_number and inner.value is not False else None


def _read_typed(node: Any) -> LiteralTerm | None:
    """Return ``DATE '2023-06-07'``, ``TIMESTAMP '…'`` or ``5L``; None for other casts."""
    inner, name = node.this, node.to.this.name
    if not isinstance(inner, exp.Literal) or node.args.get("format"):
        return None
    if not inner.is_string:
        whole = _read_numeral(inner.this)
        return whole if name in _WHOLE_TYPES and whole is not None and isinstance(whole.value, int) else None
    value: Any = None
    if name == "DATE":
        value = parse_date(inner.this)
    elif name in _TIMESTAMP_TYPES:
        value = _parse_moment(inner.this)
    return None if value is None else LiteralTerm(value)


def _read_numeral(text: str) -> LiteralTerm | None:
    try:
        if "e" in text.lower():
            return LiteralTerm(float(text))
        number = Decimal(text)
    except (ValueError, InvalidOperation):
        return None
    is_whole = number == number.to_integral_value() and "." not in text
    if len(number.as_tuple().digits) > (_MAX_WHOLE_DIGITS if is_whole else _MAX_EXACT_DIGITS):
        return None
    return LiteralTerm(int(number) if is_whole else number)


def _read_plain(node: Any) -> LiteralTerm | None:
    return LiteralTerm(node.this) if node.is_string else _read_numeral(node.this)


_NODE_READERS: Final[tuple[tuple[type, Callable[[Any], LiteralTerm | None]], ...]] = (
    (exp.Null, lambda _node: LiteralTerm(None)),
    (exp.Boolean, lambda node: LiteralTerm(bool(node.this))),
    (exp.Neg, _read_negative),
    (exp.Cast, _read_typed),
    (exp.Literal, _read_plain),
)
