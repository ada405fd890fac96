"""How far a purge is: ``_icedb/purge.json``, for people. Nothing is decided by it; it may be lost, or be an old one."""

from dataclasses import asdict, dataclass
from typing import Any

import orjson

from icedb_log.errors import IceDBError, NotFound
from icedb_log.store.table_store import TableStore


@dataclass(frozen=True, slots=True)
class PurgeProgress:
    """What the runs of one purge have done so far.

    Attributes:
        drop_id: Of the drop that it is the purge of.
        started_ms: When its first run began, unix ms by the store's clock.
        updated_ms: When this was written, unix ms by the store's clock.
        deleted_count: Objects deleted; a run that was killed may have deleted some more.
        deleted_bytes: Of them.
        failed_count: Objects that the last run could not delete.
        problem: The store's words about the first of them.
    """

    drop_id: str
    started_ms: int
    updated_ms: int = 0
    deleted_count: int = 0
    deleted_bytes: int = 0
    failed_count: int = 0
    problem: str = ""


def write_progress(table: TableStore, progress: PurgeProgress) -> None:
    """Write it down, whatever is there. Never fails: a purge does not stop for it."""
    value = {name: each for name, each in asdict(progress).items() if name != "updated_ms"}
    try:
        table.store.put(table.paths.purge_key, orjson.dumps(value))
    except IceDBError:
        return


def read_progress(table: TableStore, *, drop_id: str) -> PurgeProgress | None:
    """Return what the runs of one purge have done; ``None`` if nothing is known. Raises Unavailable."""
    try:
        stored = table.store.get(table.paths.purge_key)
        value: dict[str, Any] = orjson.loads(stored.body)
        found = PurgeProgress(**{**value, "updated_ms": stored.info.modified_ms})
    except (NotFound, ValueError, TypeError):
        return None
    return found if found.drop_id == drop_id else None
