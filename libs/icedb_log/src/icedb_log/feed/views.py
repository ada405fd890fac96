"""Registrations of views in the tables that feed them, and how far each view is (V1 to V5).

Owns ``_icedb/views/<view>.json`` below the source's prefix: one object, changed only by compare-and-set, never
deleted. Its states: none, then ``pending -> active -> detached -> pending -> …``.

``pending`` comes before the source's log is listed, ``active`` after it, with what was listed: so a commit that lands
while a view is being created is either listed, and skipped, or kept by the janitor, and fed. Whoever finds ``pending``
may finish it. So a source knows who may still need one of its log files. What was taken, and what waits, is read from
the logs of both.

A view that begins with the rows of its source (``view_backfill``) has a backfill: the data files that were live when
its registration became active, by the log files that said so. These stay until the view has taken all of the files.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field

from icedb_log.clock import Clock
from icedb_log.commit.table import Table
from icedb_log.errors import CorruptLog, HaltError, InvalidRequest, NotFound, Unavailable
from icedb_log.feed.position import LogFiles, find_appends, find_living, find_unfilled, fold_some
from icedb_log.jobs import SourceCommit
from icedb_log.keys import TABLE_NAME, TablePaths, log_name, parse_log_key
from icedb_log.log.codec import decode_log_file
from icedb_log.log.fold import newest_feed, union_schema
from icedb_log.log.reader import LogReader, naming_remedy
from icedb_log.model import FeedState, LogHeads, LogView
from icedb_log.store.object_store import StoredObject, list_all
from icedb_log.store.records import CasObject, parse_record
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import create_table, find_newest, read_table_config
from icedb_log.table.table_config import TableConfig, unite_columns

ViewState = Literal["pending", "active", "detached"]
"""``pending``: all commits are kept; ``active``: those that are neither skipped nor fed; ``detached``: none."""

MAX_CHAIN: Final = 8
"""Tables between an ordinary one and the last view of it, itself included."""
_NOTHING: Final = FeedState(0, ())


class Registration(BaseModel):
    """What a source knows of one of its views.

    Attributes:
        state: See :data:`ViewState`.
        skip: Names of the source's log files that were there before the view: they are not fed.
        backfill: Whether the view begins with the rows that its source has when this becomes active.
        base: Names of the log files that said which rows these are; none: there are none to begin with.
        base_files: How many data files these log files say to be live.
        token: Unique for each write, so that no ETag comes back.
        view: Name of the view; its key says it.
    """

    model_config = ConfigDict(frozen=True)

    format: Literal[1] = 1
    state: ViewState
    skip: tuple[str, ...] = ()
    backfill: bool = False
    base: tuple[str, ...] = ()
    base_files: int = 0
    token: str
    view: str = Field(exclude=True, default="")


def create_view(table: TableStore, config: TableConfig, *, clock: Clock) -> Registration:
    """Create a view: its configuration first, then its registration; commits of the source from then on feed it.

    With ``view_backfill`` it begins with the rows that the source has when the registration becomes active. A crash in
    between leaves a view without registration, which holds nothing up; the first feed registers it.

    Raises:
        NotFound: No such source.
        InvalidRequest: The table exists already, or would feed itself.
        Unavailable: The store did not answer, or others kept changing the registration.
        CommitOutcomeUnknown: No answer; create it again.
    """
    source = source_of(table, config)
    require_no_cycle(table, config)
    _renew_left_over(source, config, clock=clock)
    create_table(table, config)
    return register_view(source, table.name, clock=clock, is_new=True, backfill=config.has_backfill)


def register_view(
    source: TableStore, view: str, *, clock: Clock, is_new: bool = False, backfill: bool = False
) -> Registration:
    """Make sure that a source knows its view, and return what it knows. Idempotent.

    Args:
        source: The source.
        view: Name of the view; it exists.
        clock: For tokens.
        is_new: A detached view is attached, too: it is fed with what is committed from now on, and has no backfill, as
            it may have some of the rows.
        backfill: Whether a view that the source does not know begins with the rows that are there (``view_backfill``).

    Raises:
        NotFound: There is no source to register with.
        HaltError: The source's log cannot be read, and the view begins with its rows.
        Unavailable: The store did not answer, or others kept changing the registration.
    """

    def register(found: Registration | None) -> Registration:
        if found is not None and (found.state == "active" or (found.state == "detached" and not is_new)):
            return found
        if found is None or found.state == "detached":
            read_table_config(source)
            begins = found is None and backfill
            return Registration(state="pending", backfill=begins, token=clock.new_id(), view=view)
        # WARN: V3: read after the pending registration was there. The other way round: a commit lands after the
        # listing, is merged and vacuumed before any janitor knows of the view, and the view never sees its rows.
        if found.backfill:
            return _activate_backfill(source, view, clock=clock)
        skip = tuple(log_name(key) for key in list_appends(source))
        return Registration(state="active", skip=skip, token=clock.new_id(), view=view)

    return _record(source, view).update(register, gave_up=Unavailable, in_steps=True).state


def _activate_backfill(source: TableStore, view: str, *, clock: Clock) -> Registration:
    """Return the registration of a view that begins with the rows of its source.

    V3: what is skipped and what the view begins with come from one read of the log: an append is in one of them, or is
    fed.
    """
    log = Table.open(source, clock=clock).read_log()
    base = find_living(log.files)
    count = len(fold_some(log, base))
    return Registration(
        state="active",
        skip=tuple(find_appends(log.files)),
        backfill=True,
        base=base if count else (),
        base_files=count,
        token=clock.new_id(),
        view=view,
    )


def _renew_left_over(source: TableStore, config: TableConfig, *, clock: Clock) -> None:
    """Let the registration of a view that somebody has removed by hand be made anew: what it skips is out of date.

    ``pending``, which holds nothing up as long as there is no view, and not ``detached``: a creation that is cut off
    behind this is finished by the first feed.
    """
    view = config.name
    pending = Registration(state="pending", backfill=config.has_backfill, token=clock.new_id(), view=view)

    def renew(found: Registration | None) -> Registration:
        # Also one that is pending: whoever has listed the log for it, long ago, must not make it active any more.
        if found is None:
            raise NotFound(f"table {source.name}: the registration of {view!r} is gone")
        return found if is_view_there(source, view) else pending

    with contextlib.suppress(NotFound):  # there is none
        _record(source, view).update(renew, gave_up=Unavailable)


def detach_view(source: TableStore, view: str, *, clock: Clock) -> bool:
    """Stop feeding a view; it keeps its rows. Idempotent: returns whether that changed anything.

    A feed that is under way may still commit.

    Raises:
        NotFound: The source knows no such view.
        Unavailable: The store did not answer, or others kept changing the registration.
    """

    def detach(found: Registration | None) -> Registration:
        if found is None:
            raise NotFound(f"table {source.name} feeds no view {view!r}; see `icedb views {source.name}`")
        if found.state == "detached":
            return found
        return Registration(state="detached", token=clock.new_id(), view=view)

    return _record(source, view).update(detach, gave_up=Unavailable).is_new


def read_registration(source: TableStore, view: str) -> Registration | None:
    """Return what a source knows of a view; ``None`` if nothing. Raises CorruptLog, Unavailable."""
    return _record(source, view).read()


def list_registrations(source: TableStore) -> tuple[Registration, ...]:
    """Return what a source knows of its views, ascending by name. Raises CorruptLog, Unavailable."""
    found = (read_registration(source, name) for name in list_view_names(source))
    return tuple(each for each in found if each is not None)


def list_view_names(source: TableStore) -> tuple[str, ...]:
    """Return the names of all views that a source has ever known. One listing."""
    prefix = source.paths.numbered(1).views_prefix
    keys = (info.key for info in list_all(source.store, prefix).objects)
    names = (key.removeprefix(prefix).removesuffix(".json") for key in keys if key.endswith(".json"))
    return tuple(name for name in names if TABLE_NAME.fullmatch(name))


def find_unfed(files: LogFiles, registration: Registration, fed: Iterable[str]) -> tuple[str, ...]:
    """Return the names of the source's appends that a view has still to take, oldest first. Pure."""
    if registration.state == "detached":
        return ()
    return tuple(find_appends(files, taken={*registration.skip, *fed}))


def find_needed(files: LogFiles, registration: Registration, state: FeedState) -> frozenset[str]:
    """Return the names of the source's log files that must stay for a view, given what it has taken (V4). Pure."""
    if registration.state == "pending" and registration.backfill:
        # WARN: merges, too. The log is read, a merge that it has is folded and gets old, and goes before the
        # registration says that the view begins with it.
        return frozenset(log_name(file.key) for file in files)
    unfed = frozenset(find_unfed(files, registration, state.names))
    if not has_unfilled(registration, state):
        return unfed
    return unfed.union({log_name(file.key) for file in files}.intersection(registration.base))


def has_unfilled(registration: Registration, state: FeedState) -> bool:
    """Return whether a view has still to take data files of its backfill. Pure."""
    return any(True for _ in find_unfilled(state.backfilled, _count_base(registration)))


def _count_base(registration: Registration) -> int:
    return registration.base_files if registration.state == "active" else 0


def find_wanted(table: TableStore, log: LogView, *, read_view: Callable[[TablePaths], LogReader]) -> frozenset[str]:
    """Return the keys of a table's log files that must stay, because a view has not taken them (V4).

    Args:
        table: The table.
        log: Its log, read before this is called.
        read_view: Returns a reader of a view's log.

    Raises:
        Unavailable: The store did not answer.
    """
    wanted: set[str] = set()
    for name in list_view_names(table):
        try:
            registration = read_registration(table, name)
            if registration is None or not is_view_there(table, name):
                continue  # removed by hand: nobody will ever ask for them
            place = find_newest(sibling(table, name)).place
            state = newest_feed(file.log.feed for file in read_view(place.paths).heads.read().files)
        except HaltError:
            wanted.update(log_name(file.key) for file in log.files)  # unknown means keep
            continue
        wanted.update(find_needed(log.files, registration, state or _NOTHING))
    return frozenset(table.paths.named_log_key(name) for name in wanted)


def is_view_there(source: TableStore, view: str) -> bool:
    """Return whether a view of a source exists. Raises UnsupportedFormat, Unavailable."""
    config = find_newest(sibling(source, view)).config
    return config is not None and config.dropped is None and config.view_of == source.name


def sibling(table: TableStore, name: str) -> TableStore:
    """Return where the first table of another name in the same warehouse lies."""
    return TableStore(table.store, table.paths.sibling(name))


def source_of(view: TableStore, config: TableConfig) -> TableStore:
    """Return the source of a view. Raises InvalidRequest if the table is no view, UnsupportedFormat, Unavailable."""
    if config.view_of is None:
        raise InvalidRequest(f"table {view.name} is no view: batches are enqueued into it, nothing feeds it")
    return find_newest(sibling(view, config.view_of)).place


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
        config = read_table_config(source_of(table, config))


def list_appends(source: TableStore) -> tuple[str, ...]:
    """List the keys of a table's appends, ascending; seals may be among them."""
    keys = (info.key for info in list_all(source.store, source.paths.log_prefix).objects)
    return tuple(key for key in keys if not parse_log_key(key).is_merged)


def _record(source: TableStore, view: str) -> CasObject[Registration]:
    says = (
        "not a registration of a view ({why}); a person must restore it: until then the janitor deletes no log file of "
        "an append"
    )

    def decode(stored: StoredObject) -> Registration:
        return parse_record(Registration, stored, CorruptLog, says).model_copy(update={"view": view})

    return CasObject(
        source.store, source.paths.numbered(1).view_key(view), decode, lambda each: each.model_dump_json().encode()
    )


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
        refused_commits: Commits, and data files of the backfill, that its query could not take, since ever.
        backfill_files: Data files of its source that it begins with; 0: none, or all are taken.
        backfilled_files: Those of them that it has taken or refused.
    """

    view: str
    source: str
    state: str
    waiting_commits: int
    lag_ms: int
    refused_commits: int
    backfill_files: int = 0
    backfilled_files: int = 0


def read_append(table: TableStore, key: str, *, etag: str | None = None) -> SourceCommit:
    """Read a log file for what it appended, whatever was merged or removed since.

    V2: the data files are in the store as long as this log file is (J2, V4).

    Raises:
        NotFound: It is gone, whether or not a seal has its name since.
        PreconditionFailed: It is another one than that with this ETag.
        CorruptLog: It is damaged.
    """
    body = table.store.get(key, if_match=etag).body
    with naming_remedy(table.paths):
        log = decode_log_file(key, body)
    if log.is_seal:
        # WARN: a committer sleeps before it lets its fence go; its log file is merged and deleted; whoever takes the
        # fence finds nothing at the name of its intent, and puts a seal there (F1). No append is empty: it is gone.
        raise NotFound(f"{key}: a seal stands where it was")
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
    if has_unfilled(registration, state):
        return True
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
    total = _count_base(registration)
    left = sum(1 for _ in find_unfilled(state.backfilled, total))
    filling = (total, total - left) if left else (0, 0)
    return ViewLag(view.name, source.name, registration.state, len(unfed), lag_ms, refused, *filling)


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
        return read_view_lag(source.other(find_newest(sibling(source, name)).place.paths), source)
    except HaltError as error:
        on_halt(name, error)
        return ViewLag(name, source.name, "halted", 0, 0, 0)


def count_refused(view: Table) -> int:
    """Return how many commits a view has refused (V5)."""
    return len(list_all(view.store, view.paths.refused_prefix).objects)


def read_last_refusal(view: TableStore) -> str | None:
    """Return why a view refused the newest of the commits that it refused (V5); ``None`` if there is none."""
    refused = list_all(view.store, view.paths.refused_prefix).objects
    try:
        return str(orjson.loads(view.store.get(refused[-1].key).body)["reason"]) if refused else None
    except (NotFound, ValueError, TypeError, KeyError):  # removed by the operator meanwhile, or damaged
        return None


def read_source_schema(source: Table) -> Mapping[str, str]:
    """Return the columns that a view's query sees in the rows of a source now: logged and declared, with SQL types.

    Raises:
        HaltError: Its log cannot be read.
        Unavailable: The store did not answer.
    """
    return unite_source_schema(source.config, source.read_heads())


def unite_source_schema(config: TableConfig, heads: LogHeads) -> Mapping[str, str]:
    """Return the columns of a source, logged and declared, given the heads of its log."""
    return unite_columns(union_schema(heads.table, heads.files).effective, config)


def read_feed_state(log: LogHeads) -> FeedState:
    """Return what a view has taken, given its log (V1)."""
    return newest_feed(file.log.feed for file in log.files) or _NOTHING


def find_unrecorded(view: Table, state: FeedState) -> tuple[str, ...]:
    """Return the commits that the last feed refused and of which there is no record yet (V5)."""
    if not state.refused:
        return ()
    present = {info.key for info in list_all(view.store, view.paths.refused_prefix).objects}
    return tuple(name for name in state.refused if view.paths.refused_key(name) not in present)
