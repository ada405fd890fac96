"""Data files against the log: what is missing, what nobody names, what has another size, what does not fit the spec.

What is certain, and why, follows from the order of reads: :mod:`icedb_log.repair.fsck_objects`.
"""

import re
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from icedb_log.clean.guards import STORE_RESOLUTION_MS
from icedb_log.errors import InvalidRequest, NotFound
from icedb_log.keys import TablePaths
from icedb_log.log.widening import is_widening
from icedb_log.model import ListedLogFile
from icedb_log.repair.fsck_log import CheckedLog
from icedb_log.repair.fsck_objects import Walk
from icedb_log.repair.fsck_report import Findings
from icedb_log.store.object_store import ObjectStore
from icedb_log.table.partition_path import parse_partition_path
from icedb_log.table.table_config import PartitionField, TableConfig

MAX_LOOKS: Final = 1000
"""Suspects that are looked at once more, singly."""

_VALUES: Final[Mapping[str, re.Pattern[str]]] = {
    "year": re.compile(r"[+-]?\d{4,6}"),
    "month": re.compile(r"[+-]?\d{4,6}-\d\d"),
    "day": re.compile(r"[+-]?\d{4,6}-\d\d-\d\d"),
    "hour": re.compile(r"[+-]?\d{4,6}-\d\d-\d\d-\d\d"),
    "bucket": re.compile(r"\d{1,7}"),
}


def check_data(
    found: Findings,
    store: ObjectStore,
    walk: Walk,
    *,
    before: CheckedLog,
    after: CheckedLog,
    config: TableConfig | None,
    threads: int,
) -> None:
    """Report what is missing, unnamed or resized.

    Args:
        found: Takes the findings.
        store: For a second look at suspects.
        walk: The objects, listed between the two logs.
        before: The log before.
        after: The log after.
        config: The configuration, if it can be read.
        threads: How many looks at once.

    Raises:
        Unavailable: The store did not answer.
    """
    for path, size_bytes in walk.resized.items():
        marker = after.live.get(path)
        if marker is not None and marker.size_bytes != size_bytes:
            found.add("size-mismatch", path, f"{size_bytes:,} bytes; the log says {marker.size_bytes:,}")
    if not (before.is_whole and after.is_whole):
        return
    look = _SecondLook(store, walk.prefix, threads)
    _check_missing(found, look, walk, before=before, after=after, config=config)
    _check_unnamed(found, look, walk, after=after, config=config)


def _check_missing(
    found: Findings,
    look: "_SecondLook",
    walk: Walk,
    *,
    before: CheckedLog,
    after: CheckedLog,
    config: TableConfig | None,
) -> None:
    lost = sorted(path for path in walk.missing if path in after.live and path in before.live)
    for path in look.still_missing(lost):
        rows = after.live[path].row_count
        found.add("dangling", path, f"is live and not there: {'?' if rows is None else f'{rows:,}'} rows are lost")
    if config is None:
        return
    early = sorted(path for path in walk.missing if path in before.dead and path in after.dead)
    if not early:
        return
    gone_ms = _gone_from(after.readable, config.data_grace_ms)
    early = [path for path in early if gone_ms.get(path, 0) > after.store_now_ms + STORE_RESOLUTION_MS]
    for path in look.still_missing(early):
        minutes = (gone_ms[path] - after.store_now_ms) / 60_000
        found.add("dangling-dead", path, f"died, and went {minutes:,.1f} min or more before its grace period is over")


def _gone_from(files: Iterable[ListedLogFile], grace_ms: int) -> dict[str, int]:
    """Return from when on the janitor may delete each dead data file, as far as the log tells (J1): the earliest."""
    times: dict[str, int] = {}
    landed: dict[str, int] = {}
    for file in files:
        for marker in file.log.markers:
            if marker.tombstoned_ms is not None:
                path = marker.path
                proof_ms = min(marker.landed_ms or file.modified_ms, file.modified_ms)
                times[path] = min(times.get(path, marker.tombstoned_ms), marker.tombstoned_ms)
                landed[path] = min(landed.get(path, proof_ms), proof_ms)
    return {path: max(time_ms, landed[path]) + grace_ms for path, time_ms in times.items()}


def _check_unnamed(
    found: Findings, look: "_SecondLook", walk: Walk, *, after: CheckedLog, config: TableConfig | None
) -> None:
    named = {marker.path for file in after.readable for marker in file.log.markers} if walk.unnamed else set()
    unnamed = [info for info in walk.unnamed if info.key not in named]
    if not unnamed:
        return
    age_ms = config.orphan_age_ms if config is not None else 0
    old = {info.key: info for info in unnamed if info.modified_ms + age_ms <= walk.store_now_ms}
    young = len(unnamed) - len(old)
    if young:
        first = next(info for info in unnamed if info.key not in old)
        found.add(
            "orphan",
            first.key,
            f"{young} young data files that no log file names: about to be committed, or left by a run cut off",
            severity="note",
        )
    gone = look.missing_now(sorted(old)[:MAX_LOOKS])
    for path in sorted(old.keys() - gone):
        found.add("orphan", path, f"{old[path].size_bytes:,} bytes that no log file names")
    unseen = walk.unnamed_count - len(walk.unnamed)
    if unseen:
        found.add("orphan", (old and min(old)) or unnamed[0].key, f"and {unseen:,} more that the log did not name")


@dataclass(frozen=True, slots=True)
class _SecondLook:
    """Looks once more at objects that are suspect, each by itself.

    Attributes:
        store: The object store.
        within: What the listing showed: keys that begin so.
        threads: How many looks at once; 1: in the caller's thread.
    """

    store: ObjectStore
    within: str
    threads: int

    def still_missing(self, paths: list[str]) -> list[str]:
        """Return the paths that are not there; for those beyond ``MAX_LOOKS`` the listing has to do."""
        gone = self.missing_now(paths[:MAX_LOOKS])
        rest = [path for path in paths[MAX_LOOKS:] if path.startswith(self.within)]
        return [path for path in paths[:MAX_LOOKS] if path in gone] + rest

    def missing_now(self, paths: list[str]) -> set[str]:
        """Return the paths that are not there."""
        if self.threads == 1 or len(paths) < 2:  # noqa: PLR2004 - one needs no pool
            return {path for path in paths if self._is_missing(path)}
        with ThreadPoolExecutor(min(self.threads, len(paths)), "icedb-fsck") as pool:
            missing = pool.map(self._is_missing, paths)
            return {path for path, is_missing in zip(paths, missing, strict=True) if is_missing}

    def _is_missing(self, path: str) -> bool:
        try:
            self.store.head(path)
        except (NotFound, InvalidRequest):  # a key that no store takes is never there
            return True
        return False


def check_config(found: Findings, paths: TablePaths, log: CheckedLog, config: TableConfig) -> None:
    """The configuration against the log: name, partitions of live files, declared types, columns."""
    if config.name != paths.name:
        found.add("config-mismatch", paths.config_key, f"it is the configuration of table {config.name!r}")
    schema = {column: sql_type for file in log.readable for column, sql_type in file.log.schema.items()}
    widened = {column: sql_type for file in log.readable for column, sql_type in file.log.widened.items()}
    for column, declared in config.declared.items():
        known = widened.get(column, schema.get(column, declared))
        if declared != known and not is_widening(known, declared):
            found.add(
                "config-mismatch", paths.config_key, f"column {column!r} is declared {declared}; the log says {known}"
            )
    if log.live and log.is_whole:
        for field in config.partition:  # a sort column may be one that no row has yet
            if field.column not in schema:
                found.add(
                    "config-mismatch",
                    paths.config_key,
                    f"column {field.column!r} makes partitions, and the log has none",
                )
    for partition, path in _first_of_partitions(paths, log).items():
        problem = find_partition_problem(partition, config.partition)
        if problem:
            found.add("config-mismatch", path, problem)


def _first_of_partitions(paths: TablePaths, log: CheckedLog) -> dict[str, str]:
    """Return each partition of live data files, with one of them."""
    start = len(paths.data_prefix)
    partitions: dict[str, str] = {}
    for path in log.live:
        if path.startswith(paths.data_prefix):
            partitions.setdefault(path[start:].rpartition("/")[0], path)
    return partitions


def find_partition_problem(partition: str, spec: tuple[PartitionField, ...]) -> str | None:
    """Return why a partition path is none of a partition spec; ``None`` if it is one."""
    wanted = "/".join(f"{field.name}=…" for field in spec) or "(none)"
    try:
        values = parse_partition_path(partition)
    except InvalidRequest as error:
        return str(error)
    if [value.name for value in values] != [field.name for field in spec]:
        return f"it lies in partition {partition or '(none)'}; the configuration says {wanted}"
    for value, field in zip(values, spec, strict=True):
        pattern = _VALUES.get(field.transform)
        if pattern is not None and not pattern.fullmatch(value.value):
            return f"{value.value[:80]!r} is no {field.transform}, which partition field {field.name} is"
        if field.transform == "bucket" and int(value.value) >= (field.width or 1):
            return f"bucket {value.value} of partition field {field.name}, which has {field.width}"
    return None
