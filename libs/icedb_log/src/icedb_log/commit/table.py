"""One table as a run opened it: its place, its configuration, how its log is read, the owner of the run.

Every operation on a table takes one of these. It is opened anew for each run, since the run goes by the configuration
that it read at its beginning, in the place where the table lay then (T4); the reader, which keeps what
it has parsed of the log, is handed from one to the next.
"""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final, Literal, Self

from icedb_log.clock import Clock, SystemClock
from icedb_log.jobs import CheckAlive, never_stop
from icedb_log.keys import Role, TablePaths
from icedb_log.log.reader import LogReader
from icedb_log.model import LogHeads, LogView
from icedb_log.store.object_store import ObjectStore
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import read_table_config
from icedb_log.table.table_config import TableConfig
from icedb_log.units import SECOND_MS

PATIENCE_MS: Final = 30 * SECOND_MS
"""How long a run waits for another owner before it takes the fence (F6)."""

_PROCESS: Final = SystemClock().new_id()[-6:]
"""Random digits of this process, and of those forked from it, which differ in their PID. Two containers of one host
name run under the same PID as a rule."""

PreviousHolder = Literal["free", "abandoned", "working"]
"""Who had a fence before: ``free``, nobody, or an owner that released it; ``abandoned``, one whose claim has run out;
``working``, one that had not finished."""


@dataclass(frozen=True, slots=True)
class Acquired:
    """How a run came by a fence.

    Attributes:
        role: Of the fence.
        owner: The previous owner; empty: none.
        previous_holder: In which state that one left it: all but ``free`` are takeovers.
        waited_ms: How long the run waited for others (F6).
    """

    role: Role
    owner: str
    previous_holder: PreviousHolder
    waited_ms: int


def name_owner(component: str) -> str:
    """Return how a process says who works: ``ingest@host:123-9f3c0a``, the same at each call, and of no other process.

    Whoever runs several at once adds to it: nobody waits for one of his own name (F6).
    """
    return f"{component}@{socket.gethostname()}:{os.getpid()}-{_PROCESS}"


def ignore_fence(acquired: Acquired) -> None:
    """Take no note of how a fence was acquired."""


def ignore_commit(table: str) -> None:
    """Take no note of a commit."""


@dataclass(frozen=True, slots=True)
class Table(TableStore):
    """A table, and the owner that works on it. Holds no open resources; may be copied and discarded.

    Attributes:
        store: The object store.
        paths: Keys of the table.
        clock: This host's clock.
        config: The configuration, as it was read when the table was opened.
        reader: Reads the log, and keeps what it has parsed.
        owner: Name of the process, in the fence object and for people.
        check_alive: Raises if the work should stop (a lost lock, a worker that is told to end). Saves work only: what
            keeps a run that has lost its fence from committing is the commit itself (F3).
        patience_ms: How long a run waits for another owner, at most (F6); 0 takes the fence at once.
        on_fence: Told of each fence that a run has acquired.
        on_commit: Told the name of the table after each commit that has landed; raises nothing.
    """

    store: ObjectStore
    paths: TablePaths
    clock: Clock
    config: TableConfig
    reader: LogReader = field(compare=False)
    owner: str = ""
    check_alive: CheckAlive = field(default=never_stop, compare=False)
    patience_ms: int = PATIENCE_MS
    on_fence: Callable[[Acquired], None] = field(default=ignore_fence, compare=False)
    on_commit: Callable[[str], None] = field(default=ignore_commit, compare=False)

    @classmethod
    def open(cls, table: TableStore, *, clock: Clock, owner: str = "", reader: LogReader | None = None) -> Self:
        """Read a table's configuration: one request.

        Args:
            table: The table.
            clock: This host's clock.
            owner: Name of the process that works on it.
            reader: A reader to use again, with its cache; a fresh one if not given.

        Raises:
            NotFound: No such table, or it is dropped.
            UnsupportedFormat: Its configuration is not one that this release understands.
            Unavailable: The store did not answer.
        """
        return cls.of(read_table_config(table), table, clock=clock, owner=owner, reader=reader)

    @classmethod
    def of(
        cls,
        config: TableConfig,
        table: TableStore,
        *,
        clock: Clock,
        owner: str = "",
        reader: LogReader | None = None,
    ) -> Self:
        """Return the table whose configuration was just read: no request. As :meth:`open`."""
        if reader is None:
            # R2: a refresh has to end within half the log's grace period.
            reader = LogReader(table, clock=clock, max_refresh_ms=config.log_grace_ms // 2)
        return cls(table.store, table.paths, clock, config, reader, owner)

    def renewed(self) -> Self:
        """Return the table with its configuration as it is now: one request. Raises as :meth:`open`."""
        return replace(self, config=read_table_config(self))

    def watched_by(
        self,
        check_alive: CheckAlive,
        *,
        on_fence: Callable[[Acquired], None] | None = None,
        on_commit: Callable[[str], None] | None = None,
    ) -> Self:
        """Return the table with another answer to whether the work should go on, and with who is told of what."""
        return replace(
            self, check_alive=check_alive, on_fence=on_fence or self.on_fence, on_commit=on_commit or self.on_commit
        )

    def other(self, paths: TablePaths, *, reader: LogReader | None = None) -> Self:
        """Open another table of the same store, with the same owner. Raises as :meth:`open`."""
        other = self.open(TableStore(self.store, paths), clock=self.clock, owner=self.owner, reader=reader)
        return replace(
            other,
            check_alive=self.check_alive,
            patience_ms=self.patience_ms,
            on_fence=self.on_fence,
            on_commit=self.on_commit,
        )

    def read_log(self) -> LogView:
        """Read the whole log. Raises as :meth:`LogReader.read`."""
        return self.reader.read()

    def read_heads(self) -> LogHeads:
        """Read the heads of the log: ids and schema, without data files."""
        return self.reader.heads.read()
