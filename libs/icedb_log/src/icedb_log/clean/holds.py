"""Reading what holds objects of a table, or the table itself: leases, tags, publications, commits, views.

What holds objects is read *after* the log that a plan is made from (J4, J9). What views have still to take is
read only when it matters (:func:`icedb_log.feed.views.find_wanted`).
"""

from icedb_log.commit.fence import read_fence_object
from icedb_log.feed.views import is_view_there, list_registrations
from icedb_log.holds.erasures import list_open_ids
from icedb_log.holds.guards import Hold, Holds
from icedb_log.holds.stored_holds import HoldReader
from icedb_log.keys import ROLES
from icedb_log.model import LogView
from icedb_log.publish.head import read_publications
from icedb_log.store.table_store import TableStore
from icedb_log.table.table_config import TableConfig


def read_holds(table: TableStore, *, view: LogView, config: TableConfig, reader: HoldReader | None = None) -> Holds:
    """Read what keeps dead objects of a table.

    The view is the log that the plan is made from, read before this is called. ``reader``: one of this table to reuse.

    Raises:
        CorruptLog: A fence cannot be understood: a person must restore it.
        Unavailable: The store did not answer.
    """
    # J1: a time that the log was judged by holds for holds, too: to them, earlier is only longer.
    now_ms, grace_ms = view.store_now_ms, config.data_grace_ms
    listed = (reader or HoldReader()).read(table, latest_ms=now_ms)
    found = (hold.keeps(data_grace_ms=grace_ms) for hold in listed.lasting(data_grace_ms=grace_ms))
    published = read_publications(table, listed=listed).find_holds(data_grace_ms=grace_ms, now_ms=now_ms)
    commits, landed = _read_fences(table, config, now_ms=now_ms)
    return Holds((*found, *published, *commits), landed)


def _read_fences(table: TableStore, config: TableConfig, *, now_ms: int) -> tuple[list[Hold], tuple[str, ...]]:
    """Return the log files that fences name and whose committers may still be at work (J9), and what has landed (F5).

    A fence that nobody wrote for half the orphan age holds nothing: no commit takes longer (W3). Owners that died leave
    their last commit in it for ever.
    """
    commits: list[Hold] = []
    landed: list[str] = []
    for role in ROLES:
        state, info = read_fence_object(table.store, table.paths.fence_key(role))
        if state is None or info is None:
            continue
        landed += state.landed
        until_ms = info.modified_ms + config.orphan_age_ms // 2
        if state.commit is not None and until_ms > now_ms:
            told = f"{role} {state.owner}"
            commits.append(Hold("commit", state.commit, until_ms, files=(state.commit,), told=told))
    return commits, tuple(landed)


def find_claims(table: TableStore) -> tuple[Hold, ...]:
    """Find who needs a table to be there (T2): views that it feeds, erasures that have not ended.

    Costs two listings, and two GETs for each view.

    Raises:
        CorruptLog: A registration of a view cannot be read.
        Unavailable: The store did not answer.
    """
    views = [
        Hold("view", each.view)
        for each in list_registrations(table)
        if each.state != "detached" and is_view_there(table, each.view)
    ]
    return (*views, *(Hold("erasure", erasure_id) for erasure_id in list_open_ids(table)))


def find_claims_on_data(table: TableStore, config: TableConfig) -> tuple[Hold, ...]:
    """Find who needs its data files, too (T3): tags, leases (J4). Raises Unavailable.

    No publication: none is shown of a table that is dropped, and it lies in the trash for a grace period at least.
    """
    grace_ms = config.data_grace_ms
    lasting = HoldReader().read(table).lasting(data_grace_ms=grace_ms)
    found = (hold.keeps(data_grace_ms=grace_ms) for hold in lasting)
    return tuple(sorted(found, key=lambda hold: hold.kind, reverse=True))
