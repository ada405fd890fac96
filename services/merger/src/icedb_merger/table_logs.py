"""What a worker keeps of each table's log between two looks: the parsed log files, and the planner's index of them."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from icedb_log.clock import Clock
from icedb_log.jobs import CheckAlive, never_stop
from icedb_log.keys import TablePaths
from icedb_log.merge.merge_plan import Lane, MergeIndex, plan_merge
from icedb_log.store.object_store import ObjectStore
from icedb_log.table.table import Table
from icedb_service.readers import LogReaders

MAX_INDEXES: Final = 64
"""Tables whose index is kept; one of 100,000 data files takes some 60 MB."""


@dataclass(frozen=True, slots=True)
class IndexedTable:
    """A table whose log this worker knows.

    Attributes:
        table: Its reader reads what is new.
        index: Is brought up to date by each plan.
    """

    table: Table
    index: MergeIndex


class TableLogs:
    """Keeps what was used last. Not thread-safe: a worker's process runs one task at a time.

    Args:
        store: The object store.
        clock: Given to each reader.
    """

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._store = store
        self._readers = LogReaders(clock)
        self._indexes: OrderedDict[str, MergeIndex] = OrderedDict()

    def open(self, paths: TablePaths, *, owner: str = "", check_alive: CheckAlive = never_stop) -> IndexedTable:
        """Open a table with what is known of it; with a new index if its configuration has changed.

        Raises:
            NotFound: No such table.
        """
        table = self._readers.open(self._store, paths, owner=owner, check_alive=check_alive)
        index = self._indexes.get(paths.prefix)
        if index is None or index.config != table.config:
            index = self._indexes[paths.prefix] = MergeIndex(paths, table.config)
        self._indexes.move_to_end(paths.prefix)
        while len(self._indexes) > MAX_INDEXES:
            self._indexes.popitem(last=False)
        return IndexedTable(table, index)

    def has_work(self, paths: TablePaths, lane: Lane) -> bool:
        """Say whether a lane would do something now. Costs one listing and the log files that are new.

        Raises:
            NotFound: No such table.
            HaltError: The log cannot be read.
            Unavailable: The store did not answer.
        """
        opened = self.open(paths)
        view, index = opened.table.read_log(), opened.index
        return not plan_merge(view, paths=paths, config=index.config, lane=lane, index=index).is_empty
