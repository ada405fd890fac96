"""A commit: fence, log, the caller's work, checks, PUT, release (rules F1 to F3, W1 to W3, S1, S2).

The one way in which flushes, appends, feeds, imports, merges, deletions, rewrites, removals and erasures write a log
file. Seals, strips and rebuilds write theirs by ways of their own: the fence, the vacuum, the rebuild.

The order is the point, and it is the order of the lines of a ``with`` block::

    with AppendCommit(table) as commit:     # F1: the fence is mine; F2: the log was read after that
        ...                                 # what has to be listed after the log; W1: the data files
        log = commit.build(Added(...))      # the invariants
        ...                                 # what has to be written before the commit
        commit.land(log)                    # F3: the intent; W3: the age of the work; the PUT; the fence let go
        ...                                 # what may happen only when the commit has landed

Whoever leaves the block by an error when a commit may be under way leaves the fence as a crash would, so that the next
owner settles it; if certainly nothing was sent, the fence is released.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import TracebackType
from typing import Final, Self

from icedb_log.clock import Clock
from icedb_log.commit.fence import Committed, FenceWatch, HeldFence, acquire_fence
from icedb_log.commit.invariants import (
    MAX_LOG_FILES,
    require_append,
    require_known_paths,
    require_promoted,
    require_schema_carried,
)
from icedb_log.commit.table import Table
from icedb_log.errors import CommitConflict, IceDBError, Overloaded, Unavailable
from icedb_log.keys import Role
from icedb_log.log.fold import union_schema
from icedb_log.log.widening import LoggedSchema, grow_schema, state_inexact
from icedb_log.model import EMPTY, FeedState, FileMarker, LogFile, LogHeads, LogView
from icedb_log.phases import phase
from icedb_log.store.object_store import limit_reads


class Stopwatch:
    """Guards rule W3: a data file that was written long ago is not committed any more."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wall_ms = clock.now_ms()
        self._monotonic_ms = clock.monotonic_ms()

    def require_within(self, limit_ms: int, *, table: str) -> None:
        """Raise Unavailable if more than ``limit_ms`` passed, by the wall clock or the monotonic one."""
        elapsed_ms = max(self._clock.now_ms() - self._wall_ms, self._clock.monotonic_ms() - self._monotonic_ms)
        if elapsed_ms > limit_ms:
            # W3: the orphan sweep may be about to delete these files; half the orphan age is the margin.
            raise Unavailable(
                f"table {table}: the data files were written over {elapsed_ms} ms, more than half the orphan age "
                f"({limit_ms} ms); not committed. Use smaller runs, or raise orphan_age_ms"
            )


class Commit(ABC):
    """One ownership of a fence, for at most one commit. Not thread-safe.

    Args:
        table: The table, as the run knows it.
        role: Which fence: ``ingest`` for what adds data files, ``merge`` for what exchanges them.

    Attributes:
        table: The same.
        commit_id: Of the commit: data files that are written for it bear it.
        fence: The fence, once it is entered.
        still_mine: Called while data files are written: raises if the work has become pointless.

    Raises:
        Fenced: On entering: the table was dropped and purged meanwhile.
        Unavailable: On entering: the store did not answer, or others kept taking the fence.
        HaltError: On entering: log or fence cannot be read.
    """

    fence: HeldFence
    still_mine: FenceWatch
    _has_files = False
    """Whether the data files were written before the fence was acquired."""

    def __init__(self, table: Table, role: Role) -> None:
        self.table: Final = table
        self.commit_id = ""
        self._role: Final[Role] = role
        self._may_be_under_way = False
        self._has_landed = False
        self._may_have_written = False

    def __enter__(self) -> Self:
        """Take the fence, then read the log."""
        self.table.check_alive()
        with phase("wait for the fence", role=self._role):
            self.fence = acquire_fence(self.table, self._role)
        # WARN: B1: after the fence. Before it: who is refused once and takes the fence back commits under an id that is
        # older than that of the owner in between, and a rebuild takes that one's files for the later, committed ones.
        self.commit_id = self.commit_id or self.table.clock.new_id()
        self.fence.announce_writing(self.commit_id)
        self.still_mine = FenceWatch(self.fence, check_alive=self.table.check_alive, clock=self.table.clock)
        try:
            with phase("read the log"):
                self._read_log()  # F2: only what is read after the fence is mine counts
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        self._stopwatch = Stopwatch(self.table.clock)
        self._may_have_written = not self._has_files
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Announce the commit, or let the fence go, unless a commit may be under way or another owner has it."""
        if self._has_landed:
            self.table.on_commit(self.table.name)
        if self._has_landed or self._may_be_under_way:
            return
        # WARN: B1: behind data files that nobody commits the fence goes on naming them: a rebuild takes what is older
        # than its last write for committed, and another flush commits the same batches.
        if error is None or (isinstance(error, IceDBError) and not self._may_have_written):
            self.fence.release()
        elif isinstance(error, (IceDBError, KeyboardInterrupt)):
            self.fence.release_keeping_writer()  # F6: nobody waits for a run that has ended

    @abstractmethod
    def _read_log(self) -> None:
        """Read the log that the work is planned from."""

    def _put(
        self,
        log: LogFile,
        *,
        last_check: Callable[[], None] | None = None,
        beside: HeldFence | None = None,
        on_landed: Callable[[], None] | None = None,
    ) -> Committed:
        """Commit a log file, and let the fence go. Raises as :meth:`HeldFence.commit`, then what ``on_landed`` does."""
        self._may_be_under_way = True
        with phase("commit"):
            committed = self.fence.commit(log, last_check=last_check or self._require_young_work, beside=beside)  # W3
        self._has_landed = True
        self._before_release()
        if on_landed is None or limit_reads(self.table.store, 2) < 2:  # noqa: PLR2004 - one of both waits anyway
            self.fence.release()
            if on_landed is not None:
                on_landed()
            return committed
        with ThreadPoolExecutor(1, "icedb-release") as pool:
            pool.submit(self.fence.release)
            on_landed()
        return committed

    def _before_release(self) -> None:  # noqa: B027 - most commits have nothing to say
        """Say in the fence what the next owner should know."""

    def _require_young_work(self) -> None:
        """Raise Unavailable if the orphan sweep may be about to delete what was written first (W3)."""
        self._stopwatch.require_within(self.table.config.orphan_age_ms // 2, table=self.table.name)


@dataclass(frozen=True, slots=True)
class Added:
    """What a commit adds to a table.

    Attributes:
        files: Live data files, under fresh names.
        schema: Columns of the table afterwards, with SQL types; ``None``: as they are.
        batch_ids: Batches that become live by it (I3).
        refused_ids: Batches that are refused by it (I5).
        contents: Of each batch what tells its content (I8).
        looked_up: Columns of which it is known, from live data files, that a wider type would change a value (S2).
        feed: What a view has taken of its source (V1).
    """

    files: tuple[FileMarker, ...] = ()
    schema: Mapping[str, str] | None = None
    batch_ids: tuple[str, ...] = ()
    refused_ids: tuple[str, ...] = ()
    contents: Mapping[str, str] = field(default_factory=lambda: EMPTY)
    looked_up: Iterable[str] = ()
    feed: FeedState | None = None


class AppendCommit(Commit):
    """A commit that only adds, under the fence of ``ingest``. The log is read as heads, or whole.

    Args:
        table: The table.
        reads_whole_log: Whether the work depends on existing data files.
        commit_id: Of data files that were written before; a fresh one if not given.

    Attributes:
        log: The log, as read under the fence.
    """

    log: LogHeads

    def __init__(self, table: Table, *, reads_whole_log: bool = False, commit_id: str = "") -> None:
        super().__init__(table, "ingest")
        self._reads_whole_log: Final = reads_whole_log
        self.commit_id = commit_id
        self._has_files = bool(commit_id)

    def _read_log(self) -> None:
        self.log = self.table.read_log() if self._reads_whole_log else self.table.read_heads()
        require_known_paths(self.table.config, self.log)

    def require_room(self) -> None:
        """Raise Overloaded if the log has as many files as appends may bring it to. Before the work that it saves."""
        count = len(self.log.files)
        if count >= MAX_LOG_FILES:
            raise Overloaded(
                f"table {self.table.name}: its log has {count} files and takes no more than {MAX_LOG_FILES}, so that "
                "every reader sees all of them: merges and the vacuum have to bring it down first"
            )

    @property
    def whole_log(self) -> LogView:
        """The log as read under the fence, if it was read whole."""
        if not isinstance(self.log, LogView):
            raise TypeError("only the heads of the log were read")
        return self.log

    @cached_property
    def known(self) -> LoggedSchema:
        """What the log says of the columns."""
        return union_schema(self.table.name, self.log.files)

    def build(self, added: Added, *, named: Collection[str] = (), time_ms: int | None = None) -> LogFile:
        """Build the log file of the commit, and check it.

        Args:
            added: What it adds.
            named: Data files that the log names; heads tell none, and names are then only compared with each other:
                those with fresh ids are unique (W1).
            time_ms: Of the commit, unix ms; now if not given. It stands in the key.

        Raises:
            Overloaded: The log has no room for it.
            SchemaConflict: The table cannot get these columns (S2).
            InvariantViolated: The commit would break the log; nothing was written.
        """
        self.require_room()
        table, known = self.table, self.known
        grown = known
        time_ms = max(table.clock.now_ms() if time_ms is None else time_ms, self._find_shown_ms())
        if added.schema is not None:
            # S2: after all commits that were read, by other clocks: what they made is narrow.
            since_ms = max((time_ms, *(file.log.time_ms + 1 for file in self.log.files)))
            after = self._leave_out_hidden(added.schema, added.files)
            grown = grow_schema(table.name, known, after=after, config=table.config, since_ms=since_ms)
        log = LogFile(
            time_ms=time_ms,
            schema=grown.logged,
            widened=grown.widened,
            inexact=state_inexact(grown, added.files, looked_up=added.looked_up),
            markers=added.files,
            commit_id=self.commit_id,
            batch_ids=added.batch_ids,
            refused_ids=added.refused_ids,
            contents=added.contents,
            feed=added.feed,
            change="append",
            promoted_count=len(table.config.promoted),
        )
        require_promoted(table.paths, table.config, log.schema, added.files)
        require_schema_carried(table.paths, log, known=known)
        require_append(table.paths, log, known=named)
        return log

    def _leave_out_hidden(self, after: Mapping[str, str], files: Sequence[FileMarker]) -> dict[str, str]:
        """Return a schema without the promoted columns that a live data file may lack (S4).

        The first commit of a table shows them all. Later ones do not know: they read heads.
        """
        config = self.table.config
        hidden = config.find_hidden(self.known.logged)
        fewest = min((marker.promoted_count for marker in files), default=len(config.promoted))
        if all(file.log.is_seal for file in self.log.files) and fewest >= config.count_promoted():
            hidden = {column: kind for column, kind in hidden.items() if not config.promoted[column]}
        return {column: kind for column, kind in after.items() if column not in hidden}

    def _find_shown_ms(self) -> int:
        """Return the earliest time of a commit that sorts behind the one that showed the promoted columns (S4).

        WARN: a commit says all columns. By a clock that is behind it would show them at a time at which data files are
        live that lack them, and that is the state that a reader of the past gets.
        """
        columns = self.table.config.promoted.keys() & self.known.logged.keys()
        first = (min(file.log.time_ms for file in self.log.files if column in file.log.schema) for column in columns)
        return max((time_ms + 1 for time_ms in first), default=0)

    def land(
        self,
        log: LogFile,
        *,
        last_check: Callable[[], None] | None = None,
        on_landed: Callable[[], None] | None = None,
    ) -> Committed:
        """Commit. Not idempotent.

        Args:
            log: What :meth:`build` has returned.
            last_check: Raises if the data files are too old (W3); not given: they were written within this block.
            on_landed: Called when the commit has certainly landed, while the fence is let go: neither waits for the
                other. What it raises is raised here.

        Raises:
            Fenced: Another owner took over; nothing was written to the log.
            CommitConflict: The commit certainly did not land; run again.
            CommitOutcomeUnknown: Nobody knows yet; the next run settles it.
            Unavailable: The store did not answer, or the work took too long (W3).
        """
        wider = log.widened.keys() - self.known.widened.keys() - self.table.config.declared.keys()
        if not wider:
            return self._put(log, last_check=last_check, on_landed=on_landed)
        # S2: a column becomes wider because it is proven that no value changes. The proof holds for the log as it was
        # read. Nobody can add to that, since this fence is held; a rewrite, or a merge by a query, can, and may write
        # larger integers. So the fence of merges is taken as well, what came meanwhile is looked at, and both fences
        # announce the commit: whoever acquires one of them settles it. That takes the fence from a merge at work.
        merging = acquire_fence(replace(self.table, patience_ms=0), "merge")  # F6: who holds a fence waits for none
        # WARN: S2: after the fence was acquired (F2). Before it: a rewrite commits integers beyond 2^53 between this
        # look and the commit, and they are rounded.
        try:
            self._require_proven(wider)
        except IceDBError:
            merging.release()
            raise
        committed = self._put(log, last_check=last_check, beside=merging)
        merging.release()
        if on_landed is not None:
            on_landed()
        return committed

    def _require_proven(self, columns: Collection[str]) -> None:
        heads = self.table.read_heads().files
        known = {file.key for file in self.log.files}
        # A commit of another writer says nothing of its values.
        is_silent = any(file.log.inexact is None and not file.log.is_seal for file in heads if file.key not in known)
        inexact = union_schema(self.table.name, heads).inexact
        for column in sorted(columns):
            if is_silent or inexact.get(column):
                raise CommitConflict(
                    f"table {self.table.name}: column {column!r} was about to become wider, and a merge has committed "
                    "since it was proven that no value changes by that: run again"
                )
