"""Groups of staged batches, as the proxy sees them: which of them flushes have taken away. Safe for many threads."""

import re
import threading
from typing import Final

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

    def note(self, door: str, line: str, body: bytes) -> None:
        """Look at a request that the store has answered: method and path, and its body."""
        method = line.partition(" ")[0]
        if door == _FLUSHERS_DOOR and method in ("DELETE", "POST"):
            text = line + body.decode(errors="replace")
            with self._lock:
                self._flushed.update(re.findall(GROUP_KEY, text))
