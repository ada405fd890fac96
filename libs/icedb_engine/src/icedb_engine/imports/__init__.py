"""Existing Parquet files: footers, types, copies."""
