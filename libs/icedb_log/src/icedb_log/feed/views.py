"""Registrations of views in the tables that feed them: who may still need a log file of the source (V2 to V4).

Owns ``_icedb/views/<view>.json`` below the source's prefix: one object, changed only by compare-and-set, never
deleted. Its states: none, then ``pending -> active -> detached -> pending -> …``.

``pending`` comes before the source's log is listed, ``active`` after it, with what was listed: so a commit that lands
while a view is being created is either listed, and skipped, or kept by the janitor, and fed. Whoever finds ``pending``
may finish it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Literal

import orjson

from icedb_log.clock import Clock
from icedb_log.errors import (
    CommitOutcomeUnknown,
    CorruptLog,
    HaltError,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    Unavailable,
)
from icedb_log.keys import TABLE_NAME, TablePaths, log_name, parse_log_key
from icedb_log.log.fold import newest_feed
from icedb_log.log.reader import LogReader
from icedb_log.model import ListedLogFile, ListedLogHead, LogView
from icedb_log.store.object_store import ObjectStore, list_all
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import create_table, read_table_config, renew_table_config
from icedb_log.table.table_config import TableConfig

ViewState = Literal["pending", "active", "detached"]
"""``pending``: all commits are kept; ``active``: those that are neither skipped nor fed; ``detached``: none."""

STATES: Final[tuple[ViewState, ...]] = ("pending", "active", "detached")
MAX_CHAIN: Final = 8
"""Tables between an ordinary one and the last view of it, itself included."""

_FORMAT: Final = 1
_MAX_ATTEMPTS: Final = 8


@dataclass(frozen=True, slots=True)
class Registration:
    """What a source knows of one of its views.

    Attributes:
        view: Name of the view.
        state: See :data:`ViewState`.
        skip: Names of the source's log files that were there before the view: they are not fed.
        token: Unique for each write, so that no ETag comes back.
    """

    view: str
    state: ViewState
    skip: tuple[str, ...]
    token: str


def create_view(table: TableStore, config: TableConfig, *, clock: Clock) -> Registration:
    """Create a view: its configuration first, then its registration; commits of the source from then on feed it.

    A crash in between leaves a view without registration, which holds nothing up; the first feed registers it.

    Args:
        table: Its store and keys.
        config: With ``view_of`` and ``view_query``.
        clock: For tokens.

    Raises:
        NotFound: No such source.
        InvalidRequest: The table exists already, or would feed itself.
        Unavailable: The store did not answer, or others kept changing the registration.
        CommitOutcomeUnknown: No answer; create it again.
    """
    source = source_of(table.paths, config)
    require_no_cycle(table, config)
    _renew_left_over(table.store, source, table.name, clock=clock)
    create_table(table, config)
    return register_view(table.store, source, table.name, clock=clock, is_new=True)


def register_view(
    store: ObjectStore, source: TablePaths, view: str, *, clock: Clock, is_new: bool = False
) -> Registration:
    """Make sure that a source knows its view, and return what it knows. Idempotent.

    Args:
        store: The object store.
        source: Keys of the source.
        view: Name of the view; it exists.
        clock: For tokens.
        is_new: A detached view is attached, too: it is fed with what is committed from now on.

    Raises:
        NotFound: There is no source to register with.
        Unavailable: The store did not answer, or others kept changing the registration.
    """
    for _ in range(_MAX_ATTEMPTS):
        found, etag = _read(store, source, view)
        if found is not None and (found.state == "active" or (found.state == "detached" and not is_new)):
            return found
        token = clock.new_id()
        if found is None or found.state == "detached":
            renew_table_config(
                TableStore(store, source)
            )  # no janitor that knows of no views may clean the source from here on
            _replace(store, source, Registration(view, "pending", (), token), etag=etag)
            continue
        # WARN: V3: listed after the pending registration was there. The other way round: a commit lands after the
        # listing, is merged and vacuumed before any janitor knows of the view, and the view never sees its rows.
        skip = tuple(log_name(key) for key in list_appends(store, source))
        _replace(store, source, Registration(view, "active", skip, token), etag=etag)
    raise Unavailable(f"table {source.name}: others kept changing {source.view_key(view)}; try again later")


def _renew_left_over(store: ObjectStore, source: TablePaths, view: str, *, clock: Clock) -> None:
    """Let the registration of a view that somebody has removed by hand be made anew: what it skips is out of date.

    ``pending``, which holds nothing up as long as there is no view, and not ``detached``: a creation that is cut off
    behind this is finished by the first feed.
    """
    for _ in range(_MAX_ATTEMPTS):
        found, etag = _read(store, source, view)
        # Also one that is pending: whoever has listed the log for it, long ago, must not make it active any more.
        if found is None or is_view_there(store, source, view):
            return
        if _replace(store, source, Registration(view, "pending", (), clock.new_id()), etag=etag):
            return
    raise Unavailable(f"table {source.name}: others kept changing {source.view_key(view)}; try again later")


def detach_view(store: ObjectStore, source: TablePaths, view: str, *, clock: Clock) -> bool:
    """Stop feeding a view; it keeps its rows. Idempotent: returns whether that changed anything.

    A feed that is under way may still commit.

    Raises:
        NotFound: The source knows no such view.
        Unavailable: The store did not answer, or others kept changing the registration.
    """
    for _ in range(_MAX_ATTEMPTS):
        found, etag = _read(store, source, view)
        if found is None:
            raise NotFound(f"table {source.name} feeds no view {view!r}; see `icedb view list {source.name}`")
        if found.state == "detached":
            return False
        if _replace(store, source, Registration(view, "detached", (), clock.new_id()), etag=etag):
            return True
    raise Unavailable(f"table {source.name}: others kept changing {source.view_key(view)}; try again later")


def read_registration(store: ObjectStore, source: TablePaths, view: str) -> Registration | None:
    """Return what a source knows of a view; ``None`` if nothing. Raises CorruptLog, Unavailable."""
    return _read(store, source, view)[0]


def list_registrations(store: ObjectStore, source: TablePaths) -> tuple[Registration, ...]:
    """Return what a source knows of its views, ascending by name. Raises CorruptLog, Unavailable."""
    names = list_view_names(store, source)
    found = (read_registration(store, source, name) for name in names)
    return tuple(each for each in found if each is not None)


def list_view_names(store: ObjectStore, source: TablePaths) -> tuple[str, ...]:
    """Return the names of all views that a source has ever known. One listing."""
    keys = (info.key for info in list_all(store, source.views_prefix).objects)
    names = (key.removeprefix(source.views_prefix).removesuffix(".json") for key in keys if key.endswith(".json"))
    return tuple(name for name in names if TABLE_NAME.fullmatch(name))


def find_unfed(
    files: Iterable[ListedLogFile] | Iterable[ListedLogHead], registration: Registration, fed: Iterable[str]
) -> tuple[str, ...]:
    """Return the keys of the source's log files that a view has still to take, oldest first. Pure."""
    if registration.state == "detached":
        return ()
    done = {*registration.skip, *fed}
    return tuple(
        file.key
        for file in files
        if not file.log.is_seal and not parse_log_key(file.key).is_merged and log_name(file.key) not in done
    )


def find_wanted(
    store: ObjectStore, source: LogView, paths: TablePaths, *, read_view: Callable[[TablePaths], LogReader]
) -> frozenset[str]:
    """Return the keys of a table's log files that must stay, because a view has not taken them (V4).

    Args:
        store: The object store.
        source: The log of the table, read before this is called.
        paths: Keys of the table.
        read_view: Returns a reader of a view's log.

    Raises:
        Unavailable: The store did not answer.
    """
    wanted: set[str] = set()
    for name in list_view_names(store, paths):
        try:
            registration = read_registration(store, paths, name)
            if registration is None or not is_view_there(store, paths, name):
                continue  # removed by hand: nobody will ever ask for them
            state = newest_feed(file.log.feed for file in read_view(paths.sibling(name)).heads.read().files)
        except HaltError:
            registration, state = Registration(name, "pending", (), ""), None  # unknown means keep
        wanted.update(find_unfed(source.files, registration, () if state is None else state.names))
    return frozenset(wanted)


def is_view_there(store: ObjectStore, source: TablePaths, view: str) -> bool:
    """Return whether a view of a source exists. Raises UnsupportedFormat, Unavailable."""
    try:
        return read_table_config(TableStore(store, source.sibling(view))).view_of == source.name
    except NotFound:
        return False


def source_of(paths: TablePaths, config: TableConfig) -> TablePaths:
    """Return the keys of a view's source. Raises InvalidRequest if the table is no view."""
    if config.view_of is None:
        raise InvalidRequest(f"table {paths.name} is no view: batches are enqueued into it, nothing feeds it")
    return paths.sibling(config.view_of)


def require_takes_batches(config: TableConfig) -> None:
    """Refuse batches and imports for a view: its rows come from its source alone (V1).

    Raises:
        InvalidRequest: The table is a view.
    """
    if config.view_of is not None:
        raise InvalidRequest(
            f"table {config.name!r} is a view of {config.view_of!r}: it takes no batches and no imports; "
            f"send them to {config.view_of!r}, whose commits feed it"
        )


def require_no_cycle(table: TableStore, config: TableConfig) -> None:
    """Refuse a view that would feed itself, through whatever other views, and chains that are too long.

    Raises:
        NotFound: A table on the way does not exist.
        InvalidRequest: It would.
    """
    chain = [table.name]
    while config.view_of is not None:
        if config.view_of in chain or len(chain) == MAX_CHAIN:
            problem = "it would feed itself" if config.view_of in chain else f"at most {MAX_CHAIN} in a row"
            raise InvalidRequest(f"view {' of '.join([*chain, config.view_of])}: {problem}; choose another source")
        chain.append(config.view_of)
        config = read_table_config(TableStore(table.store, table.paths.sibling(config.view_of)))


def list_appends(store: ObjectStore, source: TablePaths) -> tuple[str, ...]:
    """List the keys of a table's appends, ascending; seals may be among them."""
    keys = (info.key for info in list_all(store, source.log_prefix).objects)
    return tuple(key for key in keys if not parse_log_key(key).is_merged)


def _read(store: ObjectStore, source: TablePaths, view: str) -> tuple[Registration | None, str]:
    key = source.view_key(view)
    try:
        stored = store.get(key)
    except NotFound:
        return None, ""
    try:
        value: dict[str, Any] = orjson.loads(stored.body)
        if value["format"] != _FORMAT or value["state"] not in STATES:
            raise ValueError(f"format {value['format']!r}, state {value['state']!r}")
        found = Registration(view, value["state"], tuple(map(str, value["skip"])), str(value["token"]))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptLog(
            f"{key}: not a registration of a view ({type(error).__name__}: {str(error)[:100]}); a person must restore "
            "it: until then the janitor deletes no log file of an append"
        ) from error
    return found, stored.info.etag


def _replace(store: ObjectStore, source: TablePaths, registration: Registration, *, etag: str) -> bool:
    """Write a registration over the one with ``etag`` (empty: none); return whether that is certain."""
    body = orjson.dumps(
        {
            "format": _FORMAT,
            "state": registration.state,
            "skip": list(registration.skip),
            "token": registration.token,
        }
    )
    key = source.view_key(registration.view)
    try:
        if etag:
            store.put_if_match(key, body, etag=etag)
        else:
            store.put_if_absent(key, body)
    except (PreconditionFailed, CommitOutcomeUnknown):
        return False  # W2: only reading tells, which the caller does
    return True
