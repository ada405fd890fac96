"""What is left of a table when its log was lost or damaged: the values that a rebuild decides by. Pure.

:mod:`icedb_log.repair.rebuild_reading` collects them, :mod:`icedb_log.repair.rebuild_plan` decides.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from icedb_log.keys import TablePaths
from icedb_log.log.lost_commits import drop_known, find_lost
from icedb_log.model import EMPTY, FeedState, FileMarker, LogHead, LogView
from icedb_log.repair.footers import Footer, UnreadableFooter
from icedb_log.table.table_config import TableConfig

ImportState = Literal["committed", "pending"]


@dataclass(frozen=True, slots=True)
class DamagedLog:
    """An object below ``_log`` that is no log file, and what can be read of it all the same (B2).

    Attributes:
        key: Its key.
        etag: ETag of the content that was read.
        size_bytes: Its size.
        problem: What is wrong, with the line.
        head: Its first two lines, if they are whole.
        markers: Lines that are whole markers of files of this table.
    """

    key: str
    etag: str
    size_bytes: int
    problem: str
    head: LogHead | None = None
    markers: tuple[FileMarker, ...] = ()


@dataclass(frozen=True, slots=True)
class FenceTraces:
    """What the fences said before anybody took them for this rebuild.

    Attributes:
        commits: Ids of the commits that were about to be written: their data files are complete (W1).
        written_ms: By role: when its fence was written last, by the store's clock. Data files come before that (F3).
        landed: Names of the log files of commits that certainly landed, as fences say, or sweeps have found lost (F5).
        found_lost: Those of them that sweeps and vacuums have found lost.
    """

    commits: frozenset[str] = frozenset()
    landed: frozenset[str] = frozenset()
    found_lost: frozenset[str] = frozenset()
    written_ms: Mapping[str, int] = field(default_factory=lambda: EMPTY)


@dataclass(frozen=True, slots=True)
class SurvivingLog:
    """What stands below ``_log``.

    Attributes:
        view: The log files that are whole.
        damaged: The others.
    """

    view: LogView
    damaged: tuple[DamagedLog, ...] = ()

    @property
    def feeds(self) -> tuple[tuple[str, FeedState], ...]:
        """What log files say that a view has taken, with their keys."""
        whole = [(file.key, file.log.feed) for file in self.view.files]
        parts = [(file.key, file.head.feed) for file in self.damaged if file.head is not None]
        return tuple((key, feed) for key, feed in (*whole, *parts) if feed is not None)


@dataclass(frozen=True)
class RebuildEvidence:
    """All that a rebuild decides by.

    Attributes:
        paths: Keys of the table.
        config: Its configuration.
        log: What is left of the log.
        footers: Data files whose footers can be read, by key.
        unreadable: Those whose footers cannot.
        imported: Data files that records of imports name, and what the record says of its commit.
        deletions: Commits of erasures, and whether they landed, as far as that is known.
        erased: Data files that an erasure wants gone.
        rewritten: Data files that an erasure replaced, by a commit that landed; also such of which no row was left.
        fences: What the fences said.
        pinned: Data files that pins name: they were live once, and may be kept although they are dead.
        holds_dead_files: Whether anything may keep dead files beyond their grace period.
        holds_single_files: Whether anything but a pin that can be read may keep a dead file and not what replaced it: a
            view, or a pin that cannot be read. A lease and a version keep all that died later.
        views: Views that this table feeds.
        staged_count: Objects in staging.
        source_names: Of a view: names of the appends that are in its source's log; ``None`` for other tables.
    """

    paths: TablePaths
    config: TableConfig
    log: SurvivingLog
    footers: Mapping[str, Footer]
    unreadable: Mapping[str, UnreadableFooter] = field(default_factory=lambda: EMPTY)
    imported: Mapping[str, ImportState] = field(default_factory=lambda: EMPTY)
    deletions: Mapping[str, bool] = field(default_factory=lambda: EMPTY)
    erased: frozenset[str] = frozenset()
    rewritten: frozenset[str] = frozenset()
    fences: FenceTraces = field(default_factory=FenceTraces)
    pinned: frozenset[str] = frozenset()
    holds_dead_files: bool = False
    holds_single_files: bool = False
    views: tuple[str, ...] = ()
    staged_count: int = 0
    source_names: tuple[str, ...] | None = None

    @property
    def store_now_ms(self) -> int:
        """The store's clock when the log was listed."""
        return self.log.view.store_now_ms

    def is_swept(self, modified_ms: int) -> bool:
        """Whether an orphan of this age would have been deleted (J5).

        It is seen when it has the orphan age, and a data grace period later; one more is for the time between sweeps.
        """
        return modified_ms + self.config.orphan_age_ms + 2 * self.config.data_grace_ms <= self.store_now_ms

    @cached_property
    def markers(self) -> Mapping[str, FileMarker]:
        """What any log file, whole or damaged, names: one marker each, a dead one if there is one (S1)."""
        found: dict[str, FileMarker] = {}
        whole = (marker for file in self.log.view.files for marker in file.log.markers)
        parts = (marker for file in self.log.damaged for marker in file.markers)
        for marker in (*whole, *parts):
            known = found.get(marker.path)
            if known is None or (known.is_live and not marker.is_live):
                found[marker.path] = marker
        return found

    @cached_property
    def dead_in_whole_logs(self) -> frozenset[str]:
        """Data files that a log file which is whole says are dead."""
        return frozenset(m.path for file in self.log.view.files for m in file.log.markers if not m.is_live)

    @cached_property
    def landed(self) -> frozenset[str]:
        """Commits that landed for certain (F5), by the name of their log file; none if the log is damaged, or empty."""
        has_commits = any(not file.log.is_seal for file in self.log.view.files)
        return self.fences.landed if has_commits and not self.log.damaged else frozenset()

    @cached_property
    def lost(self) -> tuple[str, ...]:
        """Those of them that were lost. Behind the horizon only data files tell, which no log file names (J2)."""
        found_lost = drop_known(self.fences.found_lost & self.landed, self.log.view)
        return tuple(sorted({*find_lost(self.landed, self.log.view), *found_lost}))

    def is_there(self, key: str) -> bool:
        """Whether a data file exists."""
        return key in self.footers or key in self.unreadable
