"""Snapshots as ClickHouse SQL: text to paste, made without ClickHouse."""

from icedb_client.clickhouse.statement import to_clickhouse

__all__ = ["to_clickhouse"]
