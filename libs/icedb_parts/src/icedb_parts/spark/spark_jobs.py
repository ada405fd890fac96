"""The two protocols of :mod:`icedb_log.jobs` on Spark, and their bounds, for those who open an engine."""

from icedb_parts.limits import JobLimits
from icedb_parts.spark.spark_flush import SparkBatchWriter
from icedb_parts.spark.spark_merge import SparkGroupMerger

__all__ = ["JobLimits", "SparkBatchWriter", "SparkGroupMerger"]
