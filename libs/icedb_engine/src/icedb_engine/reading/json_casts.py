"""The SQL that looks at raw JSON values and turns them into typed columns.

A raw value is the compact JSON text of one top-level value, as DuckDB's JSON reader gives it: strings with their
quotes, NULL for null and for a missing key. A cast gives NULL where the value does not fit; the caller compares
counts, so that no value is lost silently.
"""

from typing import Final

from icedb_log.table.time_columns import TimeUnit
from icedb_log.table.transforms import moment_sql

from icedb_engine.reading.json_types import EXACT_DOUBLE_MAX, Kind

ISO_PATTERN: Final = r"\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?( ?([Zz]|[+-]\d{2}(:?\d{2})?))?)?"
DATE_PATTERN: Final = r"\d{4}-\d{2}-\d{2}"
_MIN_TIMESTAMP: Final = "TIMESTAMP '0001-01-01 00:00:00'"
_MAX_TIMESTAMP: Final = "TIMESTAMP '9999-12-31 23:59:59.999999'"
_SHORT_INTEGER_LENGTH: Final = 15
"""Integers of so few characters lie within 2^53."""


def kind_sql(raw: str) -> str:
    """Return the SQL of a raw value's :class:`~icedb_engine.reading.json_types.Kind`; 0 for NULL."""
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


def cast_sql(raw: str, sql_type: str, unit: TimeUnit) -> str:
    """Return the SQL of a raw value as ``sql_type``, NULL where it does not fit; ``unit`` is of TIMESTAMP's numbers."""
    if sql_type == "VARCHAR":
        return text_sql(raw)
    if sql_type == "BOOLEAN":
        return f"({raw} = 'true')"
    if sql_type == "BIGINT":
        return f"try_cast({raw} AS BIGINT)"
    if sql_type == "DOUBLE":
        return double_sql(raw)
    text = text_sql(raw)
    if sql_type == "DATE":
        return date_sql(text)
    number = moment_sql(f"try_cast({raw} AS BIGINT)", unit)
    return years_sql(f"CASE WHEN ascii({raw}) = 34 THEN {iso_sql(text)} ELSE {number} END")


def double_sql(number: str) -> str:
    """Return the SQL of a number's text as a DOUBLE; NULL above its range, unless it says Infinity."""
    value = f"try_cast({number} AS DOUBLE)"
    return f"CASE WHEN isinf({value}) AND NOT contains({number}, 'I') THEN NULL ELSE {value} END"


def date_sql(text: str) -> str:
    """Return the SQL of text as a DATE; NULL where it is none."""
    day = f"try_cast(CASE WHEN regexp_full_match({text}, '{DATE_PATTERN}') THEN {text} END AS DATE)"
    return f"CASE WHEN {day} >= DATE '0001-01-01' THEN {day} END"


def iso_sql(text: str) -> str:
    """Return the SQL of ISO-8601 text as a moment, of any year; NULL where it is none."""
    iso = f"CASE WHEN regexp_full_match({text}, '{ISO_PATTERN}') THEN {text} END"
    return f"CAST(try_cast({iso} AS TIMESTAMPTZ) AS TIMESTAMP)"


def years_sql(moment: str) -> str:
    """Return the SQL of a moment; NULL outside the years 1 to 9999."""
    return f"CASE WHEN {moment} BETWEEN {_MIN_TIMESTAMP} AND {_MAX_TIMESTAMP} THEN {moment} END"


def text_sql(raw: str) -> str:
    """Return the SQL of a raw value as text: a string without quotes and escapes, anything else as JSON."""
    return (
        f"CASE WHEN ascii({raw}) <> 34 THEN CAST({raw} AS VARCHAR) "
        f"WHEN contains({raw}, '\\') THEN json_extract_string({raw}, '$') "
        f"ELSE substring({raw}, 2, length({raw}) - 2) END"
    )
