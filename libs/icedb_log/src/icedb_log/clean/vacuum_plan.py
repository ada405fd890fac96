"""What a vacuum may delete, in which parts, and what the log says afterwards (rules J1 to J4, F4). Pure.

A tombstone is expired when its time *and* the store's proof that it landed are older than the grace period
(J1), and nothing else holds it (:mod:`icedb_log.holds.guards`). The order of deletion (J2) is
:mod:`icedb_log.clean.vacuum`'s.

A plan of 1,000,000 dead data files takes one look at each marker for each question: keys, times and deaths are shared
with the markers and with each other, never copied.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from icedb_log.commit.merge_log import earliest_landing
from icedb_log.holds.guards import NO_HOLDS, Death, Holds, Waiting, find_data_deaths, find_log_deaths
from icedb_log.log.fold import read_horizon_ms, union_schema
from icedb_log.log.markers import Markers, markers_of
from icedb_log.merge.log_folding import FREE_LOG_BYTES, LOG_REST_MS
from icedb_log.model import FileMarker, ListedLogFile, LogFile, LogTombstone, LogView
from icedb_log.table.table_config import TableConfig

STRIP_SHARE: Final = 8
"""A large log file is stripped when one in so many of its entries can go. Deletions wait for that, for at most one such
share of the grace period longer. Otherwise each vacuum would rewrite it for the few entries that expired since the
last one: most of all bytes written to the log (docs/internals/log-growth.md)."""

_Tombstone = TypeVar("_Tombstone", FileMarker, LogTombstone)


@dataclass(frozen=True, slots=True)
class VacuumPlan:
    """What may be deleted now.

    Attributes:
        log_keys: Expired log files: dead ones, and seals that are old enough (F4).
        batch_ids: For each of these log files that made batches live: which; their staged objects go first (J2).
        refused_ids: For each of these log files that refused batches: which.
        merged_into: For each of these log files that is dead: the log file that says so.
        data_paths: Expired data files, as far as no remaining log file lists them as live.
        waiting: Dead objects that are kept, and why.
        died: When each object of ``log_keys`` and ``data_paths`` died; seals that are old enough have no death.
        store_now_ms: The time that ages were measured against.
    """

    log_keys: tuple[str, ...]
    batch_ids: Mapping[str, tuple[str, ...]]
    refused_ids: Mapping[str, tuple[str, ...]]
    merged_into: Mapping[str, str]
    data_paths: tuple[str, ...]
    waiting: tuple[Waiting, ...]
    died: Mapping[str, Death]
    store_now_ms: int

    @property
    def is_empty(self) -> bool:
        """Whether nothing may be deleted now."""
        return not self.log_keys and not self.data_paths


@dataclass(frozen=True, slots=True)
class Portion:
    """Data files that one log file names and that are deleted together.

    Attributes:
        log_key: The log file: stripped when they are gone.
        markers: The data files; may be empty: the log file may have to be stripped all the same.
    """

    log_key: str
    markers: tuple[FileMarker, ...]


def plan_vacuum(view: LogView, *, config: TableConfig, holds: Holds = NO_HOLDS) -> VacuumPlan:
    """Plan one vacuum run of a table.

    Args:
        view: The log, read by the janitor; ages count from ``view.store_now_ms``.
        config: Grace periods.
        holds: What else keeps dead objects, read *after* the log (J4, V4).

    Raises:
        SchemaConflict: The log contradicts itself: a person looks before anything is deleted (S2).
    """
    union_schema(view.table, view.files)
    now_ms = view.store_now_ms
    log_deaths = find_log_deaths(view)
    # WARN: F4: a seal goes by its own age, also where a log file was that is dead. A commit landed, was merged and
    # vacuumed, and its key was sealed since (F1): the same request may be under way a second time.
    dead = [f.key for f in view.files if f.key in log_deaths and not f.log.is_seal]
    kept_logs = holds.guard_logs(((k, log_deaths[k]) for k in dead), grace_ms=config.log_grace_ms, now_ms=now_ms)
    waiting = list(kept_logs.values())
    log_keys = [key for key in dead if key not in kept_logs]
    died = {key: log_deaths[key] for key in log_keys}
    sole = _find_sole_namers(view, frozenset(log_keys))
    waiting += (Waiting(key, "live", None) for key in log_keys if key in sole)
    log_keys = [key for key in log_keys if key not in sole]
    log_keys += _expired_seals(view, config)
    dead_logs = set(log_keys)
    dead_log_files = [file for file in view.files if file.key in dead_logs]
    # Who carries what a dead log file names is stripped once it is deleted; the dead log file goes as it is.
    active = [file for file in view.files if file.key not in log_deaths]
    died_data, kept, stuck = _find_expired_data(view, active, config=config, holds=holds, dead_logs=dead_logs)
    kept += _wait_for_logs(view, stuck, waiting, config=config)
    held = _held_back(active, died_data, grace_ms=config.data_grace_ms, now_ms=now_ms)
    for path in held:
        del died_data[path]
    data_paths = tuple(sorted(died_data))
    died_data.update((key, death) for key, death in died.items() if key not in sole)
    return VacuumPlan(
        log_keys=tuple(sorted(log_keys)),
        batch_ids={file.key: file.log.batch_ids for file in dead_log_files if file.log.batch_ids},
        refused_ids={file.key: file.log.refused_ids for file in dead_log_files if file.log.refused_ids},
        merged_into={t.path: f.key for f in view.files for t in f.log.log_tombstones if t.path in dead_logs},
        data_paths=data_paths,
        waiting=(*waiting, *kept, *(Waiting(path, "grace", until_ms) for path, until_ms in held.items())),
        died=died_data,
        store_now_ms=now_ms,
    )


def cut_parts(files: Iterable[ListedLogFile], deletable: set[str], *, part_files: int) -> Iterator[tuple[Portion, ...]]:
    """Cut the data files that may be deleted into parts, log file by log file (J2).

    A log file that names many is cut into portions of one in :data:`STRIP_SHARE` of its entries: it is stripped after
    each of them, so that a run that is cut off has kept its progress, and so that all these strips together write about
    four times what the log file holds. Small log files share a part, so that deletes go in full batches.

    Args:
        files: Log files that stay and may be stripped.
        deletable: What may be deleted; each is taken out of it and stands in one portion only.
        part_files: Data files of a part, at least, except for the last one.

    Returns:
        Parts in the order in which they are to be deleted. Each of ``files`` has at least one portion.
    """
    part: list[Portion] = []
    count = 0
    for file in files:
        said = _said(file)
        markers = [said.light(index) for index in said.dead if said.path(index) in deletable]
        deletable.difference_update([marker.path for marker in markers])
        step = max(part_files, -(-_count_entries(file) // STRIP_SHARE))
        for start in range(0, len(markers) or 1, step):
            portion = Portion(file.key, tuple(markers[start : start + step]))
            part.append(portion)
            count += len(portion.markers)
            if count >= part_files:
                yield tuple(part)
                part, count = [], 0
    if part:
        yield tuple(part)


def live_paths(files: Iterable[ListedLogFile], among: Collection[str]) -> set[str]:
    """Return those of some data files that at least one log file lists as live, whatever the others say (J2)."""
    return {path for file in files for path in _said(file).live_paths() if path in among}


def is_strip_due(file: ListedLogFile, view: LogView, *, gone_logs: Collection[str], gone_data: Collection[str]) -> bool:
    """Whether a log file has tombstones of what is certainly deleted, and it is worth a rewrite. Decodes no marker."""
    # Deletions of data files have waited for their strip already; log tombstones do no harm for a day.
    if any(path in gone_data for path in _said(file).dead_paths()):
        return True
    gone_count = sum(1 for tombstone in file.log.log_tombstones if tombstone.path in gone_logs)
    is_old = view.store_now_ms - file.log.time_ms >= LOG_REST_MS
    return bool(gone_count) and (is_old or _is_worth_a_strip(file, gone_count))


def strip_log_file(
    file: ListedLogFile, view: LogView, *, gone_logs: Collection[str], gone_data: Collection[str]
) -> LogFile | None:
    """Return a log file without the tombstones of what is certainly deleted (J3); ``None`` if nothing changes.

    ``time_ms`` stays. The horizon is recorded (R3), and the proof of landing of what remains (J1): the rewrite
    moves LastModified.
    """
    if not is_strip_due(file, view, gone_logs=gone_logs, gone_data=gone_data):
        return None
    log = file.log
    log_tombstones = tuple(t for t in log.log_tombstones if t.path not in gone_logs)
    markers = tuple(m for m in log.markers if m.tombstoned_ms is None or m.path not in gone_data)
    stripped_ms = [t.tombstoned_ms for t in log.log_tombstones if t.path in gone_logs]
    return replace(
        log,
        log_tombstones=tuple(_keep_proof(t, file.modified_ms) for t in log_tombstones),
        markers=tuple(m if m.tombstoned_ms is None else _keep_proof(m, file.modified_ms) for m in markers),
        horizon_ms=max([read_horizon_ms(view), log.horizon_ms or 0, *stripped_ms]) or None,
    )


def _find_sole_namers(view: LogView, candidates: Collection[str]) -> set[str]:
    """Return those of some dead log files without which a live data file would be named by nobody (J2).

    A merge of ours carries every marker of the log files that it puts to death (M1). A partition removal of another
    writer may name the removed data files alone: without its inputs, all others that they name would be lost.
    """
    dead = [file for file in view.files if file.key in candidates]
    named = {path for file in dead for path in _said(file).live_paths()}
    for file in view.files:
        if not named:
            return set()
        said = _said(file)
        named.difference_update(said.paths() if file.key not in candidates else said.dead_paths())
    return {file.key for file in dead if any(path in named for path in _said(file).paths())}


def _keep_proof(tombstone: _Tombstone, modified_ms: int) -> _Tombstone:
    landed_ms = earliest_landing(tombstone.landed_ms, modified_ms)
    return tombstone if landed_ms == tombstone.landed_ms else replace(tombstone, landed_ms=landed_ms)


def _find_expired_data(
    view: LogView, active: Iterable[ListedLogFile], *, config: TableConfig, holds: Holds, dead_logs: Collection[str]
) -> tuple[dict[str, Death], list[Waiting], set[str]]:
    """Return the data files that may go, with their deaths; what keeps others; those that wait for a log file."""
    deaths = find_data_deaths(view)
    names = {file.key for file in active}
    unnamed = {path for file in view.files if file.key not in names for path in _said(file).dead_paths()}
    for file in active if unnamed else ():
        unnamed.difference_update(_said(file).dead_paths())
    still_live = live_paths((file for file in view.files if file.key not in dead_logs), deaths)
    kept = holds.guard_data(deaths.items(), grace_ms=config.data_grace_ms, now_ms=view.store_now_ms)
    # J2: a log file that lists it as live is still there; it goes when that one has gone.
    stuck = {path for path in deaths if path not in kept and (path in unnamed or path in still_live)}
    for path in (*kept, *stuck):
        del deaths[path]
    return deaths, list(kept.values()), stuck


def _wait_for_logs(view: LogView, stuck: set[str], waiting: Iterable[Waiting], *, config: TableConfig) -> list[Waiting]:
    """Return what keeps data files that wait for a log file: whatever keeps that one."""
    if not stuck:
        return []
    guards = {each.path: each for each in waiting}
    next_ms = view.store_now_ms + config.log_grace_ms
    found = {path: Waiting(path, "grace", next_ms) for path in stuck}
    for file in view.files:
        guard = guards.get(file.key)
        if guard is not None:
            found.update((path, replace(guard, path=path)) for path in _said(file).paths() if path in stuck)
    return list(found.values())


def _said(file: ListedLogFile) -> Markers:
    """Return what a log file says of data files, in whatever form it was read; no statistics are looked at."""
    return markers_of(file.key, file.log.markers)


def _count_entries(file: ListedLogFile) -> int:
    return len(file.log.markers) + len(file.log.log_tombstones)


def _is_worth_a_strip(file: ListedLogFile, gone_count: int) -> bool:
    return file.size_bytes <= FREE_LOG_BYTES or gone_count * STRIP_SHARE >= _count_entries(file)


def _held_back(
    active: Iterable[ListedLogFile], died: Mapping[str, Death], *, grace_ms: int, now_ms: int
) -> dict[str, int]:
    """Return which of the expired data files wait for the strip of a large log file, and until when."""
    held: dict[str, int] = {}
    for file in active:
        if file.size_bytes <= FREE_LOG_BYTES:
            continue
        expired = [path for path in _said(file).dead_paths() if path in died]
        if not expired or _is_worth_a_strip(file, len(expired)):
            continue
        until_ms = min(died[path].died_ms for path in expired) + grace_ms + grace_ms // STRIP_SHARE
        if until_ms > now_ms:
            held.update((path, until_ms) for path in expired)
    return held


def _expired_seals(view: LogView, config: TableConfig) -> list[str]:
    return [
        file.key
        for file in view.files
        if file.log.is_seal and file.modified_ms + config.seal_age_ms <= view.store_now_ms  # F4
    ]
