"""What tasks run to read data files, and how files are dealt out to them.

Objects come through the object store, never through Spark: each task fetches to its scratch folder what it reads of its
files, columns and row groups, and the native engine streams their rows, so that memory does not grow with a file.
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from icedb_engine.units.read_unit import read_files, spark_arrow_type
from icedb_engine.work import DataFile, ReadUnit
from icedb_log.keys import TablePaths
from pyspark.sql.datasource import DataSourceReader, InputPartition

from icedb_spark.values import PinnedSnapshot, Place, make_spark_schema

if TYPE_CHECKING:
    from icedb_spark.options import ReadOptions

MAX_FILES_PER_TASK: Final = 1000


class FilePartition(InputPartition):
    """Some data files, for one task."""

    def __init__(self, files: tuple[DataFile, ...]) -> None:
        super().__init__(files)


@dataclass(frozen=True, slots=True)
class Scan:
    """How data files become rows of a DataFrame; travels to every task, and is small.

    Attributes:
        place: Where they are, and the bounds of a task.
        paths: Keys of the table.
        schema: The columns that come out, and those that the condition names, with SQL types.
        columns: Which of them come out, in their order.
        where: Only rows for which this is true.
    """

    place: Place
    paths: TablePaths
    schema: Mapping[str, str]
    columns: tuple[str, ...]
    where: str | None

    def spark_schema(self) -> Any:
        """Return the schema of the rows as Spark has it."""
        return make_spark_schema({name: self.schema[name] for name in self.columns})

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read the files of one task, a chunk at a time.

        Raises:
            NotFound: A file is gone: the read took longer than the table's grace period.
            InvalidRequest: The condition cannot be evaluated on a row.
            SchemaConflict: A file has another type than the table.
            CorruptLog: A file is damaged.
            Unavailable: The store did not answer, or memory and scratch did not suffice.
        """
        if not isinstance(partition, FilePartition):
            return  # what Spark makes up for a read without files
        schema = pa.schema([(name, spark_arrow_type(self.schema[name])) for name in self.columns])
        unit = ReadUnit(
            paths=self.paths,
            columns=self.schema,
            files=partition.value,
            engine=self.place.engine,
            where=self.where,
            wanted=self.columns,
        )
        for chunk in read_files(unit, self.place.store.open().store):
            yield pa.RecordBatch.from_arrays(chunk.columns[1:], schema=schema)


def make_scan(options: "ReadOptions", pinned: PinnedSnapshot) -> Scan:
    """Return how the rows of a snapshot are read."""
    columns = options.columns or tuple(pinned.schema)
    needed = {name: kind for name, kind in pinned.schema.items() if name in columns or name.lower() in pinned.named}
    return Scan(options.place, pinned.paths, needed, columns, options.where)


def deal_files(files: Sequence[DataFile], *, split_bytes: int) -> list[InputPartition]:
    """Deal files out to tasks so that all have about the same bytes, and none much more than ``split_bytes``. Pure.

    A file goes to one task whole: data files are written of a size that is right for one.
    """
    total_bytes = sum(file.size_bytes for file in files)
    count = max(-(-total_bytes // split_bytes), -(-len(files) // MAX_FILES_PER_TASK), 1)
    dealt: list[list[DataFile]] = [[] for _ in range(min(count, len(files)))]
    heap = [(0, place) for place in range(len(dealt))]
    for file in sorted(files, key=lambda file: (-file.size_bytes, file.path)):
        load_bytes, place = heapq.heappop(heap)
        dealt[place].append(file)
        heapq.heappush(heap, (load_bytes + file.size_bytes, place))
    return [FilePartition(tuple(sorted(part, key=lambda file: file.path))) for part in dealt]


class IceDBReader(DataSourceReader):
    """Reads the files of a pinned snapshot: a batch read.

    It takes no filters from Spark (``pushFilters``): Spark 4.3 applies what it pushes for one use of a DataFrame to the
    others as well, and loses rows.

    Args:
        scan: How files become rows.
        files: The files. They do not travel with the reader: each task gets its own alone.
        split_bytes: Bytes of files for one task.
    """

    def __init__(self, scan: Scan, files: tuple[DataFile, ...], *, split_bytes: int) -> None:
        self._scan = scan
        self._split_bytes = split_bytes
        self._files = files

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_files": ()}

    def partitions(self) -> list[InputPartition]:
        """Return what each task reads."""
        return deal_files(self._files, split_bytes=self._split_bytes)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read what one task reads."""
        return self._scan.read(partition)
