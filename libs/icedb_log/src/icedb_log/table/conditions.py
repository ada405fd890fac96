"""Conditions in SQL that users give: parsed with a bound on the work, checked, and read as columns and literals. Pure.

The parser guesses and goes back where a text can mean several things, which doubles the work at each level of
``array[array[…]]``, and it calls itself for each level of nesting. What users send must end in time, either way.

Pruning itself keeps all files where it does not understand a condition. That is right for safety and wrong for people:
a misspelt column would read the whole table. So what users give is checked first, and refused with what is known.

A literal is understood only if there is no doubt what it means. DuckDB reads a ``TIMESTAMPTZ`` in the session's time
zone, ``TRY_CAST`` gives NULL for what does not fit, and a list in which a number is a double makes doubles of all of
them. A DECIMAL compares exactly with whole numbers and decimals; beside a double it becomes one, beside text the text
becomes a decimal that is rounded.
"""

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal, Inexact, InvalidOperation
from typing import Any, Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import TokenType

from icedb_log.errors import InvalidRequest
from icedb_log.table.decimals import DecimalType, find_decimal
from icedb_log.table.file_domains import EXACT_DOUBLE_MAX, UNKNOWN, Domain, parse_date
from icedb_log.texts import describe_nested, is_text

logging.getLogger("sqlglot").addHandler(logging.NullHandler())
"""Its warnings are no words of ours, and go to standard error where a program has not set up logging."""

MAX_CONDITION_CHARS: Final = 64 * 1024
_MAX_STEPS_PER_TOKEN: Final = 50
"""Steps of the parser. It takes 1 to 5 for what people write, and 2^levels where it guesses and goes back."""
_MIN_STEPS: Final = 1000
_MAX_STEPS: Final = 200_000
_MAX_NAMED_COLUMNS: Final = 50
_SHOWN_CHARS: Final = 120
_EXAMPLE: Final = "for example event = 'signup' and amount >= 10"

_REFUSED: Final[tuple[tuple[tuple[type, ...], str], ...]] = (
    ((exp.Query, exp.Subquery, exp.Exists, exp.Table, exp.From), "a subquery"),
    ((exp.AggFunc,), "an aggregate"),
    ((exp.Window,), "a window function"),
    ((exp.Placeholder, exp.Parameter), "a parameter"),
    ((exp.Star,), "a star"),
    ((exp.DDL, exp.DML, exp.Command), "a statement"),
)
_OF_THE_ENGINE: Final = frozenset(
    {"current_setting", "getvariable", "getenv", "nextval", "currval", "current_database", "current_schemas", "version"}
)
"""Functions that say nothing of a row, but of the engine and the machine that evaluate the condition."""
_MAX_EXACT_DIGITS: Final = 15
_MAX_WHOLE_DIGITS: Final = 38
"""Of a whole number. DuckDB makes a double of a longer one, and of every number that is compared together with it."""
_TIMESTAMP: Final = re.compile(r"(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d:\d\d(?:\.\d{1,6})?)Z?)?", re.ASCII)
_TIMESTAMP_TYPES: Final = ("TIMESTAMP", "TIMESTAMPTZ", "TIMESTAMPLTZ", "TIMESTAMPNTZ")
_DUCKDB_CASTS: Final = ("BIGINT", "DATE", "TIMESTAMP", "TIMESTAMPNTZ")
_WHOLE_TYPES: Final = ("BIGINT", "INT", "SMALLINT", "TINYINT")

DomainsOfFile = Callable[[str], Domain]
"""Gives the domain of a column, named in lower case, in one file."""


class TooMuchWork(Exception):
    """The parser goes back and forth, or too deep: it would not end in time."""


_BASE: Final[Any] = sqlglot.Dialect.get_or_raise("duckdb").parser_class


class BoundedParser(_BASE):  # type: ignore[misc]  # a class that is looked up
    """A parser of DuckDB's SQL that gives up; wants :meth:`bound` to be called before a text."""

    _steps_left = 0

    def bound(self, token_count: int) -> None:
        """Say how long a text is that comes next."""
        self._steps_left = min(_MAX_STEPS, _MIN_STEPS + _MAX_STEPS_PER_TOKEN * token_count)

    def _advance(self, times: int = 1) -> None:
        self._steps_left -= 1
        if self._steps_left < 0:
            raise TooMuchWork
        super()._advance(times)


def parse_condition(condition: str) -> list[Any]:
    """Return the conditions of a text: one, if it is one; none where it has a semicolon.

    Args:
        condition: At most :data:`MAX_CONDITION_CHARS` characters.

    Raises:
        SqlglotError: It is no condition.
        TooMuchWork: It is too long or nested too deeply to be read in time.
    """
    if len(condition) > MAX_CONDITION_CHARS:
        raise TooMuchWork
    parser = BoundedParser(dialect="duckdb")
    tokens = parser.dialect.tokenize(condition)
    if any(token.token_type is TokenType.SEMICOLON for token in tokens):
        return []
    parser.bound(len(tokens))
    try:
        return list(parser.parse_into(exp.Condition, tokens, condition))
    except RecursionError:
        raise TooMuchWork from None


# --- the check ---


def check_condition(condition: str, schema: Mapping[str, str], *, table: str) -> None:
    """Return if a text is one condition over columns that are there.

    Args:
        condition: SQL in DuckDB's dialect, without ``WHERE``.
        schema: The table's columns. Names compare without regard to case, as in DuckDB.
        table: Its name, for messages.

    Raises:
        InvalidRequest: It is not: names what, where, and the columns that are known.
    """
    where = f"table {table}: where={condition[:_SHOWN_CHARS]!r}"
    if not condition.strip():
        raise InvalidRequest(f"{where} is empty: leave it out, or give a condition, {_EXAMPLE}")
    if not is_text(condition):
        raise InvalidRequest(f"{where} has a character that is half of one (a lone surrogate): send text in UTF-8")
    if len(condition) > MAX_CONDITION_CHARS:
        raise InvalidRequest(f"{where}… has {len(condition)} characters; at most {MAX_CONDITION_CHARS}")
    tree = _parse(condition, where)
    for node in tree.walk():
        for kinds, what in _REFUSED:
            if isinstance(node, kinds):
                raise InvalidRequest(
                    f"{where} has {what} in it ({_show(node)}): give one condition over the columns of the table, "
                    f"{_EXAMPLE}"
                )
        if isinstance(node, exp.Anonymous) and node.name.lower() in _OF_THE_ENGINE:
            raise InvalidRequest(f"{where} asks the engine ({_show(node)}), not the row: write the value itself")
    _check_columns(tree, schema, where)


def _parse(condition: str, where: str) -> Any:
    several = f"{where} has a semicolon, or more than one statement: give one condition, {_EXAMPLE}"
    try:
        parts = parse_condition(condition)
    except SqlglotError as error:
        raise InvalidRequest(f"{where} is not understood{_place(error)}: give one SQL condition, {_EXAMPLE}") from error
    except TooMuchWork:
        raise InvalidRequest(f"{where} is nested too deeply; write it flatter, e.g. with IN") from None
    if len(parts) != 1 or parts[0] is None:
        raise InvalidRequest(several)
    return parts[0]


def _check_columns(tree: Any, schema: Mapping[str, str], where: str) -> None:
    known = {column.lower() for column in schema}
    for column in tree.find_all(exp.Column):
        if column.table.lower() in known:
            raise InvalidRequest(f"{where}: {describe_nested(column=column.table, field=column.name)}")
        if column.table:
            raise InvalidRequest(f"{where}: write {column.name!r} without {column.table!r} before it")
        if column.name.lower() not in known:
            names = sorted(schema)
            shown = ", ".join(names[:_MAX_NAMED_COLUMNS]) or "none yet: nothing was committed, and none is declared"
            more = f" and {len(names) - _MAX_NAMED_COLUMNS} more" if len(names) > _MAX_NAMED_COLUMNS else ""
            raise InvalidRequest(
                f"{where}: no column {column.name[:80]!r}; the columns are {shown}{more}. Text stands in single quotes"
            )


def _place(error: SqlglotError) -> str:
    details: list[dict[str, Any]] = getattr(error, "errors", None) or []
    if not details:
        return ""
    first = details[0]
    near = first.get("highlight")
    place = f" at line {first.get('line')}, character {first.get('col')}" if first.get("line") else ""
    return f"{place}, near {str(near)[:40]!r}" if near else place


def _show(node: Any) -> str:
    return str(node.sql(dialect="duckdb"))[:_SHOWN_CHARS]


# --- terms ---


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
        digits = find_decimal(sql_type)
        if digits is not None:
            return _read_decimal(self.value, digits)
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


def _read_decimal(value: Any, digits: DecimalType) -> Any:
    """Return a number with all digits of a type, as its values have them; one with more digits equals none of them."""
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        return None
    try:
        return digits.scale_down(digits.scale_up(Decimal(value)))
    except (Inexact, InvalidOperation):
        return Decimal(value)


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
        if not all(abs(float(value)) < EXACT_DOUBLE_MAX for value in numbers):
            return None
        is_number = [isinstance(each.value, int | Decimal) and not isinstance(each.value, bool) for each in known]
        return [LiteralTerm(float(each.value)) if found else each for each, found in zip(known, is_number, strict=True)]
    return known


def read_literal(node: Any) -> LiteralTerm | None:
    """Return the literal that a node is; None for everything else."""
    casts = node.find_all(exp.Cast)
    is_clear = all(type(cast) is exp.Cast and cast.to.this.name in _DUCKDB_CASTS for cast in casts)
    return _read(node) if is_clear else None


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


_NODE_READERS: Final[tuple[tuple[type, Callable[[Any], LiteralTerm | None]], ...]] = (
    (exp.Null, lambda _node: LiteralTerm(None)),
    (exp.Boolean, lambda node: LiteralTerm(bool(node.this))),
    (exp.Neg, _read_negative),
    (exp.Cast, _read_typed),
    (exp.Literal, lambda node: LiteralTerm(node.this) if node.is_string else _read_numeral(node.this)),
)
