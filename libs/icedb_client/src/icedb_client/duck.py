"""DuckDB over snapshots: views of tables, and queries that can read nothing else.

Owns how a snapshot becomes SQL. A query's connection may open exactly the data files of its snapshots: other files,
other servers and changes of the configuration are refused by DuckDB itself.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import duckdb
from icedb_log.errors import InvalidRequest, Unavailable, UnsupportedFormat
from icedb_log.storage.stores import S3Options

from icedb_client.snapshots import Snapshot

DEFAULT_REGION: Final = "us-east-1"
_HTTPFS_PACKAGE: Final = "duckdb-extension-httpfs"
_READING: Final = (duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN)
_SQL_TYPE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_ ]{0,62}(\([0-9]{1,2}(, ?[0-9]{1,2})?\))?(\[\])*")
UNREADABLE: Final = (duckdb.IOException, duckdb.HTTPException)
_UNKNOWN_TABLE: Final = re.compile(r"Catalog Error: Table with name (?P<name>.+?) does not exist!", re.DOTALL)
_OFFLINE: Final = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
}
MAX_TABLES: Final = 100


def open_duckdb() -> duckdb.DuckDBPyConnection:
    """Return a connection in memory that downloads nothing and does not look at Python's variables."""
    con = duckdb.connect(config=dict(_OFFLINE))
    con.execute("SET parquet_metadata_cache = true")  # a view is bound twice: when it is made, when it is read
    return con


def find_snapshots(sql: str, read: Callable[[str], Snapshot]) -> dict[str, Snapshot]:
    """Return the snapshot of each table that a query names, by name.

    The query is bound, not run, on a connection that can open no file: DuckDB says which names are tables (and not
    columns, aliases or parts of the query itself).

    Args:
        sql: The query.
        read: Returns the snapshot of a table.

    Raises:
        InvalidRequest: Not SQL, more than one statement, or one that does not only read tables.
        NotFound: Whatever ``read`` raises.
    """
    found: dict[str, Snapshot] = {}
    with duckdb.connect(config={**_OFFLINE, "enable_external_access": "false"}) as con:
        _check_statement(con, sql)
        while len(found) <= MAX_TABLES:
            name = _first_unknown_table(con, sql, tables=found)
            if name is None:
                return found
            if name in found:
                raise InvalidRequest(f"the query names table {name!r} in a way that DuckDB does not resolve")
            found[name] = read(name)
            con.execute(f"CREATE TEMP VIEW {quote_name(name)} AS {select_empty(found[name])}")
    raise InvalidRequest(f"the query names more than {MAX_TABLES} tables")


def _check_statement(con: duckdb.DuckDBPyConnection, sql: str) -> None:
    try:
        statements = con.extract_statements(sql)
    except duckdb.Error as error:
        raise InvalidRequest(f"the query is not understood: {first_line(error)}") from error
    if len(statements) != 1:
        raise InvalidRequest(f"give one statement, not {len(statements)}")
    if statements[0].type not in _READING:
        raise InvalidRequest(
            f"{statements[0].type.name} is not allowed: tables are read only here; "
            "use SELECT, WITH, FROM, DESCRIBE, SUMMARIZE or EXPLAIN"
        )


def _first_unknown_table(con: duckdb.DuckDBPyConnection, sql: str, *, tables: Mapping[str, Snapshot]) -> str | None:
    try:
        con.sql(sql)
    except duckdb.PermissionException as error:
        raise InvalidRequest(
            f"a query reads the warehouse's tables and nothing else ({first_line(error)}); "
            "for other files use Snapshot.to_duckdb with a connection of your own"
        ) from error
    except duckdb.Error as error:
        match = _UNKNOWN_TABLE.match(str(error))
        if match is None:
            empty = next((name for name, snapshot in tables.items() if not snapshot.schema), None)
            if empty is not None:
                raise InvalidRequest(
                    f"table {empty!r} has no columns at this time: nothing was committed to it yet. Events that wait "
                    f"show in `icedb status {empty}`, and those that could not be committed in "
                    f"`icedb quarantine list {empty}`"
                ) from error
            raise InvalidRequest(f"the query is refused: {first_line(error)}") from error
        return match["name"].lower()  # as DuckDB, which does not tell cases apart
    return None


def lock(con: duckdb.DuckDBPyConnection, snapshots: Sequence[Snapshot]) -> None:
    """Leave a connection access to the files of these snapshots and to nothing else, for good."""
    uris = [file.uri for snapshot in snapshots for file in snapshot.files]
    con.execute(f"SET allowed_paths = [{', '.join(quote_text(uri) for uri in uris)}]")
    con.execute("SET enable_external_access = false")
    con.execute("SET lock_configuration = true")


def create_view(con: duckdb.DuckDBPyConnection, snapshot: Snapshot, *, view: str) -> str:
    """Make a snapshot a view; see :meth:`icedb_client.snapshots.Snapshot.to_duckdb`."""
    if snapshot.s3 is not None:
        _prepare_s3(con, snapshot.s3)
    try:
        con.execute(f"CREATE OR REPLACE TEMP VIEW {quote_name(view)} AS {select_from(snapshot)}")
    except UNREADABLE as error:
        raise unreadable(error) from error
    return view


def select_empty(snapshot: Snapshot) -> str:
    """Return a query without rows that has every column of the table, with its type."""
    if not snapshot.schema:
        return "SELECT NULL AS nothing WHERE false"
    for name, sql_type in snapshot.schema.items():
        if not _SQL_TYPE.fullmatch(sql_type):
            raise UnsupportedFormat(
                f"table {snapshot.table}: column {name!r} has the type {sql_type[:80]!r}, which cannot be queried here"
            )
    columns = (f"CAST(NULL AS {sql_type}) AS {quote_name(name)}" for name, sql_type in snapshot.schema.items())
    return f"SELECT {', '.join(columns)} WHERE false"


def select_from(snapshot: Snapshot) -> str:
    """Return the query whose rows are the snapshot's rows, with every column of the table."""
    if not snapshot.schema or not snapshot.files:
        return select_empty(snapshot)
    columns = ", ".join(quote_name(column) for column in snapshot.schema)
    uris = ", ".join(quote_text(file.uri) for file in snapshot.files)
    parquet = f"read_parquet([{uris}], union_by_name = true, hive_partitioning = false)"
    # The empty branch brings all columns and types: what no file has is null of the right type.
    query = f"{select_empty(snapshot)} UNION ALL BY NAME SELECT * FROM {parquet}"  # noqa: S608 - quoted above
    return f"SELECT {columns} FROM ({query})"  # noqa: S608 - every part is quoted above


def quote_name(name: str) -> str:
    """Return an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def quote_text(text: str) -> str:
    """Return an SQL string."""
    return "'" + text.replace("'", "''") + "'"


def first_line(error: BaseException) -> str:
    """Return what DuckDB says, without the drawing of where."""
    return str(error).strip().partition("\n")[0]


def run(con: duckdb.DuckDBPyConnection, sql: str) -> duckdb.DuckDBPyRelation:
    """Run a checked query.

    Raises:
        InvalidRequest: DuckDB refuses it; its own words.
        Unavailable: A data file could not be read.
    """
    try:
        return con.sql(sql)
    except UNREADABLE as error:
        raise unreadable(error) from error
    except duckdb.Error as error:
        raise InvalidRequest(f"the query failed: {first_line(error)}") from error


def unreadable(error: Exception) -> Unavailable:
    """Return the error for a data file that could not be read."""
    return Unavailable(
        f"a data file could not be read: {first_line(error)}; "
        "if the query took longer than the table's data grace period, run it again"
    )


def _prepare_s3(con: duckdb.DuckDBPyConnection, s3: S3Options) -> None:
    _load_httpfs(con)
    settings = {
        "REGION": s3.region or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or DEFAULT_REGION
    }
    key = s3.access_key_id or os.environ.get("AWS_ACCESS_KEY_ID")
    if key:
        settings["KEY_ID"] = key
        settings["SECRET"] = s3.secret_access_key or os.environ.get("AWS_SECRET_ACCESS_KEY", "")
        token = os.environ.get("AWS_SESSION_TOKEN")
        if token and s3.access_key_id is None:
            settings["SESSION_TOKEN"] = token
    options = [f"{name} {quote_text(value)}" for name, value in settings.items()]
    if s3.endpoint_url is not None:
        endpoint = urlsplit(s3.endpoint_url)
        options += [
            f"ENDPOINT {quote_text(endpoint.netloc)}",
            "URL_STYLE 'path'",
            f"USE_SSL {'true' if endpoint.scheme == 'https' else 'false'}",
        ]
    con.execute(f"CREATE OR REPLACE SECRET icedb_s3 (TYPE s3, {', '.join(options)})")


def _load_httpfs(con: duckdb.DuckDBPyConnection) -> None:
    """Load the extension from its Python package, or from where DuckDB has it installed."""
    path = _packaged_httpfs()
    try:
        con.execute(f"LOAD {quote_text(str(path))}" if path else "LOAD httpfs")
    except duckdb.Error as error:
        raise Unavailable(
            f"DuckDB {duckdb.__version__} cannot load httpfs, which reads S3 ({first_line(error)}); "
            f"install {_HTTPFS_PACKAGE}=={duckdb.__version__}"
        ) from error


def _packaged_httpfs() -> Path | None:
    try:
        package = distribution(_HTTPFS_PACKAGE)
    except PackageNotFoundError:
        return None
    wanted = f"v{duckdb.__version__}"
    for file in package.files or ():
        if file.name == "httpfs.duckdb_extension" and file.parent.name == wanted:
            return Path(str(package.locate_file(file)))
    return None
