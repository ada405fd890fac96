"""Sessions and jobs on Spark: the protocols of :mod:`icedb_log.jobs`, unit by unit."""
