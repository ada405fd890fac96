"""Collecting what is left of a table: log, footers, records, pins (B1, B2). Reads only.

Order, when a rebuild holds the fences: the log first, then the listing of the data files, then everything else. No
commit lands meanwhile (F1), so that nothing is in the log that is not in the listing.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from icedb_log.clean.leases import read_leases
from icedb_log.clean.orphan_record import read_orphan_record
from icedb_log.clock import Clock
from icedb_log.erasure.erasures import list_erasures
from icedb_log.errors import CorruptLog, HaltError, NotFound, PreconditionFailed, Unavailable
from icedb_log.feed.views import list_appends, list_registrations, source_of
from icedb_log.ingest.import_records import read_records
from icedb_log.keys import ROLES, TablePaths, log_name, parse_log_key
from icedb_log.log.codec import decode_log_file, decode_log_head, salvage_markers
from icedb_log.log.fence import read_fence_object
from icedb_log.model import ListedLogFile, LogHead, LogView
from icedb_log.repair.footers import Footer, FooterReader, UnreadableFooter
from icedb_log.repair.rebuild_commits import find_alike
from icedb_log.repair.rebuild_evidence import DamagedLog, FenceTraces, ImportState, RebuildEvidence, SurvivingLog
from icedb_log.repair.rebuild_log import stats_columns
from icedb_log.store.object_store import ObjectInfo, ObjectStore, list_all
from icedb_log.table.table_config import TableConfig

MAX_READ_ATTEMPTS: Final = 10
FIRST_BACKOFF_MS: Final = 10
_ALL: Final = 1_000_000


def read_surviving_log(store: ObjectStore, paths: TablePaths, *, clock: Clock) -> SurvivingLog:
    """Read every object below ``_log``: those that are log files, and of the others what can be read.

    Raises:
        UnsupportedFormat: A log file of a later release: it is not damaged, this release is too old.
        Unavailable: The store did not answer, or the log kept changing.
    """
    for attempt in range(MAX_READ_ATTEMPTS):
        if attempt:
            clock.sleep_ms(FIRST_BACKOFF_MS << attempt)
        listing = list_all(store, paths.log_prefix)
        try:
            found = [_read_log_file(store, paths, info) for info in listing.objects]
        except (NotFound, PreconditionFailed):
            continue  # R1: deleted or stripped since it was listed
        again = list_all(store, paths.log_prefix)
        if [(info.key, info.etag) for info in again.objects] != [(info.key, info.etag) for info in listing.objects]:
            continue
        whole = tuple(file for file in found if isinstance(file, ListedLogFile))
        damaged = tuple(file for file in found if isinstance(file, DamagedLog))
        return SurvivingLog(LogView(paths.name, whole, listing.store_now_ms), damaged)
    raise Unavailable(
        f"table {paths.name}: the log below {paths.log_prefix} changed during each of {MAX_READ_ATTEMPTS} reads; "
        "try again"
    )


def _read_log_file(store: ObjectStore, paths: TablePaths, info: ObjectInfo) -> ListedLogFile | DamagedLog:
    body = store.get(info.key, if_match=info.etag).body
    try:
        name = parse_log_key(info.key)
        log = decode_log_file(info.key, body)
        if log.commit_id is not None and log.time_ms != name.time_ms:
            raise CorruptLog(f"line 0: t is {log.time_ms}, its name says {name.time_ms}")
        for marker in log.markers:
            paths.partition_of(marker.path)
    except CorruptLog as error:
        problem = str(error).removeprefix(f"{info.key}: ")
        markers = tuple(m for m in salvage_markers(body) if m.path.startswith(paths.data_prefix))
        return DamagedLog(info.key, info.etag, info.size_bytes, problem, _read_head(info.key, body), markers)
    return ListedLogFile(info.key, info.etag, info.modified_ms, info.size_bytes, log)


def _read_head(key: str, body: bytes) -> LogHead | None:
    try:
        return decode_log_head(key, body, is_whole=True)
    except CorruptLog:
        return None


def read_evidence(
    store: ObjectStore,
    paths: TablePaths,
    *,
    config: TableConfig,
    clock: Clock,
    footers: FooterReader,
    fences: FenceTraces,
) -> RebuildEvidence:
    """Collect what is left of a table.

    Costs a listing and a GET of all of the log, a listing of the data files, and a ranged GET for each of them.

    Args:
        store: The object store.
        paths: Keys of the table.
        config: Its configuration.
        clock: For back-off.
        footers: Reads the footers.
        fences: As :func:`read_fence_traces` gave them before any fence was acquired.

    Raises:
        UnsupportedFormat: Something was written by a later release.
        CorruptLog: A fence or a record cannot be read.
        Unavailable: The store did not answer.
    """
    log = read_surviving_log(store, paths, clock=clock)
    readable, unreadable = _read_footers(store, paths, config, footers)
    erasures = list_erasures(store, paths, limit=_ALL)
    pins = _read_pins(store, paths)
    views = tuple(each.view for each in list_registrations(store, paths) if each.state != "detached")
    holds_single = bool(views or pins.is_unsure)
    holds = bool(holds_single or pins.files or config.keep_versions or read_leases(store, paths))
    return RebuildEvidence(
        paths=paths,
        config=config,
        log=log,
        footers=readable,
        unreadable=unreadable,
        imported=_read_imported(store, paths),
        deletions={
            run.commit_id: run.has_landed for each in erasures for run in each.runs if run.has_landed is not None
        },
        erased=frozenset(target.key for each in erasures for target in each.open_targets),
        rewritten=frozenset(file.key for each in erasures for run in each.runs if run.has_landed for file in run.files),
        fences=fences,
        pinned=pins.files,
        holds_dead_files=holds,
        holds_single_files=holds_single,
        views=views,
        staged_count=len(list_all(store, paths.staging_prefix).objects),
        source_names=None if config.view_of is None else _read_source_names(store, source_of(paths, config)),
    )


def read_fence_traces(store: ObjectStore, paths: TablePaths) -> FenceTraces:
    """Return what the fences say of commits, under way and landed. Acquiring them forgets some of it."""
    found = {role: read_fence_object(store, paths.fence_key(role)) for role in ROLES}
    states = [state for state, _ in found.values() if state is not None]
    commits = [state.commit for state in states if state.commit is not None]
    found_lost = frozenset(read_orphan_record(store, paths).open_lost)
    return FenceTraces(
        commits=frozenset(parse_log_key(key).commit_id for key in commits),
        written_ms={role: info.modified_ms for role, (_, info) in found.items() if info is not None},
        landed=found_lost.union(*(state.landed for state in states)),
        found_lost=found_lost,
    )


def _read_footers(
    store: ObjectStore, paths: TablePaths, config: TableConfig, footers: FooterReader
) -> tuple[dict[str, Footer], dict[str, UnreadableFooter]]:
    infos = [info for info in list_all(store, paths.data_prefix).objects if info.key.endswith(".parquet")]
    readable: dict[str, Footer] = {}
    unreadable: dict[str, UnreadableFooter] = {}
    columns = set(stats_columns(config))
    for found in _read_with_twins(footers, infos, columns, readable):
        if isinstance(found, Footer):
            readable[found.info.key] = found
        elif found.cause == "damaged":
            unreadable[found.info.key] = found
        elif found.cause != "gone":  # the janitor may delete what is dead
            raise Unavailable(f"{found.info.key}: {found.reason}; nothing was changed, try again")
    return readable, unreadable


def _read_with_twins(
    reader: FooterReader, infos: list[ObjectInfo], columns: set[str], readable: Mapping[str, Footer]
) -> Iterator[Footer | UnreadableFooter]:
    """Yield all footers, then once more, with the bounds of all columns, those of flushes that look alike by the few.

    WARN: a table may have thousands of flushes of one row each, alike in what its markers say. Taken for repetitions of
    each other, all but the last would be left out.
    """
    yield from reader.read_footers(infos, bounds_of=columns)
    alike = find_alike(readable.values())
    names = {name for info in alike for name in readable[info.key].columns}
    if names - columns:
        yield from reader.read_footers(alike, bounds_of=names | columns)


def _read_imported(store: ObjectStore, paths: TablePaths) -> dict[str, ImportState]:
    imported: dict[str, ImportState] = {}
    for listed in read_records(store, paths):
        if listed.record.state != "lost":
            imported.update({source.path: listed.record.state for source in listed.record.sources})
    return imported


def _read_source_names(store: ObjectStore, source: TablePaths) -> tuple[str, ...]:
    return tuple(log_name(key) for key in list_appends(store, source))


@dataclass(frozen=True, slots=True)
class _Pinned:
    """Which data files pins name, and whether one may hold others, too."""

    files: frozenset[str]
    is_unsure: bool


def _read_pins(store: ObjectStore, paths: TablePaths) -> _Pinned:
    """Read the files of all pins, ended ones too: what such a file names was live once (J7)."""
    files: set[str] = set()
    is_unsure = False
    for info in list_all(store, paths.pins_prefix).objects:
        try:
            markers = decode_log_file(info.key, store.get(info.key).body).markers
        except NotFound:
            continue
        except HaltError:
            is_unsure = True
            continue
        files.update(marker.path for marker in markers)
    return _Pinned(frozenset(files), is_unsure)
