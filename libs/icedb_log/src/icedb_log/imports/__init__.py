"""Parquet files of others become data files of a table, copied or in place."""
