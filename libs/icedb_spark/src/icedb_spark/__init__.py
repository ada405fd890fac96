"""IceDB tables in Spark: ``spark.read``, ``spark.readStream`` and ``df.write`` with ``format("icedb")``."""

from icedb_spark.source import IceDBDataSource, register

__all__ = ["IceDBDataSource", "register"]
