"""Reading everything but age that keeps dead objects of a table: leases, pins, versions, commits under way.

Must be read *after* the log that the plan is made from (J4, J7, J9). What views have still to take is read only when it
matters (:func:`icedb_log.feed.views.find_wanted`).
"""

from collections.abc import Mapping

from icedb_log.clean.guards import Holds, OpenCommit, find_kept_versions
from icedb_log.clean.leases import LeaseReader
from icedb_log.clean.pins import PinReader
from icedb_log.keys import ROLES, Role
from icedb_log.log.fence import FenceState, read_fence_object
from icedb_log.model import LogView
from icedb_log.store.object_store import ObjectInfo
from icedb_log.store.table_store import TableStore
from icedb_log.table.table_config import TableConfig


def read_holds(
    table: TableStore,
    *,
    view: LogView,
    config: TableConfig,
    pins: PinReader | None = None,
    leases: LeaseReader | None = None,
) -> Holds:
    """Read what keeps dead objects of a table.

    Args:
        table: Its store and keys.
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
    read_leases = (leases or LeaseReader()).read(table, latest_ms=now_ms).leases
    read_pins = (pins or PinReader()).read(table, data_grace_ms=config.data_grace_ms, latest_ms=now_ms)
    fences = _read_fences(table)
    return Holds(
        leases=read_leases,
        pins=read_pins,
        versions=find_kept_versions(view, config.keep_versions),
        commits=_find_open_commits(fences, config=config, now_ms=now_ms),
        landed=tuple(name for state, _ in fences.values() for name in state.landed),
    )


def read_open_commits(table: TableStore, *, config: TableConfig, now_ms: int) -> tuple[OpenCommit, ...]:
    """Return the log files that fences name and whose committers may still be at work (J9).

    A fence that nobody wrote for half the orphan age holds nothing: no commit takes longer (W3). Owners that died leave
    their last commit in it for ever.

    Args:
        table: Its store and keys.
        config: Its orphan age.
        now_ms: The store's clock.
    """
    return _find_open_commits(_read_fences(table), config=config, now_ms=now_ms)


def _read_fences(table: TableStore) -> dict[Role, tuple[FenceState, ObjectInfo]]:
    found = ((role, *read_fence_object(table.store, table.paths.fence_key(role))) for role in ROLES)
    return {role: (state, info) for role, state, info in found if state is not None and info is not None}


def _find_open_commits(
    fences: Mapping[Role, tuple[FenceState, ObjectInfo]], *, config: TableConfig, now_ms: int
) -> tuple[OpenCommit, ...]:
    found: list[OpenCommit] = []
    for role, (state, info) in fences.items():
        if state.commit is None:
            continue
        until_ms = info.modified_ms + config.orphan_age_ms // 2
        if until_ms > now_ms:
            found.append(OpenCommit(state.commit, role, state.owner, until_ms))
    return tuple(found)
