"""Everything that the page of one table shows, read at once and kept for a moment.

Nothing is worked out here that the ``icedb`` command works out, too: figures, explanations, guards, history and lags
come from :mod:`icedb_log`. What would cost too much for a page is left out, and the page says so. Must never write.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from cachetools import LRUCache
from icedb_log.changes.partition_removal import PartitionInfo, list_partitions
from icedb_log.clean.deletion import AuditPart, read_audit
from icedb_log.clock import Clock
from icedb_log.commit.table import Table
from icedb_log.errors import HaltError, IceDBError, NotFound, UnsupportedFormat
from icedb_log.log.history import CommitHistory, CommitInfo
from icedb_log.merge.merge_explain import ExplainedPartition
from icedb_log.serving.status import TableStatus
from icedb_log.serving.statuses import StatusReader, TableDetails
from icedb_log.serving.table_cache import TableState
from icedb_log.store.store_clock import MAX_STORE_GAP_MS
from icedb_log.table.table_config import TableConfig, unite_columns
from icedb_log.units import HOUR_MS, SECOND_MS
from icedb_service.readers import BlockingWork, SharedWork

from icedb_console.figures import Figures, TableFigures

MOST_COMMITS: Final = 60
MOST_REMEMBERED: Final = 400
"""Commits of a table that are remembered after their log files are gone, for as long as the console runs."""
MOST_DELETIONS: Final = 30
MOST_AUDIT_PARTS: Final = 500
AUDIT_MS: Final = 6 * HOUR_MS
MOST_EXPLAINED_FILES: Final = 100_000
"""Of a table with more live files merges are not explained on the page: the plan would take seconds."""
FRESH_MS: Final = 1000
"""What was read so lately is not read again."""
PATIENCE_MS: Final = 600
"""So long a page waits for what is being read; then it shows what was known, or that it is being read."""


@dataclass(frozen=True, slots=True)
class Amplification:
    """How often bytes were written by some commits: by appends, and by what rewrote them."""

    appended_bytes: int
    rewritten_bytes: int

    @property
    def factor(self) -> float | None:
        """Bytes written for each byte that came in; ``None`` where nothing came in."""
        return (self.appended_bytes + self.rewritten_bytes) / self.appended_bytes if self.appended_bytes else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """What is known of a table.

    Attributes:
        config: Its configuration.
        status: Its figures.
        details: What else is known of it.
        schema: Columns and types.
        partitions: What each holds, ascending by path.
        explained: What is merged, or why not, by partition; ``None``: too many files to say.
        commits: The newest first, remembered ones, too.
        deletions: What the janitor deleted lately, the newest first.
        problems: What could not be read, by what it is.
        read_ms: When its reading began, by this host's clock.
    """

    config: TableConfig
    status: TableStatus
    details: TableDetails
    schema: Mapping[str, str]
    partitions: tuple[PartitionInfo, ...]
    explained: Mapping[str, ExplainedPartition] | None
    commits: tuple[CommitInfo, ...]
    deletions: tuple[AuditPart, ...]
    problems: Mapping[str, str]
    read_ms: int

    @property
    def mark(self) -> str:
        """What differs when the page has something new to show."""
        return TableFigures(self.config.name, self.status, None).mark

    @property
    def amplification(self) -> Amplification:
        """How often bytes were written by the commits that are shown."""
        appended = rewritten = 0
        for each in self.commits:
            size_bytes = 0 if each.added is None else each.added.size_bytes
            if each.what in ("append", "feed"):
                appended += size_bytes
            elif each.removed.file_count:
                rewritten += size_bytes
        return Amplification(appended, rewritten)


@dataclass(slots=True)
class _Remembered:
    """What is kept of one table from one reading to the next."""

    history: CommitHistory = field(default_factory=CommitHistory)
    commits: dict[str, CommitInfo] = field(default_factory=dict)
    partitions: tuple[str, tuple[PartitionInfo, ...]] = ("", ())

    def take_commits(self, state: TableState) -> tuple[CommitInfo, ...]:
        """Return the newest commits: what was known of one before its log file was cut short stays as it was."""
        for each in reversed(self.history.read(state.view, limit=MOST_COMMITS)):
            self.commits.setdefault(each.key, each)
        newest = sorted(self.commits.values(), key=lambda each: (each.time_ms, each.key), reverse=True)
        self.commits = {each.key: each for each in newest[:MOST_REMEMBERED]}
        return tuple(self.commits.values())

    def take_partitions(self, state: TableState, table: Table) -> tuple[PartitionInfo, ...]:
        """Return the partitions, measured when the state is another one."""
        mark = f"{state.snapshot.snapshot_id} {table.config.target_file_bytes}"
        if self.partitions[0] != mark:
            found = list_partitions(state.snapshot.live, paths=table.paths, config=table.config)
            self.partitions = (mark, found)
        return self.partitions[1]


class FactsReader:
    """Reads what pages show, and keeps it, so that none waits long: what was known is shown, and read anew behind it.

    Use it from one event loop. One read of each table at a time, in a thread; several tables side by side.

    Args:
        statuses: Reads figures, and keeps logs.
        figures: Where figures are kept for the other pages.
        work: Runs the reads.
        clock: For ages.
        max_tables: How many tables something is kept of.

    Attributes:
        patience_ms: How long a page waits for what is being read.
    """

    def __init__(
        self, statuses: StatusReader, figures: Figures, *, work: BlockingWork, clock: Clock, max_tables: int
    ) -> None:
        self._statuses = statuses
        self._figures = figures
        self._work = work
        self._clock = clock
        self.patience_ms = PATIENCE_MS
        self._remembered: LRUCache[str, _Remembered] = LRUCache(max_tables)
        self._kept: LRUCache[str, tuple[int, TableFacts]] = LRUCache(max_tables)
        self._reads: SharedWork[TableFacts] = SharedWork(self._forget)

    async def read(self, name: str) -> TableFacts | None:
        """Return what is known of a table; ``None``: it is being read for the first time, ask again.

        Raises:
            NotFound: No such table.
            HaltError: Its log cannot be read.
            Overloaded: Too many reads wait for the store.
            Unavailable: The store did not answer.
        """
        kept = self._kept.get(name)
        if kept is not None and self._clock.monotonic_ms() - kept[0] <= FRESH_MS:
            return kept[1]
        running = self._reads.find(name) or self._reads.start(name, self._keep(name))
        done, _ = await asyncio.wait((running,), timeout=self.patience_ms / SECOND_MS)
        if done:
            return running.result()
        return None if kept is None else kept[1]

    async def _keep(self, name: str) -> TableFacts:
        started_ms = self._clock.monotonic_ms()
        kept = self._remembered.setdefault(name, _Remembered())
        facts = await self._work.run_blocking(name, lambda: self._read(name, kept))
        self._kept[name] = (started_ms, facts)
        return facts

    def _forget(self, name: str, error: BaseException) -> None:
        if isinstance(error, NotFound | HaltError | UnsupportedFormat):
            self._kept.pop(name, None)

    def _read(self, name: str, kept: _Remembered) -> TableFacts:
        read_ms = self._clock.now_ms()
        state = self._statuses.read_log(name)
        status = self._figures.read_table(name, log=state)
        table = self._statuses.open(name)
        explains = len(state.snapshot.live) <= MOST_EXPLAINED_FILES
        details = self._statuses.read_details(state, status, explains=explains)
        merge, problems = details.merge, dict(details.problems)
        return TableFacts(
            config=table.config,
            status=status,
            details=details,
            schema=unite_columns(state.snapshot.schema, table.config),
            partitions=kept.take_partitions(state, table),
            explained=None if merge is None else {each.partition: each for each in merge.partitions},
            commits=kept.take_commits(state),
            deletions=_read_deletions(table, status, problems),
            problems=problems,
            read_ms=read_ms,
        )


def _read_deletions(table: Table, status: TableStatus, problems: dict[str, str]) -> tuple[AuditPart, ...]:
    since_ms = max(0, status.store_now_ms - AUDIT_MS - MAX_STORE_GAP_MS)
    try:
        found = list(islice(read_audit(table, since_ms=since_ms), MOST_AUDIT_PARTS))
    except IceDBError as error:
        problems["the janitor's audit"] = str(error)
        return ()
    parts = [part for part in found if isinstance(part, AuditPart)]
    return tuple(sorted(parts, key=lambda part: part.written_ms, reverse=True)[:MOST_DELETIONS])
