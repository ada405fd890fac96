"""DuckDB as a reader of a snapshot's files, on a directory and on S3."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import duckdb
from icedb_log.errors import NotFound
from icedb_log.stores import StoreSettings


def connect(settings: StoreSettings) -> duckdb.DuckDBPyConnection:
    """Return a connection in memory that reads the warehouse's files.

    Raises:
        NotFound: The extension for S3 is not installed.
    """
    connection = duckdb.connect(config={"threads": 1, "autoinstall_known_extensions": False})
    connection.execute("SET TimeZone = 'UTC'")
    if settings.s3 is not None:
        connection.load_extension(str(_find_httpfs()))
        endpoint = urlsplit(settings.s3.endpoint_url or "")
        connection.execute(
            "CREATE SECRET (TYPE s3, KEY_ID $key, SECRET $secret, REGION $region, ENDPOINT $endpoint,"
            f" URL_STYLE 'path', USE_SSL {str(endpoint.scheme == 'https').lower()})",
            {
                "key": settings.s3.access_key_id,
                "secret": settings.s3.secret_access_key,
                "region": settings.s3.region,
                "endpoint": endpoint.netloc,
            },
        )
    return connection


def count_rows(
    connection: duckdb.DuckDBPyConnection, uris: Sequence[str], *, by: Sequence[str] = ()
) -> dict[tuple[Any, ...], int]:
    """Count the rows of Parquet files by the values of some columns; partition names are columns, too.

    Args:
        connection: From :func:`connect`.
        uris: Where the files lie; none at all have no rows.
        by: Columns, quoted here.
    """
    if not uris:
        return {}
    columns = "".join(f'"{column}", ' for column in by)
    query = (
        f"SELECT {columns}count(*) FROM read_parquet($uris, union_by_name = true, hive_partitioning = true,"
        " hive_types_autocast = false) GROUP BY ALL"
    )
    rows = connection.execute(query, {"uris": list(uris)}).fetchall()
    return {tuple(row[:-1]): int(row[-1]) for row in rows}


def _find_httpfs() -> Path:
    spec = importlib.util.find_spec("duckdb_extension_httpfs")
    found = [
        path
        for folder in (spec.submodule_search_locations or () if spec else ())
        for path in Path(folder).glob(f"extensions/v{duckdb.__version__}/httpfs.duckdb_extension")
    ]
    if not found:
        raise NotFound(f"no httpfs extension for DuckDB {duckdb.__version__}: install duckdb-extension-httpfs")
    return found[0]
