"""WatchSnapshots: who watches which tables, and the polls behind it, for handlers on the event loop. Never writes.

For each watched table one poll reads its log, however many watch it; without watchers nothing is read. It reads when a
commit is announced, and now and then without: each interval while announcements are not heard. What is new goes to each
watcher's notes: the newest state of each table, not a queue, so that a slow watcher costs the same as a fast one and
skips what it missed. A table that cannot be read keeps no other from being told.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NoReturn

from icedb_log.errors import HaltError, IceDBError, InvalidRequest, NotFound, Overloaded, Unavailable
from icedb_log.keys import TABLE_NAME, check_table_name
from icedb_log.serving.table_cache import TableState
from icedb_log.table.table_config import table_not_found
from icedb_log.units import SECOND_MS
from icedb_proto import snapshot_pb2 as pb
from icedb_service.access.access_file import Verb
from icedb_service.access.guard import Places
from icedb_service.announcements import CommitListener
from icedb_service.logs import get_logger

from icedb_snapshot.requests import ServiceParts

PATIENT_POLLS: Final = 3
"""A store that does not answer is a problem of a table when so many polls in a row got none."""
NAMES_EVERY_POLLS: Final = 5
"""Who watches all tables hears of a new one after so many intervals."""
MAX_NAMED_TABLES: Final = 1000

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
    _has_ended: bool = False

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
                if self.tables is None and _is_gone(event):
                    self._told.pop(table, None)  # tables come and go
                else:
                    self._told[table] = _identity(event)
                return event
            if self._has_ended:
                raise Unavailable("this server stops; watch again: another replica, or this one, will answer")
            self._changed.clear()
            await self._changed.wait()

    def end(self) -> None:
        """Let :meth:`take` raise once everything noted is taken."""
        self._has_ended = True
        self._changed.set()


@dataclass(eq=False, slots=True)
class _Poll:
    """The poll of one table: who wants it, and what it found last.

    Attributes:
        woken: Set when something may have changed.
    """

    watchers: set[Watcher] = field(default_factory=set)
    event: pb.SnapshotEvent | None = None
    failures: int = 0
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class WatchCalls:
    """Answers WatchSnapshots. Knows everybody who watches. Use it from one event loop.

    Args:
        parts: What handlers share.
        listener: Hears commits, from the first watcher on.
    """

    def __init__(self, parts: ServiceParts, listener: CommitListener) -> None:
        self._parts = parts
        self._listener = listener
        self._listening: asyncio.Task[NoReturn] | None = None
        self._interval_s = parts.settings.snapshot_watch_interval_ms / SECOND_MS
        self._idle_interval_s = parts.settings.snapshot_watch_idle_interval_ms / SECOND_MS
        self._hears_commits = False
        # Half an interval: with a whole one every other poll would find what the one before has read.
        self._max_age_ms = parts.settings.snapshot_watch_interval_ms // 2
        self._watchers: set[Watcher] = set()
        self._polls: dict[str, _Poll] = {}
        self._names: asyncio.Task[None] | None = None
        self._names_woken = asyncio.Event()
        # Half of all threads at most: watchers must not take them all from calls.
        self._room = asyncio.Semaphore(max(1, parts.settings.read_threads // 2))
        self._has_ended = False
        size = parts.settings.snapshot_max_watchers
        self._places = Places("watchers", setting="ICEDB_SNAPSHOT_MAX_WATCHERS", size=size)

    async def watch_snapshots(self, request: pb.WatchSnapshotsRequest, context: Any) -> AsyncIterator[pb.SnapshotEvent]:
        """Send the state of each table, and then each change, until the caller goes or the server stops.

        Raises:
            IceDBError: Whatever is wrong; the interceptor turns it into a status code.
        """
        guard, identity = self._parts.access.guard, self._parts.access.identify(context)
        if len(request.tables) > MAX_NAMED_TABLES:
            raise InvalidRequest(
                f"{len(request.tables)} tables are more than {MAX_NAMED_TABLES}: name none to watch all"
            )
        for table in request.tables:
            guard.require(identity, Verb.READ, table)
        tables = frozenset(check_table_name(table) for table in request.tables)
        watcher = Watcher(partial(guard.allows, identity, Verb.READ), tables or None)
        # Also where the stream is given up while a message is on its way, and nothing is raised in here.
        release = guard.hold(identity, self._places)
        context.add_done_callback(lambda _: release())
        self.add(watcher)
        context.add_done_callback(lambda _: self.remove(watcher))
        try:
            told: set[str] = set()
            while True:
                event = await watcher.take()
                if event.table in tables - told and _is_gone(event):
                    raise table_not_found(event.table)
                told.add(event.table)
                self._parts.metrics.observe_event()
                yield event
        finally:
            self.remove(watcher)

    def add(self, watcher: Watcher) -> None:
        """Begin to watch: the first message about each table is there as soon as its state is known.

        Raises:
            Overloaded: Too many watch already.
            Unavailable: The server stops.
        """
        if self._has_ended:
            raise Unavailable("this server stops; watch at another replica")
        if len(self._watchers) >= self._parts.settings.snapshot_max_watchers:
            raise Overloaded(
                f"{len(self._watchers)} watch already, the most that this server takes (ICEDB_SNAPSHOT_MAX_WATCHERS); "
                "watch at another replica, or ask for snapshots now and then"
            )
        if self._listening is None:
            self._listening = asyncio.ensure_future(self._listener.run(self.wake, self.show_heard))
        self._watchers.add(watcher)
        for table in tuple(self._polls) if watcher.tables is None else watcher.tables:
            self._join(table, watcher)
        if watcher.tables is None:
            if self._names is not None:
                self._names.cancel()  # the next list is for this one now
            self._names = asyncio.ensure_future(self._poll_names())
        self._show()

    def remove(self, watcher: Watcher) -> None:
        """End watching. A table that nobody watches any more is not polled any more."""
        self._watchers.discard(watcher)
        for table in tuple(self._polls):
            self._leave(table, watcher)
        if self._names is not None and not any(each.tables is None for each in self._watchers):
            self._names.cancel()
            self._names = None
        self._show()

    def wake(self, table: str) -> None:
        """Look at a table now: a commit to it was announced. Whoever watches all tables may not know it yet."""
        if table not in self._polls and TABLE_NAME.fullmatch(table):
            for watcher in self._watchers:
                if watcher.tables is None:
                    self._join(table, watcher)
            self._show()
        elif table in self._polls:
            self._polls[table].woken.set()

    def show_heard(self, hears_commits: bool) -> None:  # noqa: FBT001 - a callback with one meaning
        """Go by announcements, or without, from now on; and look at everything once: some may have been missed."""
        self._hears_commits = hears_commits
        self._parts.metrics.show_heard(hears_commits)
        self._names_woken.set()
        for poll in self._polls.values():
            poll.woken.set()

    def end(self) -> None:
        """End all streams with UNAVAILABLE, and their polls, for good."""
        self._has_ended = True
        if self._listening is not None:
            self._listening.cancel()
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

    def _show(self) -> None:
        self._parts.metrics.show_watchers(watchers=len(self._watchers), tables=len(self._polls))

    async def _poll_table(self, table: str, poll: _Poll) -> None:
        is_woken: bool | None = None
        while True:
            async with self._room:
                poll.woken.clear()  # before the store is read: what is announced from here on may not be in the answer
                event = await self._look(table, poll, is_woken=bool(is_woken))
            if is_woken is not None:
                self._parts.metrics.observe_watch_look(is_announced=is_woken)
            if event is not None and (poll.event is None or _identity(event) != _identity(poll.event)):
                poll.event = event
                for watcher in tuple(poll.watchers):
                    watcher.note(event)
                    if _is_gone(event) and watcher.tables is None:
                        self._leave(table, watcher)  # who named it waits for it
                self._show()
            is_well = poll.event is not None and not poll.failures and not poll.event.problem
            is_woken = await self._rest(poll.woken, self._interval_s, may_idle=is_well)

    async def _rest(self, woken: asyncio.Event, least_s: float, *, may_idle: bool) -> bool:
        """Wait for the next look: an interval, and while commits are heard, until one is; return whether one was.

        A table with many commits is read no more often than without announcements.
        """
        await asyncio.sleep(least_s)
        if self._hears_commits and may_idle:
            with suppress(TimeoutError):
                async with asyncio.timeout(max(self._idle_interval_s - least_s, 0)):
                    await woken.wait()
        return woken.is_set()

    async def _look(self, table: str, poll: _Poll, *, is_woken: bool) -> pb.SnapshotEvent | None:
        """Return the message about a table's state now; ``None``: nothing new, or nobody knows."""
        # The first message has whatever was committed before the watch began, if nobody watched by then. What another
        # caller has read since may be older than the commit that was announced.
        max_staleness_ms = 0 if poll.event is None or is_woken else self._max_age_ms
        try:
            state = await self._parts.reads.read(table, max_staleness_ms=max_staleness_ms)
            poll.failures = 0
            if poll.event is not None and _identity(poll.event) == (state.snapshot.snapshot_id, ""):
                return None
            return await self._parts.reads.work.run_compute(partial(describe_event, table, state))
        except NotFound:
            poll.failures = 0
            return pb.SnapshotEvent(table=table)
        except IceDBError as failure:
            error = failure
            if not isinstance(error, HaltError):
                poll.failures += 1
                if poll.event is not None and poll.failures < PATIENT_POLLS:
                    return None
        except Exception:  # noqa: BLE001 - operators see through it: the other watchers go on
            _log.exception("watch_failed", table=table)
            error = Unavailable(f"table {table}: the service failed; its log has the reason")
        kind = f"{type(error).__name__}: "
        if poll.event is not None and poll.event.problem.startswith(kind):
            return None  # it was told, in other words maybe
        return pb.SnapshotEvent(table=table, problem=f"{kind}{error}")

    async def _poll_names(self) -> None:
        while True:
            self._names_woken.clear()
            try:
                names = await self._parts.names.read()
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
                self._show()
            await self._rest(self._names_woken, self._interval_s * NAMES_EVERY_POLLS, may_idle=True)


def describe_event(table: str, state: TableState) -> pb.SnapshotEvent:
    """Return the message about a table's newest state. Pure."""
    snapshot = state.snapshot
    return pb.SnapshotEvent(
        table=table,
        snapshot_id=snapshot.snapshot_id,
        file_count=len(snapshot.live),
        size_bytes=snapshot.size_bytes,
        row_count=snapshot.row_count,
        last_commit_ms=snapshot.last_commit_ms or None,
    )


def _identity(event: pb.SnapshotEvent) -> tuple[str, str]:
    """Return what makes two messages about a table the same."""
    return event.snapshot_id, event.problem


def _is_gone(event: pb.SnapshotEvent) -> bool:
    return not event.HasField("snapshot_id") and not event.HasField("problem")
