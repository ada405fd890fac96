"""The writing half of a big flush on Spark: blobs are dealt out to write units, which make the files."""

from collections.abc import Mapping, Sequence

from icedb_log.jobs import FlushJob
from icedb_log.model import FileMarker

from icedb_engine.limits import JobLimits, share_threads
from icedb_engine.spark.spark_blobs import SparkBlobs
from icedb_engine.units.flush_plan import UnitBlobs, plan_writes
from icedb_engine.units.flush_types import WriteUnit
from icedb_engine.units.work_units import WRITE_RESULTS, encode
from icedb_engine.writing.part_layout import SPLIT_FACTOR


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
    return tuple(marker for result in results for marker in result.files)
