"""The engine of this service: a Spark session, and what runs its jobs. Opened in the worker's child only."""

from dataclasses import dataclass

from icedb_log.clock import SystemClock
from icedb_log.import_jobs import FileImporter
from icedb_log.jobs import BatchWriter
from icedb_parts.import_spark import SparkFileImporter
from icedb_parts.limits import MIB, EngineLimits
from icedb_parts.spark_jobs import JobLimits, SparkBatchWriter
from icedb_parts.spark_runner import warm_up
from icedb_parts.spark_session import SparkSettings, close_spark, is_session_alive, open_spark
from pyspark.sql import SparkSession

from icedb_ingest.imports import source_s3
from icedb_ingest.settings import IngestSettings


@dataclass(frozen=True, slots=True)
class SparkEngine:
    """Writes batches on one Spark session.

    Attributes:
        spark: The session.
        writer: Runs flush jobs.
        importer: Runs import jobs.
    """

    spark: SparkSession
    writer: BatchWriter
    importer: FileImporter

    def is_alive(self) -> bool:
        """Whether the session's JVM or server answers."""
        return is_session_alive(self.spark)

    def close(self) -> None:
        """Stop the session, and with it the JVM."""
        close_spark(self.spark)


def open_engine(settings: IngestSettings) -> SparkEngine:
    """Open the session of this process.

    Raises:
        InvalidRequest: No Java, or an address that cannot be right.
        Unavailable: Spark does not start, or the server does not answer.
    """
    spark = open_spark(
        SparkSettings(
            master=settings.spark_master,
            remote=settings.spark_remote,
            app_name="icedb-ingest",
            driver_memory=f"{settings.spark_memory_mb}m",
        )
    )
    warm_up(spark)
    limits = JobLimits(engine=EngineLimits(memory_bytes=settings.task_memory_mb * MIB))
    store, clock = settings.store_settings, SystemClock()
    return SparkEngine(
        spark,
        SparkBatchWriter(spark, store, clock=clock, limits=limits),
        SparkFileImporter(spark, store, clock=clock, source_s3=source_s3(settings), engine=limits.engine),
    )
