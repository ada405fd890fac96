"""What the classes that run jobs of :mod:`icedb_log.jobs` on Spark have in common."""

from icedb_log.clock import Clock
from icedb_log.store.stores import StoreSettings
from pyspark.sql import SparkSession

from icedb_engine.limits import JobLimits
from icedb_engine.spark.spark_runner import SparkRunner
from icedb_engine.spark.spark_watch import WatchRules


class SparkJobs:
    """Runs jobs of one kind in a Spark session.

    Args:
        spark: The session.
        store: How tasks reach the store.
        clock: For durations in the log.
        limits: Bounds of batches and tasks.
        rules: How jobs are watched.
    """

    def __init__(
        self,
        spark: SparkSession,
        store: StoreSettings,
        *,
        clock: Clock,
        limits: JobLimits | None = None,
        rules: WatchRules | None = None,
    ) -> None:
        self._runner = SparkRunner(spark, store, rules=rules)
        self._clock = clock
        self._limits = limits or JobLimits()
