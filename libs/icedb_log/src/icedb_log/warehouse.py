"""A warehouse: one object store, one root prefix, many tables below it."""

import threading
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from cachetools import TTLCache

from icedb_log.clock import Clock
from icedb_log.errors import Unavailable, UnsupportedFormat, crashes_told
from icedb_log.intervals import MAX_REST_MS
from icedb_log.keys import TABLE_NAME, TablePaths, check_table_name
from icedb_log.store.object_store import ObjectStore, map_each
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import find_newest, load_place
from icedb_log.table.table_config import Dropped, TableConfig

READ_THREADS: Final = 16
FEW_TABLES: Final = 8
"""So many configurations are read one after the other; more of them side by side."""
MAX_KNOWN_NAMES: Final = 10_000
"""Of so many names it is remembered which table is the newest (T4); then all are looked for again."""
SEEN_MS: Final = MAX_REST_MS
"""How long a folder that was seen to be a table is taken for one."""
MAX_SEEN: Final = 100_000


@dataclass(frozen=True, slots=True)
class DroppedTable:
    """A table that is dropped, as a listing finds it.

    Attributes:
        place: Where it lies.
        config: Its configuration, as it was.
        mark: What becomes of it.
        modified_ms: When the mark was written, unix ms by the store's clock.
    """

    place: TableStore
    config: TableConfig
    mark: Dropped
    modified_ms: int

    @property
    def name(self) -> str:
        """Its name."""
        return self.place.name

    @property
    def dropped_ms(self) -> int:
        """When it was dropped, unix ms by the store's clock."""
        return self.modified_ms if self.mark.dropped_ms is None else self.mark.dropped_ms

    @property
    def due_ms(self) -> int:
        """When its time in the trash is over, unix ms by the store's clock."""
        return self.dropped_ms + self.mark.keep_ms


@dataclass(frozen=True, slots=True)
class Warehouse:
    """Where tables live.

    Attributes:
        store: The object store.
        root: Prefix of all tables without slashes at its ends; may be empty.
    """

    store: ObjectStore
    root: str = ""
    _numbers: dict[str, int] = field(default_factory=dict, repr=False, compare=False)

    def table(self, name: str) -> TableStore:
        """Return where the newest table of a name lies; it need not exist.

        Which one that is, is looked for once, in one or two GETs, and again when the one that was known is purged.

        Raises:
            InvalidRequest: A bad name.
            Unavailable: The store did not answer.
        """
        first = self.first(name)
        number = self._numbers.get(name)
        if number is None:
            try:
                number = find_newest(first).place.paths.number
            except UnsupportedFormat:
                number = 1  # whoever works on it says what is wrong
            # WARN: a plain dict, each step of which is one for all threads: a cache that reorders itself would break.
            if len(self._numbers) >= MAX_KNOWN_NAMES:
                self._numbers.clear()
            self._numbers[name] = number
        place = first.numbered(number)
        place.on_purged = partial(self._numbers.pop, name, None)
        return place

    def knows(self, name: str) -> bool:
        """Whether :meth:`table` asks the store for nothing just now."""
        return name in self._numbers

    def first(self, name: str) -> TableStore:
        """Return where the first table of a name lies, or lay. Raises InvalidRequest for a bad name."""
        check_table_name(name)
        return TableStore(self.store, TablePaths(name, f"{self.root}/{name}" if self.root else name))

    def list_tables(self, *, known: Container[str] = (), names: Sequence[str] | None = None) -> tuple[str, ...]:
        """List the tables that are there and not dropped, ascending. Costs one listing and one read per folder.

        One whose configuration does not answer is listed, too: it hides none of the others, and is not hidden itself.
        Whoever works on it says what is wrong.

        Args:
            known: Folders that are taken for tables without a read, because the caller has lately seen that they are.
            names: All folders, if they have just been listed.

        Raises:
            Unavailable: The folders could not be listed.
        """
        names = self.list_names() if names is None else names
        looked = dict(self._look([name for name in names if name not in known], is_whole=False))
        there = {name for name, found in looked.items() if isinstance(found, Unavailable) or found[0]}
        return tuple(name for name in names if name in there or name not in looked)

    def list_dropped(
        self, *, known: Container[str] = (), on_problem: Callable[[str, Unavailable], None] | None = None
    ) -> tuple[DroppedTable, ...]:
        """List the tables that are dropped, ascending by name: in the trash, being purged, purged.

        Costs what :meth:`list_tables` costs, and a read for each table of a name that was purged before.

        Args:
            known: Folders that are not read, because the caller has lately seen that nothing of them is dropped.
            on_problem: Told of each name of which nobody knows whether it is dropped, because its configuration does
                not answer; by default that is raised.

        Raises:
            Unavailable: The store did not answer.
        """
        dropped: list[DroppedTable] = []
        for name, found in self._look([name for name in self.list_names() if name not in known], is_whole=True):
            if not isinstance(found, Unavailable):
                dropped += found[1]
            elif on_problem is None:
                raise found
            else:
                on_problem(name, found)
        return tuple(dropped)

    def list_names(self) -> tuple[str, ...]:
        """List the folders that a table may have, ascending: those of tables, of dropped ones, and of others."""
        folders = self.store.list_folders(f"{self.root}/" if self.root else "")
        return tuple(name for name in folders if TABLE_NAME.fullmatch(name))

    def has_table(self, name: str) -> bool:
        """Whether a table is there and not dropped; one whose configuration cannot be understood is there."""
        return self._look_at(self.first(name), is_whole=False)[0]

    def _look(
        self, names: Sequence[str], *, is_whole: bool
    ) -> Iterator[tuple[str, tuple[bool, tuple[DroppedTable, ...]] | Unavailable]]:
        threads = READ_THREADS if len(names) > FEW_TABLES else 1
        look = partial(self._try_look_at, is_whole=is_whole)
        return zip(
            names, map_each(look, [*map(self.first, names)], threads=threads, name="icedb-warehouse"), strict=True
        )

    def _try_look_at(self, first: TableStore, *, is_whole: bool) -> tuple[bool, tuple[DroppedTable, ...]] | Unavailable:
        try:
            with crashes_told(f"table {first.name}: its configuration"):
                return self._look_at(first, is_whole=is_whole)
        except Unavailable as error:
            return error

    def _look_at(self, first: TableStore, *, is_whole: bool) -> tuple[bool, tuple[DroppedTable, ...]]:
        """Return whether a table of a name is there, and which ones are dropped: of all, or of the newest."""
        try:
            newest = find_newest(first)
            numbers = range(1, newest.place.paths.number) if is_whole else range(0)
            found = (*(load_place(first.numbered(number)) for number in numbers), newest)
        except UnsupportedFormat:
            return True, ()  # whoever works on it says what is wrong
        dropped = tuple(
            DroppedTable(each.place, each.config, each.config.dropped, each.info.modified_ms)
            for each in found
            if each.config is not None and each.config.dropped is not None and each.info is not None
        )
        return newest.config is not None and newest.config.dropped is None, dropped


class SeenTables(Protocol):
    """What several processes know together of the folders that one of them has lately seen to be tables."""

    def find_tables(self, names: Collection[str]) -> Collection[str]:
        """Return those of some folders that one of them has; none where nobody knows. Raises nothing."""
        ...

    def note_tables(self, names: Collection[str], *, for_ms: int) -> None:
        """Let the others know for a time. Raises nothing."""
        ...

    def forget_table(self, name: str) -> None:
        """Take it back. Raises nothing."""
        ...


class RecentTables:
    """The tables of a warehouse as they were lately, for who asks again and again. Thread-safe.

    Args:
        clock: This host's.
        max_age_ms: How old the list may be. Each costs a listing, and a read for each folder that was not seen to be a
            table lately.
        seen_ms: What that means: so much later a dropped one may be missed, unless :meth:`forget` tells of it; twice as
            much with ``others``.
        others: Opens what is known together with others.
    """

    def __init__(
        self,
        clock: Clock,
        *,
        max_age_ms: int,
        seen_ms: int = SEEN_MS,
        others: Callable[[], SeenTables] | None = None,
    ) -> None:
        self._seen_ms = seen_ms
        self._others = others
        self._names: TTLCache[str, tuple[str, ...]] = TTLCache(1, max_age_ms, clock.monotonic_ms)
        self._seen: TTLCache[str, None] = TTLCache(MAX_SEEN, seen_ms, clock.monotonic_ms)
        self._lock = threading.Lock()

    def list(self, warehouse: Warehouse) -> tuple[str, ...]:
        """Return the names, ascending. Raises as :meth:`Warehouse.list_tables`."""
        with self._lock:
            names = self._names.get("")
            if names is None:
                names = self._names[""] = self._list(warehouse)
            return names

    def _list(self, warehouse: Warehouse) -> tuple[str, ...]:
        folders = warehouse.list_names()
        known = {name for name in folders if name in self._seen}
        others = None if self._others is None else self._others()
        if others is not None:
            known.update(others.find_tables([name for name in folders if name not in known]))
        names = warehouse.list_tables(known=known, names=folders)
        if others is not None:
            others.note_tables(set(names) - known, for_ms=self._seen_ms)
        self._seen.update(dict.fromkeys(set(names) - set(self._seen)))
        return names

    def forget(self, name: str) -> None:
        """Read a folder again in which no table was found."""
        with self._lock:
            self._seen.pop(name, None)
        if self._others is not None:
            self._others().forget_table(name)
