"""A warehouse: one object store, one root prefix, many tables below it."""

from dataclasses import dataclass

from icedb_log.keys import TABLE_NAME, TablePaths, check_table_name
from icedb_log.storage.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class Warehouse:
    """Where tables live.

    Attributes:
        store: The object store.
        root: Prefix of all tables without slashes at its ends; may be empty.
    """

    store: ObjectStore
    root: str = ""

    def table(self, name: str) -> TablePaths:
        """Return the keys of a table; it need not exist. Raises InvalidRequest for a bad name."""
        check_table_name(name)
        return TablePaths(name, f"{self.root}/{name}" if self.root else name)

    def list_tables(self) -> tuple[str, ...]:
        """List the tables that have a configuration, ascending. Costs one listing and one read per folder."""
        folders = self.store.list_folders(f"{self.root}/" if self.root else "")
        return tuple(
            name
            for name in folders
            if TABLE_NAME.fullmatch(name) and self.store.list_page(self.table(name).config_key, limit=1).objects
        )
