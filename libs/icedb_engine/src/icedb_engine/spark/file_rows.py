"""Data files as DataFrames: read by our own tasks, some files each, and never by Spark itself."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from icedb_log.keys import TablePaths
from icedb_log.units import MIB
from pyspark.sql import types as spark_types

from icedb_engine.limits import EngineLimits, share_threads
from icedb_engine.query.insert_query import make_spark_schema
from icedb_engine.spark.change_tasks import HiddenNames, encode_read_unit, make_hidden_names, make_read_task
from icedb_engine.spark.spark_runner import SparkRunner
from icedb_engine.units.read_unit import NumberedFile, ReadFilesUnit

READ_TASK_BYTES: Final = 64 * MIB
"""Bytes of data files that are worth a read task of their own."""
READ_TASK_FILES: Final = 256


class FileRows:
    """Makes DataFrames of the data files of one table.

    Args:
        runner: The session and the store.
        paths: Keys of the table.
        columns: Columns to be read, with the table's types.
        is_whole: Whether these are all columns of the table: then a file that has others is refused.
        engine: Bounds of tasks.

    Attributes:
        hidden: Names of the columns beside the table's own.
    """

    def __init__(
        self,
        runner: SparkRunner,
        paths: TablePaths,
        columns: Mapping[str, str],
        *,
        is_whole: bool,
        engine: EngineLimits,
    ) -> None:
        self._runner = runner
        self._paths = paths
        self._columns = dict(columns)
        self._is_whole = is_whole
        self._engine = engine
        self.hidden: Final[HiddenNames] = make_hidden_names(tuple(columns))

    def read(self, files: Sequence[NumberedFile], sizes: Sequence[int]) -> Any:
        """Return a DataFrame of the rows of data files, with ordinal and error. Nothing runs yet."""
        parts = list(_pack_files(files, sizes))
        engine = share_threads(self._engine, len(parts))
        bodies = [
            encode_read_unit(ReadFilesUnit(self._paths, self._columns, self._is_whole, tuple(part), engine))
            for part in parts
        ]
        own: Any = make_spark_schema(self._columns)
        hidden = [
            spark_types.StructField(self.hidden.ordinal, spark_types.IntegerType()),
            spark_types.StructField(self.hidden.error, spark_types.StringType()),
        ]
        task = make_read_task(self._runner.store, self._columns, self.hidden)
        return self._runner.make_units(bodies).mapInArrow(task, schema=spark_types.StructType([*hidden, *own.fields]))


def _pack_files(files: Sequence[NumberedFile], sizes: Sequence[int]) -> Iterator[list[NumberedFile]]:
    part: list[NumberedFile] = []
    size_bytes = 0
    for file, size in zip(files, sizes, strict=True):
        if part and (size_bytes + size > READ_TASK_BYTES or len(part) == READ_TASK_FILES):
            yield part
            part, size_bytes = [], 0
        part.append(file)
        size_bytes += size
    yield part
