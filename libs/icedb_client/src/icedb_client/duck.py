"""DuckDB over snapshots: how a snapshot becomes SQL that reads exactly its rows, and queries over many of them.

Every column of the table is there with its type, whichever files have it; partition fields that are no columns follow
as text; the snapshot's condition is applied to the rows. Whoever reads a snapshot reads it through here.
"""

import json
import os
import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from importlib import import_module
from importlib.metadata import PackageNotFoundError, distribution
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, TypeVar
from urllib.parse import urlsplit

import duckdb
from icedb_log.errors import InvalidRequest, Unavailable, UnsupportedFormat
from icedb_log.store.s3_options import S3Options
from icedb_log.table.partitions import HIVE_NULL, decode_partition_value
from icedb_log.texts import first_line, quote_name, quote_text

from icedb_client.read_leases import hold_while_reading, take_hold
from icedb_client.requests import Hold, Parameters, SnapshotFiles

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    from duckdb import DuckDBPyConnection, DuckDBPyRelation

_Found = TypeVar("_Found", bound=SnapshotFiles)

DEFAULT_REGION: Final = "us-east-1"
_HTTPFS_PACKAGE: Final = "duckdb-extension-httpfs"
OFFLINE: Final = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
    "allow_persistent_secrets": "false",
}
UNREADABLE: Final = (duckdb.IOException, duckdb.HTTPException, duckdb.PermissionException)
"""A data file that is gone is among these: DuckDB then looks for a folder of that name, which it may not."""
_SQL_TYPE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_ ]{0,62}(\([0-9]{1,2}(, ?[0-9]{1,2})?\))?(\[\])*")
_PATH: Final = "filename"
"""DuckDB skips files by conditions on the column of this name, and of no other."""
MAX_BATCH_ROWS: Final = 10_000_000
MAX_TABLES: Final = 100
"""Tables of one query."""
_BINDING: Final = {
    "enable_external_access": "false",
    "errors_as_json": "true",
    "lock_configuration": "true",
    "threads": "1",
    "memory_limit": "256MiB",
    "max_temp_directory_size": "0B",
}
"""What a query gets while it is only looked for the tables that it names."""


def why_it_failed(error: BaseException) -> str:
    """Return why a query failed. What DuckDB has no class for comes from its Parquet reader, and names no file."""
    line = first_line(error)
    if type(error) is not duckdb.Error:
        return line
    return f"{line}: a data file may be damaged; `icedb fsck TABLE --pages` reads all bytes and names it"


def open_duckdb(bounds: Mapping[str, str] | None = None) -> duckdb.DuckDBPyConnection:
    """Return a connection in memory that downloads nothing and does not look at Python's variables.

    Args:
        bounds: Further settings of DuckDB: of its memory, its threads.
    """
    con = duckdb.connect(config={**OFFLINE, **(bounds or {})})
    con.execute("SET TimeZone = 'UTC'")
    return con


def lock(con: duckdb.DuckDBPyConnection, uris: Sequence[str]) -> None:
    """Leave a connection access to these files and to nothing else, for good."""
    con.execute(f"SET allowed_paths = [{', '.join(quote_text(uri) for uri in uris)}]")
    con.execute("SET enable_external_access = false")
    con.execute("SET lock_configuration = true")


def prepare_s3(con: duckdb.DuckDBPyConnection, s3: S3Options) -> None:
    """Load what reads S3, and give the connection a secret for it.

    Raises:
        Unavailable: The extension cannot be loaded.
    """
    load_httpfs(con)
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


def load_httpfs(con: duckdb.DuckDBPyConnection) -> None:
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


class QueryResult:
    """The rows of a query, computed when they are taken. It prints its first rows.

    Besides its own, it has every method and attribute of :class:`duckdb.DuckDBPyRelation`: ``.fetchmany(n)``,
    ``.to_arrow_reader(n)``, ``.columns``, … What they return is DuckDB's; what they raise is ours. A context manager;
    leases that it took are released by :meth:`close`, or when nothing refers to it any more.

    Args:
        relation: DuckDB's result.
        snapshots: What each table was read from, by name.
        leases: What keeps the files; checked before and after each method.
        connection: Owns the result.
        releasing: Releases the leases.
    """

    def __init__(
        self,
        relation: "DuckDBPyRelation",
        *,
        snapshots: Mapping[str, SnapshotFiles],
        connection: "DuckDBPyConnection",
        leases: Sequence[Hold],
        releasing: ExitStack,
    ) -> None:
        self.connection = connection
        self.snapshots = snapshots
        self._relation = relation
        self._leases = leases
        self._release = weakref.finalize(self, releasing.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection and release what keeps the files. May be called again."""
        self.connection.close()
        self._release()

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Return the rows as tuples. Raises Unavailable, or InvalidRequest for a value that the query cannot take."""
        rows: list[tuple[Any, ...]] = self.guarded(self._relation.fetchall)()
        return rows

    def to_arrow(self) -> "pa.Table":
        """Return the rows as an Arrow table. Types and errors are those of :meth:`Snapshot.to_arrow`."""
        pa = require_package("pyarrow", what="to_arrow")
        table = self.guarded(self._relation.to_arrow_table)()
        return table.cast(_in_utc(pa, table.schema))

    def to_pandas(self, /, **options: Any) -> "pd.DataFrame":
        """Return the rows as a pandas DataFrame. Types, options and errors are those of :meth:`Snapshot.to_pandas`."""
        return _to_pandas(self.to_arrow, options)

    def to_polars(self) -> "pl.DataFrame":
        """Return the rows as a Polars DataFrame. Types and errors are those of :meth:`Snapshot.to_polars`."""
        return _to_polars(self.to_arrow)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._relation, name)
        return self.guarded(found) if callable(found) else found

    def __len__(self) -> int:
        return int(self.guarded(self._relation.__len__)())

    def __str__(self) -> str:
        return str(self.guarded(self._relation.__str__)())

    def __repr__(self) -> str:
        return str(self)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.guarded(self._relation.__arrow_c_stream__)(requested_schema)

    def guarded(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that takes rows with what it raises made ours, and with the leases checked."""

        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            self._check()
            with _explained_query(), interruptible(self.connection):
                answer = method(*args, **kwargs)
            self._check()
            return answer

        return call

    def _check(self) -> None:
        for lease in self._leases:
            lease.check()


def create_view(con: duckdb.DuckDBPyConnection, snapshot: SnapshotFiles, *, view: str) -> str:
    """Make a snapshot a view; see :meth:`icedb_client.snapshots.Snapshot.duckdb`."""
    prepare(con, snapshot)
    with explained(snapshot):
        con.execute(f"CREATE OR REPLACE TEMP VIEW {quote_name(view)} AS {select_from(snapshot)}")
    return view


def select_rows(
    con: duckdb.DuckDBPyConnection, snapshot: SnapshotFiles, *, columns: Sequence[str] | None
) -> duckdb.DuckDBPyRelation:
    """Return the rows of a snapshot on a connection that can read nothing else from then on.

    Args:
        con: A connection of :func:`open_duckdb`.
        snapshot: What to read; has at least one column.
        columns: Which columns, in which order; partition fields may be among them. ``None``: the table's columns.

    Raises:
        InvalidRequest: No such column, or DuckDB refuses the snapshot's condition.
        Unavailable: A data file could not be read, or the httpfs extension is missing.
    """
    names = tuple(snapshot.schema) if columns is None else find_columns(snapshot, columns)
    prepare(con, snapshot)
    lock(con, snapshot.files.uris)
    with explained(snapshot):
        return con.sql(select_from(snapshot, columns=names))


def find_columns(snapshot: SnapshotFiles, columns: Sequence[str]) -> tuple[str, ...]:
    """Return the names that a caller means, as the table spells them. Raises InvalidRequest."""
    if isinstance(columns, str) or not columns:
        raise InvalidRequest(f"table {snapshot.table}: columns={columns!r}: give a list of at least one column")
    known = {name.lower(): name for name in (*snapshot.schema, *partition_columns(snapshot))}
    missing = [name for name in columns if name.lower() not in known]
    if missing:
        raise InvalidRequest(
            f"table {snapshot.table} has no column {', '.join(repr(name[:80]) for name in missing)}; "
            f"it has {', '.join(known.values()) or 'none: nothing was committed to it yet'}"
        )
    return tuple(known[name.lower()] for name in columns)


def partition_columns(snapshot: SnapshotFiles) -> tuple[str, ...]:
    """Return the partition fields that a view has beside the table's columns: those that no column is called like."""
    columns = {name.lower() for name in snapshot.schema}
    return tuple(name for name in snapshot.partition_names if name.lower() not in columns)


def select_empty(snapshot: SnapshotFiles) -> str:
    """Return a query without rows that has every column of the table and of its partitions, with its type."""
    if not snapshot.schema:
        return "SELECT NULL AS nothing WHERE false"
    types = {**checked_types(snapshot), **dict.fromkeys(partition_columns(snapshot), "VARCHAR")}
    columns = (f"CAST(NULL AS {sql_type}) AS {quote_name(name)}" for name, sql_type in types.items())
    return f"SELECT {', '.join(columns)} WHERE false"


def select_from(snapshot: SnapshotFiles, *, columns: Sequence[str] | None = None) -> str:
    """Return the query whose rows are the snapshot's rows.

    Args:
        snapshot: What to read.
        columns: Which columns; ``None``: every column of the table, then its partition fields as text.
    """
    if not snapshot.schema:
        return select_empty(snapshot)
    fields = {name: quote_name(name) for name in snapshot.schema}
    if not snapshot.files:
        fields.update({name: quote_name(name) for name in partition_columns(snapshot)})
        source = select_empty(snapshot)
    else:
        wanted = set(partition_columns(snapshot) if columns is None else columns) - fields.keys()
        path = _unused_name(snapshot, "icedb_path") if wanted else None
        fields.update({name: _partition_value(snapshot, name, path=str(path)) for name in wanted})
        source = _select_files(snapshot, path=path)
    names = columns if columns is not None else (*snapshot.schema, *partition_columns(snapshot))
    chosen = ", ".join(f"{fields[name]} AS {quote_name(name)}" for name in names)
    # The condition stands inside, where partition fields are not columns yet: it means the same to every reader.
    rows = source if snapshot.where is None else f"SELECT * FROM ({source}) WHERE (\n{snapshot.where}\n)"  # noqa: S608
    return f"SELECT {chosen} FROM ({rows})"  # noqa: S608 - names are quoted, the condition is one expression


def _select_files(snapshot: SnapshotFiles, *, path: str | None) -> str:
    """Return the query of all rows of the files; no footer is opened before rows are wanted, as all types are given.

    WARN: DuckDB answers a condition on a column called ``filename`` from the path of the file, whatever is in it, as
    soon as it is to give the path as well (1.5). Such a column is read under another name, and gets its own after that.

    WARN: It converts the constant of a condition to the type that the column has in a file: where ``n`` is BIGINT
    there, it makes ``n >= 2`` of ``n >= 2.5``, and rows are lost or too many. And it believes bounds of footers, which
    leave out NaN, though that is above every number: with 1.5 and NaN it finds nothing for ``f <> 1.5``. It does not
    look through a function, so columns of which files may be such come out of one that changes nothing.

    Args:
        snapshot: What to read; has files.
        path: Name of one more column, the path of each row's file. DuckDB skips files by it.
    """
    read_as = {
        name: name if name.lower() != _PATH else _unused_name(snapshot, "icedb_column") for name in snapshot.schema
    }
    columns = ", ".join(
        f"{quote_text(name)}: {{name: {quote_text(read_as[name])}, type: {quote_text(sql_type)}, default_value: NULL}}"
        for name, sql_type in checked_types(snapshot).items()
    )
    uris = ", ".join(map(quote_text, snapshot.files.uris))
    values = {name: quote_name(read_as[name]) for name in snapshot.schema}
    values.update({name: f"least({values[name]}, {values[name]})" for name in snapshot.narrow_types if name in values})
    if path is not None:
        values[path] = _PATH
    chosen = ", ".join(f"{value} AS {quote_name(name)}" for name, value in values.items())
    options = f"hive_partitioning = false{'' if path is None else ', filename = true'}"
    return f"SELECT {chosen} FROM read_parquet([{uris}], schema = MAP {{{columns}}}, {options})"  # noqa: S608 - quoted


def _unused_name(snapshot: SnapshotFiles, name: str) -> str:
    """Return a name that no column of the table and no partition field has."""
    taken = {each.lower() for each in (*snapshot.schema, *snapshot.partition_names)}
    while name in taken:
        name += "_"
    return name


def _partition_value(snapshot: SnapshotFiles, name: str, *, path: str) -> str:
    """Return the expression of a partition value, decoded, from the column with a file's path.

    DuckDB evaluates a condition on it for each file, and compiles the pattern each time that it stands there. So it
    stands there once, unless some path of the snapshot lacks the field or has a value that is not the text in the path.
    """
    odd: dict[str, str | None] = {}
    for folder in dict.fromkeys(path.rpartition("/")[0] for path in snapshot.files.paths):
        fields = dict(part.partition("=")[::2] for part in folder.rpartition("/_data/")[2].split("/"))
        encoded = fields.get(name, "")
        if not encoded or encoded == HIVE_NULL:
            odd[encoded] = None
        elif "_" in encoded and encoded not in odd and (value := decode_partition_value(encoded)) != encoded:
            odd[encoded] = value
    pattern = f".*/_data/(?:.*/)?{re.escape(name)}(?:=|%3D)([^/]*)/"
    text = f"regexp_extract({quote_name(path)}, {quote_text(pattern)}, 1)"
    if not odd:
        return text
    cases = " ".join(
        f"WHEN {quote_text(encoded)} THEN {'NULL' if value is None else quote_text(value)}"
        for encoded, value in odd.items()
    )
    return f"CASE {text} {cases} ELSE {text} END"


def checked_types(snapshot: SnapshotFiles) -> Mapping[str, str]:
    """Return the columns with their types, which may stand in SQL as they are. Raises UnsupportedFormat."""
    for name, sql_type in snapshot.schema.items():
        if not _SQL_TYPE.fullmatch(sql_type):
            raise UnsupportedFormat(
                f"table {snapshot.table}: column {name!r} has the type {sql_type[:80]!r}, which cannot be queried here"
            )
    return snapshot.schema


@contextmanager
def explained(snapshot: SnapshotFiles) -> Iterator[None]:
    """Turn what DuckDB says about a snapshot's rows into our errors.

    Raises:
        InvalidRequest: It refuses the condition.
        Unavailable: A data file could not be read.
    """
    try:
        yield
    except UNREADABLE as error:
        raise unreadable(error) from error
    except duckdb.Error as error:
        if snapshot.where is None:
            raise InvalidRequest(f"table {snapshot.table}: the query failed: {why_it_failed(error)}") from error
        raise InvalidRequest(
            f"table {snapshot.table}: where={snapshot.where[:200]!r} is refused: {first_line(error)}; "
            f"the table has {', '.join(snapshot.schema)}"
        ) from error


@contextmanager
def interruptible(con: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Let Ctrl-C end the work of a connection: DuckDB gives it another name, and threads of its go on."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error.__cause__, KeyboardInterrupt):
            raise
        con.interrupt()
        raise KeyboardInterrupt from error


@contextmanager
def _explained_query() -> Iterator[None]:
    """Turn what DuckDB says about a query into our errors."""
    try:
        yield
    except UNREADABLE as error:
        raise unreadable(error) from error
    except duckdb.Error as error:
        raise InvalidRequest(f"the query failed: {why_it_failed(error)}") from error


def prepare(con: duckdb.DuckDBPyConnection, snapshot: SnapshotFiles) -> None:
    """Let a connection reach the files of a snapshot. Raises Unavailable: httpfs cannot be loaded."""
    if not snapshot.files:
        return
    if snapshot.files[0].presigned_url is not None:
        load_httpfs(con)
    elif snapshot.s3 is not None:
        prepare_s3(con, snapshot.s3)


def unreadable(error: Exception) -> Unavailable:
    """Return the error for a data file that could not be read."""
    is_gone = isinstance(error, duckdb.PermissionException) and "/**/" in str(error)
    what = "it is not there" if is_gone else first_line(error)
    return Unavailable(
        f"a data file could not be read: {what}; "
        "if it is gone, the read took longer than the table's data grace period: run it again, and hold the table with "
        "`with client.reading(table) as snapshot:` while you read. If it is gone the next time, too: `icedb fsck`"
    )


def read_table(snapshot: SnapshotFiles, columns: Sequence[str] | None) -> "pa.Table":
    """See :meth:`Snapshot.to_arrow`."""
    pa = require_package("pyarrow", what="to_arrow")
    with hold_while_reading(snapshot), open_duckdb() as con:
        if not snapshot.schema and columns is None:
            return pa.table({})
        rows = select_rows(con, snapshot, columns=columns)
        with explained(snapshot):
            table = rows.to_arrow_table()
    return table.cast(_in_utc(pa, table.schema))


def open_reader(snapshot: SnapshotFiles, columns: Sequence[str] | None, *, batch_rows: int) -> "pa.RecordBatchReader":
    """See :meth:`Snapshot.to_arrow_reader`."""
    pa = require_package("pyarrow", what="to_arrow_reader")
    if not 1 <= batch_rows <= MAX_BATCH_ROWS:
        raise InvalidRequest(f"batch_rows={batch_rows}: give 1 to {MAX_BATCH_ROWS} rows")
    if not snapshot.schema and columns is None:
        return pa.RecordBatchReader.from_batches(pa.schema([]), iter(()))
    batches = _stream(pa, snapshot, columns, batch_rows)
    schema = next(batches)  # everything that can be refused is refused now
    return pa.RecordBatchReader.from_batches(schema, batches)


def read_pandas(snapshot: SnapshotFiles, columns: Sequence[str] | None, options: Mapping[str, Any]) -> "pd.DataFrame":
    """See :meth:`Snapshot.to_pandas`."""
    return _to_pandas(lambda: read_table(snapshot, columns), options)


def read_polars(snapshot: SnapshotFiles, columns: Sequence[str] | None) -> "pl.DataFrame":
    """See :meth:`Snapshot.to_polars`."""
    return _to_polars(lambda: read_table(snapshot, columns))


def _to_pandas(read: "Callable[[], pa.Table]", options: Mapping[str, Any]) -> "pd.DataFrame":
    package = require_package("pandas", what="to_pandas")
    pa = require_package("pyarrow", what="to_pandas")
    nullable = {pa.int64(): package.Int64Dtype(), pa.bool_(): package.BooleanDtype()}
    frame: pd.DataFrame = read().to_pandas(**{"types_mapper": nullable.get, **options})
    return frame


def _to_polars(read: "Callable[[], pa.Table]") -> "pl.DataFrame":
    package = require_package("polars", what="to_polars")
    require_package("pyarrow", what="to_polars")
    frame: pl.DataFrame = package.from_arrow(read())
    return frame


def _stream(pa: Any, snapshot: SnapshotFiles, columns: Sequence[str] | None, batch_rows: int) -> Iterator[Any]:
    """Yield the schema, then each batch, holding the files until the last one is taken."""
    with take_hold(snapshot) as hold, open_duckdb() as con:
        rows = select_rows(con, snapshot, columns=columns)
        with explained(snapshot):
            reader = rows.to_arrow_reader(batch_rows)
        schema = _in_utc(pa, reader.schema)
        yield schema
        while True:
            if hold is not None:
                hold.check()
            with explained(snapshot):
                batch = next(reader, None)
            if batch is None:
                return
            yield batch.cast(schema)


def _in_utc(pa: Any, schema: Any) -> Any:
    """Return the schema with times in UTC: what the log calls TIMESTAMP is always that."""
    micros, utc = pa.timestamp("us"), pa.timestamp("us", "UTC")
    return pa.schema([field.with_type(utc) if field.type == micros else field for field in schema])


def require_package(package: str, *, what: str) -> Any:
    """Return an optional package. Raises InvalidRequest with the command that installs it."""
    try:
        return import_module(package)
    except ImportError as error:
        raise InvalidRequest(f"{what} needs {package}, which is not installed: pip install {package}") from error


def find_snapshots(
    sql: str, read: Callable[[str], _Found], *, parameters: Parameters | None = None
) -> dict[str, _Found]:
    """Return the snapshot of each table that a query names, by name.

    The query is bound, not run, on a connection that can open no file: DuckDB says which names are tables (and not
    columns, aliases or parts of the query itself).

    Args:
        sql: The query.
        read: Returns the snapshot of a table.
        parameters: Values of its parameters.

    Raises:
        InvalidRequest: Not SQL, more than one statement, one that does not only read tables, or its parameters have
            other values than these.
        NotFound: Whatever ``read`` raises.
    """
    if isinstance(parameters, str | bytes):
        raise InvalidRequest(f"parameters={parameters[:80]!r}: give a list of values, or a mapping of names to values")
    found: dict[str, _Found] = {}
    with duckdb.connect(config={**OFFLINE, **_BINDING}) as con:
        query = _check_statement(con, sql)
        while len(found) <= MAX_TABLES:
            name = _first_unknown_table(con, query, parameters, tables=found)
            if name is None:
                return found
            if name in found:
                raise InvalidRequest(f"the query names table {name!r} in a way that DuckDB does not resolve")
            found[name] = read(name)
            con.execute(f"CREATE TEMP VIEW {quote_name(name)} AS {select_empty(found[name])}")
    raise InvalidRequest(f"the query names more than {MAX_TABLES} tables")


def _check_statement(con: duckdb.DuckDBPyConnection, sql: str) -> str:
    """Return the query that a text is, or that it explains: to explain a statement with ANALYZE is to run it."""
    statement = _parse_one(con, sql)
    query = sql
    if statement.type == duckdb.StatementType.EXPLAIN:
        query = _find_explained(con, sql)
        statement = _parse_one(con, query)
    if statement.type != duckdb.StatementType.SELECT:
        raise InvalidRequest(
            f"{statement.type.name} is not allowed: tables are read only here; "
            "use SELECT, WITH, FROM, DESCRIBE, SUMMARIZE, or EXPLAIN of one of these"
        )
    return query


def _parse_one(con: duckdb.DuckDBPyConnection, sql: str) -> duckdb.Statement:
    try:
        statements = con.extract_statements(sql)
    except duckdb.Error as error:
        raise InvalidRequest(f"the query is not understood: {first_line(_read_error(error).words)}") from error
    if len(statements) != 1:
        raise InvalidRequest(f"give one statement, not {len(statements)}")
    return statements[0]


def _find_explained(con: duckdb.DuckDBPyConnection, sql: str) -> str:
    """Return what follows ``EXPLAIN [ANALYZE] [(options)]``."""
    text = sql.encode()
    places = [place for place, kind in duckdb.tokenize(sql) if kind != duckdb.token_type.comment]
    words = [text[start:end] for start, end in pairwise([*places, len(text)])]
    at = 1 + (words[1][:7].upper() in (b"ANALYZE", b"ANALYSE"))
    rest = text[places[at] :].decode()
    if not words[at].startswith(b"("):
        return rest
    try:
        con.extract_statements(rest)  # a query in parentheses
    except duckdb.Error:
        depths = accumulate(word.startswith(b"(") - word.startswith(b")") for word in words[at:])
        closed = next(place for place, depth in enumerate(depths, at) if depth == 0)
        return text[places[closed + 1] :].decode()
    return rest


def _first_unknown_table(
    con: duckdb.DuckDBPyConnection, sql: str, parameters: Parameters | None, *, tables: Mapping[str, SnapshotFiles]
) -> str | None:
    is_explained = con.extract_statements(sql)[0].type is duckdb.StatementType.EXPLAIN
    try:
        con.execute(sql if is_explained else f"EXPLAIN {sql}", parameters)
    except duckdb.PermissionException as error:
        raise InvalidRequest(
            f"a query reads the warehouse's tables and nothing else ({first_line(_read_error(error).words)}); "
            "for other files use Snapshot.duckdb with a connection of your own"
        ) from error
    except duckdb.Error as error:
        found = _read_error(error)
        if found.unknown_table is None:
            empty = next((name for name, snapshot in tables.items() if snapshot.last_commit_ms is None), None)
            if empty is not None:
                declared = ", ".join(tables[empty].schema)
                raise InvalidRequest(
                    f"table {empty!r} has no columns at this time{f' but {declared}' if declared else ''}: nothing was "
                    f"committed to it yet. Events that wait show in `icedb status {empty}`, and those that could not "
                    f"be committed in `icedb quarantine list {empty}`. DuckDB says: {found.words.partition(chr(10))[0]}"
                ) from error
            raise InvalidRequest(f"the query is refused: {first_line(found.words)}") from error
        return found.unknown_table.lower()  # as DuckDB, which does not tell cases apart
    return None


class _DuckDBError(NamedTuple):
    """What an error of a connection with ``errors_as_json`` says; ``unknown_table``: that it lacks a table."""

    words: str
    unknown_table: str | None


def _read_error(error: duckdb.Error) -> _DuckDBError:
    kind, _, body = str(error).partition(": ")
    try:
        told = json.loads(body)
    except ValueError:  # not all of them come so
        return _DuckDBError(str(error), None)
    is_table = (told.get("error_subtype"), told.get("type")) == ("MISSING_ENTRY", "Table")
    return _DuckDBError(f"{kind}: {told['exception_message']}", told["name"] if is_table else None)


def query_one(snapshot: SnapshotFiles, sql: str, parameters: Parameters | None) -> QueryResult:
    """See :meth:`Snapshot.sql`."""

    def read(name: str) -> SnapshotFiles:
        if name != snapshot.table:
            raise InvalidRequest(
                f"the query names {name[:80]!r}: this snapshot is of table {snapshot.table!r} alone; "
                "Client.query reads several"
            )
        return snapshot

    return run(sql, find_snapshots(sql, read, parameters=parameters), parameters=parameters)


def run(
    sql: str,
    snapshots: Mapping[str, SnapshotFiles],
    *,
    parameters: Parameters | None = None,
    bounds: Mapping[str, str] | None = None,
    outputs: Sequence[str] = (),
) -> QueryResult:
    """Run a checked query on a connection of its own that can open the files of these snapshots and nothing else.

    Args:
        sql: The query.
        snapshots: What it reads, by the names that it has for them.
        parameters: Values of its parameters.
        bounds: As of :func:`open_duckdb`.
        outputs: Paths of files that may be opened besides: the caller writes the result there.

    Raises:
        InvalidRequest: DuckDB refuses it; its own words.
        Unavailable: A data file could not be read.
    """
    with ExitStack() as undo:
        con = undo.enter_context(open_duckdb(bounds))
        releasing = undo.enter_context(ExitStack())
        leases = []
        for snapshot in snapshots.values():
            if (hold := releasing.enter_context(take_hold(snapshot))) is not None:
                leases.append(hold)
            create_view(con, snapshot, view=snapshot.table)
        lock(con, [*outputs, *(uri for snapshot in snapshots.values() for uri in snapshot.files.uris)])
        with _explained_query():
            relation = con.sql(sql, params=parameters)
        undo.pop_all()
        return QueryResult(relation, snapshots=snapshots, connection=con, leases=leases, releasing=releasing)
