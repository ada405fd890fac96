"""The objects of one table: a store, and the keys of the table in it."""

from collections.abc import Callable

from icedb_log.keys import TablePaths
from icedb_log.store.object_store import ObjectStore


class TableStore:
    """Where one table lies. What needs no more than its objects takes one of these, or a table that was opened.

    Attributes:
        store: The object store.
        paths: Keys of the table.
        on_purged: Called when the table turns out to be purged: who remembers the newest one of its name looks again.
    """

    on_purged: Callable[[], object] = staticmethod(lambda: None)

    def __init__(self, store: ObjectStore, paths: TablePaths) -> None:
        self.store = store
        self.paths = paths

    def numbered(self, number: int) -> "TableStore":
        """Return where another table of this name lies (T4)."""
        return TableStore(self.store, self.paths.numbered(number))

    @property
    def name(self) -> str:
        """Name of the table."""
        return self.paths.name

    def read_store_clock(self) -> int:
        """Return the store's time now, unix ms: one request. Raises Unavailable."""
        return self.store.list_page(self.paths.config_key, limit=1).store_now_ms
