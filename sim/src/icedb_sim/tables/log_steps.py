"""Steps of tests about a long log."""

from icedb_log.clock import Clock
from icedb_log.log.codec import encode_log_file
from icedb_log.model import LogFile
from icedb_log.store.table_store import TableStore


def lengthen_log(table: TableStore, count: int, *, clock: Clock) -> None:
    """Write log files that name nothing, without a fence. Nobody but a test does that."""
    for _ in range(count):
        time_ms, commit_id = clock.now_ms(), clock.new_id()
        key = table.paths.log_key(time_ms=time_ms, commit_id=commit_id, is_merged=False)
        table.store.put(key, encode_log_file(LogFile(time_ms, commit_id=commit_id)))
