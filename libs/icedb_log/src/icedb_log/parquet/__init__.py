"""Parquet footers, read without an engine: bytes that may be damaged must not end the process."""
