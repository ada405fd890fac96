"""A warehouse: one object store, one root prefix, many tables below it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from icedb_log.errors import NotFound, UnsupportedFormat
from icedb_log.keys import TABLE_NAME, TablePaths, check_table_name
from icedb_log.store.object_store import ObjectStore, map_each
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import load_any_config
from icedb_log.table.table_config import Dropped, TableConfig

READ_THREADS: Final = 16
FEW_TABLES: Final = 8
"""So many configurations are read one after the other; more of them side by side."""


@dataclass(frozen=True, slots=True)
class DroppedTable:
    """A table that is dropped, as a listing finds it.

    Attributes:
        name: Its name.
        config: Its configuration, as it was.
        mark: What becomes of it.
        modified_ms: When the mark was written, unix ms by the store's clock.
    """

    name: str
    config: TableConfig
    mark: Dropped
    modified_ms: int

    @property
    def dropped_ms(self) -> int:
        """When it was dropped, unix ms by the store's clock."""
        return self.modified_ms if self.mark.dropped_ms is None else self.mark.dropped_ms

    @property
    def due_ms(self) -> int:
        """When its time in the trash is over, unix ms by the store's clock."""
        return self.dropped_ms + self.mark.keep_ms


@dataclass(frozen=True, slots=True)
class Warehouse:
    """Where tables live.

    Attributes:
        store: The object store.
        root: Prefix of all tables without slashes at its ends; may be empty.
    """

    store: ObjectStore
    root: str = ""

    def table(self, name: str) -> TableStore:
        """Return where a table lies; it need not exist. Raises InvalidRequest for a bad name."""
        check_table_name(name)
        return TableStore(self.store, TablePaths(name, f"{self.root}/{name}" if self.root else name))

    def list_tables(self) -> tuple[str, ...]:
        """List the tables that are there and not dropped, ascending. Costs one listing and one read per folder."""
        return tuple(name for name, found in self._look() if not isinstance(found, DroppedTable))

    def list_dropped(self) -> tuple[DroppedTable, ...]:
        """List the tables that are dropped, ascending by name: in the trash, being purged, purged. Costs the same."""
        return tuple(found for _, found in self._look() if isinstance(found, DroppedTable))

    def list_names(self) -> tuple[str, ...]:
        """List the folders that a table may have, ascending: those of tables, of dropped ones, and of others."""
        folders = self.store.list_folders(f"{self.root}/" if self.root else "")
        return tuple(name for name in folders if TABLE_NAME.fullmatch(name))

    def has_table(self, name: str) -> bool:
        """Whether a table is there and not dropped; one whose configuration cannot be understood is there."""
        is_there, dropped = self._look_at(name)
        return is_there and dropped is None

    def _look(self) -> Iterator[tuple[str, DroppedTable | None]]:
        """Look at each folder with a configuration; one that cannot be understood counts as a table."""
        names = self.list_names()
        threads = READ_THREADS if len(names) > FEW_TABLES else 1
        found = map_each(self._look_at, names, threads=threads, name="icedb-warehouse")
        return ((name, dropped) for name, (is_there, dropped) in zip(names, found, strict=True) if is_there)

    def _look_at(self, name: str) -> tuple[bool, DroppedTable | None]:
        try:
            config, info = load_any_config(self.table(name))
        except NotFound:
            return False, None
        except UnsupportedFormat:
            return True, None  # whoever works on it says what is wrong
        if config.dropped is None:
            return True, None
        return True, DroppedTable(name, config, config.dropped, info.modified_ms)
