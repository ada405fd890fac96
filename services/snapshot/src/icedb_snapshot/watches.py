"""WatchSnapshots: who watches which tables, and the polls behind it, for handlers on the event loop. Never writes.

For each watched table one poll reads its log on a beat, however many watch it; without watchers nothing is read. What
is new goes to each watcher's notes: the newest state of each table, not a queue, so that a slow watcher costs the
same as a fast one and skips what it missed. A table that cannot be read keeps no other from being told.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Protocol

import grpc
from icedb_log.errors import HaltError, IceDBError, InvalidRequest, NotFound, Overloaded, Unavailable
from icedb_log.keys import check_table_name
from icedb_log.serving.table_cache import TableState
from icedb_log.table.drop_mark import describe_missing
from icedb_log.units import SECOND_MS
from icedb_proto import snapshot_pb2 as pb
from icedb_service.access.access_file import Identity, Verb
from icedb_service.logs import get_logger
from icedb_service.readers import TableNames

from icedb_snapshot.server import ServiceParts

PATIENT_POLLS: Final = 3
"""A store that does not answer is a problem of a table when so many polls in a row got none."""
NAMES_EVERY_POLLS: Final = 5
"""Who watches all tables hears of a new one after so many intervals."""

ReadTable = Callable[[str, int], Awaitable[TableState]]
"""Takes the name of a table, and how old the state may be, milliseconds."""


class OnChange(Protocol):
    """Is told how many watch."""

    def __call__(self, *, watchers: int, tables: int) -> None:
        """Take note."""
        ...


ReadNames = Callable[[], Awaitable[tuple[str, ...]]]

_log = get_logger()


@dataclass(eq=False, slots=True)
class Watcher:
    """One who watches.

    Attributes:
        may_see: Whether it may be told of a table; asked for each message, because policies change.
        tables: What it watches; ``None``: all tables.
    """

    may_see: Callable[[str], bool]
    tables: frozenset[str] | None
    _notes: dict[str, pb.SnapshotEvent] = field(default_factory=dict)
    _told: dict[str, tuple[str, str]] = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _ended: bool = False

    def note(self, event: pb.SnapshotEvent) -> None:
        """Remember the newest state of a table until it is taken; one that it was told already is nothing new."""
        table, told = event.table, self._told.get(event.table)
        if told == _identity(event) or (told is None and self.tables is None and _is_gone(event)):
            self._notes.pop(table, None)
            return
        self._notes[table] = event
        self._changed.set()

    async def take(self) -> pb.SnapshotEvent:
        """Return the next message, as soon as there is one. Raises Unavailable: the server stops."""
        while True:
            while self._notes:
                table = next(iter(self._notes))
                event = self._notes.pop(table)
                if not self.may_see(table):
                    continue
                self._told[table] = _identity(event)
                if self.tables is None and _is_gone(event):
                    del self._told[table]  # tables come and go
                return event
            if self._ended:
                raise Unavailable("this server stops; watch again: another replica, or this one, will answer")
            self._changed.clear()
            await self._changed.wait()

    def end(self) -> None:
        """Let :meth:`take` raise once everything noted is taken."""
        self._ended = True
        self._changed.set()


@dataclass(eq=False, slots=True)
class _Poll:
    """The poll of one table: who wants it, and what it found last."""

    watchers: set[Watcher] = field(default_factory=set)
    event: pb.SnapshotEvent | None = None
    failures: int = 0
    task: asyncio.Task[None] | None = None


class Watches:
    """Everybody who watches. Use it from one event loop.

    Args:
        read_table: Reads a table, shared with other callers.
        read_names: Lists the tables that are there.
        interval_ms: Time between two polls of a table.
        max_watchers: Most watchers at once.
        max_polls: Reads of logs at once: watchers must not take all threads from calls.
        describe: Makes the message about a state; may take a while.
        on_change: Told how many watch how many tables, when that changes.
    """

    def __init__(
        self,
        *,
        read_table: ReadTable,
        read_names: ReadNames,
        interval_ms: int,
        max_watchers: int,
        max_polls: int,
        describe: Callable[[TableState], Awaitable[pb.SnapshotEvent]],
        on_change: OnChange,
    ) -> None:
        self._read_table = read_table
        self._read_names = read_names
        self._interval_s = interval_ms / SECOND_MS
        # Half an interval: with a whole one every other poll would find what the one before has read.
        self._max_age_ms = interval_ms // 2
        self._max_watchers = max_watchers
        self._describe = describe
        self._on_change = on_change
        self._watchers: set[Watcher] = set()
        self._polls: dict[str, _Poll] = {}
        self._names: asyncio.Task[None] | None = None
        self._room = asyncio.Semaphore(max_polls)
        self._has_ended = False

    @property
    def watcher_count(self) -> int:
        """How many watch now."""
        return len(self._watchers)

    @property
    def table_count(self) -> int:
        """How many tables are polled now."""
        return len(self._polls)

    def add(self, watcher: Watcher) -> None:
        """Begin to watch: the first message about each table is there as soon as its state is known.

        Raises:
            Overloaded: Too many watch already.
            Unavailable: The server stops.
        """
        if self._has_ended:
            raise Unavailable("this server stops; watch at another replica")
        if len(self._watchers) >= self._max_watchers:
            raise Overloaded(
                f"{len(self._watchers)} watch already, the most that this server takes (ICEDB_SNAPSHOT_MAX_WATCHERS); "
                "watch at another replica, or ask for snapshots now and then"
            )
        self._watchers.add(watcher)
        self._show()
        if watcher.tables is not None:
            for table in watcher.tables:
                self._join(table, watcher)
            return
        for table in self._polls:
            self._join(table, watcher)
        if self._names is not None:
            self._names.cancel()  # the next list is for this one now
        self._names = asyncio.ensure_future(self._poll_names())

    def remove(self, watcher: Watcher) -> None:
        """End watching. A table that nobody watches any more is not polled any more."""
        self._watchers.discard(watcher)
        for table in list(self._polls):
            self._leave(table, watcher)
        if self._names is not None and not any(each.tables is None for each in self._watchers):
            self._names.cancel()
            self._names = None
        self._show()

    def end(self) -> None:
        """End all watchers and polls, for good."""
        self._has_ended = True
        for watcher in tuple(self._watchers):
            watcher.end()
            self.remove(watcher)

    def _join(self, table: str, watcher: Watcher) -> None:
        if not watcher.may_see(table):
            return
        poll = self._polls.get(table)
        if poll is None:
            poll = self._polls[table] = _Poll()
            poll.task = asyncio.ensure_future(self._poll_table(table, poll))
            self._show()
        poll.watchers.add(watcher)
        if poll.event is not None:
            watcher.note(poll.event)

    def _leave(self, table: str, watcher: Watcher) -> None:
        poll = self._polls[table]
        poll.watchers.discard(watcher)
        if not poll.watchers:
            del self._polls[table]
            if poll.task is not None:
                poll.task.cancel()
            self._show()

    def _show(self) -> None:
        self._on_change(watchers=len(self._watchers), tables=len(self._polls))

    async def _poll_table(self, table: str, poll: _Poll) -> None:
        while True:
            async with self._room:
                event = await self._look(table, poll)
            if event is not None and (poll.event is None or _identity(event) != _identity(poll.event)):
                poll.event = event
                for watcher in tuple(poll.watchers):
                    watcher.note(event)
                if _is_gone(event):
                    self._let_go(table, poll)
            await asyncio.sleep(self._interval_s)

    def _let_go(self, table: str, poll: _Poll) -> None:
        """Who watches all tables does not wait for one that is gone; who named it does."""
        for watcher in tuple(poll.watchers):
            if watcher.tables is None:
                self._leave(table, watcher)

    async def _look(self, table: str, poll: _Poll) -> pb.SnapshotEvent | None:
        """Return the message about a table's state now; ``None``: nothing new, or nobody knows."""
        try:
            # The first message has whatever was committed before the watch began, if nobody watched by then.
            state = await self._read_table(table, 0 if poll.event is None else self._max_age_ms)
            poll.failures = 0
            if poll.event is not None and _identity(poll.event) == (state.snapshot.snapshot_id, ""):
                return None
            return await self._describe(state)
        except IceDBError as error:
            return _tell_error(table, poll, error)
        except Exception:  # noqa: BLE001 - operators see through it: the other watchers go on
            _log.exception("watch_failed", table=table)
            return _tell_problem(table, poll, Unavailable(f"table {table}: the service failed; its log has the reason"))

    async def _poll_names(self) -> None:
        while True:
            try:
                names = await self._read_names()
            except IceDBError as error:
                _log.warning(
                    "tables_not_listed",
                    error=type(error).__name__,
                    reason=str(error),
                    mitigation="watchers hear of new tables later",
                )
            else:
                for watcher in self._watchers:
                    if watcher.tables is None:
                        for table in names:
                            self._join(table, watcher)
            await asyncio.sleep(self._interval_s * NAMES_EVERY_POLLS)


def _identity(event: pb.SnapshotEvent) -> tuple[str, str]:
    """Return what makes two messages about a table the same."""
    return event.snapshot_id, event.problem


def _is_gone(event: pb.SnapshotEvent) -> bool:
    return not event.HasField("snapshot_id") and not event.HasField("problem")


def _tell_error(table: str, poll: _Poll, error: IceDBError) -> pb.SnapshotEvent | None:
    if isinstance(error, NotFound):
        poll.failures = 0
        return pb.SnapshotEvent(table=table)
    if not isinstance(error, HaltError):
        poll.failures += 1
        if poll.event is not None and poll.failures < PATIENT_POLLS:
            return None
    return _tell_problem(table, poll, error)


def _tell_problem(table: str, poll: _Poll, error: IceDBError) -> pb.SnapshotEvent | None:
    """Return the message about an error; ``None``: the same kind of error was told, in other words maybe."""
    kind = f"{type(error).__name__}: "
    if poll.event is not None and poll.event.problem.startswith(kind):
        return None
    return pb.SnapshotEvent(table=table, problem=f"{kind}{error}")


MAX_NAMED_TABLES: Final = 1000


class WatchCalls:
    """Answers WatchSnapshots.

    Args:
        parts: What handlers share.
        names: Which tables there are.
    """

    def __init__(self, parts: ServiceParts, names: TableNames) -> None:
        self._parts = parts
        self._access = parts.access
        settings = parts.settings
        self.watches: Final = Watches(
            read_table=lambda table, max_age_ms: parts.reads.read(table, max_staleness_ms=max_age_ms),
            read_names=names.read,
            interval_ms=settings.snapshot_watch_interval_ms,
            max_watchers=settings.snapshot_max_watchers,
            max_polls=max(1, settings.snapshot_threads // 2),
            describe=self._describe,
            on_change=parts.metrics.show_watchers,
        )

    def methods(self) -> dict[str, Any]:
        """Return the handlers by method."""
        return {
            "WatchSnapshots": grpc.unary_stream_rpc_method_handler(
                self.watch,
                request_deserializer=pb.WatchSnapshotsRequest.FromString,
                response_serializer=pb.SnapshotEvent.SerializeToString,
            ),
        }

    def end(self) -> None:
        """End all streams with UNAVAILABLE, for good."""
        self.watches.end()

    async def watch(self, request: pb.WatchSnapshotsRequest, context: Any) -> AsyncIterator[pb.SnapshotEvent]:
        """Send the state of each table, and then each change, until the caller goes or the server stops.

        Raises:
            IceDBError: Whatever is wrong; the interceptor turns it into a status code.
        """
        identity = self._allow(request, context)
        tables = frozenset(check_table_name(table) for table in request.tables)
        watcher = Watcher(partial(self._access.guard.allows, identity, Verb.READ), tables or None)
        self.watches.add(watcher)
        # Also where the stream is given up while a message is on its way, and nothing is raised in here.
        context.add_done_callback(lambda _: self.watches.remove(watcher))
        try:
            told: set[str] = set()
            while True:
                event = await watcher.take()
                if event.table in tables - told and not event.HasField("snapshot_id") and not event.HasField("problem"):
                    raise NotFound(describe_missing(event.table))
                told.add(event.table)
                self._parts.metrics.observe_event()
                yield event
        finally:
            self.watches.remove(watcher)

    def _allow(self, request: pb.WatchSnapshotsRequest, context: Any) -> Identity:
        identity = self._access.identify(context)
        if len(request.tables) > MAX_NAMED_TABLES:
            raise InvalidRequest(
                f"{len(request.tables)} tables are more than {MAX_NAMED_TABLES}: name none to watch all"
            )
        for table in request.tables:
            self._access.guard.require(identity, Verb.READ, table)
        return identity

    async def _describe(self, state: TableState) -> pb.SnapshotEvent:
        return await self._parts.reads.work.run_compute(partial(describe_event, state))


def describe_event(state: TableState) -> pb.SnapshotEvent:
    """Return the message about a table's newest state. Pure."""
    snapshot = state.snapshot
    return pb.SnapshotEvent(
        table=state.view.table,
        snapshot_id=snapshot.snapshot_id,
        file_count=len(snapshot.live),
        size_bytes=snapshot.size_bytes,
        row_count=snapshot.row_count,
        last_commit_ms=snapshot.last_commit_ms or None,
    )
