"""DuckDB as a peer opens it: with extensions from packages, so that nothing is downloaded."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import duckdb


def open_duckdb(*extensions: str, secret: Mapping[str, str] | None = None, **config: Any) -> duckdb.DuckDBPyConnection:
    """Open a database in memory.

    Args:
        *extensions: Names of extensions to load.
        secret: Options of a secret for S3, by name; none if empty.
        **config: DuckDB's settings.
    """
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true", **config})
    for name in extensions:
        package = Path(str(import_module(f"duckdb_extension_{name}").__file__)).parent
        (file,) = package.rglob(f"{name}.duckdb_extension")
        connection.execute(f"LOAD '{file}'")
    if secret:
        options = ", ".join(f"{name} '{value}'" for name, value in secret.items())
        connection.execute(f"CREATE SECRET s3 (TYPE s3, URL_STYLE 'path', USE_SSL false, {options})")
    return connection


class Lake:
    """A DuckLake whose catalog is a DuckDB database, with one table ``events``.

    Args:
        folder: Of the catalog.
        place: Of the data files, a folder or a URL.
        secret: As :func:`open_duckdb` takes it.
        options: DuckLake's options, by name.
        **config: DuckDB's settings.
    """

    def __init__(
        self,
        folder: Path,
        place: str,
        *,
        secret: Mapping[str, str] | None = None,
        options: Mapping[str, Any] | None = None,
        **config: Any,
    ) -> None:
        self.connection = open_duckdb("ducklake", *(["httpfs"] if secret else []), secret=secret, **config)
        self.connection.execute("SET enable_progress_bar = false")
        self.connection.execute(f"ATTACH 'ducklake:{folder / 'catalog.ducklake'}' AS lake (DATA_PATH '{place}/')")
        for name, value in (options or {}).items():
            self.connection.execute("CALL ducklake_set_option('lake', ?, ?)", [name, value])

    def files(self) -> Sequence[Path]:
        """Return the live data files."""
        found = self.connection.execute("SELECT data_file FROM ducklake_list_files('lake', 'events')").fetchall()
        return [Path(file) for (file,) in found]

    def close(self) -> None:
        """Close the database."""
        self.connection.close()
