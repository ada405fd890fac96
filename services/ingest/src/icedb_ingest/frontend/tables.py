"""Which tables exist, remembered for a short while: batches arrive far more often than tables are created."""

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from icedb_log.clock import Clock
from icedb_log.errors import NotFound
from icedb_log.keys import TablePaths
from icedb_log.store.object_store import ObjectStore
from icedb_log.table.stored_config import read_table_config
from icedb_log.table.table_config import TableConfig

MISSING_AGE_MS: Final = 1000
"""A table that is not there is looked for again soon: somebody may be creating it."""
MAX_TABLES: Final = 10_000


@dataclass(frozen=True, slots=True)
class _Known:
    read_ms: int
    config: TableConfig | None
    problem: str


class TableDirectory:
    """Answers whether a table exists, and how it is configured. Thread-safe.

    Args:
        store: The object store.
        clock: Measures ages.
        max_age_ms: How old the answer for a table that exists may be.
    """

    def __init__(self, store: ObjectStore, *, clock: Clock, max_age_ms: int) -> None:
        self._store = store
        self._clock = clock
        self._max_age_ms = max_age_ms
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._lock = threading.Lock()

    def config(self, paths: TablePaths) -> TableConfig:
        """Return the table's configuration. At most one small GET.

        Raises:
            NotFound: No such table.
            UnsupportedFormat: A configuration that this release does not understand.
            Unavailable: The store did not answer.
        """
        now_ms = self._clock.monotonic_ms()
        with self._lock:
            known = self._known.get(paths.prefix)
        if known is None or now_ms - known.read_ms > (self._max_age_ms if known.config else MISSING_AGE_MS):
            known = self._read(paths, now_ms)
        if known.config is None:
            raise NotFound(known.problem)
        return known.config

    def _read(self, paths: TablePaths, now_ms: int) -> _Known:
        try:
            known = _Known(now_ms, read_table_config(self._store, paths), "")
        except NotFound as error:
            known = _Known(now_ms, None, str(error))
        with self._lock:
            self._known[paths.prefix] = known
            self._known.move_to_end(paths.prefix)
            while len(self._known) > MAX_TABLES:
                self._known.popitem(last=False)
        return known
