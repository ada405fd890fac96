"""Conditions on partition values: which partitions of a table a reader wants. Pure.

Owns the meaning of a filter and its text form; the snapshot service and the client both prune with it, so
that an answer over the wire and one read straight from the log are the same. A filter that cannot be
understood is refused: to ignore it would return the wrong files.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import translate
from typing import Final, Self

from icedb_log.errors import InvalidRequest
from icedb_log.table.partition_path import HIVE_NULL, decode_partition_value
from icedb_log.table.table_config import PartitionField, TableConfig
from icedb_log.texts import is_text

MAX_FILTERS: Final = 64
MAX_VALUES_PER_FILTER: Final = 10_000
MAX_VALUE_BYTES: Final = 1024

_TEXT: Final = re.compile(r"\s*(?P<field>[A-Za-z0-9_]{1,64})\s*(?P<op>>=|<=|=|>|<|~)(?P<value>.*)", re.DOTALL)
_NULL_TEXT: Final = re.compile(r"\s*(?P<field>[A-Za-z0-9_]{1,64})\s+is\s+(?P<negated>not\s+)?null\s*", re.IGNORECASE)
_INTEGER: Final = re.compile(r"-?[0-9]{1,19}")
_FORMS: Final = (
    "write field=value, field>=value, field>value, field<=value, field<value, field~glob or 'field is [not] null'"
)

_SHAPES: Final[Mapping[str, tuple[re.Pattern[str], str]]] = {
    "year": (re.compile(r"-?[0-9]{1,6}"), "a year such as 2026"),
    "month": (re.compile(r"[0-9]{4}-[0-9]{2}"), "a month such as 2026-01"),
    "day": (re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}"), "a day such as 2026-01-31"),
    "bucket": (re.compile(r"[0-9]{1,7}"), "a bucket number such as 7"),
}


@dataclass(frozen=True, slots=True)
class PartitionFilter:
    """One condition on one partition field. All parts that are set must hold.

    Attributes:
        field: Name of a partition field.
        any_of: The value is one of these.
        is_null: The value is (True) or is not (False) null.
        at_least: Inclusive lower bound. A null value lies in no range.
        above: Exclusive lower bound.
        at_most: Inclusive upper bound.
        below: Exclusive upper bound.
        glob: The value's text matches this pattern, case and all: ``*`` any characters, ``?`` one, ``[a-z]`` one of
            these, ``[!a-z]`` one of the others. A null value matches nothing.
    """

    field: str
    any_of: frozenset[str] | None = None
    is_null: bool | None = None
    at_least: str | None = None
    above: str | None = None
    at_most: str | None = None
    below: str | None = None
    glob: str | None = None

    @classmethod
    def equals(cls, field: str, *values: str) -> Self:
        """Return the condition that the value is one of ``values``."""
        return cls(field, any_of=frozenset(values))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text form, e.g. ``d=2026-01-31`` or ``d>=2026-01-01`` or ``d is null``.

        Raises:
            InvalidRequest: Not understood; the message names all forms.
        """
        null = _NULL_TEXT.fullmatch(text)
        if null is not None:
            return cls(null["field"], is_null=null["negated"] is None)
        match = _TEXT.fullmatch(text)
        if match is None:
            raise InvalidRequest(f"partition filter {text[:80]!r} is not understood: {_FORMS}")
        value = match["value"].strip()
        if match["op"] == "=":
            return cls.equals(match["field"], value)
        bound = {">=": "at_least", ">": "above", "<=": "at_most", "<": "below", "~": "glob"}[match["op"]]
        return cls(match["field"], **{bound: value})  # type: ignore[arg-type]  # only str fields are named above

    def bounds(self) -> tuple[str, ...]:
        """Return the range bounds that are set."""
        return tuple(b for b in (self.at_least, self.above, self.at_most, self.below) if b is not None)


def parse_partition_filters(texts: Iterable[str]) -> tuple[PartitionFilter, ...]:
    """Parse several text forms; several ``field=value`` of one field mean any of these values.

    Raises:
        InvalidRequest: One of them is not understood.
    """
    filters: list[PartitionFilter] = []
    values: dict[str, set[str]] = {}
    for text in texts:
        parsed = PartitionFilter.parse(text)
        if parsed.any_of is None:
            filters.append(parsed)
        else:
            values.setdefault(parsed.field, set()).update(parsed.any_of)
    return (*(PartitionFilter(field, any_of=frozenset(some)) for field, some in values.items()), *filters)


def read_partition_values(path: str) -> dict[str, str | None]:
    """Return the decoded values of a Hive partition path by field name, ``None`` for null; empty for ``""``.

    Components that are not ``name=value`` (other writers of the log format) are left out: what a path does not
    say, no filter holds against it.
    """
    values: dict[str, str | None] = {}
    for component in path.split("/") if path else ():
        name, separator, encoded = component.partition("=")
        if name and separator:
            values[name] = None if encoded == HIVE_NULL else decode_partition_value(encoded)
    return values


class PartitionMatcher:
    """Filters, checked against a table's partition spec and ready to use.

    Args:
        filters: All of them must hold; none keep everything.
        config: The table's configuration.

    Raises:
        InvalidRequest: A filter names no partition field, is empty, too large, or a value has the wrong form.
    """

    def __init__(self, filters: Iterable[PartitionFilter], config: TableConfig) -> None:
        self._filters = tuple(filters)
        if len(self._filters) > MAX_FILTERS:
            raise InvalidRequest(f"table {config.name}: {len(self._filters)} partition filters; at most {MAX_FILTERS}")
        fields = {field.name: field for field in config.partition}
        self._numeric: dict[str, bool] = {}
        self._globs: dict[str, re.Pattern[str]] = {}
        for condition in self._filters:
            field = fields.get(condition.field)
            if field is None:
                known = ", ".join(str(field) for field in config.partition) or "none: it is not partitioned"
                raise InvalidRequest(
                    f"table {config.name}: no partition field {condition.field[:80]!r}; "
                    f"its partition fields are {known}"
                )
            self._numeric[field.name] = _is_numeric(field, config)
            self._check(condition, field, config)

    @property
    def keeps_all(self) -> bool:
        """Whether there is no condition."""
        return not self._filters

    def matches(self, values: Mapping[str, str | None]) -> bool:
        """Say whether a partition meets every condition.

        Args:
            values: Decoded value (``None``: null) of each partition field. One that is missing is unknown, and
                what is unknown is kept: an answer never lacks rows silently.
        """
        return all(
            condition.field not in values or self._holds(condition, values[condition.field])
            for condition in self._filters
        )

    def _holds(self, condition: PartitionFilter, value: str | None) -> bool:
        if condition.is_null is not None and condition.is_null != (value is None):
            return False
        if value is None:
            return condition.any_of is None and condition.glob is None and not condition.bounds()
        if condition.glob is not None and not self._globs[condition.glob].match(value):
            return False
        if condition.any_of is not None and value not in condition.any_of:
            return False
        if not condition.bounds():
            return True
        key = self._order(condition.field, value)
        return not (
            (condition.at_least is not None and key < self._order(condition.field, condition.at_least))
            or (condition.above is not None and key <= self._order(condition.field, condition.above))
            or (condition.at_most is not None and key > self._order(condition.field, condition.at_most))
            or (condition.below is not None and key >= self._order(condition.field, condition.below))
        )

    def _order(self, field: str, value: str) -> tuple[int, str]:
        if self._numeric[field] and _INTEGER.fullmatch(value):
            return (int(value), "")
        return (0, value)

    def _check(self, condition: PartitionFilter, field: PartitionField, config: TableConfig) -> None:
        values = (*(condition.any_of or ()), *condition.bounds())
        if condition.glob is not None:
            self._globs[condition.glob] = _compile_glob(condition.glob, field, config)
        if not values and condition.is_null is None and condition.glob is None:
            raise InvalidRequest(f"table {config.name}: the filter on partition field {field.name} has no condition")
        if len(values) > MAX_VALUES_PER_FILTER:
            raise InvalidRequest(
                f"table {config.name}: {len(values)} values for partition field {field.name}; "
                f"at most {MAX_VALUES_PER_FILTER}: use a range"
            )
        shape, example = _SHAPES.get(field.transform, (None, ""))
        for value in values:
            what = f"table {config.name}: partition field {field}: value {value[:80]!r}"
            if not is_text(value):
                raise InvalidRequest(f"{what} has half a character (a lone surrogate): give text in UTF-8")
            if len(value.encode()) > MAX_VALUE_BYTES:
                raise InvalidRequest(f"{what} is longer than {MAX_VALUE_BYTES} bytes")
            if shape is not None and not shape.fullmatch(value):
                raise InvalidRequest(f"{what} is not {example}")
            if shape is None and self._numeric[field.name] and not _INTEGER.fullmatch(value):
                raise InvalidRequest(f"{what} is not a whole number")


def _compile_glob(glob: str, field: PartitionField, config: TableConfig) -> re.Pattern[str]:
    if not glob or len(glob.encode(errors="replace")) > MAX_VALUE_BYTES:
        raise InvalidRequest(
            f"table {config.name}: partition field {field}: a glob has 1 to {MAX_VALUE_BYTES} bytes, e.g. 2026-01-*"
        )
    return re.compile(translate(glob))


def _is_numeric(field: PartitionField, config: TableConfig) -> bool:
    if field.transform in ("bucket", "year"):
        return True
    return field.transform in ("identity", "truncate") and config.declared.get(field.column) == "BIGINT"
