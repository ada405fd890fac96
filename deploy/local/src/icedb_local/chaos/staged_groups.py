"""Groups of staged batches, as the proxy sees them: which of them flushes have taken away. Safe for many threads."""

import re
import threading
from typing import Final

from icedb_local.chaos.fault_proxy import Request

GROUP_KEY: Final = r"/_icedb/staging/[^/<>\s]+\.group\b"
_FLUSHERS_DOOR: Final = "ingest"


class StagedGroups:
    """What became of groups; each has two batches or more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flushed: set[str] = set()

    @property
    def flushed_count(self) -> int:
        """Groups that ingest workers have deleted: each batch in them is decided, or was staged alone (I2)."""
        with self._lock:
            return len(self._flushed)

    def note(self, request: Request, _answer_bytes: int) -> None:
        """Look at a request that the store has answered."""
        if request.door == _FLUSHERS_DOOR and request.method in ("DELETE", "POST"):
            text = request.path + request.body.decode(errors="replace")
            with self._lock:
                self._flushed.update(re.findall(GROUP_KEY, text))
