"""Snapshots as SQL for ClickHouse: the list of files, names and types, and the statement."""

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from icedb_log.errors import InvalidRequest

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
            "list the files with -o paths and write the query by hand"
        )
    return f"Nullable({found})"


def to_clickhouse(snapshot: Snapshot) -> str:
    """Return SQL whose rows are the snapshot's rows, with every column of the table. Needs ClickHouse 24.1.

    Secrets are never in it: on S3 there are placeholders, unless the files have URLs that need none.

    Args:
        snapshot: What to read.

    Raises:
        InvalidRequest: The table has no columns yet, or a type that ClickHouse has not; or the snapshot has a
            condition, which is in DuckDB's dialect.
    """
    if not snapshot.schema:
        raise InvalidRequest(f"table {snapshot.table} has no columns yet: nothing was committed to it")
    if snapshot.where is not None:
        raise InvalidRequest(
            "a condition is in DuckDB's dialect and may mean other rows in ClickHouse: leave it out, choose files by "
            "--partition, and write the condition in ClickHouse's SQL around the statement: "
            "SELECT * FROM (…) WHERE …"
        )
    if not snapshot.files:
        return _select_nothing(snapshot)
    urls = [file.presigned_url for file in snapshot.files if file.presigned_url is not None]
    statement = _select_urls(snapshot, urls) if len(urls) == len(snapshot.files) else _select_files(snapshot)
    size_bytes = len(statement.encode())
    raised = f"SET max_query_size = {2 * size_bytes};\n" if size_bytes > DEFAULT_MAX_QUERY_BYTES else ""
    return f"{raised}{statement}"


def _select_nothing(snapshot: Snapshot) -> str:
    columns = ", ".join(
        f"CAST(NULL AS {clickhouse_type(snapshot.table, name, sql_type)}) AS {quote_name(name)}"
        for name, sql_type in snapshot.schema.items()
    )
    return f"SELECT {columns} WHERE false;"


def _select_files(snapshot: Snapshot) -> str:
    paths = ",\n  ".join(quote_text(_path_in_clickhouse(file)) for file in snapshot.files)
    # `One` opens no file: one row for each that is there.
    check = f"throwIf(count() != {len(snapshot.files)}, {quote_text(_GONE)})"
    is_whole = f"(SELECT {check} FROM {_source(snapshot, 'One')} WHERE _path IN files) = 0"  # noqa: S608 - quoted
    return (
        f"WITH (\n  {paths}\n) AS files\n"
        f"SELECT {_columns(snapshot)}\nFROM {_source(snapshot, 'Parquet', _structure(snapshot))}\n"
        f"WHERE _path IN files\n  AND {is_whole}\n"
        "SETTINGS use_hive_partitioning = 0;"
    )


def _select_urls(snapshot: Snapshot, urls: Sequence[str]) -> str:
    pattern = urls[0] if len(urls) == 1 else "{" + ",".join(urls) + "}"
    return (
        f"SELECT {_columns(snapshot)}\nFROM url({quote_text(pattern)}, 'Parquet', {_structure(snapshot)})\n"
        f"SETTINGS use_hive_partitioning = 0, glob_expansion_max_elements = {len(urls)};"
    )


def _source(snapshot: Snapshot, file_format: str, structure: str | None = None) -> str:
    folder = _common_folder([file.uri for file in snapshot.files])
    if _GLOB_CHARACTERS & set(folder):
        raise InvalidRequest(f"{folder!r} is a pattern to ClickHouse; list the files with -o paths instead")
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
