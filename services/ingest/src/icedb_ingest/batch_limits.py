"""How many batches the next commit of a table takes: fewer after one that found too many partitions.

Which partitions a batch has is known only when it is parsed; what is deferred then is parsed again. So a table whose
batches spread over more partitions than one commit takes is offered about twice what the last commit took, until
nothing is deferred any more.
"""

from icedb_log.ingest.flush import FlushLimits, FlushResult


class BatchLimits:
    """Remembers the tables of which batches were deferred.

    Args:
        max_batches: Most batches in one commit of any table.
        max_bytes: Most staged bytes in one commit.
    """

    def __init__(self, *, max_batches: int, max_bytes: int) -> None:
        self._max_batches = max_batches
        self._max_bytes = max_bytes
        self._lowered: dict[str, int] = {}

    def of_table(self, table: str) -> FlushLimits:
        """Return the bounds of the table's next commit."""
        return FlushLimits(max_batches=self._lowered.get(table, self._max_batches), max_bytes=self._max_bytes)

    def record(self, table: str, result: FlushResult) -> None:
        """Learn from a commit: less after a deferral, twice as much after none."""
        if result.deferred_count:
            taken = result.batch_count + len(result.rejected)
            self._lowered[table] = max(1, min(2 * taken, self._max_batches))
        elif result.committed_key and table in self._lowered:
            raised = 2 * self._lowered.pop(table)
            if raised < self._max_batches:
                self._lowered[table] = raised
