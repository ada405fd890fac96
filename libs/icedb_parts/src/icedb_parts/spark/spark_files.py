"""Data files as a DataFrame: each task fetches its files through the store and streams their rows.

Only what the DataFrame API offers on a Spark Connect server, too; Spark itself never reaches the store. What is wrong
with a file comes back to the driver as one of our errors, whatever query the rows went through.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from icedb_log.errors import CorruptLog, IceDBError, NotFound, SchemaConflict, Unavailable
from icedb_log.model import FileMarker
from icedb_log.stores import StoreSettings
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from icedb_parts.limits import EngineLimits
from icedb_parts.query.insert_query import make_spark_schema
from icedb_parts.spark.spark_runner import Chunks, SparkRunner

_ERRORS: Final[dict[str, type[IceDBError]]] = {
    error.__name__: error for error in (NotFound, CorruptLog, SchemaConflict, Unavailable)
}
_PROBLEM: Final = re.compile(r"icedb data file (?P<kind>[A-Za-z]+): (?P<message>[^\r\n]+)")
_FILE_SCHEMA: Final = "task INT, path STRING, row_count BIGINT"


class DataFileProblem(RuntimeError):
    """What a task raises, so that the driver knows it again in whatever Spark makes of it."""

    def __init__(self, error: IceDBError) -> None:
        message = " ".join(str(error).split())
        super().__init__(f"icedb data file {type(error).__name__}: {message}")


def open_data_files(
    runner: SparkRunner,
    files: Sequence[FileMarker],
    types: Mapping[str, str],
    *,
    engine: EngineLimits,
    task_bytes: int,
) -> Any:
    """Return a DataFrame of the rows of data files. Nothing is read yet; what reads it goes in :func:`file_errors`.

    Args:
        runner: The session and the store.
        files: At least one; live or not.
        types: Columns of the rows, with SQL types; NULL where a file has no such column.
        engine: Bounds of a task.
        task_bytes: Size of files that is worth a task of its own.
    """
    task_count = min(len(files), max(1, -(-sum(file.size_bytes for file in files) // task_bytes)))
    largest_first = sorted(files, key=lambda file: -file.size_bytes)
    rows = [(place % task_count, file.path, file.row_count) for place, file in enumerate(largest_first)]
    frame: Any = runner.spark.createDataFrame(rows, schema=_FILE_SCHEMA)
    dealt = frame.repartitionById(task_count, frame["task"])
    return dealt.mapInArrow(make_read_task(runner.store, types, engine), schema=make_spark_schema(types))


def make_read_task(store: StoreSettings, types: Mapping[str, str], engine: EngineLimits) -> Any:
    """Return what a task runs: from names of files to rows."""

    def read_files(chunks: Chunks) -> Chunks:
        from icedb_parts.engine import open_scratch, release_memory  # noqa: PLC0415
        from icedb_parts.units.file_rows import DataFile, read_file_rows  # noqa: PLC0415

        try:
            with open_scratch(engine) as scratch:
                opened = store.open().store
                for chunk in chunks:
                    for row in chunk.to_pylist():
                        file = DataFile(row["path"], row["row_count"])
                        yield from read_file_rows(opened, file, types, scratch=scratch)
        except IceDBError as error:
            raise DataFileProblem(error) from error
        release_memory()

    return read_files


@contextmanager
def file_errors() -> Iterator[None]:
    """Find what was wrong with a data file in an error of Spark's, and raise that.

    Raises:
        NotFound: A data file is gone.
        CorruptLog: It cannot be read.
        SchemaConflict: A column has another type.
        Unavailable: The store did not answer.
    """
    try:
        yield
    except (PySparkException, Py4JError) as error:
        found = _PROBLEM.search(str(error))
        if found is None:
            raise
        raise _ERRORS.get(found["kind"], Unavailable)(found["message"]) from error
