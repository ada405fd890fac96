"""The orphan sweep: data files that no log file names (rule J5).

Listing first, log second: a file that a commit made live after the listing is then named. A commit that is under
way is settled before the log that decides is read, so that a worker that wakes up cannot name what was deleted.
Only data files below ``_data/`` that end in ``.parquet`` are ever deleted; anything else found there is reported
and kept.
"""

from dataclasses import dataclass

from icedb_log.clock import Clock
from icedb_log.keys import ROLES, TablePaths
from icedb_log.log.fence import settle_fence
from icedb_log.log.reader import LogReader
from icedb_log.model import LogView
from icedb_log.storage.object_store import FailedDelete, Listing, ObjectInfo, ObjectStore, list_all
from icedb_log.tables.table_config import TableConfig, read_table_config


@dataclass(frozen=True, slots=True)
class OrphanResult:
    """What an orphan sweep did, or would do (``dry_run``).

    Attributes:
        is_dry_run: Whether nothing was touched.
        deleted: Orphans deleted.
        failed: Orphans that could not be deleted; the next sweep tries again.
        young_count: Unnamed data files that are not old enough; many of them are about to be committed.
        unknown: Objects that are no data files; kept.
    """

    is_dry_run: bool
    deleted: tuple[str, ...]
    failed: tuple[FailedDelete, ...]
    young_count: int
    unknown: tuple[str, ...]


def sweep_orphans(
    store: ObjectStore,
    paths: TablePaths,
    *,
    clock: Clock,
    dry_run: bool = False,
    reader: LogReader | None = None,
) -> OrphanResult:
    """Delete the data files that no log file names and that are older than the orphan age. Idempotent.

    Args:
        store: The object store.
        paths: Keys of the table.
        clock: This host's clock; decides nothing about ages.
        dry_run: Touch nothing; the result says what would be deleted.
        reader: A reader to reuse, with its cache.

    Raises:
        NotFound: No such table.
        HaltError: The log cannot be read; nothing was deleted.
        Unavailable: The store did not answer.
        CommitOutcomeUnknown: The same, about a commit under way; nothing was deleted.
    """
    config = read_table_config(store, paths)
    listing = list_all(store, paths.data_prefix)
    reader = reader or LogReader(store, paths, clock=clock, max_refresh_ms=config.log_grace_ms // 2)
    view = reader.read()  # J5: after the listing
    unknown = tuple(info.key for info in listing.objects if not info.key.endswith(".parquet"))
    unnamed = _unnamed(listing, view)
    if not dry_run and _old(unnamed, listing, config):
        # WARN: a worker that stalls between its last look at the time (W3) and its PUT would name what is deleted
        # here. Its intent is in the fence by then: its commit is settled, and only a log read after that counts.
        for role in ROLES:
            settle_fence(store, paths, role)
        unnamed = _unnamed(listing, reader.read())
    old = _old(unnamed, listing, config)
    young_count = len(unnamed) - len(old)
    if dry_run or not old:
        return OrphanResult(dry_run, tuple(old), (), young_count, unknown)
    report = store.delete(old)
    return OrphanResult(False, report.deleted, report.failed, young_count, unknown)


def _unnamed(listing: Listing, view: LogView) -> list[ObjectInfo]:
    named = {marker.path for file in view.files for marker in file.log.markers}
    return [info for info in listing.objects if info.key not in named and info.key.endswith(".parquet")]


def _old(unnamed: list[ObjectInfo], listing: Listing, config: TableConfig) -> list[str]:
    # J5: by the store's clock at the listing; W3 keeps a file of half this age from being committed any more.
    return [info.key for info in unnamed if info.modified_ms + config.orphan_age_ms <= listing.store_now_ms]
