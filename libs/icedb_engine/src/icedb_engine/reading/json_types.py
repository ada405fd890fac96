"""From JSON values to SQL types: the one rule, as pure functions. In words: ``docs/types.md``.

The engine only counts what kinds of values a column of a batch has (:class:`Kind`, a set of bits per batch and
column); what they mean together with the table's schema is decided here, batch after batch in the order in
which they were staged, so that the same flush always ends the same way.
"""

from collections.abc import Mapping
from enum import IntFlag
from typing import Final

EXACT_DOUBLE_MAX: Final = 2**53
"""Every integer up to here has an exact DOUBLE."""


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


INTEGERS: Final = Kind.INTEGER | Kind.LONG_INTEGER | Kind.HUGE_INTEGER
NUMBERS: Final = INTEGERS | Kind.FRACTION

TAKEN_KINDS: Final[Mapping[str, Kind]] = {
    "VARCHAR": Kind.STRING | Kind.NESTED,
    "BIGINT": Kind.INTEGER | Kind.LONG_INTEGER,
    "DOUBLE": Kind.INTEGER | Kind.FRACTION,
    "BOOLEAN": Kind.BOOLEAN,
    "TIMESTAMP": Kind.STRING | INTEGERS | Kind.DATE | Kind.TIMESTAMP,
    "DATE": Kind.STRING | Kind.DATE,
}
"""Which kinds a column of each type takes."""

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
}


def describe_kinds(kinds: Kind) -> str:
    """Return the kinds in words, e.g. ``string and boolean``."""
    return " and ".join(name for kind, name in _KIND_NAMES.items() if kind & kinds)


def infer_type(kinds: Kind) -> str | None:
    """Return the SQL type of a new column with values of these kinds; None if no one type takes them all.

    Integers and fractions together make a DOUBLE, unless an integer would lose digits.
    """
    if not kinds:
        return None
    return next((sql_type for sql_type, taken in _EVIDENCE.items() if not kinds & ~taken), None)


def normalize_kinds(kinds: Kind) -> Kind:
    """Return the kinds without what they say twice: an exact integer beside a fraction makes no difference.

    So the same rows are the same evidence, whether or not a reader looked at each number's text.
    """
    return kinds & ~Kind.INTEGER if kinds & Kind.FRACTION else kinds


def describe_clash(column: str, kinds: Kind, wanted_type: str) -> str | None:
    """Return why values of these kinds do not fit a column's type, and the remedy; None if they fit."""
    bad = kinds & ~TAKEN_KINDS.get(wanted_type, Kind(0))
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
    return kinds & ~TAKEN_KINDS[sql_type]


class SchemaBuilder:
    """The types of a flush: what is known, and what its batches add, in the order in which they are offered.

    Args:
        known: Column to SQL type that is fixed: the log's schema, and the declared columns.
        widenable: Known columns that may become wider, with the wider type.
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
        return self._known.get(column) or infer_type(self._new.get(column, Kind(0)) | kinds)

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
        has_wide = Kind.FRACTION if wide == "DOUBLE" else Kind.TIMESTAMP
        return wide if kinds & has_wide else None

    def add(self, column: str, kinds: Kind) -> None:
        """Take the values of an accepted batch as evidence for a column's type."""
        if column in self._known:
            self._known_kinds[column] = self._known_kinds.get(column, Kind(0)) | kinds
        elif kinds:
            self._new[column] = normalize_kinds(self._new.get(column, Kind(0)) | kinds)
