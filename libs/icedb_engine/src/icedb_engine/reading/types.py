"""Which SQL type the values of a column become, and the SQL that casts them. Pure.

Values are told apart by *kind*: what a JSON value is, or the text of a cell. A column has a *form* in each batch: how
its values lie in the native engine, a decimal's with its digits (``DECIMAL(9,2)``). A raw value is the compact JSON
text of one top-level value, a string with its quotes, NULL for null and for a missing key. A cast gives NULL where the
value does not fit; the caller compares counts, so that no value is lost silently.
"""

from collections.abc import Mapping
from enum import IntFlag, StrEnum
from typing import Final

from icedb_log.table.decimals import MAX_DIGITS, DecimalType, find_decimal
from icedb_log.table.file_domains import EXACT_DOUBLE_MAX
from icedb_log.table.time_columns import TimeUnit
from icedb_log.table.transforms import moment_sql


class Kind(IntFlag):
    """What a JSON value is, as far as types are concerned. Null is no evidence and has no kind."""

    STRING = 1
    NESTED = 2
    BOOLEAN = 4
    INTEGER = 8
    LONG_INTEGER = 16
    """An integer beyond 2^53 that fits BIGINT: not exact as a DOUBLE."""
    HUGE_INTEGER = 32
    """An integer that does not fit BIGINT."""
    FRACTION = 64
    """A number with a fraction or an exponent, NaN or infinity."""
    DATE = 128
    """A calendar day of a typed format; JSON has none."""
    TIMESTAMP = 256
    """A moment of a typed format; JSON has none."""
    DECIMAL = 512
    """A decimal of a typed format, with digits behind its point; one without is an integer."""


INTEGERS: Final = Kind.INTEGER | Kind.LONG_INTEGER | Kind.HUGE_INTEGER
NUMBERS: Final = INTEGERS | Kind.FRACTION | Kind.DECIMAL
_LONG_DIGITS: Final = Kind(1 << 10)
_SCALES: Final = tuple(Kind(1 << 11 + scale) for scale in range(MAX_DIGITS + 1))
"""Beside the kind of a typed decimal: that it has more than 18 digits, and how many behind the point. These say which
decimal a new column is, and are nothing that a column could refuse: they are no named members, so ``~`` leaves them
out."""
_SHORT_DIGITS: Final = 18

TAKEN_KINDS: Final[Mapping[str, Kind]] = {
    "VARCHAR": Kind.STRING | Kind.NESTED,
    "BIGINT": Kind.INTEGER | Kind.LONG_INTEGER,
    "DOUBLE": Kind.INTEGER | Kind.FRACTION | Kind.DECIMAL,
    "BOOLEAN": Kind.BOOLEAN,
    "TIMESTAMP": Kind.STRING | INTEGERS | Kind.DATE | Kind.TIMESTAMP,
    "DATE": Kind.STRING | Kind.DATE,
}
"""Which kinds a column of each type takes; decimals besides: :func:`find_taken`."""

_EVIDENCE: Final[Mapping[str, Kind]] = {
    **{name: TAKEN_KINDS[name] for name in ("BOOLEAN", "BIGINT", "DOUBLE", "VARCHAR")},
    "DATE": Kind.DATE,
    "TIMESTAMP": Kind.DATE | Kind.TIMESTAMP,
}
"""Of which kinds a new column of each type is, the narrowest type first: text does not look like a date."""

_KIND_NAMES: Final[Mapping[Kind, str]] = {
    Kind.STRING: "string",
    Kind.NESTED: "object or array",
    Kind.BOOLEAN: "boolean",
    Kind.INTEGER: "integer",
    Kind.LONG_INTEGER: "integer beyond 2^53",
    Kind.HUGE_INTEGER: "integer beyond 64 bits",
    Kind.FRACTION: "number with a fraction",
    Kind.DATE: "date",
    Kind.TIMESTAMP: "timestamp",
    Kind.DECIMAL: "decimal",
}


def find_taken(sql_type: str | None) -> Kind:
    """Return which kinds a column of a type takes; text of a decimal is looked at, as it is of times."""
    if find_decimal(sql_type) is not None:
        return NUMBERS | Kind.STRING
    return TAKEN_KINDS.get(sql_type or "", Kind(0))


def describe_kinds(kinds: Kind) -> str:
    """Return the kinds in words, e.g. ``string and boolean``."""
    return " and ".join(name for kind, name in _KIND_NAMES.items() if kind & kinds)


def infer_type(kinds: Kind) -> str | None:
    """Return the SQL type of a new column with values of these kinds; None if no one type takes them all.

    Integers and fractions together make a DOUBLE, unless an integer would lose digits. Typed decimals make a DECIMAL of
    18 or 38 digits, also beside integers: how many digits a writer has given its own is often chance.
    """
    if not kinds:
        return None
    scales, is_long = [scale for scale, kind in enumerate(_SCALES) if kinds & kind], bool(kinds & _LONG_DIGITS)
    kinds &= ~Kind(0)
    if scales and not kinds & ~(INTEGERS | Kind.DECIMAL):
        is_short = len(scales) == 1 and scales[0] <= _SHORT_DIGITS and not is_long
        return str(DecimalType(_SHORT_DIGITS if is_short else MAX_DIGITS, max(scales)))
    return next((sql_type for sql_type, taken in _EVIDENCE.items() if not kinds & ~taken), None)


def describe_clash(column: str, kinds: Kind, wanted_type: str) -> str | None:
    """Return why values of these kinds do not fit a column's type, and the remedy; None if they fit."""
    bad = kinds & ~find_taken(wanted_type)
    if not bad:
        return None
    found = (
        f"column {column!r} is {wanted_type} (by the table's schema or an earlier batch), "
        f"this batch has {describe_kinds(bad)} values"
    )
    if wanted_type == "DOUBLE" and bad & INTEGERS:
        remedy = "a DOUBLE would lose digits: send such numbers as strings in a column of their own"
    elif wanted_type == "BIGINT" and bad & Kind.HUGE_INTEGER:
        remedy = "BIGINT ends at 2^63 - 1: send such numbers as strings in a column of their own"
    else:
        remedy = f"send values that fit {wanted_type}, or use another column name"
    return f"{found}; {remedy}"


def describe_mixture(column: str, kinds: Kind) -> str:
    """Return why a new column with values of these kinds has no type, and the remedy."""
    found = f"column {column!r} is new, and no one type takes its {describe_kinds(kinds)} values"
    if not kinds & ~NUMBERS:
        return f"{found} without losing digits: send such numbers as strings"
    return f"{found}: send one type in one column, or use two column names"


def find_odd_kinds(kinds: Kind, first: Kind) -> Kind:
    """Return which kinds do not go with the first value of a new column that no one type takes.

    Args:
        kinds: Of all values of a batch.
        first: Of the first one: it is right, unless nothing takes it.
    """
    sql_type = infer_type(first)
    if sql_type is None:
        return first
    if sql_type == "BIGINT" and infer_type(kinds & NUMBERS) == "DOUBLE":
        sql_type = "DOUBLE"
    return kinds & ~find_taken(sql_type)


class SchemaBuilder:
    """The types of a flush: what is known, and what its batches add, in the order in which they are offered.

    Args:
        known: Column to SQL type that is fixed.
        widenable: Those of them that may become wider, with the wider type.
    """

    def __init__(self, known: Mapping[str, str], widenable: Mapping[str, str] | None = None) -> None:
        self._known = dict(known)
        self._widenable = dict(widenable or {})
        self._known_kinds: dict[str, Kind] = {}
        self._new: dict[str, Kind] = {}

    @property
    def new_kinds(self) -> Mapping[str, Kind]:
        """The columns that were added, with the kinds of all values accepted so far."""
        return self._new

    def type_of(self, column: str) -> str | None:
        """Return the type of a column so far; None if it has none."""
        return self._known.get(column) or infer_type(self._new.get(column, Kind(0)))

    def type_with(self, column: str, kinds: Kind) -> str | None:
        """Return the type that a column has if such values are added to it."""
        before = self._new.get(column, Kind(0))
        return self._known.get(column) or infer_type(before | kinds) or infer_type(before)

    def find_clash(self, column: str, kinds: Kind) -> str | None:
        """Return why a batch with such values in a column cannot be taken; None if it can."""
        if column in self._known:
            return describe_clash(column, kinds, self._known[column])
        before = self._new.get(column, Kind(0))
        if infer_type(before | kinds):
            return None
        if infer_type(kinds) is None:
            return describe_mixture(column, kinds)
        before_type = infer_type(before)
        return describe_clash(column, kinds, before_type or "") if before_type else None

    @property
    def long_columns(self) -> tuple[str, ...]:
        """The known columns of which some accepted value would lose digits as a DOUBLE."""
        return tuple(name for name, kinds in self._known_kinds.items() if kinds & Kind.LONG_INTEGER)

    def find_wider(self, column: str, kinds: Kind) -> str | None:
        """Return the wider type that would take such values and all accepted ones; None if there is none."""
        wide = self._widenable.get(column)
        if wide is None or (self._known_kinds.get(column, Kind(0)) | kinds) & ~TAKEN_KINDS[wide]:
            return None
        has_wide = Kind.FRACTION | Kind.DECIMAL if wide == "DOUBLE" else Kind.TIMESTAMP
        return wide if kinds & has_wide else None

    def add(self, column: str, kinds: Kind) -> None:
        """Take the values of an accepted batch as evidence for a column's type."""
        if column in self._known:
            self._known_kinds[column] = self._known_kinds.get(column, Kind(0)) | kinds
        elif kinds:
            before = self._new.get(column, Kind(0))
            united = before | kinds
            if infer_type(before) and not infer_type(united):
                return  # text of a batch after one of typed times: the column takes it, and it changes no type
            # An exact integer beside a fraction makes no difference: so the same rows are the same evidence, whether
            # or not a reader looked at each number's text.
            self._new[column] = united & ~Kind.INTEGER if united & Kind.FRACTION else united


ISO_PATTERN: Final = r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?( ?([Zz]|[+-]\d{2}(:?\d{2})?))?)?"
DATE_PATTERN: Final = r"\d{4}-\d{2}-\d{2}"
_MIN_TIMESTAMP: Final = "TIMESTAMP '0001-01-01 00:00:00'"
_MAX_TIMESTAMP: Final = "TIMESTAMP '9999-12-31 23:59:59.999999'"
_SHORT_INTEGER_LENGTH: Final = 15
"""Integers of so few characters lie within 2^53."""


def kind_sql(raw: str) -> str:
    """Return the SQL of a raw value's :class:`Kind`; 0 for NULL."""
    whole = f"try_cast({raw} AS BIGINT)"
    return (
        f"CASE ascii({raw}) WHEN 34 THEN {Kind.STRING:d} WHEN 123 THEN {Kind.NESTED:d} WHEN 91 THEN {Kind.NESTED:d} "
        f"WHEN 116 THEN {Kind.BOOLEAN:d} WHEN 102 THEN {Kind.BOOLEAN:d} ELSE CASE "
        f"WHEN {raw} IS NULL THEN 0 "
        f"WHEN NOT regexp_full_match({raw}, '-?[0-9]+') THEN {Kind.FRACTION:d} "
        f"WHEN length({raw}) <= {_SHORT_INTEGER_LENGTH} THEN {Kind.INTEGER:d} "
        f"WHEN {whole} IS NULL THEN {Kind.HUGE_INTEGER:d} "
        f"WHEN {whole} BETWEEN -{EXACT_DOUBLE_MAX} AND {EXACT_DOUBLE_MAX} THEN {Kind.INTEGER:d} "
        f"ELSE {Kind.LONG_INTEGER:d} END END"
    )


def _double_sql(number: str) -> str:
    """Return the SQL of a number's text as a DOUBLE; NULL above its range, unless it says that it is infinite."""
    value = f"try_cast({number} AS DOUBLE)"
    return f"CASE WHEN isinf({value}) AND NOT contains(lower({number}), 'inf') THEN NULL ELSE {value} END"


def _date_sql(text: str) -> str:
    """Return the SQL of text as a DATE; NULL where it is none."""
    day = f"try_cast(CASE WHEN regexp_full_match({text}, '{DATE_PATTERN}') THEN {text} END AS DATE)"
    return f"CASE WHEN {day} >= DATE '0001-01-01' THEN {day} END"


def _iso_sql(text: str) -> str:
    """Return the SQL of ISO-8601 text as a moment, of any year; NULL where it is none."""
    iso = f"CASE WHEN regexp_full_match({text}, '{ISO_PATTERN}') THEN {text} END"
    return f"CAST(try_cast({iso} AS TIMESTAMPTZ) AS TIMESTAMP)"


def _years_sql(moment: str) -> str:
    """Return the SQL of a moment; NULL outside the years 1 to 9999."""
    return f"CASE WHEN {moment} BETWEEN {_MIN_TIMESTAMP} AND {_MAX_TIMESTAMP} THEN {moment} END"


def _text_sql(raw: str) -> str:
    """Return the SQL of a raw value as text: a string without quotes and escapes, anything else as JSON."""
    return (
        f"CASE WHEN ascii({raw}) <> 34 THEN CAST({raw} AS VARCHAR) "
        f"WHEN contains({raw}, '\\') THEN json_extract_string({raw}, '$') "
        f"ELSE substring({raw}, 2, length({raw}) - 2) END"
    )


class Form(StrEnum):
    """What a column of the engine holds before it is cast.

    Raw JSON text, the text of a cell, the text of objects and arrays, or an SQL type; decimals besides, by their own
    type (``DECIMAL(9,2)``): where forms are handed on they are text.
    """

    JSON = "JSON"
    CELL = "CELL"
    NESTED = "NESTED"
    VARCHAR = "VARCHAR"
    BIGINT = "BIGINT"
    DOUBLE = "DOUBLE"
    BOOLEAN = "BOOLEAN"
    TIMESTAMP = "TIMESTAMP"
    DATE = "DATE"


KINDS: Final = {
    Form.VARCHAR: Kind.STRING,
    Form.NESTED: Kind.NESTED,
    Form.DOUBLE: Kind.FRACTION,
    Form.BOOLEAN: Kind.BOOLEAN,
    Form.TIMESTAMP: Kind.TIMESTAMP,
    Form.DATE: Kind.DATE,
}
_PLAIN_NUMBER: Final = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?"
_CELL_NUMBER: Final = rf"{_PLAIN_NUMBER}([eE][+-]?[0-9]+)?|-?(inf|Infinity)|nan|NaN"
"""As in JSON, and what programs write for a DOUBLE that is no number."""
_FAILING: Final = {
    "TIMESTAMP": (Form.JSON, Form.CELL, Form.VARCHAR, Form.BIGINT),
    "DATE": (Form.JSON, Form.CELL, Form.VARCHAR),
    "DOUBLE": (Form.JSON, Form.CELL),
}


def find_plain_kind(form: str) -> Kind | None:
    """Return the kind of all values of a form; ``None``: it is not the same of all."""
    digits = find_decimal(form)
    if digits is None:
        return KINDS.get(Form(form))
    return Kind.DECIMAL if digits.scale else None


def find_digits(form: str) -> Kind:
    """Return what is known of a form beside the kinds of its values: how many digits its decimals have."""
    digits = find_decimal(form)
    if digits is None:
        return Kind(0)
    return _SCALES[digits.scale] | (_LONG_DIGITS if digits.precision > _SHORT_DIGITS else Kind(0))


def kinds_sql(column: str, form: str) -> str:
    """Return the SQL of one value's :class:`Kind`; 0 for NULL."""
    if form == Form.JSON:
        return kind_sql(column)
    if form == Form.CELL:
        return (
            f"CASE WHEN {column} IS NULL THEN 0 WHEN regexp_full_match({column}, '{_CELL_NUMBER}') "
            f"THEN {kind_sql(column)} WHEN {column} IN ('true', 'false') THEN {Kind.BOOLEAN:d} "
            f"ELSE {Kind.STRING:d} END"
        )
    kind = find_plain_kind(form)
    if kind is not None:
        return f"CASE WHEN {column} IS NULL THEN 0 ELSE {kind:d} END"
    is_huge = "" if form == Form.BIGINT else f"WHEN try_cast({column} AS BIGINT) IS NULL THEN {Kind.HUGE_INTEGER:d} "
    return (
        f"CASE WHEN {column} BETWEEN -{EXACT_DOUBLE_MAX} AND {EXACT_DOUBLE_MAX} THEN {Kind.INTEGER:d} "
        f"WHEN {column} IS NULL THEN 0 {is_huge}ELSE {Kind.LONG_INTEGER:d} END"
    )


def evidence_sql(column: str, form: str) -> str:
    """Return the SQL of the kinds of all values of a group of rows; NULL if there is none."""
    kind = find_plain_kind(form)
    if kind is not None:
        return f"CASE WHEN count({column}) > 0 THEN {kind:d} END"
    return f"bit_or({kinds_sql(column, form)})"


def can_fail(form: str, sql_type: str) -> bool:
    """Return whether a value of the right kind may still not fit the type (a bad date, 1e999, too many digits)."""
    if find_decimal(sql_type) is not None:
        return form != sql_type
    if find_decimal(form) is not None:
        return sql_type == "TIMESTAMP"
    return form in _FAILING.get(sql_type, ())


def is_cast(form: str, sql_type: str | None) -> bool:
    """Return whether values of this form have to be cast to be of the type; no for a column that is left out."""
    return sql_type is not None and form != sql_type and (form, sql_type) != (Form.NESTED, "VARCHAR")


def _decimal_sql(text: str, digits: DecimalType) -> str:
    """Return the SQL of a number's text as a decimal; NULL where it is none, or has more digits than go in.

    DuckDB rounds what has more digits behind the point, and takes no exponent where the digits before it do not fit by
    themselves. So digits are counted, without the zeros at the end, and moved by the exponent.
    """

    def exact(number: str) -> str:
        is_fit = f"length(rtrim(split_part({number}, '.', 2), '0')) <= {digits.scale}"
        return f"CASE WHEN {is_fit} THEN try_cast({number} AS {digits}) END"

    mantissa = f"regexp_extract({text}, '[0-9.]+')"
    all_digits = f"replace({mantissa}, '.', '')"
    point = f"length(split_part({mantissa}, '.', 1)) + CAST(regexp_extract({text}, '[eE](.*)', 1) AS INT)"
    moved = (
        f"(CASE WHEN starts_with({text}, '-') THEN '-' ELSE '' END || "
        f"CASE WHEN {point} <= 0 THEN '0.' || repeat('0', -({point})) || {all_digits} "
        f"ELSE ({all_digits} || repeat('0', {point}))[:{point}] || '.' || {all_digits}[{point} + 1:] END)"
    )
    return (
        f"CASE WHEN regexp_full_match({text}, '{_PLAIN_NUMBER}') THEN {exact(text)} "
        f"WHEN regexp_full_match({text}, '{_PLAIN_NUMBER}[eE][+-]?[0-9]{{1,2}}') THEN {exact(moved)} "
        f"WHEN regexp_full_match({text}, '-?[0.]+[eE][+-]?[0-9]+') THEN CAST(0 AS {digits}) END"
    )


def _cast_decimal_sql(column: str, text: str, form: str, digits: DecimalType) -> str:
    """Return the SQL of a value as a decimal; of a double by the shortest text that reads back to it."""
    tried = f"try_cast({column} AS {digits})"
    if form == Form.BIGINT:
        return tried
    if find_decimal(form) is not None:
        return f"CASE WHEN try_cast({tried} AS {form}) = {column} THEN {tried} END"
    return _decimal_sql(f"CAST({column} AS VARCHAR)" if form == Form.DOUBLE else text, digits)


def cast_sql(column: str, form: str, sql_type: str, *, unit: TimeUnit) -> str:
    """Return the SQL of a value as ``sql_type``, NULL where it does not fit; ``unit`` is of TIMESTAMP's numbers."""
    if not is_cast(form, sql_type):
        return column
    is_raw = form in (Form.JSON, Form.CELL)
    text = _text_sql(column) if form == Form.JSON else column
    digits, is_decimal = find_decimal(sql_type), find_decimal(form) is not None
    if digits is not None:
        return _cast_decimal_sql(column, text, form, digits)
    if sql_type == "DATE" and (is_raw or form == Form.VARCHAR):
        return _date_sql(text)
    if sql_type == "TIMESTAMP" and form == Form.VARCHAR:
        return _years_sql(_iso_sql(column))
    if sql_type == "TIMESTAMP" and (is_raw or is_decimal or form == Form.BIGINT):
        number = moment_sql(column if form == Form.BIGINT else f"try_cast({column} AS BIGINT)", unit)
        is_number = f"ascii({column}) <> 34" if form == Form.JSON else f"regexp_full_match({column}, '-?[0-9]+')"
        return _years_sql(f"CASE WHEN {is_number} THEN {number} ELSE {_iso_sql(text)} END" if is_raw else number)
    raw = {"VARCHAR": text, "BOOLEAN": f"({column} = 'true')", "DOUBLE": _double_sql(column)} if is_raw else {}
    # A decimal becomes a double by its text: the nearest one, whatever its digits.
    value = f"CAST({column} AS VARCHAR)" if is_decimal else column
    return raw.get(sql_type, f"try_cast({value} AS {sql_type})")
