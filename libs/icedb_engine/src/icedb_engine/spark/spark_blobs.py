"""Blobs in Spark: what parse units handed on lies on the executors' disks until write tasks have made files of it.

A DataFrame of blobs is persisted on disk only, so that neither driver nor executors hold a flush in memory; the
driver collects the units' results and never sees a row. What is lost with an executor is made again by Spark, and
must then be the same: write tasks check it. Whoever opens :class:`SparkBlobs` closes it, whatever happens.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Self

import pyarrow as pa
from icedb_log.clock import SystemClock
from icedb_log.errors import IceDBError
from icedb_log.jobs import FlushJob
from icedb_log.model import FileMarker
from icedb_log.store.stores import StoreSettings
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import functions as sf

from icedb_engine.limits import EngineLimits, JobLimits, share_threads
from icedb_engine.spark.spark_runner import (
    ANSWER_SCHEMA,
    FAILURES,
    OK,
    Chunks,
    SparkRunner,
    make_answer,
    read_answers,
    watch_failures,
)
from icedb_engine.units.flush_types import UnitBlobs, WriteUnit, plan_writes
from icedb_engine.units.work_units import WRITE_RESULTS, encode
from icedb_engine.writing.part_files import SPLIT_FACTOR

BLOB_SCHEMA: Final = f"unit INT, outcome STRING, body STRING, number INT, blob BINARY, {FAILURES} STRING"
ARROW_BLOB: Final = pa.schema(
    [
        ("unit", pa.int32()),
        ("outcome", pa.string()),
        ("body", pa.string()),
        ("number", pa.int32()),
        ("blob", pa.binary()),
        (FAILURES, pa.string()),
    ]
)


class SparkBlobs:
    """All blobs of one flush. A context manager: at its end Spark forgets them.

    Args:
        runner: The session and the store.
    """

    def __init__(self, runner: SparkRunner) -> None:
        self._runner = runner
        self._frames: list[Any] = []
        self._unit_count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(PySparkException, Py4JError, OSError):  # a JVM that died has forgotten them
            for frame in self._frames:
                frame.unpersist()

    @property
    def unit_count(self) -> int:
        """Units so far; the next one has this number."""
        return self._unit_count

    def parse(self, bodies: Sequence[str]) -> list[str]:
        """Run parse units; return their results, in order. Their numbers follow those of the units before.

        Raises:
            IceDBError: What the first unit that failed raised, as the same class.
            Unavailable: Spark lost the job.
        """
        units = self._runner.make_units(bodies, first=self._unit_count)
        return self.keep(units.mapInArrow(make_parse_task(self._runner.store), schema=BLOB_SCHEMA), len(bodies))

    def keep(self, frame: Any, unit_count: int) -> list[str]:
        """Run a DataFrame of blobs and results, keep its blobs, and return the results of its units, in order.

        Raises: as :meth:`parse`.
        """
        with self._runner.job(f"a flush job of {unit_count} units"):
            rows = self._collect_results(frame)
        first, self._unit_count = self._unit_count, self._unit_count + unit_count
        return read_answers(rows, range(first, self._unit_count))

    def _collect_results(self, frame: Any) -> list[Any]:
        kept = frame.persist(StorageLevel.DISK_ONLY)
        self._frames.append(kept)
        try:
            rows: list[Any] = kept.where(kept["number"].isNull()).select("unit", "outcome", "body", FAILURES).collect()
        except (PySparkException, Py4JError):
            self._frames.remove(kept)  # nothing of it is of use, and to read it would make it again
            with suppress(PySparkException, Py4JError, OSError):
                kept.unpersist()
            raise
        return rows

    def _unite(self) -> Any:
        blobs = self._frames[0]
        for frame in self._frames[1:]:
            blobs = blobs.unionByName(frame)
        return blobs

    def write(
        self, bodies: Sequence[str], places: Sequence[tuple[int, int, int]], *, limits: EngineLimits
    ) -> list[str]:
        """Run write units; return their results, in order.

        Args:
            bodies: The units as text.
            places: Unit and number of each blob, and the write unit that takes it.
            limits: Bounds of a task, which keeps its blobs on disk.

        Raises:
            IceDBError: What the first unit that failed raised, as the same class.
            Unavailable: Spark lost the job.
        """
        spark: Any = self._runner.spark
        task = make_write_task(self._runner.store, limits)
        with self._runner.job(f"a write job of {len(bodies)} units"):
            plan = spark.createDataFrame(list(places), schema="unit INT, number INT, task INT")
            units = spark.createDataFrame(list(enumerate(bodies)), schema="task INT, body STRING")
            taken = self._unite().select("unit", "number", "blob").join(sf.broadcast(plan), ["unit", "number"])
            rows = taken.unionByName(units, allowMissingColumns=True)
            picked = rows.select("task", "body", "unit", "number", "blob")
            dealt = picked.repartitionById(len(bodies), picked["task"])
            answers = dealt.mapInArrow(task, schema=ANSWER_SCHEMA).collect()
        return read_answers(answers, range(len(bodies)))


def make_parse_task(store: StoreSettings) -> Callable[[Chunks], Chunks]:
    """Return what a parse task runs: from units to blobs and results, as record batches."""

    def run_units(chunks: Chunks) -> Chunks:
        from icedb_engine.engine import release_memory  # noqa: PLC0415
        from icedb_engine.units.flush_unit import FilledBlob, parse_unit  # noqa: PLC0415
        from icedb_engine.units.work_units import FLUSH_UNITS, encode  # noqa: PLC0415

        watch_failures()
        for chunk in chunks:
            for row in chunk.to_pylist():
                try:
                    for made in parse_unit(FLUSH_UNITS.validate_json(row["body"]), store.open().store):
                        if isinstance(made, FilledBlob):
                            yield make_blob_row(row["unit"], made.blob.number, made.body)
                        else:
                            yield make_result_row(row["unit"], OK, encode(made))
                except IceDBError as error:
                    yield make_result_row(row["unit"], type(error).__name__, str(error))
                release_memory()

    return run_units


def make_blob_row(unit: int, number: int, body: bytes) -> pa.RecordBatch:
    """Return the row of a blob."""
    return pa.RecordBatch.from_pylist([{"unit": unit, "number": number, "blob": body}], schema=ARROW_BLOB)


def make_result_row(unit: int, outcome: str, body: str) -> pa.RecordBatch:
    """Return the row of a unit's result."""
    row = {"unit": unit, "outcome": outcome, "body": body, FAILURES: watch_failures().take()}
    return pa.RecordBatch.from_pylist([row], schema=ARROW_BLOB)


def make_write_task(store: StoreSettings, limits: EngineLimits) -> Callable[[Chunks], Chunks]:
    """Return what a write task runs: its unit and its blobs come in any order, the answer follows the last."""

    def write_rows(chunks: Chunks) -> Chunks:
        from icedb_engine.engine import release_memory  # noqa: PLC0415
        from icedb_engine.units.flush_unit import BlobFolder, write_unit  # noqa: PLC0415
        from icedb_engine.units.work_units import WRITE_UNITS, encode  # noqa: PLC0415

        watch_failures()
        task, text = -1, ""
        try:
            with BlobFolder(limits) as blobs:
                for chunk in chunks:
                    tasks, bodies, units, numbers, contents = chunk.columns
                    for row in range(chunk.num_rows):
                        if bodies[row].is_valid:
                            task, text = tasks[row].as_py(), bodies[row].as_py()
                        else:
                            blobs.add(units[row].as_py(), numbers[row].as_py(), contents[row].as_buffer())
                if not text:
                    return
                result = write_unit(WRITE_UNITS.validate_json(text), blobs, store.open().store, clock=SystemClock())
            release_memory()
            yield make_answer(task, OK, encode(result))
        except IceDBError as error:
            yield make_answer(task, type(error).__name__, str(error))

    return write_rows


def write_blobs(
    job: FlushJob, units: Sequence[UnitBlobs], blobs: SparkBlobs, *, columns: Mapping[str, str], limits: JobLimits
) -> tuple[FileMarker, ...]:
    """Make files of blobs: one for each partition, unless it is larger than a file should be.

    Args:
        job: The flush.
        units: What belongs to the commit.
        blobs: Where it is.
        columns: Columns of the files, with types.
        limits: Bounds of tasks.

    Raises:
        Unavailable: The store or Spark did not answer, or a blob is not the planned one.
    """
    plans = plan_writes(
        units, task_bytes=limits.write_task_bytes, piece_bytes=SPLIT_FACTOR * job.config.target_file_bytes
    )
    if not plans:
        return ()
    engine = share_threads(limits.engine, len(plans))
    bodies = [
        encode(
            WriteUnit(
                paths=job.paths,
                config=job.config,
                columns=columns,
                partitions=plan.partitions,
                blobs=plan.blobs,
                commit_id=job.commit_id,
                time_ms=job.time_ms,
                engine=engine,
            )
        )
        for plan in plans
    ]
    places = [(blob.unit, blob.number, task) for task, plan in enumerate(plans) for blob in plan.blobs]
    results = [WRITE_RESULTS.validate_json(body) for body in blobs.write(bodies, places, limits=engine)]
    return tuple(marker for files in results for marker in files)
