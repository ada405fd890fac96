"""Readers of the log for the actors of a schedule: the library's own, but that the same bytes are decoded only once.

Each actor has a cache of its own, as each process has. What bytes decode to follows from them alone, so actors share
that: decoding is pure, and the oracle has done it when the log file landed.
"""

from functools import cached_property

from icedb_log.clock import Clock
from icedb_log.log.reader import LogHeadReader, LogReader
from icedb_log.model import LogFile, LogHead
from icedb_log.store.object_store import ObjectStore

from icedb_sim.simulation.model import SimModel
from icedb_sim.simulation.settings import PATHS


class SimReader(LogReader):
    """Fetches in the actor's own greenlet, and takes from the others what the same bytes decode to.

    Args:
        store: The store, as the actor sees it.
        model: Has decoded everything that ever landed.
        clock: The actor's.
        max_refresh_ms: How long a read may take (R2).
    """

    def __init__(self, store: ObjectStore, model: SimModel, *, clock: Clock, max_refresh_ms: int) -> None:
        super().__init__(store, PATHS, clock=clock, max_refresh_ms=max_refresh_ms, fetch_threads=1)
        self._model = model

    @cached_property
    def heads(self) -> LogHeadReader:
        """Reads the heads of the same log."""
        return _HeadReader(self._store, self._model, clock=self._clock, max_refresh_ms=self._max_refresh_ms)

    def _decode(self, key: str, body: bytes) -> LogFile:
        return self._model.decode(key, body)


class _HeadReader(LogHeadReader):
    def __init__(self, store: ObjectStore, model: SimModel, *, clock: Clock, max_refresh_ms: int) -> None:
        super().__init__(store, PATHS, clock=clock, max_refresh_ms=max_refresh_ms, fetch_threads=1)
        self._model = model

    def _decode(self, key: str, body: bytes, *, is_whole: bool) -> LogHead | None:
        return self._model.decode_head(key, body, is_whole=is_whole)
