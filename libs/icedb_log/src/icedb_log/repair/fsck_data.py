"""Data files under ``icedb fsck``: what is missing, what nobody names, what has another size, what fits no partition.

All objects of a table are listed once and compared with what its log said before (J5's order turned round). The log is
read, *then* the objects are listed, *then* the log is read again; what that makes certain:

* A data file that is live in both logs was there all the time in between (W1, J2): if the listing does not show it, it
  is dangling. (With one log only: it is merged and vacuumed between log and listing, and nothing is wrong.)
* A data file that neither log names and that is too old to be committed any more (W3) is an orphan. (With the first log
  only: it is committed meanwhile. With the second one only: it is listed, then vacuumed and stripped.)

Costs one LIST for each thousand objects. Memory: a reference for each data file that the first log names, and what does
not fit.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from icedb_log.clean.table_walk import FUTURE_MS
from icedb_log.errors import InvalidRequest, NotFound
from icedb_log.holds.guards import STORE_RESOLUTION_MS, find_data_deaths
from icedb_log.keys import ObjectKind, TablePaths, find_kind
from icedb_log.log.fold import named_paths
from icedb_log.log.widening import is_widening
from icedb_log.model import FileMarker, LogView
from icedb_log.repair.fsck_findings import Findings
from icedb_log.repair.fsck_log import CheckedLog
from icedb_log.store.object_store import ObjectInfo, list_pages, map_each
from icedb_log.store.table_store import TableStore
from icedb_log.table.partitions import parse_partition_path
from icedb_log.table.table_config import PartitionField, TableConfig
from icedb_log.table.transforms import VALUE_SHAPES
from icedb_log.units import MINUTE_MS

MAX_UNNAMED: Final = 100_000
"""Unnamed data files that are looked at singly; more are only counted."""
MAX_KEPT: Final = 10_000
"""Objects of each other kind that are looked at singly."""
MAX_LOOKS: Final = 1000
"""Suspects that are looked at once more, singly."""

Progress = Callable[[str, int, int | None], None]
"""Called with what is being done, how far it is, and how far it will go (``None``: nobody knows)."""


def no_progress(stage: str, done: int, total: int | None) -> None:
    """Nobody watches."""


@dataclass(slots=True)
class Walk:
    """What is there.

    Attributes:
        prefix: What every key began with that was listed.
        store_now_ms: The store's clock at the first page.
        object_count: All objects.
        missing: Data files of those that were looked for (live, dead, tagged) that the listing did not show.
        resized: Live data files of another size than the log says, with that of the object.
        unnamed: Data files that the first log does not name, at most ``MAX_UNNAMED``.
        unnamed_count: All of these.
        strays: Objects beside ``_log/`` that begin as it does.
        unknown: Objects of no kind that this release knows.
        future: Objects from the store's future, with how far they lie there.
        by_kind: Other objects, by kind, at most ``MAX_KEPT`` of each.
    """

    prefix: str = ""
    store_now_ms: int = 0
    object_count: int = 0
    missing: set[str] = field(default_factory=set)
    resized: dict[str, int] = field(default_factory=dict)
    unnamed: list[ObjectInfo] = field(default_factory=list)
    unnamed_count: int = 0
    strays: list[ObjectInfo] = field(default_factory=list)
    unknown: list[ObjectInfo] = field(default_factory=list)
    future: list[tuple[ObjectInfo, int]] = field(default_factory=list)
    by_kind: dict[ObjectKind, list[ObjectInfo]] = field(default_factory=dict)

    def of_kind(self, kind: ObjectKind) -> list[ObjectInfo]:
        """Return the objects of a kind."""
        return self.by_kind.get(kind, [])

    def note(self, paths: TablePaths, info: ObjectInfo, live: Mapping[str, FileMarker]) -> None:
        """Take an object in."""
        key = info.key
        marker = live.get(key)
        if marker is not None and marker.size_bytes != info.size_bytes:
            self.resized[key] = info.size_bytes
        if marker is not None or key in self.missing:
            self.missing.discard(key)
            return
        kind = find_kind(paths, key)
        if kind == "data_file":
            self.unnamed_count += 1
            _keep(self.unnamed, info, MAX_UNNAMED)
        elif key.startswith(f"{paths.prefix}/_log"):
            if not key.startswith(paths.log_prefix):
                _keep(self.strays, info)
        else:
            _keep(self.unknown if kind is None else self.by_kind.setdefault(kind, []), info)


def _keep(kept: list[ObjectInfo], info: ObjectInfo, limit: int = MAX_KEPT) -> None:
    if len(kept) < limit:
        kept.append(info)


def walk_objects(
    table: TableStore,
    *,
    live: Mapping[str, FileMarker],
    named: set[str],
    progress: Progress = no_progress,
    page_size: int = 1000,
) -> Walk:
    """List everything below a table's prefix.

    Args:
        table: Its store and keys.
        live: What the log listed as live, before.
        named: All data files that somebody named before: live, dead, tagged. Becomes ``Walk.missing``.
        progress: Told after each page.
        page_size: Keys per page; smaller only in tests.

    Raises:
        Unavailable: The store did not answer.
    """
    walk = Walk(f"{table.paths.prefix}/", missing=named)
    known = len(named)
    for page in list_pages(table.store, walk.prefix, page_size=page_size):
        walk.store_now_ms = walk.store_now_ms or page.store_now_ms
        for info in page.objects:
            walk.note(table.paths, info, live)
            if info.modified_ms > page.store_now_ms + FUTURE_MS and len(walk.future) < MAX_KEPT:
                walk.future.append((info, info.modified_ms - page.store_now_ms))
        walk.object_count += len(page.objects)
        progress("objects", walk.object_count, max(known, walk.object_count))
    return walk


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a run has read of a table, and where its findings go.

    Attributes:
        table: The table, for a second look at suspects.
        found: Takes the findings.
        config: The configuration, if it can be read.
        before: The log before the objects were listed.
        walk: The objects.
        after: The log after that.
        threads: How many looks at once; 1: in the caller's thread.
    """

    table: TableStore
    found: Findings
    config: TableConfig | None
    before: CheckedLog
    walk: Walk
    after: CheckedLog
    threads: int

    def still_missing(self, suspects: set[str]) -> list[str]:
        """Return the paths that are not there; for those beyond ``MAX_LOOKS`` the listing has to do."""
        paths = sorted(suspects)
        gone = self.missing_now(paths[:MAX_LOOKS])
        rest = [path for path in paths[MAX_LOOKS:] if path.startswith(self.walk.prefix)]
        return [path for path in paths[:MAX_LOOKS] if path in gone] + rest

    def missing_now(self, paths: list[str]) -> set[str]:
        """Return the paths that are not there, each looked at by itself."""
        missing = map_each(self._is_missing, paths, threads=self.threads, name="icedb-fsck")
        return {path for path, is_missing in zip(paths, missing, strict=True) if is_missing}

    def _is_missing(self, path: str) -> bool:
        try:
            self.table.store.head(path)
        except (NotFound, InvalidRequest):  # a key that no store takes is never there
            return True
        return False


def check_data(seen: Inspection) -> None:
    """Report what is missing, unnamed or resized, and what does not belong here. Raises Unavailable."""
    found, walk, before, after, config = seen.found, seen.walk, seen.before, seen.after, seen.config
    _check_strangers(seen)
    for path, size_bytes in walk.resized.items():
        marker = after.live.get(path)
        if marker is not None and marker.size_bytes != size_bytes:
            found.add("size-mismatch", path, found=size_bytes, logged=marker.size_bytes)
    if not (before.is_whole and after.is_whole):
        return
    for path in seen.still_missing(walk.missing & after.live.keys() & before.live.keys()):
        rows = after.live[path].row_count
        found.add("dangling", path, rows="?" if rows is None else f"{rows:,}")
    early = walk.missing & before.dead & after.dead
    if config is not None and early:
        deaths = find_data_deaths(LogView(seen.table.name, after.readable, after.store_now_ms))
        # J1: from when on the janitor may delete it.
        left_ms = {path: deaths[path].died_ms + config.data_grace_ms - after.store_now_ms for path in early}
        for path in seen.still_missing({path for path in early if left_ms[path] > STORE_RESOLUTION_MS}):
            found.add("dangling-dead", path, minutes=left_ms[path] / MINUTE_MS)
    _check_unnamed(seen)


def _check_strangers(seen: Inspection) -> None:
    found, walk = seen.found, seen.walk
    for info in walk.strays:
        found.add("stray-below-log", info.key)
    for info in walk.unknown:
        if not info.key.startswith(seen.table.paths.staging_prefix):
            found.add("unknown-object", info.key, size_bytes=info.size_bytes)
    if walk.future:
        info, ahead_ms = walk.future[0]
        found.add("store-clock:objects", info.key, count=len(walk.future), minutes=ahead_ms / MINUTE_MS)


def _check_unnamed(seen: Inspection) -> None:
    found, walk, config = seen.found, seen.walk, seen.config
    named = named_paths(seen.after.readable) if walk.unnamed else set()
    unnamed = [info for info in walk.unnamed if info.key not in named]
    if not unnamed:
        return
    age_ms = config.orphan_age_ms if config is not None else 0
    old = {info.key: info for info in unnamed if info.modified_ms + age_ms <= walk.store_now_ms}
    young = [info for info in unnamed if info.key not in old]
    if young:
        found.add("orphan:young", young[0].key, count=len(young))
    gone = seen.missing_now(sorted(old)[:MAX_LOOKS])
    for path in sorted(old.keys() - gone):
        found.add("orphan", path, size_bytes=old[path].size_bytes)
    unseen = walk.unnamed_count - len(walk.unnamed)
    if unseen:
        found.add("orphan:more", (old and min(old)) or unnamed[0].key, count=unseen)


def check_config(seen: Inspection, config: TableConfig) -> None:
    """The configuration against the log: name, partitions of live files, declared types, columns."""
    found, paths, log, key = seen.found, seen.table.paths, seen.after, seen.table.paths.config_key
    if config.name != paths.name:
        found.add("config-mismatch:name", key, name=config.name)
    for column, declared in config.declared.items():
        known = log.schema.get(column, declared)
        if declared != known and not is_widening(known, declared):
            found.add("config-mismatch:type", key, column=column, declared=declared, known=known)
    for each in config.partition if log.live and log.is_whole else ():  # a sort column may be one that no row has yet
        if each.column not in log.schema:
            found.add("config-mismatch:column", key, column=each.column)
    partitions: dict[str, str] = {}
    for path in log.live:
        if path.startswith(paths.data_prefix):
            partitions.setdefault(path.removeprefix(paths.data_prefix).rpartition("/")[0], path)
    for partition, path in partitions.items():
        problem = find_partition_problem(partition, config.partition)
        if problem:
            found.add("config-mismatch", path, problem=problem)


def find_partition_problem(partition: str, spec: tuple[PartitionField, ...]) -> str | None:
    """Return why a partition path is none of a partition spec; ``None`` if it is one."""
    wanted = "/".join(f"{each.name}=…" for each in spec) or "(none)"
    try:
        values = parse_partition_path(partition)
    except InvalidRequest as error:
        return str(error)
    if [name for name, _ in values] != [each.name for each in spec]:
        return f"it lies in partition {partition or '(none)'}; the configuration says {wanted}"
    for (_, value), each in zip(values, spec, strict=True):
        shape, _ = VALUE_SHAPES.get(each.transform, (None, ""))
        if shape is not None and not shape.fullmatch(value):
            return f"{value[:80]!r} is no {each.transform}, which partition each {each.name} is"
        if each.transform == "bucket" and int(value) >= (each.width or 1):
            return f"bucket {value} of partition each {each.name}, which has {each.width}"
    return None
