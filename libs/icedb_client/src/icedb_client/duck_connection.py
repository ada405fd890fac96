"""Connections to DuckDB: none downloads anything, and S3 is reached as the snapshot says."""

import os
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import duckdb
from icedb_log.errors import Unavailable
from icedb_log.store.stores import S3Options
from icedb_log.texts import quote_text

from icedb_client.duck_text import first_line

DEFAULT_REGION: Final = "us-east-1"
_HTTPFS_PACKAGE: Final = "duckdb-extension-httpfs"
OFFLINE: Final = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "python_enable_replacements": "false",
    "allow_persistent_secrets": "false",
}


def open_duckdb() -> duckdb.DuckDBPyConnection:
    """Return a connection in memory that downloads nothing and does not look at Python's variables."""
    con = duckdb.connect(config=dict(OFFLINE))
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
