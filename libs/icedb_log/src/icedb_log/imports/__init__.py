"""Existing Parquet files become data files of a table."""
