"""Where Spark looks for data sources by itself: modules whose names begin with ``pyspark_``.

With this package installed where the driver's Python workers run, ``spark.read.format("icedb")`` needs no registration.
"""

from icedb_spark.source import IceDBDataSource as DefaultSource

__all__ = ["DefaultSource"]
