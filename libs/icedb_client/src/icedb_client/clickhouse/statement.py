"""A snapshot as one ClickHouse statement.

The files are found by one listing of the folder that holds them all, and filtered by `_path` before any is opened:
that copes with a hundred thousand files, where a pattern `{a,b,c}` does not. A file of the snapshot that is gone
makes the statement fail, because a listing would leave its rows out without a word.
"""

from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from icedb_log.errors import InvalidRequest

from icedb_client.clickhouse.condition import translate
from icedb_client.clickhouse.text import clickhouse_type, quote_name, quote_text
from icedb_client.snapshots import DataFile, Snapshot

KEY_PLACEHOLDER: Final = "YOUR_ACCESS_KEY_ID"
SECRET_PLACEHOLDER: Final = "YOUR_SECRET_ACCESS_KEY"  # noqa: S105 - no secret: where one has to be put
DEFAULT_MAX_QUERY_BYTES: Final = 200_000
"""ClickHouse parses 256 KiB of a statement unless it is told otherwise."""

_GLOB_CHARACTERS: Final = frozenset("*?{}[]")
_GONE: Final = "data files of this snapshot are gone: ask for a new one with icedb snapshot"


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
