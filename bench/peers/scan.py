"""Writers of the files that the benchmark of scans reads, and the engines that read them."""

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import duckdb
import orjson
import pyarrow as pa
import pyarrow.dataset as pad
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import DeltaTable, WriterProperties, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog

from bench.peers.duck import open_duckdb
from bench.scan_work import ALL, SORT, Engine, Files, folder_name, spell

_S3_KEY: Final = "dev"
_REGION: Final = "us-east-1"
os.environ["POLARS_MAX_THREADS"] = "1"  # Polars looks when it is imported


class Writers:
    """Makes files of the same rows by each writer, at its defaults or with zstd at level 1.

    Args:
        source: A file with the rows in the order of :data:`bench.scan_work.SORT`.
        folder: For the files.
    """

    name = "writers"

    def __init__(self, source: Path, folder: Path) -> None:
        self._source = source
        self._folder = folder
        self._rows = pq.read_table(source)

    def write(self, level: int | None) -> list[Files]:
        """Write them, one after the other; with zstd at a level, or as each does that is told nothing."""
        shutil.rmtree(self._folder, ignore_errors=True)
        writers: Mapping[str, Callable[[Path, int | None], Sequence[Path]]] = {
            "duckdb": self._duckdb,
            "polars": self._polars,
            "pyarrow": self._arrow,
            "delta-rs": self._delta,
            "delta-rs z-order": self._z_order,
            "pyiceberg": self._iceberg,
        }
        written = []
        for name, write in writers.items():
            root = self._folder / folder_name(name)
            root.mkdir(parents=True)
            written.append(Files(name, tuple(write(root, level))))
        return written

    def close(self) -> None:
        """Nothing is open."""

    def _duckdb(self, root: Path, level: int | None) -> Sequence[Path]:
        path = root / "all.parquet"
        options = "" if level is None else f", COMPRESSION zstd, COMPRESSION_LEVEL {level}"
        with duckdb.connect() as connection:
            connection.execute(f"COPY (FROM read_parquet('{self._source}')) TO '{path}' (FORMAT parquet{options})")
        return [path]

    def _polars(self, root: Path, level: int | None) -> Sequence[Path]:
        import polars as pl  # noqa: PLC0415 - after the number of its threads is set

        frame: Any = pl.from_arrow(self._rows)
        options = {} if level is None else {"compression": "zstd", "compression_level": level}
        frame.write_parquet(root / "all.parquet", **options)
        return [root / "all.parquet"]

    def _arrow(self, root: Path, level: int | None) -> Sequence[Path]:
        options = {} if level is None else {"compression": "zstd", "compression_level": level}
        pq.write_table(self._rows, root / "all.parquet", **options)
        return [root / "all.parquet"]

    def _delta(self, root: Path, level: int | None) -> Sequence[Path]:
        write_deltalake(root, self._rows, writer_properties=_delta_properties(level))
        return _delta_files(root)

    def _z_order(self, root: Path, level: int | None) -> Sequence[Path]:
        self._delta(root, level)
        DeltaTable(root).optimize.z_order(list(SORT), writer_properties=_delta_properties(level))
        return _delta_files(root)

    def _iceberg(self, root: Path, level: int | None) -> Sequence[Path]:
        catalog = SqlCatalog("bench", uri=f"sqlite:///{root}/catalog.db", warehouse=f"file://{root}")
        catalog.create_namespace("icedb")
        options = {} if level is None else {"write.parquet.compression-level": str(level)}
        table = catalog.create_table("icedb.events", schema=self._rows.schema, properties=options)
        table.append(self._rows)
        return [Path(task.file.file_path.removeprefix("file://")) for task in table.scan().plan_files()]


def _delta_properties(level: int | None) -> WriterProperties | None:
    return None if level is None else WriterProperties(compression="ZSTD", compression_level=level)


def _delta_files(root: Path) -> Sequence[Path]:
    return [Path(uri.removeprefix("file://")) for uri in DeltaTable(root).file_uris()]


class DuckDB(Engine):
    """DuckDB over a list of files."""

    _connection: duckdb.DuckDBPyConnection | None = None

    def open(self) -> None:
        """Open a database; on S3 another one each time, for it keeps what it has read."""
        if self._connection is not None and not self.endpoint:
            return
        if self._connection is not None:
            self._connection.close()
        if not self.endpoint:
            self._connection = open_duckdb(threads=1)
            return
        secret = {"KEY_ID": _S3_KEY, "SECRET": _S3_KEY, "REGION": _REGION, "ENDPOINT": urlsplit(self.endpoint).netloc}
        self._connection = open_duckdb("httpfs", secret=secret, threads=1)

    def read(self, paths: Sequence[str], query: str) -> Sequence[Any]:
        """Return the first row."""
        assert self._connection is not None
        files = [f"s3://{path}" for path in paths] if self.endpoint else list(paths)
        sql = spell(query, files=f"read_parquet({files})", time="TIMESTAMP '{}'")
        return self._connection.execute(sql).fetchone() or ()


class Polars(Engine):
    """Polars, lazily."""

    def open(self) -> None:
        """Nothing is kept."""

    def read(self, paths: Sequence[str], query: str) -> Sequence[Any]:
        """Return the first row."""
        import polars as pl  # noqa: PLC0415 - after the number of its threads is set

        files = [f"s3://{path}" for path in paths] if self.endpoint else list(paths)
        options = {
            "aws_endpoint_url": self.endpoint,
            "aws_access_key_id": _S3_KEY,
            "aws_secret_access_key": _S3_KEY,
            "aws_region": _REGION,
            "aws_allow_http": "true",
        }
        rows = pl.scan_parquet(files, storage_options=options if self.endpoint else None)
        with pl.SQLContext(f=rows) as context:
            return context.execute(spell(query, files="f", time="'{}'::timestamp")).collect().row(0)


class ClickHouse(Engine):
    """ClickHouse's engine in this process."""

    _session: Any = None

    def open(self) -> None:
        """Open a session; there is one in a process."""
        if self._session is None:
            from chdb.session import Session  # noqa: PLC0415 - 180 MB, for this engine alone

            self._session = Session()

    def read(self, paths: Sequence[str], query: str) -> Sequence[Any]:
        """Return the first row."""
        files = paths[0] if len(paths) == 1 else f"{{{','.join(paths)}}}"
        source = f"file('{files}', Parquet)"
        if self.endpoint:
            source = f"s3('{self.endpoint}/{files}', '{_S3_KEY}', '{_S3_KEY}', 'Parquet')"
        sql = spell(query, files=source, time="toDateTime64('{}', 6)")
        answer = self._session.query(f"{sql} SETTINGS max_threads = 1", "JSONCompactEachRow")
        return list(orjson.loads(str(answer).splitlines()[0]))


class PyArrow(Engine):
    """Arrow, which has no SQL: one column of all files, or all of them."""

    def open(self) -> None:
        """Nothing is kept."""

    def read(self, paths: Sequence[str], query: str) -> Sequence[Any]:
        """Return how many rows there are."""
        store = None
        if self.endpoint:
            store = pafs.S3FileSystem(
                access_key=_S3_KEY, secret_key=_S3_KEY, region=_REGION, endpoint_override=self.endpoint
            )
        rows: pa.Table = pad.dataset(list(paths), filesystem=store, format="parquet").to_table(
            columns=None if query == ALL else [query], use_threads=False
        )
        return (rows.num_rows,)
