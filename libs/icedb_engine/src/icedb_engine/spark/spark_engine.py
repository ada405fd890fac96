"""The engine of a worker: one Spark session, and everything that runs on it. Opened and closed here only."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from icedb_log.clock import SystemClock
from icedb_log.errors import Unavailable
from icedb_log.store.stores import S3Options, StoreSettings
from icedb_log.units import MIB
from pyspark.sql import SparkSession

from icedb_engine.imports.import_spark import SparkFileImporter
from icedb_engine.limits import EngineLimits, JobLimits
from icedb_engine.spark.spark_feed import SparkViewFeeder
from icedb_engine.spark.spark_flush import SparkBatchWriter
from icedb_engine.spark.spark_merge import SparkMerger
from icedb_engine.spark.spark_runner import warm_up
from icedb_engine.spark.spark_session import SparkSettings, close_spark, is_session_alive, open_spark
from icedb_engine.spark.spark_watch import InterruptReason, WatchRules, ignore_interrupt
from icedb_engine.sql.checks import check_insert_query, check_merge_query, check_view_query


class SparkWorkerSettings(Protocol):
    """What a worker's settings say about its engine."""

    @property
    def spark_master(self) -> str:
        """Where tasks run."""
        ...

    @property
    def spark_options(self) -> Mapping[str, str]:
        """Further options of Spark."""
        ...

    @property
    def job_limit_ms(self) -> int:
        """How long one Spark job may take."""
        ...

    @property
    def spark_memory_mb(self) -> int:
        """Heap of the JVM."""
        ...

    @property
    def task_memory_mb(self) -> int:
        """Memory of a task before it spills."""
        ...

    @property
    def store_settings(self) -> StoreSettings:
        """How tasks reach the store."""
        ...


@dataclass(frozen=True, slots=True)
class SparkEngine:
    """A Spark session and what works on it; a worker takes of it what it needs.

    Attributes:
        spark: The session.
        writer: Runs flush jobs.
        merger: Runs merge jobs, with or without a change of rows, and tells what a change would do.
        importer: Runs the jobs of imports.
        feeder: Runs the jobs that feed views.
    """

    spark: SparkSession
    writer: SparkBatchWriter
    merger: SparkMerger
    importer: SparkFileImporter
    feeder: SparkViewFeeder

    def is_alive(self) -> bool:
        """Whether the session's JVM or server answers."""
        return is_session_alive(self.spark)

    @property
    def changer(self) -> SparkMerger:
        """The merger, by its other name."""
        return self.merger

    check_merge_query = staticmethod(check_merge_query)
    check_insert_query = staticmethod(check_insert_query)
    check_view_query = staticmethod(check_view_query)

    def close(self) -> None:
        """Stop the session, and with it the JVM."""
        close_spark(self.spark)


def open_spark_engine(
    settings: SparkWorkerSettings,
    *,
    app_name: str,
    source_s3: S3Options | None = None,
    limits: JobLimits | None = None,
    on_interrupt: Callable[[InterruptReason], None] = ignore_interrupt,
) -> SparkEngine:
    """Open the engine of this process.

    Args:
        settings: Of the worker.
        app_name: What Spark calls it.
        source_s3: How tasks reach sources of imports on S3 if the warehouse is not on S3.
        limits: Bounds of jobs and their units; the usual ones in the settings' memory if not given.
        on_interrupt: Told about each job that was interrupted.

    Raises:
        InvalidRequest: No Java, or an address that cannot be right.
        Unavailable: Spark does not start, or the server does not answer.
    """
    spark = open_spark(
        SparkSettings(
            master=settings.spark_master,
            app_name=app_name,
            driver_memory=f"{settings.spark_memory_mb}m",
            options=settings.spark_options,
        )
    )
    try:
        warm_up(spark)
    except Unavailable:
        if not is_session_alive(spark):
            close_spark(spark)  # else PySpark gives out the dead one again, as long as this process lives
        raise
    limits = limits or JobLimits(engine=EngineLimits(memory_bytes=settings.task_memory_mb * MIB))
    store = settings.store_settings
    jobs: dict[str, Any] = {
        "clock": SystemClock(),
        "limits": limits,
        "rules": WatchRules(job_limit_ms=settings.job_limit_ms, on_interrupt=on_interrupt),
    }
    return SparkEngine(
        spark,
        SparkBatchWriter(spark, store, **jobs),
        SparkMerger(spark, store, **jobs),
        SparkFileImporter(spark, store, source_s3=source_s3, **jobs),
        SparkViewFeeder(spark, store, **jobs),
    )
