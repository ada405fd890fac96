"""The figures of many tables, read again and again: of each log only what has changed is fetched; and details of one.

What the lag exporter, ``icedb status --watch`` and the console share. Must never write.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from icedb_log.clean.vacuum import vacuum_table
from icedb_log.clock import Clock
from icedb_log.commit.table import Table
from icedb_log.errors import IceDBError
from icedb_log.feed.views import ViewLag, list_view_lags
from icedb_log.holds.guards import Kept, group_waiting
from icedb_log.holds.stored_holds import HoldReader, HoldStatus, StoredHold
from icedb_log.holds.tags import list_tags
from icedb_log.ingest.quarantine import QuarantinedBatch, list_quarantined
from icedb_log.keys import TablePaths
from icedb_log.log.reader import LogReader
from icedb_log.merge.merge_explain import MergeExplanation, explain_merge
from icedb_log.merge.merge_plan import MergeIndex
from icedb_log.serving.status import TableStatus, read_status
from icedb_log.serving.table_cache import TableCache, TableState
from icedb_log.warehouse import Warehouse

_Read = TypeVar("_Read")
MOST_QUARANTINED: Final = 50
"""Entries of quarantine of which the reason is read: one request each."""
MOST_DEAD_FILES: Final = 200_000
"""With more dead data files it is not looked what keeps them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDetails:
    """What a person wants to know of one table besides its figures.

    Attributes:
        merge: What is merged, and why not more; ``None``: not known, or too many files to say.
        kept: What keeps dead objects; ``None``: not known, or too many to say.
        due_logs: Dead log files that the next vacuum deletes.
        due_files: Dead data files that it deletes.
        quarantined: The oldest entries in quarantine.
        tags: All tags, with how each stands.
        views: Views over it, with their lags.
        problems: What could not be read, and why; it hides nothing else.
    """

    merge: MergeExplanation | None = None
    kept: tuple[Kept, ...] | None = None
    due_logs: int = 0
    due_files: int = 0
    quarantined: tuple[QuarantinedBatch, ...] = ()
    tags: tuple[tuple[StoredHold, HoldStatus], ...] = ()
    views: tuple[ViewLag, ...] = ()
    problems: Mapping[str, str] = field(default_factory=dict)


class StatusReader:
    """Reads the figures of tables. Thread-safe.

    Args:
        warehouse: Where the tables lie.
        tables: What is known of them, shared with whoever else reads them.
        clock: This host's.
    """

    def __init__(self, warehouse: Warehouse, tables: TableCache, *, clock: Clock) -> None:
        self._warehouse = warehouse
        self._tables = tables
        self._clock = clock
        self._holds: dict[str, HoldReader] = {}
        self._ended_erasures: set[str] = set()
        self._lock = threading.Lock()

    def open(self, name: str) -> Table:
        """Open a table with the reader that is kept of it: one small read. Raises as :meth:`Table.open`."""
        reader = self._tables.table(name).read_source().reader
        return Table.open(self._warehouse.table(name), clock=self._clock, reader=reader)

    def read_log(self, name: str) -> TableState:
        """Read a table's log as it is now. Raises as :meth:`~icedb_log.serving.table_cache.CachedTable.read`."""
        return self._tables.table(name).read(max_staleness_ms=0)

    def read(self, name: str, *, log: TableState | None = None) -> TableStatus:
        """Return a table's figures as they are now, or as of a state of its log that was read a moment ago.

        Costs what :func:`~icedb_log.serving.status.read_status` does; of the log one listing and what is new in it.

        Raises:
            NotFound: No such table.
            HaltError: Its log cannot be read.
            Unavailable: The store did not answer.
        """
        cached = self._tables.borrow(name)
        state = cached.read(max_staleness_ms=0) if log is None else log
        with self._lock:
            holds = self._holds.setdefault(name, HoldReader())
        place = self._warehouse.table(name)
        return read_status(
            Table.of(state.config, place, clock=self._clock, reader=cached.read_source().reader),
            read_source=self._reader_of,
            holds=holds,
            ended_erasures=self._ended_erasures,
            log=state.log,
        )

    def read_details(self, log: TableState, status: TableStatus, *, explains: bool) -> TableDetails:
        """Return the details of a table whose log and figures were read a moment ago; ``explains``: plan its merges.

        Raises NotFound, and Unavailable if its configuration cannot be read.
        """
        table = self.open(status.config.name)
        problems: dict[str, str] = {}

        def attempt(what: str, read: Callable[[], _Read]) -> _Read | None:
            try:
                return read()
            except IceDBError as error:
                problems[what] = str(error)
                return None

        merge = planned = quarantined = None
        if explains:
            index = MergeIndex(table.paths, table.config, log=log.log.copy())
            merge = attempt("merges", lambda: explain_merge(index, log.view))
        if status.tombstoned_files <= MOST_DEAD_FILES:
            planned = attempt("what the janitor waits for", lambda: vacuum_table(table, dry_run=True))
        tags = attempt("tags", lambda: list_tags(table))
        if status.quarantined_batches:
            quarantined = attempt("quarantine", lambda: list_quarantined(table, limit=MOST_QUARANTINED))

        views = attempt(
            "views",
            lambda: list_view_lags(table, on_halt=lambda view, error: problems.update({f"view {view}": str(error)})),
        )
        return TableDetails(
            merge=merge,
            kept=None if planned is None else group_waiting(planned.waiting),
            due_logs=0 if planned is None else len(planned.deleted_logs),
            due_files=0 if planned is None else len(planned.deleted_data),
            quarantined=quarantined or (),
            tags=() if tags is None else tuple((tag, tag.status(tags.store_now_ms)) for tag in tags.holds),
            views=views or (),
            problems=problems,
        )

    def drop(self, name: str) -> None:
        """Forget a table that is gone."""
        self._tables.drop(name)
        with self._lock:
            self._holds.pop(name, None)

    def _reader_of(self, paths: TablePaths) -> LogReader:
        return self._tables.table(paths.name).read_source().reader


def describe_rest(status: TableStatus) -> object | None:
    """Return the state of a table at which nothing is to be done; ``None``: something waits, or goes wrong."""
    waits = (
        status.staged_batches,
        status.merge_lag_files,
        status.open_erasures,
        status.halted,
        status.failing,
        status.lost_commits,
        status.pressure.level != "none",
        status.view is not None,
        status.workers,
    )
    return None if any(waits) else (status.config, status.snapshot_id, status.log_files, status.quarantined_batches)
