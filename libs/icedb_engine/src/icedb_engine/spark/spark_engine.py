"""The engine of a worker: one Spark session, and everything that runs on it. Opened and closed here only."""

from collections.abc import Callable, Mapping
from typing import Final, Protocol

from icedb_log.errors import Unavailable
from icedb_log.store.s3_options import S3Options
from icedb_log.store_settings import StoreSettings
from icedb_log.units import MIB

from icedb_engine.jobs.engine import JobEngine
from icedb_engine.limits import EngineLimits, JobLimits
from icedb_engine.spark.spark_jobs import warm_up
from icedb_engine.spark.spark_runner import SparkRunner
from icedb_engine.spark.spark_session import SparkSettings, close_spark, is_session_alive, open_spark
from icedb_engine.spark.spark_watch import HangWatch, InterruptReason, WatchRules, answers_within, ignore_interrupt


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
    def spark_ui_port(self) -> int:
        """Where Spark's web interface is; 0: nowhere."""
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


ALIVE_LIMIT_S: Final = 20.0
"""How long a session may take to answer before it counts as dead, where somebody waits to hear that."""


class SparkEngine(JobEngine):
    """A Spark session and what works on it.

    Attributes:
        spark: The session.
    """

    def __init__(self, runner: SparkRunner, limits: JobLimits) -> None:
        super().__init__(runner, limits=limits)
        self.spark = runner.spark
        self._hang = HangWatch(self._ask)

    def is_alive(self) -> bool:
        """Whether the session's JVM answers, and soon."""
        return answers_within(self._ask, ALIVE_LIMIT_S)

    def has_died(self) -> bool:
        """Whether the JVM's process has ended."""
        return self._hang.has_ended()

    def close(self) -> None:
        """Stop the session, and with it the JVM; one that hangs is ended by the watch meanwhile."""
        close_spark(self.spark)
        self._hang.close()

    def _ask(self) -> bool:
        return is_session_alive(self.spark)


def open_spark_engine(
    settings: SparkWorkerSettings,
    *,
    app_name: str,
    source_s3: S3Options | None = None,
    limits: JobLimits | None = None,
    purges_memory: bool = False,
    on_interrupt: Callable[[InterruptReason], None] = ignore_interrupt,
) -> SparkEngine:
    """Open the engine of this process.

    Args:
        settings: Of the worker.
        app_name: What Spark calls it.
        source_s3: How tasks reach sources of imports on S3 if the warehouse is not on S3.
        limits: Bounds of jobs and their units; the usual ones in the settings' memory if not given.
        purges_memory: Of :class:`SparkSettings`.
        on_interrupt: Told about each job that was interrupted.

    Raises:
        InvalidRequest: No Java, or an address that cannot be right.
        Unavailable: Spark does not start.
    """
    spark = open_spark(
        SparkSettings(
            master=settings.spark_master,
            app_name=app_name,
            driver_memory=f"{settings.spark_memory_mb}m",
            purges_memory=purges_memory,
            ui_port=settings.spark_ui_port,
            options=settings.spark_options,
        )
    )
    try:
        warm_up(spark)
    except Unavailable:
        if not is_session_alive(spark):
            close_spark(spark)  # else PySpark gives out the dead one again, as long as this process lives
        raise
    store = settings.store_settings
    # A directory has no use for it: its settings carry it to the tasks, where no plan or log shows a secret.
    store = store if store.s3 else StoreSettings(store.url, source_s3)
    rules = WatchRules(job_limit_ms=settings.job_limit_ms, on_interrupt=on_interrupt)
    return SparkEngine(
        SparkRunner(spark, store, rules=rules),
        limits or JobLimits(engine=EngineLimits(memory_bytes=settings.task_memory_mb * MIB)),
    )
