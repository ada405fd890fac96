"""What a worker keeps of each table's log between two looks: the parsed log files, and the planner's index of them."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from icedb_log.clock import Clock
from icedb_log.keys import TablePaths
from icedb_log.log.reader import LogReader
from icedb_log.merge.merge_plan import Lane, MergeIndex, plan_merge
from icedb_log.store.object_store import ObjectStore
from icedb_log.table.stored_config import read_table_config
from icedb_service.readers import LogReaders

MAX_INDEXES: Final = 64
"""Tables whose index is kept; one of 100,000 data files takes some 60 MB."""


@dataclass(frozen=True, slots=True)
class TableLog:
    """A table's log as this worker knows it.

    Attributes:
        reader: Reads what is new.
        index: Is brought up to date by each plan.
    """

    reader: LogReader
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

    def of_table(self, paths: TablePaths) -> TableLog:
        """Return what is known of a table; a new index if its configuration has changed.

        Raises:
            NotFound: No such table.
        """
        config = read_table_config(self._store, paths)
        index = self._indexes.get(paths.prefix)
        if index is None or index.config != config:
            index = self._indexes[paths.prefix] = MergeIndex(paths, config)
        self._indexes.move_to_end(paths.prefix)
        while len(self._indexes) > MAX_INDEXES:
            self._indexes.popitem(last=False)
        return TableLog(self._readers.of_table(self._store, paths), index)

    def has_work(self, paths: TablePaths, lane: Lane) -> bool:
        """Say whether a lane would do something now. Costs one listing and the log files that are new.

        Raises:
            NotFound: No such table.
            HaltError: The log cannot be read.
            Unavailable: The store did not answer.
        """
        log = self.of_table(paths)
        view = log.reader.read()
        return not plan_merge(view, paths=paths, config=log.index.config, lane=lane, index=log.index).is_empty
