"""A purge: everything of a dropped table is deleted, but for what keeps out those who worked on it (rules T3 to T6).

Order: the mark (``purging``: nothing brings the table back), both fences, data files, log files, everything else, once
more from the beginning until a listing finds nothing, the mark again (``purged``: the name is free). When a seal's age
has passed since, all of it once more, for what came late.

Fences and seals stay: a worker that slept through all of it finds that another one has its fence, or that its commit is
sealed. So do registrations of views (a compare-and-set that sleeps must not find them absent again), certificates of
erasures, the audit, and ``table.json``: S3 has no delete on condition, and who deletes it last could delete the
configuration of a table that has just been created.
"""

from collections.abc import Callable
from typing import Any

from icedb_log.clean.audit import AuditLog, sweep_audit
from icedb_log.clean.claims import find_claims, find_holds
from icedb_log.clean.drop import replace_config
from icedb_log.clean.purge_run import PurgeLimits, PurgeResult, PurgeRun
from icedb_log.clock import Clock
from icedb_log.store.object_store import ObjectInfo
from icedb_log.store.store_clock import check_store_clock
from icedb_log.store.table_store import TableStore
from icedb_log.table.drop_mark import Dropped
from icedb_log.table.stored_config import load_any_config
from icedb_log.table.table_config import TableConfig


def purge_table(
    table: TableStore,
    *,
    clock: Clock,
    owner: str,
    audit: AuditLog | None = None,
    check_alive: Callable[[], None] | None = None,
    limits: PurgeLimits | None = None,
) -> PurgeResult:
    """Purge a table whose time in the trash is over, or go on with a purge that has begun. Idempotent.

    A table that is not dropped is left alone. Any number of runs may overlap, and each may be cut off at any point.

    Args:
        table: Its store and keys.
        clock: Makes ids, and bounds the run; decides about no age.
        owner: Who does this, for people.
        audit: Where everything is written down; ``None``: nowhere.
        check_alive: Called before each chunk; raises to stop the run.
        limits: Bounds of the run.

    Raises:
        NotFound: There is no such table, and no trace of one.
        Fenced: Another run has ended this purge meanwhile.
        HaltError: ``table.json`` or a fence cannot be read, or the store's clock tells no ages; a person looks.
        Unavailable: The store did not answer.
    """
    config, info = load_any_config(table)
    mark = config.dropped
    if mark is None:
        return PurgeResult("kept")
    if mark.state != "purging":
        look = _look_at_trash if mark.state == "trash" else _look_at_purged
        change = look(table, config, mark, info=info, clock=clock)
        if isinstance(change, PurgeResult):
            return change
        if not _begin(table, config, mark, change=change, etag=info.etag, clock=clock):
            return PurgeResult("kept")
    run = PurgeRun(table, config, mark.drop_id, clock=clock, owner=owner, limits=limits or PurgeLimits())
    return run.purge(audit=audit, check_alive=check_alive)


def _look_at_trash(
    table: TableStore, config: TableConfig, mark: Dropped, *, info: ObjectInfo, clock: Clock
) -> PurgeResult | dict[str, Any]:
    """Return what becomes of the mark of a table in the trash, or why its time has not come (T3)."""
    del clock  # it is asked when the purge begins
    if info.modified_ms + mark.keep_ms > table.store.list_page(table.paths.config_key, limit=1).store_now_ms:  # T1
        return PurgeResult("kept")
    claims = (*find_claims(table), *find_holds(table, config))
    return PurgeResult("waiting", waits_for=claims) if claims else {"dropped_ms": info.modified_ms}


def _look_at_purged(
    table: TableStore, config: TableConfig, mark: Dropped, *, info: ObjectInfo, clock: Clock
) -> PurgeResult | dict[str, Any]:
    """Return what becomes of the mark of a table that is purged, if what came late is to be looked for (T6)."""
    if mark.is_final:
        # Names of the audit never come again: this may meet a new table.
        done = sweep_audit(table, retention_ms=config.audit_retention_ms, clock=clock)
        return PurgeResult("purged", len(done.keys), failed=done.failed)
    if info.modified_ms + config.seal_age_ms > table.store.list_page(table.paths.config_key, limit=1).store_now_ms:
        return PurgeResult("purged")
    return {"is_final": True, "purgers": ()}  # F4: nobody of them sleeps any more


def _begin(
    table: TableStore,
    config: TableConfig,
    mark: Dropped,
    *,
    change: dict[str, Any],
    etag: str,
    clock: Clock,
) -> bool:
    """Say in ``table.json`` that the purge begins; return whether it has: somebody may have been faster."""
    check_store_clock(table.store, table.paths.clock_key, clock=clock)
    begun = mark.model_copy(update={"state": "purging", **change})
    replace_config(table, config.model_copy(update={"dropped": begun}), etag=etag)
    found = load_any_config(table)[0].dropped
    return found is not None and found.drop_id == mark.drop_id and found.state == "purging"
