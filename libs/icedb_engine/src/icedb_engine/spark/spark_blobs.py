"""Blobs in Spark: what parse units handed on lies on the executors' disks until write tasks have made files of it.

A DataFrame of blobs is persisted on disk only, so that neither driver nor executors hold a flush in memory; the
driver collects the units' results and never sees a row. What is lost with an executor is made again by Spark, and
must then be the same: write tasks check it. Whoever opens :class:`SparkBlobs` closes it, whatever happens.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Self

import pyarrow as pa
from icedb_log.clock import SystemClock
from icedb_log.errors import IceDBError, crashes_told
from icedb_log.model import FileMarker
from icedb_log.store_settings import StoreSettings
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf

from icedb_engine.limits import EngineLimits
from icedb_engine.spark.spark_jobs import SparkJobs
from icedb_engine.spark.spark_tasks import (
    ANSWER_SCHEMA,
    OK,
    REQUESTS,
    Chunks,
    TaskUnits,
    encode_shared,
    freeze_gc,
    make_answer,
    make_chunk,
    open_kept,
    read_answers,
    read_numbers,
    watch_requests,
)
from icedb_engine.work import FlushUnit, UnitResult, WriteUnit, decode_result

BLOB_SCHEMA: Final = f"unit INT, outcome STRING, body STRING, number INT, blob BINARY, {REQUESTS} STRING"
ARROW_BLOB: Final = pa.schema(
    [
        ("unit", pa.int32()),
        ("outcome", pa.string()),
        ("body", pa.string()),
        ("number", pa.int32()),
        ("blob", pa.binary()),
        (REQUESTS, pa.string()),
    ]
)


class SparkBlobs:
    """All blobs of one flush. A context manager: at its end Spark forgets them.

    Attributes:
        unit_count: Units so far; the next one has this number.
    """

    def __init__(self, jobs: SparkJobs) -> None:
        self.unit_count = 0
        self._jobs = jobs
        self._frames: list[Any] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(PySparkException, Py4JError, OSError):  # a JVM that died has forgotten them
            for frame in self._frames:
                frame.unpersist()

    def parse(self, units: Sequence[FlushUnit]) -> list[UnitResult]:
        """Run parse units, keep their blobs, and return their results, in order; numbered after the units before.

        Raises:
            IceDBError: What the first unit that failed raised, as the same class.
            Unavailable: Spark lost the job.
        """
        told = TaskUnits.of(encode_shared(units), first=self.unit_count)
        with self._jobs.job(f"a flush job of {len(units)} units"):
            frame = self._jobs.make_units(told)
            rows = self._collect(frame.mapInArrow(make_parse_task(self._jobs.store, told), schema=BLOB_SCHEMA))
        first, self.unit_count = self.unit_count, self.unit_count + len(units)
        return [decode_result("flush", body) for body in read_answers(rows, range(first, self.unit_count))]

    def _collect(self, frame: Any) -> list[Any]:
        """Run a DataFrame of blobs and results, keep its blobs, and return the rows of results."""
        kept = frame.persist(StorageLevel.DISK_ONLY)
        self._frames.append(kept)
        try:
            rows: list[Any] = kept.where(kept["number"].isNull()).select("unit", "outcome", "body", REQUESTS).collect()
        except (PySparkException, Py4JError):
            self._frames.remove(kept)  # nothing of it is of use, and to read it would make it again
            with suppress(PySparkException, Py4JError, OSError):
                kept.unpersist()
            raise
        return rows

    def write(self, units: Sequence[WriteUnit]) -> tuple[FileMarker, ...]:
        """Run write units, each with the blobs that it was planned to take; return the markers of their files.

        Raises: as :meth:`parse`.
        """
        if not units:
            return ()
        spark: Any = self._jobs.spark
        places = [(blob.unit, blob.number, task) for task, unit in enumerate(units) for blob in unit.blobs]
        task = make_write_task(self._jobs.store, units[0].engine)
        with self._jobs.job(f"a write job of {len(units)} units"):
            plan = spark.createDataFrame(places, schema="unit INT, number INT, task INT")
            bodies = list(enumerate(encode_shared(units)))
            told = spark.createDataFrame(bodies, schema="task INT, body STRING")
            blobs = self._frames[0]
            for frame in self._frames[1:]:
                blobs = blobs.unionByName(frame)
            taken = blobs.select("unit", "number", "blob").join(sf.broadcast(plan), ["unit", "number"])
            rows = taken.unionByName(told, allowMissingColumns=True)
            picked = rows.select("task", "body", "unit", "number", "blob")
            dealt = picked.repartitionById(len(units), picked["task"])
            answers = dealt.mapInArrow(task, schema=ANSWER_SCHEMA).collect()
        found = [decode_result("write", body) for body in read_answers(answers, range(len(units)))]
        return tuple(marker for files in found for marker in files)


def make_parse_task(store: StoreSettings, units: TaskUnits) -> Callable[[Chunks], Chunks]:
    """Return what a parse task runs: from units to blobs and results, as record batches."""

    def run_units(chunks: Chunks) -> Chunks:
        from icedb_engine.engine import release_memory  # noqa: PLC0415
        from icedb_engine.units.blobs import FilledBlob  # noqa: PLC0415
        from icedb_engine.units.flush_unit import parse_unit  # noqa: PLC0415
        from icedb_engine.work import decode_unit, encode  # noqa: PLC0415

        def make_row(**values: Any) -> pa.RecordBatch:
            return pa.RecordBatch.from_pylist([values], schema=ARROW_BLOB)

        watch_requests()
        for unit in read_numbers(chunks):
            try:
                flush = decode_unit("flush", units.read(unit))
                with crashes_told("a unit crashed while reading batches"):
                    for made in parse_unit(flush, open_kept(store)):
                        if isinstance(made, FilledBlob):
                            yield make_row(unit=unit, number=made.blob.number, blob=made.body)
                        else:
                            requests = watch_requests().take()
                            yield make_row(unit=unit, outcome=OK, body=encode(made), **{REQUESTS: requests})
            except IceDBError as error:
                requests = watch_requests().take()
                outcome = type(error).__name__
                yield make_row(unit=unit, outcome=outcome, body=str(error), **{REQUESTS: requests})
            release_memory()
            freeze_gc()

    return run_units


def make_write_task(store: StoreSettings, limits: EngineLimits) -> Callable[[Chunks], Chunks]:
    """Return what a write task runs: its unit and its blobs come in any order, the answer follows the last."""

    def write_rows(chunks: Chunks) -> Chunks:
        from icedb_engine.engine import open_scratch, release_memory  # noqa: PLC0415
        from icedb_engine.units.blobs import BlobFolder  # noqa: PLC0415
        from icedb_engine.units.flush_unit import write_unit  # noqa: PLC0415
        from icedb_engine.work import decode_unit, encode  # noqa: PLC0415

        watch_requests()
        task, text = -1, ""
        try:
            with open_scratch(limits) as scratch:
                blobs = BlobFolder(scratch)
                for chunk in chunks:
                    tasks, bodies, units, numbers, contents = chunk.columns
                    for row in range(chunk.num_rows):
                        if bodies[row].is_valid:
                            task, text = tasks[row].as_py(), bodies[row].as_py()
                        else:
                            blobs.add(units[row].as_py(), numbers[row].as_py(), contents[row].as_buffer())
                if not text:
                    return
                write = decode_unit("write", text)
                with crashes_told("a unit crashed while writing files"):
                    result = write_unit(write, blobs, open_kept(store), clock=SystemClock())
            release_memory()
            yield make_chunk(make_answer(task, OK, encode(result)))
        except IceDBError as error:
            yield make_chunk(make_answer(task, type(error).__name__, str(error)))

    return write_rows
