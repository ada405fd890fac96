"""Partition transforms: from a column's value to the text of a partition value.

Each transform exists twice: as DuckDB SQL, which does the work, and in plain Python, which says what the SQL
must mean and lets readers compute a partition from a value. A property test compares the two. The text is not
encoded for a key yet: that is :func:`icedb_log.table.partitions.encode_partition_value`.

=============== =========================================== ==========================================
transform       of                                          text
=============== =========================================== ==========================================
``identity``    every type but DOUBLE                       the canonical text
``year``        TIMESTAMP, DATE, BIGINT with a unit         ``2023``
``month``       TIMESTAMP, DATE, BIGINT with a unit         ``2023-06``
``day``         TIMESTAMP, DATE, BIGINT with a unit         ``2023-06-07``
``hour``        TIMESTAMP, DATE, BIGINT with a unit         ``2023-06-07-13`` (``-00`` of a DATE)
``bucket[n]``   every type                                  ``0`` to ``n - 1``, not padded
``truncate[n]`` VARCHAR                                     the first n characters (code points)
``truncate[n]`` BIGINT                                      floor to a multiple of n
=============== =========================================== ==========================================

Canonical text: VARCHAR as it is; BIGINT decimal; DECIMAL with all digits of its scale; BOOLEAN ``true`` or ``false``;
DATE ``2023-06-07``; TIMESTAMP ``2023-06-07T13:00:00.000000Z``; DOUBLE the shortest text that reads back to the same
value (``5.0``, ``1e+16``), NaN with its sign. A BIGINT with a unit (``epoch_s``, ``epoch_ms``, ``epoch_us``) is the
moment that it counts to, also before 1970; outside the years 1 to 9999 it has no partition. All other transforms take
it as the number it is.
A bucket is the first eight hex digits of the MD5 of the canonical text in UTF-8, as an unsigned integer, modulo n: the
same on every machine and in every release, because it is part of the names of data files.
"""

import hashlib
import math
import re
from calendar import isleap, monthrange
from collections.abc import Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final, NamedTuple

from icedb_log.table.column_bounds import Scalar
from icedb_log.table.decimals import find_decimal, show_decimal
from icedb_log.table.table_config import TIME_TRANSFORMS, PartitionField
from icedb_log.table.time_columns import (
    MAX_TIME_MS,
    MIN_TIME_MS,
    TICK_US,
    TIME_UNITS,
    TimeColumn,
    TimeUnit,
    read_count,
)

_YEAR: Final = "([+-]?[0-9]{4,6})"
_YEAR_CHARS: Final = 4
"""Of the years that Python knows; others have more digits, or a sign."""


class _ValueText(NamedTuple):
    """How the values of a transform are written.

    Attributes:
        pattern: A regular expression that all of them match, with a group for each number.
        example: One of them, in words.
        sql_format: For DuckDB's ``strftime``; empty: the transform makes no time.
        python_format: The same for :meth:`str.format`, with the value and its ``hour``.
    """

    pattern: str
    example: str
    sql_format: str = ""
    python_format: str = ""


_VALUE_TEXTS: Final[Mapping[str, _ValueText]] = {
    "year": _ValueText(_YEAR, "a year such as 2026", "%Y", "{0.year:04d}"),
    "month": _ValueText(rf"{_YEAR}-([0-9]{{2}})", "a month such as 2026-01", "%Y-%m", "{0.year:04d}-{0.month:02d}"),
    "day": _ValueText(
        rf"{_YEAR}-([0-9]{{2}})-([0-9]{{2}})",
        "a day such as 2026-01-31",
        "%Y-%m-%d",
        "{0.year:04d}-{0.month:02d}-{0.day:02d}",
    ),
    "hour": _ValueText(
        rf"{_YEAR}-([0-9]{{2}})-([0-9]{{2}})-([0-9]{{2}})",
        "an hour such as 2026-01-31-13",
        "%Y-%m-%d-%H",
        "{0.year:04d}-{0.month:02d}-{0.day:02d}-{hour:02d}",
    ),
    "bucket": _ValueText("([0-9]{1,7})", "a bucket number such as 7"),
}
"""Of the transforms whose values have a form: the one place that says it. A time transform needs a line here, its span
in :func:`read_time_span`, and its name in :data:`icedb_log.table.table_config.TimeTransform`."""
VALUE_SHAPES: Final[Mapping[str, tuple[re.Pattern[str], str]]] = {
    name: (re.compile(text.pattern), text.example) for name, text in _VALUE_TEXTS.items()
}
"""How the partition values of a transform look, for those that have a form; and one of them, in words."""
_LEAST_PARTS: Final = (1, 1, 1, 0)
"""Month, day and hour where a text does not say them; the year is always said."""
TIMESTAMP_TEXT_FORMAT: Final = "%Y-%m-%dT%H:%M:%S.%fZ"
HASH_HEX_DIGITS: Final = 8
_USABLE_TYPES: Final = {
    "identity": ("VARCHAR", "BIGINT", "BOOLEAN", "DATE", "TIMESTAMP", "DECIMAL"),
    "truncate": ("VARCHAR", "BIGINT"),
    "bucket": ("VARCHAR", "BIGINT", "BOOLEAN", "DATE", "TIMESTAMP", "DOUBLE", "DECIMAL"),
    **dict.fromkeys(TIME_TRANSFORMS, ("TIMESTAMP", "DATE")),
}


def find_type_problem(field: PartitionField, sql_type: str) -> str | None:
    """Return why a transform cannot take a column of this type, or None if it can."""
    usable = _USABLE_TYPES[field.transform]
    is_time = field.transform in TIME_TRANSFORMS
    if ("DECIMAL" if find_decimal(sql_type) else sql_type) in usable or (
        is_time and sql_type == "BIGINT" and field.unit is not None
    ):
        return None
    remedy = f"declare the type of {field.column!r} or use bucket[n]"
    if is_time and sql_type == "BIGINT":
        remedy = f"declare {field.column!r} as what its numbers count ({', '.join(TIME_UNITS)})"
    return f"partition {field} cannot take a column of type {sql_type}, only {', '.join(usable)}; {remedy}"


def moment_sql(expression: str, unit: TimeUnit) -> str:
    """Return the SQL of the moment that a BIGINT stands for; NULL outside the years 1 to 9999."""
    tick_us = TICK_US[unit]
    low, high = -(-MIN_TIME_MS * 1000 // tick_us), ((MAX_TIME_MS + 1) * 1000 - 1) // tick_us
    return f"make_timestamp(CASE WHEN {expression} BETWEEN {low} AND {high} THEN {expression} * {tick_us} END)"


def bad_time_sql(time: TimeColumn, sql_type: str) -> str | None:
    """Return the SQL of whether a value, written ``{}``, is a time that the column does not take; None if all are."""
    bounds = time.find_bounds(sql_type)
    if bounds is None:
        return None
    low, high = (f"{sql_type} '{bound}'" if isinstance(bound, date) else bound for bound in bounds)
    return f"({{0}} < {low}" + (f" OR {{0}} >= {high})" if high is not None else ")")


def canonical_sql(expression: str, sql_type: str) -> str:
    """Return the SQL of the canonical text of a value."""
    if sql_type == "VARCHAR":
        return expression
    if sql_type == "TIMESTAMP":
        return f"strftime({expression}, '{TIMESTAMP_TEXT_FORMAT}')"
    if sql_type == "DATE":
        return f"strftime({expression}, '%Y-%m-%d')"
    digits = find_decimal(sql_type)
    if digits is not None and digits.scale == digits.precision:  # DuckDB writes 0.05 of a DECIMAL(2,2) as .05
        return f"replace(CAST({expression} AS VARCHAR), '.', '0.')"
    return f"CAST({expression} AS VARCHAR)"


def transform_sql(field: PartitionField, expression: str, sql_type: str) -> str:
    """Return the SQL of a partition value's text.

    Args:
        field: The partition field.
        expression: SQL of the source value.
        sql_type: Type of the source, one that :func:`find_type_problem` does not object to.
    """
    if field.transform in TIME_TRANSFORMS:
        moment = moment_sql(expression, field.unit) if sql_type == "BIGINT" and field.unit else expression
        return f"strftime({moment}, '{_VALUE_TEXTS[field.transform].sql_format}')"
    text = canonical_sql(expression, sql_type)
    if field.transform == "bucket":
        return f"CAST(CAST('0x' || left(md5({text}), {HASH_HEX_DIGITS}) AS BIGINT) % {field.width} AS VARCHAR)"
    if field.transform == "truncate":
        if sql_type == "VARCHAR":
            return f"left({expression}, {field.width})"
        wide = f"CAST({expression} AS HUGEINT)"
        return f"CAST({wide} - (({wide} % {field.width}) + {field.width}) % {field.width} AS VARCHAR)"
    return text


def canonical_text(value: Any) -> str:
    """Return the canonical text of a value: str, int, bool, float, Decimal, date or naive UTC datetime."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return f"{value.isoformat(timespec='microseconds')}Z"
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float) and math.isnan(value):  # Python does not write its sign
        return "-nan" if math.copysign(1, value) < 0 else "nan"
    return show_decimal(value) if isinstance(value, Decimal) else repr(value)


def transform_value(field: PartitionField, value: Any) -> str:
    """Return a partition value's text: the meaning of :func:`transform_sql`, in plain Python.

    Args:
        field: The partition field.
        value: The source value: str, int, bool, float, Decimal, date or naive UTC datetime, never None.

    Raises:
        ValueError: A number stands for no time of the years 1 to 9999.
    """
    if field.transform in TIME_TRANSFORMS:
        if isinstance(value, int) and field.unit is not None:
            moment = read_count(value, field.unit)
            if moment is None:
                raise ValueError(f"no time of the years 1 to 9999 as {field.unit}")
            value = moment
        hour = value.hour if isinstance(value, datetime) else 0
        return _VALUE_TEXTS[field.transform].python_format.format(value, hour=hour)
    if field.transform == "bucket":
        digest = hashlib.md5(canonical_text(value).encode(), usedforsecurity=False).hexdigest()
        return str(int(digest[:HASH_HEX_DIGITS], 16) % (field.width or 1))
    if field.transform == "truncate":
        width = field.width or 1
        return value[:width] if isinstance(value, str) else str(value - value % width)
    return canonical_text(value)


def transform_bound(field: PartitionField, bound: Scalar, sql_type: str) -> str | None:
    """Return a partition value's text of a value as file markers have it; ``None`` if it is not one of its type.

    Of a number that is no time it says so, in words.

    Args:
        field: The partition field.
        bound: A JSON scalar: times as ISO text.
        sql_type: Type of the column.
    """
    value = read_bound(bound, sql_type)
    try:
        return None if value is None else transform_value(field, value)
    except ValueError as error:
        return str(error)


def read_bound(bound: Scalar, sql_type: str) -> Any:
    """Return a value as file markers have it as :func:`transform_value` takes it; ``None`` if it is not of its type.

    Neither is a DOUBLE: footers say nothing of NaN, which engines sort above everything.
    """
    value: Any = bound
    try:
        if sql_type == "TIMESTAMP" and isinstance(bound, str):
            value = datetime.fromisoformat(bound.removesuffix("Z"))
        elif sql_type == "DATE" and isinstance(bound, str):
            value = date.fromisoformat(bound)
    except ValueError:
        return None
    digits = find_decimal(sql_type)
    if digits is not None:
        return digits.read(bound) if isinstance(bound, str) else None
    python_type = {"TIMESTAMP": datetime, "DATE": date, "VARCHAR": str, "BIGINT": int, "BOOLEAN": bool}.get(sql_type)
    return value if type(value) is python_type else None


def read_time_span(transform: str, text: str) -> tuple[datetime, timedelta] | None:
    """Return when the time of a time partition begins, as naive UTC, and how long it is; ``None``: no such text."""
    match = VALUE_SHAPES[transform][0].fullmatch(text)
    if match is None or len(match[1]) != _YEAR_CHARS:
        return None
    parts = [int(part) for part in match.groups()]
    year, month, day, hour = (*parts, *_LEAST_PARTS[len(parts) :])
    try:
        start = datetime(year, month, day, hour)  # noqa: DTZ001 - values of this project are naive UTC
    except ValueError:
        return None
    if transform == "hour":
        return start, timedelta(hours=1)
    days = {"year": 366 if isleap(year) else 365, "month": monthrange(year, month)[1], "day": 1}[transform]
    return start, timedelta(days=days)
