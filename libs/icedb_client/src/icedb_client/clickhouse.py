"""Snapshots as SQL for ClickHouse: names, types, conditions, and the statement."""

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from typing import Any, Final
from urllib.parse import urlsplit

import sqlglot
from icedb_log.errors import InvalidRequest
from sqlglot import exp
from sqlglot.errors import SqlglotError

from icedb_client.snapshots import DataFile, Snapshot

_TYPES: Final = {
    "VARCHAR": "String",
    "BIGINT": "Int64",
    "DOUBLE": "Float64",
    "BOOLEAN": "Bool",
    "DATE": "Date32",
    "TIMESTAMP": "DateTime64(6, 'UTC')",
    # What other writers of the log format have.
    "TINYINT": "Int8",
    "SMALLINT": "Int16",
    "INTEGER": "Int32",
    "UTINYINT": "UInt8",
    "USMALLINT": "UInt16",
    "UINTEGER": "UInt32",
    "UBIGINT": "UInt64",
    "FLOAT": "Float32",
    "BLOB": "String",
    "TIMESTAMP WITH TIME ZONE": "DateTime64(6, 'UTC')",
}
_DECIMAL: Final = re.compile(r"DECIMAL\((\d{1,2}), ?(\d{1,2})\)")
_OPERATORS: Final[Mapping[type, str]] = {
    exp.EQ: "=",
    exp.NEQ: "!=",
    exp.LT: "<",
    exp.LTE: "<=",
    exp.GT: ">",
    exp.GTE: ">=",
}
_MIRRORED: Final[Mapping[type, type]] = {exp.LT: exp.GT, exp.GT: exp.LT, exp.LTE: exp.GTE, exp.GTE: exp.LTE}
_PARTS: Final = frozenset({"this", "expression", "expressions", "low", "high"})
_NUMBERS: Final = ("BIGINT", "DOUBLE", "INTEGER", "SMALLINT", "TINYINT")
_MAX_DIGITS: Final = 15
KEY_PLACEHOLDER: Final = "YOUR_ACCESS_KEY_ID"
SECRET_PLACEHOLDER: Final = "YOUR_SECRET_ACCESS_KEY"  # noqa: S105 - no secret: where one has to be put
DEFAULT_MAX_QUERY_BYTES: Final = 200_000
"""ClickHouse parses 256 KiB of a statement unless it is told otherwise."""
_GLOB_CHARACTERS: Final = frozenset("*?{}[]")
_GONE: Final = "data files of this snapshot are gone: ask for a new one with icedb snapshot"


def quote_name(name: str) -> str:
    """Return an identifier."""
    return "`" + name.replace("\\", "\\\\").replace("`", "\\`") + "`"


def quote_text(text: str) -> str:
    """Return a string literal."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def clickhouse_type(table: str, column: str, sql_type: str) -> str:
    """Return the type of a column, nullable.

    Raises:
        InvalidRequest: A type that has no counterpart here.
    """
    decimal = _DECIMAL.fullmatch(sql_type)
    found = f"Decimal({decimal[1]}, {decimal[2]})" if decimal else _TYPES.get(sql_type)
    if found is None:
        raise InvalidRequest(
            f"table {table}: column {column!r} has the type {sql_type[:80]}, which has no ClickHouse type here; "
            "list the files with --format paths and write the query by hand"
        )
    return f"Nullable({found})"


def translate(condition: str, schema: Mapping[str, str]) -> str:
    """Return the condition as ClickHouse SQL.

    Args:
        condition: SQL in DuckDB's dialect.
        schema: Column to type of the table.

    Raises:
        InvalidRequest: It holds something that is not known to mean the same in ClickHouse.
    """
    try:
        tree = sqlglot.parse_one(condition, read="duckdb", into=exp.Condition)
    except (SqlglotError, RecursionError) as error:
        raise InvalidRequest(f"the condition {condition[:80]!r} is not understood") from error
    return _Translator(schema).translate(tree)


class _Translator:
    """Translates the nodes of one condition."""

    def __init__(self, schema: Mapping[str, str]) -> None:
        self._columns = {name.lower(): (name, sql_type) for name, sql_type in schema.items()}

    def translate(self, node: Any) -> str:
        form = _FORMS.get(type(node))
        known = {*_PARTS, "negate"} if isinstance(node, exp.Like) else _PARTS
        if form is None or any(value for name, value in node.args.items() if name not in known):
            raise _refuse(node)
        return form(self, node)

    def paren(self, node: Any) -> str:
        return f"({self.translate(node.this)})"

    def negation(self, node: Any) -> str:
        return f"NOT ({self.translate(node.this)})"

    def connector(self, node: Any) -> str:
        word = " AND " if isinstance(node, exp.And) else " OR "
        return "(" + word.join(self.translate(part) for part in node.flatten()) + ")"

    def constant(self, node: Any) -> str:
        if isinstance(node, exp.Null):
            return "NULL"
        return "true" if node.this else "false"

    def flag(self, node: Any) -> str:
        name, sql_type = self._column(node)
        if sql_type != "BOOLEAN":
            raise _refuse(node)
        return name

    def comparison(self, node: Any) -> str:
        left, right, kind = node.this, node.expression, type(node)
        if not isinstance(left, exp.Column):
            left, right, kind = right, left, _MIRRORED.get(kind, kind)
        name, sql_type = self._column(left)
        value = self._literal(right, sql_type)
        compared = f"{name} {_OPERATORS[kind]} {value}"
        if kind in (exp.GT, exp.GTE) and sql_type == "DOUBLE" and value != "NULL":
            return f"({compared} OR isNaN({name}))"
        return compared

    def membership(self, node: Any) -> str:
        name, sql_type = self._column(node.this)
        if not node.expressions:
            raise _refuse(node)
        # One comparison for each: IN and NULL are another matter in ClickHouse.
        return "(" + " OR ".join(f"{name} = {self._literal(value, sql_type)}" for value in node.expressions) + ")"

    def between(self, node: Any) -> str:
        name, sql_type = self._column(node.this)
        low, high = (self._literal(node.args[part], sql_type) for part in ("low", "high"))
        return f"({name} >= {low} AND {name} <= {high})"  # NaN is above every upper bound: false in both

    def null_test(self, node: Any) -> str:
        if not isinstance(node.expression, exp.Null):
            raise _refuse(node)
        return f"{self._column(node.this)[0]} IS NULL"

    def pattern(self, node: Any) -> str:
        name, sql_type = self._column(node.this)
        value = node.expression
        if sql_type != "VARCHAR" or not isinstance(value, exp.Literal) or not value.is_string or "\\" in value.this:
            raise _refuse(node)
        return f"{name} {'NOT LIKE' if node.args.get('negate') else 'LIKE'} {quote_text(value.this)}"

    def _column(self, node: Any) -> tuple[str, str]:
        if not isinstance(node, exp.Column) or len(node.parts) != 1:
            raise _refuse(node)
        found = self._columns.get(node.name.lower())
        if found is None:
            raise InvalidRequest(f"no column is named {node.name[:80]!r}; columns: {', '.join(self._columns)[:400]}")
        return quote_name(found[0]), found[1]

    def _literal(self, node: Any, sql_type: str) -> str:
        if isinstance(node, exp.Null):
            return "NULL"
        read = _READERS.get(sql_type, _read_number if sql_type in _NUMBERS else None)
        found = read(node) if read is not None else None
        if found is None:
            raise _refuse(node)
        return found


def _read_number(node: Any) -> str | None:
    sign, inner = ("-", node.this) if isinstance(node, exp.Neg) else ("", node)
    if not isinstance(inner, exp.Literal) or inner.is_string:
        return None
    digits = inner.this.lstrip("0.").replace(".", "").lower().partition("e")[0]
    return f"{sign}{inner.this}" if len(digits) <= _MAX_DIGITS else None


def _read_text(node: Any) -> str | None:
    return quote_text(node.this) if isinstance(node, exp.Literal) and node.is_string else None


def _read_flag(node: Any) -> str | None:
    return ("true" if node.this else "false") if isinstance(node, exp.Boolean) else None


def _read_time_text(node: Any, *kinds: Any) -> str | None:
    """Return the text of a string, or of ``DATE '…'`` and its kin."""
    if isinstance(node, exp.Cast) and any(node.to.is_type(kind) for kind in kinds):
        node = node.this
    return node.this if isinstance(node, exp.Literal) and node.is_string else None


def _read_date(node: Any) -> str | None:
    text = _read_time_text(node, exp.DataType.Type.DATE)
    try:
        return None if text is None else f"toDate32('{date.fromisoformat(text).isoformat()}')"
    except ValueError:
        return None


def _read_timestamp(node: Any) -> str | None:
    types = exp.DataType.Type
    text = _read_time_text(node, types.DATE, types.TIMESTAMP, types.TIMESTAMPNTZ)
    try:
        time = None if text is None else datetime.fromisoformat(text)
    except ValueError:
        return None
    if time is None or (time.tzinfo is not None and time.utcoffset() != UTC.utcoffset(None)):
        return None
    return f"toDateTime64('{time.replace(tzinfo=None).isoformat(sep=' ', timespec='microseconds')}', 6, 'UTC')"


def _refuse(node: Any) -> InvalidRequest:
    shown = (node.parent or node).sql(dialect="duckdb")[:120]
    return InvalidRequest(
        f"{shown!r} is not known to mean the same in ClickHouse: compare columns with literals (=, <, IN, BETWEEN, "
        "LIKE, IS NULL, AND, OR, NOT), or leave the condition out and write it in ClickHouse's SQL around the query"
    )


_READERS: Final[Mapping[str, Callable[[Any], str | None]]] = {
    "VARCHAR": _read_text,
    "BOOLEAN": _read_flag,
    "DATE": _read_date,
    "TIMESTAMP": _read_timestamp,
}
_FORMS: Final[Mapping[type, Callable[[_Translator, Any], str]]] = {
    **dict.fromkeys(_OPERATORS, _Translator.comparison),
    **dict.fromkeys((exp.And, exp.Or), _Translator.connector),
    **dict.fromkeys((exp.Boolean, exp.Null), _Translator.constant),
    exp.Paren: _Translator.paren,
    exp.Not: _Translator.negation,
    exp.In: _Translator.membership,
    exp.Between: _Translator.between,
    exp.Is: _Translator.null_test,
    exp.Like: _Translator.pattern,
    exp.Column: _Translator.flag,
}


def to_clickhouse(snapshot: Snapshot) -> str:
    """Return SQL whose rows are the snapshot's rows, with every column of the table. Needs ClickHouse 24.1.

    Secrets are never in it: on S3 there are placeholders, unless the files have URLs that need none.

    Args:
        snapshot: What to read.

    Raises:
        InvalidRequest: The table has no columns yet, or a type or a condition that cannot be said in ClickHouse.
    """
    if not snapshot.schema:
        raise InvalidRequest(f"table {snapshot.table} has no columns yet: nothing was committed to it")
    condition = None if snapshot.where is None else translate(snapshot.where, snapshot.schema)
    if not snapshot.files:
        return _select_nothing(snapshot)
    urls = [file.presigned_url for file in snapshot.files if file.presigned_url is not None]
    if len(urls) == len(snapshot.files):
        statement = _select_urls(snapshot, urls, condition)
    else:
        statement = _select_files(snapshot, condition)
    size_bytes = len(statement.encode())
    raised = f"SET max_query_size = {2 * size_bytes};\n" if size_bytes > DEFAULT_MAX_QUERY_BYTES else ""
    return f"{raised}{statement}"


def _select_nothing(snapshot: Snapshot) -> str:
    columns = ", ".join(
        f"CAST(NULL AS {clickhouse_type(snapshot.table, name, sql_type)}) AS {quote_name(name)}"
        for name, sql_type in snapshot.schema.items()
    )
    return f"SELECT {columns} WHERE false;"


def _select_files(snapshot: Snapshot, condition: str | None) -> str:
    paths = ",\n  ".join(quote_text(_path_in_clickhouse(file)) for file in snapshot.files)
    # `One` opens no file: one row for each that is there.
    check = f"throwIf(count() != {len(snapshot.files)}, {quote_text(_GONE)})"
    wanted = [
        "_path IN files",
        f"(SELECT {check} FROM {_source(snapshot, 'One')} WHERE _path IN files) = 0",  # noqa: S608 - quoted
        *(() if condition is None else (condition,)),
    ]
    separator = "\n  AND "
    return (
        f"WITH (\n  {paths}\n) AS files\n"
        f"SELECT {_columns(snapshot)}\nFROM {_source(snapshot, 'Parquet', _structure(snapshot))}\n"
        f"WHERE {separator.join(wanted)}\n"
        "SETTINGS use_hive_partitioning = 0;"
    )


def _select_urls(snapshot: Snapshot, urls: Sequence[str], condition: str | None) -> str:
    pattern = urls[0] if len(urls) == 1 else "{" + ",".join(urls) + "}"
    where = "" if condition is None else f"WHERE {condition}\n"
    return (
        f"SELECT {_columns(snapshot)}\nFROM url({quote_text(pattern)}, 'Parquet', {_structure(snapshot)})\n"
        f"{where}SETTINGS use_hive_partitioning = 0, glob_expansion_max_elements = {len(urls)};"
    )


def _source(snapshot: Snapshot, file_format: str, structure: str | None = None) -> str:
    folder = _common_folder([file.uri for file in snapshot.files])
    if _GLOB_CHARACTERS & set(folder):
        raise InvalidRequest(f"{folder!r} is a pattern to ClickHouse; list the files with --format paths instead")
    arguments = [quote_text(file_format), *(() if structure is None else (structure,))]
    if not folder.startswith("s3://"):
        return f"file({', '.join([quote_text(f'{folder}**'), *arguments])})"
    endpoint = snapshot.s3.endpoint_url if snapshot.s3 is not None else None
    if endpoint is not None:
        folder = f"{endpoint.rstrip('/')}/{folder.removeprefix('s3://')}"
    credentials = [quote_text(KEY_PLACEHOLDER), quote_text(SECRET_PLACEHOLDER)]
    return f"s3({', '.join([quote_text(f'{folder}**'), *credentials, *arguments])})"


def _path_in_clickhouse(file: DataFile) -> str:
    """Return what the column `_path` has for a file: on S3 bucket and key."""
    parts = urlsplit(file.uri)
    return f"{parts.netloc}{parts.path}" if parts.scheme == "s3" else file.uri


def _common_folder(uris: Sequence[str]) -> str:
    first, last = min(uris), max(uris)
    length = next((at for at, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first))
    return first[: first.rindex("/", 0, length) + 1]


def _columns(snapshot: Snapshot) -> str:
    return ", ".join(quote_name(name) for name in snapshot.schema)


def _structure(snapshot: Snapshot) -> str:
    return quote_text(
        ", ".join(
            f"{quote_name(name)} {clickhouse_type(snapshot.table, name, sql_type)}"
            for name, sql_type in snapshot.schema.items()
        )
    )
