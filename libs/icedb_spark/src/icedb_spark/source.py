"""The data source ``icedb``: joins options, reads, streams and writes to what Spark calls.

When Spark calls what (4.3): ``schema`` once for each ``load()``, and what it leaves on the instance travels, pickled,
to every later call; ``reader`` once for each plan of an action. So the snapshot is taken in ``schema``, and every
action of one DataFrame reads that one. A Spark Connect server analyses a DataFrame anew for an action whose plan it
has forgotten, and then takes a new one (``docs/spark-source.md``).

This module is imported by every Python worker that runs a task, so that what only the driver needs is imported there.
"""

from typing import TYPE_CHECKING, Any

from icedb_log.clock import SystemClock
from icedb_log.errors import InvalidRequest
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)

from icedb_spark.values import PinnedSnapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from icedb_spark.options import ReadOptions
    from icedb_spark.scan import Scan


class IceDBDataSource(DataSource):
    """Tables of a warehouse. Options: ``docs/spark-source.md``."""

    _pinned: PinnedSnapshot | None = None

    @classmethod
    def name(cls) -> str:
        """Return what ``format`` takes."""
        return "icedb"

    def schema(self) -> Any:
        """Take the snapshot of a DataFrame and return its schema.

        Raises:
            InvalidRequest: An option is wrong.
            NotFound: No such table.
            HaltError: Its log cannot be read.
            Unavailable: The store did not answer.
        """
        from icedb_spark.driver import take_snapshot  # noqa: PLC0415
        from icedb_spark.options import parse_read_options  # noqa: PLC0415 - see the module
        from icedb_spark.scan import make_scan  # noqa: PLC0415

        options = parse_read_options(self.options)
        self._pinned = take_snapshot(options, clock=SystemClock())
        return make_scan(options, self._pinned).spark_schema()

    def reader(self, schema: Any) -> DataSourceReader:
        """Return what reads the DataFrame's snapshot. Raises InvalidRequest."""
        from icedb_spark.options import parse_read_options  # noqa: PLC0415 - see the module
        from icedb_spark.scan import IceDBReader  # noqa: PLC0415

        options = parse_read_options(self.options)
        pinned, scan = self._take_pinned(options, schema)
        return IceDBReader(scan, pinned.unpack(), split_bytes=options.split_bytes)

    def streamReader(self, schema: Any) -> DataSourceStreamReader:  # noqa: N802 - PySpark's name
        """Return what follows the table. Raises InvalidRequest."""
        from icedb_spark.options import parse_read_options, parse_stream_options  # noqa: PLC0415 - see the module
        from icedb_spark.stream_read import IceDBStreamReader  # noqa: PLC0415

        options = parse_read_options(self.options)
        pinned, scan = self._take_pinned(options, schema)
        return IceDBStreamReader(scan, options, parse_stream_options(self.options), pinned)

    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - PySpark's signature
        """Return what appends to the table; nothing has been written yet.

        Raises:
            InvalidRequest: An option or the DataFrame's schema does not fit.
            NotFound: No such table.
            Unavailable: The store did not answer.
        """
        from icedb_spark.batch_write import IceDBWriter  # noqa: PLC0415 - see the module
        from icedb_spark.driver import plan_write  # noqa: PLC0415
        from icedb_spark.options import parse_write_options  # noqa: PLC0415 - see the module

        if overwrite:
            raise InvalidRequest(
                'rows are only ever added: write with mode("append"). To replace rows, remove them first '
                "(icedb delete, icedb partitions --drop), or write a new table"
            )
        return IceDBWriter(plan_write(schema, parse_write_options(self.options), clock=SystemClock()))

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001, N802 - PySpark's
        """Return what appends the rows of a micro-batch; nothing has been written yet. Raises as :meth:`writer`."""
        from icedb_spark.driver import plan_write  # noqa: PLC0415 - see the module
        from icedb_spark.options import parse_sink_options  # noqa: PLC0415
        from icedb_spark.stream_write import IceDBStreamWriter  # noqa: PLC0415

        if overwrite:
            raise InvalidRequest('rows are only ever added: write the stream with outputMode("append")')
        return IceDBStreamWriter(plan_write(schema, parse_sink_options(self.options), clock=SystemClock()))

    def _take_pinned(self, options: "ReadOptions", schema: Any) -> "tuple[PinnedSnapshot, Scan]":
        """Return the snapshot, and let go of it: what is pickled after this goes to every task."""
        from icedb_spark.scan import make_scan  # noqa: PLC0415 - see the module

        pinned, self._pinned = self._pinned, None
        if pinned is not None:
            scan = make_scan(options, pinned)
            if scan.spark_schema() == schema:
                return pinned, scan
        raise InvalidRequest(
            "give no schema to an IceDB table: it has its own. Choose columns with option columns, or with select"
        )


def register(spark: "SparkSession") -> None:
    """Make ``format("icedb")`` known to a session that does not find it by itself. Idempotent.

    Spark looks for installed data sources once, in the Python of the driver (of the server, with Spark Connect). The
    package has to be installed there, and wherever tasks run.
    """
    spark.dataSource.register(IceDBDataSource)
