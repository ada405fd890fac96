"""Steps of tests about fences, on a :class:`~icedb_sim.tables.small_table.SmallTable`."""

from typing import Final

from icedb_log.keys import Role
from icedb_log.log.codec import decode_log_file
from icedb_log.log.fence import FenceState, HeldFence, acquire_fence, read_fence
from icedb_log.model import LogFile

from icedb_sim.tables.log_views import live
from icedb_sim.tables.small_table import SmallTable

FENCE: Final = "/_icedb/fence/"
LOG: Final = "/_log/"


def acquire(table: SmallTable, role: Role = "ingest", owner: str = "me") -> HeldFence:
    """Acquire a fence."""
    return acquire_fence(table.known(owner), role)


def make_log(table: SmallTable, name: str = "x") -> LogFile:
    """Return a log file that makes one data file live."""
    return LogFile(table.clock.now_ms(), {}, (live(name),), commit_id=table.clock.new_id())


def state_of(table: SmallTable, role: Role = "ingest") -> FenceState | None:
    """Return what stands in a fence, past all scripted faults."""
    return read_fence(table.store.inner, table.paths.fence_key(role))[0]


def log_files(table: SmallTable) -> dict[str, LogFile]:
    """Return the log files by key."""
    return {key: decode_log_file(key, body) for key, body in table.log_objects()}
