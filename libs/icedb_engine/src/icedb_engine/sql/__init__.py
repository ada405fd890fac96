"""SQL inside a unit of work: what users wrote runs in a closed process over the unit's rows; ours is quoted."""

from icedb_engine.sql.quoting import CLOSED, among, open_closed, quote_name, quote_text, sort_sql

__all__ = ["CLOSED", "among", "open_closed", "quote_name", "quote_text", "sort_sql"]
