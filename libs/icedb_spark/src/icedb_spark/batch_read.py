"""A batch read: the files of one snapshot, dealt out to tasks."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from icedb_engine.units.work import DataFile
from pyspark.sql.datasource import DataSourceReader, InputPartition

from icedb_spark.scan import Scan, deal_files


class IceDBReader(DataSourceReader):
    """Reads the files of a pinned snapshot.

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
