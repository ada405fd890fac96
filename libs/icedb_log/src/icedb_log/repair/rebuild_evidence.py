"""What is left of a table when its log was lost or damaged: log files, footers, fences, records (B1, B2). Reads only.

Order, when a rebuild holds the fences: the log first, then the listing of the data files, then everything else. No
commit lands meanwhile (F1), so that nothing is in the log that is not in the listing.
:mod:`icedb_log.repair.rebuild_plan` decides.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from icedb_log.commit.fence import MAX_SEAL_BYTES, read_fence_object
from icedb_log.commit.table import Table
from icedb_log.errors import CorruptLog, Unavailable
from icedb_log.feed.views import list_appends, read_registration, source_of
from icedb_log.holds.erasures import list_erasures
from icedb_log.holds.stored_holds import HoldReader
from icedb_log.imports.import_records import read_records
from icedb_log.ingest.staging import list_all_staged
from icedb_log.keys import ROLES, TablePaths, file_time_ms, find_log_name, log_name, parse_log_key
from icedb_log.log.codec import decode_log_file
from icedb_log.log.fold import find_lost
from icedb_log.log.reader import LogReader, require_own_time
from icedb_log.log.widening import fixed_columns
from icedb_log.model import EMPTY, ListedLogFile, LogFile, LogView
from icedb_log.parquet.footer import Footer, FooterReader, UnreadableFooter
from icedb_log.store.object_store import ObjectInfo, list_all
from icedb_log.store.table_store import TableStore
from icedb_log.table.table_config import TableConfig
from icedb_log.units import MINUTE_MS

_ALL: Final = 1_000_000
MAX_SKEW_MS: Final = MINUTE_MS
"""A host that named a data file may be so far behind the store."""

Mark = Literal["landed", "announced", "tagged", "imported", ""]
"""What something besides its footer says of a data file: a fence, or the name of a damaged log file, that its commit
landed (F5); a fence that it was about to be written (F3); a tag that it was live once (J4); a record that it was
imported."""


@dataclass(frozen=True, slots=True)
class DamagedLog(ListedLogFile):
    """An object below ``_log`` that is no log file: nothing that it says counts (B2). ``problem`` is why it is none."""

    problem: str = ""


@dataclass(frozen=True, slots=True)
class FenceTraces:
    """What the fences said before anybody took them for this rebuild.

    Attributes:
        announced: Ids of the commits that were about to be written, or were the last ones.
        writing: Ids of commits whose data files were being written: they had certainly not landed (F6).
        landed: Names of the log files of commits that certainly landed (F5).
        written_ms: By role: when its fence was written last, by the store's clock. Data files come before that (F3).
    """

    announced: frozenset[str] = frozenset()
    writing: frozenset[str] = frozenset()
    landed: frozenset[str] = frozenset()
    written_ms: Mapping[str, int] = field(default_factory=lambda: EMPTY)

    def is_cut_off(self, footer: Footer) -> bool:
        """Whether the commit of a data file was certainly not announced: a commit writes the fence after its files.

        The fence says so if it was written meanwhile (F6). Else the store's clock does, and the time in the file's
        name, because the objects of a table that was copied are younger than all that was committed.
        """
        if footer.origin.commit_id in self.writing:
            return True
        written_ms = self.written_ms.get("ingest" if footer.origin.kind == "flush" else "merge")
        named_ms = (file_time_ms(footer.info.key) or 0) + MAX_SKEW_MS
        return written_ms is not None and min(footer.info.modified_ms, named_ms) > written_ms


@dataclass(frozen=True)
class RebuildEvidence:
    """All that a rebuild goes by.

    Attributes:
        paths: Keys of the table.
        config: Its configuration.
        view: The log files that are whole.
        damaged: The other objects below ``_log``.
        footers: Data files whose footers can be read, by key.
        unreadable: Those whose footers cannot.
        marks: What else is known of a data file, by key or by commit id.
        erased: Data files that were dead when an erasure had deleted its rows, and have to be gone (E4).
        fences: What the fences said.
        staged_count: Batches in staging.
        source_names: Of a view: names of the appends that are in its source's log; ``None`` for other tables.
        backfill_files: Of a view: data files that it began with.
    """

    paths: TablePaths
    config: TableConfig
    view: LogView
    damaged: tuple[DamagedLog, ...]
    footers: Mapping[str, Footer]
    unreadable: Mapping[str, UnreadableFooter] = field(default_factory=lambda: EMPTY)
    marks: Mapping[str, Mark] = field(default_factory=lambda: EMPTY)
    erased: frozenset[str] = frozenset()
    fences: FenceTraces = field(default_factory=FenceTraces)
    staged_count: int = 0
    source_names: tuple[str, ...] | None = None
    backfill_files: int = 0

    def found(self, key: str) -> Footer | UnreadableFooter | None:
        """Return what there is of a data file; ``None``: it is not there."""
        return self.footers.get(key) or self.unreadable.get(key)

    @property
    def has_commits(self) -> bool:
        """Whether a log file is left that is no seal."""
        return any(not file.log.is_seal for file in self.view.files)

    @property
    def lost(self) -> tuple[str, ...]:
        """Names of the log files that are certainly lost (F5); none if the log is damaged, or empty."""
        return find_lost(self.fences.landed, self.view) if self.has_commits and not self.damaged else ()


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
    infos = [info for info in list_all(store, paths.data_prefix).objects if info.key.endswith(".parquet")]
    readable: dict[str, Footer] = {}
    unreadable: dict[str, UnreadableFooter] = {}
    for found in footers.read_footers(infos, bounds_of=fixed_columns(config)):
        if isinstance(found, Footer):
            readable[found.info.key] = found
        elif found.cause == "damaged":
            unreadable[found.info.key] = found
        elif found.cause != "gone":  # the janitor may delete what is dead
            raise Unavailable(f"{found.info.key}: {found.reason}; nothing was changed, try again")
    erasures = list_erasures(table, limit=_ALL)
    source = None if config.view_of is None else source_of(table, config)
    registration = None if source is None else read_registration(source, table.name)
    damaged = tuple(file for file in log.files if isinstance(file, DamagedLog))
    return RebuildEvidence(
        paths=paths,
        config=config,
        view=replace(log, files=tuple(file for file in log.files if not isinstance(file, DamagedLog))),
        damaged=damaged,
        footers=readable,
        unreadable=unreadable,
        marks=_read_marks(table, fences, damaged),
        # A log that is lost before an erasure has written these down: it deletes once more (E3).
        erased=frozenset(key for each in erasures if not each.has_ended for key in each.dead),
        fences=fences,
        staged_count=len(list_all_staged(table).batches),
        source_names=None if source is None else tuple(log_name(key) for key in list_appends(source)),
        backfill_files=0 if registration is None else registration.base_files,
    )


def read_fence_traces(table: TableStore) -> FenceTraces:
    """Return what the fences say of commits, under way and landed. Acquiring them forgets some of it."""
    found = {role: read_fence_object(table.store, table.paths.fence_key(role)) for role in ROLES}
    states = [state for state, _ in found.values() if state is not None]
    return FenceTraces(
        announced=frozenset(parse_log_key(state.commit).commit_id for state in states if state.commit is not None),
        writing=frozenset(state.work for state in states if state.work and state.commit is None),
        landed=frozenset(name for state in states for name in state.landed),
        written_ms={role: info.modified_ms for role, (_, info) in found.items() if info is not None},
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
            return DamagedLog(*place, LogFile(0, {}, ()), str(error).removeprefix(f"{info.key}: "))
        return ListedLogFile(*place, log)


def _read_marks(table: Table, fences: FenceTraces, damaged: Iterable[DamagedLog]) -> dict[str, Mark]:
    """Return what is said of data files, by key, and of commits, by id; of two marks the last one here counts."""
    marks: dict[str, Mark] = {}
    for tag in HoldReader().read(table, owner="tag").lasting(data_grace_ms=table.config.data_grace_ms):
        marks.update(dict.fromkeys(tag.paths or (), "tagged"))
    for each in read_records(table):
        if each.state != "lost":
            marks.update({file.path: "imported" for file in each.sources})
    marks.update(dict.fromkeys(fences.announced, "announced"))
    # W2: the name of a damaged log file is that of one commit, unless it was a seal.
    names = {log_name(file.key) for file in damaged if file.size_bytes > MAX_SEAL_BYTES} | fences.landed
    marks.update({name.commit_id: "landed" for name in map(find_log_name, names) if name is not None})
    return marks
