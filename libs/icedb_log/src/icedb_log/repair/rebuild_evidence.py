"""What is left of a table when its log was lost or damaged: log, footers, records, pins, fences (B1, B2). Reads only.

Order, when a rebuild holds the fences: the log first, then the listing of the data files, then everything else. No
commit lands meanwhile (F1), so that nothing is in the log that is not in the listing.
:mod:`icedb_log.repair.rebuild_plan` decides.
"""

import contextlib
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from operator import itemgetter
from typing import Any, Final, Literal

from icedb_log.clean.leases import read_leases
from icedb_log.clean.orphans import read_orphan_record
from icedb_log.erasure.erasures import list_erasures
from icedb_log.errors import CorruptLog, HaltError, NotFound, Unavailable
from icedb_log.feed.views import list_appends, list_registrations, source_of
from icedb_log.ingest.import_records import read_records
from icedb_log.keys import ROLES, TablePaths, log_name, parse_log_key
from icedb_log.log.codec import decode_log_file, decode_log_head, salvage_markers
from icedb_log.log.fence import read_fence_object
from icedb_log.log.fold import drop_known, find_lost, named_paths
from icedb_log.log.reader import LogReader, require_own_time
from icedb_log.log.widening import fixed_columns
from icedb_log.model import EMPTY, FileMarker, ListedLogFile, LogFile, LogHead, LogView
from icedb_log.parquet.footer import Footer, FooterReader, UnreadableFooter
from icedb_log.store.object_store import ObjectInfo, list_all
from icedb_log.store.table_store import TableStore
from icedb_log.table.table import Table
from icedb_log.table.table_config import TableConfig

_ALL: Final = 1_000_000

ImportState = Literal["committed", "pending"]


@dataclass(frozen=True, slots=True)
class DamagedLog(ListedLogFile):
    """An object below ``_log`` that is no log file; ``log`` is what can be read of it all the same (B2).

    Attributes:
        problem: Why it is none.
        has_head: Whether its first two lines are whole; else the log says nothing but some markers.
    """

    problem: str = ""
    has_head: bool = False


@dataclass(frozen=True, slots=True)
class FenceTraces:
    """What the fences said before anybody took them for this rebuild.

    Attributes:
        commits: Ids of the commits that were about to be written: their data files are complete (W1).
        working: Commit ids of data files that somebody was writing, and had not announced.
        written_ms: By role: when its fence was written last, by the store's clock. Data files come before that (F3).
        landed: Names of the log files of commits that certainly landed, as fences say, or sweeps have found lost (F5).
        found_lost: Those of them that sweeps and vacuums have found lost.
    """

    commits: frozenset[str] = frozenset()
    working: frozenset[str] = frozenset()
    landed: frozenset[str] = frozenset()
    found_lost: frozenset[str] = frozenset()
    written_ms: Mapping[str, int] = field(default_factory=lambda: EMPTY)


@dataclass(frozen=True)
class RebuildEvidence:
    """All that a rebuild decides by.

    Attributes:
        paths: Keys of the table.
        config: Its configuration.
        view: The log files that are whole.
        damaged: The other objects below ``_log``.
        footers: Data files whose footers can be read, by key.
        unreadable: Those whose footers cannot.
        imported: Data files that records of imports name, and what the record says of its commit.
        deletions: Commits of erasures, and whether they landed, as far as that is known.
        erased: Data files that an erasure wants gone.
        rewritten: Data files that an erasure replaced, by a commit that landed; also such of which no row was left.
        fences: What the fences said.
        pinned: Data files that pins name, ended ones too: they were live once (J7), and may be kept although dead.
        holds_dead_files: Whether anything may keep dead files beyond their grace period.
        holds_single_files: Whether anything but a pin that can be read may keep a dead file and not what replaced it: a
            view, or a pin that cannot be read. A lease and a version keep all that died later.
        views: Views that this table feeds.
        staged_count: Objects in staging.
        source_names: Of a view: names of the appends that are in its source's log; ``None`` for other tables.
    """

    paths: TablePaths
    config: TableConfig
    view: LogView
    damaged: tuple[DamagedLog, ...]
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

    def found(self, key: str) -> Footer | UnreadableFooter | None:
        """Return what there is of a data file; ``None``: it is not there."""
        return self.footers.get(key) or self.unreadable.get(key)

    def is_there(self, key: str) -> bool:
        """Whether a data file exists."""
        return key in self.footers or key in self.unreadable

    def is_swept(self, modified_ms: int) -> bool:
        """Whether an orphan of this age would have been deleted (J5).

        It is seen when it has the orphan age, and a data grace period later; one more is for the time between sweeps.
        """
        return modified_ms + self.config.orphan_age_ms + 2 * self.config.data_grace_ms <= self.view.store_now_ms

    @cached_property
    def has_commits(self) -> bool:
        """Whether a log file is left that is no seal."""
        return any(not file.log.is_seal for file in self.view.files)

    @property
    def files(self) -> tuple[ListedLogFile, ...]:
        """What is below ``_log``, the damaged ones last: each with all that can be read of it."""
        return *self.view.files, *self.damaged

    @cached_property
    def markers(self) -> Mapping[str, FileMarker]:
        """What any log file, whole or damaged, names: one marker each, a dead one if there is one (S1)."""
        found: dict[str, FileMarker] = {}
        for marker in (marker for file in self.files for marker in file.log.markers):
            known = found.get(marker.path)
            if known is None or (known.is_live and not marker.is_live):
                found[marker.path] = marker
        return found

    @cached_property
    def named(self) -> set[str]:
        """Data files that log files name which are whole."""
        return named_paths(self.view.files)

    @cached_property
    def dead(self) -> frozenset[str]:
        """Data files that a log file which is whole says are dead."""
        return frozenset(m.path for file in self.view.files for m in file.log.markers if not m.is_live)

    @cached_property
    def landed(self) -> frozenset[str]:
        """Commits that landed for certain (F5), by the name of their log file; none if the log is damaged, or empty."""
        return self.fences.landed if self.has_commits and not self.damaged else frozenset()

    @cached_property
    def lost(self) -> tuple[str, ...]:
        """Those of them that were lost. Behind the horizon only data files tell, which no log file names (J2)."""
        found_lost = drop_known(self.fences.found_lost & self.landed, self.view)
        return tuple(sorted({*find_lost(self.landed, self.view), *found_lost}))


def read_evidence(table: Table, *, footers: FooterReader, fences: FenceTraces) -> RebuildEvidence:
    """Collect what is left of a table.

    Costs a listing and a GET of all of the log, a listing of the data files, and a ranged GET for each of them.

    Args:
        table: The table.
        footers: Reads the footers.
        fences: As :func:`read_fence_traces` gave them before any fence was acquired.

    Raises:
        UnsupportedFormat: Something was written by a later release, e.g. a log file: then it is not damaged.
        CorruptLog: A fence or a record cannot be read.
        Unavailable: The store did not answer, or the log kept changing.
    """
    store, paths, config = table.store, table.paths, table.config
    log = _EveryLogFile(table, clock=table.clock, max_refresh_ms=config.log_grace_ms // 2).read()  # R2
    readable: dict[str, Footer] = {}
    unreadable: dict[str, UnreadableFooter] = {}
    for found in _read_footers(table, footers, readable):
        if isinstance(found, Footer):
            readable[found.info.key] = found
        elif found.cause == "damaged":
            unreadable[found.info.key] = found
        elif found.cause != "gone":  # the janitor may delete what is dead
            raise Unavailable(f"{found.info.key}: {found.reason}; nothing was changed, try again")
    erasures = list_erasures(table, limit=_ALL)
    runs = [run for each in erasures for run in each.runs]
    pinned, has_unread_pins = _read_pins(table)
    views = tuple(each.view for each in list_registrations(table) if each.state != "detached")
    holds_single = bool(views or has_unread_pins)
    records = [each.record for each in read_records(table)]
    source = None if config.view_of is None else source_of(table, config)
    return RebuildEvidence(
        paths=paths,
        config=config,
        view=replace(log, files=tuple(file for file in log.files if not isinstance(file, DamagedLog))),
        damaged=tuple(file for file in log.files if isinstance(file, DamagedLog)),
        footers=readable,
        unreadable=unreadable,
        imported={file.path: each.state for each in records if each.state != "lost" for file in each.sources},
        deletions={run.commit_id: run.has_landed for run in runs if run.has_landed is not None},
        erased=frozenset(target.key for each in erasures for target in each.open_targets),
        rewritten=frozenset(file.key for run in runs if run.has_landed for file in run.files),
        fences=fences,
        pinned=pinned,
        holds_dead_files=bool(holds_single or pinned or config.keep_versions or read_leases(table)),
        holds_single_files=holds_single,
        views=views,
        staged_count=len(list_all(store, paths.staging_prefix).objects),
        source_names=None if source is None else tuple(log_name(key) for key in list_appends(source)),
    )


def read_fence_traces(table: TableStore) -> FenceTraces:
    """Return what the fences say of commits, under way and landed. Acquiring them forgets some of it."""
    found = {role: read_fence_object(table.store, table.paths.fence_key(role)) for role in ROLES}
    states = [state for state, _ in found.values() if state is not None]
    found_lost = frozenset(read_orphan_record(table).open_lost)
    return FenceTraces(
        commits=frozenset(parse_log_key(state.commit).commit_id for state in states if state.commit is not None),
        working=frozenset(state.work for state in states if state.work and state.commit is None),
        written_ms={role: info.modified_ms for role, (_, info) in found.items() if info is not None},
        landed=found_lost.union(*(state.landed for state in states)),
        found_lost=found_lost,
    )


class _EveryLogFile(LogReader):
    """Reads every object below ``_log`` as it was at one moment (R1), and does not stop at damage."""

    def _parse(self, info: ObjectInfo, body: bytes) -> ListedLogFile:
        place = (info.key, info.etag, info.modified_ms, info.size_bytes)
        try:
            parse_log_key(info.key)
            log = decode_log_file(info.key, body)
            require_own_time(info.key, log)
            for marker in log.markers:
                self._paths.partition_of(marker.path)
        except CorruptLog as error:
            said: dict[str, Any] = {"time_ms": 0}
            has_head = False
            with contextlib.suppress(CorruptLog):
                head = decode_log_head(info.key, body)
                said = {each.name: getattr(head, each.name) for each in fields(LogHead)}
                has_head = True
            markers = tuple(m for m in salvage_markers(body) if m.path.startswith(self._paths.data_prefix))
            problem = str(error).removeprefix(f"{info.key}: ")
            return DamagedLog(*place, LogFile(**said, markers=markers), problem, has_head)
        return ListedLogFile(*place, log)


def _read_footers(
    table: Table, reader: FooterReader, readable: Mapping[str, Footer]
) -> Iterator[Footer | UnreadableFooter]:
    """Yield all footers, then once more, with the bounds of all columns, those of flushes that look alike by the few.

    WARN: a table may have thousands of flushes of one row each, alike in what its markers say. Taken for repetitions of
    each other, all but the last would be left out.
    """
    infos = [info for info in list_all(table.store, table.paths.data_prefix).objects if info.key.endswith(".parquet")]
    columns = fixed_columns(table.config)
    yield from reader.read_footers(infos, bounds_of=columns)
    by_look: dict[Hashable, list[Footer]] = defaultdict(list)
    for footer in readable.values():
        if footer.origin.kind == "flush":
            by_look[look_of(footer)].append(footer)
    groups = (group for group in by_look.values() if len({footer.origin.commit_id for footer in group}) > 1)
    alike = [footer for group in groups for footer in group]
    names = {name for footer in alike for name in footer.columns}
    if names - columns:
        yield from reader.read_footers([footer.info for footer in alike], bounds_of=names | columns)


def look_of(footer: Footer) -> Hashable:
    """Return what files of the same rows have in common; of one without bounds nothing that another one has."""
    known = [
        (name, each.low, each.high) for name, each in sorted(footer.bounds.items(), key=itemgetter(0)) if each.is_exact
    ]
    if not known:
        return footer.info.key
    return footer.origin.partition, footer.row_count, footer.info.size_bytes, tuple(known)


def _read_pins(table: Table) -> tuple[frozenset[str], bool]:
    """Return the files of all pins, and whether one of them cannot be read."""
    files: set[str] = set()
    is_unsure = False
    for info in list_all(table.store, table.paths.pins_prefix).objects:
        try:
            files.update(marker.path for marker in decode_log_file(info.key, table.store.get(info.key).body).markers)
        except NotFound:
            continue
        except HaltError:
            is_unsure = True
    return frozenset(files), is_unsure
