"""Staging: accepted batches that are not committed yet (rule I1).

Accepting a batch is one conditional PUT, under the batch's own id or of a group that names it. Nothing else makes a
batch durable, and nothing but a commit, a refusal (quarantine) or rule J2 takes it away again.

Whoever asks what is staged asks :func:`list_staged` or :func:`find_staged`, and gets batches: whether one lies alone or
in a group matters to who reads its body (:func:`read_staged`) or clears it (:func:`find_cleared`).
"""

import heapq
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from cachetools import LRUCache

from icedb_log.batch_ids import BatchIds
from icedb_log.clock import Clock
from icedb_log.content import hash_content
from icedb_log.errors import (
    CommitOutcomeUnknown,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
    TableNotFound,
    Unavailable,
)
from icedb_log.formats import StagingFormat
from icedb_log.ingest.groups import OfferedBatch, UnreadableGroupError, encode_group, read_group
from icedb_log.ingest.pressure import PressureGate
from icedb_log.jobs import StagedBatch
from icedb_log.keys import parse_group_key, parse_staged_key
from icedb_log.store.object_store import (
    MAX_KEYS_PER_PAGE,
    ObjectInfo,
    ObjectPage,
    ObjectStore,
    limit_reads,
    list_pages,
    map_each,
)
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import read_table_config
from icedb_log.table.table_config import TableConfig, require_takes_batches
from icedb_log.warehouse import Warehouse

MAX_STAGE_ATTEMPTS: Final = 3
_MAX_KNOWN_TABLES: Final = 10_000


MAX_LOOKS: Final = 10
"""A listing whose groups were taken away before they could be read is made again so often."""
_READ_THREADS: Final = 16
_READ_AT_ONCE: Final = 64
"""Groups whose indexes are read side by side, before the next ones are."""
_ALL: Final = 1 << 62
_LAST_ID: Final = "~"
_NO_IDS: Final = BatchIds(())
FindIds = Callable[[], BatchIds]
_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class StagedListing:
    """What waits in staging, oldest id first.

    Attributes:
        batches: Staged batches, at most the limit.
        unknown: Objects that are no staged batch and no whole group; kept, counted, never touched.
        has_more: Whether more batches wait behind these.
        store_now_ms: The store's clock when it was asked.
        groups: Every batch of each group that has some of these, by its key; also those beyond the limit, or skipped.
    """

    batches: tuple[StagedBatch, ...]
    unknown: tuple[ObjectInfo, ...]
    has_more: bool
    store_now_ms: int = 0
    groups: Mapping[str, tuple[StagedBatch, ...]] = field(default_factory=dict)


def stage_batch(table: TableStore, *, body: bytes, staging_format: StagingFormat, batch_id: str) -> str:
    """Accept a batch: when this returns, it is durable and will be committed or quarantined (I1).

    Idempotent for the same id and content: a retry after a lost answer is safe within the table's retry window
    (I3). The table is not read: a caller checks that it exists.

    Args:
        table: The table.
        body: The batch as a file of the given format.
        staging_format: One of :data:`icedb_log.formats.STAGING_FORMATS`.
        batch_id: A fresh UUIDv7 chosen by the producer, see :func:`icedb_log.clock.new_batch_id`.

    Returns:
        The key of the staged object.

    Raises:
        InvalidRequest: Bad id or format, or another batch was staged under this id.
        Unavailable: No usable answer; call again with the same id and body.
    """
    key = table.paths.staging_key(batch_id=batch_id, staging_format=staging_format)
    for _ in range(MAX_STAGE_ATTEMPTS):
        try:
            table.store.put_if_absent(key, body)
        except PreconditionFailed:
            pass
        except CommitOutcomeUnknown:
            continue
        else:
            return key
        try:
            found = table.store.get(key).body
        except NotFound:
            return key  # it was there and a flush has taken it meanwhile
        # I8: a retry may be packed anew; gzip writes the time into its header.
        if found != body and hash_content(found, staging_format) != hash_content(body, staging_format):
            raise InvalidRequest(
                f"table {table.name}: batch {batch_id} is staged already with other content ({key}); "
                "a batch id belongs to one batch for ever: use a fresh one"
            )
        return key
    raise Unavailable(
        f"table {table.name}: the store did not confirm batch {batch_id} ({key}); enqueue it again with the same id"
    )


def stage_group(table: TableStore, batches: Sequence[OfferedBatch]) -> str:
    """Accept several batches by one PUT: when this returns, each is durable, as after :func:`stage_batch` (I1).

    Idempotent: the same batches make the same object.

    Args:
        table: The table.
        batches: As :func:`~icedb_log.ingest.groups.encode_group` takes them.

    Returns:
        The key of the group.

    Raises:
        InvalidRequest: They cannot be one group.
        Unavailable: No usable answer; stage each of them again, alone or in any group.
    """
    key, body = encode_group(table.paths, batches)
    for _ in range(MAX_STAGE_ATTEMPTS):
        try:
            table.store.put_if_absent(key, body)
        except CommitOutcomeUnknown:
            continue
        except PreconditionFailed:
            pass  # the name is that of its content
        return key
    raise Unavailable(
        f"table {table.name}: the store did not confirm {len(batches)} batches ({key}); enqueue them again with the "
        "same ids"
    )


def read_staged(store: ObjectStore, batch: StagedBatch) -> bytes:
    """Return the body of a staged batch as it was sent. Raises NotFound, Unavailable."""
    if batch.offset_bytes is None:
        return store.get(batch.key).body
    return store.get_range(batch.key, start=batch.offset_bytes, length=batch.size_bytes).body


def find_cleared(decided: Iterable[StagedBatch], groups: Mapping[str, tuple[StagedBatch, ...]]) -> tuple[str, ...]:
    """Return the staged objects that hold nothing but decided batches. Pure.

    A group goes only as a whole: with one batch of it that nobody has decided it would take that away (I2).

    Args:
        decided: Copies that are needed no more: committed, in quarantine, or staged elsewhere as well.
        groups: All batches of the groups that these are in, as a listing has them.
    """
    names = {batch.name for batch in decided}
    alone = [batch.key for batch in decided if not batch.is_grouped]
    touched = dict.fromkeys(batch.key for batch in decided if batch.is_grouped)
    whole = [key for key in touched if all(batch.name in names for batch in groups[key])]
    return (*alone, *whole)


def list_staged(
    table: TableStore,
    *,
    limit: int = MAX_KEYS_PER_PAGE,
    skip: Collection[str] = (),
    find_decided: FindIds | None = None,
) -> StagedListing:
    """List at most ``limit`` staged batches but those with an id in ``skip``: by id, of one id the first staged first.

    Costs a LIST for each thousand objects, and a GET for each group that this process has not seen yet. Those that are
    no batches, or skipped, never hide a batch (I5).

    Args:
        table: The table.
        limit: Most batches.
        skip: Ids of batches that are left out.
        find_decided: Returns ids that the log has decided, for a flush, which is asked if there are groups. Those of
            them that are in a group come first, and do not count: what stays in it with others must not hide these.
    """
    return _look(table, lambda: _OrderedLook(table, limit=limit, skip=skip, find_decided=find_decided).run())


def list_all_staged(table: TableStore) -> StagedListing:
    """List all staged batches, as :func:`list_staged` does."""
    return list_staged(table, limit=_ALL)


def find_staged(table: TableStore, batch_ids: Collection[str]) -> Mapping[str, tuple[StagedBatch, ...]]:
    """Return which of some batches are staged, with their copies, under the ids that were asked for (I7).

    Costs a LIST for each thousand objects up to the newest of the ids, or all if one was made from a key, and GETs as
    :func:`list_staged`; none without ids.
    """
    asked = BatchIds(batch_ids)
    return _look(table, lambda: _find_once(table, asked)) if asked else {}


class _VanishedError(Exception):
    """A group that was listed is gone: what was in it may be staged alone by now, where this listing has looked."""


def _look(table: TableStore, look: Callable[[], _Found]) -> _Found:
    # WARN: a group that is gone is not left out. A batch of it may have been staged alone, under a key that the listing
    # had passed by then, before the group went: it would be nowhere, though it is accepted (R5).
    for _ in range(MAX_LOOKS):
        try:
            return look()
        except _VanishedError:
            continue
    raise Unavailable(f"table {table.name}: groups of staged batches came and went {MAX_LOOKS} times; try again")


def _read_objects(
    store: ObjectStore, infos: Sequence[ObjectInfo]
) -> Iterator[tuple[ObjectInfo, tuple[StagedBatch, ...]]]:
    """Yield what staging has with the batches in it, in order; no batches: it is of no kind that we know."""

    def read(info: ObjectInfo) -> tuple[StagedBatch, ...]:
        if parse_group_key(info.key) is not None:
            try:
                return read_group(store, info)
            except UnreadableGroupError:
                return ()
            except NotFound as error:
                raise _VanishedError from error
        try:
            name = parse_staged_key(info.key)
        except InvalidRequest:
            return ()
        return (StagedBatch(info.key, name.batch_id, name.format, info.size_bytes, info.modified_ms),)

    for start in range(0, len(infos), _READ_AT_ONCE):
        some = infos[start : start + _READ_AT_ONCE]
        if any(parse_group_key(info.key) for info in some):
            found = map_each(read, some, threads=limit_reads(store, _READ_THREADS), name="icedb-groups")
        else:
            found = [read(info) for info in some]
        yield from zip(some, found, strict=True)


class _OrderedLook:
    """One look at staging that brings singles and groups into the order of their batches' ids."""

    def __init__(
        self,
        table: TableStore,
        *,
        limit: int,
        skip: Collection[str],
        find_decided: FindIds | None,
    ) -> None:
        self._table = table
        self._limit = limit
        self._skip = skip
        self._find_decided = find_decided
        self._decided: list[StagedBatch] = []
        self._batches: list[StagedBatch] = []
        self._unknown: list[ObjectInfo] = []
        self._groups: dict[str, tuple[StagedBatch, ...]] = {}
        self._coming: list[tuple[str, int, str, StagedBatch]] = []
        """A heap of what was read, and may come after batches of the next objects."""

    def run(self) -> StagedListing:
        """List until there is more than is wanted."""
        store, prefix = self._table.store, self._table.paths.staging_prefix
        page = store.list_page(prefix, limit=min(self._limit + 1, MAX_KEYS_PER_PAGE))
        store_now_ms, has_more = page.store_now_ms, self._take_page(page)
        while not has_more and page.next_token is not None:
            if len(self._batches) == self._limit:
                has_more = True
                break
            page = store.list_page(prefix, token=page.next_token)
            has_more = self._take_page(page)
        has_more = has_more or self._take_before(_LAST_ID)
        batches = (*self._decided, *self._batches)
        return StagedListing(batches, tuple(self._unknown), has_more, store_now_ms, self._groups)

    def _take_page(self, page: ObjectPage) -> bool:
        for info, found in _read_objects(self._table.store, page.objects):
            if not found:
                self._unknown.append(info)
                continue
            # A key begins with the lowest id in its object. WARN: not that id itself: the next object may have it, too,
            # and was staged earlier. The copy that comes first decides; a retry that is too late decides nothing (I3).
            if self._take_before(found[0].batch_id):
                return True
            decided = _NO_IDS
            if found[0].is_grouped:
                self._groups[info.key] = found
                if self._find_decided is not None:
                    decided = self._find_decided()
            for batch in found:
                if batch.batch_id in decided:
                    self._decided.append(batch)
                elif batch.batch_id not in self._skip:
                    heapq.heappush(self._coming, (batch.batch_id, batch.staged_ms, batch.name, batch))
        return False

    def _take_before(self, next_id: str) -> bool:
        """Take what has a lower id; return whether there is more than is wanted."""
        while self._coming and self._coming[0][0] < next_id:
            if len(self._batches) == self._limit:
                return True
            self._batches.append(heapq.heappop(self._coming)[-1])
        return False


def _find_once(table: TableStore, asked: BatchIds) -> Mapping[str, tuple[StagedBatch, ...]]:
    found: dict[str, tuple[StagedBatch, ...]] = defaultdict(tuple)
    last_key = f"{table.paths.staging_prefix}{asked.last or _LAST_ID}~"
    for page in list_pages(table.store, table.paths.staging_prefix):
        for _, batches in _read_objects(table.store, [info for info in page.objects if info.key <= last_key]):
            for batch in batches:
                for batch_id in asked.find(batch.batch_id):
                    found[batch_id] += (replace(batch, batch_id=batch_id),)
        if page.objects and page.objects[-1].key > last_key:
            break
    return found


@dataclass(frozen=True, slots=True)
class _Known:
    """The last answer of a table's configuration; none: there is no such table, or it is dropped, and what to say."""

    read_ms: int
    config: TableConfig | None
    problem: str = ""
    is_dropped: bool = False


class Acceptance:
    """Knows which tables take batches: the rules of every front end and client. Thread-safe.

    Staging itself does not look at the table: a batch for an unknown one would wait for ever.

    Args:
        warehouse: Where the tables lie.
        clock: Measures ages.
        max_age_ms: How old the configuration of a table may be.
        missing_age_ms: How old the answer may be that there is no such table; 0: ask again.
    """

    def __init__(self, warehouse: Warehouse, *, clock: Clock, max_age_ms: int, missing_age_ms: int = 0) -> None:
        self.warehouse = warehouse
        self.pressure = PressureGate(warehouse.store, clock=clock)
        self._clock = clock
        self._max_age_ms = max_age_ms
        self._missing_age_ms = missing_age_ms
        self._known: LRUCache[str, _Known] = LRUCache(_MAX_KNOWN_TABLES)
        self._lock = threading.Lock()

    def config(self, table: str) -> TableConfig:
        """Return the configuration of a table for batches. At most one small GET.

        Raises:
            InvalidRequest: Not a table's name, or the table is a view.
            NotFound: No such table.
            UnsupportedFormat: A configuration that this release does not understand.
            Unavailable: The store did not answer.
        """
        now_ms = self._clock.monotonic_ms()
        with self._lock:
            known = self._known.get(table)
        if known is None or now_ms - known.read_ms > (self._max_age_ms if known.config else self._missing_age_ms):
            try:
                known = _Known(now_ms, read_table_config(self.warehouse.table(table)))
            except NotFound as error:
                known = _Known(now_ms, None, str(error), is_dropped=not isinstance(error, TableNotFound))
            if known.config is not None or self._missing_age_ms:
                with self._lock:
                    self._known[table] = known
        if known.config is None:
            raise NotFound(known.problem) if known.is_dropped else TableNotFound(known.problem, table=table)
        require_takes_batches(known.config)
        return known.config

    def check_known(self, table: str) -> TableConfig | None:
        """Check as :meth:`check` does, with its errors, if that asks the store for nothing; else return ``None``."""
        with self._lock:
            known = self._known.get(table)
        if known is None or known.config is None or not self.warehouse.knows(table):
            return None
        if self._clock.monotonic_ms() - known.read_ms > self._max_age_ms:
            return None
        require_takes_batches(known.config)
        return known.config if self.pressure.check_known(self.warehouse.table(table).paths) else None

    def check(self, table: str) -> TableConfig:
        """Return the configuration of a table that takes batches now.

        Raises:
            InvalidRequest: Not a table's name, or the table is a view.
            NotFound: No such table.
            Overloaded: It takes no batches just now; says when to try again.
            TableHalted: It takes none until a person has looked.
            Unavailable: The store did not answer.
        """
        config = self.config(table)
        self.pressure.check(self.warehouse.table(table).paths)
        return config
