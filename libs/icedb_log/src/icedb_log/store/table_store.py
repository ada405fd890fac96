"""The objects of one table: a store, and the keys of the table in it."""

from icedb_log.keys import TablePaths
from icedb_log.store.object_store import ObjectStore


class TableStore:
    """Where one table lies. What needs no more than its objects takes one of these, or a table that was opened.

    Attributes:
        store: The object store.
        paths: Keys of the table.
    """

    def __init__(self, store: ObjectStore, paths: TablePaths) -> None:
        self.store = store
        self.paths = paths

    @property
    def name(self) -> str:
        """Name of the table."""
        return self.paths.name

    def read_store_clock(self) -> int:
        """Return the store's time now, unix ms: one request. Raises Unavailable."""
        return self.store.list_page(self.paths.config_key, limit=1).store_now_ms
