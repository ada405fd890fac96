"""The data path of IceDB: staged JSON to sorted Parquet, many data files to one.

Start at :mod:`icedb_engine.jobs.engine`. Units of work run in Spark (:mod:`icedb_engine.spark.spark_engine`), or in the
caller's process (:mod:`icedb_engine.local_engine`). Nothing is imported here,
so that a program that needs only a part of it loads only that part.
"""
