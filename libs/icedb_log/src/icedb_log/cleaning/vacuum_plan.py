"""What a vacuum may delete, and what the log says afterwards (rules J1 to J4, F4). Pure.

A tombstone is expired when its time *and* the store's proof that it landed are older than the grace period
(J1), and nothing else holds it (:mod:`icedb_log.cleaning.guards`). The order of deletion (J2) is
:mod:`icedb_log.cleaning.vacuum`'s.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from icedb_log.cleaning.guards import NO_HOLDS, Death, Holds, Waiting
from icedb_log.log.fold import fold, read_horizon_ms
from icedb_log.merging.log_folding import FREE_LOG_BYTES, LOG_REST_MS
from icedb_log.merging.merge_log import earliest_landing
from icedb_log.model import ListedLogFile, LogFile, LogView
from icedb_log.tables.table_config import TableConfig

STRIP_SHARE: Final = 8
"""A large log file is stripped when one in so many of its entries can go. Deletions wait for that, for at most one such
share of the grace period longer. Otherwise each vacuum would rewrite it for the few entries that expired since the
last one: most of all bytes written to the log (docs/log-growth.md)."""


@dataclass(frozen=True, slots=True)
class VacuumPlan:
    """What may be deleted now.

    Attributes:
        log_keys: Expired log files: dead ones, and seals that are old enough (F4).
        batch_ids: Batches that these log files made live; their staged objects go first (J2).
        refused_ids: For each of these log files that refused batches: which.
        data_paths: Expired data files, as far as no remaining log file lists them as live.
        waiting: Dead objects that are kept, and why.
        died: When each object of ``log_keys`` and ``data_paths`` died; seals that are old enough have no death.
        store_now_ms: The time that ages were measured against.
    """

    log_keys: tuple[str, ...]
    batch_ids: tuple[str, ...]
    refused_ids: Mapping[str, tuple[str, ...]]
    data_paths: tuple[str, ...]
    waiting: tuple[Waiting, ...]
    died: Mapping[str, Death]
    store_now_ms: int

    @property
    def is_empty(self) -> bool:
        """Whether nothing may be deleted now."""
        return not self.log_keys and not self.data_paths


def plan_vacuum(view: LogView, *, config: TableConfig, holds: Holds = NO_HOLDS) -> VacuumPlan:
    """Plan one vacuum run of a table.

    Args:
        view: The log, read by the janitor; ages count from ``view.store_now_ms``.
        config: Grace periods.
        holds: What else keeps dead objects, read *after* the log (J4, V4).
    """
    snapshot = fold(view)
    now_ms = view.store_now_ms
    log_landed = _landing_times((t.path, t.landed_ms, f.modified_ms) for f in view.files for t in f.log.log_tombstones)
    data_landed = _landing_times(
        (m.path, m.landed_ms, f.modified_ms) for f in view.files for m in f.log.markers if m.tombstoned_ms is not None
    )
    present = {file.key for file in view.files}
    died: dict[str, Death] = {}
    log_keys: list[str] = []
    waiting: list[Waiting] = []
    for path, tombstoned_ms in snapshot.log_tombstoned_ms.items():
        if path in present:
            death = Death(tombstoned_ms, log_landed[path])
            guard = holds.guard_log(path, death, grace_ms=config.log_grace_ms, now_ms=now_ms)
            if guard:
                waiting.append(guard)
            else:
                log_keys.append(path)
                died[path] = death
    log_keys += _expired_seals(view, config)
    dead_logs = set(log_keys)
    still_live = live_paths(file for file in view.files if file.key not in dead_logs)
    # Who carries what a dead log file names is stripped once it is deleted; the dead log file goes as it is.
    active = [file for file in view.files if file.key not in snapshot.log_tombstoned_ms]
    named = {marker.path for file in active for marker in file.log.markers}
    died_data: dict[str, Death] = {}
    for path, tombstoned_ms in snapshot.tombstoned_ms.items():
        death = Death(tombstoned_ms, data_landed[path])
        guard = holds.guard_data(path, death, grace_ms=config.data_grace_ms, now_ms=now_ms)
        if guard:
            waiting.append(guard)
        elif path not in named or path in still_live:
            # J2: a log file that lists it as live is still there; it goes when that one has gone.
            waiting.append(Waiting(path, "grace", now_ms + config.log_grace_ms))
        else:
            died_data[path] = death
    held = _held_back(active, died_data, grace_ms=config.data_grace_ms, now_ms=now_ms)
    waiting += [Waiting(path, "grace", until_ms) for path, until_ms in held.items()]
    data_paths = sorted(died_data.keys() - held.keys())
    died.update((path, died_data[path]) for path in data_paths)
    return VacuumPlan(
        log_keys=tuple(sorted(log_keys)),
        batch_ids=tuple(i for file in view.files if file.key in dead_logs for i in file.log.batch_ids),
        refused_ids={f.key: f.log.refused_ids for f in view.files if f.key in dead_logs and f.log.refused_ids},
        data_paths=tuple(data_paths),
        waiting=tuple(waiting),
        died=died,
        store_now_ms=now_ms,
    )


def live_paths(files: Iterable[ListedLogFile]) -> set[str]:
    """Return the data files that at least one of the log files lists as live, whatever the others say (J2)."""
    return {marker.path for file in files for marker in file.log.markers if marker.is_live}


def strip_log_file(
    file: ListedLogFile, view: LogView, *, gone_logs: Collection[str], gone_data: Collection[str]
) -> LogFile | None:
    """Return a log file without the tombstones of what is certainly deleted (J3); ``None`` if nothing changes.

    ``time_ms`` stays. The horizon is recorded (R3), and the proof of landing of what remains (J1): the rewrite
    moves LastModified.
    """
    log = file.log
    log_tombstones = tuple(t for t in log.log_tombstones if t.path not in gone_logs)
    markers = tuple(m for m in log.markers if m.is_live or m.path not in gone_data)
    gone_count = len(log.log_tombstones) - len(log_tombstones)
    gone_logs_pay = _is_worth_a_strip(file, gone_count) or view.store_now_ms - log.time_ms >= LOG_REST_MS
    # Deletions of data files have waited for their strip already; log tombstones do no harm for a day.
    if len(markers) == len(log.markers) and not (gone_count and gone_logs_pay):
        return None
    stripped_ms = [t.tombstoned_ms for t in log.log_tombstones if t.path in gone_logs]
    return replace(
        log,
        log_tombstones=tuple(
            replace(t, landed_ms=earliest_landing(t.landed_ms, file.modified_ms)) for t in log_tombstones
        ),
        markers=tuple(
            m if m.is_live else replace(m, landed_ms=earliest_landing(m.landed_ms, file.modified_ms)) for m in markers
        ),
        horizon_ms=max([read_horizon_ms(view), log.horizon_ms or 0, *stripped_ms]) or None,
    )


def _is_worth_a_strip(file: ListedLogFile, gone_count: int) -> bool:
    entries = len(file.log.markers) + len(file.log.log_tombstones)
    return file.size_bytes <= FREE_LOG_BYTES or gone_count * STRIP_SHARE >= entries


def _held_back(
    active: Iterable[ListedLogFile], died: Mapping[str, Death], *, grace_ms: int, now_ms: int
) -> dict[str, int]:
    """Return which of the expired data files wait for the strip of a large log file, and until when."""
    held: dict[str, int] = {}
    for file in active:
        expired = [marker.path for marker in file.log.markers if marker.path in died]
        if not expired or _is_worth_a_strip(file, len(expired)):
            continue
        until_ms = min(died[path].died_ms for path in expired) + grace_ms + grace_ms // STRIP_SHARE
        if until_ms > now_ms:
            held.update((path, until_ms) for path in expired)
    return held


def _landing_times(proofs: Iterable[tuple[str, int | None, int]]) -> dict[str, int]:
    landed: dict[str, int] = {}
    for path, recorded_ms, modified_ms in proofs:
        proof_ms = modified_ms if recorded_ms is None or recorded_ms > modified_ms else recorded_ms
        known = landed.get(path)
        if known is None or proof_ms < known:
            landed[path] = proof_ms
    return landed


def _expired_seals(view: LogView, config: TableConfig) -> list[str]:
    return [
        file.key
        for file in view.files
        if file.log.is_seal and file.modified_ms + config.seal_age_ms <= view.store_now_ms  # F4
    ]
