"""Spark in the benchmark of scans: it writes files at its defaults, and reads those of all. In a process of its own."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from icedb_engine.spark.spark_session import SparkSettings, close_spark, open_spark

from bench.memory import read_cpu_s
from bench.scan_work import Engine, Files, spell


class Spark(Engine):
    """Spark SQL on a session of one core; not on S3, for which it would need Hadoop's client."""

    _spark: Any = None

    def open(self) -> None:
        """Open the session."""
        if self._spark is None:
            self._spark = open_spark(SparkSettings("local[1]", options={"spark.sql.session.timeZone": "UTC"}))

    def read_cpu_s(self) -> float:
        """Return the processor time of this process and its JVM."""
        return read_cpu_s(os.getpid())

    def read(self, paths: Sequence[str], query: str) -> Sequence[Any]:
        """Return the first row."""
        self._spark.read.parquet(*paths).createOrReplaceTempView("f")
        return tuple(self._spark.sql(spell(query, files="f", time="TIMESTAMP '{}'")).first())

    def write(self, source: Path, folder: Path, level: int | None) -> Files:
        """Write the rows of a file as one file, in their order; with zstd at a level, or as it does by itself."""
        self.open()
        shutil.rmtree(folder, ignore_errors=True)
        writer = self._spark.read.parquet(str(source)).coalesce(1).write
        if level is not None:
            writer = writer.option("compression", "zstd").option("parquet.compression.codec.zstd.level", str(level))
        writer.parquet(str(folder))
        return Files("spark", tuple(sorted(folder.glob("*.parquet"))))

    def close(self) -> None:
        """End Spark."""
        if self._spark is not None:
            close_spark(self._spark)
