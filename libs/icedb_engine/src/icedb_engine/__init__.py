"""The data path of IceDB: staged JSON to sorted Parquet, many data files to one, as Spark jobs.

Start at :mod:`icedb_engine.spark.spark_session` and :mod:`icedb_engine.spark.spark_engine`. Nothing is imported here,
so that a program that needs only a part of it loads only that part.
"""
