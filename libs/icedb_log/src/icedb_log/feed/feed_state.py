"""What the logs of a view and its source say about its feed: what was taken, what waits. Reads only."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from icedb_log.errors import HaltError
from icedb_log.feed.feed_jobs import SourceCommit
from icedb_log.feed.views import find_unfed, is_view_there, list_view_names, read_registration, source_of
from icedb_log.keys import log_name
from icedb_log.log.codec import decode_log_file
from icedb_log.log.fold import newest_feed, union_schema
from icedb_log.log.reader import LogReader, naming_remedy
from icedb_log.model import FeedState, LogHeads
from icedb_log.store.object_store import list_all
from icedb_log.store.table_store import TableStore
from icedb_log.table.table import Table
from icedb_log.table.table_config import TableConfig

_NOTHING: Final = FeedState(0, ())


@dataclass(frozen=True, slots=True)
class ViewLag:
    """How far a view is behind its source.

    Attributes:
        view: Its name.
        source: Name of its source.
        state: ``pending``, ``active`` or ``detached``, see :data:`icedb_log.feed.views.ViewState`; ``unregistered``
            before its creation has ended; ``broken`` if the source is gone or halted; ``gone`` if its own table is;
            ``halted`` if its own log cannot be read.
        waiting_commits: Commits of the source that it has still to take.
        lag_ms: How long the oldest of them has been there, by the store's clock; 0 if none waits.
        refused_commits: Commits that its query could not take, since ever.
    """

    view: str
    source: str
    state: str
    waiting_commits: int
    lag_ms: int
    refused_commits: int


def read_append(table: TableStore, key: str, *, etag: str | None = None) -> SourceCommit:
    """Read a log file for what it appended, whatever was merged or removed since.

    V2: the data files are in the store as long as this log file is (J2, V4).

    Raises:
        NotFound: It is gone.
        PreconditionFailed: It is another one than that with this ETag.
        CorruptLog: It is damaged.
    """
    body = table.store.get(key, if_match=etag).body
    with naming_remedy(table.paths):
        log = decode_log_file(key, body)
    return SourceCommit(log_name(key), log.time_ms, tuple(marker for marker in log.markers if marker.is_live))


def open_source(view: Table, *, reader: LogReader | None = None) -> Table:
    """Open the source of a view. Raises InvalidRequest: it is no view; NotFound: its source is gone."""
    return view.other(source_of(view, view.config).paths, reader=reader)


def is_feed_needed(view: Table, source: Table) -> bool:
    """Return whether a feed of a view would find something to do. Two listings; nothing is written.

    Raises:
        HaltError: A log cannot be read.
        Unavailable: The store did not answer.
    """
    registration = read_registration(source, view.name)
    if registration is None or registration.state == "pending":
        return True
    if registration.state == "detached":
        return False
    state = read_feed_state(view.read_heads())
    unfed = find_unfed(source.read_heads().files, registration, state.names)
    return bool(unfed) or bool(find_unrecorded(view, state))


def read_view_lag(view: Table, source: Table) -> ViewLag:
    """Return how far a view is behind. Raises as :func:`is_feed_needed`."""
    registration = read_registration(source, view.name)
    refused = count_refused(view)
    if registration is None:
        return ViewLag(view.name, source.name, "unregistered", 0, 0, refused)
    state = read_feed_state(view.read_heads())
    heads = source.read_heads()
    unfed = set(find_unfed(heads.files, registration, state.names))
    waiting = (file.modified_ms for file in heads.files if log_name(file.key) in unfed)
    oldest_ms = min(waiting, default=heads.store_now_ms)
    lag_ms = max(0, heads.store_now_ms - oldest_ms)
    return ViewLag(view.name, source.name, registration.state, len(unfed), lag_ms, refused)


def list_view_lags(
    source: Table, *, on_halt: Callable[[str, HaltError], None] = lambda _view, _error: None
) -> tuple[ViewLag, ...]:
    """Return how far each view of a table is behind, ascending by name. Costs a listing, and two logs for each.

    Args:
        source: The table.
        on_halt: Told of each view that is halted, and why; it does not hide the others.

    Raises:
        Unavailable: The store did not answer.
    """
    return tuple(_read_lag_of(source, name, on_halt) for name in list_view_names(source))


def _read_lag_of(source: Table, name: str, on_halt: Callable[[str, HaltError], None]) -> ViewLag:
    if not is_view_there(source, name):
        return ViewLag(name, source.name, "gone", 0, 0, 0)
    try:
        return read_view_lag(source.other(source.paths.sibling(name)), source)
    except HaltError as error:
        on_halt(name, error)
        return ViewLag(name, source.name, "halted", 0, 0, 0)


def count_refused(view: Table) -> int:
    """Return how many commits a view has refused (V5)."""
    return len(list_all(view.store, view.paths.refused_prefix).objects)


def read_source_schema(source: Table) -> Mapping[str, str]:
    """Return the columns that a view's query sees in the rows of a source now: logged and declared, with SQL types.

    Raises:
        HaltError: Its log cannot be read.
        Unavailable: The store did not answer.
    """
    return unite_source_schema(source.config, source.read_heads())


def unite_source_schema(config: TableConfig, heads: LogHeads) -> Mapping[str, str]:
    """Return the columns of a source, logged and declared, given the heads of its log."""
    return {**config.declared, **union_schema(heads.table, heads.files).effective}


def read_feed_state(log: LogHeads) -> FeedState:
    """Return what a view has taken, given its log (V1)."""
    return newest_feed(file.log.feed for file in log.files) or _NOTHING


def find_unrecorded(view: Table, state: FeedState) -> tuple[str, ...]:
    """Return the commits that the last feed refused and of which there is no record yet (V5)."""
    if not state.refused:
        return ()
    present = {info.key for info in list_all(view.store, view.paths.refused_prefix).objects}
    return tuple(name for name in state.refused if view.paths.refused_key(name) not in present)
