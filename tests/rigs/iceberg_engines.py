"""Engines that nobody here wrote, each asked for the rows of a published table.

A row is the set of its columns that are not null, so that the states of a table before and after it got a column can
be compared; NaN counts as equal to itself.
"""

import importlib.util
import math
import os
import re
from collections import Counter
from datetime import date, datetime
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
from pyiceberg.table import StaticTable


def rows_of(table):
    """Return how often each row is there, of an Arrow table."""
    names = table.column_names
    return Counter(
        frozenset((name, _tell(value)) for name, value in zip(names, row, strict=True) if value is not None)
        for row in zip(*(column.to_pylist() for column in table.columns), strict=True)
    )


def _tell(value):
    if isinstance(value, float):
        return "nan" if math.isnan(value) else value
    if isinstance(value, datetime):
        return value.replace(tzinfo=None).isoformat()
    return value.isoformat() if isinstance(value, date) else value


def connect_duckdb():
    """Return DuckDB with its extensions for Iceberg, from their packages."""
    con = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    for name in ("avro", "iceberg"):
        package = Path(importlib.util.find_spec(f"duckdb_extension_{name}").origin).parent
        con.execute(f"LOAD '{package}/extensions/v{duckdb.__version__}/{name}.duckdb_extension'")
    return con


class Engines:
    """All engines, for any number of tables.

    Args:
        more: Also those that only long tests have.
    """

    def __init__(self, *, more=False):
        os.environ["POLARS_ICEBERG_PLANNER"] = "pyiceberg"  # its own is a package of its own
        self.duckdb = connect_duckdb()
        self.more = more

    def newest(self, uri):
        """Yield the name of each engine with the rows of the newest state of the metadata at ``uri``."""
        table = StaticTable.from_metadata(uri)
        if table.current_snapshot() is None:  # never had a data file
            yield "pyiceberg", rows_of(table.scan().to_arrow())
            return
        yield "pyiceberg", rows_of(table.scan().to_arrow())
        yield "duckdb", self._duckdb(uri)
        yield "polars", rows_of(pl.scan_iceberg(uri).collect().to_arrow())
        if self.more:
            yield "chdb", self._chdb(uri)

    def where(self, uri, table, condition):
        """Yield the name of each engine that takes a condition with the rows for which it is true."""
        yield "pyiceberg", rows_of(table.scan(row_filter=condition).to_arrow())
        yield "duckdb", self._duckdb(uri, where=condition)

    def of_snapshot(self, uri, table, snapshot):
        """Yield the name of each engine that travels in time with the rows of a state."""
        number = snapshot.snapshot_id
        yield "pyiceberg", rows_of(table.scan(snapshot_id=number).to_arrow())
        yield "duckdb", self._duckdb(uri, f", snapshot_from_id => {number}::UBIGINT")
        yield "polars", rows_of(pl.scan_iceberg(uri, snapshot_id=number).collect().to_arrow())

    def count_read_by_duckdb(self, uri, condition):
        """Return how many data files DuckDB reads for a condition."""
        path = uri.removeprefix("file://").replace("'", "''")
        query = f"EXPLAIN ANALYZE SELECT * FROM iceberg_scan('{path}') WHERE {condition}"
        ((_, text),) = self.duckdb.execute(query).fetchall()
        return int(re.search(r"Total Files Read:[\s│]*(\d+)", text)[1])

    def _duckdb(self, uri, more="", where="true"):
        path = uri.removeprefix("file://").replace("'", "''")
        return rows_of(
            self.duckdb.execute(f"SELECT * FROM iceberg_scan('{path}'{more}) WHERE {where}").to_arrow_table()
        )

    def _chdb(self, uri):
        from chdb.session import Session  # noqa: PLC0415 - 180 MB, in soaks alone

        folder, _, name = uri.removeprefix("file://").partition("/_icedb/iceberg/metadata/")
        settings = f"SETTINGS iceberg_metadata_file_path = '_icedb/iceberg/metadata/{name}'"
        with Session() as session:
            body = session.query(f"SELECT * FROM icebergLocal('{folder}', {settings})", "ArrowStream").bytes()
        return rows_of(pa.ipc.open_stream(body).read_all() if body else pa.table({}))
