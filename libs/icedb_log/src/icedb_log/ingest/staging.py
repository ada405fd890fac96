"""Staging: accepted batches that are not committed yet (rule I1).

Accepting a batch is one conditional PUT under the batch's own id. Nothing else makes a batch durable, and
nothing but a commit, a refusal (quarantine) or rule J2 takes it away again.
"""

import threading
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from cachetools import LRUCache

from icedb_log.clock import Clock
from icedb_log.errors import CommitOutcomeUnknown, InvalidRequest, NotFound, PreconditionFailed, Unavailable
from icedb_log.feed.views import require_takes_batches
from icedb_log.formats import StagingFormat
from icedb_log.ingest.content import hash_content
from icedb_log.ingest.pressure import PressureGate
from icedb_log.jobs import StagedBatch
from icedb_log.keys import parse_staged_key
from icedb_log.store.object_store import MAX_KEYS_PER_PAGE, ObjectInfo, list_pages
from icedb_log.store.table_store import TableStore
from icedb_log.table.stored_config import read_table_config
from icedb_log.table.table_config import TableConfig
from icedb_log.warehouse import Warehouse

MAX_STAGE_ATTEMPTS: Final = 3
_MAX_KNOWN_TABLES: Final = 10_000


@dataclass(frozen=True, slots=True)
class StagedListing:
    """What waits in staging, oldest id first.

    Attributes:
        batches: Staged batches, at most the limit.
        unknown: Objects that are no staged batch; kept, counted, never touched.
        has_more: Whether more batches wait behind these.
    """

    batches: tuple[StagedBatch, ...]
    unknown: tuple[ObjectInfo, ...]
    has_more: bool


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


def list_staged(table: TableStore, *, limit: int = MAX_KEYS_PER_PAGE, skip: Collection[str] = ()) -> StagedListing:
    """List at most ``limit`` staged batches, oldest id first, but those with an id in ``skip``.

    Costs a LIST for each thousand objects. Those that are no batches, or skipped, never hide a batch (I5).
    """
    batches: list[StagedBatch] = []
    unknown: list[ObjectInfo] = []
    page = table.store.list_page(table.paths.staging_prefix, limit=min(limit, MAX_KEYS_PER_PAGE))
    while True:
        for info in page.objects:
            try:
                name = parse_staged_key(info.key)
            except InvalidRequest:
                unknown.append(info)
                continue
            if name.batch_id in skip:
                continue
            if len(batches) == limit:
                return StagedListing(tuple(batches), tuple(unknown), has_more=True)
            batches.append(StagedBatch(info.key, name.batch_id, name.format, info.size_bytes, info.modified_ms))
        if page.next_token is None or len(batches) == limit:
            return StagedListing(tuple(batches), tuple(unknown), page.next_token is not None)
        page = table.store.list_page(table.paths.staging_prefix, token=page.next_token)


def find_staged(table: TableStore, batch_ids: Collection[str]) -> Mapping[str, tuple[str, ...]]:
    """Return which of some batches are staged, with the keys of their copies.

    Costs a LIST for each thousand objects up to the newest of the ids; none without ids.
    """
    found: dict[str, tuple[str, ...]] = defaultdict(tuple)
    newest = max(batch_ids, default="")
    for page in list_pages(table.store, table.paths.staging_prefix) if newest else ():
        for info in page.objects:
            try:
                batch_id = parse_staged_key(info.key).batch_id
            except InvalidRequest:
                continue
            if batch_id in batch_ids:
                found[batch_id] += (info.key,)
        if page.objects and page.objects[-1].key > f"{table.paths.staging_prefix}{newest}~":
            break
    return found


@dataclass(frozen=True, slots=True)
class _Known:
    """The last answer of a table's configuration; none: there is no such table, and why."""

    read_ms: int
    config: TableConfig | None
    problem: str


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
                known = _Known(now_ms, read_table_config(self.warehouse.table(table)), "")
            except NotFound as error:
                known = _Known(now_ms, None, str(error))
            if known.config is not None or self._missing_age_ms:
                with self._lock:
                    self._known[table] = known
        if known.config is None:
            raise NotFound(known.problem)
        require_takes_batches(known.config)
        return known.config

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
