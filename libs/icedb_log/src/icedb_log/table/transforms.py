"""Partition transforms: from a column's value to the text of a partition value.

Each transform exists twice: as DuckDB SQL, which does the work, and in plain Python, which says what the SQL
must mean and lets readers compute a partition from a value. A property test compares the two. The text is not
encoded for a key yet: that is :func:`icedb_log.table.partitions.encode_partition_value`.

=============== =========================================== ==========================================
transform       of                                          text
=============== =========================================== ==========================================
``identity``    VARCHAR, BIGINT, BOOLEAN, DATE, TIMESTAMP   the canonical text
``year``        TIMESTAMP, DATE, BIGINT with a unit         ``2023``
``month``       TIMESTAMP, DATE, BIGINT with a unit         ``2023-06``
``day``         TIMESTAMP, DATE, BIGINT with a unit         ``2023-06-07``
``hour``        TIMESTAMP, DATE, BIGINT with a unit         ``2023-06-07-13`` (``-00`` of a DATE)
``bucket[n]``   every type                                  ``0`` to ``n - 1``, not padded
``truncate[n]`` VARCHAR                                     the first n characters (code points)
``truncate[n]`` BIGINT                                      floor to a multiple of n
=============== =========================================== ==========================================

Canonical text: VARCHAR as it is; BIGINT decimal; BOOLEAN ``true`` or ``false``; DATE ``2023-06-07``; TIMESTAMP
``2023-06-07T13:00:00.000000Z``; DOUBLE the shortest text that reads back to the same value (``5.0``, ``1e+16``).
A BIGINT with a unit (``epoch_s``, ``epoch_ms``, ``epoch_us``) is the moment that it counts to, also before 1970;
outside the years 1 to 9999 it has no partition. All other transforms take it as the number it is.
A bucket is the first eight hex digits of the MD5 of the canonical text in UTF-8, as an unsigned integer, modulo n:
the same on every machine and in every release, because it is part of the names of data files.
"""

import hashlib
import re
from calendar import isleap, monthrange
from datetime import date, datetime, timedelta
from typing import Any, Final

from icedb_log.table.column_bounds import Scalar
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

TIME_FORMATS: Final = {"year": "%Y", "month": "%Y-%m", "day": "%Y-%m-%d", "hour": "%Y-%m-%d-%H"}
_PYTHON_TIME_FORMATS: Final = {
    "year": "{0.year:04d}",
    "month": "{0.year:04d}-{0.month:02d}",
    "day": "{0.year:04d}-{0.month:02d}-{0.day:02d}",
    "hour": "{0.year:04d}-{0.month:02d}-{0.day:02d}-{hour:02d}",
}
_TIME_SHAPES: Final = {
    "year": re.compile(r"([0-9]{4})"),
    "month": re.compile(r"([0-9]{4})-([0-9]{2})"),
    "day": re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})"),
    "hour": re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})-([0-9]{2})"),
}
_LEAST_PARTS: Final = (1, 1, 1, 0)
"""Month, day and hour where a text does not say them; the year is always said."""
TIMESTAMP_TEXT_FORMAT: Final = "%Y-%m-%dT%H:%M:%S.%fZ"
HASH_HEX_DIGITS: Final = 8
_USABLE_TYPES: Final = {
    "identity": ("VARCHAR", "BIGINT", "BOOLEAN", "DATE", "TIMESTAMP"),
    "truncate": ("VARCHAR", "BIGINT"),
    "bucket": ("VARCHAR", "BIGINT", "BOOLEAN", "DATE", "TIMESTAMP", "DOUBLE"),
    **dict.fromkeys(TIME_TRANSFORMS, ("TIMESTAMP", "DATE")),
}


def find_type_problem(field: PartitionField, sql_type: str) -> str | None:
    """Return why a transform cannot take a column of this type, or None if it can."""
    usable = _USABLE_TYPES[field.transform]
    is_time = field.transform in TIME_TRANSFORMS
    if sql_type in usable or (is_time and sql_type == "BIGINT" and field.unit is not None):
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
    return f"CAST({expression} AS VARCHAR)"


def transform_sql(field: PartitionField, expression: str, sql_type: str) -> str:
    """Return the SQL of a partition value's text.

    Args:
        field: The partition field.
        expression: SQL of the source value.
        sql_type: Type of the source, one that :func:`find_type_problem` does not object to.
    """
    if field.transform in TIME_FORMATS:
        moment = moment_sql(expression, field.unit) if sql_type == "BIGINT" and field.unit else expression
        return f"strftime({moment}, '{TIME_FORMATS[field.transform]}')"
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
    """Return the canonical text of a value: str, int, bool, float, date or naive UTC datetime."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return f"{value.isoformat(timespec='microseconds')}Z"
    if isinstance(value, date):
        return value.isoformat()
    return repr(value)


def transform_value(field: PartitionField, value: Any) -> str:
    """Return a partition value's text: the meaning of :func:`transform_sql`, in plain Python.

    Args:
        field: The partition field.
        value: The source value: str, int, bool, float, date or naive UTC datetime, never None.

    Raises:
        ValueError: A number stands for no time of the years 1 to 9999.
    """
    if field.transform in _PYTHON_TIME_FORMATS:
        if isinstance(value, int) and field.unit is not None:
            moment = read_count(value, field.unit)
            if moment is None:
                raise ValueError(f"no time of the years 1 to 9999 as {field.unit}")
            value = moment
        hour = value.hour if isinstance(value, datetime) else 0
        return _PYTHON_TIME_FORMATS[field.transform].format(value, hour=hour)
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
    python_type = {"TIMESTAMP": datetime, "DATE": date, "VARCHAR": str, "BIGINT": int, "BOOLEAN": bool}.get(sql_type)
    return value if type(value) is python_type else None


def read_time_span(transform: str, text: str) -> tuple[datetime, timedelta] | None:
    """Return when the time of a time partition begins, as naive UTC, and how long it is; ``None``: no such text."""
    match = _TIME_SHAPES[transform].fullmatch(text)
    if match is None:
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
