"""A snapshot that can be read: every way to get at its rows."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from icedb_client.file_list import DataFile, FileList
from icedb_client.read_leases import hold_while_reading
from icedb_client.requests import Answerer, Changes, Parameters, SnapshotFiles, SnapshotRequest

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    from duckdb import DuckDBPyConnection

    from icedb_client.describe import TableDescription
    from icedb_client.duck import QueryResult

__all__ = ["DataFile", "Snapshot"]


def _duck() -> Any:
    """Return what reads rows: DuckDB and pyarrow are loaded by those who read."""
    from icedb_client import duck  # noqa: PLC0415 - as said

    return duck


def _describing() -> Any:
    from icedb_client import describe  # noqa: PLC0415 - as above

    return describe


@dataclass(frozen=True)
class Snapshot(SnapshotFiles):
    """The live data files of a table at one time. They stay readable for the table's data grace period.

    All readers give the same rows: those of the files, filtered by ``where``, with every column of the table and its
    type in ``schema``, also where some files lack the column or have a narrower type. They block; a read that may
    outlast the grace period holds the table by a lease while it lasts.
    """

    def to_arrow(self, *, columns: Sequence[str] | None = None) -> "pa.Table":
        """Return all rows as an Arrow table. ``TIMESTAMP`` columns are timestamps in UTC.

        Args:
            columns: Which columns, in this order; partition fields may be among them. ``None``: the table's columns.

        Raises:
            InvalidRequest: No such column, a condition that DuckDB refuses, or pyarrow is missing.
            Unavailable: A data file could not be read, or a lease was lost.
        """
        return _duck().read_table(self, columns)

    def to_arrow_reader(
        self, *, columns: Sequence[str] | None = None, batch_rows: int = 100_000
    ) -> "pa.RecordBatchReader":
        """Return the rows as a stream of record batches, read while they are taken: memory stays bounded. Iterate it.

        Raises as :meth:`to_arrow`, also while batches are taken.

        Args:
            columns: As of :meth:`to_arrow`.
            batch_rows: Most rows of a batch.
        """
        return _duck().open_reader(self, columns, batch_rows=batch_rows)

    def to_pandas(self, /, *, columns: Sequence[str] | None = None, **options: Any) -> "pd.DataFrame":
        """Return all rows as a pandas DataFrame.

        Types do not depend on the rows: ``BIGINT`` is ``Int64`` and ``BOOLEAN`` is ``boolean``, which have nulls;
        ``TIMESTAMP`` is ``datetime64[us, UTC]``.

        Raises as :meth:`to_arrow`; InvalidRequest also if pandas is missing.

        Args:
            columns: As of :meth:`to_arrow`.
            options: For :meth:`pyarrow.Table.to_pandas`, e.g. ``types_mapper``.
        """
        frame: pd.DataFrame = _duck().read_pandas(self, columns, options)
        return frame

    def to_polars(self, *, columns: Sequence[str] | None = None) -> "pl.DataFrame":
        """Return all rows as a Polars DataFrame. ``TIMESTAMP`` is ``Datetime("us", "UTC")``.

        Raises as :meth:`to_arrow`; InvalidRequest also if Polars is missing.

        Args:
            columns: As of :meth:`to_arrow`.
        """
        frame: pl.DataFrame = _duck().read_polars(self, columns)
        return frame

    def duckdb(self, con: "DuckDBPyConnection", *, view: str | None = None) -> str:
        """Make the snapshot a view of a DuckDB connection and return the view's name.

        The view has every column of the table with its type, then the partition fields (those that no column is
        called like) as text. Files are opened when the view is queried; a condition on a partition field leaves out
        files. Replaces a view of the same name. On S3 the connection gets a secret for the bucket.

        Whoever queries the view for longer than the table's data grace period takes the snapshot from
        :meth:`icedb_client.Client.reading`.

        Args:
            con: An open connection.
            view: Name of the view; the table's name by default.

        Raises:
            InvalidRequest: DuckDB refuses the snapshot's condition.
            Unavailable: DuckDB's httpfs extension cannot be loaded (S3 only).
        """
        return str(_duck().create_view(con, self, view=view or self.table))

    def sql(self, query: str, *, parameters: Parameters | None = None) -> "QueryResult":
        """Run one reading statement over the snapshot, which it names as the table is named.

        It can read the snapshot's files and nothing else.

        Args:
            query: ``SELECT``, ``WITH``, ``FROM``, ``DESCRIBE``, ``SUMMARIZE`` or ``EXPLAIN``.
            parameters: Values of its ``?`` in order, or of its ``$name`` by name.

        Returns:
            The rows, computed when they are taken, as :meth:`icedb_client.Client.query` gives them.

        Raises:
            InvalidRequest: Not one reading statement, it names another table, or DuckDB refuses it.
            Unavailable: A data file could not be read, or a lease was lost.
        """
        rows: QueryResult = _duck().query_one(self, query, parameters)
        return rows

    def describe(self, *, files: int = 100) -> "TableDescription":
        """Return what is in each column: nulls, values, the least and the greatest, and how well each is known.

        What the log says is taken first: of a snapshot with ``bounds=True`` it says it of the columns that the table is
        partitioned or sorted by. The footers of data files say the rest. Rows are read of a small table alone (100,000
        rows, 16 MiB), to count distinct values.

        Args:
            files: Most data files that are opened, evenly spread; of more the figures are estimates. 0: only the
                log is read.

        Raises:
            InvalidRequest: The snapshot has a condition, ``files`` is out of its range, pyarrow is missing, or the list
                of files came from a service without ``columnar=True``.
            Unavailable: A data file could not be read.
        """
        found: TableDescription = _describing().describe_snapshot(self, files=files)
        return found

    def held(self) -> "AbstractContextManager[None]":
        """Hold the files while a reader of your own reads them, if that may outlast the grace period.

        Raises:
            Unavailable: At the end: the lease was lost meanwhile, and files may have been deleted under the reader.
        """
        return hold_while_reading(self)


class SnapshotAnswerer(Answerer, Protocol):
    """An answerer whose snapshots can be read."""

    def snapshot(self, request: SnapshotRequest) -> Snapshot:
        """Return which files are live."""
        ...


def can_lead_to(known: SnapshotFiles, request: SnapshotRequest) -> bool:
    """Whether what came and went since a snapshot makes the answer to a request: both are of all files of a table."""
    return known.table == request.table and len(known.files) == known.total_file_count and request.is_of_whole_table


def describe_changes(
    known: SnapshotFiles, snapshot_id: str, schema: Mapping[str, str], *, added: FileList, removed: FileList
) -> Changes:
    """Return what leads from a snapshot to another."""
    columns = {name: sql_type for name, sql_type in schema.items() if known.schema.get(name) != sql_type}
    return Changes(known.table, known.snapshot_id, snapshot_id, added, removed, columns, is_stable=False)
