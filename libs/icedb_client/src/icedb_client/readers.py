"""A snapshot's rows as Arrow, pandas and Polars. DuckDB reads them; what is optional is imported here alone."""

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from icedb_log.errors import InvalidRequest

from icedb_client.duck import explained, select_rows
from icedb_client.duck_connection import open_duckdb
from icedb_client.read_lease import hold_while_reading, release_hold, take_hold
from icedb_client.snapshots import Snapshot

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

MAX_BATCH_ROWS: Final = 10_000_000


def read_table(snapshot: Snapshot, columns: Sequence[str] | None) -> "pa.Table":
    """See :meth:`Snapshot.to_arrow`."""
    pa = _require("pyarrow", extra="arrow", what="to_arrow")
    with hold_while_reading(snapshot), open_duckdb() as con:
        if not snapshot.schema and columns is None:
            return pa.table({})
        rows = select_rows(con, snapshot, columns=columns)
        with explained(snapshot):
            table = rows.to_arrow_table()
    return table.cast(_in_utc(pa, table.schema))


def open_reader(snapshot: Snapshot, columns: Sequence[str] | None, *, batch_rows: int) -> "pa.RecordBatchReader":
    """See :meth:`Snapshot.to_arrow_reader`."""
    pa = _require("pyarrow", extra="arrow", what="to_arrow_reader")
    if not 1 <= batch_rows <= MAX_BATCH_ROWS:
        raise InvalidRequest(f"batch_rows={batch_rows}: give 1 to {MAX_BATCH_ROWS} rows")
    if not snapshot.schema and columns is None:
        return pa.RecordBatchReader.from_batches(pa.schema([]), iter(()))
    batches = _stream(pa, snapshot, columns, batch_rows)
    schema = next(batches)  # everything that can be refused is refused now
    return pa.RecordBatchReader.from_batches(schema, batches)


def read_pandas(snapshot: Snapshot, columns: Sequence[str] | None, options: Mapping[str, Any]) -> "pd.DataFrame":
    """See :meth:`Snapshot.to_pandas`."""
    package = _require("pandas", extra="pandas", what="to_pandas")
    pa = _require("pyarrow", extra="pandas", what="to_pandas")
    nullable = {pa.int64(): package.Int64Dtype(), pa.bool_(): package.BooleanDtype()}
    frame: pd.DataFrame = read_table(snapshot, columns).to_pandas(**{"types_mapper": nullable.get, **options})
    return frame


def read_polars(snapshot: Snapshot, columns: Sequence[str] | None) -> "pl.DataFrame":
    """See :meth:`Snapshot.to_polars`."""
    package = _require("polars", extra="polars", what="to_polars")
    _require("pyarrow", extra="polars", what="to_polars")
    frame: pl.DataFrame = package.from_arrow(read_table(snapshot, columns))
    return frame


def _stream(pa: Any, snapshot: Snapshot, columns: Sequence[str] | None, batch_rows: int) -> Iterator[Any]:
    """Yield the schema, then each batch, holding the files until the last one is taken."""
    hold = take_hold(snapshot)
    try:
        with open_duckdb() as con:
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
    finally:
        release_hold(snapshot, hold)


def _in_utc(pa: Any, schema: Any) -> Any:
    """Return the schema with times in UTC: what the log calls TIMESTAMP is always that."""
    micros, utc = pa.timestamp("us"), pa.timestamp("us", "UTC")
    return pa.schema([field.with_type(utc) if field.type == micros else field for field in schema])


def _require(package: str, *, extra: str, what: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        raise InvalidRequest(
            f"{what} needs {package}, which is not installed: pip install 'icedb-client[{extra}]'"
        ) from error
