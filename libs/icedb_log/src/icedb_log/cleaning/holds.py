"""Reading everything but age that keeps dead objects of a table: leases, pins, versions, commits under way.

Must be read *after* the log that the plan is made from (J4, J7, J9). What views have still to take is read only when it
matters (:func:`icedb_log.views.views.find_wanted`).
"""

from icedb_log.cleaning.guards import Holds, OpenCommit, find_kept_versions
from icedb_log.cleaning.leases import LeaseReader
from icedb_log.cleaning.pins import PinReader
from icedb_log.keys import ROLES, TablePaths
from icedb_log.log.fence import read_fence_object
from icedb_log.model import LogView
from icedb_log.storage.object_store import ObjectStore
from icedb_log.tables.table_config import TableConfig


def read_holds(
    store: ObjectStore,
    paths: TablePaths,
    *,
    view: LogView,
    config: TableConfig,
    pins: PinReader | None = None,
    leases: LeaseReader | None = None,
) -> Holds:
    """Read what keeps dead objects of a table.

    Args:
        store: The object store.
        paths: Keys of the table.
        view: The log that the plan is made from, read before this is called.
        config: Grace periods, how many versions are kept, and how long a commit may take.
        pins: A reader of this table's pins to reuse, with its cache.
        leases: The same for its leases.

    Raises:
        CorruptLog: A fence cannot be understood: a person must restore it.
        Unavailable: The store did not answer.
    """
    # J1: a time that the log was judged by holds for leases and pins, too: to both, earlier is only longer.
    now_ms = view.store_now_ms
    return Holds(
        leases=(leases or LeaseReader()).read(store, paths, latest_ms=now_ms).leases,
        pins=(pins or PinReader()).read(store, paths, data_grace_ms=config.data_grace_ms, latest_ms=now_ms),
        versions=find_kept_versions(view, config.keep_versions),
        commits=read_open_commits(store, paths, config=config, now_ms=now_ms),
    )


def read_open_commits(
    store: ObjectStore, paths: TablePaths, *, config: TableConfig, now_ms: int
) -> tuple[OpenCommit, ...]:
    """Return the log files that fences name and whose committers may still be at work (J9).

    A fence that nobody wrote for half the orphan age holds nothing: no commit takes longer (W3). Owners that died leave
    their last commit in it for ever.

    Args:
        store: The object store.
        paths: Keys of the table.
        config: Its orphan age.
        now_ms: The store's clock.
    """
    found: list[OpenCommit] = []
    for role in ROLES:
        state, info = read_fence_object(store, paths.fence_key(role))
        if state is None or state.commit is None or info is None:
            continue
        until_ms = info.modified_ms + config.orphan_age_ms // 2
        if until_ms > now_ms:
            found.append(OpenCommit(state.commit, role, state.owner, until_ms))
    return tuple(found)
