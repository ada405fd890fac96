"""The figures of many tables, read again and again: of each log only what has changed is fetched.

What the lag exporter, ``icedb top`` and the console share. Must never write.
"""

import threading

from icedb_log.clean.leases import LeaseReader
from icedb_log.clock import Clock
from icedb_log.keys import TablePaths
from icedb_log.log.reader import LogReader
from icedb_log.serving.table_cache import TableCache, TableState
from icedb_log.table.status import TableStatus, read_status
from icedb_log.table.table import Table
from icedb_log.warehouse import Warehouse


class StatusReader:
    """Reads the figures of tables. Thread-safe.

    Args:
        warehouse: Where the tables lie.
        tables: What is known of them, shared with whoever else reads them.
        clock: This host's.
    """

    def __init__(self, warehouse: Warehouse, tables: TableCache, *, clock: Clock) -> None:
        self._warehouse = warehouse
        self._tables = tables
        self._clock = clock
        self._leases: dict[str, LeaseReader] = {}
        self._lock = threading.Lock()

    def open(self, name: str) -> Table:
        """Open a table with the reader that is kept of it: one small read. Raises as :meth:`Table.open`."""
        reader = self._tables.table(name).read_source().reader
        return Table.open(self._warehouse.table(name), clock=self._clock, reader=reader)

    def read_log(self, name: str) -> TableState:
        """Read a table's log as it is now. Raises as :meth:`~icedb_log.serving.table_cache.CachedTable.read`."""
        return self._tables.table(name).read(max_staleness_ms=0)

    def read(self, name: str, *, log: TableState | None = None) -> TableStatus:
        """Return a table's figures as they are now, or as of a state of its log that was read a moment ago.

        Costs what :func:`~icedb_log.table.status.read_status` does; of the log one listing and what is new in it.

        Raises:
            NotFound: No such table.
            HaltError: Its log cannot be read.
            Unavailable: The store did not answer.
        """
        state = self.read_log(name) if log is None else log
        with self._lock:
            leases = self._leases.setdefault(name, LeaseReader())
        return read_status(self.open(name), read_source=self._reader_of, leases=leases, log=state.log)

    def drop(self, name: str) -> None:
        """Forget a table that is gone."""
        self._tables.drop(name)
        with self._lock:
            self._leases.pop(name, None)

    def _reader_of(self, paths: TablePaths) -> LogReader:
        return self._tables.table(paths.name).read_source().reader
