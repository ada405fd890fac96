"""Data files as a DataFrame: each task fetches its files through the store and streams their rows.

Only what the DataFrame API offers on a Spark Connect server, too; Spark itself never reaches the store. What is wrong
with a file comes back to the driver as one of our errors, whatever query the rows went through.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
from icedb_log.errors import CorruptLog, IceDBError, NotFound, SchemaConflict, Unavailable
from icedb_log.keys import TablePaths
from icedb_log.model import FileMarker
from icedb_log.store.stores import StoreSettings
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from icedb_engine.limits import EngineLimits, share_threads
from icedb_engine.query.insert_query import make_spark_schema
from icedb_engine.spark.change_tasks import READ_UNITS, encode_read_unit
from icedb_engine.spark.spark_runner import Chunks, SparkRunner
from icedb_engine.units.read_unit import NumberedFile, ReadFilesUnit, read_files, spark_arrow_type

_ERRORS: Final[dict[str, type[IceDBError]]] = {
    error.__name__: error for error in (NotFound, CorruptLog, SchemaConflict, Unavailable)
}
_PROBLEM: Final = re.compile(r"icedb data file (?P<kind>[A-Za-z]+): (?P<message>[^\r\n]+)")


class DataFileProblem(RuntimeError):
    """What a task raises, so that the driver knows it again in whatever Spark makes of it."""

    def __init__(self, error: IceDBError | OSError) -> None:
        message = " ".join(str(error).split())
        super().__init__(f"icedb data file {type(error).__name__}: {message}")


def open_data_files(
    runner: SparkRunner,
    paths: TablePaths,
    files: Sequence[FileMarker],
    types: Mapping[str, str],
    *,
    engine: EngineLimits,
    task_bytes: int,
) -> Any:
    """Return a DataFrame of the rows of data files. Nothing is read yet; what reads it goes in :func:`file_errors`.

    Args:
        runner: The session and the store.
        paths: Keys of the table that the files belong to.
        files: At least one; live or not.
        types: Columns of the rows, with SQL types; NULL where a file has no such column, others are passed over.
        engine: Bounds of a task.
        task_bytes: Size of files that is worth a task of its own.
    """
    task_count = min(len(files), max(1, -(-sum(file.size_bytes for file in files) // task_bytes)))
    dealt: list[list[NumberedFile]] = [[] for _ in range(task_count)]
    for place, file in enumerate(sorted(files, key=lambda file: -file.size_bytes)):
        dealt[place % task_count].append(NumberedFile(place, file.path, file.row_count))
    bounds = share_threads(engine, task_count)
    units = [ReadFilesUnit(paths, dict(types), is_whole=False, files=tuple(part), engine=bounds) for part in dealt]
    frame = runner.make_units([encode_read_unit(unit) for unit in units])
    return frame.mapInArrow(make_rows_task(runner.store, types), schema=make_spark_schema(types))


def make_rows_task(store: StoreSettings, types: Mapping[str, str]) -> Callable[[Chunks], Chunks]:
    """Return what a task runs: from units to the rows of their files."""
    schema = pa.schema([(name, spark_arrow_type(kind)) for name, kind in types.items()])

    def read_rows(chunks: Chunks) -> Chunks:
        from icedb_engine.engine import release_memory  # noqa: PLC0415

        try:
            for chunk in chunks:
                for row in chunk.to_pylist():
                    for rows in read_files(READ_UNITS.validate_json(row["body"]), store.open().store):
                        yield pa.RecordBatch.from_arrays(rows.columns[1:], schema=schema)
                    release_memory()
        except (IceDBError, OSError) as error:
            raise DataFileProblem(error) from error

    return read_rows


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
