"""WatchSnapshots: who watches which tables, and the polls behind it, for handlers on the event loop. Never writes.

For each watched table one poll reads its log, however many watch it; without watchers nothing is read. It reads when a
commit is announced, and now and then without: each interval while announcements are not heard. What is new goes to each
watcher's notes: the newest state of each table, not a queue, so that a slow watcher costs the same as a fast one and
skips what it missed. A table that cannot be read keeps no other from being told. Messages take turns: some begin in
each round of the event loop, so that a commit to a table that thousands watch leaves calls their time.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
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
LOOKS_S: Final = 200
"""So many tables are looked at in a second, at most, while commits are not heard: a fifth of a core, and of what a
thousand watched tables would cost without this bound."""
MESSAGES_A_ROUND: Final = 16
"""So many messages begin in one round of the event loop: some two milliseconds of it."""
NAMES_A_ROUND: Final = 10
"""Of so many tables it is looked who may see them: each asks a thousand watchers if none of them may."""

_log = get_logger()


class Turns:
    """Gives watchers that have something to tell one turn each, in the order in which they came, some at a time."""

    def __init__(self) -> None:
        self._waiting: dict[Watcher, None] = {}
        self._giving: asyncio.Task[None] | None = None

    def ask(self, watcher: "Watcher") -> None:
        """Give a watcher a turn; one that waits for one already has one place."""
        self._waiting[watcher] = None
        if self._giving is None:
            self._giving = asyncio.ensure_future(self._give())

    def forget(self, watcher: "Watcher") -> None:
        """Give a watcher that is gone no turn."""
        self._waiting.pop(watcher, None)

    async def _give(self) -> None:
        while self._waiting:
            for watcher in tuple(islice(self._waiting, MESSAGES_A_ROUND)):
                del self._waiting[watcher]
                watcher.turn.set()
            await asyncio.sleep(0)
        self._giving = None


@dataclass(slots=True)
class _Note:
    """What a watcher is to be told of a table.

    Attributes:
        event: The newest state.
        told: The state that it was told of last; ``None``: of none.
    """

    event: pb.SnapshotEvent
    told: pb.SnapshotEvent | None


@dataclass(eq=False, slots=True)
class Watcher:
    """One who watches.

    Attributes:
        may_see: Whether it may be told of a table; asked for each message, because policies change.
        tables: What it watches; ``None``: all tables.
        turns: Where it asks for a turn.
        turn: Set when it may take a message.
    """

    may_see: Callable[[str], bool]
    tables: frozenset[str] | None
    turns: Turns
    turn: asyncio.Event = field(default_factory=asyncio.Event)
    _notes: dict[str, _Note] = field(default_factory=dict)
    _has_ended: bool = False

    def note(self, event: pb.SnapshotEvent, before: pb.SnapshotEvent | None) -> None:
        """Remember the newest state of a table until it is taken; one that it was told already is nothing new.

        Args:
            event: The state.
            before: The one that it was told of, if it has nothing to take; ``None``: the table is new to it.
        """
        table, known = event.table, self._notes.get(event.table)
        told = before if known is None else known.told
        if _is_news(event, told) and not (told is None and self.tables is None and _is_gone(event)):
            self._notes[table] = _Note(event, told)
            self.turns.ask(self)
        else:
            self._notes.pop(table, None)

    async def take(self) -> pb.SnapshotEvent:
        """Return the next message, as soon as there is one. Raises Unavailable: the server stops."""
        while True:
            await self.turn.wait()
            self.turn.clear()
            while self._notes:
                table = next(iter(self._notes))
                event = self._notes.pop(table).event
                if self.may_see(table):
                    if self._notes or self._has_ended:
                        self.turns.ask(self)
                    return event
            if self._has_ended:
                raise Unavailable("this server stops; watch again: another replica, or this one, will answer")

    def end(self) -> None:
        """Let :meth:`take` raise once everything noted is taken."""
        self._has_ended = True
        self.turns.ask(self)


@dataclass(eq=False, slots=True)
class _Poll:
    """The poll of one table: who wants it, and what it found last.

    Attributes:
        named_by: Watchers that have named it.
        is_for_all: Whether somebody who watches all tables may see it.
        woken: Set when something may have changed.
    """

    named_by: set[Watcher] = field(default_factory=set)
    is_for_all: bool = False
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
        self._looks_s: float = LOOKS_S
        # Half an interval: with a whole one every other poll would find what the one before has read.
        self._max_age_ms = parts.settings.snapshot_watch_interval_ms // 2
        self._turns = Turns()
        self._watchers: set[Watcher] = set()
        self._all_watchers: set[Watcher] = set()
        """Those who watch all tables."""
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
        watcher = Watcher(partial(guard.allows, identity, Verb.READ), tables or None, self._turns)
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
        if watcher.tables is None:
            self._begin_all(watcher)
        else:
            for table in filter(watcher.may_see, watcher.tables):
                poll = self._poll_of(table)
                poll.named_by.add(watcher)
                if poll.event is not None:
                    watcher.note(poll.event, None)
        self._show()

    def remove(self, watcher: Watcher) -> None:
        """End watching. A table that nobody watches any more is not polled any more."""
        if watcher not in self._watchers:
            return
        self._watchers.discard(watcher)
        self._all_watchers.discard(watcher)
        self._turns.forget(watcher)
        for table in watcher.tables or ():
            if table in self._polls:  # else it may not be seen
                self._polls[table].named_by.discard(watcher)
                self._end_unwanted(table)
        if self._names is not None and not self._all_watchers:
            self._names.cancel()
            self._names = None
            for table, poll in tuple(self._polls.items()):
                poll.is_for_all = False
                self._end_unwanted(table)
        self._show()

    def wake(self, table: str) -> None:
        """Look at a table now: a commit to it was announced. Whoever watches all tables may not know it yet."""
        if table in self._polls:
            self._polls[table].woken.set()
        elif TABLE_NAME.fullmatch(table):
            self._show_to_all(table)
            self._show()

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
            self.remove(watcher)
            watcher.end()

    def _begin_all(self, watcher: Watcher) -> None:
        self._all_watchers.add(watcher)
        for table, poll in self._polls.items():
            if watcher.may_see(table) and not _has_gone(poll):
                poll.is_for_all = True
                if poll.event is not None:
                    watcher.note(poll.event, None)
        if self._names is not None:
            self._names.cancel()  # the next list is for this one now
        self._names = asyncio.ensure_future(self._poll_names())

    def _poll_of(self, table: str) -> _Poll:
        poll = self._polls.get(table)
        if poll is None:
            poll = self._polls[table] = _Poll()
            poll.task = asyncio.ensure_future(self._poll_table(table, poll))
        return poll

    def _end_unwanted(self, table: str) -> None:
        poll = self._polls[table]
        if not poll.named_by and not poll.is_for_all:
            del self._polls[table]
            if poll.task is not None:
                poll.task.cancel()

    def _show_to_all(self, table: str) -> None:
        """Let those who watch all tables hear of one that some of them may see."""
        if any(watcher.may_see(table) for watcher in self._all_watchers):
            poll = self._poll_of(table)
            if poll.is_for_all or _has_gone(poll):
                return
            poll.is_for_all = True
            if poll.event is not None:
                self._tell_all(poll.event, None)
        elif table in self._polls:
            self._polls[table].is_for_all = False
            self._end_unwanted(table)

    def _tell_all(self, event: pb.SnapshotEvent, before: pb.SnapshotEvent | None) -> None:
        for watcher in self._all_watchers:
            if watcher.may_see(event.table):
                watcher.note(event, before)

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
            if event is not None and _is_news(event, poll.event):
                before, poll.event = poll.event, event
                for watcher in poll.named_by:
                    watcher.note(event, before)
                if poll.is_for_all:
                    self._tell_all(event, before)
                if _is_gone(event):
                    poll.is_for_all = False
                    self._end_unwanted(table)  # who named it waits for it
                self._show()
            is_well = poll.event is not None and not poll.failures and not poll.event.problem
            is_woken = await self._rest(poll.woken, self._interval_s, may_idle=is_well)

    async def _rest(self, woken: asyncio.Event, least_s: float, *, may_idle: bool) -> bool:
        """Wait for the next look: an interval, and while commits are heard, until one is; return whether one was.

        A table with many commits is read no more often than without announcements.
        """
        await asyncio.sleep(least_s)
        pause_s = self._idle_interval_s if self._hears_commits and may_idle else len(self._polls) / self._looks_s
        if pause_s > least_s:
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s - least_s):
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
            known = poll.event
            if known is not None and (known.snapshot_id, known.problem) == (state.snapshot.snapshot_id, ""):
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
                for start in range(0, len(names), NAMES_A_ROUND):
                    for table in names[start : start + NAMES_A_ROUND]:
                        self._show_to_all(table)
                    await asyncio.sleep(0)
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


def _is_news(event: pb.SnapshotEvent, told: pb.SnapshotEvent | None) -> bool:
    """Whether a message says what another one about the table did not."""
    return told is None or (event.snapshot_id, event.problem) != (told.snapshot_id, told.problem)


def _is_gone(event: pb.SnapshotEvent) -> bool:
    return not event.HasField("snapshot_id") and not event.HasField("problem")


def _has_gone(poll: _Poll) -> bool:
    return poll.event is not None and _is_gone(poll.event)
