"""One walk through everything of a table, page by page: what the orphan sweep and the leftovers work from (J5).

Costs one LIST for each thousand objects. What is kept in memory is bounded: of data files those that a log did not name
when the walk began (which decides nothing: it saves holding the others), of these as many as one sweep takes; of
other kinds those that can be a leftover. Deletes nothing.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from icedb_log.keys import ObjectKind, file_time_ms, find_kind
from icedb_log.store.object_store import ObjectInfo, ObjectPage, list_pages
from icedb_log.store.table_store import TableStore
from icedb_log.units import DAY_MS, MINUTE_MS

MAX_CANDIDATES: Final = 200_000
"""Old unnamed data files that one sweep takes: the oldest ones. The next sweeps take the others."""
MAX_YOUNG: Final = 10_000
"""Young unnamed data files that one sweep looks at singly; more of them are only counted."""
MAX_LEFTOVERS: Final = 100_000
"""Objects of each other kind that one sweep takes."""
MAX_NAMES: Final = 1000
"""Keys that a result lists where it only reports."""

FUTURE_MS: Final = MINUTE_MS
"""An object that is this much younger than the store's own "now" is reported: somebody's clock is wrong."""

LATE_STAGED_MS: Final = DAY_MS
"""A batch that has been staged for longer is counted: nobody flushes this table."""


@dataclass(slots=True)
class Tally:
    """How many objects, and how large together."""

    count: int = 0
    size_bytes: int = 0

    def add(self, info: ObjectInfo) -> None:
        """Count one more."""
        self.count += 1
        self.size_bytes += info.size_bytes

    def take(self, info: ObjectInfo) -> None:
        """Count one less."""
        self.count -= 1
        self.size_bytes -= info.size_bytes


@dataclass(slots=True)
class TableWalk:
    """What lies below a table's prefix.

    Attributes:
        store_now_ms: The store's clock at the first page: the earliest, hence the careful one for ages.
        data: All data files. Nothing else below ``_data``: others' objects must not make a lost log look small.
        old: Unnamed data files that are older than the age, the oldest ``MAX_CANDIDATES`` of them.
        old_tally: All of these.
        young: Unnamed data files that are younger, at most ``MAX_YOUNG`` of them.
        young_tally: All of these.
        future: Unnamed data files whose LastModified or name lies in the store's future; they are young.
        unknown: Objects of no kind that this release knows, at most ``MAX_NAMES`` of them.
        unknown_count: All of these.
        leftovers: By kind, objects that are old enough to be a leftover, at most ``MAX_LEFTOVERS`` of each kind.
        late_staged_count: Staged objects, batches or groups of them, that are there for longer than ``LATE_STAGED_MS``.
    """

    store_now_ms: int = 0
    data: Tally = field(default_factory=Tally)
    old: list[ObjectInfo] = field(default_factory=list)
    old_tally: Tally = field(default_factory=Tally)
    young: list[ObjectInfo] = field(default_factory=list)
    young_tally: Tally = field(default_factory=Tally)
    future: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    unknown_count: int = 0
    leftovers: dict[ObjectKind, list[ObjectInfo]] = field(default_factory=dict)
    late_staged_count: int = 0

    @property
    def has_more(self) -> bool:
        """Whether there are more old unnamed data files than ``old`` holds."""
        return self.old_tally.count > len(self.old)

    def keep_unnamed(self, named: Collection[str]) -> None:
        """Leave out what a log names that was read after the walk (J5)."""
        self.old = _keep(self.old, self.old_tally, named)
        self.young = _keep(self.young, self.young_tally, named)
        self.future = [key for key in self.future if key not in named]


def walk_table(
    table: TableStore,
    *,
    named: Collection[str],
    age_ms: int,
    leftover_ages_ms: Mapping[ObjectKind, int],
) -> TableWalk:
    """List everything below a table's prefix but the log.

    ``named`` are data files that the log named just before: they are not held. From ``age_ms`` on an unnamed data file
    is old; ``leftover_ages_ms`` says which other kinds to hold, and from which age on.

    Raises:
        Unavailable: The store did not answer.
    """
    walk = TableWalk()
    for page in list_pages(table.store, f"{table.paths.prefix}/"):
        walk.store_now_ms = walk.store_now_ms or page.store_now_ms
        for info in page.objects:
            kind = find_kind(table.paths, info.key)
            if kind == "data_file":
                walk.data.add(info)
                if info.key not in named:
                    _sort_data_file(walk, info, page=page, age_ms=age_ms)
            elif kind is None:
                walk.unknown_count += 1
                if len(walk.unknown) < MAX_NAMES:
                    walk.unknown.append(info.key)
            elif kind == "staged_batch":
                walk.late_staged_count += info.modified_ms + LATE_STAGED_MS <= walk.store_now_ms
            elif kind in leftover_ages_ms and info.modified_ms + leftover_ages_ms[kind] <= walk.store_now_ms:
                found = walk.leftovers.setdefault(kind, [])
                if len(found) < MAX_LEFTOVERS:
                    found.append(info)
    walk.old = _oldest(walk.old)
    return walk


def born_ms(info: ObjectInfo) -> int:
    """Return from when on the age of a data file counts: two witnesses, the younger one counts (J5).

    A store that says 1970 of everything does not make a fresh upload old: its name says when it was made. A writer
    whose clock is slow does not, either: LastModified is the store's.
    """
    return max(info.modified_ms, file_time_ms(info.key) or 0)


def _sort_data_file(walk: TableWalk, info: ObjectInfo, *, page: ObjectPage, age_ms: int) -> None:
    # By the store's clock when the walk began; W3 keeps a file of half this age from being committed any more.
    if _is_old(info, age_ms=age_ms, now_ms=walk.store_now_ms):
        walk.old_tally.add(info)
        walk.old.append(info)
        if len(walk.old) >= 2 * MAX_CANDIDATES:
            walk.old = _oldest(walk.old)
        return
    walk.young_tally.add(info)
    if len(walk.young) < MAX_YOUNG:
        walk.young.append(info)
    if born_ms(info) > page.store_now_ms + FUTURE_MS and len(walk.future) < MAX_NAMES:
        walk.future.append(info.key)


def _is_old(info: ObjectInfo, *, age_ms: int, now_ms: int) -> bool:
    return born_ms(info) + age_ms <= now_ms


def _oldest(infos: Iterable[ObjectInfo]) -> list[ObjectInfo]:
    return sorted(infos, key=lambda info: (info.modified_ms, info.key))[:MAX_CANDIDATES]


def _keep(infos: list[ObjectInfo], tally: Tally, named: Collection[str]) -> list[ObjectInfo]:
    kept = []
    for info in infos:
        if info.key in named:
            tally.take(info)
        else:
            kept.append(info)
    return kept
