"""The forms in which a column's values reach the engine, and for each form the SQL of its kinds and its casts.

What a batch is decides the form: a value of a JSON line is raw JSON text, a CSV cell is text, a typed format and
the fast reader of lines give SQL types at once. Everything after this module is the same for all of them.
"""

from enum import StrEnum
from typing import Final

from icedb_log.table.time_columns import TimeUnit
from icedb_log.table.transforms import moment_sql

from icedb_engine.reading import json_casts
from icedb_engine.reading.json_types import EXACT_DOUBLE_MAX, Kind


class Form(StrEnum):
    """What a column of the engine holds before it is cast.

    Raw JSON text, the text of a cell, the text of objects and arrays, or an SQL type.
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


_KINDS: Final = {
    Form.VARCHAR: Kind.STRING,
    Form.NESTED: Kind.NESTED,
    Form.DOUBLE: Kind.FRACTION,
    Form.BOOLEAN: Kind.BOOLEAN,
    Form.TIMESTAMP: Kind.TIMESTAMP,
    Form.DATE: Kind.DATE,
}
_CELL_NUMBER: Final = r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?"
_FAILING: Final = {
    "TIMESTAMP": (Form.JSON, Form.CELL, Form.VARCHAR, Form.BIGINT),
    "DATE": (Form.JSON, Form.CELL, Form.VARCHAR),
    "DOUBLE": (Form.JSON, Form.CELL),
}


def kinds_sql(column: str, form: Form) -> str:
    """Return the SQL of one value's :class:`~icedb_engine.reading.json_types.Kind`; 0 for NULL."""
    if form == Form.JSON:
        return json_casts.kind_sql(column)
    if form == Form.CELL:
        return (
            f"CASE WHEN {column} IS NULL THEN 0 WHEN regexp_full_match({column}, '{_CELL_NUMBER}') "
            f"THEN {json_casts.kind_sql(column)} WHEN {column} IN ('true', 'false') THEN {Kind.BOOLEAN:d} "
            f"ELSE {Kind.STRING:d} END"
        )
    if form == Form.BIGINT:
        return (
            f"CASE WHEN {column} BETWEEN -{EXACT_DOUBLE_MAX} AND {EXACT_DOUBLE_MAX} THEN {Kind.INTEGER:d} "
            f"WHEN {column} IS NULL THEN 0 ELSE {Kind.LONG_INTEGER:d} END"
        )
    return f"CASE WHEN {column} IS NULL THEN 0 ELSE {_KINDS[form]:d} END"


def evidence_sql(column: str, form: Form) -> str:
    """Return the SQL of the kinds of all values of a group of rows; NULL if there is none."""
    if form in _KINDS:
        return f"CASE WHEN count({column}) > 0 THEN {_KINDS[form]:d} END"
    return f"bit_or({kinds_sql(column, form)})"


def can_fail(form: Form, sql_type: str) -> bool:
    """Return whether a value of the right kind may still not fit the type (a bad date, 1e999)."""
    return form in _FAILING.get(sql_type, ())


def is_cast(form: Form, sql_type: str | None) -> bool:
    """Return whether values of this form have to be cast to be of the type; no for a column that is left out."""
    return sql_type is not None and form != sql_type and (form, sql_type) != (Form.NESTED, "VARCHAR")


def cast_form_sql(column: str, form: Form, sql_type: str, *, unit: TimeUnit) -> str:
    """Return the SQL of a value as ``sql_type``, NULL where it does not fit; ``unit`` is of TIMESTAMP's numbers."""
    if not is_cast(form, sql_type):
        return column
    if form == Form.JSON:
        return json_casts.cast_sql(column, sql_type, unit)
    if form == Form.CELL:
        return _cast_cell_sql(column, sql_type, unit)
    if sql_type == "TIMESTAMP" and form in (Form.VARCHAR, Form.BIGINT):
        return json_casts.years_sql(json_casts.iso_sql(column) if form == Form.VARCHAR else moment_sql(column, unit))
    if sql_type == "DATE" and form == Form.VARCHAR:
        return json_casts.date_sql(column)
    return f"try_cast({column} AS {sql_type})"


def _cast_cell_sql(column: str, sql_type: str, unit: TimeUnit) -> str:
    number = moment_sql(f"try_cast({column} AS BIGINT)", unit)
    iso = json_casts.iso_sql(column)
    casts = {
        "VARCHAR": column,
        "BOOLEAN": f"({column} = 'true')",
        "BIGINT": f"try_cast({column} AS BIGINT)",
        "DOUBLE": json_casts.double_sql(column),
        "DATE": json_casts.date_sql(column),
        "TIMESTAMP": json_casts.years_sql(
            f"CASE WHEN regexp_full_match({column}, '-?[0-9]+') THEN {number} ELSE {iso} END"
        ),
    }
    return casts[sql_type]
