"""One long-lived log reader for each table, so that a run fetches only log files, pins and leases that are new (R1)."""

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from icedb_log.clean.leases import FETCH_THREADS, LeaseReader
from icedb_log.clean.pins import PinReader
from icedb_log.clock import Clock
from icedb_log.keys import TablePaths
from icedb_log.log.reader import LogReader
from icedb_log.store.object_store import ObjectStore
from icedb_log.store.store_clock import SteadyTime
from icedb_log.table.stored_config import read_table_config

MAX_TABLES: Final = 256


@dataclass(frozen=True, slots=True)
class _Kept:
    max_refresh_ms: int
    reader: LogReader
    pins: PinReader
    leases: LeaseReader


class LogReaders:
    """Keeps the readers of the tables that were used last. Thread-safe, as the readers are.

    Args:
        clock: Given to each reader.
        max_tables: How many are kept; each holds the parsed log of its table.
    """

    def __init__(self, clock: Clock, *, max_tables: int = MAX_TABLES) -> None:
        self._clock = clock
        self._max_tables = max_tables
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._steady: dict[str, SteadyTime] = {}
        self._lock = threading.Lock()

    def of_table(self, store: ObjectStore, paths: TablePaths) -> LogReader:
        """Return the table's reader, a new one if its log files' grace period has changed (R2).

        Raises:
            NotFound: No such table.
        """
        max_refresh_ms = read_table_config(store, paths).log_grace_ms // 2
        with self._lock:
            kept = self._kept.get(paths.prefix)
            if kept is None or kept.max_refresh_ms != max_refresh_ms:
                reader = LogReader(store, paths, clock=self._clock, max_refresh_ms=max_refresh_ms)
                kept = _Kept(max_refresh_ms, reader, PinReader(), _new_lease_reader())
                self._kept[paths.prefix] = kept
            self._kept.move_to_end(paths.prefix)
            while len(self._kept) > self._max_tables:
                self._kept.popitem(last=False)
            return kept.reader

    def steady_of(self, paths: TablePaths) -> SteadyTime:
        """Return what was heard of the store's time in runs over the table. Never forgotten: it is a few numbers."""
        with self._lock:
            return self._steady.setdefault(paths.prefix, SteadyTime(1))

    def pins_of(self, paths: TablePaths) -> PinReader:
        """Return what is kept of the table's pins with its reader."""
        with self._lock:
            kept = self._kept.get(paths.prefix)
            return PinReader() if kept is None else kept.pins

    def leases_of(self, paths: TablePaths) -> LeaseReader:
        """Return what is kept of the table's leases with its reader."""
        with self._lock:
            kept = self._kept.get(paths.prefix)
            return _new_lease_reader() if kept is None else kept.leases


def _new_lease_reader() -> LeaseReader:
    return LeaseReader(fetch_threads=FETCH_THREADS)
