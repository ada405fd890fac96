"""What the logs of a view and its source say about its feed: what was taken, what waits. Reads only."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from icedb_log.clock import Clock
from icedb_log.feed.views import find_unfed, read_registration, source_of
from icedb_log.keys import TablePaths
from icedb_log.log.fold import newest_feed, union_schema
from icedb_log.log.reader import LogReader
from icedb_log.model import FeedState, LogHeads
from icedb_log.store.object_store import ObjectStore, list_all
from icedb_log.table.stored_config import read_table_config
from icedb_log.table.table_config import TableConfig

_NOTHING: Final = FeedState(0, ())


@dataclass(frozen=True, slots=True)
class ViewLag:
    """How far a view is behind its source.

    Attributes:
        view: Its name.
        source: Name of its source.
        state: ``pending``, ``active`` or ``detached``, see :data:`icedb_log.feed.views.ViewState`; ``unregistered``
            before its creation has ended; ``broken`` if the source is gone or halted.
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


@dataclass(frozen=True, slots=True)
class FeedReaders:
    """The logs that a feed reads, with their caches.

    Attributes:
        view: Of the view.
        source: Of its source.
    """

    view: LogReader
    source: LogReader


def is_feed_needed(store: ObjectStore, paths: TablePaths, *, config: TableConfig, readers: FeedReaders) -> bool:
    """Return whether a feed of a view would find something to do. Two listings; nothing is written.

    Raises:
        InvalidRequest: The table is no view.
        HaltError: A log cannot be read.
        Unavailable: The store did not answer.
    """
    registration = read_registration(store, source_of(paths, config), paths.name)
    if registration is None or registration.state == "pending":
        return True
    if registration.state == "detached":
        return False
    state = read_feed_state(readers.view.heads.read())
    unfed = find_unfed(readers.source.heads.read().files, registration, state.names)
    return bool(unfed) or bool(find_unrecorded(store, paths, state))


def read_view_lag(store: ObjectStore, paths: TablePaths, *, config: TableConfig, readers: FeedReaders) -> ViewLag:
    """Return how far a view is behind. Raises as :func:`is_feed_needed`."""
    source = source_of(paths, config)
    registration = read_registration(store, source, paths.name)
    refused = count_refused(store, paths)
    if registration is None:
        return ViewLag(paths.name, source.name, "unregistered", 0, 0, refused)
    state = read_feed_state(readers.view.heads.read())
    heads = readers.source.heads.read()
    unfed = set(find_unfed(heads.files, registration, state.names))
    oldest_ms = min((file.modified_ms for file in heads.files if file.key in unfed), default=heads.store_now_ms)
    lag_ms = max(0, heads.store_now_ms - oldest_ms)
    return ViewLag(paths.name, source.name, registration.state, len(unfed), lag_ms, refused)


def count_refused(store: ObjectStore, paths: TablePaths) -> int:
    """Return how many commits a view has refused (V5)."""
    return len(list_all(store, paths.refused_prefix).objects)


def open_readers(
    store: ObjectStore,
    paths: TablePaths,
    source: TablePaths,
    *,
    configs: tuple[TableConfig, TableConfig],
    clock: Clock,
) -> FeedReaders:
    """Return fresh readers of a view and its source, given their configurations."""
    view, of_source = (
        LogReader(store, each, clock=clock, max_refresh_ms=config.log_grace_ms // 2)
        for each, config in zip((paths, source), configs, strict=True)
    )
    return FeedReaders(view, of_source)


def read_source_schema(store: ObjectStore, source: TablePaths, *, clock: Clock) -> Mapping[str, str]:
    """Return the columns that a view's query sees in the rows of a source now: logged and declared, with SQL types.

    Raises:
        NotFound: No such table.
        HaltError: Its log cannot be read.
        Unavailable: The store did not answer.
    """
    config = read_table_config(store, source)
    reader = LogReader(store, source, clock=clock, max_refresh_ms=config.log_grace_ms // 2)
    return unite_source_schema(config, reader.heads.read())


def unite_source_schema(config: TableConfig, heads: LogHeads) -> Mapping[str, str]:
    """Return the columns of a source, logged and declared, given the heads of its log."""
    return {**config.declared, **union_schema(heads.table, heads.files).effective}


def read_feed_state(heads: LogHeads) -> FeedState:
    """Return what a view has taken, given the heads of its log (V1)."""
    return newest_feed(file.log.feed for file in heads.files) or _NOTHING


def find_unrecorded(store: ObjectStore, paths: TablePaths, state: FeedState) -> tuple[str, ...]:
    """Return the commits that the last feed refused and of which there is no record yet (V5)."""
    if not state.refused:
        return ()
    present = {info.key for info in list_all(store, paths.refused_prefix).objects}
    return tuple(name for name in state.refused if paths.refused_key(name) not in present)
