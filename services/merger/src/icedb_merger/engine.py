"""The engine of this service: a Spark session, and what runs its jobs. Opened in the worker's child only."""

from dataclasses import dataclass

from icedb_log.clock import SystemClock
from icedb_log.jobs import GroupMerger
from icedb_parts.limits import MIB, EngineLimits
from icedb_parts.spark_jobs import JobLimits, SparkGroupMerger
from icedb_parts.spark_runner import warm_up
from icedb_parts.spark_session import SparkSettings, close_spark, is_session_alive, open_spark
from pyspark.sql import SparkSession

from icedb_merger.settings import MergerSettings


@dataclass(frozen=True, slots=True)
class SparkEngine:
    """Merges groups of data files on one Spark session.

    Attributes:
        spark: The session.
        merger: Runs the jobs.
    """

    spark: SparkSession
    merger: GroupMerger

    def is_alive(self) -> bool:
        """Whether the session's JVM or server answers."""
        return is_session_alive(self.spark)

    def close(self) -> None:
        """Stop the session, and with it the JVM."""
        close_spark(self.spark)


def open_engine(settings: MergerSettings) -> SparkEngine:
    """Open the session of this process.

    Raises:
        InvalidRequest: No Java, or an address that cannot be right.
        Unavailable: Spark does not start, or the server does not answer.
    """
    spark = open_spark(
        SparkSettings(
            master=settings.spark_master,
            remote=settings.spark_remote,
            app_name="icedb-merger",
            driver_memory=f"{settings.spark_memory_mb}m",
        )
    )
    warm_up(spark)
    limits = JobLimits(engine=EngineLimits(memory_bytes=settings.task_memory_mb * MIB))
    return SparkEngine(spark, SparkGroupMerger(spark, settings.store_settings, clock=SystemClock(), limits=limits))
