"""Dropped tables: dropped, taken back, purged."""
